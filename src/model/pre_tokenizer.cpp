// The named patterns and the PCRE2 calls. The names are those of GGUF's tokenizer.ggml.pre; the patterns are
// the tokenizer.json ones of the models behind them.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/model/pre_tokenizer.h"

#include <algorithm>
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
constexpr const char* kCjkKana = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr const char* kDeepseekV3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kNewline = R"([\r\n])";
// The cased letters of an older Unicode, as the file lists them.
constexpr const char* kDeepseekLetters =
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A})"
    R"(\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556})"
    R"(\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF})"
    R"(\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D})"
    R"(\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D})"
    R"(\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC})"
    R"(\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC})"
    R"(\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128})"
    R"(\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183})"
    R"(\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D})"
    R"(\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF})"
    R"(\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F})"
    R"(\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2})"
    R"(\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+)";
constexpr const char* kDeepseekPunctuation =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
// \s+$ as files write it would scan a long run of spaces again from each of its bytes. A run has one match at
// most, and that begins where the run does.
constexpr const char* kSpacesAtEndWritten = R"(\s+$)";
constexpr const char* kSpacesAtEnd = R"((?<!\s)\s+$)";
constexpr const char* kDeepseekCjk = R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
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

bool PreTokenizer::ignores_merges(std::string_view name) {
  const Family* family = find_family(name);
  return family && family->ignores_merges;
}

PreTokenizer PreTokenizer::from_patterns(std::string_view patterns) {
  PreTokenizer result;
  for (size_t begin = 0; begin <= patterns.size();) {
    const size_t end = std::min(patterns.find('\0', begin), patterns.size());
    const std::string_view pattern = patterns.substr(begin, end - begin);
    result.add_pattern(pattern == kSpacesAtEndWritten ? kSpacesAtEnd : pattern);
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
