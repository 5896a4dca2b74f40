// The C ABI: unwrap the handle, convert the arguments, one call. Reference documentation is in
// include/waveinfer.h. guard() is the only place in the library that catches; no exception leaves it.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/capi_convert.h"
#include "src/capi_struct.h"
#include "src/engine/engine.h"
#include "src/host_call.h"
#include "src/host_process.h"
#include "src/memory_plan.h"
#include "src/model/device_weights.h"

// A handle counts the host's references; the object behind it is also kept by what was made from it, so
// handles may be released in any order.
template <class Object>
struct Handle {
  explicit Handle(std::shared_ptr<Object> held) : object(std::move(held)) {}
  bool of_this_process() const { return made_after_forks == wi::fork_count(); }
  std::atomic<int64_t> references{1};
  const uint32_t made_after_forks = wi::fork_count();
  const std::shared_ptr<Object> object;
};
struct wi_runtime : Handle<wi::Runtime> {
  using Handle::Handle;
};
struct wi_cancel : Handle<wi::ResettableCancel> {
  using Handle::Handle;
};
struct wi_task : Handle<wi::Task> {
  using Handle::Handle;
  ~wi_task() { object->abandon(); }
};
struct wi_kv : Handle<wi::KvStore> {
  using Handle::Handle;
};
struct wi_model : Handle<const wi::Model> {
  wi_model(std::shared_ptr<const wi::Model> held, std::shared_ptr<wi::Runtime> on)
      : Handle(std::move(held)), runtime(std::move(on)) {}
  const std::shared_ptr<wi::Runtime> runtime;
};
struct wi_session : Handle<wi::Session> {
  wi_session(std::shared_ptr<wi::Session> held, std::shared_ptr<const wi::Model> of)
      : Handle(std::move(held)), model(std::move(of)) {}
  const std::shared_ptr<const wi::Model> model;
};

namespace {

using namespace wi;

template <class Body>
wi_status guard(wi_error* error, Body&& body) noexcept;

// A handle that is not NULL and not of a parent process, and the object behind one.
template <class H>
H& required(H* handle, const char* name) {
  check(handle != nullptr, WI_E_ARGUMENT, name, " is NULL");
  check(handle->of_this_process(), WI_E_STATE, name, " was made before fork(), by the parent process");
  return *handle;
}

template <class H>
auto& unwrap(H* handle, const char* name) {
  return *required(handle, name).object;
}

ResettableCancel::Use token_of(wi_cancel* cancel) {
  return ResettableCancel::Use(cancel ? &unwrap(cancel, "cancel") : nullptr);
}

template <class H>
H* retain(H* handle) {
  if (handle) handle->references.fetch_add(1, std::memory_order_relaxed);
  return handle;
}

// In a child process the parent's objects stay as they are: their threads do not exist here.
template <class H>
void release(H* handle) {
  if (handle && handle->of_this_process() && handle->references.fetch_sub(1, std::memory_order_acq_rel) == 1)
    delete handle;
}

void check_out(const void* out, const char* name) { check(out != nullptr, WI_E_ARGUMENT, name, " is NULL"); }
int64_t to_count(const char* name, uint64_t count);
void check_batch(wi_session* const* sessions, uint64_t count);
void check_layer(const KvStore& store, int32_t layer);

// What a load was asked for, by what was saved.
Session::Choice session_choice(const wi_session_params* params, const Backend& backend) {
  return [params, &backend](const SessionParams& saved) { return to_session_params(params, backend, saved); };
}
KvStore::Choice kv_choice(const wi_kv_params* params, const Backend& backend) {
  return
      [params, &backend](const KvStoreParams& saved) { return to_kv_store_params(params, backend, &saved); };
}

// What the ways to open a model have in common; open takes the progress, the precision and, if the weights
// are to be copied, the pool.
template <class Open>
void open_model(wi_runtime* runtime, const wi_model_params* params, wi_cancel* cancel, wi_model** model_out,
                Open&& open) {
  const wi_runtime& on = required(runtime, "runtime");
  check_out(model_out, "model_out");
  const wi_model_params p = read_struct(params, "wi_model_params");
  const Precision precision = precision_of(p);
  const Runtime& at = *on.object;
  HostPool* copy_into = wants_copied_weights(p) && !at.device ? at.weights_pool.get() : nullptr;
  const ResettableCancel::Use token = token_of(cancel);
  uint64_t opened = 0, in_all = 0;
  const Progress progress = [&](uint64_t done, uint64_t total) {
    throw_if_cancelled(flag_of(token));
    opened = done, in_all = total;
    report_progress(p.progress, p.progress_user, done, total);
  };
  std::shared_ptr<const Model> model = open(progress, precision, copy_into);
  if (at.device)  // nobody else has the model yet; its bytes were counted once
    move_weights(*std::const_pointer_cast<Model>(model), at.device->table, *at.device_weights_pool,
                 [&](uint64_t, uint64_t) { progress(opened, in_all); });
  *model_out = new wi_model(std::move(model), on.object);
}

}  // namespace

