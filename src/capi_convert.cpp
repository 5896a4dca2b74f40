#include "src/capi_convert.h"

#include <algorithm>
#include <ctime>
#include <string_view>

#include "src/capi_struct.h"
#include "src/devices.h"
#include "src/engine/scheduler.h"
#include "src/policy_params.h"

namespace wi {
namespace {

constexpr int32_t kMostThreads = 1024;
constexpr int64_t kMostChunkTokens = 1 << 20;
constexpr int32_t kMostNice = 19;

void check_range(const char* name, int64_t value, int64_t least, int64_t most);
// least < value ≤ most, or least ≤ value < most; NaN is in neither.
void check_above(const char* name, float value, float least, float most);
void check_below(const char* name, float value, float least, float most);
void check_reserved(const char* name, int32_t value);
DType to_kv_type(const char* name, int32_t type, DType zero);
const Policy* named_policy(const char* name, const Backend& backend);
template <class T>
T or_default(T value, T fallback) {
  return value == T{} ? fallback : value;
}

}  // namespace

Precision precision_of(const wi_model_params& p) {
  static_assert(WI_PRECISION_FAST == static_cast<int>(Precision::fast) &&
                WI_PRECISION_F32 == static_cast<int>(Precision::f32) &&
                WI_PRECISION_HIGH == static_cast<int>(Precision::high) &&
                WI_PRECISION_INT8 == static_cast<int>(Precision::int8));
  check_range("wi_model_params.precision", p.precision, WI_PRECISION_FAST, WI_PRECISION_INT8);
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
  check_range("wi_runtime_params.huge_pages", p.huge_pages, WI_HUGE_PAGES_AUTO, WI_HUGE_PAGES_OFF);
  check_range("wi_runtime_params.bind_threads", p.bind_threads, WI_BIND_AUTO, WI_BIND_OFF);
  check_range("wi_runtime_params.log_level", p.log_level, WI_LOG_NONE, WI_LOG_DEBUG);
  check_range("wi_runtime_params.nice", p.nice, 0, kMostNice);
  RuntimeParams out;
  const DeviceChoice device = find_device(p.device ? p.device : "cpu");
  out.backend = device.backend;
  out.device = device.index;
  out.threads = p.threads;
  out.kv_budget_bytes = p.kv_budget_bytes;
  out.huge_pages = p.huge_pages == WI_HUGE_PAGES_AUTO;
  out.bind_threads = p.bind_threads == WI_BIND_AUTO;
  out.log_level = or_default<int32_t>(p.log_level, WI_LOG_WARNING);
  out.log = p.log;
  out.log_user = p.log_user;
  out.task_wait_ms = or_default(p.task_wait_ms, out.task_wait_ms);
  check_range("wi_runtime_params.task_wait_ms", out.task_wait_ms, 1, 60000);
  check_reserved("wi_runtime_params.reserved_1", p.reserved_1);
  out.log_release = p.log_release;
  out.nice = p.nice;
  if (p.spill_folder) out.spill_folder = p.spill_folder;
  check(!p.spill_folder || *p.spill_folder, WI_E_ARGUMENT, "wi_runtime_params.spill_folder is empty");
  out.spill_bytes = p.spill_bytes;
  check_range("wi_runtime_params.buffer_manager", p.buffer_manager, WI_BUFFER_AUTO, WI_BUFFER_BUCKETED);
  if (p.buffer_manager == WI_BUFFER_BUCKETED) out.buffer_manager = BufferManager::bucketed;
  check_reserved("wi_runtime_params.reserved_2", p.reserved_2);
  return out;
}

PolicyChoice to_policy(const wi_policy_params* params, const Backend& backend, const PolicyChoice* saved) {
  const wi_policy_params p = read_struct(params, "wi_policy_params");
  PolicyChoice out = saved ? *saved : PolicyChoice{named_policy("wave", backend), {}};
  if (p.name) out.policy = named_policy(p.name, backend);
  PolicyParams& to = out.params;
  to.segment_tokens = or_default(p.segment_tokens, to.segment_tokens);
  to.decode_segment_tokens = or_default(p.decode_segment_tokens, to.decode_segment_tokens);
  to.tokens_per_centroid = or_default(p.tokens_per_centroid, to.tokens_per_centroid);
  to.max_cluster_tokens = std::max(to.max_cluster_tokens, 4 * std::clamp(to.tokens_per_centroid, 1, 1024));
  to.kmeans_iterations = or_default(p.kmeans_iterations, to.kmeans_iterations);
  to.local_window = p.local_window < 0 ? 0 : or_default(p.local_window, to.local_window);
  to.budget = or_default(p.budget, to.budget);
  to.estimation = p.estimation < 0 ? 0 : or_default(p.estimation, to.estimation);
  to.target_mass = saved && p.target_mass < 0 ? 0 : or_default(p.target_mass, to.target_mass);
  // The bounds follow the budget that they were made for.
  if (!saved || p.budget != 0) {
    to.budget_floor = to.budget / 8;
    to.budget_ceiling = std::min(1.0f, to.budget * 4);
  }
  to.budget_ceiling = or_default(p.budget_ceiling, to.budget_ceiling);
  if (p.budget_ceiling > 0) to.budget_floor = std::min(to.budget_floor, to.budget_ceiling);
  to.budget_floor = or_default(p.budget_floor, to.budget_floor);
  to.repeats = p.repeats < 0 ? 0 : or_default(p.repeats, to.repeats);
  check_policy_params(to, WI_E_ARGUMENT, "wi_policy_params.");
  check(!backend.device || to.target_mass == 0, WI_E_UNSUPPORTED, "target_mass is ", to.target_mass,
        ", and on a device the budget is fixed in this version");
  return out;
}

namespace {

StopStrings to_stops(const wi_sampling_params& p) {
  const auto stops = to_span(p.stops, p.stop_count, "wi_sampling_params.stops");
  check(stops.size() <= kMostStops, WI_E_ARGUMENT, "wi_sampling_params.stop_count is ", stops.size(),
        ", must be at most ", kMostStops);
  std::vector<std::string> out;
  for (size_t i = 0; i < stops.size(); ++i) {
    const std::string name = concat("wi_sampling_params.stops[", i, "]");
    check(stops[i].length >= 1 && stops[i].length <= kLongestStop, WI_E_ARGUMENT, name, ".length is ",
          stops[i].length, ", must be in [1, ", kLongestStop, "]");
    out.emplace_back(to_text(stops[i].text, stops[i].length, (name + ".text").c_str()));
  }
  return StopStrings(std::move(out));
}

}  // namespace

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
  const auto bias = to_span(p.logit_bias, p.logit_bias_count, "wi_sampling_params.logit_bias");
  out.logit_bias.assign(bias.begin(), bias.end());
  out.logits_callback = p.logits_callback;
  out.logits_user = p.logits_user;
  out.stops = to_stops(p);
  out.top_logprobs = p.top_logprobs;
  check_range("wi_sampling_params.top_logprobs", p.top_logprobs, 0, kMostTopLogprobs);
  check_reserved("wi_sampling_params.reserved_2", p.reserved_2);
  check_sampling(out, WI_E_ARGUMENT, "wi_sampling_params.");
  return out;
}

