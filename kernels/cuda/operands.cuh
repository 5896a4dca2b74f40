// Weights as the right operand of tensor cores, straight from device memory: a lane loads of an output's 32 inputs
// eight that lie together and are its own in two products of 16 inputs, for a sum does not mind in which places
// of a product its inputs are, as long as the other operand has them in the same. Numbers of quantised weights are
// small integers, exact in f16; scales and minimums go to the sums.
#pragma once

#include "kernels/cuda/quants.cuh"
#include "kernels/cuda/tensor_cores.cuh"

namespace wi::cuda {

constexpr int kStepInputs = 64;  // what is loaded at a time, in halves of 32

// What operands are made of weights of a type.
template <DType kType>
struct OperandOf {
  static constexpr bool kQuantised = format_of(kType).elements > 1;
  static constexpr bool kMinimums = kType == DType::q4_k || kType == DType::q5_k;
  // Sixteen inputs have a scale of their own; else 32 share theirs.
  static constexpr bool kScaleEach16 = kType == DType::q6_k;
  // A lane's inputs are four of the first sixteen and four of the others; else the eight from 8 · (lane % 4) on.
  static constexpr bool kApart = kType == DType::q4_0 || kType == DType::q6_k;
  static constexpr DType kNumbers = kType == DType::bf16 ? DType::bf16 : DType::f16;
};

// Inputs [i, i + 4) of a lane's eight begin here, of 32; i: 0 or 4.
template <DType kType>
__device__ __forceinline__ int operand_column(int i) {
  const int quarter = lane_of() % 4;
  return OperandOf<kType>::kApart ? quarter * 4 + i * 4 : quarter * 8 + i;
}

// Four integers of 0 to 255 in bytes, less `less`, as f16, in two words.
__device__ __forceinline__ void halves_of_bytes(unsigned bytes, unsigned less, unsigned& first,
                                                unsigned& second) {
  constexpr unsigned k1024 = 0x64006400;  // in f16: a byte in the low bits adds itself
  union {
    unsigned word;
    __half2 pair;
  } a, b, offset;
  a.word = __byte_perm(bytes, k1024, 0x5150);
  b.word = __byte_perm(bytes, k1024, 0x5352);
  offset.word = k1024 + less * 0x10001;
  a.pair = __hsub2(a.pair, offset.pair);
  b.pair = __hsub2(b.pair, offset.pair);
  first = a.word;
  second = b.word;
}

// Four or eight bytes that are aligned to two, as words and a half of one: what is between words is put together when
// it is used, so that nothing waits for a load where it is made. Bytes between words have two before them.
__device__ __forceinline__ const unsigned* words_of(const uint8_t* at) {
  return reinterpret_cast<const unsigned*>(at - (reinterpret_cast<uintptr_t>(at) & 3));
}
__device__ __forceinline__ unsigned load_half_word(const uint8_t* at) {
  return load_line(reinterpret_cast<const unsigned short*>(at));
}
// Of an address's low bits.
__device__ __forceinline__ bool between_words(unsigned at) { return at & 2; }
__device__ __forceinline__ unsigned join_words(unsigned first, unsigned next, bool between) {
  return __byte_perm(first, next, between ? 0x5432 : 0x3210);
}
__device__ __forceinline__ unsigned low_bits_of(const std::byte* at) {
  return static_cast<unsigned>(reinterpret_cast<uintptr_t>(at));
}

// Byte i of a word, i in [0, 4), and bits above it.
__device__ __forceinline__ unsigned from_byte(unsigned word, int i) { return word >> (i * 8); }

// A lane's numbers of an output: of a step of 64 inputs, loaded a half at a time, and a half as words of two.
// load() takes the output's row; beyond the last input it is one of those before again, which the zeros of the other
// operand are multiplied by. It waits for nothing, and what it loads is put together by unpack() and the others,
// which come before the next load() of the same half. A half's scales are for its first and its other 16 inputs.
template <DType kType>
struct LaneWeights {
  static_assert(kType == DType::f16 || kType == DType::bf16);
  __device__ __forceinline__ void load(const std::byte* row, int step, int half, int inputs) {
    const int column = min(step * kStepInputs + half * 32 + operand_column<kType>(0), inputs - 8);
    words[half] = load_line(reinterpret_cast<const uint4*>(row + int64_t{column} * 2));
  }
  __device__ __forceinline__ void unpack(int, int half, unsigned (&pairs)[4]) const {
    pairs[0] = words[half].x;
    pairs[1] = words[half].y;
    pairs[2] = words[half].z;
    pairs[3] = words[half].w;
  }