// ---- Version ----

uint32_t wi_abi_version(void) { return WI_ABI_VERSION; }

const char* wi_version(void) { return WI_VERSION; }

const char* wi_status_name(wi_status status) {
  static constexpr const char* kNames[] = {"OK",       "ARGUMENT", "FORMAT",      "UNSUPPORTED", "IO",
                                           "MEMORY",   "BUDGET",   "CANCELLED",   "BUSY",        "STATE",
                                           "MISMATCH", "DEVICE",   "DEVICE_LOST", "INTERNAL"};
  static_assert(std::size(kNames) == WI_E_INTERNAL + 1);
  return status >= 0 && status <= WI_E_INTERNAL ? kNames[status] : "UNKNOWN";
}

// ---- Devices ----

wi_status wi_device_count(int32_t* count_out, wi_error* error) {
  return guard(error, [&] {
    check_out(count_out, "count_out");
    *count_out = device_count();
  });
}

wi_status wi_device_get_info(int32_t index, wi_device_info* info_out, wi_error* error) {
  return guard(error, [&] {
    check_struct_out(info_out, "info_out");
    write_struct(to_device_info(index), info_out);
  });
}

// ---- Runtime ----

wi_status wi_runtime_create(const wi_runtime_params* params, wi_runtime** runtime_out, wi_error* error) {
  return guard(error, [&] {
    prepare_process();
    check_out(runtime_out, "runtime_out");
    auto made = std::make_unique<wi_runtime>(Runtime::create(to_runtime_params(params)));
    made->object->own_log_user();  // now that nothing can fail any more
    *runtime_out = made.release();
  });
}

wi_runtime* wi_runtime_retain(wi_runtime* runtime) { return retain(runtime); }

void wi_runtime_release(wi_runtime* runtime) { release(runtime); }

wi_status wi_runtime_device_info(wi_runtime* runtime, wi_device_info* info_out, wi_error* error) {
  return guard(error, [&] {
    const Runtime& of = unwrap(runtime, "runtime");
    check_struct_out(info_out, "info_out");
    write_struct(to_device_info(of), info_out);
  });
}

wi_status wi_runtime_policy(wi_runtime* runtime, int32_t index, wi_policy_info* info_out, wi_error* error) {
  return guard(error, [&] {
    const Runtime& of = unwrap(runtime, "runtime");
    check_struct_out(info_out, "info_out");
    write_struct(to_policy_info(of, index), info_out);
  });
}

wi_status wi_runtime_get_stats(wi_runtime* runtime, wi_runtime_stats* stats_out, wi_error* error) {
  return guard(error, [&] {
    const Runtime& of = unwrap(runtime, "runtime");
    check_struct_out(stats_out, "stats_out");
    write_struct(to_runtime_stats(of), stats_out);
  });
}

// ---- Cancel ----

wi_status wi_cancel_create(wi_cancel** cancel_out, wi_error* error) {
  return guard(error, [&] {
    check_out(cancel_out, "cancel_out");
    *cancel_out = new wi_cancel(std::make_shared<ResettableCancel>());
  });
}

wi_cancel* wi_cancel_retain(wi_cancel* cancel) { return retain(cancel); }

void wi_cancel_release(wi_cancel* cancel) { release(cancel); }

void wi_cancel_trigger(wi_cancel* cancel) {
  if (cancel) cancel->object->trigger();
}

void wi_cancel_reset(wi_cancel* cancel) {
  if (cancel && cancel->of_this_process()) cancel->object->reset();
}

// ---- Model ----

