// The ABI as numbers: exported symbols, struct sizes, field offsets and enumeration values, compared with the
// checked-in file that the bindings' tests read too. A line that changes or goes is a broken promise to hosts
// that were built before; a line that is added is a new version's. `--write` makes the file anew.
#include <cstdlib>
#include <dlfcn.h>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "support/abi.h"

namespace {

const char* const kManifest = WI_TEST_DATA "/abi/waveinfer-2.abi.txt";

// Of constants alone: as strings, each by a constructor that may throw, a compiler took minutes for them.
struct Line {
  enum { structure, field, constant } kind;
  const char* name;
  long long first;
  size_t second = 0;

  std::string text() const {
    const std::string numbers[] = {std::to_string(first), std::to_string(second)};
    switch (kind) {
      case structure:
        return std::string("struct ") + name + " size " + numbers[0] + " align " + numbers[1];
      case field:
        return std::string("field ") + name + " offset " + numbers[0] + " size " + numbers[1];
      default:
        return std::string("value ") + name + " " + numbers[0];
    }
  }
};

#define STRUCT(type) \
  { Line::structure, #type, sizeof(type), alignof(type) }
#define FIELD(type, name) \
  { Line::field, #type "." #name, offsetof(type, name), sizeof(type::name) }
#define VALUE(name) \
  { Line::constant, #name, name }

constexpr Line kLayout[] = {
    // clang-format off
    STRUCT(wi_error),
    FIELD(wi_error, struct_size),
    FIELD(wi_error, code),
    FIELD(wi_error, native_code),
    FIELD(wi_error, message),
    STRUCT(wi_runtime_params),
    FIELD(wi_runtime_params, struct_size),
    FIELD(wi_runtime_params, threads),
    FIELD(wi_runtime_params, device),
    FIELD(wi_runtime_params, kv_budget_bytes),
    FIELD(wi_runtime_params, huge_pages),
    FIELD(wi_runtime_params, bind_threads),
    FIELD(wi_runtime_params, log_level),
    FIELD(wi_runtime_params, nice),
    FIELD(wi_runtime_params, log),
    FIELD(wi_runtime_params, log_user),
    FIELD(wi_runtime_params, task_wait_ms),
    FIELD(wi_runtime_params, reserved_1),
    FIELD(wi_runtime_params, log_release),
    FIELD(wi_runtime_params, spill_folder),
    FIELD(wi_runtime_params, spill_bytes),
    FIELD(wi_runtime_params, buffer_manager),
    FIELD(wi_runtime_params, reserved_2),
    STRUCT(wi_device_info),
    FIELD(wi_device_info, struct_size),
    FIELD(wi_device_info, threads),
    FIELD(wi_device_info, name),
    FIELD(wi_device_info, description),
    FIELD(wi_device_info, simd),
    FIELD(wi_device_info, cores),
    FIELD(wi_device_info, numa_nodes),
    FIELD(wi_device_info, memory_bytes),
    FIELD(wi_device_info, l2_bytes),
    FIELD(wi_device_info, l3_bytes),
    FIELD(wi_device_info, policies),
    FIELD(wi_device_info, usable),
    FIELD(wi_device_info, reason),
    STRUCT(wi_policy_info),
    FIELD(wi_policy_info, struct_size),
    FIELD(wi_policy_info, reserved),
    FIELD(wi_policy_info, name),
    FIELD(wi_policy_info, description),
    STRUCT(wi_runtime_stats),
    FIELD(wi_runtime_stats, struct_size),
    FIELD(wi_runtime_stats, sessions),
    FIELD(wi_runtime_stats, kv_budget_bytes),
    FIELD(wi_runtime_stats, kv_bytes),
    FIELD(wi_runtime_stats, kv_bytes_peak),
    FIELD(wi_runtime_stats, scratch_bytes),
    FIELD(wi_runtime_stats, prefix_hits),
    FIELD(wi_runtime_stats, copied_weight_bytes),
    FIELD(wi_runtime_stats, slow_bytes),
    FIELD(wi_runtime_stats, frame_bytes),
    FIELD(wi_runtime_stats, buffer_admissions),
    FIELD(wi_runtime_stats, buffer_evictions),
    FIELD(wi_runtime_stats, buffer_refusals),
    FIELD(wi_runtime_stats, buffer_late),
    FIELD(wi_runtime_stats, slow_read_bytes),
    FIELD(wi_runtime_stats, slow_reads),
    FIELD(wi_runtime_stats, slow_read_ns),
    FIELD(wi_runtime_stats, slow_written_bytes),
    FIELD(wi_runtime_stats, pinning_refused),
    FIELD(wi_runtime_stats, slow_stalls),
    STRUCT(wi_reader),
    FIELD(wi_reader, struct_size),
    FIELD(wi_reader, reserved),
    FIELD(wi_reader, bytes),
    FIELD(wi_reader, read),
    FIELD(wi_reader, user),
    STRUCT(wi_writer),
    FIELD(wi_writer, struct_size),
    FIELD(wi_writer, reserved),
    FIELD(wi_writer, write),
    FIELD(wi_writer, user),
    STRUCT(wi_model_params),
    FIELD(wi_model_params, struct_size),
    FIELD(wi_model_params, precision),
    FIELD(wi_model_params, progress),
    FIELD(wi_model_params, progress_user),
    FIELD(wi_model_params, weights),
    FIELD(wi_model_params, reserved),
    STRUCT(wi_token_info),
    FIELD(wi_token_info, struct_size),
    FIELD(wi_token_info, flags),
    FIELD(wi_token_info, text),
    FIELD(wi_token_info, text_length),
    STRUCT(wi_model_info),
    FIELD(wi_model_info, struct_size),
    FIELD(wi_model_info, layers),
    FIELD(wi_model_info, hidden),
    FIELD(wi_model_info, query_heads),
    FIELD(wi_model_info, kv_heads),
    FIELD(wi_model_info, head_dim),
    FIELD(wi_model_info, ffn),
    FIELD(wi_model_info, vocab),
    FIELD(wi_model_info, bos_token),
    FIELD(wi_model_info, eos_token),
    FIELD(wi_model_info, max_positions),
    FIELD(wi_model_info, parameters),
    FIELD(wi_model_info, weight_bytes),
    FIELD(wi_model_info, kv_bytes_per_token),
    FIELD(wi_model_info, architecture),
    FIELD(wi_model_info, name),
    FIELD(wi_model_info, weight_type),
    FIELD(wi_model_info, chat_family),
    STRUCT(wi_chat_message),
    FIELD(wi_chat_message, struct_size),
    FIELD(wi_chat_message, reserved),
    FIELD(wi_chat_message, role),
    FIELD(wi_chat_message, content),
    FIELD(wi_chat_message, content_length),
    FIELD(wi_chat_message, fields_json),
    STRUCT(wi_chat_params),
    FIELD(wi_chat_params, struct_size),
    FIELD(wi_chat_params, flags),
    FIELD(wi_chat_params, tools_json),
    FIELD(wi_chat_params, variables_json),
    FIELD(wi_chat_params, now),
    STRUCT(wi_policy_params),
    FIELD(wi_policy_params, struct_size),
    FIELD(wi_policy_params, segment_tokens),
    FIELD(wi_policy_params, name),
    FIELD(wi_policy_params, decode_segment_tokens),
    FIELD(wi_policy_params, tokens_per_centroid),
    FIELD(wi_policy_params, kmeans_iterations),
    FIELD(wi_policy_params, local_window),
    FIELD(wi_policy_params, budget),
    FIELD(wi_policy_params, estimation),
    FIELD(wi_policy_params, target_mass),
    FIELD(wi_policy_params, budget_floor),
    FIELD(wi_policy_params, budget_ceiling),
    FIELD(wi_policy_params, repeats),
    STRUCT(wi_text),
    FIELD(wi_text, text),
    FIELD(wi_text, length),
    STRUCT(wi_logit_bias),
    FIELD(wi_logit_bias, token),
    FIELD(wi_logit_bias, bias),
    STRUCT(wi_sampling_params),
    FIELD(wi_sampling_params, struct_size),
    FIELD(wi_sampling_params, temperature),
    FIELD(wi_sampling_params, top_k),
    FIELD(wi_sampling_params, top_p),
    FIELD(wi_sampling_params, min_p),
    FIELD(wi_sampling_params, repetition_penalty),
    FIELD(wi_sampling_params, repetition_window),
    FIELD(wi_sampling_params, reserved),
    FIELD(wi_sampling_params, seed),
    FIELD(wi_sampling_params, logit_bias),
    FIELD(wi_sampling_params, logit_bias_count),
    FIELD(wi_sampling_params, logits_callback),
    FIELD(wi_sampling_params, logits_user),
    FIELD(wi_sampling_params, stops),
    FIELD(wi_sampling_params, stop_count),
    FIELD(wi_sampling_params, top_logprobs),
    FIELD(wi_sampling_params, reserved_2),
    STRUCT(wi_session_params),
    FIELD(wi_session_params, struct_size),
    FIELD(wi_session_params, kv_type),
    FIELD(wi_session_params, policy),
    FIELD(wi_session_params, sampling),
    FIELD(wi_session_params, kv_budget_bytes),
    FIELD(wi_session_params, sparse_read_tokens),
    FIELD(wi_session_params, prefix_reuse),
    FIELD(wi_session_params, kv_fast_share),
    FIELD(wi_session_params, reserved_1),
    STRUCT(wi_memory_plan),
    FIELD(wi_memory_plan, struct_size),
    FIELD(wi_memory_plan, fits),
    FIELD(wi_memory_plan, weight_bytes),
    FIELD(wi_memory_plan, kv_bytes),
    FIELD(wi_memory_plan, index_bytes),
    FIELD(wi_memory_plan, sealing_bytes),
    FIELD(wi_memory_plan, scratch_bytes),
    FIELD(wi_memory_plan, total_bytes),
    FIELD(wi_memory_plan, max_tokens),
    FIELD(wi_memory_plan, fast_bytes),
    STRUCT(wi_event),
    FIELD(wi_event, struct_size),
    FIELD(wi_event, kind),
    FIELD(wi_event, token),
    FIELD(wi_event, reserved),
    FIELD(wi_event, text),
    FIELD(wi_event, text_length),
    FIELD(wi_event, logprob),
    FIELD(wi_event, reserved_2),
    FIELD(wi_event, top),
    FIELD(wi_event, top_count),
    STRUCT(wi_token_logprob),
    FIELD(wi_token_logprob, token),
    FIELD(wi_token_logprob, logprob),
    STRUCT(wi_prefill_params),
    FIELD(wi_prefill_params, struct_size),
    FIELD(wi_prefill_params, chunk_tokens),
    FIELD(wi_prefill_params, progress),
    FIELD(wi_prefill_params, progress_user),
    FIELD(wi_prefill_params, logits),
    FIELD(wi_prefill_params, logits_capacity),
    STRUCT(wi_session_stats),
    FIELD(wi_session_stats, struct_size),
    FIELD(wi_session_stats, segments),
    FIELD(wi_session_stats, tokens),
    FIELD(wi_session_stats, kv_bytes),
    FIELD(wi_session_stats, index_bytes),
    FIELD(wi_session_stats, prefill_tokens),
    FIELD(wi_session_stats, decode_steps),
    FIELD(wi_session_stats, prefix_tokens),
    FIELD(wi_session_stats, kv_bytes_read),
    FIELD(wi_session_stats, index_bytes_read),
    FIELD(wi_session_stats, retrieved_tokens),
    FIELD(wi_session_stats, estimated_clusters),
    FIELD(wi_session_stats, dropped_clusters),
    FIELD(wi_session_stats, buffer_hits),
    FIELD(wi_session_stats, buffer_misses),
    FIELD(wi_session_stats, prefill_ns),
    FIELD(wi_session_stats, index_ns),
    FIELD(wi_session_stats, decode_ns),
    FIELD(wi_session_stats, weights_ns),
    FIELD(wi_session_stats, select_ns),
    FIELD(wi_session_stats, retrieve_ns),
    FIELD(wi_session_stats, attend_ns),
    FIELD(wi_session_stats, estimate_ns),
    FIELD(wi_session_stats, estimated_coverage),
    FIELD(wi_session_stats, certified_coverage),
    FIELD(wi_session_stats, certified_coverage_min),
    FIELD(wi_session_stats, slow_bytes),
    FIELD(wi_session_stats, buffer_admissions),
    FIELD(wi_session_stats, buffer_refusals),
    FIELD(wi_session_stats, buffer_late),
    FIELD(wi_session_stats, buffer_evictions),
    FIELD(wi_session_stats, buffer_stalls),
    STRUCT(wi_task_params),
    FIELD(wi_task_params, struct_size),
    FIELD(wi_task_params, priority),
    FIELD(wi_task_params, tokens),
    FIELD(wi_task_params, token_count),
    FIELD(wi_task_params, text),
    FIELD(wi_task_params, text_length),
    FIELD(wi_task_params, tokenize_flags),
    FIELD(wi_task_params, reserved),
    FIELD(wi_task_params, max_tokens),
    FIELD(wi_task_params, sampling),
    FIELD(wi_task_params, notify),
    FIELD(wi_task_params, notify_user),
    STRUCT(wi_task_info),
    FIELD(wi_task_info, struct_size),
    FIELD(wi_task_info, state),
    FIELD(wi_task_info, status),
    FIELD(wi_task_info, reserved),
    FIELD(wi_task_info, prompt_tokens),
    FIELD(wi_task_info, prompt_done),
    FIELD(wi_task_info, answer_tokens),
    FIELD(wi_task_info, queued_ns),
    FIELD(wi_task_info, first_token_ns),
    FIELD(wi_task_info, message),
    FIELD(wi_task_info, native_code),
    VALUE(WI_EVENT_LIMIT),
    VALUE(WI_EVENT_CANCELLED),
    VALUE(WI_EVENT_FAILED),
    VALUE(WI_TASK_QUEUED),
    VALUE(WI_TASK_READING),
    VALUE(WI_TASK_WRITING),
    VALUE(WI_TASK_DONE),
    VALUE(WI_TASK_CANCELLED),
    VALUE(WI_TASK_FAILED),
    STRUCT(wi_kv_params),
    FIELD(wi_kv_params, struct_size),
    FIELD(wi_kv_params, layers),
    FIELD(wi_kv_params, query_heads),
    FIELD(wi_kv_params, kv_heads),
    FIELD(wi_kv_params, head_dim),
    FIELD(wi_kv_params, kv_type),
    FIELD(wi_kv_params, policy),
    FIELD(wi_kv_params, kv_budget_bytes),
    VALUE(WI_ABI_VERSION),
    VALUE(WI_OK),
    VALUE(WI_E_ARGUMENT),
    VALUE(WI_E_FORMAT),
    VALUE(WI_E_UNSUPPORTED),
    VALUE(WI_E_IO),
    VALUE(WI_E_MEMORY),
    VALUE(WI_E_BUDGET),
    VALUE(WI_E_CANCELLED),
    VALUE(WI_E_BUSY),
    VALUE(WI_E_STATE),
    VALUE(WI_E_MISMATCH),
    VALUE(WI_E_DEVICE),
    VALUE(WI_E_DEVICE_LOST),
    VALUE(WI_E_INTERNAL),
    VALUE(WI_LOG_NONE),
    VALUE(WI_LOG_ERROR),
    VALUE(WI_LOG_WARNING),
    VALUE(WI_LOG_INFO),
    VALUE(WI_LOG_DEBUG),
    VALUE(WI_HUGE_PAGES_AUTO),
    VALUE(WI_HUGE_PAGES_OFF),
    VALUE(WI_BIND_AUTO),
    VALUE(WI_BIND_OFF),
    VALUE(WI_BUFFER_AUTO),
    VALUE(WI_BUFFER_LRU),
    VALUE(WI_BUFFER_BUCKETED),
    VALUE(WI_PRECISION_FAST),
    VALUE(WI_PRECISION_F32),
    VALUE(WI_PRECISION_HIGH),
    VALUE(WI_PRECISION_INT8),
    VALUE(WI_WEIGHTS_MAPPED),
    VALUE(WI_WEIGHTS_COPIED),
    VALUE(WI_TOKENIZE_ADD_BOS),
    VALUE(WI_TOKENIZE_PARSE_SPECIAL),
    VALUE(WI_DETOKENIZE_KEEP_SPECIAL),
    VALUE(WI_TOKEN_CONTROL),
    VALUE(WI_TOKEN_END),
    VALUE(WI_TOKEN_BYTE),
    VALUE(WI_TOKEN_UNUSED),
    VALUE(WI_TOKEN_USER),
    VALUE(WI_CHAT_ADD_GENERATION_PROMPT),
    VALUE(WI_KV_F16),
    VALUE(WI_KV_BF16),
    VALUE(WI_KV_F32),
    VALUE(WI_PREFIX_REUSE_AUTO),
    VALUE(WI_PREFIX_REUSE_OFF),
    VALUE(WI_PREFIX_REUSE_ON),
    VALUE(WI_EVENT_TOKEN),
    VALUE(WI_EVENT_END),
    VALUE(WI_EVENT_STOP),
    // clang-format on
};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) std::printf("cannot read %s\n", path.c_str());
  assert_true(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string header_without_comments() {
  std::string text = read_file(WI_SOURCE_DIR "/include/waveinfer.h");
  // Not by a regex: gcc's goes one call deeper with each character, and a comment of a page is too much.
  for (size_t at = 0; (at = text.find("/*", at)) != std::string::npos;)
    text.erase(at, text.find("*/", at) + 2 - at);
  return text;
}

std::set<std::string> matches(const std::string& text, const char* pattern) {
  std::set<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) found.insert((*at)[1]);
  return found;
}

std::set<std::string> header_functions() {
  return matches(header_without_comments(), R"(WI_API[^;(]*\b(wi_\w+)\()");
}

// What the dynamic linker sees of the library that this program was linked with.
std::set<std::string> exported_symbols() {
  Dl_info library{};
  assert_int_not_equal(dladdr(reinterpret_cast<void*>(&wi_version), &library), 0);
  const std::string command =
      std::string("nm -D --defined-only --without-symbol-versions '") + library.dli_fname + "'";
  FILE* pipe = popen(command.c_str(), "r");
  assert_non_null(pipe);
  std::set<std::string> symbols;
  char address[64], kind[8], name[512];
  while (std::fscanf(pipe, "%63s %7s %511s", address, kind, name) == 3) {
    if (kind[0] != 'A') symbols.insert(name);  // A: the version itself
  }
  assert_int_equal(pclose(pipe), 0);
  return symbols;
}

std::string current_abi() {
  std::string text =
      "# The ABI of libwaveinfer.so.2 as numbers. Lines are only ever added; written by manifest_abi_test "
      "--write.\n";
  for (const std::string& symbol : exported_symbols()) text += "symbol " + symbol + "\n";
  for (const Line& line : kLayout) text += line.text() + "\n";
  return text;
}

void expect_same(const char* what, const std::set<std::string>& left, const char* other,
                 const std::set<std::string>& right) {
  for (const std::string& name : left) {
    if (!right.count(name)) std::printf("%s: in %s, not in %s\n", name.c_str(), what, other);
  }
  for (const std::string& name : right) {
    if (!left.count(name)) std::printf("%s: in %s, not in %s\n", name.c_str(), other, what);
  }
  assert_true(left == right);
}

void library_exports_the_headers_functions_and_nothing_else(void**) {
  assert_true(header_functions().size() > 40);
  expect_same("the header", header_functions(), "the library", exported_symbols());
}

void version_script_lists_every_function(void**) {
  const std::set<std::string> listed =
      matches(read_file(WI_SOURCE_DIR "/src/waveinfer.map"), R"(\b(wi_\w+);)");
  expect_same("the header", header_functions(), "the version script", listed);
}

// Against a field that is added to the header and forgotten here.
void layout_covers_every_struct_field_and_value(void**) {
  const std::string header = header_without_comments();
  std::set<std::string> in_header, in_layout;
  const std::regex structs(R"(typedef struct (wi_\w+) \{([^}]*)\})");
  for (std::sregex_iterator at(header.begin(), header.end(), structs), end; at != end; ++at) {
    // A field that is a function counts by its name: int32_t (*read)(void* user);
    const std::string fields =
        std::regex_replace((*at)[2].str(), std::regex(R"(\(\*(\w+)\)\([^)]*\);)"), "$1;");
    for (const std::string& field : matches(fields, R"((\w+)(?:\[\w+\])?;)"))
      in_header.insert((*at)[1].str() + "." + field);
    in_header.insert((*at)[1]);
  }
  assert_true(matches(header, R"((enum \{))").empty());  // all have names, for bindings to use
  const std::regex enums(R"(enum \w+ \{([^}]*)\})");
  for (std::sregex_iterator at(header.begin(), header.end(), enums), end; at != end; ++at) {
    in_header.merge(matches((*at)[1], R"((WI_\w+) =)"));
  }
  in_header.insert("WI_ABI_VERSION");
  for (const Line& line : kLayout) in_layout.insert(line.name);
  assert_true(in_header.size() > 150);
  expect_same("the header", in_header, "this test", in_layout);
}

void abi_is_the_checked_in_one(void**) {
  std::set<std::string> wanted = matches(read_file(kManifest), R"(([^\n]+)\n)"),
                        got = matches(current_abi(), R"(([^\n]+)\n)");
  expect_same("the checked-in ABI", wanted, "this build", got);
}

void project_version_is_the_headers(void**) {
  const std::string project = read_file(WI_SOURCE_DIR "/CMakeLists.txt");
  assert_non_null(std::strstr(project.c_str(), ("project(waveinfer VERSION " WI_VERSION " ")));
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count == 2 && std::strcmp(arguments[1], "--write") == 0) {
    std::ofstream(kManifest) << current_abi();
    return 0;
  }
  const CMUnitTest tests[] = {
      cmocka_unit_test(library_exports_the_headers_functions_and_nothing_else),
      cmocka_unit_test(version_script_lists_every_function),
      cmocka_unit_test(layout_covers_every_struct_field_and_value),
      cmocka_unit_test(abi_is_the_checked_in_one),
      cmocka_unit_test(project_version_is_the_headers),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
