// The C ABI: unwrap the handle, convert the arguments, one call. Reference documentation is in
// include/waveinfer.h. guard() is the only place in the library that catches; no exception leaves it.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "src/capi_convert.h"
#include "src/capi_struct.h"
#include "src/memory_plan.h"

// A handle counts the host's references; the object behind it is also kept by what was made from it, so
// handles may be released in any order.
template <class Object>
struct Handle {
  explicit Handle(std::shared_ptr<Object> held) : object(std::move(held)) {}
  std::atomic<int64_t> references{1};
  const std::shared_ptr<Object> object;
};
struct wi_runtime : Handle<wi::Runtime> {
  using Handle::Handle;
};
struct wi_cancel : Handle<wi::CancelToken> {
  using Handle::Handle;
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

// The object behind a handle, which must not be NULL.
template <class H>
auto& unwrap(H* handle, const char* name) {
  check(handle != nullptr, WI_E_ARGUMENT, name, " is NULL");
  return *handle->object;
}

template <class H>
H& required(H* handle, const char* name) {
  check(handle != nullptr, WI_E_ARGUMENT, name, " is NULL");
  return *handle;
}

const CancelToken* token_of(const wi_cancel* cancel) { return cancel ? cancel->object.get() : nullptr; }

template <class H>
H* retain(H* handle) {
  if (handle) handle->references.fetch_add(1, std::memory_order_relaxed);
  return handle;
}

template <class H>
void release(H* handle) {
  if (handle && handle->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete handle;
}

void check_out(const void* out, const char* name) { check(out != nullptr, WI_E_ARGUMENT, name, " is NULL"); }
int64_t to_count(const char* name, uint64_t count);
void check_batch(wi_session* const* sessions, uint64_t count);
void check_layer(const KvStore& store, int32_t layer);

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

// ---- Runtime ----

wi_status wi_runtime_create(const wi_runtime_params* params, wi_runtime** runtime_out, wi_error* error) {
  return guard(error, [&] {
    check_out(runtime_out, "runtime_out");
    *runtime_out = new wi_runtime(Runtime::create(to_runtime_params(params)));
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
    *cancel_out = new wi_cancel(std::make_shared<CancelToken>());
  });
}

wi_cancel* wi_cancel_retain(wi_cancel* cancel) { return retain(cancel); }

void wi_cancel_release(wi_cancel* cancel) { release(cancel); }

void wi_cancel_trigger(wi_cancel* cancel) {
  if (cancel) cancel->object->flag.store(true, std::memory_order_relaxed);
}

void wi_cancel_reset(wi_cancel* cancel) {
  if (cancel) cancel->object->flag.store(false, std::memory_order_relaxed);
}

// ---- Model ----

wi_status wi_model_open(wi_runtime* runtime, const char* path, const wi_model_params* params,
                        wi_model** model_out, wi_error* error) {
  return guard(error, [&] {
    const wi_runtime& on = required(runtime, "runtime");
    check_out(path, "path");
    check_out(model_out, "model_out");
    const wi_model_params p = read_struct(params, "wi_model_params");
    const Precision precision = precision_of(p);
    HostPool* copy_into = wants_copied_weights(p) ? on.object->weights_pool.get() : nullptr;
    std::function<void(uint64_t, uint64_t)> progress;
    if (p.progress)
      progress = [&p](uint64_t done, uint64_t total) { p.progress(p.progress_user, done, total); };
    *model_out = new wi_model(Model::open(path, progress, precision, copy_into), on.object);
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

wi_status wi_model_tokenize(wi_model* model, const char* text, uint64_t length, uint32_t flags,
                            int32_t* tokens, uint64_t capacity, uint64_t* count_out, wi_error* error) {
  return guard(error, [&] {
    const Tokenizer& tokenizer = *unwrap(model, "model").tokenizer;
    check_flags(flags, WI_TOKENIZE_ADD_BOS | WI_TOKENIZE_PARSE_SPECIAL);
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
    check_flags(flags, WI_DETOKENIZE_KEEP_SPECIAL);
    check_list_out(text, capacity, length_out, "text", "length_out");
    const std::span<const int32_t> ids = to_span(tokens, count, "tokens");
    check_tokens(ids, of.config.vocab);
    write_list<char>(of.tokenizer->decode(ids, flags & WI_DETOKENIZE_KEEP_SPECIAL), text, capacity,
                     length_out, "text");
  });
}

wi_status wi_model_chat_render(wi_model* model, const wi_chat_message* messages, uint64_t count,
                               uint32_t flags, char* text, uint64_t capacity, uint64_t* length_out,
                               wi_error* error) {
  return guard(error, [&] {
    const Model& of = unwrap(model, "model");
    check_flags(flags, WI_CHAT_ADD_GENERATION_PROMPT);
    check_list_out(text, capacity, length_out, "text", "length_out");
    const std::vector<ChatMessage> read = to_chat_messages(messages, count);
    write_list<char>(of.chat.render(read, flags & WI_CHAT_ADD_GENERATION_PROMPT), text, capacity, length_out,
                     "text");
  });
}

wi_status wi_model_plan_memory(wi_model* model, const wi_session_params* params, uint64_t tokens,
                               wi_memory_plan* plan_out, wi_error* error) {
  return guard(error, [&] {
    const wi_model& of = required(model, "model");
    check_struct_out(plan_out, "plan_out");
    write_struct(plan_memory(*of.runtime, *of.object, to_session_params(params, of.runtime->backend), tokens),
                 plan_out);
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
    const std::span<const int32_t> ids = to_span(tokens, count, "tokens");
    check_tokens(ids, of.model->config.vocab);
    of.object->prefill(ids, to_prefill_params(params), token_of(cancel));
  });
}

wi_status wi_session_append_text(wi_session* session, const char* text, uint64_t length, uint32_t flags,
                                 const wi_prefill_params* params, wi_cancel* cancel, wi_error* error) {
  return guard(error, [&] {
    check_flags(flags, WI_TOKENIZE_ADD_BOS | WI_TOKENIZE_PARSE_SPECIAL);
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

wi_status wi_session_logits(wi_session* session, wi_cancel* cancel, float* logits, uint64_t capacity,
                            uint64_t* count_out, wi_error* error) {
  return guard(error, [&] {
    const wi_session& of = required(session, "session");
    check_list_out(logits, capacity, count_out, "logits", "count_out");
    const auto vocab = static_cast<uint64_t>(of.model->config.vocab);
    report_list_size(logits, vocab, capacity, count_out, "logits");
    if (logits) of.object->copy_logits(token_of(cancel), {logits, static_cast<size_t>(vocab)});
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
    const SessionParams p = to_session_params(params, of.object->backend());
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

wi_status wi_session_load(wi_model* model, const char* path, const wi_session_params* params,
                          wi_session** session_out, wi_error* error) {
  return guard(error, [&] {
    const wi_model& of = required(model, "model");
    check_out(path, "path");
    check_out(session_out, "session_out");
    const SessionParams converted = to_session_params(params, of.runtime->backend);
    *session_out = new wi_session(Session::load(of.runtime, of.object, path, converted), of.object);
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
    if (count) Session::decode_batch(batch, token_of(cancel), events.data());
    for (uint64_t i = 0; i < count; ++i) write_struct(to_event(events[i]), element(events_out, i));
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
  return code;
}

template <class Body>
wi_status guard(wi_error* error, Body&& body) noexcept {
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
  for (uint64_t i = 0; i < count; ++i) {
    check(sessions[i] != nullptr, WI_E_ARGUMENT, "sessions[", i, "] is NULL");
  }
}

void check_layer(const KvStore& store, int32_t layer) {
  check(layer >= 0 && layer < store.params().shape.layers, WI_E_ARGUMENT, "layer is ", layer,
        ", must be in [0, ", store.params().shape.layers, ")");
}

}  // namespace