wi_status wi_model_open(wi_runtime* runtime, const char* path, const wi_model_params* params,
                        wi_cancel* cancel, wi_model** model_out, wi_error* error) {
  return guard(error, [&] {
    check_out(path, "path");
    open_model(runtime, params, cancel, model_out,
               [&](const Progress& progress, Precision precision, HostPool* copy_into) {
                 return Model::open(path, progress, precision, copy_into);
               });
  });
}

wi_status wi_model_open_memory(wi_runtime* runtime, const void* data, uint64_t bytes,
                               const wi_model_params* params, wi_cancel* cancel, wi_model** model_out,
                               wi_error* error) {
  return guard(error, [&] {
    check_out(data, "data");
    check(bytes > 0 && bytes <= PTRDIFF_MAX, WI_E_ARGUMENT, "bytes is ", bytes, ", must be in [1, ",
          PTRDIFF_MAX, "]");
    open_model(runtime, params, cancel, model_out,
               [&](const Progress& progress, Precision precision, HostPool* copy_into) {
                 const uint64_t beside = reinterpret_cast<uintptr_t>(data) % 8;
                 // On a device, from where they lie; if they lie so, from a copy.
                 if (beside && wants_copied_weights(read_struct(params, "wi_model_params")))
                   copy_into = runtime->object->weights_pool.get();
                 check(copy_into || beside == 0, WI_E_ARGUMENT, "data lies ", beside,
                       " bytes behind a multiple of 8, which only weights that are copied may");
                 return Model::open_memory({static_cast<const std::byte*>(data), bytes}, progress, precision,
                                           copy_into);
               });
  });
}

wi_status wi_model_open_reader(wi_runtime* runtime, const wi_reader* reader, const wi_model_params* params,
                               wi_cancel* cancel, wi_model** model_out, wi_error* error) {
  return guard(error, [&] {
    check_out(reader, "reader");
    const wi_reader from = read_struct(reader, "wi_reader");
    check(from.read != nullptr, WI_E_ARGUMENT, "wi_reader.read is NULL");
    check(from.reserved == 0, WI_E_ARGUMENT, "wi_reader.reserved is ", from.reserved, ", must be 0");
    check(from.bytes > 0, WI_E_ARGUMENT, "wi_reader.bytes is 0");
    const auto read = [&](uint64_t offset, std::span<std::byte> to) {
      const HostCall host;
      const int32_t result = from.read(from.user, offset, to.data(), to.size());
      if (result != 0)
        throw_error(
            WI_E_IO,
            concat("wi_reader.read returned ", result, " for ", to.size(), " bytes at offset ", offset),
            result);
    };
    open_model(runtime, params, cancel, model_out,
               [&](const Progress& progress, Precision precision, HostPool*) {
                 return Model::open_reader(from.bytes, read, progress, precision,
                                           runtime->object->weights_pool.get());
               });
  });
}

wi_model* wi_model_retain(wi_model* model) { return retain(model); }

void wi_model_release(wi_model* model) { release(model); }

wi_status wi_model_get_info(wi_model* model, wi_model_info* info_out, wi_error* error) {
  return guard(error, [&] {
    const Model& of = unwrap(model, "model");
    check_struct_out(info_out, "info_out");
    write_struct(to_model_info(of), info_out);
  });
}

wi_status wi_model_get_metadata(wi_model* model, const char* key, char* text, uint64_t capacity,
                                uint64_t* length_out, wi_error* error) {
  return guard(error, [&] {
    const Metadata& metadata = unwrap(model, "model").metadata;
    check_out(key, "key");
    check_list_out(text, capacity, length_out, "text", "length_out");
    const std::optional<std::string> value = metadata.find(key);
    check(value.has_value(), WI_E_ARGUMENT, "key is '", key, "', which the model does not have");
    write_list<char>(*value, text, capacity, length_out, "text");
  });
}

wi_status wi_model_metadata_count(wi_model* model, uint64_t* count_out, wi_error* error) {
  return guard(error, [&] {
    const Metadata& metadata = unwrap(model, "model").metadata;
    check_out(count_out, "count_out");
    *count_out = metadata.count();
  });
}

