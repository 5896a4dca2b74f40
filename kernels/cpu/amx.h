// AMX: eight tiles of up to 16 rows of 64 bytes, and products of two of them that are added to a third. In assembly,
// because compilers' intrinsics do not say that tiles are read from memory and written to it, and would ask for
// functions that only these processors may run.
#pragma once

#include <cstdint>

namespace wi::cpu {

// Whether there are products of bf16 numbers, and of bytes: by this processor and by its system, which is asked to let
// this process use the tiles. Since Linux 5.16 that takes a call; it is refused where a thread's signals have too small a
// stack of their own for them.
bool has_amx_bf16();
bool has_amx_bytes();
// For tests and benchmarks, which try both; nobody may be computing meanwhile.
void allow_amx(bool allowed);

// The shapes of the eight tiles, in the form in which the processor reads them.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

#if defined(__x86_64__)
struct Amx {
  static void shape(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
  // Until then every switch of threads would carry the tiles' eight kilobytes along.
  static void release() { asm volatile("tilerelease"); }

  template <int kTile>
  static void clear() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  // Its rows lie `stride` bytes apart.
  template <int kTile>
  static void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  // sums (rows, columns) += left (rows, k) · right (k, columns) of bf16 numbers; in `right` pairs of rows, of each
  // column by column both numbers. Sums are f32.
  template <int kSums, int kLeft, int kRight>
  static void add_bf16_products() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kLeft), "i"(kRight));
  }
  // The same of bytes, by fours, those on the left signed and those on the right signed or not; sums are 32-bit integers.
  template <int kSums, int kLeft, int kRight>
  static void add_byte_products() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kLeft), "i"(kRight));
  }
  template <int kSums, int kLeft, int kRight>
  static void add_unsigned_byte_products() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kLeft), "i"(kRight));
  }
};
#endif

}  // namespace wi::cpu
