// y = x · Wᵀ: few rows read the weights as stored, many rows unpack them for dense products.
#include "kernels/cpu/cpu.h"

namespace wi::cpu {

// Where the two cross on EPYC (Zen 4): at 12 rows for f16, 20 for q8_0 and q4_k (2048 x 8192). Higher is
// better for batches, whose rows decode exactly alike in any batch up to this size.
constexpr int64_t kDecodeRows = 16;

void matmul(const Stream& stream, const MatmulArgs& args) {
  if (args.rows == 0) return;
  args.rows <= kDecodeRows ? matmul_decode(stream, args) : matmul_dense(stream, args);
}

}  // namespace wi::cpu
