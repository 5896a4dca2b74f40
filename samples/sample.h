// What every sample shares: owning handles over the C ABI, its errors as C++ exceptions, and a main()
// that ends with one line on standard error. Includes waveinfer.h and nothing else of the library.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command_line.h"
#include "waveinfer.h"

namespace sample {

using Runtime = std::unique_ptr<wi_runtime, decltype(&wi_runtime_release)>;
using Model = std::unique_ptr<wi_model, decltype(&wi_model_release)>;
using Session = std::unique_ptr<wi_session, decltype(&wi_session_release)>;
using Cancel = std::unique_ptr<wi_cancel, decltype(&wi_cancel_release)>;

// A parameter struct that says its own size and leaves the rest to the defaults.
template <class Params>
Params sized() {
  Params params{};
  params.struct_size = sizeof(Params);
  return params;
}

// Calls a function of the ABI with a wi_error as its last argument; throws std::runtime_error with its
// message.
[[noreturn]] void throw_call_error(const wi_error& error);
template <class Function, class... Values>
void call(Function function, Values... values) {
  wi_error error = sized<wi_error>();
  if (function(values..., &error) != WI_OK) throw_call_error(error);
}

Runtime create_runtime(int threads, const std::string& device, const std::string& spill_folder = {},
                       uint64_t kv_budget_bytes = 0);
Model open_model(const Runtime& runtime, const std::string& path, int32_t weights = WI_WEIGHTS_MAPPED,
                 int32_t precision = WI_PRECISION_FAST, wi_cancel* cancel = nullptr);
Session create_session(const Model& model, const wi_session_params& params);
// A line on standard error, and true, where these are more tokens than the model was made for: the library goes on
// beyond them, the model may well write nonsense there.
bool warn_beyond_model(const char* program, const Model& model, uint64_t prompt_tokens,
                       uint64_t answer_tokens);
Session fork(const Session& session);
Cancel create_cancel();

std::vector<int32_t> tokenize(const Model& model, std::string_view text, uint32_t flags);
std::string detokenize(const Model& model, const std::vector<int32_t>& tokens, uint32_t flags);

std::string read_file(const std::string& path);
std::string read_standard_input();
void write_file(const std::string& path, std::string_view bytes);

// A file that must be written whole: close() throws what the system held back until then. What was there is gone only
// with the first get(), so that a file may be opened long before there is something to write.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  std::FILE* get();
  void close();

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
  bool made_ = false, begun_ = false;
};

// Token ids between white space; the error names the first word that is none.
std::vector<int32_t> parse_tokens(const std::string& text, const std::string& source);

int32_t parse_kv_type(const std::string& name);    // f16, bf16, f32 as WI_KV_*
int32_t parse_load(const std::string& name);       // mapped, copied as WI_WEIGHTS_*
int32_t parse_precision(const std::string& name);  // fast, high, f32, int8 as WI_PRECISION_*

// Runs the program; any exception becomes "name: what happened" in one line and exit status 1.
int run_main(const char* name, const std::function<void()>& program);

}  // namespace sample
