// Random weights of any stored type, for tests and benchmarks of products.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/turned_rows.h"

namespace wi::test {

constexpr DType kAllTypes[] = {DType::f32,  DType::f16,  DType::bf16, DType::q8_0, DType::q4_0,
                               DType::q4_1, DType::q5_0, DType::q5_1, DType::q2_k, DType::q3_k,
                               DType::q4_k, DType::q5_k, DType::q6_k};

// Random weights as stored. Block bytes are random (all are valid), their f16 scales of a usual size.
inline std::vector<std::byte> random_weights(DType type, int64_t count, std::mt19937_64& random) {
  std::vector<std::byte> out(row_bytes(type, count));
  std::normal_distribution<float> normal;
  if (format_of(type).elements == 1) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random) * 0.05f;
    cpu::to_kv(values.data(), type, out.data(), count);
    return out;
  }
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  int offsets[2] = {0, 0};  // of the scales in a block
  switch (type) {
    case DType::q2_k:
      offsets[0] = 80, offsets[1] = 82;
      break;
    case DType::q3_k:
      offsets[0] = offsets[1] = 108;
      break;
    case DType::q6_k:
      offsets[0] = offsets[1] = 208;
      break;
    case DType::q8_0:
    case DType::q4_0:
    case DType::q5_0:
      break;
    default:
      offsets[1] = 2;
  }
  for (size_t block = 0; block < out.size(); block += static_cast<size_t>(format_of(type).bytes)) {
    for (int offset : offsets) {
      const float scale = normal(random) * 0.01f;
      cpu::to_kv(&scale, DType::f16, out.data() + block + offset, 1);
    }
  }
  return out;
}

// A matrix and its memory.
inline void turn(Matrix& matrix, std::byte* data) {
  std::vector<std::byte> turned(row_bytes(matrix.type, matrix.cols) * kTurnedRows);
  for (int64_t row = 0; row < matrix.rows; row += kTurnedRows, data += turned.size()) {
    turn_rows(matrix, row, turned.data());
    std::memcpy(data, turned.data(), turned.size());
  }
  matrix.turned = true;
}

}  // namespace wi::test
