// A share of a lane's tokens, as every policy rounds it: up, and in f32, so that 0.1f of 1000 is 100 and not
// a little more.
#pragma once

#include <cmath>
#include <cstdint>

namespace wi::cpu {

inline int64_t share_of(float share, int64_t tokens) {
  if (!(share > 0)) return 0;
  return share >= 1 ? tokens : static_cast<int64_t>(std::ceil(share * static_cast<float>(tokens)));
}

}  // namespace wi::cpu
