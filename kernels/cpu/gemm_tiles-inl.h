// What gemm_tiles.cpp does with the processor's tiles and a test, on every processor, with plain ones. Two by two tiles
// of sums at a time: each step of 32 inputs reads four tiles of a and b for four products, a quarter of what a
// product takes each, and so waits for none of them as long as a's rows are in the first-level cache. They are,
// because a block of rows meets all of b before the next block's turn, whose rows are fetched meanwhile; b comes in the
// order in which it lies.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_tiles.h"

namespace wi::cpu {

constexpr int64_t kTileRows = 16, kTileColumns = 16;  // of sums
constexpr int64_t kTileInputs = Packing::kRows;       // of one product
constexpr int64_t kTilesAside = 2;                    // of sums, each way
constexpr int64_t kAheadBytes = 4 * 64;               // fetched in a step: all, where b has 256 columns
constexpr int64_t kBlockRows = kTilesAside * kTileRows, kBlockColumns = kTilesAside * kTileColumns;
static_assert(kBlockColumns == GemmTiles::kWidth);

// Which tile is what: sums (r, c) are 2r + c, the block's rows of a 4 and 5, the panel's columns of b 6 and 7.
constexpr int kA = 4, kB = 6;

// For a block of `rows` rows, 32 or fewer.
inline TileShapes tile_shapes(int64_t rows) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) shapes.row_bytes[tile] = 64;
  for (int64_t r = 0; r < kTilesAside; ++r) {
    const auto count = static_cast<uint8_t>(std::clamp<int64_t>(rows - r * kTileRows, 1, kTileRows));
    shapes.rows[2 * r] = shapes.rows[2 * r + 1] = shapes.rows[kA + r] = count;
  }
  shapes.rows[kB] = shapes.rows[kB + 1] = kTileInputs / 2;
  return shapes;
}

// A block of rows, and one panel of b.
struct TileBlock {
  const uint16_t* a;     // (rows, a_stride)
  const uint16_t* rest;  // (rows, 32): what a has beyond the last whole 32 inputs, and zeros
  const uint16_t* b;     // a panel
  float* c;              // (rows, c_stride)
  int64_t k, a_stride, c_stride;
  bool add;
  const std::byte* ahead;  // of the next block's rows, to be fetched: a few lines each step; or null
};

template <class Tiles, int kRowTiles, int kColumnTiles>
void multiply_block(const TileBlock& block) {
  const int64_t c_bytes = block.c_stride * 4, a_bytes = block.a_stride * 2, b_bytes = GemmTiles::kWidth * 4;
  const auto c_at = [&](int64_t r, int64_t c) {
    return block.c + r * kTileRows * block.c_stride + c * kTileColumns;
  };
  const auto sums = [&](auto&& each) {
    each.template operator()<0, 0>();
    if constexpr (kColumnTiles > 1) each.template operator()<0, 1>();
    if constexpr (kRowTiles > 1) each.template operator()<1, 0>();
    if constexpr (kRowTiles > 1 && kColumnTiles > 1) each.template operator()<1, 1>();
  };
  const auto step = [&](const uint16_t* a, int64_t bytes, const uint16_t* b) {
    Tiles::template load<kB>(b, b_bytes);
    Tiles::template load<kA>(a, bytes);
    if constexpr (kColumnTiles > 1) Tiles::template load<kB + 1>(b + 2 * kTileColumns, b_bytes);
    if constexpr (kRowTiles > 1) Tiles::template load<kA + 1>(a + kTileRows * bytes / 2, bytes);
    sums([]<int r, int c> { Tiles::template add_bf16_products<2 * r + c, kA + r, kB + c>(); });
  };

  if (block.add)
    sums([&]<int r, int c> { Tiles::template load<2 * r + c>(c_at(r, c), c_bytes); });
  else
    sums([]<int r, int c> { Tiles::template clear<2 * r + c>(); });
  const int64_t whole = block.k / kTileInputs * kTileInputs;
  const std::byte* ahead = block.ahead;
  for (int64_t k = 0; k < whole; k += kTileInputs) {
    step(block.a + k, a_bytes, block.b + k * GemmTiles::kWidth);
    if (!ahead) continue;
    for (int64_t byte = 0; byte < kAheadBytes; byte += 64) __builtin_prefetch(ahead + byte, 0, 2);
    ahead += kAheadBytes;
  }
  if (whole < block.k) step(block.rest, kTileInputs * 2, block.b + whole * GemmTiles::kWidth);
  sums([&]<int r, int c> { Tiles::template store<2 * r + c>(c_at(r, c), c_bytes); });
}

template <class Tiles>
void multiply_block(const TileBlock& block, int64_t rows, int64_t columns) {
  const bool low = rows <= kTileRows, narrow = columns <= kTileColumns;
  if (low) return narrow ? multiply_block<Tiles, 1, 1>(block) : multiply_block<Tiles, 1, 2>(block);
  narrow ? multiply_block<Tiles, 2, 1>(block) : multiply_block<Tiles, 2, 2>(block);
}

// A panel that is not full: its sums by way of full tiles.
template <class Tiles>
void multiply_edge(TileBlock block, int64_t rows, int64_t columns) {
  alignas(64) float sums[kBlockRows * kBlockColumns] = {};
  const size_t bytes = static_cast<size_t>(columns) * sizeof(float);
  float* const c = block.c;
  const int64_t stride = block.c_stride;
  if (block.add)
    for (int64_t r = 0; r < rows; ++r) std::memcpy(sums + r * kBlockColumns, c + r * stride, bytes);
  block.c = sums;
  block.c_stride = kBlockColumns;
  multiply_block<Tiles>(block, rows, columns);
  for (int64_t r = 0; r < rows; ++r) std::memcpy(c + r * stride, sums + r * kBlockColumns, bytes);
}

template <class Tiles>
void multiply_tiles(const GemmTiles& product, const uint16_t* a, const uint16_t* b, float* c) {
  assert(product.packing.width == GemmTiles::kWidth);
  const int64_t k = product.packing.k, n = product.packing.n, m = product.m;
  const int64_t whole = k / kTileInputs * kTileInputs;
  alignas(64) uint16_t rest[kBlockRows * kTileInputs] = {};
  int64_t shaped = 0;
  for (int64_t row = 0; row < m; row += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, m - row);
    if (rows != shaped) Tiles::shape(tile_shapes(shaped = rows));
    for (int64_t r = 0; r < rows && whole < k; ++r)
      std::memcpy(rest + r * kTileInputs, a + (row + r) * k + whole,
                  static_cast<size_t>(k - whole) * sizeof *a);
    TileBlock block{a + row * k, rest, b, c + row * n, k, k, n, product.accumulate, nullptr};
    const int64_t next_bytes = std::clamp<int64_t>(m - row - rows, 0, kBlockRows) * k * 2;
    int64_t fetched = 0;
    for (int64_t column = 0; column < n; column += kBlockColumns) {
      const int64_t columns = std::min(kBlockColumns, n - column);
      const bool full = columns == kBlockColumns;
      const auto* next = reinterpret_cast<const std::byte*>(block.a + rows * k) + fetched;
      block.ahead = fetched < next_bytes ? next : nullptr;
      fetched += whole / kTileInputs * kAheadBytes;
      full ? multiply_block<Tiles>(block, rows, columns) : multiply_edge<Tiles>(block, rows, columns);
      block.b += product.packing.padded_k() * GemmTiles::kWidth;
      block.c += kBlockColumns;
    }
  }
  Tiles::release();
}

}  // namespace wi::cpu