namespace {

// saved: what a zero stands for; null: the library's defaults, and kv_type.
SessionParams session_params_of(const wi_session_params* params, const Backend& backend,
                                const SessionParams* saved, DType kv_type) {
  const wi_session_params p = read_struct(params, "wi_session_params");
  const PolicyChoice policy = saved ? PolicyChoice{saved->policy, saved->policy_params} : PolicyChoice{};
  const PolicyChoice choice = to_policy(p.policy, backend, saved ? &policy : nullptr);
  check_range("wi_session_params.sparse_read_tokens", p.sparse_read_tokens, saved ? INT32_MIN : 0, INT32_MAX);
  check_range("wi_session_params.prefix_reuse", p.prefix_reuse, WI_PREFIX_REUSE_AUTO, WI_PREFIX_REUSE_ON);
  SessionParams out = saved ? *saved : SessionParams{};
  out.policy = choice.policy;
  out.policy_params = choice.params;
  out.kv = to_kv_type("wi_session_params.kv_type", p.kv_type, kv_type);
  out.sampling_given = p.sampling != nullptr;
  if (out.sampling_given || !saved) out.sampling = to_sampling_params(p.sampling);
  out.kv_budget_bytes = or_default(p.kv_budget_bytes, out.kv_budget_bytes);
  out.sparse_read_tokens =
      p.sparse_read_tokens < 0 ? 0 : or_default(p.sparse_read_tokens, out.sparse_read_tokens);
  if (p.prefix_reuse != WI_PREFIX_REUSE_AUTO) out.prefix_reuse = p.prefix_reuse == WI_PREFIX_REUSE_ON;
  out.any_prefix = p.prefix_reuse == WI_PREFIX_REUSE_ON;
  check(p.kv_fast_share >= 0 && p.kv_fast_share <= 1, WI_E_ARGUMENT, "wi_session_params.kv_fast_share is ",
        p.kv_fast_share, ", must be in [0, 1]");
  out.kv_fast_share = p.kv_fast_share;
  check_reserved("wi_session_params.reserved_1", p.reserved_1);
  return out;
}

}  // namespace

