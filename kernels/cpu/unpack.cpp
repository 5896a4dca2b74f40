// Everything to one or two bf16 parts, rounded to nearest even: f32, f16 and q8_0 directly, other quantised
// types through f32 in pieces that stay in the first-level cache. Prefill unpacks each weight once per chunk
// of a prompt.
#include "kernels/cpu/unpack.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/unpack.cpp"
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include "hwy/highway.h"
#include "kernels/cpu/floats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
using F = hn::CappedTag<float, 16>;
using V = hn::Vec<F>;

HWY_INLINE hn::Vec<hn::RebindToUnsigned<F>> rounded(V v) {
  const hn::RebindToUnsigned<F> d;
  auto bits = hn::BitCast(d, v);
  auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  return hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fffu)));
}

// Where converted numbers go: x1 and, unless it is null, x2 = bf16(x - x1).
struct Parts {
  uint16_t* first;
  uint16_t* second;
};

// Two vectors as bf16, in order.
HWY_INLINE void store_bf16(V low, V high, const Parts& out, int64_t at) {
  const F d;
  const hn::RebindToUnsigned<F> du;
  const hn::Repartition<uint16_t, F> d16;
  const auto upper = hn::Set(du, 0xffff0000u);
  const auto bits0 = rounded(low), bits1 = rounded(high);
  hn::StoreU(hn::ConcatOdd(d16, hn::BitCast(d16, bits1), hn::BitCast(d16, bits0)), d16, out.first + at);
  if (!out.second) return;
  const auto rest0 = rounded(hn::Sub(low, hn::BitCast(d, hn::And(bits0, upper))));
  const auto rest1 = rounded(hn::Sub(high, hn::BitCast(d, hn::And(bits1, upper))));
  hn::StoreU(hn::ConcatOdd(d16, hn::BitCast(d16, rest1), hn::BitCast(d16, rest0)), d16, out.second + at);
}

// T: float or hwy::float16_t.
template <class T>
HWY_INLINE void convert(const T* in, int64_t count, const Parts& out) {
  const F d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes)
    store_bf16(LoadFloats(d, in + i), LoadFloats(d, in + i + lanes), out, i);
  if (i == count) return;
  T last[32] = {};
  uint16_t first[32], second[32];
  std::memcpy(last, in + i, static_cast<size_t>(count - i) * sizeof(T));
  store_bf16(LoadFloats(d, last), LoadFloats(d, last + lanes), {first, second}, 0);
  std::copy(first, first + (count - i), out.first + i);
  if (out.second) std::copy(second, second + (count - i), out.second + i);
}

void f32_to_bf16(const float* in, int64_t count, uint16_t* first, uint16_t* second) {
  convert(in, count, {first, second});
}

void f16_to_bf16(const uint16_t* in, int64_t count, uint16_t* first, uint16_t* second) {
  convert(reinterpret_cast<const hwy::float16_t*>(in), count, {first, second});
}

// Blocks of an f16 scale and 32 signed bytes.
void q8_0_to_bf16(const uint8_t* in, int64_t count, uint16_t* first, uint16_t* second) {
  constexpr int64_t kBlock = 32, kBlockBytes = 34, kPiece = 64;
  const F d;
  const hn::Rebind<int32_t, F> di;
  const hn::Rebind<int8_t, F> d8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t begin = 0; begin < count / kBlock; begin += kPiece) {
    const int64_t blocks = std::min(kPiece, count / kBlock - begin);
    HWY_ALIGN uint16_t halves[kPiece] = {};
    HWY_ALIGN float scales[kPiece];
    for (int64_t b = 0; b < blocks; ++b) std::memcpy(&halves[b], in + (begin + b) * kBlockBytes, 2);
    for (int64_t b = 0; b < kPiece; b += lanes)
      hn::StoreU(LoadFloats(d, reinterpret_cast<const hwy::float16_t*>(halves + b)), d, scales + b);
    for (int64_t b = 0; b < blocks; ++b) {
      const int8_t* bytes = reinterpret_cast<const int8_t*>(in + (begin + b) * kBlockBytes + 2);
      const V scale = hn::Set(d, scales[b]);
      auto load = [&](int64_t j) HWY_ATTR {
        return hn::Mul(hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, bytes + j))), scale);
      };
      for (int64_t j = 0; j < kBlock; j += 2 * lanes)
        store_bf16(load(j), load(j + lanes), {first, second}, (begin + b) * kBlock + j);
    }
  }
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wi::cpu {

HWY_EXPORT(f32_to_bf16);
HWY_EXPORT(f16_to_bf16);
HWY_EXPORT(q8_0_to_bf16);

void unpack_parts(const void* in, DType type, int64_t count, uint16_t* first, uint16_t* second) {
  switch (type) {
    case DType::f32:
      return HWY_DYNAMIC_DISPATCH(f32_to_bf16)(static_cast<const float*>(in), count, first, second);
    case DType::f16:
      return HWY_DYNAMIC_DISPATCH(f16_to_bf16)(static_cast<const uint16_t*>(in), count, first, second);
    case DType::bf16:
      std::memcpy(first, in, static_cast<size_t>(count) * sizeof(uint16_t));
      if (second) std::memset(second, 0, static_cast<size_t>(count) * sizeof(uint16_t));
      return;
    case DType::q8_0:
      return HWY_DYNAMIC_DISPATCH(q8_0_to_bf16)(static_cast<const uint8_t*>(in), count, first, second);
    default:
      break;
  }
  constexpr int64_t kPiece = 1024;  // whole blocks of every type
  alignas(64) float wide[kPiece];
  for (int64_t i = 0; i < count; i += kPiece) {
    const int64_t elements = std::min(kPiece, count - i);
    dequantize(static_cast<const std::byte*>(in) + row_bytes(type, i), type, wide, elements);
    HWY_DYNAMIC_DISPATCH(f32_to_bf16)(wide, elements, first + i, second ? second + i : nullptr);
  }
}

int bf16_terms(Precision precision, DType type) {
  if (type == DType::f32 || precision == Precision::f32) return 0;
  if (precision == Precision::fast || precision == Precision::int8) return has_fast_bf16() ? 1 : 0;
  if (!has_fast_bf16_tiles()) return 0;
  return type == DType::bf16 ? 2 : 3;
}

void unpack_left(const float* in, int64_t count, int terms, uint16_t* out) {
  unpack_parts(in, DType::f32, count, out, terms > 1 ? out + count : nullptr);
  if (terms > 2) std::copy_n(out, count, out + 2 * count);
}

void unpack_right(const void* in, DType type, int64_t count, int terms, int64_t apart, uint16_t* out) {
  unpack_parts(in, type, count, out, terms > 2 ? out + 2 * apart : nullptr);
  if (terms > 1) std::copy_n(out, count, out + apart);
}

}  // namespace wi::cpu
#endif
