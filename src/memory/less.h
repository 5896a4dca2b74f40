// Of two amounts, what the one has left when the other is gone from it: nothing rather than less than that.
#pragma once

#include <algorithm>
#include <cstdint>

namespace wi {

constexpr uint64_t less(uint64_t from, uint64_t bytes) { return from - std::min(from, bytes); }

}  // namespace wi
