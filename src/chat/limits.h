// What one rendering may cost. A template is a program out of a stranger's file, so each of its steps and
// each byte it makes is counted, and the limit that it reaches is named.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/chat/text.h"
#include "src/error.h"

namespace wi::chat {

namespace limits {
constexpr size_t kTemplateBytes = size_t{1} << 20;
constexpr size_t kInputBytes = size_t{1} << 30;  // of all messages, fields, tools and variables
constexpr int kSyntaxDepth = 250;                // levels of a template's syntax tree
constexpr int kDepth = 500;                      // levels of expressions and blocks at work, macros included
constexpr int kNesting = 100;                    // lists in lists
constexpr int64_t kRange = 100000;               // of range(), as in Jinja's sandbox
constexpr uint64_t kSteps = 10'000'000;
constexpr uint64_t kBytes = uint64_t{64} << 20;  // made by one rendering, beside
constexpr uint64_t kBytesPerInputByte = 64;
}  // namespace limits

class Budget {
 public:
  explicit Budget(uint64_t input_bytes, uint64_t steps = limits::kSteps)
      : steps_limit_(steps), bytes_limit_(limits::kBytes + limits::kBytesPerInputByte * input_bytes) {}
  void step(uint64_t steps = 1) {
    check(steps <= steps_limit_ - steps_, WI_E_UNSUPPORTED, "it takes more than ", steps_limit_, " steps");
    steps_ += steps;
  }
  // Bytes that are made or searched.
  void bytes(uint64_t count) {
    check(count <= bytes_limit_ - bytes_, WI_E_UNSUPPORTED, "it makes or searches more than ", bytes_limit_,
          " bytes");
    bytes_ += count;
  }
  // Copies of a text, with the account of where it came from.
  void texts(const Text& text, uint64_t times = 1) {
    bytes(product(text.size() + text.host().size() * sizeof(TextRange), times));
  }
  // Copies of n values.
  void values(uint64_t count, uint64_t times = 1) { bytes(product(product(count, times), 32)); }

 private:
  // What does not fit is more than any limit.
  static uint64_t product(uint64_t a, uint64_t b) {
    uint64_t all = 0;
    return __builtin_mul_overflow(a, b, &all) ? UINT64_MAX : all;
  }

  uint64_t steps_ = 0, bytes_ = 0;
  const uint64_t steps_limit_, bytes_limit_;
};

}  // namespace wi::chat