wi_status wi_model_metadata_key(wi_model* model, uint64_t index, char* text, uint64_t capacity,
                                uint64_t* length_out, wi_error* error) {
  return guard(error, [&] {
    const Metadata& metadata = unwrap(model, "model").metadata;
    check(index < metadata.count(), WI_E_ARGUMENT, "index is ", index, ", the model has ", metadata.count(),
          " keys");
    check_list_out(text, capacity, length_out, "text", "length_out");
    write_list<char>(metadata.key(index), text, capacity, length_out, "text");
  });
}

wi_status wi_model_token_info(wi_model* model, int32_t token, wi_token_info* info_out, wi_error* error) {
  return guard(error, [&] {
    const Model& of = unwrap(model, "model");
    check_struct_out(info_out, "info_out");
    check(token >= 0 && token < of.config.vocab, WI_E_ARGUMENT, "token is ", token, ", must be in [0, ",
          of.config.vocab, ")");
    write_struct(to_token_info(*of.tokenizer, token), info_out);
  });
}

wi_status wi_model_tokenize(wi_model* model, const char* text, uint64_t length, uint32_t flags,
                            int32_t* tokens, uint64_t capacity, uint64_t* count_out, wi_error* error) {
  return guard(error, [&] {
    const Tokenizer& tokenizer = *unwrap(model, "model").tokenizer;
    check_flags("flags", flags, WI_TOKENIZE_ADD_BOS | WI_TOKENIZE_PARSE_SPECIAL);
    check_list_out(tokens, capacity, count_out, "tokens", "count_out");
    const std::vector<int32_t> ids = tokenizer.encode(
        to_text(text, length, "text"), flags & WI_TOKENIZE_ADD_BOS, flags & WI_TOKENIZE_PARSE_SPECIAL);
    write_list<int32_t>(ids, tokens, capacity, count_out, "tokens");
  });
}

wi_status wi_model_detokenize(wi_model* model, const int32_t* tokens, uint64_t count, uint32_t flags,
                              char* text, uint64_t capacity, uint64_t* length_out, wi_error* error) {
  return guard(error, [&] {
    const Model& of = unwrap(model, "model");
    check_flags("flags", flags, WI_DETOKENIZE_KEEP_SPECIAL);
    check_list_out(text, capacity, length_out, "text", "length_out");
    const std::span<const int32_t> ids = to_span(tokens, count, "tokens");
    check_tokens("tokens", ids, of.config.vocab);
    write_list<char>(of.tokenizer->decode(ids, flags & WI_DETOKENIZE_KEEP_SPECIAL), text, capacity,
                     length_out, "text");
  });
}

wi_status wi_model_chat_render(wi_model* model, const wi_chat_message* messages, uint64_t count,
                               const wi_chat_params* params, char* text, uint64_t capacity,
                               uint64_t* length_out, wi_error* error) {
  return guard(error, [&] {
    const Model& of = unwrap(model, "model");
    check_list_out(text, capacity, length_out, "text", "length_out");
    const std::vector<ChatMessage> read = to_chat_messages(messages, count);
    const chat::Text rendered = of.chat.render(to_chat_request(read, params));
    write_list<char>(rendered.bytes(), text, capacity, length_out, "text");
  });
}

wi_status wi_model_chat_tokens(wi_model* model, const wi_chat_message* messages, uint64_t count,
                               const wi_chat_params* params, int32_t* tokens, uint64_t capacity,
                               uint64_t* count_out, wi_error* error) {
  return guard(error, [&] {
    const Model& of = unwrap(model, "model");
    check_list_out(tokens, capacity, count_out, "tokens", "count_out");
    const std::vector<ChatMessage> read = to_chat_messages(messages, count);
    std::string literals;
    const chat::Text rendered = of.chat.render(to_chat_request(read, params), &literals);
    write_list<int32_t>(of.tokenizer->encode_beside(rendered.bytes(), rendered.host(), literals), tokens,
                        capacity, count_out, "tokens");
  });
}

wi_status wi_model_plan_memory(wi_model* model, const wi_session_params* params, uint64_t tokens,
                               wi_memory_plan* plan_out, wi_error* error) {
  return guard(error, [&] {
    const wi_model& of = required(model, "model");
    check_struct_out(plan_out, "plan_out");
    const SessionParams converted = to_session_params(params, of.runtime->backend);
    check_bias(converted.sampling, of.object->config.vocab);
    write_struct(plan_memory(*of.runtime, *of.object, converted, tokens), plan_out);
  });
}

