// Exact causal attention of a prompt's chunk over all tokens before it and itself, or over a window of them.
// One task takes one KV head and a tile of query rows, the group's heads stacked, and walks the keys that they
// see in tiles: scores by a dense product, online softmax, values by a dense product. One pass, memory
// independent of the length. Where keys come in parts, its state waits in the caller's memory between calls;
// tiles fall on the same borders as in one call, so that nothing is summed in another order. Long parts are
// walked in stretches, a loop each, for which the state waits there too: a stream may be interrupted only
// between tasks, and none is to grow with the length.
#include <algorithm>
#include <cassert>
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
// And of the scores that there are at a time: in bf16 they stay in a core's cache.
constexpr int64_t kScoredRows = 64;
constexpr int64_t key_tile(int terms) { return terms > 1 ? 256 : 512; }
static_assert(kChunkKeyStep % key_tile(1) == 0 && kChunkKeyStep % key_tile(2) == 0);
// Keys of one task where the state may wait, for heads of up to kStretchDim, and fewer for wider ones. Their products take
// a core some 7 ms, in tiles as in f32; the state that comes and goes besides is 1 % of that.
constexpr int64_t kStretchInTiles = 32768, kStretch = 8192, kStretchDim = 64;
constexpr int64_t kKeyStep = 64;     // tiles are padded to a multiple of this
constexpr int64_t kColumnStep = 64;  // rows before packing too: any packing's padding

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// The keys and values of one head, read forwards.
class Reader {
 public:
  Reader(const KvRun* runs, DType kv, int64_t head_dim) : run_(runs), kv_(kv), head_dim_(head_dim) {}
  // The next `tokens` tokens as f32, dense; or as a right operand (unpack.h), token from token `stride`
  // elements away and term from term `apart`.
  void read(const void* KvRun::*side, int64_t tokens, float* out) const;
  void read(const void* KvRun::*side, int64_t tokens, int terms, int64_t apart, int64_t stride,
            uint16_t* out) const;
  void advance(int64_t tokens);

 private:
  // piece(stored, first, tokens) for each run's share of the next `tokens` tokens
  template <class Piece>
  void each_piece(const void* KvRun::*side, int64_t tokens, Piece&& piece) const;

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
  int terms;                // of a product in bf16 (unpack.h); 0: f32
  std::byte* queries;       // (stacked, head_dim) scaled; in bf16 (stacked, terms, head_dim)
  std::byte* keys;          // a key tile as the products want it
  std::byte* values;        // likewise
  uint16_t* stage;          // bf16 before packing
  float* scores;            // (scored_rows() · group, keys): some rows' after the others'
  void* weights;            // as softmax_tile.h has them
  float* out;               // (stacked, head_dim)
  float* max;               // (stacked)
  float* sum;               // (stacked)
  std::byte* gemm;
};

// What of a part's keys a loop walks: of those that a tile sees [skipped, skipped + most).
struct Walk {
  int terms;
  int64_t part_end;  // among all keys
  int64_t past;      // keys before the chunk
  int64_t skipped = 0, most = 0;
};

// Keys that some row of a tile sees, from the first row's oldest one to the last row's own.
struct Seen {
  int64_t oldest;      // in whichever part
  int64_t begin, end;  // those of this part
};

Seen seen_by(const AttendChunkArgs& args, const Walk& walk, int64_t first_row, int64_t rows);
int64_t stretch_of(const AttendChunkArgs& args, int terms);
Tile plan_tile(const Stream& stream, int worker, const AttendChunkArgs& args, int32_t head, int64_t first_row,
               int64_t rows, int terms, int64_t seen);
Tile rows_of(const AttendChunkArgs& args, const Tile& tile, int64_t first, int64_t rows);
void load_queries(const AttendChunkArgs& args, const Tile& tile);
void load_state(const AttendChunkArgs& args, const Tile& tile);
void load_keys(const Reader& reader, int64_t tokens, const Packing& packing, const Tile& tile);
void load_values(const Reader& reader, int64_t tokens, const Packing& packing, const Tile& tile);
void weigh(const AttendChunkArgs& args, const Tile& tile, int64_t first_key, int64_t keys, int64_t past);
void store_state(const AttendChunkArgs& args, const Tile& tile);
void store_rows(const AttendChunkArgs& args, const Tile& tile);

