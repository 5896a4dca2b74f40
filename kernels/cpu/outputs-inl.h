// Where the rows of a product's weights begin, and its results' way into their places.
#if defined(WI_KERNELS_CPU_OUTPUTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_KERNELS_CPU_OUTPUTS_INL_H_
#undef WI_KERNELS_CPU_OUTPUTS_INL_H_
#else
#define WI_KERNELS_CPU_OUTPUTS_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/turn-inl.h"
#include "kernels/ops.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

// Into its place: a product's result for one row and some outputs.
HWY_INLINE void Store(const MatmulPart& part, int64_t row, int64_t output, int64_t count, const float* sums) {
  float* out = part.out + row * part.weight.rows + output;
  for (int64_t o = 0; o < count; o++) {
    const float value = part.bias ? sums[o] + part.bias[output + o] : sums[o];
    out[o] = part.accumulate ? out[o] + value : value;
  }
}

HWY_INLINE const uint8_t* WeightRow(const MatmulPart& part, int64_t output) {
  return static_cast<const uint8_t*>(part.weight.data) +
         static_cast<size_t>(output) * row_bytes(part.weight.type, part.weight.cols);
}

// use(panels): those of outputs [begin, end).
template <class Q, class Use>
HWY_INLINE void WithPanelsOf(const MatmulPart& part, int64_t begin, int64_t end, const Use& use) {
  const OutputRun run{WeightRow(part, begin),
                      static_cast<int64_t>(row_bytes(part.weight.type, part.weight.cols)), end - begin,
                      part.weight.cols};
  if constexpr (kCanBeTurned<Q>)
    if (part.weight.turned) return use(TurnedPanels<Q>{run});
  use(Panels<Q>{run});
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_OUTPUTS_INL_H_
