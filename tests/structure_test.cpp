// The direction of dependencies, read from the sources: bindings → waveinfer.h; capi → runtime → session →
// decode and prefill → pipeline → store and memory → kernels/*.h; buffer → memory; a backend knows only
// kernels/*.h.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/test.h"

namespace {

namespace fs = std::filesystem;

struct Include {
  std::string from;  // path from the root of the sources
  std::string what;
  bool quoted;
};

// What the files of a place may include. A name that ends in '/' is everything under a folder, one that
// ends in "/*.h" is a folder's own headers without its sub-folders. The first place that fits a file counts.
struct Place {
  const char* pattern;
  std::vector<const char*> may;
};

// The step of the model knows the operations and the model, not whose sequence it works on.
std::vector<const char*> step() {
  return {"src/decode.h",  "src/pipeline/row.h", "src/prefill.h", "src/layer.h",   "src/workspace.h",
          "src/cancel.h",  "src/stats.h",        "src/error.h",   "src/pipeline/", "src/model/",
          "src/sampling/", "src/store/",         "src/memory/",   "kernels/*.h"};
}

const std::vector<Place>& places() {
  static const std::vector<Place> table = {
      {"kernels/cpu/", {"kernels/*.h", "kernels/cpu/", "hwy/"}},
      {"kernels/cuda/", {"kernels/*.h", "kernels/cuda/"}},
      {"kernels/*", {"kernels/*.h"}},
      {"src/memory/",
       {"src/memory/", "src/error.h", "src/host_process.h", "src/no_signals.h", "kernels/types.h",
        "kernels/device.h"}},
      {"src/chat/", {"src/chat/", "src/error.h", "src/text_hash.h", "src/utf8.h", "src/text_range.h"}},
      {"src/files/",
       {"src/files/", "src/error.h", "src/host_process.h", "src/no_signals.h", "src/text_hash.h",
        "src/utf8.h", "kernels/types.h"}},
      {"src/tokenizer/",
       {"src/tokenizer/", "src/files/", "src/error.h", "src/text_hash.h", "src/utf8.h", "src/text_range.h"}},
      {"src/sampling/", {"src/sampling/", "src/error.h", "src/host_process.h", "kernels/*.h"}},
      {"src/model/",
       {"src/model/", "src/tokenizer/", "src/files/", "src/chat/", "src/memory/", "src/error.h",
        "kernels/*.h"}},
      {"src/store/",
       {"src/store/", "src/buffer/", "src/memory/", "src/error.h", "src/file_size_signal.h", "kernels/*.h"}},
      {"src/buffer/",
       {"src/buffer/", "src/memory/", "src/error.h", "src/file_size_signal.h", "src/host_process.h",
        "src/no_signals.h", "kernels/*.h"}},
      {"src/pipeline/",
       {"src/pipeline/", "src/store/", "src/buffer/", "src/memory/", "src/error.h", "src/stats.h",
        "src/cancel.h", "kernels/*.h"}},
      {"src/engine/", {"src/engine/", "src/*.h", "src/memory/"}},
      {"src/capi*",
       {"src/*.h", "src/engine/", "src/model/", "src/tokenizer/", "src/sampling/", "src/chat/",
        "waveinfer.h"}},
      {"src/error*", {"src/error.h", "src/c_locale.h", "waveinfer.h"}},
      {"src/c_locale.h", {}},
      {"src/host_process*", {"src/host_process.h", "src/error.h"}},
      {"src/file_size_signal.h", {}},
      {"src/utf8.h", {}},
      {"src/text_range.h", {}},
      {"src/decode*", step()},
      {"src/prefill*", step()},
      {"src/layer*", step()},
      {"src/workspace*", step()},
      {"src/*",
       {"src/*.h", "src/pipeline/", "src/model/", "src/tokenizer/", "src/sampling/", "src/chat/",
        "src/store/", "src/buffer/", "src/memory/", "kernels/*.h", "waveinfer.h"}},
      {"include/", {}},
      {"samples/", {"samples/", "waveinfer.h"}},
  };
  return table;
}

bool under(const std::string& path, const std::string& folder) { return path.starts_with(folder); }
bool directly_in(const std::string& path, const std::string& folder) {
  return under(path, folder) && path.find('/', folder.size()) == std::string::npos;
}

bool fits(const std::string& path, std::string pattern) {
  if (pattern.ends_with("/*.h")) {
    pattern.resize(pattern.size() - 4);
    return directly_in(path, pattern + "/") && path.ends_with(".h");
  }
  if (pattern.ends_with('*')) {
    pattern.pop_back();
    size_t slash = pattern.find_last_of('/') + 1;
    return directly_in(path, pattern.substr(0, slash)) && under(path, pattern);
  }
  return pattern.ends_with('/') ? under(path, pattern) : path == pattern;
}

std::vector<std::string> forbidden(const std::vector<Include>& includes) {
  std::vector<std::string> found;
  for (const Include& include : includes) {
    if (!include.quoted) continue;
    auto place = std::find_if(places().begin(), places().end(),
                              [&](auto& p) { return fits(include.from, p.pattern); });
    bool allowed = place != places().end() && std::any_of(place->may.begin(), place->may.end(),
                                                          [&](auto* m) { return fits(include.what, m); });
    // Nobody includes the outermost layer but itself.
    if (fits(include.what, "src/capi*") && !fits(include.from, "src/capi*")) allowed = false;
    if (!allowed) found.push_back(include.from + " includes \"" + include.what + "\"");
  }
  return found;
}

std::vector<std::string> device_headers(const std::vector<Include>& includes) {
  static const std::regex device(
      "(.*/)?(cuda|cublas|curand|cusparse|cusolver|cupti|nvml|nvrtc|nvtx|nccl|cub/|thrust/).*");
  std::vector<std::string> found;
  for (const Include& include : includes)
    if (!under(include.from, "kernels/cuda/") && std::regex_match(include.what, device))
      found.push_back(include.from + " includes " + include.what);
  return found;
}

// Ways to start a kernel that are not launch(): what stands between is what tests replace.
std::vector<std::string> other_launches(const std::string& file, const std::string& text) {
  static const std::regex start(R"(<<<|cudaLaunch\w*\(|cuLaunch\w*\()");
  if (file == "kernels/cuda/launch.h" || !std::regex_search(text, start)) return {};
  return {file + " starts a kernel without launch()"};
}

std::vector<std::string> unresolved(const std::vector<Include>& includes) {
  std::vector<std::string> found;
  const fs::path root = WI_SOURCE_DIR;
  for (const Include& include : includes) {
    if (!include.quoted || under(include.what, "hwy/") || under(include.from, "samples/")) continue;
    if (!fs::exists(include.what == "waveinfer.h" ? root / "include" / include.what : root / include.what))
      found.push_back(include.from + " includes \"" + include.what + "\", which is no path from the root");
  }
  return found;
}

// A file that reaches itself again, with the way it takes. Highway's foreach_target includes a source file
// from itself by macro, which is no line with a name and so is not seen here.
std::vector<std::string> cycles(const std::vector<Include>& includes) {
  std::map<std::string, std::vector<std::string>> graph;
  for (const Include& include : includes)
    if (include.quoted) graph[include.from].push_back(include.what);
  std::set<std::string> done;
  std::vector<std::string> way, found;
  auto visit = [&](auto& self, const std::string& file) -> void {
    if (auto again = std::find(way.begin(), way.end(), file); again != way.end()) {
      std::string text;
      for (; again != way.end(); ++again) text += *again + " → ";
      found.push_back(text + file);
      return;
    }
    if (!done.insert(file).second) return;
    way.push_back(file);
    if (auto edges = graph.find(file); edges != graph.end())
      for (const std::string& next : edges->second) self(self, next);
    way.pop_back();
  };
  for (const auto& [file, edges] : graph) visit(visit, file);
  return found;
}

// A kernel that does more before it waits for those before it than ask for what none of them writes (launch.h).
std::vector<std::string> out_of_turn(const std::string& from, const std::string& text) {
  const std::regex waits(R"(__global__[^{;]*\{\s*(\w+_ahead(<[^;]*>)?\([^;]*\);\s*)?in_turn\(\);)");
  std::vector<std::string> found;
  for (size_t at = text.find("__global__"); at != std::string::npos; at = text.find("__global__", at + 1))
    if (!std::regex_search(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(), waits,
                           std::regex_constants::match_continuous))
      found.push_back(from + ": a kernel begins before its turn: " + text.substr(at, 80));
  return found;
}

// In a script, what reads a pipe no further than it needs to (a `grep -q`): now and then its writer is killed by the
// pipe that is gone, and with pipefail the whole has failed.
std::vector<std::string> left_pipes(const std::string& from, const std::string& text) {
  static const std::regex early(R"([^|]\|\s*grep -[a-zA-Z]*q[^\n]*)");
  std::vector<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), early), end; at != end; ++at)
    found.push_back(from + " may leave a pipe before its end: " + at->str());
  return found;
}

