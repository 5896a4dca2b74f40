// The first step of the forward pass: each token's row of the embedding table, as f32.
#include <algorithm>

#include "kernels/cpu/cpu.h"
#include "kernels/turned_rows.h"

namespace wi::cpu {

void embed(const Stream& stream, const EmbedArgs& args) {
  const Matrix& table = args.table;
  const auto copy_row = [&](int64_t row, int) {
    RoomAsStored room;
    for (int64_t at = 0; at < table.cols; at += kMostAsStored) {
      const int64_t count = std::min(kMostAsStored, table.cols - at);
      dequantize(as_stored(table, args.tokens[row], at, count, room), table.type,
                 args.out + row * table.cols + at, count);
    }
  };
  constexpr int64_t kFew = 16;  // rows that take less time than a barrier
  if (args.rows > kFew) return stream.each(args.rows, copy_row);
  for (int64_t row = 0; row < args.rows; row++) copy_row(row, 0);
}

}  // namespace wi::cpu
