// What a warp's lanes do together with matrices: each hands in where its own numbers are, and one of them
// works for all, so that a product takes two meetings.
#include <bit>
#include <cstring>

#include "tests/cuda_emulation/accesses.h"
#include "tests/cuda_emulation/emulation.h"

namespace cuda_emulation {

void load_matrices(const void* row, bool transposed, unsigned (&out)[4]) {
  if (reinterpret_cast<uintptr_t>(row) % 16) fault("misaligned row of a matrix", row);
  const Lanes rows =
      meet_warp(0xFFFFFFFFu, transposed ? "ldmatrix.trans" : "ldmatrix", reinterpret_cast<uintptr_t>(row));
  const auto number = [&](unsigned matrix, unsigned at_row, unsigned column) {
    const auto* const at =
        std::bit_cast<const std::byte*>(static_cast<uintptr_t>(rows.of[matrix * 8 + at_row])) + column * 2;
    if (sees_accesses()) access(at, 2, Access::read);
    uint16_t bits;
    std::memcpy(&bits, at, 2);
    return unsigned{bits};
  };
  const unsigned row_of = lane() / 4, column = lane() % 4 * 2;
  for (unsigned i = 0; i < 4; ++i)
    out[i] = transposed ? number(i, column, row_of) | number(i, column + 1, row_of) << 16
                        : number(i, row_of, column) | number(i, row_of, column + 1) << 16;
}

void multiply_add(Operands& own, const char* operation, float (*to_float)(unsigned short)) {
  const Lanes all = meet_warp(0xFFFFFFFFu, operation, reinterpret_cast<uintptr_t>(&own));
  if (lane() == 0) {
    float left[16][16], right[8][16];  // by row and by column, then by input
    const auto unpack = [&](unsigned word, float* to) {
      to[0] = to_float(static_cast<unsigned short>(word));
      to[1] = to_float(static_cast<unsigned short>(word >> 16));
    };
    Operands* of[32];
    for (unsigned i = 0; i < 32; ++i) {
      of[i] = std::bit_cast<Operands*>(static_cast<uintptr_t>(all.of[i]));
      const unsigned row = i / 4, input = i % 4 * 2;
      for (unsigned part = 0; part < 4; ++part)
        unpack(of[i]->left[part], &left[row + part % 2 * 8][input + part / 2 * 8]);
      for (unsigned part = 0; part < 2; ++part) unpack(of[i]->right[part], &right[row][input + part * 8]);
    }
    for (unsigned i = 0; i < 32; ++i)
      for (unsigned part = 0; part < 4; ++part) {
        const float* const a = left[i / 4 + part / 2 * 8];
        const float* const b = right[i % 4 * 2 + part % 2];
        float sum = of[i]->sums[part];
        for (unsigned input = 0; input < 16; ++input) sum += a[input] * b[input];
        of[i]->sums[part] = sum;
      }
  }
  meet_warp(0xFFFFFFFFu, operation, 0);
}

}  // namespace cuda_emulation