// ---- Session ----

wi_status wi_session_create(wi_model* model, const wi_session_params* params, wi_session** session_out,
                            wi_error* error) {
  return guard(error, [&] {
    const wi_model& of = required(model, "model");
    check_out(session_out, "session_out");
    const SessionParams converted = to_session_params(params, of.runtime->backend);
    *session_out = new wi_session(Session::create(of.runtime, of.object, converted), of.object);
  });
}

wi_session* wi_session_retain(wi_session* session) { return retain(session); }

void wi_session_release(wi_session* session) { release(session); }

wi_status wi_session_prefill(wi_session* session, const int32_t* tokens, uint64_t count,
                             const wi_prefill_params* params, wi_cancel* cancel, wi_error* error) {
  return guard(error, [&] {
    const wi_session& of = required(session, "session");
    // Checked and read where nobody changes them meanwhile: a callback of the call's own may.
    const std::vector<int32_t> ids = copied(to_span(tokens, count, "tokens"));
    check_tokens("tokens", ids, of.model->config.vocab);
    of.object->prefill(ids, to_prefill_params(params), token_of(cancel));
  });
}

wi_status wi_session_append_text(wi_session* session, const char* text, uint64_t length, uint32_t flags,
                                 const wi_prefill_params* params, wi_cancel* cancel, wi_error* error) {
  return guard(error, [&] {
    check_flags("flags", flags, WI_TOKENIZE_ADD_BOS | WI_TOKENIZE_PARSE_SPECIAL);
    unwrap(session, "session")
        .append_text(to_text(text, length, "text"), flags, to_prefill_params(params), token_of(cancel));
  });
}

wi_status wi_session_decode(wi_session* session, wi_cancel* cancel, wi_event* event_out, wi_error* error) {
  return guard(error, [&] {
    Session& of = unwrap(session, "session");
    check_struct_out(event_out, "event_out");
    write_struct(to_event(of.decode(token_of(cancel))), event_out);
  });
}

wi_status wi_session_accept(wi_session* session, int32_t token, wi_cancel* cancel, wi_event* event_out,
                            wi_error* error) {
  return guard(error, [&] {
    const wi_session& of = required(session, "session");
    check(token >= 0 && token < of.model->config.vocab, WI_E_ARGUMENT, "token is ", token,
          ", must be in [0, ", of.model->config.vocab, ")");
    check_struct_out(event_out, "event_out");
    write_struct(to_event(of.object->accept(token, token_of(cancel))), event_out);
  });
}

wi_status wi_session_logits(wi_session* session, wi_cancel* cancel, float* logits, uint64_t capacity,
                            uint64_t* count_out, wi_error* error) {
  return guard(error, [&] {
    const wi_session& of = required(session, "session");
    check_list_out(logits, capacity, count_out, "logits", "count_out");
    const auto vocab = static_cast<uint64_t>(of.model->config.vocab);
    if (!logits || capacity < vocab) return report_list_size(logits, vocab, capacity, count_out, "logits");
    const ResettableCancel::Use token = token_of(cancel);
    of.object->copy_logits(token, {logits, static_cast<size_t>(vocab)});
    *count_out = vocab;
  });
}

wi_status wi_session_tokens(wi_session* session, int32_t* tokens, uint64_t capacity, uint64_t* count_out,
                            wi_error* error) {
  return guard(error, [&] {
    Session& of = unwrap(session, "session");
    check_list_out(tokens, capacity, count_out, "tokens", "count_out");
    write_list<int32_t>(of.tokens(), tokens, capacity, count_out, "tokens");
  });
}

wi_status wi_session_fork(wi_session* session, wi_session** fork_out, wi_error* error) {
  return guard(error, [&] {
    const wi_session& of = required(session, "session");
    check_out(fork_out, "fork_out");
    *fork_out = new wi_session(of.object->fork(), of.model);
  });
}

wi_status wi_session_fork_as(wi_session* session, const wi_session_params* params, wi_cancel* cancel,
                             wi_session** fork_out, wi_error* error) {
  return guard(error, [&] {
    const wi_session& of = required(session, "session");
    check_out(fork_out, "fork_out");
    const SessionParams p = to_session_params(params, of.object->backend(), of.object->params().kv);
    *fork_out = new wi_session(of.object->fork_as(p, token_of(cancel)), of.model);
  });
}

