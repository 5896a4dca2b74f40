#include "src/text_hash.h"

#include <chrono>
#include <cstdint>
#include <sys/random.h>
#include <xxhash.h>

namespace wi {
namespace {

uint64_t random_seed() {
  uint64_t seed;
  if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) == sizeof seed) return seed;
  // Right after a system's start, before it has any randomness: where things lie and what time it is.
  return reinterpret_cast<uintptr_t>(&seed) ^
         static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace

size_t TextHash::operator()(std::string_view text) const noexcept {
  static const uint64_t seed = random_seed();
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

}  // namespace wi
