// Weights as stored, eight at a time as f32: bit for bit what the CPU's dequantize gives. A block's layout is
// ggml's; those whose size is no multiple of four are loaded in halves of words.
#pragma once

#include "kernels/cuda/device.cuh"

namespace wi::cuda {

__device__ __forceinline__ float load_half(const uint8_t* at) {
  return __half2float(__ushort_as_half(*reinterpret_cast<const unsigned short*>(at)));
}
// Eight bytes; byte i is bits 8i of the pair.
__device__ __forceinline__ uint2 load_8_bytes_by_2(const uint8_t* at) {
  const unsigned short* halves = reinterpret_cast<const unsigned short*>(at);
  return make_uint2(halves[0] | static_cast<unsigned>(halves[1]) << 16,
                    halves[2] | static_cast<unsigned>(halves[3]) << 16);
}
__device__ __forceinline__ uint2 load_8_bytes(const uint8_t* at) {
  return *reinterpret_cast<const uint2*>(at);
}
__device__ __forceinline__ int byte_of(uint2 bytes, int i) {
  return static_cast<int>((i < 4 ? bytes.x : bytes.y) >> (i % 4 * 8) & 255);
}

// 6-bit scale and minimum of sub-block s of q4_k and q5_k.
__device__ __forceinline__ void scale_and_min(const uint8_t* packed, int s, float& scale, float& min) {
  if (s < 4) {
    scale = static_cast<float>(packed[s] & 63);
    min = static_cast<float>(packed[s + 4] & 63);
  } else {
    scale = static_cast<float>((packed[s + 4] & 15) | packed[s - 4] >> 6 << 4);
    min = static_cast<float>(packed[s + 4] >> 4 | packed[s] >> 6 << 4);
  }
}

// Numbers [column, column + 8) of a row of weights; column is a multiple of 8.
template <DType kType>
__device__ __forceinline__ void load_weights(const std::byte* row, int64_t column, float (&out)[8]) {
  if constexpr (kType == DType::f32 || kType == DType::f16 || kType == DType::bf16) {
    load_floats<8>(reinterpret_cast<const Kv<kType>*>(row) + column, out);
  } else {
    constexpr int kElements = static_cast<int>(format_of(kType).elements);
    const uint8_t* block =
        reinterpret_cast<const uint8_t*>(row) + column / kElements * format_of(kType).bytes;
    const int at = static_cast<int>(column % kElements);
    if constexpr (kType == DType::q8_0) {
      const float scale = load_half(block);
      const uint2 bytes = load_8_bytes_by_2(block + 2 + at);
#pragma unroll
      for (int i = 0; i < 8; i++) out[i] = scale * static_cast<float>(static_cast<int8_t>(byte_of(bytes, i)));
    } else if constexpr (kType == DType::q4_0) {
      const float scale = load_half(block);
      const uint2 bytes = load_8_bytes_by_2(block + 2 + at % 16);
      const int shift = at / 16 * 4;
#pragma unroll
      for (int i = 0; i < 8; i++) out[i] = scale * static_cast<float>((byte_of(bytes, i) >> shift & 15) - 8);
    } else if constexpr (kType == DType::q4_k || kType == DType::q5_k) {
      const int sub = at / 32;
      float scale, min;
      scale_and_min(block + 4, sub, scale, min);
      scale = load_half(block) * scale;
      min = -(load_half(block + 2) * min);
      constexpr int kLow = kType == DType::q4_k ? 16 : 48;
      const uint2 bytes = load_8_bytes(block + kLow + at / 64 * 32 + at % 32);
      const int shift = sub % 2 * 4;
      uint2 high = make_uint2(0, 0);
      if constexpr (kType == DType::q5_k) high = load_8_bytes(block + 16 + at % 32);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int number = (byte_of(bytes, i) >> shift & 15) | (byte_of(high, i) >> sub & 1) << 4;
        out[i] = fmaf(scale, static_cast<float>(number), min);  // the product is exact
      }
    } else {
      static_assert(kType == DType::q6_k);
      const int half = at / 128, quarter = at % 128 / 32, in_quarter = at % 32;
      const float scale =
          load_half(block + 208) * static_cast<float>(static_cast<int8_t>(block[192 + at / 16]));
      const uint2 low = load_8_bytes_by_2(block + half * 64 + quarter % 2 * 32 + in_quarter);
      const uint2 high = load_8_bytes_by_2(block + 128 + half * 32 + in_quarter);
      const int shift = quarter / 2 * 4;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int number = (byte_of(low, i) >> shift & 15) | (byte_of(high, i) >> (2 * quarter) & 3) << 4;
        out[i] = scale * static_cast<float>(number - 32);
      }
    }
  }
}

// Calls body.operator()<type>() for a type that the backend reads; cudaErrorInvalidValue for another.
template <class Body>
cudaError_t with_weights(DType type, Body&& body) {
  switch (type) {
    case DType::f32:
      return body.template operator()<DType::f32>();
    case DType::f16:
      return body.template operator()<DType::f16>();
    case DType::bf16:
      return body.template operator()<DType::bf16>();
    case DType::q8_0:
      return body.template operator()<DType::q8_0>();
    case DType::q4_0:
      return body.template operator()<DType::q4_0>();
    case DType::q4_k:
      return body.template operator()<DType::q4_k>();
    case DType::q5_k:
      return body.template operator()<DType::q5_k>();
    case DType::q6_k:
      return body.template operator()<DType::q6_k>();
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace wi::cuda
