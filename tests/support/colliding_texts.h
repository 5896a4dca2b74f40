// Texts that have one std::hash: libstdc++'s (MurmurHash64A, always the same seed) can be turned backwards, so that of two
// words of eight bytes the second makes up for the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace wi::test {

inline bool std_hash_is_murmurs() {
  // Of the empty text: its seed, mixed.
  constexpr uint64_t kFactor = 0xc6a4a7935bd1e995u;
  const auto mix = [](uint64_t v) { return v ^ v >> 47; };
  return std::hash<std::string>()("") == mix(mix(0xc70f6907u) * kFactor);
}

// Of 16 characters of 7 bits, none of them 0.
inline std::vector<std::string> colliding_texts(size_t count, uint64_t seed) {
  constexpr uint64_t kFactor = 0xc6a4a7935bd1e995u, kSeed = 0xc70f6907u, kWanted = 0x1234567890abcdefu;
  uint64_t inverse = 1;
  for (int i = 0; i < 6; ++i) inverse *= 2 - kFactor * inverse;
  const auto mix = [](uint64_t v) { return v ^ v >> 47; };  // its own inverse
  const uint64_t begin = kSeed ^ 16 * kFactor;
  std::mt19937_64 random(seed);
  std::vector<std::string> texts;
  while (texts.size() < count) {
    const uint64_t first = random() & 0x7f7f7f7f7f7f7f7fu;
    const uint64_t state = (begin ^ mix(first * kFactor) * kFactor) * kFactor;
    const uint64_t second = mix((state ^ kWanted) * inverse) * inverse;
    if (second & 0x8080808080808080u) continue;
    std::string text(16, 0);
    std::memcpy(text.data(), &first, 8);
    std::memcpy(text.data() + 8, &second, 8);
    if (text.find('\0') == std::string::npos) texts.push_back(text);
  }
  return texts;
}

}  // namespace wi::test