wi_status wi_session_truncate(wi_session* session, uint64_t tokens, wi_error* error) {
  return guard(error, [&] { unwrap(session, "session").truncate(to_count("tokens", tokens)); });
}

wi_status wi_session_save(wi_session* session, const char* path, wi_cancel* cancel, wi_error* error) {
  return guard(error, [&] {
    Session& of = unwrap(session, "session");
    check_out(path, "path");
    of.save(path, token_of(cancel));
  });
}

wi_status wi_session_save_to(wi_session* session, const wi_writer* writer, wi_cancel* cancel,
                             wi_error* error) {
  return guard(error, [&] {
    Session& of = unwrap(session, "session");
    HostWriter to = to_writer(writer);
    of.save(to, token_of(cancel));
  });
}

wi_status wi_session_saved_bytes(wi_session* session, uint64_t* bytes_out, wi_error* error) {
  return guard(error, [&] {
    Session& of = unwrap(session, "session");
    check_out(bytes_out, "bytes_out");
    *bytes_out = of.saved_bytes();
  });
}

wi_status wi_session_load(wi_model* model, const char* path, const wi_session_params* params,
                          wi_cancel* cancel, wi_session** session_out, wi_error* error) {
  return guard(error, [&] {
    const wi_model& of = required(model, "model");
    check_out(path, "path");
    check_out(session_out, "session_out");
    *session_out =
        new wi_session(Session::load(of.runtime, of.object, path, session_choice(params, of.runtime->backend),
                                     token_of(cancel)),
                       of.object);
  });
}

wi_status wi_session_load_from(wi_model* model, const wi_reader* reader, const wi_session_params* params,
                               wi_cancel* cancel, wi_session** session_out, wi_error* error) {
  return guard(error, [&] {
    const wi_model& of = required(model, "model");
    HostReader from = to_reader(reader);
    check_out(session_out, "session_out");
    *session_out =
        new wi_session(Session::load(of.runtime, of.object, from, session_choice(params, of.runtime->backend),
                                     token_of(cancel)),
                       of.object);
  });
}

wi_status wi_session_set_sampling(wi_session* session, const wi_sampling_params* sampling, wi_error* error) {
  return guard(error, [&] { unwrap(session, "session").set_sampling(to_sampling_params(sampling)); });
}

wi_status wi_session_get_stats(wi_session* session, wi_session_stats* stats_out, wi_error* error) {
  return guard(error, [&] {
    const Session& of = unwrap(session, "session");
    check_struct_out(stats_out, "stats_out");
    write_struct(of.stats(), stats_out);
  });
}

// ---- Batch ----

wi_status wi_batch_decode(wi_session* const* sessions, uint64_t count, wi_cancel* cancel,
                          wi_event* events_out, wi_error* error) {
  return guard(error, [&] {
    check_batch(sessions, count);
    check_struct_array(events_out, count, "events_out");
    std::vector<Session*> batch(count);
    for (uint64_t i = 0; i < count; ++i) batch[i] = sessions[i]->object.get();
    std::vector<Event> events(count);
    const ResettableCancel::Use token = token_of(cancel);
    if (count) Session::decode_batch(batch, token, events.data());
    for (uint64_t i = 0; i < count; ++i) write_struct(to_event(events[i]), element(events_out, i));
  });
}

// ---- Tasks ----

wi_status wi_task_submit(wi_session* session, const wi_task_params* params, wi_task** task_out,
                         wi_error* error) {
  return guard(error, [&] {
    const wi_session& of = required(session, "session");
    check_out(task_out, "task_out");
    TaskParams converted = to_task_params(params, of.model->config.vocab);
    if (converted.sampling) check_bias(*converted.sampling, of.model->config.vocab);
    auto task = std::make_unique<wi_task>(std::make_shared<Task>(of.object, std::move(converted)));
    const auto before_notify = task->object->hold_notify();
    submit_task(task->object);
    *task_out = task.release();
  });
}

wi_task* wi_task_retain(wi_task* task) { return retain(task); }

void wi_task_release(wi_task* task) { release(task); }

