// What fills a panel: the weights of a chunk of kPanel outputs, lane by lane the outputs, in each lane a dword of four
// inputs. Bytes are turned as they are stored, 16 of each output at a time, and unpacked in that order, by whole
// vectors: the fewer bits a format has, the less there is to turn.
#if defined(WI_KERNELS_CPU_TURN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_KERNELS_CPU_TURN_INL_H_
#undef WI_KERNELS_CPU_TURN_INL_H_
#else
#define WI_KERNELS_CPU_TURN_INL_H_
#endif

#include <cstring>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/quants-inl.h"
#include "kernels/cpu/scales-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

using L32 = hn::ScalableTag<int32_t>;
using L16 = hn::Repartition<int16_t, L32>;
using LB = hn::Repartition<uint8_t, L32>;
using LF = hn::Rebind<float, L32>;
constexpr int kLanes32 = static_cast<int>(hn::MaxLanes(L32()));
constexpr int kPanelVecs = 2;
constexpr int kPanel = kPanelVecs * kLanes32;  // outputs

// Of a chunk; Q8_0's need no unpacking.
constexpr int kMostQuantBytes = 192;

// Dwords of all outputs, turned: (dword of the block's quants, output, 4).
struct TurnedQuants {
  alignas(64) uint8_t bytes[kMostQuantBytes * kPanel];
};

// Where Group (quants-inl.h) finds a block's bytes in them: four weights of a vector's outputs, of a group of 32 the
// dword 4 · kHalf + dword.
template <class Q, int kHalf>
struct TurnedBytes {
  const uint8_t* block;  // the vector's lanes of its first dword
  int dword;

  HWY_INLINE hn::Vec<LB> dword_at(int offset, int number) const {
    return hn::Load(LB(), block + ((offset - Q::kQuants) / 4 + number) * 4 * kPanel);
  }
  HWY_INLINE hn::Vec<LB> bytes(int offset) const { return dword_at(offset, 4 * kHalf + dword); }
  HWY_INLINE hn::Vec<LB> nibbles(int offset) const { return Bits<4 * kHalf>(dword_at(offset, dword), 15); }
  HWY_INLINE hn::Vec<LB> fifth_bits(int offset) const {
    const hn::Repartition<uint32_t, LB> d32;
    const auto all = hn::BitCast(d32, dword_at(offset, 0));
    const auto four = hn::And(hn::ShiftRightSame(all, 16 * kHalf + 4 * dword), hn::Set(d32, 15));
    // Four bits to the fifth ones of four bytes: copies 7 bits apart have one each where it belongs.
    const auto spread = hn::Mul(four, hn::Set(d32, 1 << 4 | 1 << 11 | 1 << 18 | 1 << 25));
    return hn::BitCast(LB(), hn::And(spread, hn::Set(d32, 0x10101010)));
  }
};

// A chunk's weights of a panel's outputs: as a place and a step, so that few registers reach all of them.
struct PanelOutputs {
  const uint8_t* first;
  int64_t stride;

  HWY_INLINE const uint8_t* operator[](int64_t output) const { return first + output * stride; }
};

// Where fewer outputs than a panel's are left: a copy of theirs, of so many bytes each, with zeros for the others.
struct PanelTail {
  static constexpr int64_t kMostBytes = 272;  // of a chunk in any format
  uint8_t copy[kPanel * kMostBytes];

  HWY_INLINE PanelOutputs whole(const PanelOutputs& rows, int64_t outputs, int64_t bytes) {
    if (outputs >= kPanel) return rows;
    std::memset(copy, 0, sizeof copy);
    for (int64_t o = 0; o < outputs; o++)
      std::memcpy(copy + o * kMostBytes, rows[o], static_cast<size_t>(bytes));
    return {copy, kMostBytes};
  }
};

// Weights of the panel that comes next, on their way while this one's are multiplied: all at once they would take up
// what can wait for memory, and the unpacking would wait behind them.
struct NextPanel {
  PanelOutputs outputs;
  int64_t bytes;  // of each
  int count;      // of outputs there are
  int each;       // of them at a time
  int at = 0;

