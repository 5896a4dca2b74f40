// The first step of the forward pass: each token's row of the embedding table, as f32.
#include "kernels/cpu/cpu.h"

namespace wi::cpu {

void embed(const Stream& stream, const EmbedArgs& args) {
  const Matrix& table = args.table;
  const auto copy_row = [&](int64_t row, int) {
    dequantize_row(table, args.tokens[row], args.out + row * table.cols);
  };
  constexpr int64_t kFew = 16;  // rows that take less time than a barrier
  if (args.rows > kFew) return stream.each(args.rows, copy_row);
  for (int64_t row = 0; row < args.rows; row++) copy_row(row, 0);
}

}  // namespace wi::cpu
