// The token ids of a session. Full chunks are immutable and shared by copies, so that forking a session over
// a million tokens copies a short list.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace wi {

class TokenLog {
 public:
  static constexpr size_t kChunk = 4096;

  TokenLog() = default;
  TokenLog(const TokenLog& other) { *this = other; }
  TokenLog& operator=(const TokenLog& other) {
    if (other.size() > 0) tail_.reserve(kChunk);
    full_ = other.full_;
    tail_.assign(other.tail_.begin(), other.tail_.end());
    return *this;
  }

  int64_t size() const { return static_cast<int64_t>(full_.size() * kChunk + tail_.size()); }
  int32_t operator[](int64_t i) const {
    const size_t at = static_cast<size_t>(i);
    return at / kChunk < full_.size() ? (*full_[at / kChunk])[at % kChunk]
                                      : tail_[at - full_.size() * kChunk];
  }
  // After it the next push_back cannot fail.
  void reserve_one() {
    tail_.reserve(kChunk);
    if (tail_.size() < kChunk) return;
    full_.push_back(std::make_shared<const std::vector<int32_t>>(tail_));
    tail_.clear();
  }
  void push_back(int32_t id) {
    reserve_one();
    tail_.push_back(id);
  }
  void append(std::span<const int32_t> ids) {
    for (int32_t id : ids) push_back(id);
  }
  void truncate(int64_t size) {
    const size_t chunks = static_cast<size_t>(size) / kChunk, rest = static_cast<size_t>(size) % kChunk;
    if (chunks < full_.size()) {
      tail_.assign(full_[chunks]->begin(), full_[chunks]->begin() + static_cast<std::ptrdiff_t>(rest));
      full_.resize(chunks);
    } else {
      tail_.resize(static_cast<size_t>(size) - full_.size() * kChunk);
    }
  }
  // ids [i * kChunk, (i + 1) * kChunk), fewer in the last chunk
  size_t chunks() const { return full_.size() + 1; }
  std::span<const int32_t> chunk(size_t i) const {
    return i < full_.size() ? std::span<const int32_t>(*full_[i]) : std::span<const int32_t>(tail_);
  }
  // ids [first, first + out.size())
  void copy(int64_t first, std::span<int32_t> out) const {
    for (size_t i = 0; i < out.size(); ++i) out[i] = (*this)[first + static_cast<int64_t>(i)];
  }

 private:
  std::vector<std::shared_ptr<const std::vector<int32_t>>> full_;  // kChunk ids each
  std::vector<int32_t> tail_;  // from the first id on with room for kChunk
};

}  // namespace wi
