// The operations of the forward pass as argument structs with shapes, and the table through which the rest
// of the library reaches a backend. All activations are f32, row-major. No operation throws on valid
// arguments; a cancelled stream leaves outputs unspecified.
#pragma once

#include <vector>

#include "kernels/device.h"
#include "kernels/policy.h"
#include "kernels/token_weights.h"
#include "kernels/types.h"

namespace wi {

struct EmbedArgs {
  Matrix table;           // (vocab, hidden)
  const int32_t* tokens;  // (rows) each in [0, vocab)
  int64_t rows;
  float* out;  // (rows, hidden)
};

// out = in / rms(in) * weight, per row. In place is allowed.
struct RmsNormArgs {
  const float* in;  // (rows, cols), row i at in + i * in_stride
  int64_t in_stride;
  const float* weight;  // (cols)
  float* out;           // (rows, cols), row i at out + i * out_stride
  int64_t out_stride;
  int64_t rows, cols;
  float epsilon;
};

// One input times up to three weights (q, k, v share one pass; so do gate and up).
struct MatmulPart {
  Matrix weight;                // (outputs, inputs)
  const float* bias = nullptr;  // (outputs) or null
  float* out = nullptr;         // (rows, outputs), dense
  bool accumulate = false;      // out += instead of out =
};
struct MatmulArgs {
  const float* in;  // (rows, inputs), dense
  int64_t rows;
  MatmulPart parts[3];
  int32_t part_count;
  Precision precision = Precision::fast;  // of dense tiles, int8 of all rows; few others are always in f32
  // Each row's results are the same bits whatever the other rows are and however many: what a decode step
  // asks for, so that a session's logits do not depend on its company. False: whatever is fastest.
  bool rows_alike = false;
};

// Rotates x in place. cos and sin are (rows, rotary / 2), shared by all heads of a row.
struct RopeArgs {
  float* x;  // (rows, heads, head_dim), row i at x + i * stride
  int64_t stride;
  int64_t rows;
  int32_t heads, head_dim;
  int32_t rotary;  // dimensions rotated, ≤ head_dim, even
  const float* cos;
  const float* sin;
  bool interleaved;  // pairs (2i, 2i+1) as in GGUF's llama; else (i, i + rotary/2)
};

// out = silu(gate) * up. In place on gate is allowed.
struct SwigluArgs {
  const float* gate;  // (count)
  const float* up;    // (count)
  float* out;         // (count)
  int64_t count;
};

// Keys and values of new tokens into the KV cache, rounded to nearest even. A run is of consecutive tokens
// that go where there is room for all of them in one piece.
struct AppendRun {
  int64_t row = 0, rows = 0;    // of the input
  std::byte* keys = nullptr;    // out (rows, head_dim) of KV head 0
  std::byte* values = nullptr;  // out (rows, head_dim) likewise
  size_t head_stride = 0;       // bytes from a KV head's rows to those of the next
  DType kv = DType::f16;
};
struct AppendArgs {
  const float* keys;    // (rows, kv_heads, head_dim), row i at keys + i * stride
  const float* values;  // likewise
  int64_t stride;
  int32_t kv_heads, head_dim;
  const AppendRun* runs;
  int64_t run_count;
  // out (run_count): the bits of the largest magnitude among a run's keys and values, as an f32; a NaN's are
  // larger than infinity's. kv_holds() says whether all that was written is finite.
  uint32_t* largest;
  // Of a device: the runs, each of a few rows, in its memory until the queue is finished; null: they are sent along.
  const AppendRun* runs_there = nullptr;
};

// Rope of queries and of keys, then append of the keys as they are by then: of a decode step, whose rows are a run each,
// in their order, and in a device's memory (runs_there).
struct RotateAppendArgs {
  RopeArgs queries, keys;
  AppendArgs append;
};

// A part of a chunk's keys (AttendChunkArgs) begins at a multiple of this many tokens.
inline constexpr int64_t kChunkKeyStep = 512;

// Exact causal attention of a chunk over everything before it and itself, online softmax, one pass.
// runs[h] lists KV head h's tokens; their total is the same for all heads and the last `rows` of them
// are the chunk itself, in order. Row i sees all tokens but the last rows - 1 - i, or of those the last
// `window`, where there is one: the tokens before the chunk are then in order too.
//
// Tokens that are not in memory all at once can come in parts, one call each, first to last: runs then list
// the part's tokens, and first_key and keys_after say how many of the whole come before and after them. `out`
// and `state` carry the online softmax from call to call, all else is the same in each; the last one leaves
// the bits in `out` and `lse` that one call over everything would. What the first finds in `out` and `state`
// is not read. There is no `window` then.
struct AttendChunkArgs {
  const float* queries;  // (rows, query_heads, head_dim) rotated, not scaled
  int64_t rows;
  int32_t kv_heads, group, head_dim;
  DType kv;
  float scale;
  const KvRun* const* runs;  // (kv_heads) -> (run_count)
  const int32_t* run_count;  // (kv_heads)
  float* out;                // (rows, query_heads, head_dim)
  float* lse;                // (rows, query_heads) natural log, or null
  Precision precision;
  int32_t window = 0;      // 0: none
  int64_t first_key = 0;   // tokens before the part, a multiple of kChunkKeyStep; 0: it is the first
  int64_t keys_after = 0;  // tokens after it; 0: it is the last
  // (rows, query_heads, 2) the backend's own; may be null where the part is all. With one a host's tasks are short
  // however long the part is: some thousands of keys each, and a loop after the other goes on with the next ones.
  float* state = nullptr;
};

// The next token of each row, by a device that has the logits.
struct SampleArgs {
  const float* logits;  // (rows, vocab)
  int64_t rows, vocab;
  const SamplingRow* by;  // (rows) in the device's memory
  SampledRow* out;        // (rows) a list of the host's
};

struct Backend {
  const char* name;
  void (*embed)(const Stream&, const EmbedArgs&);
  void (*rms_norm)(const Stream&, const RmsNormArgs&);
  void (*matmul)(const Stream&, const MatmulArgs&);
  void (*rope)(const Stream&, const RopeArgs&);
  void (*swiglu)(const Stream&, const SwigluArgs&);
  void (*append)(const Stream&, const AppendArgs&);
  void (*rotate_append)(const Stream&, const RotateAppendArgs&);  // null: one after the other is no slower
  // What lookups retrieve, as runs: on a device; null where all code can read what is retrieved.
  void (*retrieve)(const Stream&, const LookupArgs&);
  void (*attend)(const Stream&, const LookupArgs&);  // exact over steady and runs: writes out and lse
  void (*attend_chunk)(const Stream&, const AttendChunkArgs&);
  void (*sample)(const Stream&, const SampleArgs&);  // null: the host does, in whose memory the logits are
  // These two are the host's, on a device's backend too. Natural log of the sum of exponentials, to f32 rounding; NaN
  // counts as -infinity. The same bits from any number of workers.
  double (*log_sum_exp)(const Stream&, const float* in, int64_t count);
  void (*dequantize)(const void* in, DType type, float* out, int64_t count);  // whole blocks
  const char* (*simd)();                                                      // instruction set in use
  const Policy* policies;
  int32_t policy_count;
  const DeviceTable* device = nullptr;  // null: the host's own processor, and its memory
};

// Whether numbers up to this magnitude (AppendArgs::largest) stay finite in the type: below what rounds to
// infinity.
constexpr bool kv_holds(DType kv, uint32_t magnitude_bits) {
  return magnitude_bits < (kv == DType::f16 ? 0x477FF000u : kv == DType::bf16 ? 0x7F7F8000u : 0x7F800000u);
}

const Backend& cpu_backend();

// A device's backend as sessions use it: what it leaves to the host is the CPU's, and of its policies all that lays
// out and checks segments, which is done in the host's memory.
struct BackendOnDevice {
  explicit BackendOnDevice(const Backend& device);
  BackendOnDevice(const BackendOnDevice&) = delete;
  std::vector<Policy> policies;
  Backend backend;
};

const Policy* find_policy(const Backend& backend, const char* name);  // null if the pair is missing

}  // namespace wi
