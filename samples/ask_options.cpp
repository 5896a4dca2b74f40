// The command line of wi_ask.
#include "ask_options.h"

#include <cstdint>
#include <stdexcept>

#include "sample.h"

namespace sample {
namespace {

void check_complete(const AskOptions& options);
std::vector<std::string> split_at_commas(const std::string& list);

}  // namespace

AskOptions parse_ask_options(int argument_count, char** arguments) {
  AskOptions options;
  Arguments words(argument_count, arguments);
  for (std::string option; words.next(&option);) {
    auto integer = [&](int64_t least, int64_t most) {
      return parse_integer(option, words.value(option), least, most);
    };
    auto number = [&](double least, double most) {
      return parse_number(option, words.value(option), least, most);
    };
    if (option == "--model") {
      options.model = words.value(option);
    } else if (option == "--document") {
      options.document = words.value(option);
    } else if (option == "--tokens") {
      options.document_tokens = integer(1, INT32_MAX);
    } else if (option == "--question") {
      options.questions.push_back({words.value(option), ""});
    } else if (option == "--expect") {
      if (options.questions.empty())
        throw std::runtime_error("--expect must follow the --question it answers");
      options.questions.back().expected = words.value(option);
    } else if (option == "--policy") {
      for (auto& name : split_at_commas(words.value(option))) options.policies.push_back(name);
    } else if (option == "--device") {
      options.device = words.value(option);
    } else if (option == "--kv") {
      options.kv_type = words.value(option);
    } else if (option == "--budget") {
      options.budget = number(0, 1);
    } else if (option == "--sparse-read") {
      options.sparse_read_tokens = integer(0, INT32_MAX);
    } else if (option == "--max-tokens") {
      options.max_tokens = integer(1, INT32_MAX);
    } else if (option == "--temperature") {
      options.temperature = number(0, 1000);
    } else if (option == "--seed") {
      options.seed = integer(0, INT64_MAX);
    } else if (option == "--threads") {
      options.threads = static_cast<int>(integer(0, 4096));
    } else if (option == "--raw") {
      options.raw = true;
    } else if (option == "--json") {
      options.json = true;
    } else if (option == "--help") {
      options.help = true;
    } else {
      throw std::runtime_error("unknown option " + option + " (--help lists them)");
    }
  }
  if (!options.help) check_complete(options);
  if (options.policies.empty()) options.policies.push_back("wave");
  return options;
}

const char* ask_usage() {
  return "wi_ask: reads a document once, then answers each question from a fork of that session.\n"
         "  --model FILE         GGUF file, or folder with safetensors\n"
         "  --document FILE      UTF-8 text\n"
         "  --tokens N           read only its first N tokens\n"
         "  --question TEXT      what to ask; may be repeated\n"
         "  --expect TEXT        words that a right answer to the question before it holds\n"
         "  --policy P[,P...]    full or wave (default); several: one after the other, then compared\n"
         "  --budget R           share of the indexed tokens that wave reads exactly (default 0.018)\n"
         "  --sparse-read N      questions of at most N tokens read the document through the policy\n"
         "  --kv f16|bf16|f32    type of the KV cache (default f16)\n"
         "  --device cpu         where to run\n"
         "  --threads N          default: every core this process may use\n"
         "  --max-tokens N       longest answer (default 256)\n"
         "  --temperature T      0, the default, takes the likeliest token\n"
         "  --seed N             of the sampler\n"
         "  --raw                no chat template: document and question are joined as they are, and\n"
         "                       special tokens spelled out in them are recognised\n"
         "  --json               one object per question instead of text\n";
}

namespace {

void check_complete(const AskOptions& options) {
  if (options.model.empty()) throw std::runtime_error("--model FILE is missing (--help lists the options)");
  if (options.document.empty())
    throw std::runtime_error("--document FILE is missing (--help lists the options)");
  if (options.questions.empty())
    throw std::runtime_error("--question TEXT is missing (--help lists the options)");
}

std::vector<std::string> split_at_commas(const std::string& list) {
  std::vector<std::string> parts(1);
  for (char letter : list) {
    if (letter == ',') {
      parts.emplace_back();
    } else {
      parts.back() += letter;
    }
  }
  return parts;
}

}  // namespace
}  // namespace sample
