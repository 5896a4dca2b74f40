// What fills a panel: the weights of a chunk of kPanel outputs, lane by lane the outputs, in each lane a dword of four
// inputs. Bytes are turned as they are stored, 16 of each output at a time, and unpacked in that order, by whole
// vectors: the fewer bits a format has, the less there is to turn. Of a matrix that is turned (turned_rows.h) they are
// in that order already.
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
#include "kernels/turned_rows.h"

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
// dword 4 · kHalf + dword. kStep: bytes from dword to dword.
template <class Q, int kHalf, int kStep>
struct TurnedBytes {
  const uint8_t* block;  // the vector's lanes of its first dword
  int dword;

  HWY_INLINE hn::Vec<LB> dword_at(int offset, int number) const {
    return hn::Load(LB(), block + ((offset - Q::kQuants) / 4 + number) * kStep);
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

template <class Q>
constexpr bool kCanBeTurned = !kHasBlocks256<Q>;

// A chunk's weights of a panel's outputs in a matrix that is turned.
struct TurnedOutputs {
  const uint8_t* block;  // the first, of kTurnedRows outputs
  int64_t first;         // of those, the panel's first one

  // (dword, output, 4): those of the chunk's block
  template <class Q>
  HWY_INLINE const uint8_t* quants(int64_t number) const {
    return block + kTurnedRows * (number * Q::kBytes + Q::kBytes - Q::kQuantBytes) + 4 * first;
  }
};

// Weights of the panel that comes next, on their way while this one's are multiplied: all at once they would take up
// what can wait for memory, and the unpacking would wait behind them.
struct NextPanel {
  PanelOutputs outputs;
  int64_t bytes;         // of each
  int count;             // of outputs there are
  int each;              // of them at a time
  bool nearest = false;  // into the first cache, from which they are multiplied as they are
  int at = 0;

  HWY_INLINE void fetch() {
    for (const int end = HWY_MIN(at + each, count); at < end; at++) {
      const uint8_t* const begin = outputs[at];
      for (int64_t line = -(reinterpret_cast<intptr_t>(begin) & 63); line < bytes; line += 64)
        if (nearest)
          __builtin_prefetch(begin + line, 0, 3);
        else
          __builtin_prefetch(begin + line, 0, 2);
    }
  }
};

// A run of outputs, of which panels are made.
struct OutputRun {
  const uint8_t* first_row;
  int64_t stride, outputs;
  int64_t cols;

  HWY_INLINE int64_t count() const { return (outputs + kPanel - 1) / kPanel; }
  HWY_INLINE int groups(int64_t chunk) const {
    return static_cast<int>(HWY_MIN((cols - chunk * kChunk) / 32, kChunk / 32));
  }
};

// Its panels, in the order in which they are multiplied: of every chunk all, one after the other.
template <class Q>
struct Panels : OutputRun {
  HWY_INLINE int64_t bytes(int64_t chunk) const { return GroupsBytes<Q>(groups(chunk)); }  // of each output
  HWY_INLINE int64_t outputs_of(int64_t panel) const { return HWY_MIN(outputs - panel * kPanel, kPanel); }
  HWY_INLINE PanelOutputs at(int64_t chunk, int64_t panel) const {
    return {first_row + panel * kPanel * stride + chunk * GroupsBytes<Q>(8), stride};
  }
  HWY_INLINE PanelOutputs outputs_at(int64_t chunk, int64_t panel, PanelTail& tail) const {
    return tail.whole(at(chunk, panel), outputs_of(panel), bytes(chunk));
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

// The same of a matrix that is turned, where they begin and end with kTurnedRows.
template <class Q>
struct TurnedPanels : OutputRun {
  HWY_INLINE int64_t outputs_of(int64_t) const { return kPanel; }
  HWY_INLINE TurnedOutputs at(int64_t chunk, int64_t panel) const {
    const int64_t output = panel * kPanel, first = output % kTurnedRows;
    return {first_row + (output - first) * stride + chunk * GroupsBytes<Q>(8) * kTurnedRows, first};
  }
  HWY_INLINE TurnedOutputs outputs_at(int64_t chunk, int64_t panel, PanelTail&) const {
    return at(chunk, panel);
  }
  // Line by line; where a panel is less than what lies together, with the first one all of it.
  HWY_INLINE NextPanel after(int64_t chunk, int64_t panel, int64_t times) const {
    if (++panel == count()) panel = 0, chunk++;
    if (chunk * kChunk >= cols) return {};
    const TurnedOutputs next = at(chunk, panel);
    if (next.first > 0) return {};
    const int64_t lines = kTurnedRows * GroupsBytes<Q>(groups(chunk)) / 64;
    return {{next.block, 64},
            64,
            static_cast<int>(lines),
            static_cast<int>((lines + times - 1) / times),
            kPanel == kTurnedRows};
  }
  HWY_INLINE void fetch_first() const { after(-1, count() - 1, 1).fetch(); }
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

template <class Q, int group, int kHalf, int kStep, class Use>
HWY_INLINE void UnpackTurned(const uint8_t* block, const Use& use) {
  constexpr int in_block = kHasBlocks256<Q> ? group : 0;
  for (int dword = 0; dword < 4; dword++)
    for (int vec = 0; vec < kPanelVecs; vec++)
      use(group, 4 * kHalf + dword, vec,
          Q::template Group<in_block>(TurnedBytes<Q, kHalf, kStep>{block + vec * 4 * kLanes32, dword}));
}

// block(i): where the dwords of a block of 32 are, or of the one of 256.
template <class Q, int kStep, class Block, class Use, int... group>
HWY_INLINE void UnpackTurnedGroups(std::integer_sequence<int, group...>, int groups, const Block& block,
                                   const Use& use) {
  const auto unpack = [&](auto number, int64_t at) HWY_ATTR {
    if (number.value >= groups) return;
    const uint8_t* const of_group = block(kHasBlocks256<Q> ? 0 : at);
    UnpackTurned<Q, number.value, 0, kStep>(of_group, use);
    UnpackTurned<Q, number.value, 1, kStep>(of_group, use);
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
    UnpackTurnedGroups<Q, 4 * kPanel>(
        std::make_integer_sequence<int, 8>(), groups,
        [&](int64_t block) HWY_ATTR { return turned.bytes + block * Q::kQuantBytes * kPanel; }, use);
  }
}

template <class Q, class Use>
HWY_INLINE void EachDword(const TurnedOutputs& outputs, int groups, TurnedQuants&, const Use& use) {
  constexpr int kStep = 4 * kTurnedRows;
  const auto block = [&](int64_t number) HWY_ATTR { return outputs.quants<Q>(number); };
  if constexpr (std::is_same_v<Q, Q8_0>) {
    for (int group = 0; group < groups; group++)
      for (int dword = 0; dword < 8; dword++)
        for (int vec = 0; vec < kPanelVecs; vec++)
          use(group, dword, vec,
              hn::Xor(hn::Load(LB(), block(group) + dword * kStep + vec * 4 * kLanes32),
                      hn::Set(LB(), kTurnedBias)));
  } else {
    UnpackTurnedGroups<Q, kStep>(std::make_integer_sequence<int, 8>(), groups, block, use);
  }
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_TURN_INL_H_
