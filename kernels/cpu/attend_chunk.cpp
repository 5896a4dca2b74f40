// Exact causal attention of a prompt's chunk over all tokens before it and itself. One task takes one KV head
// and a tile of query rows, the group's heads stacked, and walks the keys in tiles: scores by a dense
// product, online softmax, values by a dense product. One pass, memory independent of the length.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <utility>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/softmax_tile.h"
#include "kernels/cpu/unpack.h"

namespace wi::cpu {
namespace {

constexpr int64_t kStackedRows = 512;  // query rows × group of one task
constexpr int64_t kKeyTile = 512;
constexpr int64_t kKeyStep = 32;  // tiles are padded to a multiple of this

// The keys and values of one head, read forwards a tile at a time.
class Reader {
 public:
  Reader(const KvRun* runs, int32_t count, DType kv, int64_t head_dim)
      : run_(runs), end_(runs + count), kv_(kv), head_dim_(head_dim) {}
  // The next `tokens` tokens as `type`; the place may be the run's own, else what `keys` and `values` point
  // to.
  void next(int64_t tokens, int64_t padded, DType type, std::byte*& keys, std::byte*& values);

 private:
  void convert(const void* in, DType type, std::byte* out, int64_t elements) const;

  const KvRun* run_;
  const KvRun* end_;
  DType kv_;
  int64_t head_dim_;
  int64_t offset_ = 0;  // tokens of *run_ already read
};

// A task's rows and its memory, all in the worker's scratch.
struct Tile {
  int64_t first_row, rows;  // query positions
  int64_t stacked;          // rows · group
  std::byte* queries;       // (stacked, head_dim) scaled, in the product's type
  std::byte* keys;          // (kKeyTile, head_dim)
  std::byte* values;        // (kKeyTile, head_dim)
  float* scores;            // (stacked, kKeyTile), then the weights
  float* out;               // (stacked, head_dim)
  float* max;               // (stacked)
  float* sum;               // (stacked)
  std::byte* gemm;          // oneDNN's own
};

int64_t count_tokens(const KvRun* runs, int32_t count);
Tile plan_tile(const Stream& stream, int worker, const AttendChunkArgs& args, int64_t first_row, int64_t rows,
               DType type, size_t gemm_bytes);
void load_queries(const AttendChunkArgs& args, int32_t head, DType type, const Tile& tile);
void weigh(const AttendChunkArgs& args, const Tile& tile, bool bf16, int64_t first_key, int64_t keys,
           int64_t past);
void store_rows(const AttendChunkArgs& args, int32_t head, const Tile& tile);

GemmShape score_shape(const AttendChunkArgs& args, int64_t stacked, int64_t keys, DType type) {
  return {.m = stacked,
          .n = keys,
          .k = args.head_dim,
          .lda = args.head_dim,
          .ldb = args.head_dim,
          .ldc = kKeyTile,
          .type = type,
          .b_transposed = true};
}
// Weights lie where the scores did, so a row of bf16 ones takes half of the distance between rows.
GemmShape value_shape(const AttendChunkArgs& args, int64_t stacked, int64_t keys, DType type, bool first) {
  return {.m = stacked,
          .n = args.head_dim,
          .k = keys,
          .lda = type == DType::bf16 ? 2 * kKeyTile : kKeyTile,
          .ldb = args.head_dim,
          .ldc = args.head_dim,
          .type = type,
          .accumulate = !first};
}

// One KV head, query rows [first_row, first_row + rows).
void attend_tile(const Stream& stream, int worker, const AttendChunkArgs& args, int32_t head,
                 int64_t first_row, int64_t rows, DType type) {
  const int64_t stacked = rows * args.group;
  const int64_t past = count_tokens(args.runs[head], args.run_count[head]) - args.rows;
  const int64_t end = past + first_row + rows;  // keys that the last row sees
  size_t gemm_bytes = 0;
  for (int64_t keys : {std::min(end, kKeyTile), end % kKeyTile}) {
    if (keys == 0) continue;
    keys = (keys + kKeyStep - 1) / kKeyStep * kKeyStep;
    gemm_bytes = std::max(gemm_bytes, Gemm::get(score_shape(args, stacked, keys, type))->scratch_bytes());
    gemm_bytes =
        std::max(gemm_bytes, Gemm::get(value_shape(args, stacked, keys, type, false))->scratch_bytes());
    gemm_bytes =
        std::max(gemm_bytes, Gemm::get(value_shape(args, stacked, keys, type, true))->scratch_bytes());
  }
  Tile tile = plan_tile(stream, worker, args, first_row, rows, type, gemm_bytes);
  load_queries(args, head, type, tile);

  Reader reader(args.runs[head], args.run_count[head], args.kv, args.head_dim);
  for (int64_t first_key = 0; first_key < end && !stream.cancelled(); first_key += kKeyTile) {
    const int64_t tokens = std::min(kKeyTile, end - first_key);
    const int64_t keys = (tokens + kKeyStep - 1) / kKeyStep * kKeyStep;
    std::byte *k = tile.keys, *v = tile.values;
    reader.next(tokens, keys, type, k, v);
    Gemm::get(score_shape(args, stacked, keys, type))->run(tile.queries, k, tile.scores, nullptr, tile.gemm);
    weigh(args, tile, type == DType::bf16, first_key, keys, past);
    Gemm::get(value_shape(args, stacked, keys, type, first_key == 0))
        ->run(tile.scores, v, tile.out, nullptr, tile.gemm);
  }
  store_rows(args, head, tile);
}

}  // namespace

void attend_chunk(const Stream& stream, const AttendChunkArgs& args) {
  const bool bf16 = !args.exact_f32 && args.kv != DType::f32 && has_fast_bf16();
  const DType type = bf16 ? DType::bf16 : DType::f32;
  const int64_t tile_rows = std::max<int64_t>(1, kStackedRows / args.group);
  const int64_t tiles = (args.rows + tile_rows - 1) / tile_rows;
  stream.each(tiles * args.kv_heads, [&](int64_t task, int worker) {
    const int64_t first_row =
        (tiles - 1 - task / args.kv_heads) * tile_rows;  // those that see most come first
    attend_tile(stream, worker, args, static_cast<int32_t>(task % args.kv_heads), first_row,
                std::min(tile_rows, args.rows - first_row), type);
  });
}

namespace {

int64_t count_tokens(const KvRun* runs, int32_t count) {
  int64_t tokens = 0;
  for (int32_t r = 0; r < count; ++r) tokens += runs[r].tokens;
  return tokens;
}

Tile plan_tile(const Stream& stream, int worker, const AttendChunkArgs& args, int64_t first_row, int64_t rows,
               DType type, size_t gemm_bytes) {
  const size_t element = static_cast<size_t>(format_of(type).bytes);
  const size_t stacked = static_cast<size_t>(rows * args.group), dim = static_cast<size_t>(args.head_dim);
  size_t total = 0;
  auto reserve = [&](size_t bytes) { return std::exchange(total, total + (bytes + 63) / 64 * 64); };
  const size_t queries = reserve(stacked * dim * element);
  const size_t keys = reserve(kKeyTile * dim * element), values = reserve(kKeyTile * dim * element);
  const size_t scores = reserve(stacked * kKeyTile * sizeof(float)),
               out = reserve(stacked * dim * sizeof(float));
  const size_t max = reserve(stacked * sizeof(float)), sum = reserve(stacked * sizeof(float));
  const size_t gemm = reserve(gemm_bytes);
  std::byte* base = stream.worker_scratch(stream.self, worker, total);
  auto floats = [&](size_t at) { return reinterpret_cast<float*>(base + at); };
  return {first_row,      rows,        rows * args.group, base + queries, base + keys, base + values,
          floats(scores), floats(out), floats(max),       floats(sum),    base + gemm};
}

// Scores come out in units of log 2, so that softmax takes exp2.
void load_queries(const AttendChunkArgs& args, int32_t head, DType type, const Tile& tile) {
  const float factor = args.scale * std::numbers::log2e_v<float>;
  const int64_t group_floats = int64_t{args.group} * args.head_dim;
  for (int64_t i = 0; i < tile.rows; ++i) {
    const float* from = args.queries + ((tile.first_row + i) * args.kv_heads + head) * group_floats;
    float* scaled = type == DType::f32 ? reinterpret_cast<float*>(tile.queries) + i * group_floats : tile.out;
    for (int64_t j = 0; j < group_floats; ++j) scaled[j] = from[j] * factor;
    if (type == DType::bf16)
      unpack_bf16(scaled, DType::f32, reinterpret_cast<uint16_t*>(tile.queries) + i * group_floats,
                  group_floats);
  }
  std::fill_n(tile.max, tile.stacked, -std::numeric_limits<float>::infinity());
  std::fill_n(tile.sum, tile.stacked, 0.0f);
}

// Scores of keys [first_key, first_key + keys) to weights; only rows that do not see all of them need a mask.
void weigh(const AttendChunkArgs& args, const Tile& tile, bool bf16, int64_t first_key, int64_t keys,
           int64_t past) {
  SoftmaxTile softmax{tile.scores, kKeyTile,     static_cast<int32_t>(keys), bf16, tile.max, tile.sum,
                      tile.out,    args.head_dim};
  const int64_t first_sees = past + tile.first_row + 1 - first_key;  // may be negative
  const int64_t masked = std::clamp<int64_t>(keys - first_sees, 0, tile.rows);
  for (int64_t i = 0; i < masked; ++i)
    softmax_rows(softmax, i * args.group, args.group,
                 static_cast<int32_t>(std::max<int64_t>(0, first_sees + i)));
  softmax_rows(softmax, masked * args.group, (tile.rows - masked) * args.group, static_cast<int32_t>(keys));
}

void store_rows(const AttendChunkArgs& args, int32_t head, const Tile& tile) {
  const int64_t dim = args.head_dim;
  for (int64_t s = 0; s < tile.stacked; ++s) {
    const int64_t query_head =
        (tile.first_row * args.kv_heads + (s / args.group) * args.kv_heads + head) * args.group +
        s % args.group;
    const float inverse = 1.0f / tile.sum[s];
    for (int64_t j = 0; j < dim; ++j) args.out[query_head * dim + j] = tile.out[s * dim + j] * inverse;
    if (args.lse) args.lse[query_head] = tile.max[s] * std::numbers::ln2_v<float> + std::log(tile.sum[s]);
  }
}

void Reader::next(int64_t tokens, int64_t padded, DType type, std::byte*& keys, std::byte*& values) {
  const int64_t element = format_of(type).bytes, kv_element = format_of(kv_).bytes;
  while (run_ != end_ && offset_ == run_->tokens) ++run_, offset_ = 0;
  auto at = [&](const void* run) {
    return static_cast<const std::byte*>(run) + offset_ * head_dim_ * kv_element;
  };
  if (kv_ == type && tokens == padded && run_->tokens - offset_ >= tokens) {
    keys = const_cast<std::byte*>(at(run_->keys));
    values = const_cast<std::byte*>(at(run_->values));
    offset_ += tokens;
    return;
  }
  for (int64_t done = 0; done < tokens;) {
    const int64_t piece = std::min(tokens - done, run_->tokens - offset_);
    convert(at(run_->keys), type, keys + done * head_dim_ * element, piece * head_dim_);
    convert(at(run_->values), type, values + done * head_dim_ * element, piece * head_dim_);
    done += piece;
    offset_ += piece;
    if (offset_ == run_->tokens) ++run_, offset_ = 0;
  }
  const size_t rest = static_cast<size_t>((padded - tokens) * head_dim_ * element);  // 0 · NaN would be NaN
  std::memset(keys + tokens * head_dim_ * element, 0, rest);
  std::memset(values + tokens * head_dim_ * element, 0, rest);
}

void Reader::convert(const void* in, DType type, std::byte* out, int64_t elements) const {
  if (type == DType::bf16) {
    unpack_bf16(in, kv_, reinterpret_cast<uint16_t*>(out), elements);
  } else {
    from_kv(in, kv_, reinterpret_cast<float*>(out), elements);
  }
}

}  // namespace
}  // namespace wi::cpu
