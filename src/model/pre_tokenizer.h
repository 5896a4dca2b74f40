// Cuts text into the words that byte-level BPE works on, with the regular expressions that model files name
// or carry. PCRE2 runs them compiled (JIT); what its dialect reads differently from the files' (Oniguruma,
// Rust) is rewritten or refused, never guessed.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace wi {

class PreTokenizer {
 public:
  // By the name that GGUF files use ("llama-bpe", "qwen2", …). Throws WI_E_UNSUPPORTED for an unknown one.
  static PreTokenizer named(std::string_view name);
  // From a file's own expression; several, applied in turn, are separated by NUL. Throws WI_E_FORMAT if one
  // does not compile, WI_E_UNSUPPORTED for syntax that PCRE2 would read differently.
  static PreTokenizer from_patterns(std::string_view patterns);

  // Whether the family of that name ignores merges; false for an unknown one.
  static bool ignores_merges(std::string_view name);

  // llama-3's family takes a whole word as one token if the vocabulary has it, whatever the merges say.
  bool ignores_merges() const { return ignores_merges_; }

  class Matcher;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  using Code = std::unique_ptr<pcre2_real_code_8, FreeCode>;
  void add_pattern(std::string_view pattern);

  std::vector<Code> stages_;
  bool ignores_merges_ = false;
};

// One thread's match data and JIT stack over an immutable PreTokenizer.
class PreTokenizer::Matcher {
 public:
  explicit Matcher(const PreTokenizer& owner);
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // Calls emit(word) for each word of text, which must be well-formed UTF-8; the words join up to text.
  // Throws WI_E_UNSUPPORTED where an expression needs more steps or stack than the limits allow.
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

  // Matches and the gaps between them are both words, to be cut further by the next stage.
  template <class Emit>
  void split_stage(size_t stage, std::string_view text, Emit& emit) {
    if (text.empty()) return;
    if (stage == owner_.stages_.size()) return emit(text);
    const auto cut = [&](size_t begin, size_t end) {
      split_stage(stage + 1, text.substr(begin, end - begin), emit);
    };
    size_t word = 0;
    for (size_t from = 0; from <= text.size();) {
      const Found found = find(stage, text, from, word);
      if (!found.any) break;
      cut(word, found.begin);
      cut(found.begin, found.end);
      word = found.end;
      from = found.end > found.begin ? found.end : character_end(text, found.end);
    }
    cut(word, text.size());
  }

  const PreTokenizer& owner_;
  struct Resources;
  std::unique_ptr<Resources> resources_;
};

}  // namespace wi
