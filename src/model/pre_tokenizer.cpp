// The named patterns and the PCRE2 calls. The names are those of GGUF's tokenizer.ggml.pre; the patterns are
// the tokenizer.json ones of the models behind them.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/model/pre_tokenizer.h"

#include <array>
#include <initializer_list>
#include <pcre2.h>

#include "src/error.h"
#include "src/model/pattern_dialect.h"
#include "src/model/utf8.h"

namespace wi {
namespace {

// A step is at least one character looked at. Real patterns need a few for each character of the longest run.
constexpr uint32_t kMatchSteps = 1'000'000'000;
constexpr size_t kJitStackStart = 32 << 10, kJitStackLimit = 16 << 20;

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDigits3 = R"(\p{N}{1,3})";
constexpr const char* kCjkKana = R"([一-龥぀-ゟ゠-ヿ]+)";
constexpr const char* kDeepseekV3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kNewline = R"([\r\n])";
constexpr const char* kDeepseekLetters =
    R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)";
constexpr const char* kDeepseekPunctuation = R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)";
// \s+$ itself would scan a run of spaces again from each of its bytes. Newlines are words already, so a match
// ends where the text does, and only the run's first byte can begin it.
constexpr const char* kSpacesAtEnd = R"((?<!\s)\s+$)";
constexpr const char* kDeepseekCjk = R"([一-龥ࠀ-一가-퟿]+)";
constexpr const char* kNumber = R"(\p{N}+)";
constexpr const char* kDigit = R"(\p{N})";

struct Family {
  std::initializer_list<const char*> patterns;
  bool ignores_merges;
  std::initializer_list<std::string_view> names;
};

const Family* find_family(std::string_view name) {
  static const Family families[] = {
      {{kLlama3},
       true,
       {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}},
      {{kLlama3}, false, {"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}},
      {{kQwen2}, false, {"qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "grok-2"}},
      {{kGpt2},
       false,
       {"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "gigachat",
        "a.x-4.0", "mellum"}},
      {{kDigit, kGpt2},
       false,
       {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}},
      {{kGpt4o}, false, {"gpt-4o", "llama4"}},
      {{kTekken}, true, {"tekken"}},
      {{kDigits3, kCjkKana, kDeepseekV3}, false, {"deepseek-v3", "hunyuan-dense"}},
      {{kNewline, kDeepseekLetters, kDeepseekPunctuation, kSpacesAtEnd, kDeepseekCjk, kNumber},
       false,
       {"deepseek-llm"}},
      {{kNewline, R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekCjk, kDigit}, false, {"deepseek-coder"}},
  };
  for (const Family& family : families)
    for (std::string_view known : family.names)
      if (known == name) return &family;
  return nullptr;
}

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

PreTokenizer PreTokenizer::named(std::string_view name) {
  const Family* family = find_family(name);
  check(family != nullptr, WI_E_UNSUPPORTED, "pre_tokenizer \"", name, "\" is not one this library knows");
  PreTokenizer result;
  for (const char* pattern : family->patterns) result.add_pattern(pattern);
  result.ignores_merges_ = family->ignores_merges;
  return result;
}

PreTokenizer PreTokenizer::from_patterns(std::string_view patterns) {
  PreTokenizer result;
  for (size_t begin = 0; begin <= patterns.size();) {
    const size_t end = std::min(patterns.find('\0', begin), patterns.size());
    result.add_pattern(patterns.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

void PreTokenizer::add_pattern(std::string_view pattern) {
  const std::string translated = to_pcre2(pattern);
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  check(context != nullptr, WI_E_MEMORY, "no memory to compile the pre-tokenizer pattern");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  PCRE2_SIZE offset = 0;
  Code compiled(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code,
                              &offset, context.get()));
  check(compiled != nullptr, WI_E_FORMAT, "pre-tokenizer pattern does not compile: ", message_of(code),
        " at byte ", offset, " of ", translated);
  // Where the JIT is not to be had, pcre2_match interprets: slower, the same words.
  pcre2_jit_compile(compiled.get(), PCRE2_JIT_COMPLETE);
  stages_.push_back(std::move(compiled));
}

void PreTokenizer::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

struct PreTokenizer::Matcher::Resources {
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr);
  ~Resources() {
    pcre2_jit_stack_free(stack);
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
};

PreTokenizer::Matcher::Matcher(const PreTokenizer& owner) : owner_(owner), resources_(new Resources) {
  check(resources_->context && resources_->data && resources_->stack, WI_E_MEMORY,
        "no memory for the pre-tokenizer's match data");
  pcre2_set_match_limit(resources_->context, kMatchSteps);
  pcre2_jit_stack_assign(resources_->context, nullptr, resources_->stack);
}

PreTokenizer::Matcher::~Matcher() = default;

PreTokenizer::Matcher::Found PreTokenizer::Matcher::find(size_t stage, std::string_view text, size_t from,
                                                         size_t last_end) {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (size_t at = from; at <= text.size(); at = character_end(text, at)) {
    const int code = pcre2_match(owner_.stages_[stage].get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK,
                                 resources_->data, resources_->context);
    if (code == PCRE2_ERROR_NOMATCH) break;
    check(code != PCRE2_ERROR_NOMEMORY, WI_E_MEMORY, "no memory to match the pre-tokenizer pattern");
    check(code >= 0, WI_E_UNSUPPORTED, "pre-tokenizer pattern failed on this text near byte ", at, ": ",
          message_of(code));
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(resources_->data);
    // An empty match just behind the last one is none; elsewhere it cuts the text in two.
    if (span[1] > span[0] || span[0] != last_end) return {span[0], span[1], true};
  }
  return {text.size(), text.size(), false};
}

size_t PreTokenizer::Matcher::character_end(std::string_view text, size_t at) {
  return at < text.size() ? at + utf8_length(text, at) : at + 1;
}

}  // namespace wi
