// Cuts text into the words that BPE works on, with the regular expressions that model files name or carry.
// PCRE2 runs them compiled (JIT); what its dialect reads differently from the files' (Oniguruma, Rust) is
// rewritten or refused, never guessed. Expressions that are not among the known ones are metered: each step
// of theirs is counted, and there are only so many for a text of so many bytes.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/tokenizer/poll.h"

struct pcre2_real_code_8;

namespace wi {

// One cut of the text: what becomes of the matches and of what lies between them.
struct SplitStep {
  enum class Behavior {
    isolated,         // both are words
    removed,          // only what lies between
    merged_previous,  // a match belongs to what is before it
    merged_next,      // or behind it
    contiguous        // matches in a row are one word
  };
  std::string pattern;
  Behavior behavior = Behavior::isolated;
  bool invert = false;  // matches and what lies between them change places
  bool operator==(const SplitStep&) const = default;
};

// The words of Mistral's newer tokenizers.
inline constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

class PreTokenizer {
 public:
  // By the name that GGUF files use ("llama-bpe", "qwen2", …). Throws WI_E_UNSUPPORTED for an unknown one.
  static PreTokenizer named(std::string_view name);
  // From a file's own expressions, applied in turn. Throws WI_E_FORMAT if one does not compile,
  // WI_E_UNSUPPORTED for one that is too long, or for syntax that PCRE2 would read differently.
  static PreTokenizer from_steps(std::span<const SplitStep> steps);

  // Whether the family of that name ignores merges; false for an unknown one.
  static bool ignores_merges(std::string_view name);

  // llama-3's family takes a whole word as one token if the vocabulary has it, whatever the merges say.
  bool ignores_merges() const { return ignores_merges_; }

  class Matcher;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  struct Stage {
    std::unique_ptr<pcre2_real_code_8, FreeCode> code;
    std::string pattern;
    SplitStep::Behavior behavior;
    bool invert, metered;
  };
  void add_step(const SplitStep& step, bool known);

  std::vector<Stage> stages_;
  bool ignores_merges_ = false;
};

// One thread's match data and JIT stack over an immutable PreTokenizer, for a text of so many bytes in all.
class PreTokenizer::Matcher {
 public:
  Matcher(const PreTokenizer& owner, size_t text_bytes, Poll& poll);
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // Calls emit(word) for each word of text, which must be well-formed UTF-8; the words join up to text, but
  // for what is removed. Throws WI_E_UNSUPPORTED where an expression needs more steps or stack than the
  // limits allow.
  template <class Emit>
  void split(std::string_view text, Emit&& emit) {
    split_stage(0, text, emit);
  }

 private:
  struct Found {
    size_t begin, end;
    bool any;
  };
  Found find(size_t stage, std::string_view text, size_t from, size_t last_end);
  static size_t character_end(std::string_view text, size_t at);

  // Matches and gaps in turn, as the stage's behaviour joins them, are cut further by the next stage.
  template <class Emit>
  void split_stage(size_t stage, std::string_view text, Emit& emit) {
    if (text.empty()) return;
    if (stage == owner_.stages_.size()) return emit(text);
    using Behavior = SplitStep::Behavior;
    const Behavior behavior = owner_.stages_[stage].behavior;
    const bool invert = owner_.stages_[stage].invert;
    size_t begin = 0, end = 0;  // of the word being put together
    bool last_match = false;
    const auto flush = [&] { split_stage(stage + 1, text.substr(begin, end - begin), emit); };
    const auto add = [&](size_t from, size_t to, bool match) {
      match = match != invert;
      if (behavior == Behavior::removed && match) {
        flush();
        begin = end = to;
        return;
      }
      const bool joins = (behavior == Behavior::contiguous && match == last_match) ||
                         (behavior == Behavior::merged_previous && match && !last_match) ||
                         (behavior == Behavior::merged_next && !match && last_match);
      if (!joins) {
        flush();
        begin = from;
      }
      end = to;
      last_match = match;
    };
    size_t word = 0;
    for (size_t from = 0; from <= text.size();) {
      const Found found = find(stage, text, from, word);
      if (!found.any) break;
      if (found.begin > word) add(word, found.begin, false);
      add(found.begin, found.end, true);
      word = found.end;
      from = found.end > found.begin ? found.end : character_end(text, found.end);
    }
    if (word < text.size()) add(word, text.size(), false);
    flush();
  }

  const PreTokenizer& owner_;
  Poll& poll_;
  struct Resources;
  std::unique_ptr<Resources> resources_;
};

}  // namespace wi
