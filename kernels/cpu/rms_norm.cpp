// RMS norm: out = in / sqrt(mean(in²) + epsilon) * weight, each row by itself.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cpp"
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include <cmath>

#include "hwy/highway.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/spread.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void NormRow(const float* in, const float* weight, float* out, int64_t cols, float epsilon) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto even = hn::Zero(d), odd = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= cols; i += 2 * lanes) {
    const auto a = hn::LoadU(d, in + i);
    const auto b = hn::LoadU(d, in + i + lanes);
    even = hn::MulAdd(a, a, even);
    odd = hn::MulAdd(b, b, odd);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < cols; i++) sum = std::fma(in[i], in[i], sum);
  const float scale = 1 / std::sqrt(sum / static_cast<float>(cols) + epsilon);
  const auto scale_v = hn::Set(d, scale);
  for (i = 0; i + lanes <= cols; i += lanes) {
    const auto normed = hn::Mul(hn::LoadU(d, in + i), scale_v);
    hn::StoreU(hn::Mul(normed, hn::LoadU(d, weight + i)), d, out + i);
  }
  for (; i < cols; i++) out[i] = in[i] * scale * weight[i];
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

namespace wi::cpu {

HWY_EXPORT(NormRow);

void rms_norm(const Stream& stream, const RmsNormArgs& args) {
  const auto rows = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) HWY_DYNAMIC_DISPATCH(NormRow)
    (args.in + row * args.in_stride, args.weight, args.out + row * args.out_stride, args.cols, args.epsilon);
  };
  const int64_t step = std::max<int64_t>(1, few_elements(stream) / std::max<int64_t>(args.cols, 1));
  if (args.rows <= step) return rows(0, args.rows);
  stream.each((args.rows + step - 1) / step,
              [&](int64_t task, int) { rows(task * step, std::min(args.rows, (task + 1) * step)); });
}

}  // namespace wi::cpu
#endif
