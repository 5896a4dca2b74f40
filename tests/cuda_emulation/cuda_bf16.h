// In the place of the toolkit's header of this name: a type of 16 bits and its conversions.
#pragma once

#include <bit>
#include <cstdint>
#include <cuda_runtime.h>

struct __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 number) {
  return std::bit_cast<float>(uint32_t{number.bits} << 16);
}

// To nearest, ties to even.
inline __nv_bfloat16 __float2bfloat16_rn(float number) {
  const uint32_t bits = std::bit_cast<uint32_t>(number);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {0x7FFF};
  return {static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}
inline __nv_bfloat16 __float2bfloat16(float number) { return __float2bfloat16_rn(number); }
inline float2 __bfloat1622float2(__nv_bfloat162 pair) {
  return {__bfloat162float(pair.x), __bfloat162float(pair.y)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 number) { return number.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return {bits}; }
