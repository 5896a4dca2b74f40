// Rotary position embedding: pairs of dimensions turn by an angle that grows with the position. The model
// computes the angles (with its scaling); this applies them to queries and keys in place.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cpp"
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include "hwy/highway.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/spread.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// first and second: the parts of each pair. Rounded the same way in every lane and in the rest.
HWY_INLINE void Rotate(float& first, float& second, float cos, float sin) {
  const float a = first, b = second;
  first = a * cos - b * sin;
  second = a * sin + b * cos;
}

// Pairs (i, i + half).
HWY_INLINE void RotateHalves(float* x, const float* cos, const float* sin, int32_t half) {
  const hn::ScalableTag<float> d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  int32_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + half + i);
    const auto c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
    hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), d, x + i);
    hn::StoreU(hn::Add(hn::Mul(a, s), hn::Mul(b, c)), d, x + half + i);
  }
  for (; i < half; i++) Rotate(x[i], x[half + i], cos[i], sin[i]);
}

// Pairs (2i, 2i + 1).
HWY_INLINE void RotateNeighbours(float* x, const float* cos, const float* sin, int32_t half) {
  const hn::ScalableTag<float> d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  int32_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    hn::Vec<decltype(d)> a, b;
    hn::LoadInterleaved2(d, x + 2 * i, a, b);
    const auto c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
    hn::StoreInterleaved2(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), hn::Add(hn::Mul(a, s), hn::Mul(b, c)), d,
                          x + 2 * i);
  }
  for (; i < half; i++) Rotate(x[2 * i], x[2 * i + 1], cos[i], sin[i]);
}

void RotateRow(const RopeArgs& args, int64_t row) {
  const int32_t half = args.rotary / 2;
  const float* cos = args.cos + row * half;
  const float* sin = args.sin + row * half;
  for (int32_t head = 0; head < args.heads; head++) {
    float* x = args.x + row * args.stride + static_cast<int64_t>(head) * args.head_dim;
    args.interleaved ? RotateNeighbours(x, cos, sin, half) : RotateHalves(x, cos, sin, half);
  }
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

namespace wi::cpu {

HWY_EXPORT(RotateRow);

void rope(const Stream& stream, const RopeArgs& args) {
  const auto rows = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) HWY_DYNAMIC_DISPATCH(RotateRow)(args, row);
  };
  const int64_t width = static_cast<int64_t>(args.heads) * args.rotary;
  const int64_t step = std::max<int64_t>(1, few_elements(stream) / std::max<int64_t>(width, 1));
  if (args.rows <= step) return rows(0, args.rows);
  stream.each((args.rows + step - 1) / step,
              [&](int64_t task, int) { rows(task * step, std::min(args.rows, (task + 1) * step)); });
}

}  // namespace wi::cpu
#endif
