// wi_plant: makes the document of the sample: a real text of N tokens or a line more, with a few invented
// facts between its lines, spread evenly over its depth. Same input, same document.
#include <algorithm>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "sample.h"

namespace {

using namespace sample;

struct Fact {
  std::string attribute, entity, value;
  std::string statement() const { return "The " + attribute + " of " + entity + " is " + value + "."; }
};

// A few tokens more, because text cut at other places falls into other tokens.
constexpr size_t kSeamTokens = 64;

struct Options {
  std::string model, text, facts, out;
  int64_t tokens = 0;
  int64_t skip_bytes = 0;
};

constexpr const char* kUsage =
    "wi_plant: a document of N tokens or a little more out of a text, with facts planted at even depths\n"
    "  --model FILE    required: whose tokens to count\n"
    "  --text FILE     required: the text\n"
    "  --facts FILE    required: one per line: attribute | entity | value\n"
    "  --tokens N      required: least length of the document, facts included\n"
    "  --skip BYTES    start this far into the text, at the next line\n"
    "  --out FILE      required: where to\n"
    "Example: wi_plant --model m.gguf --text book.txt --facts facts.txt --tokens 32768 --out document.txt\n";

bool parse_options(int argument_count, char** arguments, Options& options);
std::vector<Fact> read_facts(const std::string& path);
Fact parse_fact(const std::string& line);
std::string first_lines(const Model& model, const std::string& text, size_t count);
std::string plant(const std::string& text, const std::vector<Fact>& facts);

void run(const Options& options) {
  Runtime runtime = create_runtime(1, "cpu");
  Model model = open_model(runtime, options.model);
  std::vector<Fact> facts = read_facts(options.facts);

  std::string text = read_file(options.text);
  size_t start = options.skip_bytes > 0 ? text.find('\n', options.skip_bytes) : 0;
  if (start == std::string::npos) throw std::runtime_error("--skip leaves nothing of " + options.text);
  text.erase(0, options.skip_bytes > 0 ? start + 1 : 0);

  size_t fact_tokens = 0;
  for (const Fact& fact : facts) fact_tokens += tokenize(model, fact.statement() + "\n", 0).size();
  auto wanted = static_cast<size_t>(options.tokens);
  if (wanted <= 2 * fact_tokens) {
    throw std::runtime_error("--tokens is " + std::to_string(wanted) + ", but the facts alone take " +
                             std::to_string(fact_tokens) + " tokens");
  }
  write_file(options.out, plant(first_lines(model, text, wanted - fact_tokens + kSeamTokens), facts));
}

// Whole lines from the start that have at least this many tokens.
std::string first_lines(const Model& model, const std::string& text, size_t count) {
  std::vector<int32_t> tokens = tokenize(model, text, 0);
  if (tokens.size() < count) {
    throw std::runtime_error("the text has " + std::to_string(tokens.size()) + " tokens, " +
                             std::to_string(count) + " are needed");
  }
  tokens.resize(count);
  size_t length = detokenize(model, tokens, 0).size();
  size_t line_end = std::min(text.find('\n', length), text.size() - 1);
  return text.substr(0, line_end + 1);
}

// Fact i of n stands at the first start of a line after (2 i + 1) / (2 n) of the text.
std::string plant(const std::string& text, const std::vector<Fact>& facts) {
  std::string document;
  size_t done = 0;
  for (size_t i = 0; i < facts.size(); i++) {
    size_t depth = text.size() * (2 * i + 1) / (2 * facts.size());
    size_t line = text.find('\n', depth) + 1;
    document.append(text, done, line - done);
    document += facts[i].statement() + "\n";
    done = line;
  }
  return document.append(text, done);
}

std::vector<Fact> read_facts(const std::string& path) {
  std::vector<Fact> facts;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line[0] != '#') facts.push_back(parse_fact(line));
  }
  if (facts.empty()) throw std::runtime_error(path + " holds no facts");
  return facts;
}

Fact parse_fact(const std::string& line) {
  const std::string bar = " | ";
  size_t first = line.find(bar);
  size_t second = first == std::string::npos ? first : line.find(bar, first + bar.size());
  if (second == std::string::npos) {
    throw std::runtime_error("a fact is not \"attribute | entity | value\": " + line);
  }
  size_t entity = first + bar.size();
  return {line.substr(0, first), line.substr(entity, second - entity), line.substr(second + bar.size())};
}

bool parse_options(int argument_count, char** arguments, Options& options) {
  CommandLine line(kUsage);
  line.text("--model", &options.model)
      .text("--text", &options.text)
      .text("--facts", &options.facts)
      .integer("--tokens", &options.tokens, 1)
      .integer("--skip", &options.skip_bytes, 0, INT64_MAX)
      .text("--out", &options.out);
  if (!line.parse(argument_count, arguments)) return false;
  if (options.model.empty() || options.text.empty() || options.facts.empty() || options.out.empty() ||
      options.tokens == 0) {
    throw std::runtime_error(
        "--model, --text, --facts, --tokens and --out are all needed (--help explains them)");
  }
  return true;
}

}  // namespace

int main(int argument_count, char** arguments) {
  return run_main("wi_plant", [&] {
    Options options;
    if (parse_options(argument_count, arguments, options)) run(options);
  });
}
