// Errors, as a host sees them: a bad argument is named with its value, a call that fails changes nothing, and
// the next one works.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <pthread.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include "support/abi.h"
#include "support/fewer.h"
#include "support/folder.h"

namespace {

using namespace wi::test;

const char* const kModel = WI_SOURCE_DIR "/samples/model/needle-f16.gguf";

struct World {
  Runtime runtime = create_runtime();
  Model model = open_sample_model(runtime.get());
};
World* world;

std::vector<int32_t> some_tokens(size_t count) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>(i * 7 % 251) + 1;
  return tokens;
}

Session read_session(size_t count, const wi_session_params* params = nullptr) {
  Session session = create_session(world->model.get(), params);
  const std::vector<int32_t> tokens = some_tokens(count);
  assert_works(wi_session_prefill(session.get(), tokens.data(), tokens.size(), nullptr, nullptr, error));
  return session;
}

// All that a host can see of a session's state. Logits are read from a fork: reading computes what is
// pending.
struct Snapshot {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
  uint64_t kv_bytes = 0;
  bool operator==(const Snapshot&) const = default;
};

Snapshot snapshot(wi_session* session) {
  Snapshot out;
  uint64_t count = 0;
  assert_works(wi_session_tokens(session, nullptr, 0, &count, error));
  out.tokens.resize(count);
  assert_works(wi_session_tokens(session, out.tokens.data(), count, &count, error));
  auto stats = sized<wi_session_stats>();
  assert_works(wi_session_get_stats(session, &stats, error));
  out.kv_bytes = stats.kv_bytes;
  if (count == 0) return out;
  Session copy = fork(session);
  assert_works(wi_session_logits(copy.get(), nullptr, nullptr, 0, &count, error));
  out.logits.resize(count);
  assert_works(wi_session_logits(copy.get(), nullptr, out.logits.data(), count, &count, error));
  return out;
}

// ---- arguments ----

