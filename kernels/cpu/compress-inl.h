// A vector's chosen lanes, moved to its front. AVX-512 has an instruction for it. Elsewhere it is a lookup by
// the mask's bits and one shuffle: Highway does so too, but its 1.0 keeps the table inside the function, and
// compilers copy all of it to the stack for every vector (a kilobyte: ten times what the rest takes).
#if defined(WI_COMPRESS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_COMPRESS_INL_H_
#undef WI_COMPRESS_INL_H_
#else
#define WI_COMPRESS_INL_H_
#endif

#include <array>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_SCALAR

template <class D>
HWY_INLINE hn::Vec<D> compress(D, hn::Vec<D> v, hn::Mask<D> chosen) {
  return hn::Compress(v, chosen);
}

#else

// For each mask, its lanes in order, then those that were not chosen.
template <size_t kCount>
constexpr std::array<std::array<uint8_t, kCount>, size_t{1} << kCount> compress_orders() {
  std::array<std::array<uint8_t, kCount>, size_t{1} << kCount> orders{};
  for (size_t bits = 0; bits < orders.size(); bits++) {
    size_t at = 0;
    for (size_t want = 2; want-- > 0;)
      for (size_t lane = 0; lane < kCount; lane++)
        if ((bits >> lane & 1) == want) orders[bits][at++] = static_cast<uint8_t>(lane);
  }
  return orders;
}
inline constexpr auto kCompressOrders = compress_orders<HWY_LANES(int32_t)>();

// What is beyond the chosen lanes is of no account.
template <class D>
HWY_INLINE hn::Vec<D> compress(D d, hn::Vec<D> v, hn::Mask<D> chosen) {
  static_assert(sizeof(hn::TFromD<D>) == 4);
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint8_t, D> d8;
  alignas(8) uint8_t bits[8] = {};
  hn::StoreMaskBits(d, chosen, bits);
  const auto order = hn::PromoteTo(di, hn::LoadU(d8, kCompressOrders[bits[0]].data()));
  return hn::TableLookupLanes(v, hn::IndicesFromVec(d, order));
}

#endif

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