const std::vector<Include>& sources() {
  static const std::vector<Include> all = [] {
    std::vector<Include> includes;
    const fs::path root = WI_SOURCE_DIR;
    const std::regex line_pattern(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"].*)");
    for (const char* folder : {"include", "src", "kernels", "samples"})
      for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
        const std::string extension = entry.path().extension().string();
        if (extension != ".h" && extension != ".cpp" && extension != ".c" && extension != ".cu" &&
            extension != ".cuh")
          continue;
        std::string from = fs::relative(entry.path(), root).generic_string();
        std::ifstream file(entry.path());
        std::smatch match;
        for (std::string line; std::getline(file, line);)
          if (std::regex_match(line, match, line_pattern)) {
            std::string what = match[2];
            // Samples are read alone, as an example of a program: their own headers stand beside them.
            const fs::path beside = (fs::path(from).parent_path() / what).lexically_normal();
            if (under(from, "samples/") && fs::exists(root / beside)) what = beside.generic_string();
            includes.push_back({from, what, match[1] == "\""});
          }
      }
    return includes;
  }();
  return all;
}

void assert_none(const std::vector<std::string>& found) {
  for (const std::string& line : found) std::printf("%s\n", line.c_str());
  assert_int_equal(found.size(), 0);
}

void sources_are_found(void**) {
  assert_true(sources().size() > 100);
  for (const char* folder : {"src/", "src/memory/", "src/buffer/", "src/chat/", "src/model/", "src/store/",
                             "src/pipeline/", "kernels/cpu/", "kernels/cuda/"})
    assert_true(
        std::any_of(sources().begin(), sources().end(), [&](auto& i) { return under(i.from, folder); }));
}