wi_status wi_task_poll(wi_task* task, wi_event* events_out, uint64_t capacity, uint64_t* count_out,
                       wi_error* error) {
  return guard(error, [&] {
    Task& of = unwrap(task, "task");
    check_struct_array(events_out, capacity, "events_out");
    check_out(count_out, "count_out");
    *count_out = 0;
    if (capacity == 0) return;
    *count_out = of.poll(capacity, [&](size_t i, const Event& event) {
      write_struct(to_event(event), element(events_out, i));
    });
  });
}

wi_status wi_task_wait(wi_task* task, int64_t timeout_ns, int32_t* ready_out, wi_error* error) {
  return guard(error, [&] {
    Task& of = unwrap(task, "task");
    check_out(ready_out, "ready_out");
    *ready_out = of.wait(timeout_ns);
  });
}

wi_status wi_task_get_fd(wi_task* task, int32_t* fd_out, wi_error* error) {
  return guard(error, [&] {
    Task& of = unwrap(task, "task");
    check_out(fd_out, "fd_out");
    *fd_out = of.file_descriptor();
  });
}

void wi_task_cancel(wi_task* task) {
  if (task) task->object->cancel();
}

wi_status wi_task_get_info(wi_task* task, wi_task_info* info_out, wi_error* error) {
  return guard(error, [&] {
    const Task& of = unwrap(task, "task");
    check_struct_out(info_out, "info_out");
    write_struct(to_task_info(of.info()), info_out);
  });
}

// ---- KV store alone ----

wi_status wi_kv_create(wi_runtime* runtime, const wi_kv_params* params, wi_kv** kv_out, wi_error* error) {
  return guard(error, [&] {
    const wi_runtime& on = required(runtime, "runtime");
    check_out(kv_out, "kv_out");
    *kv_out = new wi_kv(std::make_shared<KvStore>(on.object, to_kv_store_params(params, on.object->backend)));
  });
}

wi_kv* wi_kv_retain(wi_kv* kv) { return retain(kv); }

void wi_kv_release(wi_kv* kv) { release(kv); }

wi_status wi_kv_append(wi_kv* kv, int32_t layer, uint64_t tokens, const float* keys, const float* values,
                       wi_error* error) {
  return guard(error, [&] {
    KvStore& store = unwrap(kv, "kv");
    check_layer(store, layer);
    const int64_t count = to_count("tokens", tokens);
    check_out(keys, "keys");
    check_out(values, "values");
    store.append(layer, count, keys, values);
  });
}

wi_status wi_kv_seal(wi_kv* kv, wi_error* error) {
  return guard(error, [&] { unwrap(kv, "kv").seal(); });
}

wi_status wi_kv_attend(wi_kv* kv, int32_t layer, uint64_t rows, const float* queries, wi_cancel* cancel,
                       float* out, float* lse_out, wi_error* error) {
  return guard(error, [&] {
    KvStore& store = unwrap(kv, "kv");
    check_layer(store, layer);
    const int64_t count = to_count("rows", rows);
    check_out(queries, "queries");
    check_out(out, "out");
    store.attend(layer, count, queries, token_of(cancel), out, lse_out);
  });
}

wi_status wi_kv_fork(wi_kv* kv, wi_kv** fork_out, wi_error* error) {
  return guard(error, [&] {
    KvStore& of = unwrap(kv, "kv");
    check_out(fork_out, "fork_out");
    *fork_out = new wi_kv(of.fork());
  });
}

wi_status wi_kv_truncate(wi_kv* kv, uint64_t tokens, wi_error* error) {
  return guard(error, [&] { unwrap(kv, "kv").truncate(to_count("tokens", tokens)); });
}

wi_status wi_kv_save(wi_kv* kv, const char* path, wi_cancel* cancel, wi_error* error) {
  return guard(error, [&] {
    KvStore& of = unwrap(kv, "kv");
    check_out(path, "path");
    of.save(path, token_of(cancel));
  });
}

wi_status wi_kv_save_to(wi_kv* kv, const wi_writer* writer, wi_cancel* cancel, wi_error* error) {
  return guard(error, [&] {
    KvStore& of = unwrap(kv, "kv");
    HostWriter to = to_writer(writer);
    of.save(to, token_of(cancel));
  });
}

wi_status wi_kv_saved_bytes(wi_kv* kv, uint64_t* bytes_out, wi_error* error) {
  return guard(error, [&] {
    KvStore& of = unwrap(kv, "kv");
    check_out(bytes_out, "bytes_out");
    *bytes_out = of.saved_bytes();
  });
}

