#include "src/capi_convert.h"

#include <algorithm>
#include <string_view>

#include "src/capi_struct.h"
#include "src/repeats.h"

namespace wi {
namespace {

constexpr int32_t kMostThreads = 1024;
constexpr size_t kMostTokenBytes = size_t{1} << 30;  // so that sizes of whole stores stay within 64 bits
constexpr int64_t kMostSegmentTokens = 1 << 20;

void check_range(const char* name, int64_t value, int64_t least, int64_t most);
void check_segment_tokens(const char* name, int32_t value);
void check_device(std::string_view device);
// least < value ≤ most, or least ≤ value < most; NaN is in neither.
void check_above(const char* name, float value, float least, float most);
void check_below(const char* name, float value, float least, float most);
void check_reserved(const char* name, int32_t value);
DType to_kv_type(const char* name, int32_t type);
const Policy* named_policy(const char* name, const Backend& backend);
template <class T>
T or_default(T value, T fallback) {
  return value == T{} ? fallback : value;
}

}  // namespace

Precision precision_of(const wi_model_params& p) {
  static_assert(WI_PRECISION_FAST == static_cast<int>(Precision::fast) &&
                WI_PRECISION_F32 == static_cast<int>(Precision::f32) &&
                WI_PRECISION_HIGH == static_cast<int>(Precision::high));
  check_range("wi_model_params.precision", p.precision, WI_PRECISION_FAST, WI_PRECISION_HIGH);
  return static_cast<Precision>(p.precision);
}

bool wants_copied_weights(const wi_model_params& p) {
  check_range("wi_model_params.weights", p.weights, WI_WEIGHTS_MAPPED, WI_WEIGHTS_COPIED);
  check_reserved("wi_model_params.reserved", p.reserved);
  return p.weights == WI_WEIGHTS_COPIED;
}

RuntimeParams to_runtime_params(const wi_runtime_params* params) {
  const wi_runtime_params p = read_struct(params, "wi_runtime_params");
  check_range("wi_runtime_params.threads", p.threads, 0, kMostThreads);
  check_device(p.device ? p.device : "cpu");
  check_range("wi_runtime_params.huge_pages", p.huge_pages, WI_HUGE_PAGES_AUTO, WI_HUGE_PAGES_OFF);
  check_range("wi_runtime_params.bind_threads", p.bind_threads, WI_BIND_AUTO, WI_BIND_OFF);
  check_range("wi_runtime_params.log_level", p.log_level, WI_LOG_NONE, WI_LOG_DEBUG);
  check_reserved("wi_runtime_params.reserved", p.reserved);
  RuntimeParams out;
  out.threads = p.threads;
  out.kv_budget_bytes = p.kv_budget_bytes;
  out.huge_pages = p.huge_pages == WI_HUGE_PAGES_AUTO;
  out.bind_threads = p.bind_threads == WI_BIND_AUTO;
  out.log_level = or_default<int32_t>(p.log_level, WI_LOG_WARNING);
  out.log = p.log;
  out.log_user = p.log_user;
  return out;
}

PolicyChoice to_policy(const wi_policy_params* params, const Backend& backend) {
  const wi_policy_params p = read_struct(params, "wi_policy_params");
  PolicyChoice out{named_policy(p.name ? p.name : "wave", backend), {}};
  PolicyParams& to = out.params;
  to.segment_tokens = or_default(p.segment_tokens, to.segment_tokens);
  to.decode_segment_tokens = or_default(p.decode_segment_tokens, to.decode_segment_tokens);
  to.tokens_per_centroid = or_default(p.tokens_per_centroid, to.tokens_per_centroid);
  to.max_cluster_tokens = std::max(to.max_cluster_tokens, 4 * std::clamp(to.tokens_per_centroid, 1, 1024));
  to.kmeans_iterations = or_default(p.kmeans_iterations, to.kmeans_iterations);
  to.local_window = p.local_window < 0 ? 0 : or_default(p.local_window, to.local_window);
  to.budget = or_default(p.budget, to.budget);
  to.estimation = p.estimation < 0 ? 0 : or_default(p.estimation, to.estimation);
  to.target_mass = p.target_mass;
  check_segment_tokens("wi_policy_params.segment_tokens", to.segment_tokens);
  check_segment_tokens("wi_policy_params.decode_segment_tokens", to.decode_segment_tokens);
  check_range("wi_policy_params.tokens_per_centroid", to.tokens_per_centroid, 1, 1024);
  check_range("wi_policy_params.kmeans_iterations", to.kmeans_iterations, 1, 100);
  check_range("wi_policy_params.local_window", to.local_window, 0, kMostSegmentTokens);
  check_above("wi_policy_params.budget", to.budget, 0, 1);
  check(to.estimation <= 1, WI_E_ARGUMENT, "wi_policy_params.estimation is ", p.estimation,
        ", must be at most 1 (negative: none)");
  check_below("wi_policy_params.target_mass", to.target_mass, 0, 1);

  to.budget_floor = or_default(p.budget_floor, to.budget / 8);
  to.budget_ceiling = or_default(p.budget_ceiling, std::min(1.0f, to.budget * 4));
  check_above("wi_policy_params.budget_floor", to.budget_floor, 0, 1);
  check_above("wi_policy_params.budget_ceiling", to.budget_ceiling, 0, 1);
  check(to.budget_floor <= to.budget_ceiling, WI_E_ARGUMENT, "wi_policy_params.budget_floor is ",
        to.budget_floor, ", more than budget_ceiling, which is ", to.budget_ceiling);
  to.repeats = p.repeats < 0 ? 0 : or_default(p.repeats, to.repeats);
  check_range("wi_policy_params.repeats", to.repeats, 0, kMostRepeats);
  return out;
}

SamplingParams to_sampling_params(const wi_sampling_params* params) {
  const wi_sampling_params p = read_struct(params, "wi_sampling_params");
  SamplingParams out;
  out.temperature = p.temperature;
  out.top_k = p.top_k;
  out.top_p = or_default(p.top_p, 1.0f);
  out.min_p = p.min_p;
  out.repetition_penalty = or_default(p.repetition_penalty, 1.0f);
  out.repetition_window = or_default(p.repetition_window, out.repetition_window);
  out.seed = p.seed;
  check(p.temperature >= 0 && p.temperature <= 100, WI_E_ARGUMENT, "wi_sampling_params.temperature is ",
        p.temperature, ", must be in [0, 100]");
  check_range("wi_sampling_params.top_k", out.top_k, 0, INT32_MAX);
  check_above("wi_sampling_params.top_p", out.top_p, 0, 1);
  check_below("wi_sampling_params.min_p", out.min_p, 0, 1);
  check_above("wi_sampling_params.repetition_penalty", out.repetition_penalty, 0, 100);
  check_range("wi_sampling_params.repetition_window", out.repetition_window, 0, INT32_MAX);
  check_reserved("wi_sampling_params.reserved", p.reserved);
  return out;
}

SessionParams to_session_params(const wi_session_params* params, const Backend& backend) {
  const wi_session_params p = read_struct(params, "wi_session_params");
  const PolicyChoice choice = to_policy(p.policy, backend);
  check_range("wi_session_params.sparse_read_tokens", p.sparse_read_tokens, 0, INT32_MAX);
  check_range("wi_session_params.prefix_reuse", p.prefix_reuse, WI_PREFIX_REUSE_AUTO, WI_PREFIX_REUSE_OFF);
  SessionParams out;
  out.policy = choice.policy;
  out.policy_params = choice.params;
  out.kv = to_kv_type("wi_session_params.kv_type", p.kv_type);
  out.sampling = to_sampling_params(p.sampling);
  out.sampling_given = p.sampling != nullptr;
  out.kv_budget_bytes = p.kv_budget_bytes;
  out.sparse_read_tokens = p.sparse_read_tokens;
  out.prefix_reuse = p.prefix_reuse == WI_PREFIX_REUSE_AUTO;
  return out;
}

PrefillParams to_prefill_params(const wi_prefill_params* params) {
  const wi_prefill_params p = read_struct(params, "wi_prefill_params");
  check_range("wi_prefill_params.chunk_tokens", p.chunk_tokens, 0, kMostSegmentTokens);
  check(p.logits || p.logits_capacity == 0, WI_E_ARGUMENT,
        "wi_prefill_params.logits is NULL with logits_capacity ", p.logits_capacity);
  check(p.logits_capacity <= PTRDIFF_MAX / sizeof(float), WI_E_ARGUMENT,
        "wi_prefill_params.logits_capacity is ", p.logits_capacity, ", more than memory can hold");
  PrefillParams out;
  out.chunk_tokens = p.chunk_tokens;
  out.progress = p.progress;
  out.progress_user = p.progress_user;
  if (p.logits) out.logits = {p.logits, static_cast<size_t>(p.logits_capacity)};
  return out;
}

KvStoreParams to_kv_store_params(const wi_kv_params* params, const Backend& backend) {
  check(params != nullptr, WI_E_ARGUMENT, "params is NULL, but a KV store's shape has no default");
  const wi_kv_params p = read_struct(params, "wi_kv_params");
  check_range("wi_kv_params.layers", p.layers, 1, 65536);
  check_range("wi_kv_params.query_heads", p.query_heads, 1, 65536);
  check_range("wi_kv_params.kv_heads", p.kv_heads, 1, 65536);
  check_range("wi_kv_params.head_dim", p.head_dim, 1, 65536);
  check(p.query_heads % p.kv_heads == 0, WI_E_ARGUMENT, "wi_kv_params.query_heads is ", p.query_heads,
        ", must be a multiple of kv_heads, which is ", p.kv_heads);
  const PolicyChoice choice = to_policy(p.policy, backend);
  KvStoreParams out;
  out.shape = {p.layers, p.kv_heads, p.head_dim, to_kv_type("wi_kv_params.kv_type", p.kv_type)};
  check(out.shape.token_bytes() <= kMostTokenBytes, WI_E_ARGUMENT, "wi_kv_params asks for ",
        out.shape.token_bytes(),
        " bytes per token (layers * kv_heads * head_dim, keys and values), must be at most ",
        kMostTokenBytes);
  out.query_heads = p.query_heads;
  out.policy = choice.policy;
  out.policy_params = choice.params;
  out.kv_budget_bytes = p.kv_budget_bytes;
  return out;
}

std::vector<ChatMessage> to_chat_messages(const wi_chat_message* messages, uint64_t count) {
  check_struct_array(messages, count, "messages");
  std::vector<ChatMessage> out;
  for (uint64_t i = 0; i < count; ++i) {
    const std::string name = concat("messages[", i, "]");
    const wi_chat_message message = read_struct(element(messages, i), name.c_str());
    check(message.role != nullptr, WI_E_ARGUMENT, name, ".role is NULL");
    check_reserved((name + ".reserved").c_str(), message.reserved);
    out.push_back(
        {message.role, to_text(message.content, message.content_length, (name + ".content").c_str())});
  }
  return out;
}

wi_device_info to_device_info(const Runtime& runtime) {
  const Topology& topology = runtime.topology;
  wi_device_info out{};
  out.threads = runtime.workers.threads();
  copy_utf8(runtime.backend.name, out.name, sizeof out.name);
  copy_utf8(topology.cpu_name, out.description, sizeof out.description);
  copy_utf8(runtime.backend.simd(), out.simd, sizeof out.simd);
  out.cores = topology.cores;
  out.numa_nodes = topology.numa_nodes;
  out.memory_bytes = topology.memory_bytes;
  out.l2_bytes = topology.l2_bytes;
  out.l3_bytes = topology.l3_bytes;
  return out;
}

wi_runtime_stats to_runtime_stats(const Runtime& runtime) {
  wi_runtime_stats out{};
  out.sessions = runtime.sessions.load(std::memory_order_relaxed);
  out.kv_budget_bytes = runtime.pool->budget();
  out.kv_bytes = runtime.pool->used();
  out.kv_bytes_peak = runtime.pool->peak();
  out.scratch_bytes = runtime.scratch_bytes();
  out.prefix_hits = runtime.prefixes.hits();
  out.copied_weight_bytes = runtime.weights_pool->used();
  return out;
}

wi_model_info to_model_info(const Model& model) {
  const ModelConfig& config = model.config;
  const char* const architectures[] = {"llama", "qwen2", "qwen3"};
  const Vocabulary* vocabulary = model.tokenizer ? &model.tokenizer->vocabulary() : nullptr;
  wi_model_info out{};
  out.layers = config.layers;
  out.hidden = config.hidden;
  out.query_heads = config.query_heads;
  out.kv_heads = config.kv_heads;
  out.head_dim = config.head_dim;
  out.ffn = config.ffn;
  out.vocab = config.vocab;
  out.bos_token = vocabulary ? vocabulary->bos : -1;
  out.eos_token = vocabulary ? vocabulary->eos : -1;
  out.max_positions = static_cast<uint64_t>(config.max_positions);
  out.parameters = model.parameters;
  out.weight_bytes = model.weight_bytes;
  out.kv_bytes_per_token = KvShape{config.layers, config.kv_heads, config.head_dim, DType::f16}.token_bytes();
  copy_utf8(architectures[static_cast<int>(config.architecture)], out.architecture, sizeof out.architecture);
  copy_utf8(config.name, out.name, sizeof out.name);
  copy_utf8(model.weight_type, out.weight_type, sizeof out.weight_type);
  copy_utf8(model.chat.family_name(), out.chat_family, sizeof out.chat_family);
  return out;
}

wi_event to_event(const Event& event) {
  wi_event out{};
  out.kind = event.kind;
  out.token = event.token;
  out.text = event.text.empty() ? "" : event.text.data();
  out.text_length = event.text.size();
  return out;
}

void check_tokens(std::span<const int32_t> tokens, int32_t vocab) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    check(tokens[i] >= 0 && tokens[i] < vocab, WI_E_ARGUMENT, "tokens[", i, "] is ", tokens[i],
          ", must be in [0, ", vocab, ")");
  }
}

