// wi_logits: the logits of a whole prompt as little-endian f32, (tokens, vocab), to be compared with other
// programs. The prompt is prefilled in pieces, so that memory stays bounded whatever its length.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <unistd.h>

#include "sample.h"

namespace {

using namespace sample;

static_assert(std::endian::native == std::endian::little, "logits are written as they lie in memory");

constexpr size_t kPieceFloats = 16u << 20;  // 64 MB of logits at a time

struct Options {
  std::string model;
  std::string tokens_file;
  std::string text;
  std::string out;
  std::string device = "cpu";
  std::string policy = "full";
  std::string kv_type = "f16";
  std::string load = "mapped";
  std::string precision = "f32";
  int threads = 0;
  bool bos = false;
};

constexpr const char* kUsage =
    "wi_logits: logits of every token of a prompt, little-endian f32, (tokens, vocab)\n"
    "  --model FILE        required: GGUF file, or folder with safetensors\n"
    "  --tokens-file FILE  required, or --text: the prompt as token ids between white space, as wi_tokens "
    "writes them\n"
    "  --text TEXT         required, or --tokens-file: the prompt as text; special tokens spelled out in it "
    "are recognised\n"
    "  --bos               with --text: put the model's BOS token first\n"
    "  --out FILE          where to; default: standard output\n"
    "  --policy P          full (default) or wave\n"
    "  --kv f16|bf16|f32   type of the KV cache (default f16)\n"
    "  --load WHERE        weights lie: mapped (default), in the file, or copied, in memory\n"
    "  --precision P       of the products: f32 (default), high, fast or int8 (WI_PRECISION_*)\n"
    "  --device D          where to run: cpu (default), cuda or cuda:N\n"
    "  --threads N         default: every core this process may use\n"
    "Example: wi_logits --model m.gguf --text 'In the beginning' --out logits.f32\n";

bool parse_options(int argument_count, char** arguments, Options& options);
std::vector<int32_t> read_prompt(const Model& model, const Options& options);
Session create_session(const Model& model, const Options& options);
void write_logits(const Model& model, const Session& session, const std::vector<int32_t>& tokens,
                  const std::function<std::FILE*()>& out);

void run(const Options& options) {
  if (options.out.empty() && isatty(STDOUT_FILENO)) {
    throw std::runtime_error("the logits are binary: name a file with --out, or redirect standard output");
  }
  Runtime runtime = create_runtime(options.threads, options.device);
  Model model =
      open_model(runtime, options.model, parse_load(options.load), parse_precision(options.precision));
  std::vector<int32_t> tokens = read_prompt(model, options);
  Session session = create_session(model, options);
  if (options.out.empty()) {
    write_logits(model, session, tokens, [] { return stdout; });
  } else {
    OutputFile file(options.out);
    write_logits(model, session, tokens, [&] { return file.get(); });
    file.close();
  }
}

void write_logits(const Model& model, const Session& session, const std::vector<int32_t>& tokens,
                  const std::function<std::FILE*()>& out) {
  auto info = sized<wi_model_info>();
  call(wi_model_get_info, model.get(), &info);
  auto vocab = static_cast<size_t>(info.vocab);
  size_t piece = std::min(tokens.size(), std::max<size_t>(1, kPieceFloats / vocab));
  std::vector<float> logits(piece * vocab);  // (tokens of a piece, vocab)

  auto params = sized<wi_prefill_params>();
  params.logits = logits.data();
  params.logits_capacity = logits.size();
  for (size_t begin = 0; begin < tokens.size(); begin += piece) {
    size_t count = std::min(piece, tokens.size() - begin);
    call(wi_session_prefill, session.get(), tokens.data() + begin, count, &params, nullptr);
    if (std::fwrite(logits.data(), sizeof(float), count * vocab, out()) != count * vocab) {
      throw std::runtime_error(std::string("cannot write the logits: ") + std::strerror(errno));
    }
  }
}

std::vector<int32_t> read_prompt(const Model& model, const Options& options) {
  std::vector<int32_t> tokens;
  if (!options.tokens_file.empty()) {
    tokens = parse_tokens(read_file(options.tokens_file), options.tokens_file);
  } else {
    tokens =
        tokenize(model, options.text, WI_TOKENIZE_PARSE_SPECIAL | (options.bos ? WI_TOKENIZE_ADD_BOS : 0));
  }
  if (tokens.empty()) throw std::runtime_error("the prompt is empty");
  return tokens;
}

Session create_session(const Model& model, const Options& options) {
  auto policy = sized<wi_policy_params>();
  policy.name = options.policy.c_str();
  auto params = sized<wi_session_params>();
  params.kv_type = parse_kv_type(options.kv_type);
  params.policy = &policy;
  return sample::create_session(model, params);
}

bool parse_options(int argument_count, char** arguments, Options& options) {
  CommandLine line(kUsage);
  line.text("--model", &options.model)
      .text("--tokens-file", &options.tokens_file)
      .text("--text", &options.text)
      .flag("--bos", &options.bos)
      .text("--out", &options.out)
      .text("--policy", &options.policy)
      .text("--kv", &options.kv_type)
      .text("--load", &options.load)
      .text("--precision", &options.precision)
      .text("--device", &options.device)
      .integer("--threads", &options.threads, 0, 1024);
  if (!line.parse(argument_count, arguments)) return false;
  if (options.model.empty()) throw std::runtime_error("--model FILE is missing (--help lists the options)");
  if (options.tokens_file.empty() == options.text.empty()) {
    throw std::runtime_error("give the prompt with either --tokens-file FILE or --text TEXT");
  }
  return true;
}

}  // namespace

int main(int argument_count, char** arguments) {
  return run_main("wi_logits", [&] {
    Options options;
    if (parse_options(argument_count, arguments, options)) run(options);
  });
}