wi_status wi_kv_load(wi_runtime* runtime, const char* path, const wi_kv_params* params, wi_cancel* cancel,
                     wi_kv** kv_out, wi_error* error) {
  return guard(error, [&] {
    const wi_runtime& on = required(runtime, "runtime");
    check_out(path, "path");
    check_out(kv_out, "kv_out");
    *kv_out =
        new wi_kv(KvStore::load(on.object, path, kv_choice(params, on.object->backend), token_of(cancel)));
  });
}

wi_status wi_kv_load_from(wi_runtime* runtime, const wi_reader* reader, const wi_kv_params* params,
                          wi_cancel* cancel, wi_kv** kv_out, wi_error* error) {
  return guard(error, [&] {
    const wi_runtime& on = required(runtime, "runtime");
    HostReader from = to_reader(reader);
    check_out(kv_out, "kv_out");
    *kv_out =
        new wi_kv(KvStore::load(on.object, from, kv_choice(params, on.object->backend), token_of(cancel)));
  });
}

wi_status wi_kv_get_stats(wi_kv* kv, wi_session_stats* stats_out, wi_error* error) {
  return guard(error, [&] {
    const KvStore& of = unwrap(kv, "kv");
    check_struct_out(stats_out, "stats_out");
    write_struct(of.stats(), stats_out);
  });
}

namespace {

// Fills what of a wi_error its struct_size has room for; allocates nothing.
wi_status report(wi_error* error, wi_status code, int64_t native_code, const char* message) noexcept {
  if (!error || error->struct_size < sizeof error->struct_size) return code;
  wi_error ours{};
  ours.code = code;
  ours.native_code = native_code;
  const size_t room =
      error->struct_size > offsetof(wi_error, message) ? error->struct_size - offsetof(wi_error, message) : 0;
  copy_utf8(message, ours.message, std::min(room, sizeof ours.message));
  const size_t header = sizeof error->struct_size, size = std::min<size_t>(error->struct_size, sizeof ours);
  std::memcpy(reinterpret_cast<std::byte*>(error) + header,
              reinterpret_cast<const std::byte*>(&ours) + header, size - header);
  if (error->struct_size > sizeof ours && error->struct_size <= kLargestStruct)  // of a newer header
    std::memset(reinterpret_cast<std::byte*>(error) + sizeof ours, 0, error->struct_size - sizeof ours);
  return code;
}

template <class Body>
wi_status guard(wi_error* error, Body&& body) noexcept {
  const DefaultFloats floats;
  try {
    body();
    return WI_OK;
  } catch (const Error& caught) {
    return report(error, caught.code(), caught.native_code(), caught.what());
  } catch (const std::bad_alloc&) {
    return report(error, WI_E_MEMORY, 0, "the system refused memory");
  } catch (const std::exception& caught) {
    return report(error, WI_E_INTERNAL, 0, caught.what());
  } catch (...) {
    return report(error, WI_E_INTERNAL, 0, "an exception that is no std::exception");
  }
}

// Positions are 32 bits in the store.
int64_t to_count(const char* name, uint64_t count) {
  check(count <= INT32_MAX, WI_E_ARGUMENT, name, " is ", count, ", must be at most ", INT32_MAX);
  return static_cast<int64_t>(count);
}

void check_batch(wi_session* const* sessions, uint64_t count) {
  check(sessions != nullptr || count == 0, WI_E_ARGUMENT, "sessions is NULL with count ", count);
  check(count <= PTRDIFF_MAX / sizeof(void*), WI_E_ARGUMENT, "sessions has length ", count,
        ", more than memory can hold");
  for (uint64_t i = 0; i < count; ++i) {
    check(sessions[i] != nullptr, WI_E_ARGUMENT, "sessions[", i, "] is NULL");
    check(sessions[i]->of_this_process(), WI_E_STATE, "sessions[", i,
          "] was made before fork(), by the parent process");
  }
}

void check_layer(const KvStore& store, int32_t layer) {
  check(layer >= 0 && layer < store.params().shape.layers, WI_E_ARGUMENT, "layer is ", layer,
        ", must be in [0, ", store.params().shape.layers, ")");
}

}  // namespace
