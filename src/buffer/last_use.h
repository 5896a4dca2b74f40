// The step in which each entry was last used, in 32 bits: counted from a base that follows the newest step
// when it has run too far ahead, which is one pass over the entries in 2^31 steps. An entry that is older
// than the base counts as used in it; 2^31 steps later nobody tells the difference.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace wi {

class LastUse {
 public:
  explicit LastUse(int32_t capacity) : steps_(static_cast<size_t>(capacity)) {}

  // What is touched from now on is used in this step, or in the newest one if that is later.
  void advance(uint64_t step) noexcept {
    newest_ = std::max(newest_, step);
    if (newest_ - base_ < UINT32_MAX) return;
    const uint64_t shift = newest_ - base_ - kKept;
    for (uint32_t& stored : steps_) stored = stored > shift ? static_cast<uint32_t>(stored - shift) : 0;
    base_ += shift;
  }
  void touch(int32_t entry) noexcept { steps_[entry] = newest(); }
  uint32_t age(int32_t entry) const noexcept { return newest() - steps_[entry]; }  // in steps

 private:
  static constexpr uint64_t kKept = uint64_t{1} << 31;  // steps that remain exact when the base moves
  uint32_t newest() const noexcept { return static_cast<uint32_t>(newest_ - base_); }  // < UINT32_MAX

  std::vector<uint32_t> steps_;  // (capacity), from base_
  uint64_t newest_ = 0, base_ = 0;
};

}  // namespace wi
