// Transposing and interleaving bf16 numbers into the layout of pack.h.
#include "kernels/cpu/pack.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pack.cpp"
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A pair of rows is one 32-bit number here, so this is a transposition of 4 by 4 of them at a time.
void transpose_pairs(const uint16_t* in, int64_t stride, int64_t pairs, uint16_t* out, int64_t out_stride) {
  const hn::FixedTag<uint32_t, 4> d;
  const hn::FixedTag<uint64_t, 2> d64;
  auto load = [&](int64_t row, int64_t pair) HWY_ATTR {
    return hn::LoadU(d, reinterpret_cast<const uint32_t*>(in + row * stride) + pair);
  };
  for (int64_t pair = 0; pair < pairs; pair += 4) {
    for (int64_t row = 0; row < 16; row += 4) {
      const auto a = load(row, pair), b = load(row + 1, pair), c = load(row + 2, pair),
                 e = load(row + 3, pair);
      const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d, a, b));
      const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d, a, b));
      const auto ce_low = hn::BitCast(d64, hn::InterleaveLower(d, c, e));
      const auto ce_high = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
      auto store = [&](auto v, int64_t i) HWY_ATTR {
        hn::StoreU(hn::BitCast(d, v), d, reinterpret_cast<uint32_t*>(out + (pair + i) * out_stride) + row);
      };
      store(hn::InterleaveLower(d64, ab_low, ce_low), 0);
      store(hn::InterleaveUpper(d64, ab_low, ce_low), 1);
      store(hn::InterleaveLower(d64, ab_high, ce_high), 2);
      store(hn::InterleaveUpper(d64, ab_high, ce_high), 3);
    }
  }
}

// out[i] = (low[i], high[i])
void interleave(const uint16_t* low, const uint16_t* high, int64_t count, uint16_t* out) {
  const hn::FixedTag<uint16_t, 8> d;
  for (int64_t i = 0; i < count; i += 8) {
    const auto a = hn::LoadU(d, low + i), b = hn::LoadU(d, high + i);
    hn::StoreU(hn::InterleaveLower(d, a, b), d, out + 2 * i);
    hn::StoreU(hn::InterleaveUpper(d, a, b), d, out + 2 * i + 8);
  }
}

void pack_panels(const Packing& packing, const uint16_t* in, int64_t stride, uint16_t* out) {
  const int64_t width = packing.width;
  for (int64_t n = 0; n < packing.padded_n(); n += width) {
    for (int64_t k = 0; k < packing.padded_k(); k += 2, out += 2 * width)
      interleave(in + k * stride + n, in + (k + 1) * stride + n, width, out);
  }
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wi::cpu {

HWY_EXPORT(transpose_pairs);
HWY_EXPORT(pack_panels);

void pack_transposed(const Packing& packing, int64_t first_n, int64_t count_k, const uint16_t* in,
                     int64_t stride, uint16_t* out) {
  if (packing.width == 0) {
    for (int64_t i = 0; i < std::min<int64_t>(16, packing.n - first_n); ++i)
      std::copy_n(in + i * stride, std::min(count_k, packing.k), out + (first_n + i) * packing.k);
    return;
  }
  const int64_t width = packing.width, panel = first_n / width;
  out += panel * width * packing.padded_k() + first_n % width * 2;
  HWY_DYNAMIC_DISPATCH(transpose_pairs)(in, stride, count_k / 2, out, 2 * width);
}

void pack_rows(const Packing& packing, const uint16_t* in, int64_t stride, uint16_t* out) {
  if (packing.width == 0) {
    for (int64_t k = 0; k < packing.k; ++k) std::copy_n(in + k * stride, packing.n, out + k * packing.n);
    return;
  }
  HWY_DYNAMIC_DISPATCH(pack_panels)(packing, in, stride, out);
}

}  // namespace wi::cpu
#endif
