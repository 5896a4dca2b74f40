// Rows of a quantised matrix side by side, 32 at a time: products of many rows read weights by outputs (a vector's
// lanes), and from rows as a file has them that order must be made anew with every step, which takes a third of the
// time of a step of 16 sessions. A matrix in memory of the process's own may have it for good, if its format has blocks
// of 32. (Of those of 256, most of which is unpacking, a session alone would be slower for it.) The bytes are as many,
// those of each 32 rows lie where they lay, and of each block of theirs
//   scale, and minimum if there is one (1 or 2, 32 rows) f16
//   quants (dwords, 32 rows, 4 bytes), those of q8_0 with kTurnedBias added, which makes them unsigned
#pragma once

#include "kernels/types.h"

namespace wi {

constexpr int64_t kTurnedRows = 32;
constexpr uint8_t kTurnedBias = 128;

// Whether a matrix may be turned: by its type, and by its rows. Its data must be 64-byte aligned then.
bool can_be_turned(const Matrix& matrix);
// Whether products are faster for it: where vectors are of 512 bits. Of less, 16 rows gain 4 to 10 %, and one alone loses
// as much or more.
bool turned_rows_pay();

// Rows [first, first + kTurnedRows), as stored, of one that can be turned, into their new order. to: as many bytes,
// elsewhere.
void turn_rows(const Matrix& matrix, int64_t first, std::byte* to);

// So many of a row's columns as stored, whole blocks: where they are or, of a matrix that is turned, in `room`.
constexpr int64_t kMostAsStored = 1024;
struct RoomAsStored {
  std::byte bytes[kMostAsStored * 2];  // quantised, none has more than 1.1 a column
};
const std::byte* as_stored(const Matrix& matrix, int64_t row, int64_t column, int64_t columns,
                           RoomAsStored& room);

// Bytes [begin, begin + count) of what the matrix was before it was turned; of one that is not, of what it is.
void copy_as_stored(const Matrix& matrix, uint64_t begin, uint64_t count, std::byte* to);

}  // namespace wi