void dependencies_point_one_way(void**) { assert_none(forbidden(sources())); }
void only_the_cuda_backend_includes_cuda(void**) { assert_none(device_headers(sources())); }
void quoted_includes_are_paths_from_the_root(void**) { assert_none(unresolved(sources())); }
void no_file_includes_itself_in_a_circle(void**) { assert_none(cycles(sources())); }

// What a rule finds in each file under a folder whose name ends so.
template <class Rule>
std::vector<std::string> of_files(const fs::path& folder, const std::string& end, Rule rule) {
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(WI_SOURCE_DIR) / folder)) {
    if (!entry.is_regular_file() || !entry.path().string().ends_with(end)) continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto more = rule(fs::relative(entry.path(), WI_SOURCE_DIR).generic_string(), text);
    found.insert(found.end(), more.begin(), more.end());
  }
  return found;
}

void kernels_are_launched_in_one_place(void**) { assert_none(of_files("kernels/cuda", "", other_launches)); }
void kernels_wait_for_their_turn(void**) { assert_none(of_files("kernels/cuda", "", out_of_turn)); }

void scripts_read_pipes_to_their_end(void**) {
  for (const char* folder : {"cmake", "go", "java", "python", "rust", "samples", "tests"})
    assert_none(of_files(folder, ".sh", left_pipes));
}

