// What both kinds of byte pair encoding share: a pre-tokenizer cuts text into words, a word becomes symbols, and
// neighbours are merged as the file ranks them. They differ in what the symbols of a word are, which byte_bpe.cpp
// and char_bpe.cpp say.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "src/tokenizer/long_list.h"
#include "src/tokenizer/merge_queue.h"
#include "src/tokenizer/merge_table.h"
#include "src/tokenizer/pre_tokenizer.h"
#include "src/tokenizer/text_table.h"
#include "src/tokenizer/tokenizer_base.h"
#include "src/tokenizer/word_cache.h"

namespace wi {

class Bpe : public TokenizerBase {
 protected:
  class WordEncoder;
  Bpe(Vocabulary vocabulary, Watch* watch) : TokenizerBase(std::move(vocabulary), watch) {}

  PreTokenizer pre_tokenizer_;
  MergeTable merges_;
  std::array<int32_t, 256> byte_tokens_{};  // -1: the file has none
  TextTable<int32_t> words_;                // what text may become without merging
  bool whole_words_ = false;                // a word of words_ is that token, whatever the merges say
};

// One call's state: the pattern matcher, the words met so far, and the scratch of the merge loop.
class Bpe::WordEncoder : public TokenizerBase::Encoder {
 public:
  void append(std::string_view text, std::vector<int32_t>& ids) final;

 protected:
  WordEncoder(const Bpe& bpe, size_t text_bytes, Withheld withheld, Poll& poll)
      : poll_(poll),
        bpe_(bpe),
        withheld_(withheld),
        matcher_(bpe.pre_tokenizer_, text_bytes, poll),
        cache_(text_bytes) {}

  // A word of the pre-tokenizer; append_cached for it, or for each of the parts that no merge joins.
  virtual void append_word(std::string_view word, std::vector<int32_t>& ids) { append_cached(word, ids); }
  // What the merges of a word begin with.
  virtual void read_symbols(std::string_view word, LongList<int32_t>& symbols) = 0;
  void append_cached(std::string_view word, std::vector<int32_t>& ids);

  bool is_withheld(int32_t token) const { return holds(withheld_, token); }

  Poll& poll_;

 private:
  void merge(std::string_view word, std::vector<int32_t>& ids);

  const Bpe& bpe_;
  const Withheld withheld_;
  PreTokenizer::Matcher matcher_;
  WordCache cache_;
  MergeQueue queue_;
  LongList<int32_t> symbols_;
};

}  // namespace wi