// In f32 a product turns its keys for itself, once for all rows.
int64_t scored_rows(const AttendChunkArgs& args, int64_t rows, int terms) {
  return terms ? std::min(rows, std::max<int64_t>(1, kScoredRows / args.group)) : rows;
}

DType type_of(int terms) { return terms ? DType::bf16 : DType::f32; }
GemmShape score_shape(const AttendChunkArgs& args, int64_t stacked, int64_t keys, int terms) {
  const int64_t inputs = args.head_dim * std::max(terms, 1);
  return {.m = stacked, .n = keys, .k = inputs, .type = type_of(terms), .b_transposed = true};
}
GemmShape value_shape(const AttendChunkArgs& args, int64_t stacked, int64_t keys, int terms, bool first) {
  return {.m = stacked,
          .n = args.head_dim,
          .k = keys * std::max(terms, 1),
          .type = type_of(terms),
          .b_transposed = false,
          .accumulate = !first};
}

int64_t count_tokens(const KvRun* runs, int32_t count) {
  int64_t tokens = 0;
  for (int32_t r = 0; r < count; ++r) tokens += runs[r].tokens;
  return tokens;
}

// One KV head, query rows [first_row, first_row + rows).
void attend_tile(const Stream& stream, int worker, const AttendChunkArgs& args, const Walk& walk,
                 int32_t head, int64_t first_row, int64_t rows) {
  const int terms = walk.terms;
  const Seen seen = seen_by(args, walk, first_row, rows);
  const int64_t begin = seen.begin + walk.skipped, end = std::min(begin + walk.most, seen.end);
  const bool last = args.keys_after == 0 && end == seen.end;
  if (walk.skipped > 0 ? begin >= seen.end : begin == end && !last) return;  // the state stays as it is
  const Tile tile = plan_tile(stream, worker, args, head, first_row, rows, terms, end - begin);
  load_queries(args, tile);
  if (args.first_key > 0 || walk.skipped > 0) load_state(args, tile);

  Reader reader(args.runs[head], args.kv, args.head_dim);
  reader.advance(begin - args.first_key);
  for (int64_t first_key = begin; first_key < end && !stream.cancelled(); first_key += key_tile(terms)) {
    const int64_t tokens = std::min(key_tile(terms), end - first_key);
    const int64_t keys = round_up(tokens, kKeyStep);
    const auto score = [&](const Tile& of) { return Gemm(score_shape(args, of.stacked, keys, terms)); };
    const auto value = [&](const Tile& of) {
      return Gemm(value_shape(args, of.stacked, keys, terms, first_key == seen.oldest));
    };
    load_keys(reader, tokens, score(tile).packing(), tile);
    load_values(reader, tokens, value(tile).packing(), tile);
    reader.advance(tokens);
    const int64_t step = scored_rows(args, rows, terms);
    for (int64_t row = 0; row < rows; row += step) {
      const Tile some = rows_of(args, tile, row, std::min(step, rows - row));
      score(some).run(some.queries, some.keys, some.scores, some.gemm);
      weigh(args, some, first_key, keys, walk.past);
      value(some).run(some.weights, some.values, some.out, some.gemm);
    }
  }
  last ? store_rows(args, tile) : store_state(args, tile);
}

}  // namespace

void attend_chunk(const Stream& stream, const AttendChunkArgs& args) {
  assert(args.first_key % kChunkKeyStep == 0);
  assert((args.first_key == 0 && args.keys_after == 0) || (args.state && args.window == 0));
  const int64_t tile_rows = std::max<int64_t>(1, kStackedRows / args.group);
  const int64_t tiles = (args.rows + tile_rows - 1) / tile_rows;
  const auto rows_from = [&](int64_t row) { return std::min(tile_rows, args.rows - row); };
  Walk walk{bf16_terms(args.precision, args.kv), 0, 0};
  walk.part_end = args.first_key + count_tokens(args.runs[0], args.run_count[0]);
  walk.past = walk.part_end + args.keys_after - args.rows;
  int64_t longest = 1;
  for (int64_t row = 0; row < args.rows; row += tile_rows) {
    const Seen seen = seen_by(args, walk, row, rows_from(row));
    longest = std::max(longest, seen.end - seen.begin);
  }
  // Stretches of one length, so that none is hardly worth its loop.
  const int64_t at_once = args.state ? stretch_of(args, walk.terms) : longest;
  const int64_t stretches = (longest + at_once - 1) / at_once;
  walk.most = round_up((longest + stretches - 1) / stretches, key_tile(walk.terms));
  for (; walk.skipped < longest && !stream.cancelled(); walk.skipped += walk.most) {
    stream.each(tiles * args.kv_heads, [&](int64_t task, int worker) {
      const int64_t first_row =
          (tiles - 1 - task / args.kv_heads) * tile_rows;  // those that see most come first
      attend_tile(stream, worker, args, walk, static_cast<int32_t>(task % args.kv_heads), first_row,
                  rows_from(first_row));
    });
  }
}

