// The named patterns and the PCRE2 calls. The names are those of GGUF's tokenizer.ggml.pre; the patterns are
// the tokenizer.json ones of the models behind them.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/tokenizer/pre_tokenizer.h"

#include <array>
#include <initializer_list>
#include <pcre2.h>

#include "src/error.h"
#include "src/tokenizer/pattern_dialect.h"
#include "src/utf8.h"

namespace wi {
namespace {

// Known patterns: they backtrack over a run of white space at most, so this is the longest run.
constexpr uint32_t kMatchSteps = 1'000'000'000;
// The others: an item of the pattern tried is a step, and so is a byte that it moved on or back. Real
// patterns take about ten for a byte of text.
constexpr uint64_t kFreeSteps = 1'000'000, kStepsPerByte = 256;
constexpr uint64_t kStepsPerLook = 4096;  // at the cancel flag
// What a file's patterns may be. The longest of a real model has 2,000 bytes.
constexpr size_t kLongestPattern = 32 << 10, kMostPatterns = 32;
constexpr uint32_t kDeepestParentheses = 100;
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
constexpr const char* kLetters = R"(\s?\p{L}+)";
constexpr const char* kPunctuation = R"(\s?\p{P}+)";
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
      {{kTekkenPattern}, true, {"tekken"}},
      {{kDigits3, kCjkKana, kDeepseekV3}, false, {"deepseek-v3", "hunyuan-dense"}},
      {{kNewline, kDeepseekLetters, kDeepseekPunctuation, kSpacesAtEnd, kDeepseekCjk, kNumber},
       false,
       {"deepseek-llm"}},
      {{kNewline, kLetters, kPunctuation, kDeepseekCjk, kDigit}, false, {"deepseek-coder"}},
  };
  for (const Family& family : families)
    for (std::string_view known : family.names)
      if (known == name) return &family;
  return nullptr;
}

bool is_known(std::string_view pattern) {
  for (const char* known : {kLlama3, kQwen2, kGpt2, kGpt4o, kTekkenPattern, kDigits3, kCjkKana, kDeepseekV3,
                            kNewline, kDeepseekLetters, kDeepseekPunctuation, kSpacesAtEnd, kDeepseekCjk,
                            kNumber, kDigit, kLetters, kPunctuation})
    if (pattern == known) return true;
  return false;
}

std::string shortened(std::string_view pattern) {
  constexpr size_t kShown = 100;
  return pattern.size() <= kShown ? std::string(pattern) : std::string(pattern.substr(0, kShown)) + "…";
}

// What the metered patterns have taken of a text's steps.
struct Meter {
  uint64_t steps = 0, granted = 0, next_look = kStepsPerLook;
  size_t position = 0;
  const Poll* poll = nullptr;

  static int callout(pcre2_callout_block* block, void* data) {
    Meter& meter = *static_cast<Meter*>(data);
    const size_t position = block->current_position;
    meter.steps += 1 + (position > meter.position ? position - meter.position : meter.position - position);
    meter.position = position;
    if (meter.steps < meter.next_look) return 0;
    meter.next_look = meter.steps + kStepsPerLook;
    return meter.steps > meter.granted || meter.poll->fired() ? PCRE2_ERROR_CALLOUT : 0;
  }
};

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
  for (const char* pattern : family->patterns)
    result.add_step({pattern, SplitStep::Behavior::isolated, false}, true);
  result.ignores_merges_ = family->ignores_merges;
  return result;
}

bool PreTokenizer::ignores_merges(std::string_view name) {
  const Family* family = find_family(name);
  return family && family->ignores_merges;
}

PreTokenizer PreTokenizer::from_steps(std::span<const SplitStep> steps) {
  check(steps.size() <= kMostPatterns, WI_E_UNSUPPORTED, "the pre-tokenizer has ", steps.size(),
        " patterns, at most ", kMostPatterns, " are supported");
  PreTokenizer result;
  for (SplitStep step : steps) {
    if (step.pattern == kSpacesAtEndWritten) step.pattern = kSpacesAtEnd;
    check(step.pattern.size() <= kLongestPattern, WI_E_UNSUPPORTED, "pre-tokenizer pattern ",
          shortened(step.pattern), " has ", step.pattern.size(), " bytes, at most ", kLongestPattern,
          " are supported");
    result.add_step(step, is_known(step.pattern));
  }
  return result;
}

