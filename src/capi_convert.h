// The ABI's parameter and result structs to the library's own and back. Whatever a host can get wrong is
// found here, and named with its value; defaults are filled in, so that nobody below knows the zeros.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "src/engine/task.h"
#include "src/host_stream.h"
#include "src/kv_store.h"
#include "src/runtime.h"
#include "src/session.h"

namespace wi {

Precision precision_of(const wi_model_params& p);
bool wants_copied_weights(const wi_model_params& p);
RuntimeParams to_runtime_params(const wi_runtime_params* params);
// kv_type: what a zero stands for there.
SessionParams to_session_params(const wi_session_params* params, const Backend& backend,
                                DType kv_type = DType::f16);
// Of a saved session: what a zero stands for everywhere.
SessionParams to_session_params(const wi_session_params* params, const Backend& backend,
                                const SessionParams& saved);
SamplingParams to_sampling_params(const wi_sampling_params* params);
PrefillParams to_prefill_params(const wi_prefill_params* params);
TaskParams to_task_params(const wi_task_params* params, int32_t vocab);
KvStoreParams to_kv_store_params(const wi_kv_params* params, const Backend& backend,
                                 const KvStoreParams* saved = nullptr);
HostWriter to_writer(const wi_writer* writer);
HostReader to_reader(const wi_reader* reader);
std::vector<ChatMessage> to_chat_messages(const wi_chat_message* messages, uint64_t count);
ChatRequest to_chat_request(std::span<const ChatMessage> messages, const wi_chat_params* params);

struct PolicyChoice {
  const Policy* policy = nullptr;
  PolicyParams params;
};
PolicyChoice to_policy(const wi_policy_params* params, const Backend& backend,
                       const PolicyChoice* saved = nullptr);

wi_device_info to_device_info(const Runtime& runtime);
int32_t device_count();
wi_device_info to_device_info(int32_t index);
wi_policy_info to_policy_info(const Runtime& runtime, int32_t index);
wi_runtime_stats to_runtime_stats(const Runtime& runtime);
wi_model_info to_model_info(const Model& model);
wi_token_info to_token_info(const Tokenizer& tokenizer, int32_t token);
wi_event to_event(const Event& event);
wi_task_info to_task_info(const TaskInfo& info);

// Argument checks that several calls share.
void check_tokens(const char* name, std::span<const int32_t> tokens, int32_t vocab);
void check_flags(const char* name, uint32_t flags, uint32_t known);
template <class T>
std::vector<T> copied(std::span<const T> values) {
  return {values.begin(), values.end()};
}
// Text or an array of a length: NULL only if it is empty, and no longer than memory can be.
template <class T>
std::span<const T> to_span(const T* values, uint64_t count, const char* name) {
  check(values != nullptr || count == 0, WI_E_ARGUMENT, name, " is NULL with length ", count);
  check(count <= PTRDIFF_MAX / sizeof(T), WI_E_ARGUMENT, name, " has length ", count,
        ", more than memory can hold");
  return {values, static_cast<size_t>(count)};
}
inline std::string_view to_text(const char* text, uint64_t length, const char* name) {
  const std::span<const char> bytes = to_span(text, length, name);
  return {bytes.data(), bytes.size()};
}

}  // namespace wi
