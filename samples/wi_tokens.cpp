// wi_tokens: the token ids of standard input, one per line; with --decode, the text of such ids.
#include <cstdio>
#include <stdexcept>

#include "sample.h"

namespace {

using namespace sample;

struct Options {
  std::string model;
  uint32_t flags = 0;
  bool decode = false;
};

constexpr const char* kUsage =
    "wi_tokens: token ids of standard input, one per line\n"
    "  --model FILE  required: GGUF file, or folder with safetensors\n"
    "  --decode      the other way: text of the ids on standard input\n"
    "  --bos         put the model's BOS token first\n"
    "  --plain       special tokens spelled out in the text are ordinary text\n"
    "Example: echo Hello | wi_tokens --model m.gguf --bos\n";

bool parse_options(int argument_count, char** arguments, Options& options) {
  CommandLine line(kUsage);
  bool bos = false, plain = false;
  line.text("--model", &options.model)
      .flag("--decode", &options.decode)
      .flag("--bos", &bos)
      .flag("--plain", &plain);
  if (!line.parse(argument_count, arguments)) return false;
  if (options.model.empty()) throw std::runtime_error("--model FILE is missing (--help lists the options)");
  if (bos) options.flags |= WI_TOKENIZE_ADD_BOS;
  if (!plain) options.flags |= WI_TOKENIZE_PARSE_SPECIAL;
  return true;
}

void run(const Options& options) {
  Runtime runtime = create_runtime(1, "cpu");
  Model model = open_model(runtime, options.model);
  std::string input = read_standard_input();
  std::string output;
  if (options.decode) {
    output = detokenize(model, parse_tokens(input, "standard input"), WI_DETOKENIZE_KEEP_SPECIAL);
  } else {
    for (int32_t token : tokenize(model, input, options.flags)) output += std::to_string(token) + '\n';
  }
  std::fwrite(output.data(), 1, output.size(), stdout);
}

}  // namespace

int main(int argument_count, char** arguments) {
  return run_main("wi_tokens", [&] {
    Options options;
    if (parse_options(argument_count, arguments, options)) run(options);
  });
}
