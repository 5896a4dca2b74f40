// Remembers where in this text a word was encoded before. An entry is two positions, in the text and in the
// output, so a hit copies ids that are already there and the cache itself stores no strings.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace wi {

class WordCache {
 public:
  static constexpr size_t kLongestWord = 64;

  explicit WordCache(size_t text_bytes)
      : entries_(std::bit_ceil(std::clamp<size_t>(text_bytes / 8, 16, 1 << 16))) {}

  // Appends the ids of an equal earlier word and returns true, or calls encode() and remembers what it
  // appended.
  template <class Encode>
  void append(std::string_view word, std::vector<int32_t>& ids, Encode&& encode) {
    if (word.size() > kLongestWord) return encode();
    Entry& entry = entries_[hash(word) & (entries_.size() - 1)];
    if (entry.length == word.size() && std::memcmp(entry.word, word.data(), word.size()) == 0) {
      const size_t at = ids.size();
      ids.resize(at + entry.count);
      std::copy_n(ids.begin() + static_cast<ptrdiff_t>(entry.first), entry.count,
                  ids.begin() + static_cast<ptrdiff_t>(at));
      return;
    }
    const size_t first = ids.size();
    encode();
    entry = {word.data(), first, static_cast<uint32_t>(word.size()),
             static_cast<uint32_t>(ids.size() - first)};
  }

 private:
  struct Entry {
    const char* word = nullptr;
    size_t first = 0;  // of its ids in the output
    uint32_t length = 0, count = 0;
  };

  static size_t hash(std::string_view word) {
    uint64_t state = word.size() * 0x9E3779B97F4A7C15u;
    size_t at = 0;
    for (; word.size() - at >= 8; at += 8) state = mix(state, load(word.data() + at, 8));
    if (at < word.size()) state = mix(state, load(word.data() + at, word.size() - at));
    return state ^ state >> 32;
  }
  static uint64_t load(const char* bytes, size_t count) {
    uint64_t value = 0;
    std::memcpy(&value, bytes, count);
    return value;
  }
  static uint64_t mix(uint64_t state, uint64_t value) {
    return std::rotl((state ^ value) * 0xD6E8FEB86659FD93u, 29) * 0xA24BAED4963EE407u;
  }

  std::vector<Entry> entries_;
};

}  // namespace wi