namespace {

Seen seen_by(const AttendChunkArgs& args, const Walk& walk, int64_t first_row, int64_t rows) {
  const int64_t first = walk.past + first_row;  // the first row's own
  const int64_t oldest = args.window ? std::max<int64_t>(first + 1 - args.window, 0) : 0;
  const int64_t begin = std::max(oldest, args.first_key);
  return {oldest, begin, std::clamp(first + rows, begin, walk.part_end)};
}

int64_t stretch_of(const AttendChunkArgs& args, int terms) {
  const int64_t stretch = has_fast_bf16_tiles() && terms ? kStretchInTiles / terms : kStretch;
  const int64_t tile = key_tile(terms);
  return std::max(stretch * kStretchDim / std::max<int64_t>(args.head_dim, kStretchDim) / tile * tile, tile);
}

Tile plan_tile(const Stream& stream, int worker, const AttendChunkArgs& args, int32_t head, int64_t first_row,
               int64_t rows, int terms, int64_t seen) {
  const int64_t stacked = rows * args.group, dim = args.head_dim, widest = key_tile(terms);
  size_t gemm_bytes = 0, key_elements = 0, value_elements = 0;
  for (int64_t tokens : {std::min(seen, widest), seen % widest}) {
    if (tokens == 0) continue;
    const int64_t keys = round_up(tokens, kKeyStep);
    for (bool first : {true, false}) {
      const Gemm score(score_shape(args, stacked, keys, terms));
      const Gemm value(value_shape(args, stacked, keys, terms, first));
      gemm_bytes = std::max({gemm_bytes, score.scratch_bytes(), value.scratch_bytes()});
      key_elements = std::max(key_elements, score.packing().elements());
      value_elements = std::max(value_elements, value.packing().elements());
    }
  }
  const size_t element = static_cast<size_t>(format_of(type_of(terms)).bytes);
  const size_t row_floats = static_cast<size_t>(stacked * dim),
               factor = static_cast<size_t>(std::max(terms, 1));
  const size_t stage_elements = static_cast<size_t>(widest * terms * round_up(dim, kColumnStep));
  const size_t score_count = static_cast<size_t>(scored_rows(args, rows, terms) * args.group * widest);

  size_t total = 0;
  auto reserve = [&](size_t bytes) { return std::exchange(total, total + (bytes + 63) / 64 * 64); };
  const size_t queries = reserve(row_floats * factor * element);
  const size_t keys = reserve(key_elements * element), values = reserve(value_elements * element);
  const size_t stage = reserve(stage_elements * sizeof(uint16_t));
  const size_t scores = reserve(score_count * sizeof(float));
  const size_t weights = terms > 1 ? reserve(score_count * factor * element) : scores;
  const size_t out = reserve(row_floats * sizeof(float));
  const size_t max = reserve(static_cast<size_t>(stacked) * sizeof(float));
  const size_t sum = reserve(static_cast<size_t>(stacked) * sizeof(float));
  const size_t gemm = reserve(gemm_bytes);
  std::byte* base = stream.worker_scratch(stream.self, worker, total);
  auto floats = [&](size_t at) { return reinterpret_cast<float*>(base + at); };
  return {head,           first_row,      rows,
          stacked,        terms,          base + queries,
          base + keys,    base + values,  reinterpret_cast<uint16_t*>(base + stage),
          floats(scores), base + weights, floats(out),
          floats(max),    floats(sum),    base + gemm};
}

// Some of the tile's rows, its [first, first + rows).
Tile rows_of(const AttendChunkArgs& args, const Tile& tile, int64_t first, int64_t rows) {
  const int64_t before = first * args.group, numbers = before * args.head_dim;
  const size_t query_bytes = static_cast<size_t>(format_of(type_of(tile.terms)).bytes) *
                             static_cast<size_t>(std::max(tile.terms, 1));
  Tile some = tile;
  some.first_row += first;
  some.rows = rows;
  some.stacked = rows * args.group;
  some.queries += static_cast<size_t>(numbers) * query_bytes;
  some.out += numbers;
  some.max += before;
  some.sum += before;
  return some;
}

// Of stacked row s, among (rows, query_heads).
int64_t query_head(const AttendChunkArgs& args, const Tile& tile, int64_t s) {
  const int64_t row = tile.first_row + s / args.group;
  return (row * args.kv_heads + tile.head) * args.group + s % args.group;
}

// Scores come out in units of log 2, so that softmax takes exp2.
void load_queries(const AttendChunkArgs& args, const Tile& tile) {
  const float factor = args.scale * std::numbers::log2e_v<float>;
  const int64_t dim = args.head_dim;
  for (int64_t s = 0; s < tile.stacked; ++s) {
    const float* from = args.queries + query_head(args, tile, s) * dim;
    float* scaled = tile.terms ? tile.out : reinterpret_cast<float*>(tile.queries) + s * dim;
    for (int64_t j = 0; j < dim; ++j) scaled[j] = from[j] * factor;
    if (tile.terms)
      unpack_left(scaled, dim, tile.terms, reinterpret_cast<uint16_t*>(tile.queries) + s * dim * tile.terms);
  }
  std::fill_n(tile.max, tile.stacked, -std::numeric_limits<float>::infinity());
  std::fill_n(tile.sum, tile.stacked, 0.0f);
}

// Zeros around the first `tokens` rows of `width` numbers in (rows, stride).
template <class T>
void clear_around(T* out, int64_t tokens, int64_t width, int64_t rows, int64_t stride) {
  for (int64_t i = 0; i < tokens && width < stride; ++i)
    std::fill_n(out + i * stride + width, stride - width, T{});
  std::fill_n(out + tokens * stride, (rows - tokens) * stride, T{});
}

void load_keys(const Reader& reader, int64_t tokens, const Packing& packing, const Tile& tile) {
  if (tile.terms == 0) {
    float* keys = reinterpret_cast<float*>(tile.keys);
    reader.read(&KvRun::keys, tokens, keys);
    return clear_around(keys, tokens, packing.k, packing.n, packing.k);
  }
  const int64_t stride = round_up(packing.k, kColumnStep);
  reader.read(&KvRun::keys, tokens, tile.terms, packing.k / tile.terms, stride, tile.stage);
  clear_around(tile.stage, tokens, packing.k, packing.padded_n(), stride);
  for (int64_t n = 0; n < packing.padded_n(); n += 16) {
    pack_transposed(packing, n, round_up(packing.k, Packing::kRows), tile.stage + n * stride, stride,
                    reinterpret_cast<uint16_t*>(tile.keys));
  }
}

void load_values(const Reader& reader, int64_t tokens, const Packing& packing, const Tile& tile) {
  if (tile.terms == 0) {
    float* values = reinterpret_cast<float*>(tile.values);
    reader.read(&KvRun::values, tokens, values);
    return clear_around(values, tokens, packing.n, packing.k, packing.n);
  }
  const int64_t stride = round_up(packing.n, kColumnStep), keys = packing.k / tile.terms;
  reader.read(&KvRun::values, tokens, tile.terms, keys * stride, stride, tile.stage);
  for (int term = 0; term < tile.terms; ++term)
    clear_around(tile.stage + term * keys * stride, tokens, packing.n, keys, stride);
  pack_rows(packing, tile.stage, stride, reinterpret_cast<uint16_t*>(tile.values));
}

// Scores of keys [first_key, first_key + keys) to weights, in place. Row i sees those below first_sees + i,
// and with a window those from first_sees + i - window on; only rows that do not see all of them need a mask:
// the first ones, and with a window the last ones.
void weigh(const AttendChunkArgs& args, const Tile& tile, int64_t first_key, int64_t keys, int64_t past) {
  const SoftmaxTile softmax{tile.scores, tile.weights, static_cast<int32_t>(keys),
                            tile.terms,  tile.max,     tile.sum,
                            tile.out,    args.head_dim};
  const int64_t first_sees = past + tile.first_row + 1 - first_key;  // may be negative
  const int64_t window = args.window ? args.window : first_sees + tile.rows;
  const int64_t whole = std::clamp<int64_t>(keys - first_sees, 0, tile.rows);
  const int64_t late = std::clamp<int64_t>(window - first_sees + 1, whole, tile.rows);
  const auto column = [&](int64_t key) { return static_cast<int32_t>(std::clamp<int64_t>(key, 0, keys)); };
  const auto masked = [&](int64_t row) {
    softmax_rows(softmax, row * args.group, args.group, column(first_sees + row - window),
                 column(first_sees + row));
  };
  for (int64_t row = 0; row < whole; ++row) masked(row);
  softmax_rows(softmax, whole * args.group, (late - whole) * args.group, 0, static_cast<int32_t>(keys));
  for (int64_t row = late; row < tile.rows; ++row) masked(row);
}

void load_state(const AttendChunkArgs& args, const Tile& tile) {
  for (int64_t s = 0; s < tile.stacked; ++s) {
    const int64_t from = query_head(args, tile, s);
    std::copy_n(args.out + from * args.head_dim, args.head_dim, tile.out + s * args.head_dim);
    tile.max[s] = args.state[2 * from];
    tile.sum[s] = args.state[2 * from + 1];
  }
}

void store_state(const AttendChunkArgs& args, const Tile& tile) {
  for (int64_t s = 0; s < tile.stacked; ++s) {
    const int64_t to = query_head(args, tile, s);
    std::copy_n(tile.out + s * args.head_dim, args.head_dim, args.out + to * args.head_dim);
    args.state[2 * to] = tile.max[s];
    args.state[2 * to + 1] = tile.sum[s];
  }
}

void store_rows(const AttendChunkArgs& args, const Tile& tile) {
  const int64_t dim = args.head_dim;
  for (int64_t s = 0; s < tile.stacked; ++s) {
    const int64_t to = query_head(args, tile, s);
    const float inverse = 1.0f / tile.sum[s];
    for (int64_t j = 0; j < dim; ++j) args.out[to * dim + j] = tile.out[s * dim + j] * inverse;
    if (args.lse) args.lse[to] = tile.max[s] * std::numbers::ln2_v<float> + std::log(tile.sum[s]);
  }
}

void Reader::read(const void* KvRun::*side, int64_t tokens, float* out) const {
  each_piece(side, tokens, [&](const std::byte* from, int64_t first, int64_t count) {
    from_kv(from, kv_, out + first * head_dim_, count * head_dim_);
  });
}

void Reader::read(const void* KvRun::*side, int64_t tokens, int terms, int64_t apart, int64_t stride,
                  uint16_t* out) const {
  each_piece(side, tokens, [&](const std::byte* from, int64_t first, int64_t count) {
    uint16_t* to = out + first * stride;
    if (stride == head_dim_) return unpack_right(from, kv_, count * head_dim_, terms, apart, to);
    for (int64_t i = 0; i < count; ++i) {
      const std::byte* row = from + row_bytes(kv_, head_dim_) * static_cast<size_t>(i);
      unpack_right(row, kv_, head_dim_, terms, apart, to + i * stride);
    }
  });
}

template <class Piece>
void Reader::each_piece(const void* KvRun::*side, int64_t tokens, Piece&& piece) const {
  const KvRun* run = run_;
  int64_t offset = offset_;
  for (int64_t done = 0; done < tokens; ++run, offset = 0) {
    const int64_t count = std::min(tokens - done, run->tokens - offset);
    piece(static_cast<const std::byte*>(run->*side) + row_bytes(kv_, head_dim_) * static_cast<size_t>(offset),
          done, count);
    done += count;
  }
}

void Reader::advance(int64_t tokens) {
  for (offset_ += tokens; offset_ > 0 && offset_ >= run_->tokens; ++run_) offset_ -= run_->tokens;
}

}  // namespace
}  // namespace wi::cpu
