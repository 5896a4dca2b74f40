// The attention mass of a cluster that is not read. Its tokens' scores lie about the centroid's with a
// standard deviation σ that the index knows roughly, and exp is convex: the centroid alone weighs less than
// they do (Jensen). The mean of exp over n such numbers is exp(σ²/2), until at σ = √(2 ln n) none of the n
// lies as far out as that mean wants, and its log grows by √(2 ln n) per σ only (the random energy model's
// freezing).
#if defined(WI_WAVE_MASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_WAVE_MASS_INL_H_
#undef WI_WAVE_MASS_INL_H_
#else
#define WI_WAVE_MASS_INL_H_
#endif

#include "kernels/cpu/attend-inl.h"
#include "kernels/cpu/policy/wave.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

using Words = hn::Rebind<uint32_t, Floats>;
using Ints = hn::Rebind<int32_t, Floats>;

// The two halves of extents.
HWY_INLINE Vector radius_in(Floats d, hn::Vec<Words> extents) {
  return hn::BitCast(d, hn::And(extents, hn::Set(Words(), 0xFFFF0000u)));
}
HWY_INLINE Vector spread_in(Floats d, hn::Vec<Words> extents) {
  return hn::BitCast(d, hn::ShiftLeft<16>(extents));
}

// What a cluster's spread is multiplied by to give σ of this query's scores.
HWY_INLINE float deviation_per_spread(const float* query, size_t head_dim, float scale) {
  const float slope =
      scale * std::sqrt(kWaveAlong * squared_length(query, head_dim) / static_cast<float>(head_dim));
  return HWY_MIN(slope, 1e15f);  // products with a spread stay finite
}

// log(mean of exp) above the centroid's score.
HWY_INLINE Vector mass_above_centroid(Floats d, Vector deviation) {
  const Vector before = hn::Min(deviation, hn::Set(d, kWaveFreezing));
  return hn::Mul(before, hn::NegMulAdd(before, hn::Set(d, 0.5f), deviation));
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
