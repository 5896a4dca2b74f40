// In the place of the toolkit's header of this name: a type of 16 bits and its conversions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cuda_runtime.h>

struct __half {
  uint16_t bits;
};
struct __half_raw {
  uint16_t x;
};
struct alignas(4) __half2 {
  __half x, y;
};

inline float __half2float(__half number) {
  const uint32_t sign = uint32_t{number.bits} >> 15 << 31, magnitude = number.bits & 0x7FFFu;
  if (magnitude >= 0x7C00) return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FF) << 13);
  const float size = magnitude < 0x400 ? std::ldexp(static_cast<float>(magnitude), -24)
                                       : std::bit_cast<float>((magnitude << 13) + (112u << 23));
  return sign ? -size : size;
}

// To nearest, ties to even.
inline __half __float2half_rn(float number) {
  const uint32_t bits = std::bit_cast<uint32_t>(number);
  const uint16_t sign = static_cast<uint16_t>(bits >> 31 << 15);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t half = 0;
  if (magnitude > 0x7F800000u) {
    half = 0x7FFF;
  } else if (magnitude >= 0x477FF000u) {
    half = 0x7C00;
  } else if (magnitude < 0x38800000u) {  // subnormal: in units of 2^-24
    half = static_cast<uint32_t>(std::nearbyint(std::ldexp(std::bit_cast<float>(magnitude), 24)));
  } else {
    half = (magnitude + 0xFFF + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}
inline __half __float2half(float number) { return __float2half_rn(number); }
inline float2 __half22float2(__half2 pair) { return {__half2float(pair.x), __half2float(pair.y)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline unsigned short __half_as_ushort(__half number) { return number.bits; }
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline __half2 __hsub2(__half2 a, __half2 b) {
  return __floats2half2_rn(__half2float(a.x) - __half2float(b.x), __half2float(a.y) - __half2float(b.y));
}
