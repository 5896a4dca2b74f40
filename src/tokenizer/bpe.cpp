#include "src/tokenizer/bpe.h"

#include "src/utf8.h"

namespace wi {

void Bpe::WordEncoder::append(std::string_view text, std::vector<int32_t>& ids) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = utf8_run_end(text, at);
    matcher_.split(text.substr(at, end - at), [&](std::string_view word) { append_word(word, ids); });
    for (at = end; at < text.size() && utf8_length(text, at) == 0; ++at) {
      const auto byte = static_cast<unsigned char>(text[at]);
      const int32_t token = bpe_.byte_tokens_[byte];
      ids.push_back(token < 0 ? bpe_.unknown_for(byte) : token);
      poll_(1);
    }
  }
}

void Bpe::WordEncoder::append_cached(std::string_view word, std::vector<int32_t>& ids) {
  cache_.append(word, ids, [&] { merge(word, ids); });
}

void Bpe::WordEncoder::merge(std::string_view word, std::vector<int32_t>& ids) {
  if (bpe_.whole_words_) {
    const int32_t* whole = bpe_.words_.find(word);
    if (whole && !is_withheld(*whole)) return ids.push_back(*whole);
  }
  symbols_.clear();
  read_symbols(word, symbols_);
  queue_.run(
      static_cast<uint32_t>(symbols_.size()),
      [&](uint32_t left, uint32_t right) {
        const MergeTable::Merge merge = bpe_.merges_.find(symbols_[left], symbols_[right]);
        return is_withheld(merge.token) ? kNoRank : merge.rank;
      },
      [&](uint32_t left, uint32_t right) {
        symbols_[left] = bpe_.merges_.find(symbols_[left], symbols_[right]).token;
      },
      &poll_);
  for (uint32_t i = 0; i != MergeQueue::kEnd; i = queue_.next(i)) ids.push_back(symbols_[i]);
}

}  // namespace wi
