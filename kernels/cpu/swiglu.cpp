// SwiGLU's element-wise half: out = silu(gate) * up, with silu(x) = x / (1 + e^-x).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/swiglu.cpp"
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/spread.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> SiluTimes(D d, hn::Vec<D> gate, hn::Vec<D> up) {
  // Below -87 e^-x leaves f32; silu there is 0 to f32's precision of any sum it enters.
  const auto exponent = hn::Min(hn::Neg(gate), hn::Set(d, 87.0f));
  const auto silu = hn::Div(gate, hn::Add(hn::Set(d, 1.0f), hn::CallExp(d, exponent)));
  return hn::Mul(silu, up);
}

void SiluRange(const float* gate, const float* up, float* out, int64_t count) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(SiluTimes(d, hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, out + i);
  const hn::CappedTag<float, 1> one;
  for (; i < count; i++)
    hn::StoreU(SiluTimes(one, hn::LoadU(one, gate + i), hn::LoadU(one, up + i)), one, out + i);
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

namespace wi::cpu {

HWY_EXPORT(SiluRange);

void swiglu(const Stream& stream, const SwigluArgs& args) {
  // Exponentials take longer than other work, so that half as many are enough for few workers.
  const bool many = stream.workers > kFewWorkers;
  const int64_t few = many ? kFewElementsOfMany : kFewElements / 2, step = many ? few / 4 : few;
  const auto range = [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(SiluRange)(args.gate + begin, args.up + begin, args.out + begin, end - begin);
  };
  if (args.count <= few) return range(0, args.count);
  stream.each((args.count + step - 1) / step,
              [&](int64_t task, int) { range(task * step, std::min(args.count, (task + 1) * step)); });
}

}  // namespace wi::cpu
#endif