void each_rule_can_be_broken(void**) {
  for (const Include& wrong : std::vector<Include>{
           {"kernels/ops.h", "src/error.h", true},
           {"kernels/cpu/attend.cpp", "src/error.h", true},
           {"kernels/cpu/attend.cpp", "kernels/cuda/device.cuh", true},
           {"kernels/cuda/attend.cu", "kernels/cpu/cpu.h", true},
           {"kernels/cuda/attend.cu", "src/error.h", true},
           {"kernels/cuda/attend.cu", "tests/cuda_emulation/emulation.h", true},
           {"kernels/ops.h", "kernels/cpu/cpu.h", true},
           {"src/runtime.cpp", "kernels/cpu/cpu.h", true},
           {"src/memory/workers.cpp", "kernels/ops.h", true},
           {"src/memory/workers.cpp", "src/stats.h", true},
           {"src/buffer/lru.cpp", "src/store/segment.h", true},
           {"src/buffer/lru.cpp", "src/stats.h", true},
           {"src/memory/workers.cpp", "src/buffer/replacement.h", true},
           {"src/model/model.h", "src/session.h", true},
           {"src/chat/chat_template.h", "src/tokenizer/tokenizer.h", true},
           {"src/model/model.h", "src/store/segment.h", true},
           {"src/store/segment.h", "src/pipeline/index.h", true},
           {"src/store/segment.h", "src/model/config.h", true},
           {"src/buffer/spill_file.h", "src/store/segment.h", true},
           {"src/host_process.cpp", "src/runtime.h", true},
           {"src/pipeline/index.h", "src/model/config.h", true},
           {"src/pipeline/index.h", "src/runtime.h", true},
           {"src/decode.cpp", "src/session.h", true},
           {"src/session.h", "src/capi_struct.h", true},
           {"src/error.h", "src/stats.h", true},
           {"src/capi.cpp", "src/store/segment.h", true},
           {"samples/wi_ask.cpp", "src/error.h", true},
           {"include/waveinfer.h", "src/error.h", true},
           {"elsewhere/new.cpp", "src/error.h", true},
       })
    assert_int_equal(forbidden({wrong}).size(), 1);
  for (const char* header :
       {"cuda_runtime.h", "cuda.h", "cublasLt.h", "cuda/std/atomic", "cub/cub.cuh", "nvml.h"}) {
    assert_int_equal(device_headers({{"src/runtime.cpp", header, false}}).size(), 1);
    assert_int_equal(device_headers({{"kernels/cuda/attend.cu", header, false}}).size(), 0);
  }
  assert_int_equal(device_headers({{"src/runtime.cpp", "src/current.h", true}}).size(), 0);
  for (const char* text : {"scale<<<grid, block>>>(out);", "cudaLaunchKernelEx(&config, scale, out);"}) {
    assert_int_equal(other_launches("kernels/cuda/scale.cu", text).size(), 1);
    assert_int_equal(other_launches("kernels/cuda/launch.h", text).size(), 0);
  }
  assert_int_equal(other_launches("kernels/cuda/scale.cu", "return launch(scale_kernel, 1, 32);").size(), 0);
  for (const char* text : {"__global__ void scale(float* out) {\n  *out = 1;\n  in_turn();\n}",
                           "__global__ void __launch_bounds__(32) scale(float* out) { *out = 1; }"})
    assert_int_equal(out_of_turn("scale.cu", text).size(), 1);
  for (const char* text :
       {"__global__ void __launch_bounds__(32) scale(float* out) {\n  in_turn();\n  *out = 1;\n}",
        "__global__ void scale(Args args) {\n  fetch_weights_ahead(args);\n  in_turn();\n}"})
    assert_int_equal(out_of_turn("scale.cu", text).size(), 0);
  assert_int_equal(left_pipes("test.sh", "ldd program | grep -Eq 'libc' || exit 1\n").size(), 1);
  assert_int_equal(left_pipes("test.sh", "grep -q '|' file || grep -q libc file | cat\n").size(), 0);
  assert_int_equal(unresolved({{"src/runtime.cpp", "runtime.h", true}}).size(), 1);
  assert_int_equal(cycles({{"a.h", "b.h", true}, {"b.h", "c.h", true}, {"c.h", "b.h", true}}).size(), 1);
  assert_int_equal(cycles({{"a.h", "b.h", true}, {"a.h", "c.h", true}, {"b.h", "c.h", true}}).size(), 0);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(sources_are_found),
      cmocka_unit_test(dependencies_point_one_way),
      cmocka_unit_test(only_the_cuda_backend_includes_cuda),
      cmocka_unit_test(quoted_includes_are_paths_from_the_root),
      cmocka_unit_test(no_file_includes_itself_in_a_circle),
      cmocka_unit_test(kernels_are_launched_in_one_place),
      cmocka_unit_test(kernels_wait_for_their_turn),
      cmocka_unit_test(scripts_read_pipes_to_their_end),
      cmocka_unit_test(each_rule_can_be_broken),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
