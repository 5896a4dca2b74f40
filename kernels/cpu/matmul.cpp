// y = x · Wᵀ: which of the products a call is for. Quantised weights are multiplied as integers by any number
// of rows, unless dense products in bf16 are faster or another precision is asked for; weights in f32, f16
// and bf16 by few rows as they are stored, by many in dense tiles.
#include <algorithm>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"

namespace wi::cpu {
namespace {

// Where the two cross on EPYC (Zen 4): at 12 rows for f16, 20 for q8_0 and q4_k (2048 x 8192). Higher is
// better for short chunks of a prompt, whose rows are in f32 up to this size.
constexpr int64_t kDecodeRows = 16;

bool is_quantised(const MatmulPart& part) { return format_of(part.weight.type).elements > 1; }

bool in_bytes(const MatmulArgs& args, const MatmulPart& part) {
  return args.precision == Precision::int8 && is_quantised(part);
}

bool is_dense(const MatmulArgs& args, const MatmulPart& part) {
  if (args.rows_alike || args.rows <= kDecodeRows) return false;
  return !is_quantised(part) || args.precision != Precision::fast || has_fast_bf16();
}

}  // namespace

void matmul(const Stream& stream, const MatmulArgs& args) {
  if (args.rows == 0) return;
  MatmulArgs bytes = args, decode = args, dense = args;
  bytes.part_count = decode.part_count = dense.part_count = 0;
  for (int32_t p = 0; p < args.part_count; p++) {
    const MatmulPart& part = args.parts[p];
    MatmulArgs& to = in_bytes(args, part) ? bytes : is_dense(args, part) ? dense : decode;
    to.parts[to.part_count++] = part;
  }
  if (bytes.part_count) matmul_bytes(stream, bytes);
  if (decode.part_count) matmul_decode(stream, decode);
  if (dense.part_count) matmul_dense(stream, dense);
}

}  // namespace wi::cpu
