// y = x · Wᵀ: few rows read the weights as stored, many rows unpack them for dense products.
#include "kernels/cpu/cpu.h"

namespace wi::cpu {

// Where the two cross, measured on EPYC (Zen 4): see tests/bench/kernel_bench.cpp.
constexpr int64_t kDecodeRows = 16;

void matmul(const Stream& stream, const MatmulArgs& args) {
  if (args.rows == 0) return;
  args.rows <= kDecodeRows ? matmul_decode(stream, args) : matmul_dense(stream, args);
}

}  // namespace wi::cpu