SessionParams to_session_params(const wi_session_params* params, const Backend& backend, DType kv_type) {
  return session_params_of(params, backend, nullptr, kv_type);
}

SessionParams to_session_params(const wi_session_params* params, const Backend& backend,
                                const SessionParams& saved) {
  return session_params_of(params, backend, &saved, saved.kv);
}

PrefillParams to_prefill_params(const wi_prefill_params* params) {
  const wi_prefill_params p = read_struct(params, "wi_prefill_params");
  check_range("wi_prefill_params.chunk_tokens", p.chunk_tokens, 0, kMostChunkTokens);
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

TaskParams to_task_params(const wi_task_params* params, int32_t vocab) {
  const wi_task_params p = read_struct(params, "wi_task_params");
  check_range("wi_task_params.priority", p.priority, kLowestPriority, kHighestPriority);
  check_flags("wi_task_params.tokenize_flags", p.tokenize_flags,
              WI_TOKENIZE_ADD_BOS | WI_TOKENIZE_PARSE_SPECIAL);
  check_reserved("wi_task_params.reserved", p.reserved);
  const std::span<const int32_t> tokens = to_span(p.tokens, p.token_count, "wi_task_params.tokens");
  const std::string_view text = to_text(p.text, p.text_length, "wi_task_params.text");
  check(tokens.empty() || text.empty(), WI_E_ARGUMENT, "wi_task_params has ", tokens.size(), " tokens and ",
        text.size(), " bytes of text, only one of the two can be the prompt");
  TaskParams out;
  out.tokens = copied(tokens);
  check_tokens("wi_task_params.tokens", out.tokens, vocab);
  out.text = text;
  out.tokenize_flags = p.tokenize_flags;
  out.priority = p.priority;
  out.max_tokens = p.max_tokens;
  if (p.sampling) out.sampling = to_sampling_params(p.sampling);
  out.notify = p.notify;
  out.notify_user = p.notify_user;
  return out;
}

KvStoreParams to_kv_store_params(const wi_kv_params* params, const Backend& backend,
                                 const KvStoreParams* saved) {
  check(params != nullptr || saved, WI_E_ARGUMENT, "params is NULL, but a KV store's shape has no default");
  wi_kv_params p = read_struct(params, "wi_kv_params");
  if (saved) {
    p.layers = or_default(p.layers, saved->shape.layers);
    p.query_heads = or_default(p.query_heads, saved->query_heads);
    p.kv_heads = or_default(p.kv_heads, saved->shape.kv_heads);
    p.head_dim = or_default(p.head_dim, saved->shape.head_dim);
    p.kv_budget_bytes = or_default(p.kv_budget_bytes, saved->kv_budget_bytes);
  }
  check_range("wi_kv_params.layers", p.layers, 1, 65536);
  check_range("wi_kv_params.query_heads", p.query_heads, 1, 65536);
  check_range("wi_kv_params.kv_heads", p.kv_heads, 1, 65536);
  check_range("wi_kv_params.head_dim", p.head_dim, 1, 65536);
  check(p.head_dim % kHeadDimStep == 0, WI_E_ARGUMENT, "wi_kv_params.head_dim is ", p.head_dim,
        ", must be a multiple of ", kHeadDimStep);
  check(p.query_heads % p.kv_heads == 0, WI_E_ARGUMENT, "wi_kv_params.query_heads is ", p.query_heads,
        ", must be a multiple of kv_heads, which is ", p.kv_heads);
  const PolicyChoice policy = saved ? PolicyChoice{saved->policy, saved->policy_params} : PolicyChoice{};
  const PolicyChoice choice = to_policy(p.policy, backend, saved ? &policy : nullptr);
  KvStoreParams out;
  out.shape = {p.layers, p.kv_heads, p.head_dim,
               to_kv_type("wi_kv_params.kv_type", p.kv_type, saved ? saved->shape.dtype : DType::f16)};
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

HostWriter to_writer(const wi_writer* writer) {
  check(writer != nullptr, WI_E_ARGUMENT, "writer is NULL");
  const wi_writer w = read_struct(writer, "wi_writer");
  check_reserved("wi_writer.reserved", w.reserved);
  check(w.write != nullptr, WI_E_ARGUMENT, "wi_writer.write is NULL");
  return HostWriter(w);
}

HostReader to_reader(const wi_reader* reader) {
  check(reader != nullptr, WI_E_ARGUMENT, "reader is NULL");
  const wi_reader r = read_struct(reader, "wi_reader");
  check_reserved("wi_reader.reserved", r.reserved);
  check(r.read != nullptr, WI_E_ARGUMENT, "wi_reader.read is NULL");
  return HostReader(r);
}

std::vector<ChatMessage> to_chat_messages(const wi_chat_message* messages, uint64_t count) {
  check_struct_array(messages, count, "messages");
  std::vector<ChatMessage> out;
  for (uint64_t i = 0; i < count; ++i) {
    const std::string name = concat("messages[", i, "]");
    const wi_chat_message message = read_struct(element(messages, i), name.c_str());
    check(message.role != nullptr, WI_E_ARGUMENT, name, ".role is NULL");
    check_reserved((name + ".reserved").c_str(), message.reserved);
    ChatMessage& read = out.emplace_back();
    read.role = message.role;
    read.content = to_text(message.content, message.content_length, (name + ".content").c_str());
    if (message.fields_json) read.fields_json = message.fields_json;
    read.has_content = message.content || !read.fields_json.data();
  }
  return out;
}

ChatRequest to_chat_request(std::span<const ChatMessage> messages, const wi_chat_params* params) {
  const wi_chat_params p = read_struct(params, "wi_chat_params");
  check_flags("wi_chat_params.flags", p.flags, WI_CHAT_ADD_GENERATION_PROMPT);
  check_range("wi_chat_params.now", p.now, 0, int64_t{1} << 36);
  ChatRequest out;
  out.messages = messages;
  out.add_generation_prompt = (p.flags & WI_CHAT_ADD_GENERATION_PROMPT) != 0;
  if (p.tools_json) out.tools_json = p.tools_json;
  if (p.variables_json) out.variables_json = p.variables_json;
  out.now = p.now > 0 ? p.now : static_cast<int64_t>(std::time(nullptr));
  return out;
}

namespace {

wi_device_info host_info(const Topology& topology) {
  wi_device_info out{};
  out.threads = topology.threads;
  copy_utf8(cpu_backend().name, out.name, sizeof out.name);
  copy_utf8(topology.cpu_name, out.description, sizeof out.description);
  copy_utf8(cpu_backend().simd(), out.simd, sizeof out.simd);
  out.cores = topology.cores;
  out.numa_nodes = topology.numa_nodes;
  out.memory_bytes = topology.memory_bytes;
  out.l2_bytes = topology.l2_bytes;
  out.l3_bytes = topology.l3_bytes;
  out.policies = cpu_backend().policy_count;
  out.usable = 1;
  return out;
}

wi_device_info plugin_info(const DeviceDescription& device, int32_t policies, const Topology& topology) {
  wi_device_info out{};
  out.threads = topology.threads;
  copy_utf8(device.name, out.name, sizeof out.name);
  copy_utf8(device.product, out.description, sizeof out.description);
  copy_utf8(device.target, out.simd, sizeof out.simd);
  out.cores = device.processors;
  out.numa_nodes = topology.numa_nodes;
  out.memory_bytes = device.memory_bytes;
  out.l2_bytes = device.l2_bytes;
  out.policies = policies;
  out.usable = device.reason[0] ? 0 : 1;
  copy_utf8(device.reason, out.reason, sizeof out.reason);
  return out;
}

}  // namespace

wi_device_info to_device_info(const Runtime& runtime) {
  wi_device_info out = runtime.device ? plugin_info(runtime.device->description, runtime.backend.policy_count,
                                                    runtime.topology)
                                      : host_info(runtime.topology);
  out.threads = runtime.workers.threads();
  return out;
}

int32_t device_count() { return 1 + plugin_device_count(); }

wi_device_info to_device_info(int32_t index) {
  check_range("index", index, 0, device_count() - 1);
  if (index == 0) return host_info(read_topology());
  const PluginDevice device = describe_plugin_device(index - 1);
  return plugin_info(device.description, device.policies, read_topology());
}

wi_policy_info to_policy_info(const Runtime& runtime, int32_t index) {
  check_range("index", index, 0, runtime.backend.policy_count - 1);
  const Policy& policy = runtime.backend.policies[index];
  wi_policy_info out{};
  out.name = policy.name;
  out.description = policy.description;
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
  if (runtime.device) out.pinning_refused = runtime.device->refused_pins();
  if (!runtime.buffer) return out;
  const WaveBufferStats buffer = runtime.buffer->stats();
  out.slow_bytes = buffer.slow_bytes;
  out.frame_bytes = buffer.frame_bytes;
  out.buffer_admissions = buffer.admissions;
  out.buffer_evictions = buffer.evictions;
  out.buffer_refusals = buffer.refusals;
  out.buffer_late = buffer.late;
  out.slow_read_bytes = buffer.file.read_bytes;
  out.slow_reads = buffer.file.reads;
  out.slow_read_ns = buffer.file.wait_ns;
  out.slow_written_bytes = buffer.file.written_bytes;
  out.slow_stalls = buffer.file.stalls;
  return out;
}

wi_token_info to_token_info(const Tokenizer& tokenizer, int32_t token) {
  const TokenKind kind = tokenizer.vocabulary().kinds[static_cast<size_t>(token)];
  const std::string_view text = tokenizer.piece(token, true);
  const bool part =
      kind == TokenKind::normal && text.size() == 1 && static_cast<unsigned char>(text[0]) >= 0x80;
  wi_token_info out{};
  if (kind == TokenKind::control || kind == TokenKind::unknown) out.flags |= WI_TOKEN_CONTROL;
  if (tokenizer.ends_generation(token)) out.flags |= WI_TOKEN_END;
  if (kind == TokenKind::byte || part) out.flags |= WI_TOKEN_BYTE;
  if (kind == TokenKind::unused) out.flags |= WI_TOKEN_UNUSED;
  if (kind == TokenKind::user_defined) out.flags |= WI_TOKEN_USER;
  out.text = text.data();
  out.text_length = text.size();
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
  out.max_positions = static_cast<uint64_t>(
      config.most_tokens ? std::min(config.max_positions, config.most_tokens) : config.max_positions);
  out.parameters = model.parameters;
  out.weight_bytes = model.weight_bytes;
  out.kv_bytes_per_token = KvShape{config.layers, config.kv_heads, config.head_dim, DType::f16}.token_bytes();
  copy_utf8(architectures[static_cast<int>(config.architecture)], out.architecture, sizeof out.architecture);
  copy_utf8(config.name, out.name, sizeof out.name);
  copy_utf8(model.weight_type, out.weight_type, sizeof out.weight_type);
  copy_utf8(model.chat.empty() ? "" : "template", out.chat_family, sizeof out.chat_family);
  return out;
}

wi_event to_event(const Event& event) {
  wi_event out{};
  out.kind = event.kind;
  out.token = event.token;
  out.text = event.text.empty() ? "" : event.text.data();
  out.text_length = event.text.size();
  out.logprob = event.logprob;
  out.top = event.top.empty() ? nullptr : event.top.data();
  out.top_count = event.top.size();
  return out;
}

wi_task_info to_task_info(const TaskInfo& info) {
  wi_task_info out{};
  out.state = info.state;
  out.status = info.status;
  out.prompt_tokens = info.prompt_tokens;
  out.prompt_done = info.prompt_done;
  out.answer_tokens = info.answer_tokens;
  out.queued_ns = info.queued_ns;
  out.first_token_ns = info.first_token_ns;
  copy_utf8(info.message, out.message, sizeof out.message);
  out.native_code = info.native_code;
  return out;
}

void check_tokens(const char* name, std::span<const int32_t> tokens, int32_t vocab) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    check(tokens[i] >= 0 && tokens[i] < vocab, WI_E_ARGUMENT, name, "[", i, "] is ", tokens[i],
          ", must be in [0, ", vocab, ")");
  }
}

void check_flags(const char* name, uint32_t flags, uint32_t known) {
  check((flags & ~known) == 0, WI_E_ARGUMENT, name, " is ", flags, ", and the bits ", flags & ~known,
        " mean nothing here");
}

namespace {

void check_range(const char* name, int64_t value, int64_t least, int64_t most) {
  check(value >= least && value <= most, WI_E_ARGUMENT, name, " is ", value, ", must be in [", least, ", ",
        most, "]");
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

// zero: what 0 stands for.
DType to_kv_type(const char* name, int32_t type, DType zero) {
  switch (type) {
    case WI_KV_F16:
      return zero;
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