  HWY_INLINE void fetch() {
    for (const int end = HWY_MIN(at + each, count); at < end; at++) {
      const uint8_t* const begin = outputs[at];
      for (int64_t line = -(reinterpret_cast<intptr_t>(begin) & 63); line < bytes; line += 64)
        __builtin_prefetch(begin + line, 0, 2);
    }
  }
};

// The panels of a run of outputs, in the order in which they are multiplied: of every chunk all, one after the other.
template <class Q>
struct Panels {
  const uint8_t* first_row;
  int64_t stride, outputs;
  int64_t cols;

  HWY_INLINE int64_t count() const { return (outputs + kPanel - 1) / kPanel; }
  HWY_INLINE int groups(int64_t chunk) const {
    return static_cast<int>(HWY_MIN((cols - chunk * kChunk) / 32, kChunk / 32));
  }
  HWY_INLINE int64_t bytes(int64_t chunk) const { return GroupsBytes<Q>(groups(chunk)); }  // of each output
  HWY_INLINE int64_t outputs_of(int64_t panel) const { return HWY_MIN(outputs - panel * kPanel, kPanel); }
  HWY_INLINE PanelOutputs at(int64_t chunk, int64_t panel) const {
    return {first_row + panel * kPanel * stride + chunk * GroupsBytes<Q>(8), stride};
  }
  // What comes after it, in so many times at the most; none after the last.
  HWY_INLINE NextPanel after(int64_t chunk, int64_t panel, int64_t times) const {
    if (++panel == count()) panel = 0, chunk++;
    if (chunk * kChunk >= cols) return {};
    const int64_t all = outputs_of(panel);
    return {at(chunk, panel), bytes(chunk), static_cast<int>(all),
            static_cast<int>((all + times - 1) / times)};
  }
  // Of the first, before which nothing is multiplied: all at once.
  HWY_INLINE void fetch_first() const {
    const int all = static_cast<int>(outputs_of(0));
    NextPanel{at(0, 0), bytes(0), all, all}.fetch();
  }
};

// kBytes each of as many outputs as fit into a vector, kStep outputs apart.
template <int kBytes, int kStep, class D>
HWY_INLINE hn::Vec<D> LoadOutputs(D d, const uint8_t* from, int64_t stride) {
  if constexpr (hn::MaxLanes(D()) <= kBytes) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> half;
    constexpr int kUpper = static_cast<int>(hn::MaxLanes(half)) / kBytes * kStep;
    return hn::Combine(d, LoadOutputs<kBytes, kStep>(half, from + kUpper * stride, stride),
                       LoadOutputs<kBytes, kStep>(half, from, stride));
  }
}

// dwords (4): of each 128 bits of four vectors the first dwords, the second, …
template <int kBytes, int kStep>
HWY_INLINE void TurnFour(const uint8_t* from, int64_t stride, hn::Vec<LB> (&dwords)[4]) {
  const hn::Repartition<uint32_t, LB> d32;
  const hn::Repartition<uint64_t, LB> d64;
  const auto wide = [&](auto v) HWY_ATTR { return hn::BitCast(d64, v); };
  const auto load = [&](int i) HWY_ATTR {
    return hn::BitCast(d32, LoadOutputs<kBytes, kStep>(LB(), from + i * stride, stride));
  };
  const auto a = load(0), b = load(1), c = load(2), e = load(3);
  const auto ab = wide(hn::InterleaveLower(d32, a, b)), ce = wide(hn::InterleaveLower(d32, c, e));
  const auto ab2 = wide(hn::InterleaveUpper(d32, a, b)), ce2 = wide(hn::InterleaveUpper(d32, c, e));
  dwords[0] = hn::BitCast(LB(), hn::InterleaveLower(d64, ab, ce));
  dwords[1] = hn::BitCast(LB(), hn::InterleaveUpper(d64, ab, ce));
  dwords[2] = hn::BitCast(LB(), hn::InterleaveLower(d64, ab2, ce2));
  dwords[3] = hn::BitCast(LB(), hn::InterleaveUpper(d64, ab2, ce2));
}

