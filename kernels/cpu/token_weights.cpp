// Weights of a vocabulary's logits (kernels/token_weights.h), for whatever vectors there are: e^x is 2^n · e^r with
// |r| at most ln 2 / 2, by a series of products and sums in f64 that no compiler may fuse (cmake/components.cmake).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/token_weights.cpp"
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include <limits>

#include "hwy/highway.h"
#include "kernels/token_weights.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Doubles = hn::ScalableTag<double>;
using Words = hn::RebindToUnsigned<Doubles>;
using HalfFloats = hn::Rebind<float, Doubles>;  // as many as doubles
using Floats = hn::ScalableTag<float>;

constexpr float kNever = -std::numeric_limits<float>::infinity();

// kBestWeight · e^x of x in [kWeighsNothing, 0], rounded.
HWY_INLINE hn::Vec<Words> WeightsOf(hn::Vec<HalfFloats> x) {
  const Doubles d;
  const Words du;
  // Added to a number it leaves that rounded to a whole one, which is in the sum's last bits, too.
  const auto whole = hn::Set(d, 0x1.8p52);
  const auto y = hn::PromoteTo(d, x);
  const auto shifted = hn::Add(hn::Mul(y, hn::Set(d, 1.4426950408889634)), whole);  // x / ln 2
  const auto n = hn::Sub(shifted, whole);
  const auto r = hn::Sub(y, hn::Mul(n, hn::Set(d, 0.6931471805599453)));
  // Taylor's series, to 3e-9; x itself is off by 1e-6 where it was rounded to f32.
  auto sum = hn::Set(d, 1.0 / 5040);
  sum = hn::Add(hn::Mul(sum, r), hn::Set(d, 1.0 / 720));
  sum = hn::Add(hn::Mul(sum, r), hn::Set(d, 1.0 / 120));
  sum = hn::Add(hn::Mul(sum, r), hn::Set(d, 1.0 / 24));
  sum = hn::Add(hn::Mul(sum, r), hn::Set(d, 1.0 / 6));
  sum = hn::Add(hn::Mul(sum, r), hn::Set(d, 0.5));
  sum = hn::Add(hn::Mul(sum, r), hn::Set(d, 1.0));
  sum = hn::Add(hn::Mul(sum, r), hn::Set(d, 1.0));
  constexpr uint64_t kExponent = uint64_t{1023 + kWeightBits} << 52;
  const auto power =
      hn::BitCast(d, hn::Add(hn::ShiftLeft<52>(hn::BitCast(du, shifted)), hn::Set(du, kExponent)));
  const auto rounded = hn::Add(hn::Mul(sum, power), hn::Set(d, 0x1p52));
  return hn::Sub(hn::BitCast(du, rounded), hn::BitCast(du, hn::Set(d, 0x1p52)));
}

// (logit - best) / temperature in [kWeighsNothing, 0], whatever the logit.
HWY_INLINE hn::Vec<HalfFloats> Below(hn::Vec<HalfFloats> logit, float best, float temperature) {
  const HalfFloats d;
  const auto highest = hn::Set(d, best), least = hn::Set(d, kWeighsNothing);
  const auto x = hn::Div(hn::Sub(logit, highest), hn::Set(d, temperature));
  const auto bounded = hn::IfThenElse(hn::Gt(x, least), x, least);  // NaN is not greater
  return hn::IfThenZeroElse(hn::Eq(logit, highest), bounded);
}

HWY_INLINE hn::Vec<HalfFloats> LoadSome(const float* logits, int64_t count) {
  const HalfFloats d;
  HWY_ALIGN float padded[hn::MaxLanes(d)];
  hn::Store(hn::Set(d, kNever), d, padded);
  for (int64_t i = 0; i < count; i++) padded[i] = logits[i];
  return hn::Load(d, padded);
}

void Weigh(const float* logits, int64_t count, float best, float temperature, uint64_t* weights) {
  const HalfFloats d;
  const Words du;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(WeightsOf(Below(hn::LoadU(d, logits + i), best, temperature)), du, weights + i);
  if (i == count) return;
  HWY_ALIGN uint64_t last[hn::MaxLanes(du)];
  hn::Store(WeightsOf(Below(LoadSome(logits + i, count - i), best, temperature)), du, last);
  for (int64_t lane = 0; i < count; i++, lane++) weights[i] = last[lane];
}

uint64_t SumOfBlock(const float* logits, int64_t count, float best, float temperature) {
  const HalfFloats d;
  const Words du;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(du);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    sum = hn::Add(sum, WeightsOf(Below(hn::LoadU(d, logits + i), best, temperature)));
  if (i < count) sum = hn::Add(sum, WeightsOf(Below(LoadSome(logits + i, count - i), best, temperature)));
  HWY_ALIGN uint64_t lane_sums[hn::MaxLanes(du)];
  hn::Store(sum, du, lane_sums);
  uint64_t total = 0;
  for (int64_t lane = 0; lane < lanes; lane++) total += lane_sums[lane];
  return total;
}

void SumOfBlocks(const float* logits, int64_t count, const float* bests, float best, float temperature,
                 uint64_t* sums) {
  for (int64_t first = 0; first < count; first += kLogitBlock, bests++, sums++) {
    const int64_t here = count - first < kLogitBlock ? count - first : kLogitBlock;
    const bool none = *bests != best && !((*bests - best) / temperature > kWeighsNothing);
    *sums = none ? 0 : SumOfBlock(logits + first, here, best, temperature);
  }
}

void BestOfBlocks(const float* logits, int64_t count, float* bests) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  // What is not greater leaves the best as it is, NaN too.
  const auto better = [&](hn::Vec<Floats> best, hn::Vec<Floats> logit)
                          HWY_ATTR { return hn::IfThenElse(hn::Gt(logit, best), logit, best); };
  for (int64_t first = 0; first < count; first += kLogitBlock) {
    const float* const at = logits + first;
    const int64_t here = count - first < kLogitBlock ? count - first : kLogitBlock;
    auto one = hn::Set(d, kNever), other = one;  // so that one does not wait for the other
    int64_t i = 0;
    for (; i + 2 * lanes <= here; i += 2 * lanes) {
      one = better(one, hn::LoadU(d, at + i));
      other = better(other, hn::LoadU(d, at + i + lanes));
    }
    float best = hn::GetLane(hn::MaxOfLanes(d, better(one, other)));
    for (; i < here; i++)
      if (at[i] > best) best = at[i];
    *bests++ = best;
  }
}

}  // namespace
}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace wi {
namespace cpu {
namespace {
HWY_EXPORT(Weigh);
HWY_EXPORT(SumOfBlocks);
HWY_EXPORT(BestOfBlocks);
}  // namespace
}  // namespace cpu

void best_of_blocks(const float* logits, int64_t count, float* bests) {
  using namespace cpu;
  HWY_DYNAMIC_DISPATCH(BestOfBlocks)(logits, count, bests);
}

void token_weights(const float* logits, int64_t count, float best, float temperature, uint64_t* weights) {
  using namespace cpu;
  HWY_DYNAMIC_DISPATCH(Weigh)(logits, count, best, temperature, weights);
}

void weights_of_blocks(const float* logits, int64_t count, const float* bests, float best, float temperature,
                       uint64_t* sums) {
  using namespace cpu;
  HWY_DYNAMIC_DISPATCH(SumOfBlocks)(logits, count, bests, best, temperature, sums);
}

}  // namespace wi

#endif  // HWY_ONCE
