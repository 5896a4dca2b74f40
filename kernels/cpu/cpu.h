// The CPU backend's operations, one source file each, and its policies: what kernels/cpu/backend.cpp puts
// into the Backend table. Everything vectorised goes through Google Highway and is compiled once per
// instruction set (SSSE3, AVX2, AVX-512); the fastest one the processor has is picked at run time.
#pragma once

#include "kernels/ops.h"

namespace wi::cpu {

void embed(const Stream& stream, const EmbedArgs& args);
void rms_norm(const Stream& stream, const RmsNormArgs& args);
void rope(const Stream& stream, const RopeArgs& args);
void swiglu(const Stream& stream, const SwigluArgs& args);

// Takes each part of the call to one of those below.
void matmul(const Stream& stream, const MatmulArgs& args);
// Sums in f32, of quantised weights with activations of 16 bits. Few rows: bound by reading the weights,
// which stay as they are stored; many rows of quantised weights: unpacked once for all of them. Every row's
// result is the same bit for bit whatever the other rows, the number of rows and the number of workers.
void matmul_decode(const Stream& stream, const MatmulArgs& args);
// Quantised weights with activations of 8 bits, Precision::int8; otherwise as matmul_decode.
void matmul_bytes(const Stream& stream, const MatmulArgs& args);
// Many rows: bound by arithmetic; weights are unpacked tile by tile.
void matmul_dense(const Stream& stream, const MatmulArgs& args);

void append(const Stream& stream, const AppendArgs& args);
void attend(const Stream& stream, const LookupArgs& args);
void attend_chunk(const Stream& stream, const AttendChunkArgs& args);

// Rounds to nearest even. Returns the bits of the largest magnitude of `in` as an f32 (0: no numbers); a
// NaN's are larger than infinity's.
uint32_t to_kv(const float* in, DType kv, void* out, int64_t count);
void from_kv(const void* in, DType kv, float* out, int64_t count);
double log_sum_exp(const Stream& stream, const float* in, int64_t count);
void dequantize(const void* in, DType type, float* out, int64_t count);
// Of any matrix, turned or not. out: (cols)
void dequantize_row(const Matrix& matrix, int64_t row, float* out);

// Of the instruction set, with what byte_extension.h adds: "AVX2", "AVX2_VNNI", …
const char* simd_name();

extern const Policy full_policy;
extern const Policy wave_policy;
// Opponents, to measure the others against.
extern const Policy streaming_policy;
extern const Policy blocks_policy;

}  // namespace wi::cpu
