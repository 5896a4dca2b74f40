// The quantised weight formats (GGUF's blocks), one struct each: where the bytes lie and how 32
// consecutive weights become 8-bit integers. The products (matmul_decode.cpp) and the plain unpacking
// (dequantize.cpp) both stand on these, so each format is written down once.
//
// Blocks of 32:  w = d·q (+ m).                Members: kBytes, kHasMin, kLess, Group<0>, and of all:
// Blocks of 256: w = d·scale_j·q (- dmin·min_j), sub-blocks j of kSub weights. Members: kBytes, kSub,
//                kHasMin, kLess, kLargest (|scale_j·q|), kScaleOffset (of d; dmin follows), Scales and Mins
//                (a byte each, 16 or the first 8 of a vector), Group<0..7>.
// q is what Group gives, 0 to 63, less kLess; of Q8_0 it is a signed byte as it lies. Bytes that q is made of are
// kQuantBytes from kQuants on. Group asks for them where they lie in a block: at.bytes(offset), 32 of them for 32
// weights; at.nibbles(offset), of 16 bytes; at.fifth_bits(offset), of 4. So whoever has them in other order gives that
// order's weights (StoredBytes here, TurnedBytes in turn-inl.h).
#if defined(WI_KERNELS_CPU_QUANTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_KERNELS_CPU_QUANTS_INL_H_
#undef WI_KERNELS_CPU_QUANTS_INL_H_
#else
#define WI_KERNELS_CPU_QUANTS_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/floats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

// 32 weights are kParts vectors of bytes (one, or two of 16), then kVecs vectors of 16-bit integers.
using D8 = hn::CappedTag<uint8_t, 32>;
using D16 = hn::CappedTag<int16_t, 32>;
using V8 = hn::Vec<D8>;
using V16 = hn::Vec<D16>;
constexpr int kLanes8 = static_cast<int>(hn::MaxLanes(D8()));
constexpr int kLanes16 = static_cast<int>(hn::MaxLanes(D16()));
constexpr int kParts = 32 / kLanes8;
constexpr int kVecs = 32 / kLanes16;

// (byte >> shift) & mask, mask ≤ 255 >> shift; to the left where shift is negative.
template <int shift, class V>
HWY_INLINE V Bits(V v, uint8_t mask) {
  const hn::DFromV<V> d;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  if constexpr (shift > 0) v = hn::BitCast(d, hn::ShiftRight<shift>(hn::BitCast(d16, v)));
  if constexpr (shift < 0) v = hn::BitCast(d, hn::ShiftLeft<-shift>(hn::BitCast(d16, v)));
  return hn::And(v, hn::Set(d, mask));
}

// Bit `from` of every byte, moved to bit `to`.
template <int from, int to, class V>
HWY_INLINE V MoveBit(V v) {
  return Bits<from - to>(v, uint8_t{1 << to});
}

using DScales = hn::CappedTag<uint8_t, 16>;
using VScales = hn::Vec<DScales>;
HWY_INLINE VScales FromWords(uint64_t low, uint64_t high) {
  const hn::CappedTag<uint64_t, 1> half;
  const hn::CappedTag<uint64_t, 2> whole;
  return hn::BitCast(DScales(), hn::Combine(whole, hn::Set(half, high), hn::Set(half, low)));
}

// 32 bytes as they are stored, or the part of them that is a vector.
struct StoredBytes {
  const uint8_t* block;
  int part;

  HWY_INLINE V8 bytes(int offset) const { return hn::LoadU(D8(), block + offset + part * kLanes8); }

  // The low ones are weights 0 to 15, the high ones 16 to 31. (A template only so that one branch is compiled.)
  template <class D = D8>
  HWY_INLINE hn::Vec<D> nibbles(int offset) const {
    const hn::CappedTag<uint8_t, 16> d;
    const auto both = hn::LoadU(d, block + offset);
    const auto low = hn::And(both, hn::Set(d, 15));
    const auto high = hn::ShiftRight<4>(both);
    if constexpr (hn::MaxLanes(D()) == 32) {
      return hn::Combine(D(), high, low);
    } else {
      return part ? high : low;
    }
  }

  // Where the bit of a weight is set in a string of 32 bits: 16.
  HWY_INLINE V8 fifth_bits(int offset) const {
    alignas(8) uint8_t bits[8] = {};
    hwy::CopyBytes<kLanes8 / 8>(block + offset + part * kLanes8 / 8, bits);
    return hn::IfThenElseZero(hn::LoadMaskBits(D8(), bits), hn::Set(D8(), 16));
  }
};

