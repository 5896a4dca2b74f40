// The command line of wi_ask.
#include "ask_options.h"

#include <cstdint>
#include <stdexcept>

#include "sample.h"

namespace sample {
namespace {

constexpr const char* kUsage =
    "wi_ask: reads a document once, then answers each question from a fork of that session.\n"
    "  --model FILE         required: GGUF file, or folder with safetensors\n"
    "  --document FILE      required: UTF-8 text\n"
    "  --tokens N           read only its first N tokens\n"
    "  --question TEXT      required: what to ask; may be repeated\n"
    "  --expect TEXT        words that a right answer to the question before it holds\n"
    "  --policy P[,P...]    full or wave (default); several: one after the other, then compared\n"
    "  --budget R           share of the indexed tokens that wave reads exactly (default 0.018)\n"
    "  --sparse-read N      questions of at most N tokens read the document through the policy\n"
    "  --kv f16|bf16|f32    type of the KV cache (default f16)\n"
    "  --spill FOLDER       on a local disk, for what of the KV cache memory has no room for\n"
    "  --kv-fast R          with --spill or on a device: share of the KV cache in fast memory\n"
    "  --kv-budget MB       most memory for the KV cache (default: 80 % of what there is)\n"
    "  --load mapped|copied weights lie in the file (default), or in memory\n"
    "  --precision P        of the products: fast (default), high, f32 or int8 (WI_PRECISION_*)\n"
    "  --device D           where to run: cpu (default), cuda or cuda:N\n"
    "  --threads N          default: every core this process may use\n"
    "  --max-tokens N       longest answer (default 256)\n"
    "  --temperature T      0, the default, takes the likeliest token\n"
    "  --seed N             of the sampler\n"
    "  --raw                no chat template: document and question are joined as they are, and\n"
    "                       special tokens spelled out in them are recognised\n"
    "  --json               one object per question instead of text; its \"finish\" is \"stop\", or "
    "\"length\"\n"
    "                       where --max-tokens cut the answer off\n"
    "More tokens than the model was made for are warned of, not refused.\n"
    "Example: wi_ask --model m.gguf --document book.txt --question 'Who wrote the letter?' --policy "
    "full,wave\n";

void check_complete(const AskOptions& options);

}  // namespace

bool parse_ask_options(int argument_count, char** arguments, AskOptions& options) {
  CommandLine line(kUsage);
  line.text("--model", &options.model)
      .text("--document", &options.document)
      .integer("--tokens", &options.document_tokens, 1)
      .each("--question",
            [&](const std::string& text) {
              options.questions.push_back({text, ""});
            })
      .each("--expect",
            [&](const std::string& words) {
              if (options.questions.empty())
                throw std::runtime_error("--expect must follow the --question it answers");
              options.questions.back().expected = words;
            })
      .each("--policy",
            [&](const std::string& list) {
              for (auto& name : split_at_commas(list)) options.policies.push_back(name);
            })
      .text("--device", &options.device)
      .text("--kv", &options.kv_type)
      .text("--load", &options.load)
      .text("--precision", &options.precision)
      .number("--budget", &options.budget, 0, 1)
      .integer("--sparse-read", &options.sparse_read_tokens, 0)
      .text("--spill", &options.spill)
      .number("--kv-fast", &options.kv_fast, 0, 1)
      .integer("--kv-budget", &options.kv_budget_mb, 1, INT64_MAX >> 20)
      .integer("--max-tokens", &options.max_tokens, 1)
      .number("--temperature", &options.temperature, 0, 100)
      .integer("--seed", &options.seed, 0, INT64_MAX)
      .integer("--threads", &options.threads, 0, 1024)
      .flag("--raw", &options.raw)
      .flag("--json", &options.json);
  if (!line.parse(argument_count, arguments)) return false;
  check_complete(options);
  if (options.policies.empty()) options.policies.push_back("wave");
  return true;
}

namespace {

void check_complete(const AskOptions& options) {
  if (options.model.empty()) throw std::runtime_error("--model FILE is missing (--help lists the options)");
  if (options.document.empty())
    throw std::runtime_error("--document FILE is missing (--help lists the options)");
  // A device has a slow tier of its own, and refuses a folder.
  if (options.kv_fast > 0 && options.spill.empty() && options.device == "cpu")
    throw std::runtime_error("--kv-fast wants --spill FOLDER (--help lists the options)");
  if (options.questions.empty())
    throw std::runtime_error("--question TEXT is missing (--help lists the options)");
}

}  // namespace
}  // namespace sample
