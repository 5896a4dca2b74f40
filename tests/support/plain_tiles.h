// What a processor's tiles (kernels/cpu/amx.h) do, as Intel's manual has it, in plain code.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/amx.h"
#include "tests/test.h"

namespace wi::test {

inline float wide_bf16(uint16_t bf16) {
  const uint32_t bits = uint32_t{bf16} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Numbers too small to be normal are no different from others here: nobody makes any.
struct PlainTiles {
  static inline std::array<std::array<std::array<std::byte, 64>, 16>, 8> tiles;
  static inline cpu::TileShapes shapes;
  static inline bool shaped = false;

  static void shape(const cpu::TileShapes& wanted) {
    assert_true(wanted.palette == 1 && wanted.start_row == 0);
    for (int tile = 0; tile < 8; ++tile) assert_true(wanted.rows[tile] <= 16 && wanted.row_bytes[tile] <= 64);
    shapes = wanted;
    tiles = {};
    shaped = true;
  }
  static void release() {
    assert_true(shaped);
    shaped = false;
  }
  template <int kTile>
  static void clear() {
    assert_true(shaped && shapes.rows[kTile] > 0 && shapes.row_bytes[kTile] > 0);
    tiles[kTile] = {};
  }
  template <int kTile>
  static void load(const void* from, int64_t stride) {
    clear<kTile>();
    for (int r = 0; r < shapes.rows[kTile]; ++r)
      std::memcpy(tiles[kTile][at(r)].data(), static_cast<const std::byte*>(from) + r * stride,
                  shapes.row_bytes[kTile]);
  }
  template <int kTile>
  static void store(void* to, int64_t stride) {
    assert_true(shaped);
    for (int r = 0; r < shapes.rows[kTile]; ++r)
      std::memcpy(static_cast<std::byte*>(to) + r * stride, tiles[kTile][at(r)].data(),
                  shapes.row_bytes[kTile]);
  }

  template <int kSums, int kLeft, int kRight>
  static void add_bf16_products() {
    each_sum<kSums, kLeft, kRight, float, uint16_t>([](float& sum, const auto& pairs) {
      float even = 0, odd = 0;
      pairs([&](const uint16_t* a, const uint16_t* b) {
        even = std::fma(wide_bf16(a[0]), wide_bf16(b[0]), even);
        odd = std::fma(wide_bf16(a[1]), wide_bf16(b[1]), odd);
      });
      sum += even + odd;
    });
  }
  template <int kSums, int kLeft, int kRight>
  static void add_byte_products() {
    add_fours<kSums, kLeft, kRight, int8_t>();
  }
  template <int kSums, int kLeft, int kRight>
  static void add_unsigned_byte_products() {
    add_fours<kSums, kLeft, kRight, uint8_t>();
  }

 private:
  template <int kSums, int kLeft, int kRight, class Right>
  static void add_fours() {
    each_sum<kSums, kLeft, kRight, int32_t, int8_t>([](int32_t& sum, const auto& fours) {
      fours([&](const int8_t* a, const int8_t* b) {
        for (int i = 0; i < 4; ++i) sum += a[i] * static_cast<Right>(b[i]);
      });
    });
  }
  static size_t at(int i) { return static_cast<size_t>(i); }

  // add(sum, of): of(f) has f(a, b) for each four bytes of a row of the left and of a column of the right.
  template <int kSums, int kLeft, int kRight, class Sum, class Number, class Add>
  static void each_sum(const Add& add) {
    assert_true(shaped);
    assert_int_equal(shapes.rows[kSums], shapes.rows[kLeft]);
    assert_int_equal(shapes.row_bytes[kSums], shapes.row_bytes[kRight]);
    assert_int_equal(shapes.rows[kRight] * 4, shapes.row_bytes[kLeft]);
    for (int r = 0; r < shapes.rows[kSums]; ++r)
      for (int c = 0; c < shapes.row_bytes[kSums] / 4; ++c) {
        Sum sum;
        std::memcpy(&sum, &tiles[kSums][at(r)][at(4 * c)], sizeof sum);
        add(sum, [&](const auto& each) {
          for (int k = 0; k < shapes.rows[kRight]; ++k) {
            std::array<Number, 4 / sizeof(Number)> a, b;
            std::memcpy(a.data(), &tiles[kLeft][at(r)][at(4 * k)], 4);
            std::memcpy(b.data(), &tiles[kRight][at(k)][at(4 * c)], 4);
            each(a.data(), b.data());
          }
        });
        std::memcpy(&tiles[kSums][at(r)][at(4 * c)], &sum, sizeof sum);
      }
  }
};

}  // namespace wi::test