  uint4 words[2];
};

// Of those that may come by way of shared memory (load_staged()): bytes of a step, and the most pieces of 16 bytes that
// they are in, wherever they begin.
template <DType kType>
struct StagedWeights {
  static constexpr int kStepBytes = 0, kPieces = 0;
};
template <>
struct StagedWeights<DType::q8_0> {
  static constexpr int kStepBytes = 68, kPieces = 6;
};
template <>
struct StagedWeights<DType::q4_0> {
  static constexpr int kStepBytes = 36, kPieces = 4;
};

// Blocks of 34 bytes.
template <>
struct LaneWeights<DType::q8_0> {
  __device__ __forceinline__ void load(const std::byte* row, int step, int half, int inputs) {
    const int block = min(step * 2 + half, inputs / 32 - 1);
    const uint8_t* const at = reinterpret_cast<const uint8_t*>(row) + int64_t{block} * 34;
    const uint8_t* const own = at + 2 + operand_column<DType::q8_0>(0);
    scales[half] = load_line(reinterpret_cast<const unsigned short*>(at));
    first[half] = load_line(words_of(own));
    second[half] = load_line(words_of(own) + 1);
    last[half] = load_half_word(own + 6);
    row_at = low_bits_of(row);
  }
  // From the block's memory, whose byte `at`, as far from a multiple of 16 as in its row, is the step's first.
  __device__ __forceinline__ void load_staged(const std::byte* memory, int at, int step, int half,
                                              int inputs) {
    const int block = at + (step * 2 + half < inputs / 32 ? half : 0) * 34;
    const int own = block + 2 + operand_column<DType::q8_0>(0);
    const unsigned* const words = reinterpret_cast<const unsigned*>(memory + (own & ~3));
    scales[half] = *reinterpret_cast<const unsigned short*>(memory + block);
    first[half] = words[0];
    second[half] = words[1];
    last[half] = *reinterpret_cast<const unsigned short*>(memory + own + 6);
    row_at = static_cast<unsigned>(at);
  }
  __device__ __forceinline__ void unpack(int, int half, unsigned (&pairs)[4]) const {
    const bool between = between_words(row_at + half * 34 + 2);  // two blocks are words
    halves_of_bytes(join_words(first[half], second[half], between) ^ 0x80808080, 128, pairs[0], pairs[1]);
    halves_of_bytes(join_words(second[half], last[half], between) ^ 0x80808080, 128, pairs[2], pairs[3]);
  }
  __device__ __forceinline__ float scale(int, int half, int) const {
    return __half2float(__ushort_as_half(scales[half]));
  }

  unsigned first[2], second[2], last[2], row_at;
  unsigned short scales[2];
};

// Blocks of 18 bytes; a byte holds an input of the first sixteen and one of the others.
template <>
struct LaneWeights<DType::q4_0> {
  __device__ __forceinline__ void load(const std::byte* row, int step, int half, int inputs) {
    const int block = min(step * 2 + half, inputs / 32 - 1);
    const uint8_t* const at = reinterpret_cast<const uint8_t*>(row) + int64_t{block} * 18;
    const uint8_t* const own = at + 2 + operand_column<DType::q4_0>(0);
    scales[half] = load_line(reinterpret_cast<const unsigned short*>(at));
    first[half] = load_line(words_of(own));
    last[half] = load_half_word(own + 2);
    row_at = low_bits_of(row);
  }
  // From the block's memory, whose byte `at`, as far from a multiple of 16 as in its row, is the step's first.
  __device__ __forceinline__ void load_staged(const std::byte* memory, int at, int step, int half,
                                              int inputs) {
    const int block = at + (step * 2 + half < inputs / 32 ? half : 0) * 18;
    const int own = block + 2 + operand_column<DType::q4_0>(0);
    const unsigned* const words = reinterpret_cast<const unsigned*>(memory + (own & ~3));
    scales[half] = *reinterpret_cast<const unsigned short*>(memory + block);
    first[half] = words[0];
    last[half] = *reinterpret_cast<const unsigned short*>(memory + own + 2);
    row_at = static_cast<unsigned>(at);
  }
  __device__ __forceinline__ void unpack(int, int half, unsigned (&pairs)[4]) const {
    const bool between = between_words(row_at + half * 18 + 2);  // two blocks are words
    const unsigned both = join_words(first[half], last[half], between);
    halves_of_bytes(both & 0x0F0F0F0F, 8, pairs[0], pairs[1]);
    halves_of_bytes(both >> 4 & 0x0F0F0F0F, 8, pairs[2], pairs[3]);
  }
  __device__ __forceinline__ float scale(int, int half, int) const {
    return __half2float(__ushort_as_half(scales[half]));
  }