void PreTokenizer::add_step(const SplitStep& step, bool known) {
  const std::string translated = to_pcre2(step.pattern);
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  check(context != nullptr, WI_E_MEMORY, "no memory to compile the pre-tokenizer pattern");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), kDeepestParentheses);
  int code = 0;
  PCRE2_SIZE offset = 0;
  Stage stage{nullptr, shortened(step.pattern), step.behavior, step.invert, !known};
  stage.code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                                     (stage.metered ? PCRE2_AUTO_CALLOUT : 0),
                                 &code, &offset, context.get()));
  check(stage.code != nullptr || code != PCRE2_ERROR_HEAP_FAILED, WI_E_MEMORY,
        "no memory to compile the pre-tokenizer pattern");
  check(stage.code != nullptr, WI_E_FORMAT, "pre-tokenizer pattern does not compile: ", message_of(code),
        " at byte ", offset, " of ", shortened(translated));
  // Where the JIT is not to be had, pcre2_match interprets: slower, the same words.
  pcre2_jit_compile(stage.code.get(), PCRE2_JIT_COMPLETE);
  stages_.push_back(std::move(stage));
}

void PreTokenizer::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

struct PreTokenizer::Matcher::Resources {
  pcre2_match_context* known = pcre2_match_context_create(nullptr);
  pcre2_match_context* metered = pcre2_match_context_create(nullptr);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_jit_stack* stack = nullptr;  // null: 32 KB of the thread's own, which all but few texts do with
  Meter meter;

  // To map it and give it back would have each call wait for page faults of the process's other threads.
  void use_large_stack() {
    stack = pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr);
    check(stack != nullptr, WI_E_MEMORY, "no memory for the pre-tokenizer's stack");
    for (pcre2_match_context* context : {known, metered}) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Resources() {
    pcre2_jit_stack_free(stack);
    pcre2_match_data_free(data);
    pcre2_match_context_free(metered);
    pcre2_match_context_free(known);
  }
};

PreTokenizer::Matcher::Matcher(const PreTokenizer& owner, size_t text_bytes, Poll& poll)
    : owner_(owner), poll_(poll), resources_(new Resources) {
  Resources& use = *resources_;
  check(use.known && use.metered && use.data, WI_E_MEMORY, "no memory for the pre-tokenizer's match data");
  use.meter.granted = kFreeSteps + kStepsPerByte * text_bytes;
  use.meter.poll = &poll;
  pcre2_set_match_limit(use.known, kMatchSteps);
  pcre2_set_match_limit(use.metered,
                        UINT32_MAX);  // it starts anew for each character that a match may begin at
  pcre2_set_callout(use.metered, &Meter::callout, &use.meter);
}

PreTokenizer::Matcher::~Matcher() = default;

PreTokenizer::Matcher::Found PreTokenizer::Matcher::find(size_t stage, std::string_view text, size_t from,
                                                         size_t last_end) {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const Stage& use = owner_.stages_[stage];
  Meter& meter = resources_->meter;
  for (size_t at = from; at <= text.size(); at = character_end(text, at)) {
    const uint64_t steps = meter.steps;
    const auto match = [&] {
      meter.steps = steps;
      meter.position = at;
      return pcre2_match(use.code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, resources_->data,
                         use.metered ? resources_->metered : resources_->known);
    };
    int code = match();
    if (code == PCRE2_ERROR_JIT_STACKLIMIT && !resources_->stack) {
      resources_->use_large_stack();
      code = match();
    }
    if (code == PCRE2_ERROR_NOMATCH) {
      poll_(text.size() - at);
      break;
    }
    if (code == PCRE2_ERROR_CALLOUT) {
      check(!poll_.fired(), WI_E_CANCELLED, "cancelled");
      fail(WI_E_UNSUPPORTED, "pre-tokenizer pattern ", use.pattern, " takes more than ", meter.granted,
           " steps on this text, and is given up");
    }
    check(code != PCRE2_ERROR_NOMEMORY, WI_E_MEMORY, "no memory to match the pre-tokenizer pattern");
    check(code >= 0, WI_E_UNSUPPORTED, "pre-tokenizer pattern ", use.pattern,
          " failed on this text near byte ", at, ": ", message_of(code));
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(resources_->data);
    poll_(span[1] - at + 1);
    // An empty match just behind the last one is none; elsewhere it cuts the text in two.
    if (span[1] > span[0] || span[0] != last_end) return {span[0], span[1], true};
  }
  return {text.size(), text.size(), false};
}

size_t PreTokenizer::Matcher::character_end(std::string_view text, size_t at) {
  return at < text.size() ? at + utf8_length(text, at) : at + 1;
}

}  // namespace wi