void check_flags(uint32_t flags, uint32_t known) {
  check((flags & ~known) == 0, WI_E_ARGUMENT, "flags is ", flags, ", and the bits ", flags & ~known,
        " mean nothing here");
}

namespace {

void check_range(const char* name, int64_t value, int64_t least, int64_t most) {
  check(value >= least && value <= most, WI_E_ARGUMENT, name, " is ", value, ", must be in [", least, ", ",
        most, "]");
}

void check_segment_tokens(const char* name, int32_t value) {
  check(value >= kBlockTokens && value <= kMostSegmentTokens && value % kBlockTokens == 0, WI_E_ARGUMENT,
        name, " is ", value, ", must be a multiple of ", kBlockTokens, " in [", kBlockTokens, ", ",
        kMostSegmentTokens, "]");
}

void check_device(std::string_view device) {
  if (device == "cpu") return;
  const char* reason = device.starts_with("cuda")
                           ? ", which needs the CUDA plugin; this build has only \"cpu\""
                           : ", this build has only \"cpu\"";
  fail(WI_E_UNSUPPORTED, "wi_runtime_params.device is \"", device, "\"", reason);
}

void check_above(const char* name, float value, float least, float most) {
  check(value > least && value <= most, WI_E_ARGUMENT, name, " is ", value, ", must be in (", least, ", ",
        most, "]");
}

void check_below(const char* name, float value, float least, float most) {
  check(value >= least && value < most, WI_E_ARGUMENT, name, " is ", value, ", must be in [", least, ", ",
        most, ")");
}

void check_reserved(const char* name, int32_t value) {
  check(value == 0, WI_E_ARGUMENT, name, " is ", value, ", must be 0");
}

DType to_kv_type(const char* name, int32_t type) {
  switch (type) {
    case WI_KV_F16:
      return DType::f16;
    case WI_KV_BF16:
      return DType::bf16;
    case WI_KV_F32:
      return DType::f32;
    default:
      fail(WI_E_ARGUMENT, name, " is ", type, ", must be 0 (f16), 1 (bf16) or 2 (f32)");
  }
}

const Policy* named_policy(const char* name, const Backend& backend) {
  if (const Policy* policy = find_policy(backend, name)) return policy;
  std::string known;
  for (int32_t i = 0; i < backend.policy_count; ++i)
    known += concat(i ? ", \"" : "\"", backend.policies[i].name, "\"");
  fail(WI_E_UNSUPPORTED, "wi_policy_params.name is \"", name, "\", the ", backend.name, " backend has ",
       known);
}

}  // namespace
}  // namespace wi
