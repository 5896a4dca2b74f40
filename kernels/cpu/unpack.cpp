// Everything to bf16, rounded to nearest even: f32, f16 and q8_0 directly, other quantised types through f32
// in pieces that stay in the first-level cache. Prefill unpacks each weight once per chunk of a prompt.
#include "kernels/cpu/unpack.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu.h"

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

// Two vectors as bf16, in order.
HWY_INLINE void store_bf16(V low, V high, uint16_t* out) {
  const hn::Repartition<uint16_t, F> d;
  hn::StoreU(hn::ConcatOdd(d, hn::BitCast(d, rounded(high)), hn::BitCast(d, rounded(low))), d, out);
}

void f32_to_bf16(const float* in, uint16_t* out, int64_t count) {
  const F d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes)
    store_bf16(hn::LoadU(d, in + i), hn::LoadU(d, in + i + lanes), out + i);
  if (i == count) return;
  float last[32] = {};
  uint16_t narrow[32];
  std::copy(in + i, in + count, last);
  store_bf16(hn::LoadU(d, last), hn::LoadU(d, last + lanes), narrow);
  std::copy(narrow, narrow + (count - i), out + i);
}

void f16_to_bf16(const uint16_t* in, uint16_t* out, int64_t count) {
  const F d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto load = [&](const uint16_t* from)
                  HWY_ATTR { return LoadFloats(d, reinterpret_cast<const hwy::float16_t*>(from)); };
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) store_bf16(load(in + i), load(in + i + lanes), out + i);
  if (i == count) return;
  uint16_t last[32] = {}, narrow[32];
  std::copy(in + i, in + count, last);
  store_bf16(load(last), load(last + lanes), narrow);
  std::copy(narrow, narrow + (count - i), out + i);
}

// Blocks of an f16 scale and 32 signed bytes.
void q8_0_to_bf16(const uint8_t* in, uint16_t* out, int64_t count) {
  constexpr int64_t kBlock = 32, kBlockBytes = 34, kPiece = 64;
  const F d;
  const hn::Rebind<int32_t, F> di;
  const hn::Rebind<int8_t, F> d8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t first = 0; first < count / kBlock; first += kPiece) {
    const int64_t blocks = std::min(kPiece, count / kBlock - first);
    HWY_ALIGN uint16_t halves[kPiece] = {};
    HWY_ALIGN float scales[kPiece];
    for (int64_t b = 0; b < blocks; ++b) std::memcpy(&halves[b], in + (first + b) * kBlockBytes, 2);
    for (int64_t b = 0; b < kPiece; b += lanes)
      hn::StoreU(LoadFloats(d, reinterpret_cast<const hwy::float16_t*>(halves + b)), d, scales + b);
    for (int64_t b = 0; b < blocks; ++b) {
      const int8_t* bytes = reinterpret_cast<const int8_t*>(in + (first + b) * kBlockBytes + 2);
      const V scale = hn::Set(d, scales[b]);
      auto load = [&](int64_t j) HWY_ATTR {
        return hn::Mul(hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, bytes + j))), scale);
      };
      for (int64_t j = 0; j < kBlock; j += 2 * lanes)
        store_bf16(load(j), load(j + lanes), out + (first + b) * kBlock + j);
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

void unpack_bf16(const void* in, DType type, uint16_t* out, int64_t count) {
  switch (type) {
    case DType::f32:
      return HWY_DYNAMIC_DISPATCH(f32_to_bf16)(static_cast<const float*>(in), out, count);
    case DType::f16:
      return HWY_DYNAMIC_DISPATCH(f16_to_bf16)(static_cast<const uint16_t*>(in), out, count);
    case DType::bf16:
      std::memcpy(out, in, static_cast<size_t>(count) * 2);
      return;
    case DType::q8_0:
      return HWY_DYNAMIC_DISPATCH(q8_0_to_bf16)(static_cast<const uint8_t*>(in), out, count);
    default:
      break;
  }
  constexpr int64_t kPiece = 1024;  // whole blocks of every type
  alignas(64) float wide[kPiece];
  for (int64_t i = 0; i < count; i += kPiece) {
    const int64_t elements = std::min(kPiece, count - i);
    dequantize(static_cast<const std::byte*>(in) + row_bytes(type, i), type, wide, elements);
    HWY_DYNAMIC_DISPATCH(f32_to_bf16)(wide, out + i, elements);
  }
}

}  // namespace wi::cpu
#endif
