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

constexpr int64_t kStackedRows = 512;  // query rows · group of one task
constexpr int64_t kKeyTile = 512;
constexpr int64_t kKeyStep = 64;  // tiles are padded to a multiple of this

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// The keys and values of one head, read forwards.
class Reader {
 public:
  Reader(const KvRun* runs, DType kv, int64_t head_dim) : run_(runs), kv_(kv), head_dim_(head_dim) {}
  // The next `tokens` tokens as `type`, `stride` elements apart; zeros for the rows up to `padded`.
  void read(const void* KvRun::*side, int64_t tokens, int64_t padded, DType type, int64_t stride,
            std::byte* out) const;
  void advance(int64_t tokens);

 private:
  void convert(const void* in, DType type, std::byte* out, int64_t elements) const;

  const KvRun* run_;
  DType kv_;
  int64_t head_dim_;
  int64_t offset_ = 0;  // tokens of *run_ already read
};

// What a task works on: one KV head, some query rows, and its memory, all of it in the worker's scratch.
struct Tile {
  int32_t head;
  int64_t first_row, rows;  // query positions
  int64_t stacked;          // rows · group
  DType type;               // of the products
  std::byte* queries;       // (stacked, head_dim) scaled
  std::byte* keys;          // a key tile as the products want it
  std::byte* values;        // likewise
  std::byte* stage;         // (kKeyTile, stage_stride) bf16 before packing
  int64_t stage_stride;
  float* scores;  // (stacked, keys), then the weights
  float* out;     // (stacked, head_dim)
  float* max;     // (stacked)
  float* sum;     // (stacked)
  std::byte* gemm;
};

Tile plan_tile(const Stream& stream, int worker, const AttendChunkArgs& args, int32_t head, int64_t first_row,
               int64_t rows, DType type, int64_t end);
void load_queries(const AttendChunkArgs& args, const Tile& tile);
void load_keys(const Reader& reader, int64_t tokens, const Packing& packing, const Tile& tile);
void load_values(const Reader& reader, int64_t tokens, const Packing& packing, const Tile& tile);
void weigh(const AttendChunkArgs& args, const Tile& tile, int64_t first_key, int64_t keys, int64_t past);
void store_rows(const AttendChunkArgs& args, const Tile& tile);

GemmShape score_shape(const AttendChunkArgs& args, int64_t stacked, int64_t keys, DType type) {
  return {.m = stacked, .n = keys, .k = args.head_dim, .type = type, .b_transposed = true};
}
GemmShape value_shape(const AttendChunkArgs& args, int64_t stacked, int64_t keys, DType type, bool first) {
  return {
      .m = stacked, .n = args.head_dim, .k = keys, .type = type, .b_transposed = false, .accumulate = !first};
}

int64_t count_tokens(const KvRun* runs, int32_t count) {
  int64_t tokens = 0;
  for (int32_t r = 0; r < count; ++r) tokens += runs[r].tokens;
  return tokens;
}

