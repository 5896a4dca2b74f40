#include "kernels/turned_rows.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/cpu.h"

namespace wi {
namespace {

// A block's quants begin behind its scale and its minimum, if it has one.
struct Blocks {
  int64_t bytes, quants;
  uint8_t bias;
};

Blocks blocks_of(DType type);

// place(in the block, in the 32 rows' blocks, bytes): all of one row's block, piece by piece.
template <class Place>
void each_piece(const Blocks& of, int64_t row, Place&& place) {
  for (int64_t at = 0; at < of.quants; at += 2) place(at, at * kTurnedRows + 2 * row, 2);
  for (int64_t at = of.quants; at < of.bytes; at += 4) place(at, at * kTurnedRows + 4 * row, 4);
}

constexpr int64_t kLongestBlock = 34;

// Or takes it away.
void add_bias(const Blocks& of, std::byte* block) {
  if (of.bias == 0) return;
  for (int64_t i = of.quants; i < of.bytes; i++) block[i] ^= std::byte{of.bias};
}

}  // namespace

bool can_be_turned(const Matrix& matrix) {
  return blocks_of(matrix.type).bytes > 0 && matrix.rows % kTurnedRows == 0;
}

bool turned_rows_pay() { return std::strncmp(cpu::simd_name(), "AVX3", 4) == 0; }

void turn_rows(const Matrix& matrix, int64_t first, std::byte* to) {
  const Blocks of = blocks_of(matrix.type);
  const auto row_size = static_cast<int64_t>(row_bytes(matrix.type, matrix.cols));
  const auto* from = static_cast<const std::byte*>(matrix.data) + first * row_size;
  for (int64_t at = 0; at < row_size; at += of.bytes, to += of.bytes * kTurnedRows)
    for (int64_t row = 0; row < kTurnedRows; row++) {
      std::byte block[kLongestBlock];
      std::memcpy(block, from + row * row_size + at, static_cast<size_t>(of.bytes));
      add_bias(of, block);
      each_piece(of, row, [&](int64_t in_block, int64_t turned, int64_t bytes) {
        std::memcpy(to + turned, block + in_block, static_cast<size_t>(bytes));
      });
    }
}

const std::byte* as_stored(const Matrix& matrix, int64_t row, int64_t column, int64_t columns,
                           RoomAsStored& room) {
  const uint64_t begin =
      row_bytes(matrix.type, matrix.cols) * static_cast<uint64_t>(row) + row_bytes(matrix.type, column);
  if (!matrix.turned) return static_cast<const std::byte*>(matrix.data) + begin;
  copy_as_stored(matrix, begin, row_bytes(matrix.type, columns), room.bytes);
  return room.bytes;
}

void copy_as_stored(const Matrix& matrix, uint64_t begin, uint64_t count, std::byte* to) {
  const auto* data = static_cast<const std::byte*>(matrix.data);
  if (!matrix.turned) {
    std::memcpy(to, data + begin, count);
    return;
  }
  const Blocks of = blocks_of(matrix.type);
  const auto row_size = static_cast<int64_t>(row_bytes(matrix.type, matrix.cols)), block_bytes = of.bytes;
  std::byte block[kLongestBlock];
  for (auto at = static_cast<int64_t>(begin), end = at + static_cast<int64_t>(count); at < end;) {
    const int64_t row = at / row_size, in_row = at % row_size, in_block = in_row % block_bytes;
    const std::byte* from =
        data + row / kTurnedRows * kTurnedRows * row_size + (in_row - in_block) * kTurnedRows;
    each_piece(of, row % kTurnedRows, [&](int64_t in, int64_t turned, int64_t bytes) {
      std::memcpy(block + in, from + turned, static_cast<size_t>(bytes));
    });
    add_bias(of, block);
    const int64_t bytes = std::min(block_bytes - in_block, end - at);
    std::memcpy(to, block + in_block, static_cast<size_t>(bytes));
    to += bytes, at += bytes;
  }
}

void cpu::dequantize_row(const Matrix& matrix, int64_t row, float* out) {
  RoomAsStored room;
  for (int64_t at = 0; at < matrix.cols; at += kMostAsStored) {
    const int64_t count = std::min(kMostAsStored, matrix.cols - at);
    dequantize(as_stored(matrix, row, at, count, room), matrix.type, out + at, count);
  }
}

namespace {

// As kernels/cpu/quants-inl.h has them.
Blocks blocks_of(DType type) {
  switch (type) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::q2_k:
    case DType::q3_k:
    case DType::q4_k:
    case DType::q5_k:
    case DType::q6_k:
      return {0, 0, 0};
    case DType::q8_0:
      return {34, 2, kTurnedBias};
    case DType::q4_0:
      return {18, 2, 0};
    case DType::q4_1:
      return {20, 4, 0};
    case DType::q5_0:
      return {22, 2, 0};
    case DType::q5_1:
      return {24, 4, 0};
  }
  return {};
}

}  // namespace
}  // namespace wi