// use(i, dword): of a vector's outputs the dwords of kBytes, 16 or 32, from `from` on. Loads are what limits this:
// those of 32 bytes are half as many.
template <int kBytes, class Use>
HWY_INLINE void TurnOutputs(const uint8_t* from, int64_t stride, const Use& use) {
  hn::Vec<LB> first[4];
  if constexpr (kBytes == 16) {
    TurnFour<16, 4>(from, stride, first);
    for (int i = 0; i < 4; i++) use(i, first[i]);
  } else if constexpr (kLanes32 == 4) {
    TurnOutputs<16>(from, stride, use);
    TurnOutputs<16>(from + 16, stride, [&](int i, auto dword) HWY_ATTR { use(4 + i, dword); });
  } else {
    // By 128 bits: of four outputs the dwords i and 4 + i; in vectors of 512 bits, of the next four outputs likewise.
    hn::Vec<LB> second[4];
    TurnFour<32, 4>(from, stride, first);
    TurnFour<32, 4>(from + kLanes32 / 2 * stride, stride, second);
    for (int i = 0; i < 4; i++) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
      const auto all = [&](auto which) HWY_ATTR {
        return hn::Vec<LB>{_mm512_shuffle_i64x2(first[i].raw, second[i].raw, which.value)};
      };
      use(i, all(std::integral_constant<int, 0x88>()));
      use(4 + i, all(std::integral_constant<int, 0xDD>()));
#else
      use(i, hn::ConcatLowerLower(LB(), second[i], first[i]));
      use(4 + i, hn::ConcatUpperUpper(LB(), second[i], first[i]));
#endif
    }
  }
}

template <class Q, int group, int kHalf, class Use>
HWY_INLINE void UnpackTurned(const uint8_t* block, const Use& use) {
  constexpr int in_block = kHasBlocks256<Q> ? group : 0;
  for (int dword = 0; dword < 4; dword++)
    for (int vec = 0; vec < kPanelVecs; vec++)
      use(group, 4 * kHalf + dword, vec,
          Q::template Group<in_block>(TurnedBytes<Q, kHalf>{block + vec * 4 * kLanes32, dword}));
}

template <class Q, class Use, int... group>
HWY_INLINE void UnpackTurnedGroups(std::integer_sequence<int, group...>, int groups, const uint8_t* turned,
                                   const Use& use) {
  const auto unpack = [&](auto number, int64_t at) HWY_ATTR {
    if (number.value >= groups) return;
    const uint8_t* block = turned + (kHasBlocks256<Q> ? 0 : at * Q::kQuantBytes * kPanel);
    UnpackTurned<Q, number.value, 0>(block, use);
    UnpackTurned<Q, number.value, 1>(block, use);
  };
  (unpack(std::integral_constant<int, group>(), group), ...);
}

// use(group, dword, vec, weights): every dword of the chunk's groups of 32 inputs, as Group gives them.
template <class Q, class Use>
HWY_INLINE void EachDword(const PanelOutputs& outputs, int groups, TurnedQuants& turned, const Use& use) {
  if constexpr (std::is_same_v<Q, Q8_0>) {
    for (int vec = 0; vec < kPanelVecs; vec++) {
      const uint8_t* from = outputs[vec * kLanes32] + Q::kQuants;
      for (int group = 0; group < groups; group++, from += Q::kBytes)
        TurnOutputs<32>(from, outputs.stride, [&](int i, auto dword) HWY_ATTR { use(group, i, vec, dword); });
    }
  } else {
    constexpr int kEach = Q::kQuantBytes % 32 == 0 ? 32 : 16;
    const int blocks = kHasBlocks256<Q> ? 1 : groups;
    for (int vec = 0; vec < kPanelVecs; vec++) {
      const uint8_t* from = outputs[vec * kLanes32] + Q::kQuants;
      uint8_t* to = turned.bytes + vec * 4 * kLanes32;
      for (int block = 0; block < blocks; block++, from += Q::kBytes, to += Q::kQuantBytes * kPanel)
        for (int next = 0; next < Q::kQuantBytes; next += kEach) {
          const int first = HWY_MIN(next, Q::kQuantBytes - kEach);  // the last ones may have some twice
          TurnOutputs<kEach>(from + first, outputs.stride, [&](int i, auto dword) HWY_ATTR {
            hn::Store(dword, LB(), to + (first / 4 + i) * 4 * kPanel);
          });
        }
    }
    UnpackTurnedGroups<Q>(std::make_integer_sequence<int, 8>(), groups, turned.bytes, use);
  }
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_TURN_INL_H_