// One KV head, query rows [first_row, first_row + rows).
void attend_tile(const Stream& stream, int worker, const AttendChunkArgs& args, int32_t head,
                 int64_t first_row, int64_t rows, DType type) {
  const int64_t past = count_tokens(args.runs[head], args.run_count[head]) - args.rows;
  const int64_t end = past + first_row + rows;  // keys that the last row sees
  const Tile tile = plan_tile(stream, worker, args, head, first_row, rows, type, end);
  load_queries(args, tile);

  Reader reader(args.runs[head], args.kv, args.head_dim);
  for (int64_t first_key = 0; first_key < end && !stream.cancelled(); first_key += kKeyTile) {
    const int64_t tokens = std::min(kKeyTile, end - first_key);
    const int64_t keys = round_up(tokens, kKeyStep);
    auto score = Gemm::get(score_shape(args, tile.stacked, keys, type));
    auto value = Gemm::get(value_shape(args, tile.stacked, keys, type, first_key == 0));
    load_keys(reader, tokens, score->packing(), tile);
    load_values(reader, tokens, value->packing(), tile);
    reader.advance(tokens);
    score->run(tile.queries, tile.keys, tile.scores, tile.gemm);
    weigh(args, tile, first_key, keys, past);
    value->run(tile.scores, tile.values, tile.out, tile.gemm);
  }
  store_rows(args, tile);
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

Tile plan_tile(const Stream& stream, int worker, const AttendChunkArgs& args, int32_t head, int64_t first_row,
               int64_t rows, DType type, int64_t end) {
  const int64_t stacked = rows * args.group, dim = args.head_dim;
  size_t gemm_bytes = 0, key_elements = 0, value_elements = 0;
  for (int64_t tokens : {std::min(end, kKeyTile), end % kKeyTile}) {
    if (tokens == 0) continue;
    const int64_t keys = round_up(tokens, kKeyStep);
    for (bool first : {true, false}) {
      auto score = Gemm::get(score_shape(args, stacked, keys, type));
      auto value = Gemm::get(value_shape(args, stacked, keys, type, first));
      gemm_bytes = std::max({gemm_bytes, score->scratch_bytes(), value->scratch_bytes()});
      key_elements = std::max(key_elements, score->packing().elements());
      value_elements = std::max(value_elements, value->packing().elements());
    }
  }
  const size_t element = static_cast<size_t>(format_of(type).bytes);
  const int64_t stage_stride = round_up(dim, 64);  // any packing's padding
  const size_t stage_elements = type == DType::bf16 ? static_cast<size_t>(kKeyTile * stage_stride) : 0;
  const size_t row_floats = static_cast<size_t>(stacked * dim);

  size_t total = 0;
  auto reserve = [&](size_t bytes) { return std::exchange(total, total + (bytes + 63) / 64 * 64); };
  const size_t queries = reserve(row_floats * element);
  const size_t keys = reserve(key_elements * element), values = reserve(value_elements * element);
  const size_t stage = reserve(stage_elements * sizeof(uint16_t));
  const size_t scores = reserve(static_cast<size_t>(stacked * kKeyTile) * sizeof(float));
  const size_t out = reserve(row_floats * sizeof(float));
  const size_t max = reserve(static_cast<size_t>(stacked) * sizeof(float));
  const size_t sum = reserve(static_cast<size_t>(stacked) * sizeof(float));
  const size_t gemm = reserve(gemm_bytes);
  std::byte* base = stream.worker_scratch(stream.self, worker, total);
  auto floats = [&](size_t at) { return reinterpret_cast<float*>(base + at); };
  std::memset(base + stage, 0, stage_elements * sizeof(uint16_t));  // columns from head_dim on stay zero
  return {head,           first_row,   rows,          stacked,      type,
          base + queries, base + keys, base + values, base + stage, stage_stride,
          floats(scores), floats(out), floats(max),   floats(sum),  base + gemm};
}

// Scores come out in units of log 2, so that softmax takes exp2.
void load_queries(const AttendChunkArgs& args, const Tile& tile) {
  const float factor = args.scale * std::numbers::log2e_v<float>;
  const int64_t group_floats = int64_t{args.group} * args.head_dim;
  for (int64_t i = 0; i < tile.rows; ++i) {
    const float* from = args.queries + ((tile.first_row + i) * args.kv_heads + tile.head) * group_floats;
    const bool narrow = tile.type == DType::bf16;
    float* scaled = narrow ? tile.out : reinterpret_cast<float*>(tile.queries) + i * group_floats;
    for (int64_t j = 0; j < group_floats; ++j) scaled[j] = from[j] * factor;
    if (narrow)
      unpack_bf16(scaled, DType::f32, reinterpret_cast<uint16_t*>(tile.queries) + i * group_floats,
                  group_floats);
  }
  std::fill_n(tile.max, tile.stacked, -std::numeric_limits<float>::infinity());
  std::fill_n(tile.sum, tile.stacked, 0.0f);
}

void load_keys(const Reader& reader, int64_t tokens, const Packing& packing, const Tile& tile) {
  if (tile.type == DType::f32)
    return reader.read(&KvRun::keys, tokens, packing.n, tile.type, packing.k, tile.keys);
  reader.read(&KvRun::keys, tokens, packing.padded_n(), tile.type, tile.stage_stride, tile.stage);
  const uint16_t* stage = reinterpret_cast<const uint16_t*>(tile.stage);
  for (int64_t n = 0; n < packing.padded_n(); n += 16) {
    pack_transposed(packing, n, round_up(packing.k, Packing::kRows), stage + n * tile.stage_stride,
                    tile.stage_stride, reinterpret_cast<uint16_t*>(tile.keys));
  }
}

void load_values(const Reader& reader, int64_t tokens, const Packing& packing, const Tile& tile) {
  if (tile.type == DType::f32)
    return reader.read(&KvRun::values, tokens, packing.k, tile.type, packing.n, tile.values);
  reader.read(&KvRun::values, tokens, packing.padded_k(), tile.type, tile.stage_stride, tile.stage);
  pack_rows(packing, reinterpret_cast<const uint16_t*>(tile.stage), tile.stage_stride,
            reinterpret_cast<uint16_t*>(tile.values));
}

// Scores of keys [first_key, first_key + keys) to weights, in place; only rows that do not see all of them
// need a mask.
void weigh(const AttendChunkArgs& args, const Tile& tile, int64_t first_key, int64_t keys, int64_t past) {
  const SoftmaxTile softmax{
      tile.scores, tile.scores,  static_cast<int32_t>(keys), tile.type == DType::bf16, tile.max, tile.sum,
      tile.out,    args.head_dim};
  const int64_t first_sees = past + tile.first_row + 1 - first_key;  // may be negative
  const int64_t masked = std::clamp<int64_t>(keys - first_sees, 0, tile.rows);
  for (int64_t i = 0; i < masked; ++i)
    softmax_rows(softmax, i * args.group, args.group,
                 static_cast<int32_t>(std::max<int64_t>(0, first_sees + i)));
  softmax_rows(softmax, masked * args.group, (tile.rows - masked) * args.group, static_cast<int32_t>(keys));
}

void store_rows(const AttendChunkArgs& args, const Tile& tile) {
  const int64_t dim = args.head_dim;
  for (int64_t s = 0; s < tile.stacked; ++s) {
    const int64_t row = tile.first_row + s / args.group;
    const int64_t query_head = (row * args.kv_heads + tile.head) * args.group + s % args.group;
    const float inverse = 1.0f / tile.sum[s];
    for (int64_t j = 0; j < dim; ++j) args.out[query_head * dim + j] = tile.out[s * dim + j] * inverse;
    if (args.lse) args.lse[query_head] = tile.max[s] * std::numbers::ln2_v<float> + std::log(tile.sum[s]);
  }
}

void Reader::read(const void* KvRun::*side, int64_t tokens, int64_t padded, DType type, int64_t stride,
                  std::byte* out) const {
  const int64_t row_size = stride * format_of(type).bytes, kv_row_size = head_dim_ * format_of(kv_).bytes;
  const KvRun* run = run_;
  int64_t offset = offset_;
  for (int64_t done = 0; done < tokens; ++run, offset = 0) {
    const int64_t piece = std::min(tokens - done, run->tokens - offset);
    const std::byte* from = static_cast<const std::byte*>(run->*side) + offset * kv_row_size;
    std::byte* to = out + done * row_size;
    if (stride == head_dim_) {
      convert(from, type, to, piece * head_dim_);
    } else {
      for (int64_t i = 0; i < piece; ++i) convert(from + i * kv_row_size, type, to + i * row_size, head_dim_);
    }
    done += piece;
  }
  std::memset(out + tokens * row_size, 0, static_cast<size_t>((padded - tokens) * row_size));
}

void Reader::advance(int64_t tokens) {
  for (offset_ += tokens; offset_ > 0 && offset_ >= run_->tokens; ++run_) offset_ -= run_->tokens;
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