struct Q8_0 {  // d, 32 int8
  static constexpr int kBytes = 34;
  static constexpr int kQuants = 2, kQuantBytes = 32;
  static constexpr bool kHasMin = false;
  static constexpr uint8_t kLess = 0;
  template <int, class Bytes>
  static HWY_INLINE auto Group(const Bytes& at) {
    return at.bytes(2);
  }
};

struct Q4_0 {  // d, 16 bytes of nibbles, less 8
  static constexpr int kBytes = 18;
  static constexpr int kQuants = 2, kQuantBytes = 16;
  static constexpr bool kHasMin = false;
  static constexpr uint8_t kLess = 8;
  template <int, class Bytes>
  static HWY_INLINE auto Group(const Bytes& at) {
    return at.nibbles(2);
  }
};

struct Q4_1 {  // d, m, 16 bytes of nibbles
  static constexpr int kBytes = 20;
  static constexpr int kQuants = 4, kQuantBytes = 16;
  static constexpr bool kHasMin = true;
  static constexpr uint8_t kLess = 0;
  template <int, class Bytes>
  static HWY_INLINE auto Group(const Bytes& at) {
    return at.nibbles(4);
  }
};

struct Q5_0 {  // d, 4 bytes of fifth bits, 16 bytes of nibbles, less 16
  static constexpr int kBytes = 22;
  static constexpr int kQuants = 2, kQuantBytes = 20;
  static constexpr bool kHasMin = false;
  static constexpr uint8_t kLess = 16;
  template <int, class Bytes>
  static HWY_INLINE auto Group(const Bytes& at) {
    return hn::Or(at.nibbles(6), at.fifth_bits(2));
  }
};

struct Q5_1 {  // d, m, 4 bytes of fifth bits, 16 bytes of nibbles
  static constexpr int kBytes = 24;
  static constexpr int kQuants = 4, kQuantBytes = 20;
  static constexpr bool kHasMin = true;
  static constexpr uint8_t kLess = 0;
  template <int, class Bytes>
  static HWY_INLINE auto Group(const Bytes& at) {
    return hn::Or(at.nibbles(8), at.fifth_bits(4));
  }
};

struct Q2K {  // 16 bytes of (scale, min) nibbles, 64 bytes of pairs of bits, d, dmin
  static constexpr int kBytes = 84, kSub = 16, kScaleOffset = 80;
  static constexpr int kQuants = 16, kQuantBytes = 64;
  static constexpr bool kHasMin = true;
  static constexpr uint8_t kLess = 0;
  static constexpr int kLargest = 15 * 3;
  static HWY_INLINE VScales Scales(const uint8_t* block) {
    return hn::And(hn::LoadU(DScales(), block), hn::Set(DScales(), 15));
  }
  static HWY_INLINE VScales Mins(const uint8_t* block) {
    return hn::ShiftRight<4>(hn::LoadU(DScales(), block));
  }
  template <int group, class Bytes>
  static HWY_INLINE auto Group(const Bytes& at) {
    return Bits<2 * (group % 4)>(at.bytes(16 + group / 4 * 32), 3);
  }
};

struct Q3K {  // 32 bytes of third bits, 64 bytes of pairs of bits, 16 scales of 6 bits, d; less 4
  static constexpr int kBytes = 110, kSub = 16, kScaleOffset = 108;
  static constexpr int kQuants = 0, kQuantBytes = 96;
  static constexpr bool kHasMin = false;
  static constexpr uint8_t kLess = 4;
  static constexpr int kLargest = 32 * 4;
  static HWY_INLINE VScales Scales(const uint8_t* block) {
    // Bytes 0 to 7 hold the low nibbles of scales 0–7 and 8–15, bytes 8 to 11 the pairs of high bits.
    uint64_t low;
    uint32_t high;
    std::memcpy(&low, block + 96, 8);
    std::memcpy(&high, block + 104, 4);
    const auto pairs = [high](int shift) { return uint64_t{(high >> shift) & 0x03030303} << 4; };
    const uint64_t nibbles = 0x0F0F0F0F0F0F0F0F;
    const uint64_t first = (low & nibbles) | pairs(0) | pairs(2) << 32;
    const uint64_t second = ((low >> 4) & nibbles) | pairs(4) | pairs(6) << 32;
    return hn::Sub(FromWords(first, second), hn::Set(DScales(), 32));
  }
  template <int group, class Bytes>
  static HWY_INLINE auto Group(const Bytes& at) {
    const auto low = Bits<2 * (group % 4)>(at.bytes(32 + group / 4 * 32), 3);
    const auto high = MoveBit<group, 2>(at.bytes(0));
    return hn::Or(low, high);
  }
};