  unsigned first[2], last[2], row_at;
  unsigned short scales[2];
};

// Of a block of 256 inputs, whose rows are multiples of 16 bytes long, a step is two sub-blocks: the low and the
// high halves of the same 32 bytes, which come with the second half's load.
template <DType kType>
struct LaneWeightsWithMinimums {
  static constexpr bool kFifth = kType == DType::q5_k;
  __device__ __forceinline__ void load(const std::byte* row, int step, int half, int) {
    if (half == 0) return;
    const uint8_t* const block =
        reinterpret_cast<const uint8_t*>(row) + int64_t{step / 4} * format_of(kType).bytes;
    const int column = operand_column<kType>(0);
    header = load_line(reinterpret_cast<const uint4*>(block));
    low = load_line(reinterpret_cast<const uint2*>(block + (kFifth ? 48 : 16) + step % 4 * 32 + column));
    if constexpr (kFifth) high = load_line(reinterpret_cast<const uint2*>(block + 16 + column));
  }
  __device__ __forceinline__ void unpack(int step, int half, unsigned (&pairs)[4]) const {
    unsigned first = low.x >> (half * 4) & 0x0F0F0F0F, second = low.y >> (half * 4) & 0x0F0F0F0F;
    if constexpr (kFifth) {
      const int sub = step % 4 * 2 + half;
      first |= (high.x >> sub & 0x01010101) << 4;
      second |= (high.y >> sub & 0x01010101) << 4;
    }
    halves_of_bytes(first, 0, pairs[0], pairs[1]);
    halves_of_bytes(second, 0, pairs[2], pairs[3]);
  }
  // As scale_and_min() has them, the block's twelve bytes in three words.
  __device__ __forceinline__ float scale(int step, int half, int) const {
    const int at = step % 2 * 2 + half;
    const unsigned bits = step % 4 < 2
                              ? from_byte(header.y, at) & 63
                              : (from_byte(header.w, at) & 15) | (from_byte(header.y, at) >> 6 & 3) << 4;
    return half_of(header.x & 0xFFFF) * static_cast<float>(bits);
  }
  __device__ __forceinline__ float minimum(int step, int half) const {
    const int at = step % 2 * 2 + half;
    const unsigned bits = step % 4 < 2
                              ? from_byte(header.z, at) & 63
                              : (from_byte(header.w, at) >> 4 & 15) | (from_byte(header.z, at) >> 6 & 3) << 4;
    return -(half_of(header.x >> 16) * static_cast<float>(bits));
  }
  __device__ __forceinline__ static float half_of(unsigned bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
  }

  uint4 header;
  uint2 low, high;
};
template <>
struct LaneWeights<DType::q4_k> : LaneWeightsWithMinimums<DType::q4_k> {};
template <>
struct LaneWeights<DType::q5_k> : LaneWeightsWithMinimums<DType::q5_k> {};

// Blocks of 210 bytes: a step is two quarters of a half of one, whose upper two bits lie in the same bytes.
template <>
struct LaneWeights<DType::q6_k> {
  // Four bytes, and what of them is in the next word.
  struct Four {
    __device__ __forceinline__ void load(const uint8_t* at) {
      first = load_line(words_of(at));
      last = load_half_word(at + 2);
    }
    unsigned first, last;
  };
  __device__ __forceinline__ void load(const std::byte* row, int step, int half, int) {
    const uint8_t* const block = reinterpret_cast<const uint8_t*>(row) + int64_t{step / 4} * 210;
    const int in_block = step % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int column = operand_column<DType::q6_k>(i * 4);
      low[half][i].load(block + in_block / 2 * 64 + half * 32 + column);
      if (half == 1) high[i].load(block + 128 + in_block / 2 * 32 + column);
    }
    if (half == 0) return;
    row_at = low_bits_of(row);  // the row of what is loaded may be another than that of the other half so far
    scales.load(block + 192 + in_block * 4);
    of_block = load_line(reinterpret_cast<const unsigned short*>(block + 208));
  }
  __device__ __forceinline__ void unpack(int step, int half, unsigned (&pairs)[4]) const {
    const int shift = step % 2 * 4;
    const bool between = between_in(step);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const unsigned lower = join_words(low[half][i].first, low[half][i].last, between),
                     upper = join_words(high[i].first, high[i].last, between);
      halves_of_bytes((lower >> shift & 0x0F0F0F0F) | (upper >> (shift + half * 2) & 0x03030303) << 4, 32,
                      pairs[2 * i], pairs[2 * i + 1]);
    }
  }
  __device__ __forceinline__ float scale(int step, int half, int sixteen) const {
    const unsigned four = join_words(scales.first, scales.last, between_in(step));
    return __half2float(__ushort_as_half(of_block)) *
           static_cast<float>(static_cast<int8_t>(from_byte(four, half * 2 + sixteen) & 255));
  }

  // All that is loaded of a block lies a multiple of four behind its beginning.
  __device__ __forceinline__ bool between_in(int step) const {
    return between_words(row_at + static_cast<unsigned>(step) / 4 * 210);
  }

  Four low[2][2], high[2], scales;
  unsigned row_at;
  unsigned short of_block;
};

}  // namespace wi::cuda
