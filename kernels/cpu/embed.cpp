// The first step of the forward pass: each token's row of the embedding table, as f32.
#include "kernels/cpu/cpu.h"

namespace wi::cpu {

void embed(const Stream& stream, const EmbedArgs& args) {
  const Matrix& table = args.table;
  const size_t stride = row_bytes(table.type, table.cols);
  const auto copy_row = [&](int64_t row, int) {
    const std::byte* in =
        static_cast<const std::byte*>(table.data) + static_cast<size_t>(args.tokens[row]) * stride;
    dequantize(in, table.type, args.out + row * table.cols, table.cols);
  };
  constexpr int64_t kFew = 16;  // rows that take less time than a barrier
  if (args.rows > kFew) return stream.each(args.rows, copy_row);
  for (int64_t row = 0; row < args.rows; row++) copy_row(row, 0);
}

}  // namespace wi::cpu
