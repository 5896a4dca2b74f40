// The logarithm of a softmax's denominator over a whole vocabulary, for log-probabilities: two passes over
// the logits, the largest first, sums in f64 from one thousand numbers to the next.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/log_sum_exp.cpp"
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

constexpr float kLowest = -hwy::HighestValue<float>();

// Logits without NaN and -infinity, which would make differences that are no number.
HWY_INLINE Vector Finite(Floats d, Vector v) {
  const Vector lowest = hn::Set(d, kLowest);
  return hn::IfThenElse(hn::Gt(v, lowest), v, lowest);
}

HWY_INLINE Vector LoadSome(Floats d, const float* in, int64_t count) {
  HWY_ALIGN float padded[hn::MaxLanes(d)];
  hn::Store(hn::Set(d, kLowest), d, padded);
  for (int64_t i = 0; i < count; i++) padded[i] = in[i];
  return Finite(d, hn::Load(d, padded));
}

// Σ exp(in - largest)
double SumBelow(const float* in, int64_t count, float largest) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto weight = [&](Vector v) HWY_ATTR {
    // Below -87 an exponential is nothing beside the largest one's 1.
    const Vector below = hn::Sub(v, hn::Set(d, largest));
    return hn::IfThenElseZero(hn::Gt(below, hn::Set(d, -87.0f)),
                              hn::CallExp(d, hn::Max(below, hn::Set(d, -87.0f))));
  };
  double total = 0;
  constexpr int64_t kRun = 1024;
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t end = begin + kRun < count ? begin + kRun : count;
    Vector sum = hn::Zero(d);
    int64_t i = begin;
    for (; i + lanes <= end; i += lanes) sum = hn::Add(sum, weight(Finite(d, hn::LoadU(d, in + i))));
    if (i < end) sum = hn::Add(sum, weight(LoadSome(d, in + i, end - i)));
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
  }
  return total;
}

float Largest(const float* in, int64_t count) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vector most = hn::Set(d, kLowest);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) most = hn::Max(most, Finite(d, hn::LoadU(d, in + i)));
  if (i < count) most = hn::Max(most, LoadSome(d, in + i, count - i));
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>
#include <limits>

namespace wi::cpu {

HWY_EXPORT(SumBelow);
HWY_EXPORT(Largest);

double log_sum_exp(const float* in, int64_t count) {
  const float largest = HWY_DYNAMIC_DISPATCH(Largest)(in, count);
  if (std::isinf(largest)) return static_cast<double>(largest);
  if (largest == -std::numeric_limits<float>::max()) return -std::numeric_limits<double>::infinity();
  return static_cast<double>(largest) + std::log(HWY_DYNAMIC_DISPATCH(SumBelow)(in, count, largest));
}

}  // namespace wi::cpu
#endif