void null_handles_and_outputs_are_named(void**) {
  wi_runtime* runtime = world->runtime.get();
  wi_model* model = world->model.get();
  Session held = read_session(3);
  wi_session* session = held.get();
  auto event = sized<wi_event>();
  auto stats = sized<wi_session_stats>();
  uint64_t count = 0;
  assert_fails(WI_E_ARGUMENT, "runtime_out is NULL", wi_runtime_create(nullptr, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "runtime is NULL", wi_runtime_get_stats(nullptr, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "info_out is NULL", wi_runtime_device_info(runtime, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "stats_out is NULL", wi_runtime_get_stats(runtime, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "cancel_out is NULL", wi_cancel_create(nullptr, error));
  assert_fails(WI_E_ARGUMENT, "path is NULL",
               wi_model_open(runtime, nullptr, nullptr, nullptr, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "model_out is NULL",
               wi_model_open(runtime, "x", nullptr, nullptr, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "info_out is NULL", wi_model_get_info(model, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "info_out is NULL", wi_model_token_info(model, 0, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "model is NULL",
               wi_model_tokenize(nullptr, "a", 1, 0, nullptr, 0, &count, error));
  assert_fails(WI_E_ARGUMENT, "count_out is NULL",
               wi_model_tokenize(model, "a", 1, 0, nullptr, 0, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "text is NULL with length 4",
               wi_model_tokenize(model, nullptr, 4, 0, nullptr, 0, &count, error));
  assert_fails(WI_E_ARGUMENT, "tokens is NULL with capacity 8",
               wi_model_tokenize(model, "a", 1, 0, nullptr, 8, &count, error));
  assert_fails(WI_E_ARGUMENT, "tokens has length 18446744073709551615",
               wi_model_detokenize(model, &event.token, UINT64_MAX, 0, nullptr, 0, &count, error));
  assert_fails(WI_E_ARGUMENT, "messages is NULL with count 2",
               wi_model_chat_render(model, nullptr, 2, nullptr, nullptr, 0, &count, error));
  assert_fails(WI_E_ARGUMENT, "plan_out is NULL", wi_model_plan_memory(model, nullptr, 1, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "session_out is NULL", wi_session_create(model, nullptr, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "session is NULL", wi_session_decode(nullptr, nullptr, &event, error));
  assert_fails(WI_E_ARGUMENT, "event_out is NULL", wi_session_decode(session, nullptr, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "fork_out is NULL", wi_session_fork(session, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "fork_out is NULL",
               wi_session_fork_as(session, nullptr, nullptr, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "tokens is NULL with length 3",
               wi_session_prefill(session, nullptr, 3, nullptr, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "path is NULL", wi_session_save(session, nullptr, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "stats_out is NULL", wi_session_get_stats(session, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "sessions is NULL with count 2",
               wi_batch_decode(nullptr, 2, nullptr, &event, error));
  wi_session* batch[] = {session, nullptr};
  assert_fails(WI_E_ARGUMENT, "sessions[1] is NULL", wi_batch_decode(batch, 2, nullptr, &event, error));
  batch[1] = session;
  wi_event events[] = {event, event};
  assert_fails(WI_E_ARGUMENT, "sessions[1]", wi_batch_decode(batch, 2, nullptr, events, error));
  // Lengths that nothing has, of arrays too.
  auto message = sized<wi_chat_message>();
  message.role = "user";
  for (const uint64_t length : {UINT64_MAX, uint64_t{PTRDIFF_MAX} / sizeof(void*) + 1}) {
    assert_fails(WI_E_ARGUMENT, "more than memory can hold",
                 wi_batch_decode(batch, length, nullptr, events, error));
    assert_fails(WI_E_ARGUMENT, "more than memory can hold",
                 wi_model_chat_render(model, &message, length, nullptr, nullptr, 0, &count, error));
    assert_fails(WI_E_ARGUMENT, "more than memory can hold",
                 wi_model_chat_tokens(model, &message, length, nullptr, nullptr, 0, &count, error));
  }
  wi_kv* kv = nullptr;
  assert_fails(WI_E_ARGUMENT, "kv_out is NULL", wi_kv_create(runtime, nullptr, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "params is NULL", wi_kv_create(runtime, nullptr, &kv, error));
  assert_fails(WI_E_ARGUMENT, "kv is NULL", wi_kv_get_stats(nullptr, &stats, error));
}

void policies_are_listed_with_a_line_each(void**) {
  wi_runtime* runtime = world->runtime.get();
  auto device = sized<wi_device_info>();
  assert_works(wi_runtime_device_info(runtime, &device, error));
  assert_true(device.policies >= 4);
  auto info = sized<wi_policy_info>();
  for (int32_t index = 0; index < device.policies; ++index) {
    assert_works(wi_runtime_policy(runtime, index, &info, error));
    assert_true(std::strlen(info.description) > 20 && !std::strchr(info.description, '\n'));
    auto policy = sized<wi_policy_params>();
    policy.name = info.name;
    auto params = sized<wi_session_params>();
    params.policy = &policy;
    create_session(world->model.get(), &params);
  }
  assert_fails(WI_E_ARGUMENT, "index is -1", wi_runtime_policy(runtime, -1, &info, error));
  assert_fails(WI_E_ARGUMENT, "index is " + std::to_string(device.policies),
               wi_runtime_policy(runtime, device.policies, &info, error));
}

void runtime_parameters_are_checked(void**) {
  const auto create = [](const std::function<void(wi_runtime_params&)>& change) {
    return [change](wi_error* error) {
      auto params = sized<wi_runtime_params>();
      change(params);
      wi_runtime* runtime = nullptr;
      const wi_status status = wi_runtime_create(&params, &runtime, error);
      assert_null(runtime);
      return status;
    };
  };
  assert_fails(WI_E_ARGUMENT, "threads is -1", create([](auto& p) { p.threads = -1; })(error));
  assert_fails(WI_E_ARGUMENT, "threads is 100000", create([](auto& p) { p.threads = 100000; })(error));
  assert_fails(WI_E_ARGUMENT, "huge_pages is 2", create([](auto& p) { p.huge_pages = 2; })(error));
  assert_fails(WI_E_ARGUMENT, "bind_threads is -7", create([](auto& p) { p.bind_threads = -7; })(error));
  assert_fails(WI_E_ARGUMENT, "log_level is 5", create([](auto& p) { p.log_level = 5; })(error));
  assert_fails(WI_E_ARGUMENT, "nice is 20, must be in [0, 19]", create([](auto& p) { p.nice = 20; })(error));
  assert_fails(WI_E_ARGUMENT, "nice is -5", create([](auto& p) { p.nice = -5; })(error));
  assert_fails(WI_E_ARGUMENT, "buffer_manager is 3", create([](auto& p) { p.buffer_manager = 3; })(error));
  for (const int32_t wait : {-1, 60001})
    assert_fails(WI_E_ARGUMENT, "task_wait_ms is " + std::to_string(wait) + ", must be in [1, 60000]",
                 create([&](auto& p) { p.task_wait_ms = wait; })(error));
  assert_fails(WI_E_ARGUMENT, "wi_runtime_params.reserved_1 is 1, must be 0",
               create([](auto& p) { p.reserved_1 = 1; })(error));
  assert_fails(WI_E_ARGUMENT, "wi_runtime_params.reserved_2 is -1",
               create([](auto& p) { p.reserved_2 = -1; })(error));
  assert_fails(WI_E_ARGUMENT, "spill_folder is empty", create([](auto& p) { p.spill_folder = ""; })(error));
  assert_fails(WI_E_IO, "/nowhere/at/all",
               create([](auto& p) { p.spill_folder = "/nowhere/at/all"; })(error));
  auto cuda = sized<wi_device_info>();
  assert_works(wi_device_get_info(1, &cuda, error));
  if (!cuda.usable)
    assert_fails(WI_E_DEVICE, cuda.reason, create([](auto& p) { p.device = "cuda:0"; })(error));
  assert_fails(WI_E_UNSUPPORTED, "device is \"cuda0\", must be \"cpu\", \"cuda\" or \"cuda:N\"",
               create([](auto& p) { p.device = "cuda0"; })(error));
  assert_fails(WI_E_UNSUPPORTED, "device is \"\"", create([](auto& p) { p.device = ""; })(error));
}

void devices_are_counted_and_told_about(void**) {
  int32_t count = 0;
  assert_works(wi_device_count(&count, error));
  assert_true(count >= 2);
  auto info = sized<wi_device_info>();
  for (int32_t index = 0; index < count; ++index) {
    assert_works(wi_device_get_info(index, &info, error));
    assert_true(info.usable == 1 ? info.reason[0] == 0 : info.usable == 0 && info.reason[0] != 0);
  }
  assert_works(wi_device_get_info(0, &info, error));
  assert_string_equal(info.name, "cpu");
  for (const int32_t index : {-1, count})
    assert_fails(WI_E_ARGUMENT,
                 "index is " + std::to_string(index) + ", must be in [0, " + std::to_string(count - 1) + "]",
                 wi_device_get_info(index, &info, error));
  assert_fails(WI_E_ARGUMENT, "info_out is NULL", wi_device_get_info(0, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "count_out is NULL", wi_device_count(nullptr, error));
}

void an_unknown_way_to_hold_weights_is_refused_by_name(void**) {
  const auto open = [](const std::function<void(wi_model_params&)>& change, wi_error* error) {
    auto params = sized<wi_model_params>();
    change(params);
    wi_model* model = nullptr;
    const wi_status status = wi_model_open(world->runtime.get(), kModel, &params, nullptr, &model, error);
    assert_null(model);
    return status;
  };
  assert_fails(WI_E_ARGUMENT, "wi_model_params.weights is 2, must be in [0, 1]",
               open([](auto& p) { p.weights = 2; }, error));
  assert_fails(WI_E_ARGUMENT, "wi_model_params.weights is -1", open([](auto& p) { p.weights = -1; }, error));
  assert_fails(WI_E_ARGUMENT, "wi_model_params.reserved is 3", open([](auto& p) { p.reserved = 3; }, error));
  assert_fails(WI_E_ARGUMENT, "wi_model_params.precision is 4, must be in [0, 3]",
               open([](auto& p) { p.precision = 4; }, error));
}

void policy_parameters_are_checked(void**) {
  struct Bad {
    wi_status status;
    const char* words;
    std::function<void(wi_policy_params&)> change;
  };
  const Bad table[] = {
      {WI_E_UNSUPPORTED, "name is \"waves\", the cpu backend has \"full\", \"wave\"",
       [](auto& p) { p.name = "waves"; }},
      {WI_E_ARGUMENT, "segment_tokens is -64", [](auto& p) { p.segment_tokens = -64; }},
      {WI_E_ARGUMENT, "segment_tokens is 100, must be a multiple of 64",
       [](auto& p) { p.segment_tokens = 100; }},
      {WI_E_ARGUMENT, "segment_tokens is 1048640", [](auto& p) { p.segment_tokens = 1048640; }},
      {WI_E_ARGUMENT, "decode_segment_tokens is 32", [](auto& p) { p.decode_segment_tokens = 32; }},
      {WI_E_ARGUMENT, "tokens_per_centroid is 1025", [](auto& p) { p.tokens_per_centroid = 1025; }},
      {WI_E_ARGUMENT, "tokens_per_centroid is -1", [](auto& p) { p.tokens_per_centroid = -1; }},
      {WI_E_ARGUMENT, "kmeans_iterations is 101", [](auto& p) { p.kmeans_iterations = 101; }},
      {WI_E_ARGUMENT, "local_window is 2000000", [](auto& p) { p.local_window = 2000000; }},
      {WI_E_ARGUMENT, "budget is 1.5", [](auto& p) { p.budget = 1.5f; }},
      {WI_E_ARGUMENT, "budget is -0.5", [](auto& p) { p.budget = -0.5f; }},
      {WI_E_ARGUMENT, "budget is nan", [](auto& p) { p.budget = NAN; }},
      {WI_E_ARGUMENT, "estimation is 2", [](auto& p) { p.estimation = 2; }},
      {WI_E_ARGUMENT, "estimation is nan", [](auto& p) { p.estimation = NAN; }},
      {WI_E_ARGUMENT, "target_mass is 1", [](auto& p) { p.target_mass = 1; }},
      {WI_E_ARGUMENT, "target_mass is -0.1", [](auto& p) { p.target_mass = -0.1f; }},
      {WI_E_ARGUMENT, "target_mass is inf", [](auto& p) { p.target_mass = INFINITY; }},
      {WI_E_ARGUMENT, "budget_floor is 3", [](auto& p) { p.budget_floor = 3; }},
      {WI_E_ARGUMENT, "budget_ceiling is -1", [](auto& p) { p.budget_ceiling = -1; }},
      {WI_E_ARGUMENT, "budget_floor is 0.5, more than budget_ceiling, which is 0.25",
       [](auto& p) { p.budget_floor = 0.5f, p.budget_ceiling = 0.25f; }},
      {WI_E_ARGUMENT, "wi_policy_params.repeats is 9", [](auto& p) { p.repeats = 9; }},
  };
  // A bound that the host leaves to the library is none for the one that it gives.
  auto low = sized<wi_policy_params>();
  low.budget_ceiling = 0.002f;
  auto with_low = sized<wi_session_params>();
  with_low.policy = &low;
  const Session lowest = create_session(world->model.get(), &with_low);
  for (const Bad& bad : table) {
    auto policy = sized<wi_policy_params>();
    bad.change(policy);
    auto params = sized<wi_session_params>();
    params.policy = &policy;
    wi_session* session = nullptr;
    assert_fails(bad.status, bad.words, wi_session_create(world->model.get(), &params, &session, error));
    assert_null(session);
  }
}

void session_sampling_and_kv_parameters_are_checked(void**) {
  const auto create = [](const std::function<void(wi_session_params&)>& change, wi_error* error) {
    auto params = sized<wi_session_params>();
    change(params);
    wi_session* session = nullptr;
    return wi_session_create(world->model.get(), &params, &session, error);
  };
  assert_fails(WI_E_ARGUMENT, "kv_type is 3", create([](auto& p) { p.kv_type = 3; }, error));
  assert_fails(WI_E_ARGUMENT, "kv_type is -1", create([](auto& p) { p.kv_type = -1; }, error));
  assert_fails(WI_E_ARGUMENT, "sparse_read_tokens is -5",
               create([](auto& p) { p.sparse_read_tokens = -5; }, error));
  assert_fails(WI_E_ARGUMENT, "prefix_reuse is 3", create([](auto& p) { p.prefix_reuse = 3; }, error));
  assert_fails(WI_E_ARGUMENT, "wi_session_params.reserved_1 is 7, must be 0",
               create([](auto& p) { p.reserved_1 = 7; }, error));
  assert_fails(WI_E_ARGUMENT, "kv_fast_share is 1.5", create([](auto& p) { p.kv_fast_share = 1.5f; }, error));
  assert_fails(WI_E_ARGUMENT, "kv_fast_share is nan", create([](auto& p) { p.kv_fast_share = NAN; }, error));

  Session session = read_session(3);
  const auto set = [&](const std::function<void(wi_sampling_params&)>& change, wi_error* error) {
    auto sampling = sized<wi_sampling_params>();
    change(sampling);
    return wi_session_set_sampling(session.get(), &sampling, error);
  };
  assert_fails(WI_E_ARGUMENT, "temperature is -1", set([](auto& s) { s.temperature = -1; }, error));
  assert_fails(WI_E_ARGUMENT, "temperature is nan", set([](auto& s) { s.temperature = NAN; }, error));
  assert_fails(WI_E_ARGUMENT, "top_k is -1", set([](auto& s) { s.top_k = -1; }, error));
  assert_fails(WI_E_ARGUMENT, "top_p is 1.5", set([](auto& s) { s.top_p = 1.5f; }, error));
  assert_fails(WI_E_ARGUMENT, "min_p is 1", set([](auto& s) { s.min_p = 1; }, error));
  assert_fails(WI_E_ARGUMENT, "repetition_penalty is -2",
               set([](auto& s) { s.repetition_penalty = -2; }, error));
  assert_fails(WI_E_ARGUMENT, "repetition_window is -3",
               set([](auto& s) { s.repetition_window = -3; }, error));

  const auto make = [](int32_t layers, int32_t query_heads, int32_t kv_heads, int32_t head_dim,
                       wi_error* error) {
    auto params = sized<wi_kv_params>();
    params.layers = layers;
    params.query_heads = query_heads;
    params.kv_heads = kv_heads;
    params.head_dim = head_dim;
    wi_kv* kv = nullptr;
    return wi_kv_create(world->runtime.get(), &params, &kv, error);
  };
  assert_fails(WI_E_ARGUMENT, "layers is 0", make(0, 4, 2, 16, error));
  assert_fails(WI_E_ARGUMENT, "query_heads is 5, must be a multiple of kv_heads, which is 2",
               make(1, 5, 2, 16, error));
  assert_fails(WI_E_ARGUMENT, "kv_heads is 70000", make(1, 4, 70000, 16, error));
  assert_fails(WI_E_ARGUMENT, "head_dim is -16", make(1, 4, 2, -16, error));
  for (const int32_t head_dim : {1, 4, 12, 100})
    assert_fails(WI_E_ARGUMENT, "head_dim is " + std::to_string(head_dim) + ", must be a multiple of 8",
                 make(1, 4, 2, head_dim, error));
  assert_fails(WI_E_ARGUMENT, "bytes per token", make(65536, 65536, 65536, 65536, error));
}

// Each token's text is what detokenize writes of it, and the end token of the model is known as one.
void token_info_tells_text_and_kind(void**) {
  wi_model* model = world->model.get();
  auto info = sized<wi_model_info>();
  assert_works(wi_model_get_info(model, &info, error));
  int control = 0, part = 0;
  for (int32_t id = 0; id < info.vocab; ++id) {
    auto token = sized<wi_token_info>();
    assert_works(wi_model_token_info(model, id, &token, error));
    uint64_t length = 0;
    char text[512];
    assert_works(
        wi_model_detokenize(model, &id, 1, WI_DETOKENIZE_KEEP_SPECIAL, text, sizeof text, &length, error));
    assert_int_equal(token.text_length, length);
    assert_memory_equal(token.text, text, length);
    assert_works(wi_model_detokenize(model, &id, 1, 0, nullptr, 0, &length, error));
    if (token.flags & WI_TOKEN_CONTROL) assert_int_equal(length, 0);
    assert_true(id != info.eos_token ||
                (token.flags & (WI_TOKEN_END | WI_TOKEN_CONTROL)) == (WI_TOKEN_END | WI_TOKEN_CONTROL));
    control += (token.flags & WI_TOKEN_CONTROL) != 0;
    part += (token.flags & WI_TOKEN_BYTE) != 0;
  }
  assert_true(control > 0 && control < 100);
  assert_int_equal(part, 128);  // of byte-level BPE: the bytes that are no characters
}

void token_ids_flags_and_layers_are_checked(void**) {
  auto info = sized<wi_model_info>();
  assert_works(wi_model_get_info(world->model.get(), &info, error));
  Session session = read_session(3);
  const std::string range = ", must be in [0, " + std::to_string(info.vocab) + ")";
  const int32_t negative[] = {1, 2, -5}, large[] = {info.vocab};
  uint64_t count = 77;
  assert_fails(WI_E_ARGUMENT, "tokens[2] is -5" + range,
               wi_session_prefill(session.get(), negative, 3, nullptr, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "tokens[0] is " + std::to_string(info.vocab) + range,
               wi_model_detokenize(world->model.get(), large, 1, 0, nullptr, 0, &count, error));
  assert_int_equal(count, 77);
  auto token = sized<wi_token_info>();
  for (const int32_t id : {-1, info.vocab})
    assert_fails(WI_E_ARGUMENT, "token is " + std::to_string(id) + range,
                 wi_model_token_info(world->model.get(), id, &token, error));
  assert_fails(WI_E_ARGUMENT, "flags is 9, and the bits 8",
               wi_model_tokenize(world->model.get(), "a", 1, 9, nullptr, 0, &count, error));
  assert_fails(WI_E_ARGUMENT, "flags is 4",
               wi_session_append_text(session.get(), "a", 1, 4, nullptr, nullptr, error));
  auto task_of = sized<wi_task_params>();
  wi_task* task = nullptr;
  task_of.tokenize_flags = 8;
  assert_fails(WI_E_ARGUMENT, "wi_task_params.tokenize_flags is 8",
               wi_task_submit(session.get(), &task_of, &task, error));
  task_of = sized<wi_task_params>();
  task_of.tokens = negative;
  task_of.token_count = 3;
  assert_fails(WI_E_ARGUMENT, "wi_task_params.tokens[2] is -5" + range,
               wi_task_submit(session.get(), &task_of, &task, error));
  assert_fails(WI_E_ARGUMENT, "tokens is 4", wi_session_truncate(session.get(), 4, error));
  assert_fails(WI_E_ARGUMENT, "tokens is 18446744073709551615",
               wi_session_truncate(session.get(), UINT64_MAX, error));

  auto params = sized<wi_kv_params>();
  params.layers = params.query_heads = params.kv_heads = 1;
  params.head_dim = 16;
  wi_kv* made = nullptr;
  assert_works(wi_kv_create(world->runtime.get(), &params, &made, error));
  Kv kv{made, wi_kv_release};
  float row[16] = {};
  assert_fails(WI_E_ARGUMENT, "layer is 1, must be in [0, 1)", wi_kv_append(kv.get(), 1, 1, row, row, error));
  assert_fails(WI_E_ARGUMENT, "layer is -1",
               wi_kv_attend(kv.get(), -1, 1, row, nullptr, row, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "values is NULL", wi_kv_append(kv.get(), 0, 1, row, nullptr, error));
  assert_fails(WI_E_STATE, "layer 0", wi_kv_attend(kv.get(), 0, 1, row, nullptr, row, nullptr, error));
}

void a_small_buffer_learns_what_is_needed(void**) {
  wi_model* model = world->model.get();
  const char text[] = "In the beginning God created the heaven and the earth.";
  uint64_t needed = 0, count = 0;
  assert_works(wi_model_tokenize(model, text, sizeof text - 1, 0, nullptr, 0, &needed, error));
  assert_true(needed > 2);
  std::vector<int32_t> tokens(needed, -9);
  assert_fails(WI_E_ARGUMENT, "capacity is 2, tokens needs " + std::to_string(needed),
               wi_model_tokenize(model, text, sizeof text - 1, 0, tokens.data(), 2, &count, error));
  assert_int_equal(count, needed);
  assert_int_equal(tokens[0], -9);
  assert_works(wi_model_tokenize(model, text, sizeof text - 1, 0, tokens.data(), needed, &count, error));

  std::string back(sizeof text - 1, '?');
  assert_works(wi_model_detokenize(model, tokens.data(), needed, 0, nullptr, 0, &count, error));
  assert_int_equal(count, back.size());
  assert_works(wi_model_detokenize(model, tokens.data(), needed, 0, back.data(), back.size(), &count, error));
  assert_string_equal(back.c_str(), text);

  Session session = read_session(5);
  float logit = 0;
  assert_fails(WI_E_ARGUMENT, "capacity is 1, logits needs ",
               wi_session_logits(session.get(), nullptr, &logit, 1, &count, error));
  assert_fails(WI_E_ARGUMENT, "capacity is 4, tokens needs 5",
               wi_session_tokens(session.get(), tokens.data(), 4, &count, error));
  assert_int_equal(count, 5);
  auto params = sized<wi_prefill_params>();
  params.logits = &logit;
  params.logits_capacity = 1;
  assert_fails(WI_E_ARGUMENT, "logits_capacity is 1",
               wi_session_prefill(session.get(), tokens.data(), 1, &params, nullptr, error));
}

void a_message_is_cut_at_a_code_point(void**) {
  wi_model* model = nullptr;
  for (int shift = 0; shift < 4; ++shift) {
    std::string path(static_cast<size_t>(shift), 'a');
    for (int i = 0; i < 300; ++i) path += "\xF0\x9F\x8C\x8A";  // a wave
    auto error = sized<wi_error>();
    assert_int_not_equal(wi_model_open(world->runtime.get(), path.c_str(), nullptr, nullptr, &model, &error),
                         WI_OK);
    const std::string message = error.message;
    assert_true(message.size() > sizeof error.message - 5);
    assert_int_equal(message.compare(message.size() - 4, 4, "\xF0\x9F\x8C\x8A"), 0);
  }
  auto error = sized<wi_error>();
  assert_int_not_equal(wi_model_open(world->runtime.get(), "no\xFFsuch", nullptr, nullptr, &model, &error),
                       WI_OK);
  assert_non_null(std::strstr(error.message, "no?such"));  // a path need not be UTF-8, a message must
  assert_int_equal(error.code, WI_E_IO);
  assert_int_equal(error.native_code, 2);  // ENOENT
}

// ---- nothing is lost ----

void failed_calls_change_nothing(void**) {
  Session session = read_session(300);
  auto event = sized<wi_event>();
  assert_works(wi_session_decode(session.get(), nullptr, &event, error));  // one is pending
  const Snapshot before = snapshot(session.get());
  Cancel cancel = create_cancel();
  wi_cancel_trigger(cancel.get());
  const int32_t tokens[] = {1, 2, 1 << 30};
  const wi_event event_before = event;

  assert_fails(WI_E_ARGUMENT, "tokens[2]",
               wi_session_prefill(session.get(), tokens, 3, nullptr, nullptr, error));
  assert_fails(WI_E_CANCELLED, "",
               wi_session_prefill(session.get(), tokens, 2, nullptr, cancel.get(), error));
  assert_fails(WI_E_CANCELLED, "",
               wi_session_append_text(session.get(), "Hello", 5, 0, nullptr, cancel.get(), error));
  assert_fails(WI_E_CANCELLED, "", wi_session_decode(session.get(), cancel.get(), &event, error));
  assert_fails(WI_E_ARGUMENT, "tokens is 9999", wi_session_truncate(session.get(), 9999, error));
  assert_fails(WI_E_IO, "/no/such/folder",
               wi_session_save(session.get(), "/no/such/folder/file", nullptr, error));
  assert_memory_equal(&event, &event_before, sizeof event);
  assert_true(snapshot(session.get()) == before);

  wi_cancel_reset(cancel.get());
  assert_works(wi_session_prefill(session.get(), tokens, 2, nullptr, cancel.get(), error));
  assert_works(wi_session_decode(session.get(), cancel.get(), &event, error));
}

void an_empty_session_says_so(void**) {
  Session session = create_session(world->model.get());
  auto event = sized<wi_event>();
  uint64_t count = 77;
  std::vector<float> logits(1 << 20);
  assert_fails(WI_E_STATE, "empty", wi_session_decode(session.get(), nullptr, &event, error));
  assert_fails(WI_E_STATE, "empty",
               wi_session_logits(session.get(), nullptr, logits.data(), logits.size(), &count, error));
  assert_int_equal(count, 77);
  assert_works(wi_session_prefill(session.get(), nullptr, 0, nullptr, nullptr, error));
  assert_works(wi_batch_decode(nullptr, 0, nullptr, nullptr, error));
  assert_works(wi_session_tokens(session.get(), nullptr, 0, &count, error));
  assert_int_equal(count, 0);
}

void a_session_stays_within_its_budget(void**) {
  auto info = sized<wi_model_info>();
  assert_works(wi_model_get_info(world->model.get(), &info, error));
  auto params = sized<wi_session_params>();
  constexpr size_t kFits = few_or(300, 1000);
  params.kv_budget_bytes = info.kv_bytes_per_token * kFits;
  Session session = read_session(kFits / 2, &params);
  const Snapshot before = snapshot(session.get());
  const std::vector<int32_t> tokens = some_tokens(2 * kFits);
  assert_fails(WI_E_BUDGET, std::to_string(params.kv_budget_bytes),
               wi_session_prefill(session.get(), tokens.data(), tokens.size(), nullptr, nullptr, error));
  assert_true(snapshot(session.get()) == before);
  assert_works(wi_session_prefill(session.get(), tokens.data(), kFits / 4, nullptr, nullptr, error));
}

void a_runtime_stays_within_its_budget(void**) {
  auto params = sized<wi_runtime_params>();
  params.kv_budget_bytes = few_or(4, 8) << 20;
  Runtime runtime = create_runtime(&params);
  Model model = open_sample_model(runtime.get());
  auto info = sized<wi_model_info>();
  assert_works(wi_model_get_info(model.get(), &info, error));
  const std::vector<int32_t> tokens = some_tokens(params.kv_budget_bytes / info.kv_bytes_per_token * 3 / 4);
  auto policy = sized<wi_policy_params>();
  policy.name = "full";
  policy.segment_tokens = 1024;
  auto alone = sized<wi_session_params>();
  alone.policy = &policy;
  alone.prefix_reuse = WI_PREFIX_REUSE_OFF;
  Session first = create_session(model.get(), &alone), second = create_session(model.get(), &alone);
  assert_works(wi_session_prefill(first.get(), tokens.data(), tokens.size() / 2, nullptr, nullptr, error));
  assert_fails(WI_E_BUDGET, std::to_string(params.kv_budget_bytes),
               wi_session_prefill(second.get(), tokens.data(), tokens.size(), nullptr, nullptr, error));
  auto stats = sized<wi_runtime_stats>();
  assert_works(wi_runtime_get_stats(runtime.get(), &stats, error));
  assert_true(stats.kv_bytes <= params.kv_budget_bytes && stats.kv_bytes_peak <= params.kv_budget_bytes);
  assert_int_equal(stats.kv_budget_bytes, params.kv_budget_bytes);
  assert_int_equal(stats.sessions, 2);
  first.reset();  // and what it held is free for the other
  assert_works(wi_session_prefill(second.get(), tokens.data(), tokens.size() / 2, nullptr, nullptr, error));
}

wi_status open_copied(wi_runtime* runtime, wi_model** model, wi_error* error) {
  auto params = sized<wi_model_params>();
  params.weights = WI_WEIGHTS_COPIED;
  return wi_model_open(runtime, kModel, &params, nullptr, model, error);
}

wi_runtime_stats stats_of(wi_runtime* runtime) {
  auto stats = sized<wi_runtime_stats>();
  assert_works(wi_runtime_get_stats(runtime, &stats, error));
  return stats;
}

void copied_weights_count_by_themselves_while_a_session_lives(void**) {
  auto params = sized<wi_runtime_params>();
  params.kv_budget_bytes = 1 << 20;  // less than the weights
  Runtime runtime = create_runtime(&params);
  Model mapped = open_sample_model(runtime.get());
  assert_int_equal(stats_of(runtime.get()).copied_weight_bytes, 0);
  auto info = sized<wi_model_info>();
  assert_works(wi_model_get_info(mapped.get(), &info, error));

  wi_model* model = nullptr;
  assert_works(open_copied(runtime.get(), &model, error));
  const uint64_t copied = stats_of(runtime.get()).copied_weight_bytes;
  assert_true(copied > info.weight_bytes / 100 * 99 && copied <= info.weight_bytes);
  assert_int_equal(stats_of(runtime.get()).kv_bytes, 0);
  Session session = create_session(model);
  wi_model_release(model);
  const std::vector<int32_t> tokens = some_tokens(10);
  assert_works(wi_session_prefill(session.get(), tokens.data(), tokens.size(), nullptr, nullptr, error));
  assert_int_equal(stats_of(runtime.get()).copied_weight_bytes, copied);
  session.reset();
  assert_int_equal(stats_of(runtime.get()).copied_weight_bytes, 0);
}

// Wherever memory ends on the way, the open ends with it and the next one works.
void opening_without_memory_leaves_nothing_behind(void**) {
#if defined(WI_SANITIZED) || defined(WI_EMULATED)
  skip();  // a sanitizer's own memory is most of the address space, and an emulator takes no limit of it
#endif
  Runtime runtime = create_runtime();
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  int refused = 0, opened = 0;
  for (uint64_t more = 0; more <= 48 << 20; more += 1 << 20) {
    rlimit limit = before;
    limit.rlim_cur = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + more;
    setrlimit(RLIMIT_AS, &limit);
    wi_model* model = nullptr;
    auto error = sized<wi_error>();
    const wi_status status = open_copied(runtime.get(), &model, &error);
    setrlimit(RLIMIT_AS, &before);
    if (status == WI_OK) {
      ++opened;
      wi_model_release(model);
    } else {
      refused += status == WI_E_MEMORY;
      assert_null(model);
      if (status != WI_E_MEMORY) {  // the file's own mapping
        assert_int_equal(status, WI_E_IO);
        assert_int_equal(error.native_code, ENOMEM);
      }
    }
    assert_int_equal(stats_of(runtime.get()).copied_weight_bytes, 0);
  }
  std::printf("refused %d times, opened %d times\n", refused, opened);
  assert_true(refused > 0 && opened > 0);
}

// ---- lifetimes and threads ----

void handles_may_be_released_in_any_order(void**) {
  std::vector<int> order = {0, 1, 2, 3, 4};
  const std::vector<int32_t> tokens = some_tokens(few_or(6, 70));
  const auto next = [&] {
    bool is_there = true;
    for (int i = 0; is_there && i < few_or(7, 1); ++i)
      is_there = std::next_permutation(order.begin(), order.end());
    return is_there;
  };
  do {
    wi_runtime* runtime = nullptr;
    wi_model* model = nullptr;
    wi_session *session = nullptr, *copy = nullptr;
    auto params = sized<wi_runtime_params>();
    params.threads = 1;
    assert_works(wi_runtime_create(&params, &runtime, error));
    assert_works(wi_model_open(runtime, WI_SOURCE_DIR "/samples/model/needle-f16.gguf", nullptr, nullptr,
                               &model, error));
    assert_works(wi_session_create(model, nullptr, &session, error));
    assert_works(wi_session_prefill(session, tokens.data(), tokens.size(), nullptr, nullptr, error));
    assert_works(wi_session_fork(session, &copy, error));
    wi_session* again = wi_session_retain(session);
    auto event = sized<wi_event>();
    for (int which : order) {
      if (copy) assert_works(wi_session_decode(copy, nullptr, &event, error));
      switch (which) {
        case 0:
          wi_runtime_release(runtime);
          break;
        case 1:
          wi_model_release(model);
          break;
        case 2:
          wi_session_release(session);
          break;
        case 3:
          wi_session_release(copy), copy = nullptr;
          break;
        case 4:
          wi_session_release(again);
          break;
      }
    }
  } while (next());
}

// Both directions of a rendezvous with a call that is under way: it is inside once its callback is.
struct Meeting {
  std::atomic<bool> inside{false}, go_on{false};
  static int32_t progress(void* user, uint64_t, uint64_t) {
    auto* self = static_cast<Meeting*>(user);
    self->inside = true;
    while (!self->go_on) std::this_thread::yield();
    return 0;
  }
  static int32_t write(void* user, const void*, uint64_t) { return progress(user, 0, 0); }
  wi_writer writer() {
    auto writer = sized<wi_writer>();
    writer.write = write;
    writer.user = this;
    return writer;
  }
  void wait_inside() const {
    while (!inside) std::this_thread::yield();
  }
};

void expect_busy(wi_session* session) {
  auto event = sized<wi_event>();
  auto stats = sized<wi_session_stats>();
  wi_session *copy = nullptr, *batch[] = {session};
  wi_task* task = nullptr;
  const int32_t token = 1;
  uint64_t count = 77;
  std::vector<float> room(1 << 20);
  auto writer = sized<wi_writer>();
  writer.write = [](void*, const void*, uint64_t) { return 1; };
  const Folder folder;
  const std::string path = folder.file("none");
  auto prompt = sized<wi_task_params>();
  prompt.tokens = &token;
  prompt.token_count = 1;
  const char* const thread = "another thread";
  assert_fails(WI_E_BUSY, thread, wi_session_decode(session, nullptr, &event, error));
  assert_fails(WI_E_BUSY, thread, wi_session_accept(session, 1, nullptr, &event, error));
  assert_fails(WI_E_BUSY, thread, wi_batch_decode(batch, 1, nullptr, &event, error));
  assert_fails(WI_E_BUSY, thread, wi_session_prefill(session, &token, 1, nullptr, nullptr, error));
  assert_fails(WI_E_BUSY, thread, wi_session_append_text(session, "a", 1, 0, nullptr, nullptr, error));
  assert_fails(WI_E_BUSY, thread, wi_session_fork(session, &copy, error));
  assert_fails(WI_E_BUSY, thread, wi_session_fork_as(session, nullptr, nullptr, &copy, error));
  assert_fails(WI_E_BUSY, thread, wi_session_truncate(session, 1, error));
  assert_fails(WI_E_BUSY, thread, wi_session_tokens(session, nullptr, 0, &count, error));
  assert_fails(WI_E_BUSY, thread, wi_session_set_sampling(session, nullptr, error));
  assert_fails(WI_E_BUSY, thread,
               wi_session_logits(session, nullptr, room.data(), room.size(), &count, error));
  assert_fails(WI_E_BUSY, thread, wi_session_save(session, path.c_str(), nullptr, error));
  assert_fails(WI_E_BUSY, thread, wi_session_save_to(session, &writer, nullptr, error));
  assert_fails(WI_E_BUSY, thread, wi_session_saved_bytes(session, &count, error));
  assert_fails(WI_E_BUSY, thread, wi_task_submit(session, &prompt, &task, error));
  assert_works(wi_session_get_stats(session, &stats, error));  // any time
  assert_int_equal(stats.tokens, 10);
  assert_int_equal(count, 77);
  assert_true(copy == nullptr && task == nullptr && access(path.c_str(), F_OK) != 0);
}

void a_second_thread_is_told_busy(void**) {
  Session session = read_session(10);
  Meeting meeting;
  auto params = sized<wi_prefill_params>();
  params.progress = Meeting::progress;
  params.progress_user = &meeting;
  const std::vector<int32_t> tokens = some_tokens(100);
  std::thread first([&] {
    assert_works(wi_session_prefill(session.get(), tokens.data(), tokens.size(), &params, nullptr, error));
  });
  meeting.wait_inside();
  expect_busy(session.get());
  meeting.go_on = true;
  first.join();
  auto event = sized<wi_event>();
  assert_works(wi_session_decode(session.get(), nullptr, &event, error));
}

void a_session_that_is_being_saved_is_busy(void**) {
  Session session = read_session(10);
  Meeting meeting;
  const wi_writer writer = meeting.writer();
  std::thread first([&] { assert_works(wi_session_save_to(session.get(), &writer, nullptr, error)); });
  meeting.wait_inside();
  expect_busy(session.get());
  meeting.go_on = true;
  first.join();
  auto event = sized<wi_event>();
  assert_works(wi_session_decode(session.get(), nullptr, &event, error));
}

void a_store_that_is_being_saved_is_busy(void**) {
  auto params = sized<wi_kv_params>();
  params.layers = params.query_heads = params.kv_heads = 1;
  params.head_dim = 16;
  wi_kv *made = nullptr, *copy = nullptr;
  assert_works(wi_kv_create(world->runtime.get(), &params, &made, error));
  const Kv kv{made, wi_kv_release};
  const std::vector<float> rows(10 * 16, 0.5f);
  std::vector<float> out(16, 0.0f);
  assert_works(wi_kv_append(made, 0, 10, rows.data(), rows.data(), error));

  Meeting meeting;
  const wi_writer writer = meeting.writer();
  std::thread first([&] { assert_works(wi_kv_save_to(made, &writer, nullptr, error)); });
  meeting.wait_inside();
  const Folder folder;
  const std::string path = folder.file("none");
  const char* const thread = "kv is in use by another thread";
  uint64_t count = 77;
  assert_fails(WI_E_BUSY, thread, wi_kv_append(made, 0, 1, rows.data(), rows.data(), error));
  assert_fails(WI_E_BUSY, thread, wi_kv_seal(made, error));
  assert_fails(WI_E_BUSY, thread, wi_kv_attend(made, 0, 1, rows.data(), nullptr, out.data(), nullptr, error));
  assert_fails(WI_E_BUSY, thread, wi_kv_fork(made, &copy, error));
  assert_fails(WI_E_BUSY, thread, wi_kv_truncate(made, 1, error));
  assert_fails(WI_E_BUSY, thread, wi_kv_save(made, path.c_str(), nullptr, error));
  assert_fails(WI_E_BUSY, thread, wi_kv_save_to(made, &writer, nullptr, error));
  assert_fails(WI_E_BUSY, thread, wi_kv_saved_bytes(made, &count, error));
  auto stats = sized<wi_session_stats>();
  assert_works(wi_kv_get_stats(made, &stats, error));  // any time
  assert_int_equal(stats.tokens, 10);
  assert_int_equal(count, 77);
  assert_true(copy == nullptr && access(path.c_str(), F_OK) != 0);
  meeting.go_on = true;
  first.join();
  assert_works(wi_kv_attend(made, 0, 1, rows.data(), nullptr, out.data(), nullptr, error));
  assert_float_equal(out[0], 0.5f, 1e-6f);
}

wi_cancel* cancelled_by_signal = nullptr;

// The handler comes between any two instructions of the call's.
void a_signal_handler_may_cancel(void**) {
  Session session = read_session(50);
  const Snapshot before = snapshot(session.get());
  const Cancel cancel = create_cancel();
  cancelled_by_signal = cancel.get();
  struct sigaction action = {}, old = {};
  action.sa_handler = [](int) { wi_cancel_trigger(cancelled_by_signal); };
  assert_int_equal(sigaction(SIGUSR1, &action, &old), 0);
  const std::vector<int32_t> tokens = some_tokens(60000);
  for (int round = 0; round < few_or(1, 5); ++round) {
    Meeting meeting;
    meeting.go_on = true;
    auto params = sized<wi_prefill_params>();
    params.progress = Meeting::progress;
    params.progress_user = &meeting;
    params.chunk_tokens = 64;
    std::thread other([&, caller = pthread_self()] {
      meeting.wait_inside();
      std::this_thread::sleep_for(std::chrono::microseconds(700 * round));
      pthread_kill(caller, SIGUSR1);
    });
    assert_fails(
        WI_E_CANCELLED, "",
        wi_session_prefill(session.get(), tokens.data(), tokens.size(), &params, cancel.get(), error));
    other.join();
    assert_true(snapshot(session.get()) == before);
    wi_cancel_reset(cancel.get());
  }
  assert_int_equal(sigaction(SIGUSR1, &old, nullptr), 0);
}

void cancelling_from_another_thread_loses_nothing(void**) {
  Session session = read_session(200);
  const Snapshot before = snapshot(session.get());
  Cancel cancel = create_cancel();
  const std::vector<int32_t> tokens = some_tokens(60000);
  const double took = wi::test::least_of_tries(wi::test::kCancelMs, [&] {
    Meeting meeting;
    meeting.go_on = true;
    auto params = sized<wi_prefill_params>();
    params.progress = Meeting::progress;
    params.progress_user = &meeting;
    params.chunk_tokens = 256;
    std::chrono::steady_clock::time_point fired;
    std::thread other([&] {
      meeting.wait_inside();
      fired = std::chrono::steady_clock::now();
      wi_cancel_trigger(cancel.get());
    });
    assert_fails(
        WI_E_CANCELLED, "",
        wi_session_prefill(session.get(), tokens.data(), tokens.size(), &params, cancel.get(), error));
    const auto returned = std::chrono::steady_clock::now();
    other.join();
    assert_true(snapshot(session.get()) == before);
    wi_cancel_reset(cancel.get());
    return std::chrono::duration<double, std::milli>(returned - fired).count();
  });
  std::printf("cancelled within %.1f ms\n", took);
  assert_in_time(took < wi::test::kCancelMs);
  auto event = sized<wi_event>();
  assert_works(wi_session_decode(session.get(), cancel.get(), &event, error));
}

// A loop leaves out tasks while the token has fired; a call that then found it usable again would go on without them.
void a_token_that_is_reset_cancels_what_was_running(void**) {
  Session alone = read_session(few_or(50, 500)), session = fork(alone.get());
  Cancel cancel = create_cancel();
  std::atomic<bool> done{false}, rest{false};
  std::thread other([&] {
    for (uint64_t round = 0; !done; ++round) {
      if (!rest) wi_cancel_trigger(cancel.get());
      for (volatile uint64_t left = round * 7919 % 30000; left > 0;) left = left - 1;
      wi_cancel_reset(cancel.get());
      std::this_thread::sleep_for(std::chrono::microseconds(round * 104729 % 100));
    }
  });
  int wrong = 0, cancelled = 0;
  uint64_t count = 0;
  std::vector<float> wanted(256 << 10), got(wanted.size());
  for (int i = 0; i < few_or(20, 200); ++i) {
    auto event = sized<wi_event>();
    for (wi_session* one : {alone.get(), session.get()})
      assert_works(wi_session_accept(one, i % 100, nullptr, &event, error));
    assert_works(wi_session_logits(alone.get(), nullptr, wanted.data(), wanted.size(), &count, error));
    wi_status status = WI_E_CANCELLED;
    for (int tries = 0; status == WI_E_CANCELLED; ++cancelled, rest = ++tries > 20)
      status = wi_session_logits(session.get(), cancel.get(), got.data(), got.size(), &count, nullptr);
    assert_int_equal(status, WI_OK);
    wrong += std::memcmp(wanted.data(), got.data(), count * sizeof(float)) != 0;
  }
  done = true;
  other.join();
  std::printf("cancelled %d times\n", cancelled);
  assert_int_equal(wrong, 0);
}

// Counts its calls and wants no more after some of them.
struct Impatient {
  int calls = 0, most = 0;
  static int32_t progress(void* user, uint64_t, uint64_t) {
    auto* self = static_cast<Impatient*>(user);
    return ++self->calls > self->most;
  }
};

void a_progress_callback_may_end_its_call(void**) {
  Session session = read_session(200);
  const Snapshot before = snapshot(session.get());
  Impatient impatient{0, 2};
  auto params = sized<wi_prefill_params>();
  params.progress = Impatient::progress;
  params.progress_user = &impatient;
  params.chunk_tokens = 64;
  const std::vector<int32_t> tokens = some_tokens(1000);
  assert_fails(WI_E_CANCELLED, "progress callback",
               wi_session_prefill(session.get(), tokens.data(), tokens.size(), &params, nullptr, error));
  assert_int_equal(impatient.calls, 3);
  assert_true(snapshot(session.get()) == before);

  wi_model* model = nullptr;
  auto open = sized<wi_model_params>();
  open.progress = Impatient::progress;
  open.progress_user = &impatient;
  assert_fails(WI_E_CANCELLED, "progress callback",
               wi_model_open(world->runtime.get(), kModel, &open, nullptr, &model, error));
  assert_null(model);
}

void opening_and_loading_can_be_cancelled(void**) {
  Session session = read_session(200);
  const std::string path = WI_BINARY_DIR "/cancelled-session-" + std::to_string(getpid());
  assert_works(wi_session_save(session.get(), path.c_str(), nullptr, error));
  Cancel cancel = create_cancel();
  wi_cancel_trigger(cancel.get());
  wi_model* model = nullptr;
  wi_session* loaded = nullptr;
  assert_fails(WI_E_CANCELLED, "",
               wi_model_open(world->runtime.get(), kModel, nullptr, cancel.get(), &model, error));
  assert_fails(WI_E_CANCELLED, "",
               wi_session_load(world->model.get(), path.c_str(), nullptr, cancel.get(), &loaded, error));
  assert_true(model == nullptr && loaded == nullptr);
  wi_cancel_reset(cancel.get());
  assert_works(wi_session_load(world->model.get(), path.c_str(), nullptr, cancel.get(), &loaded, error));
  wi_session_release(loaded);
  std::remove(path.c_str());
}

int open_world(void**) {
  world = new World;
  return 0;
}

int close_world(void**) {
  delete world;
  return 0;
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(null_handles_and_outputs_are_named),
      cmocka_unit_test(policies_are_listed_with_a_line_each),
      cmocka_unit_test(runtime_parameters_are_checked),
      cmocka_unit_test(devices_are_counted_and_told_about),
      cmocka_unit_test(an_unknown_way_to_hold_weights_is_refused_by_name),
      cmocka_unit_test(policy_parameters_are_checked),
      cmocka_unit_test(session_sampling_and_kv_parameters_are_checked),
      cmocka_unit_test(token_info_tells_text_and_kind),
      cmocka_unit_test(token_ids_flags_and_layers_are_checked),
      cmocka_unit_test(a_small_buffer_learns_what_is_needed),
      cmocka_unit_test(a_message_is_cut_at_a_code_point),
      cmocka_unit_test(failed_calls_change_nothing),
      cmocka_unit_test(an_empty_session_says_so),
      cmocka_unit_test(a_session_stays_within_its_budget),
      cmocka_unit_test(a_runtime_stays_within_its_budget),
      cmocka_unit_test(copied_weights_count_by_themselves_while_a_session_lives),
      cmocka_unit_test(opening_without_memory_leaves_nothing_behind),
      cmocka_unit_test(handles_may_be_released_in_any_order),
      cmocka_unit_test(a_second_thread_is_told_busy),
      cmocka_unit_test(a_session_that_is_being_saved_is_busy),
      cmocka_unit_test(a_store_that_is_being_saved_is_busy),
      cmocka_unit_test(a_signal_handler_may_cancel),
      cmocka_unit_test(cancelling_from_another_thread_loses_nothing),
      cmocka_unit_test(a_token_that_is_reset_cancels_what_was_running),
      cmocka_unit_test(a_progress_callback_may_end_its_call),
      cmocka_unit_test(opening_and_loading_can_be_cancelled),
  };
  return cmocka_run_group_tests(tests, open_world, close_world);
}
