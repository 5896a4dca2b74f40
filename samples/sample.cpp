// The shared part of the samples: handles, text and tokens, files, options.
#include "sample.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sstream>
#include <stdexcept>
#include <sys/stat.h>
#include <unistd.h>

namespace sample {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

std::string read_all(std::FILE* file, const std::string& name) {
  std::string bytes;
  char block[1 << 16];
  while (size_t count = std::fread(block, 1, sizeof block, file)) bytes.append(block, count);
  if (std::ferror(file)) throw std::runtime_error("cannot read " + name + ": " + std::strerror(errno));
  return bytes;
}

}  // namespace

void throw_call_error(const wi_error& error) {
  std::string message = error.message;
  if (message.empty()) message = wi_status_name(error.code);
  throw std::runtime_error(message);
}

Runtime create_runtime(int threads, const std::string& device, const std::string& spill_folder,
                       uint64_t kv_budget_bytes) {
  auto params = sized<wi_runtime_params>();
  params.threads = threads;
  params.device = device.c_str();
  params.kv_budget_bytes = kv_budget_bytes;
  if (!spill_folder.empty()) params.spill_folder = spill_folder.c_str();
  wi_runtime* runtime = nullptr;
  call(wi_runtime_create, &params, &runtime);
  return Runtime(runtime, wi_runtime_release);
}

Model open_model(const Runtime& runtime, const std::string& path, int32_t weights, int32_t precision,
                 wi_cancel* cancel) {
  auto params = sized<wi_model_params>();
  params.precision = precision;
  params.weights = weights;
  wi_model* model = nullptr;
  call(wi_model_open, runtime.get(), path.c_str(), &params, cancel, &model);
  return Model(model, wi_model_release);
}

Session create_session(const Model& model, const wi_session_params& params) {
  wi_session* session = nullptr;
  call(wi_session_create, model.get(), &params, &session);
  return Session(session, wi_session_release);
}

bool warn_beyond_model(const char* program, const Model& model, uint64_t prompt_tokens,
                       uint64_t answer_tokens) {
  auto info = sized<wi_model_info>();
  call(wi_model_get_info, model.get(), &info);
  if (prompt_tokens + answer_tokens <= info.max_positions) return false;
  std::fprintf(stderr,
               "%s: warning: the model was made for %" PRIu64
               " tokens (max_positions), the prompt has %" PRIu64 " and the answer up to %" PRIu64 "\n",
               program, info.max_positions, prompt_tokens, answer_tokens);
  return true;
}

Session fork(const Session& session) {
  wi_session* copy = nullptr;
  call(wi_session_fork, session.get(), &copy);
  return Session(copy, wi_session_release);
}

Cancel create_cancel() {
  wi_cancel* cancel = nullptr;
  call(wi_cancel_create, &cancel);
  return Cancel(cancel, wi_cancel_release);
}

std::vector<int32_t> tokenize(const Model& model, std::string_view text, uint32_t flags) {
  std::vector<int32_t> tokens(text.size() + 16);  // a token is at least a byte
  uint64_t count = 0;
  call(wi_model_tokenize, model.get(), text.data(), text.size(), flags, tokens.data(), tokens.size(), &count);
  tokens.resize(count);
  return tokens;
}

std::string detokenize(const Model& model, const std::vector<int32_t>& tokens, uint32_t flags) {
  uint64_t length = 0;
  call(wi_model_detokenize, model.get(), tokens.data(), tokens.size(), flags, nullptr, 0, &length);
  std::string text(length, '\0');
  call(wi_model_detokenize, model.get(), tokens.data(), tokens.size(), flags, text.data(), length, &length);
  return text;
}

std::string read_file(const std::string& path) {
  File file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) throw std::runtime_error("cannot open " + path + ": " + std::strerror(errno));
  return read_all(file.get(), path);
}

std::string read_standard_input() { return read_all(stdin, "standard input"); }

void write_file(const std::string& path, std::string_view bytes) {
  OutputFile file(path);
  if (std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) {
    throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
  }
  file.close();
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  int file = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  made_ = file >= 0;
  if (!made_) file = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file >= 0) file_ = fdopen(file, "wb");
  if (!file_) throw std::runtime_error("cannot create " + path_ + ": " + std::strerror(errno));
}

OutputFile::~OutputFile() {
  if (!file_) return;
  std::fclose(file_);
  if (made_ && !begun_) unlink(path_.c_str());
}

std::FILE* OutputFile::get() {
  struct stat there {};
  const bool regular = fstat(fileno(file_), &there) == 0 && S_ISREG(there.st_mode);
  if (!begun_ && regular && ftruncate(fileno(file_), 0) != 0)
    throw std::runtime_error("cannot write " + path_ + ": " + std::strerror(errno));
  begun_ = true;
  return file_;
}

void OutputFile::close() {
  if (std::fclose(std::exchange(file_, nullptr)) != 0) {
    throw std::runtime_error("cannot write " + path_ + ": " + std::strerror(errno));
  }
}

std::vector<int32_t> parse_tokens(const std::string& text, const std::string& source) {
  std::vector<int32_t> tokens;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    tokens.push_back(static_cast<int32_t>(parse_integer("a token of " + source, word, 0, INT32_MAX)));
  }
  return tokens;
}

int32_t parse_kv_type(const std::string& name) {
  if (name == "f16") return WI_KV_F16;
  if (name == "bf16") return WI_KV_BF16;
  if (name == "f32") return WI_KV_F32;
  throw std::runtime_error("--kv is \"" + name + "\", must be f16, bf16 or f32");
}

int32_t parse_load(const std::string& name) {
  if (name == "mapped") return WI_WEIGHTS_MAPPED;
  if (name == "copied") return WI_WEIGHTS_COPIED;
  throw std::runtime_error("--load is \"" + name + "\", must be mapped or copied");
}

int32_t parse_precision(const std::string& name) {
  if (name == "fast") return WI_PRECISION_FAST;
  if (name == "high") return WI_PRECISION_HIGH;
  if (name == "f32") return WI_PRECISION_F32;
  if (name == "int8") return WI_PRECISION_INT8;
  throw std::runtime_error("--precision is \"" + name + "\", must be fast, high, f32 or int8");
}

int run_main(const char* name, const std::function<void()>& program) {
  try {
    program();
    errno = 0;
    const bool flushed = std::fflush(stdout) == 0;
    if (!flushed || std::ferror(stdout))  // an earlier write may have failed where the last one does not
      throw std::runtime_error(std::string("cannot write to standard output") +
                               (flushed ? "" : std::string(": ") + std::strerror(errno)));
    return 0;
  } catch (const std::exception& error) {
    std::string line = error.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    std::fprintf(stderr, "%s: %s\n", name, line.c_str());
    return 1;
  }
}

}  // namespace sample
