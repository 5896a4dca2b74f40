// wi_tokens: the token ids of standard input, one per line; with --decode, the text of such ids.
#include <cstdio>
#include <stdexcept>

#include "sample.h"

namespace {

using namespace sample;

struct Options {
  std::string model;
  uint32_t flags = WI_TOKENIZE_PARSE_SPECIAL;
  bool decode = false;
  bool help = false;
};

constexpr const char* kUsage =
    "wi_tokens: token ids of standard input, one per line\n"
    "  --model FILE  GGUF file, or folder with safetensors\n"
    "  --decode      the other way: text of the ids on standard input\n"
    "  --bos         put the model's BOS token first\n"
    "  --plain       special tokens spelled out in the text are ordinary text\n";

Options parse_options(int argument_count, char** arguments) {
  Options options;
  Arguments words(argument_count, arguments);
  for (std::string option; words.next(&option);) {
    if (option == "--model") {
      options.model = words.value(option);
    } else if (option == "--decode") {
      options.decode = true;
    } else if (option == "--bos") {
      options.flags |= WI_TOKENIZE_ADD_BOS;
    } else if (option == "--plain") {
      options.flags &= ~static_cast<uint32_t>(WI_TOKENIZE_PARSE_SPECIAL);
    } else if (option == "--help") {
      options.help = true;
    } else {
      throw std::runtime_error("unknown option " + option + " (--help lists them)");
    }
  }
  if (options.model.empty() && !options.help) {
    throw std::runtime_error("--model FILE is missing (--help lists the options)");
  }
  return options;
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
    Options options = parse_options(argument_count, arguments);
    if (options.help) {
      std::fputs(kUsage, stdout);
    } else {
      run(options);
    }
  });
}
