// What a warp's lanes do together with matrices: each hands in where its own numbers are, and one of them works for all.
#include <bit>
#include <cstring>

#include "tests/cuda_emulation/accesses.h"
#include "tests/cuda_emulation/emulation.h"

namespace cuda_emulation {

void load_matrices(const void* row, bool transposed, unsigned (&out)[4]) {
  if (reinterpret_cast<uintptr_t>(row) % 16) fault("misaligned row of a matrix", row);
  const Lanes& rows =
      met_lanes(0xFFFFFFFFu, transposed ? "ldmatrix.trans" : "ldmatrix", reinterpret_cast<uintptr_t>(row));
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

namespace {

// Of words that hold kPerWord numbers each, which number() takes out.
template <int kPerWord, class Number, class Operands, class Take>
void multiply_words(Operands& own, const char* operation, Take number) {
  constexpr int kInputs = 8 * kPerWord;
  const auto multiply = [&](const Lanes& all) {
    Number left[16][kInputs], right[8][kInputs];  // by row and by column, then by input
    const auto unpack = [&](unsigned word, Number* to) {
      for (int i = 0; i < kPerWord; ++i) to[i] = number(word, i);
    };
    Operands* of[32];
    for (unsigned i = 0; i < 32; ++i) {
      of[i] = std::bit_cast<Operands*>(static_cast<uintptr_t>(all.of[i]));
      const unsigned row = i / 4, input = i % 4 * kPerWord;
      for (unsigned part = 0; part < 4; ++part)
        unpack(of[i]->left[part], &left[row + part % 2 * 8][input + part / 2 * kInputs / 2]);
      for (unsigned part = 0; part < 2; ++part)
        unpack(of[i]->right[part], &right[row][input + part * kInputs / 2]);
    }
    for (unsigned i = 0; i < 32; ++i)
      for (unsigned part = 0; part < 4; ++part) {
        const Number* const a = left[i / 4 + part / 2 * 8];
        const Number* const b = right[i % 4 * 2 + part % 2];
        Number sum = of[i]->sums[part];
        for (int input = 0; input < kInputs; ++input) sum += a[input] * b[input];
        of[i]->sums[part] = sum;
      }
  };
  meet_warp_for_work(0xFFFFFFFFu, operation, reinterpret_cast<uintptr_t>(&own), multiply);
}

}  // namespace

void multiply_add(Operands& own, const char* operation, float (*to_float)(unsigned short)) {
  multiply_words<2, float>(own, operation, [to_float](unsigned word, int i) {
    return to_float(static_cast<unsigned short>(word >> 16 * i));
  });
}

void multiply_add(ByteOperands& own) {
  multiply_words<4, int>(own, "mma.s8", [](unsigned word, int i) {
    return static_cast<int>(static_cast<int8_t>(word >> 8 * i & 255));
  });
}

}  // namespace cuda_emulation