// Eight scales and eight mins of 6 bits in 12 bytes, as Q4K and Q5K keep them: the first four of each in
// the low bits of bytes 0–3 and 4–7, the others in nibbles of bytes 8–11 and the high bits of those.
HWY_INLINE VScales SixBitScales(const uint8_t* p) {
  uint32_t a, c;
  std::memcpy(&a, p, 4);
  std::memcpy(&c, p + 8, 4);
  const uint64_t last = (c & 0x0F0F0F0F) | ((a >> 2) & 0x30303030);
  return FromWords((a & 0x3F3F3F3F) | last << 32, 0);
}
HWY_INLINE VScales SixBitMins(const uint8_t* p) {
  uint32_t b, c;
  std::memcpy(&b, p + 4, 4);
  std::memcpy(&c, p + 8, 4);
  const uint64_t last = ((c >> 4) & 0x0F0F0F0F) | ((b >> 2) & 0x30303030);
  return FromWords((b & 0x3F3F3F3F) | last << 32, 0);
}

struct Q4K {  // d, dmin, 12 bytes of scales and mins, 128 bytes of nibbles
  static constexpr int kBytes = 144, kSub = 32, kScaleOffset = 0;
  static constexpr int kQuants = 16, kQuantBytes = 128;
  static constexpr bool kHasMin = true;
  static constexpr uint8_t kLess = 0;
  static constexpr int kLargest = 63 * 15;
  static HWY_INLINE VScales Scales(const uint8_t* block) { return SixBitScales(block + 4); }
  static HWY_INLINE VScales Mins(const uint8_t* block) { return SixBitMins(block + 4); }
  template <int group, class Bytes>
  static HWY_INLINE auto Group(const Bytes& at) {
    return Bits<4 * (group % 2)>(at.bytes(16 + group / 2 * 32), 15);
  }
};

struct Q5K {  // d, dmin, 12 bytes of scales and mins, 32 bytes of fifth bits, 128 bytes of nibbles
  static constexpr int kBytes = 176, kSub = 32, kScaleOffset = 0;
  static constexpr int kQuants = 16, kQuantBytes = 160;
  static constexpr bool kHasMin = true;
  static constexpr uint8_t kLess = 0;
  static constexpr int kLargest = 63 * 31;
  static HWY_INLINE VScales Scales(const uint8_t* block) { return SixBitScales(block + 4); }
  static HWY_INLINE VScales Mins(const uint8_t* block) { return SixBitMins(block + 4); }
  template <int group, class Bytes>
  static HWY_INLINE auto Group(const Bytes& at) {
    const auto low = Bits<4 * (group % 2)>(at.bytes(48 + group / 2 * 32), 15);
    return hn::Or(low, MoveBit<group, 4>(at.bytes(16)));
  }
};

struct Q6K {  // 128 bytes of nibbles, 64 bytes of pairs of bits, 16 int8 scales, d; less 32
  static constexpr int kBytes = 210, kSub = 16, kScaleOffset = 208;
  static constexpr int kQuants = 0, kQuantBytes = 192;
  static constexpr bool kHasMin = false;
  static constexpr uint8_t kLess = 32;
  static constexpr int kLargest = 128 * 32;
  static HWY_INLINE VScales Scales(const uint8_t* block) { return hn::LoadU(DScales(), block + 192); }
  template <int group, class Bytes>
  static HWY_INLINE auto Group(const Bytes& at) {
    constexpr int half = group / 4, quarter = group % 4;
    const auto low = Bits<quarter / 2 * 4>(at.bytes(half * 64 + quarter % 2 * 32), 15);
    const auto high = Bits<2 * quarter - 4>(at.bytes(128 + half * 32), 0x30);
    return hn::Or(low, high);
  }
};

// The 32 weights of a group as 16-bit integers, in order.
template <class Q, int group>
HWY_INLINE void LoadGroup(const uint8_t* block, V16 (&w)[kVecs]) {
  const hn::RebindToSigned<D8> di8;
  for (int part = 0; part < kParts; part++) {
    auto q = Q::template Group<group>(StoredBytes{block, part});
    if constexpr (Q::kLess > 0) q = hn::Sub(q, hn::Set(D8(), Q::kLess));
    const auto bytes = hn::BitCast(di8, q);
    if constexpr (kVecs == 1) {
      w[0] = hn::PromoteTo(D16(), bytes);
    } else {
      const hn::Half<decltype(di8)> half;
      w[2 * part] = hn::PromoteTo(D16(), hn::LowerHalf(half, bytes));
      w[2 * part + 1] = hn::PromoteTo(D16(), hn::UpperHalf(half, bytes));
    }
  }
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_QUANTS_INL_H_
