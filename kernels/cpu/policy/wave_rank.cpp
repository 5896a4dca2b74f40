// The vector half of the wave policy's Select: scores every centroid, turns the scores into ranks, and sums
// over ranks above a threshold. wave_select.cpp takes the decisions.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/policy/wave_rank.cpp"
#include "kernels/cpu/policy/wave_rank.h"

#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/attend-inl.h"
#include "kernels/cpu/policy/wave.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace {

// Scores of consecutive rows: out (count, kHeads). Nothing is written beyond.
template <DType kKv, int kHeads>
void score_rows(const float* query, size_t head_dim, const std::byte* rows, size_t count, float* out) {
  const Floats d;
  constexpr size_t kRows = kLanes / kHeads;
  constexpr size_t kAhead = 16;  // rows
  const size_t bytes = row_bytes(kKv, static_cast<int64_t>(head_dim));
  const std::byte* tile[kRows];
  for (size_t first = 0; first < count; first += kRows) {
    const size_t here = HWY_MIN(kRows, count - first);
    for (size_t r = 0; r < kRows; r++) {
      tile[r] = rows + (first + HWY_MIN(r, here - 1)) * bytes;
      prefetch_row(tile[r] + kAhead * bytes, bytes);
    }
    const Vector score = dot_rows<kKv, kHeads>(d, query, tile, head_dim);
    if (here == kRows) {
      hn::StoreU(score, d, out + first * kHeads);
    } else {
      HWY_ALIGN float partial[kLanes];
      hn::Store(score, d, partial);
      std::memcpy(out + first * kHeads, partial, here * kHeads * sizeof(float));
    }
  }
}

// Adds each row's softmax over all rows, summed over the block's heads, to rank. weights: scratch for
// count · kHeads floats and a vector. heads ≤ kHeads are real.
template <int kHeads>
void add_rank(const float* scores, size_t count, int heads, float* weights, float* rank) {
  const Floats d;
  const size_t total = count * kHeads;
  Vector max = hn::Set(d, kLowest);
  size_t i = 0;
  for (; i + kLanes <= total; i += kLanes) max = hn::Max(max, hn::LoadU(d, scores + i));
  HWY_ALIGN float last[kLanes];  // the rows that fill no vector; the rest of it weighs nothing
  for (size_t j = 0; j < kLanes; j++) last[j] = i + j < total ? scores[i + j] : -INFINITY;
  max = max_across_rows<kHeads>(d, hn::Max(max, hn::Load(d, last)));
  Vector sum = hn::Zero(d);
  for (i = 0; i + kLanes <= total; i += kLanes) {
    const Vector weight = exp(d, hn::Sub(hn::LoadU(d, scores + i), max));
    sum = hn::Add(sum, weight);
    hn::StoreU(weight, d, weights + i);
  }
  const Vector weight = exp(d, hn::Sub(hn::Load(d, last), max));
  sum = sum_across_rows<kHeads>(d, hn::Add(sum, weight));
  hn::StoreU(weight, d, weights + i);

  HWY_ALIGN float inverse[kLanes];
  hn::Store(hn::Div(hn::Set(d, 1.0f), sum), d, inverse);
  for (size_t j = 0; j < kLanes; j++) inverse[j] = static_cast<int>(j % kHeads) < heads ? inverse[j] : 0;
  const Vector normalise = hn::Load(d, inverse);
  size_t row = 0;
  for (; row + kLanes <= count; row += kLanes) {
    Vector v[kHeads];
    for (int h = 0; h < kHeads; h++) {
      v[h] = hn::Mul(hn::LoadU(d, weights + row * kHeads + h * kLanes), normalise);
    }
    hn::StoreU(hn::Add(hn::LoadU(d, rank + row), sum_heads<kHeads>(d, v)), d, rank + row);
  }
  for (; row < count; row++)
    for (int h = 0; h < heads; h++) rank[row] += weights[row * kHeads + h] * inverse[h];
}

// Fills lane.scores, scratch.query and scratch.rank.
void rank_lane(const LanesArgs& args, const Lane& lane, const RankScratch& scratch) {
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  const size_t count = static_cast<size_t>(lane.partition_count);
  const int group = args.group;
  pack_query(lane.query, group, head_dim, args.scale, scratch.query);
  std::memset(scratch.rank, 0, count * sizeof(float));
  for (int first = 0; first < group; first += kBlockHeads) {
    const int heads = HWY_MIN(kBlockHeads, group - first);
    const int width = block_width(group, first);
    const bool in_place = width == group;
    float* scores = in_place ? lane.scores : scratch.scores;
    with_type_and_width(args.kv, width, [&]<DType kKv, int kHeads>() HWY_ATTR {
      size_t at = 0;
      for (int32_t s = 0; s < lane.segment_count; s++) {
        if (lane.segments[s].partitions == 0) continue;
        const WaveIndex index = wave_view(lane.segments[s].index);
        score_rows<kKv, kHeads>(scratch.query + first * padded_dim(head_dim), head_dim, index.centroids,
                                static_cast<size_t>(index.clusters), scores + at * kHeads);
        at += static_cast<size_t>(index.clusters);
      }
      add_rank<kHeads>(scores, count, heads, scratch.weights, scratch.rank);
    });
    if (in_place) continue;
    for (size_t i = 0; i < count; i++)
      for (int h = 0; h < heads; h++) lane.scores[i * group + first + h] = scores[i * width + h];
  }
}

size_t padded_query_floats(const LanesArgs& args) {
  return static_cast<size_t>(head_blocks(args.group)) * kBlockHeads * padded_dim(args.head_dim);
}

// Ranks are ≥ 0 (NaN counts as 0), so that they compare as their bits do.
void rank_bits(const float* rank, size_t count, int32_t* bits) {
  const Floats d;
  const hn::Rebind<int32_t, Floats> di;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vector r = hn::LoadU(d, rank + i);
    hn::StoreU(hn::BitCast(di, hn::IfThenElseZero(hn::Gt(r, hn::Zero(d)), r)), di, bits + i);
  }
  for (; i < count; i++) {
    const float r = rank[i] > 0 ? rank[i] : 0;
    std::memcpy(&bits[i], &r, sizeof(r));
  }
}

int64_t weight_from(const int32_t* bits, const int32_t* weights, size_t count, int32_t pivot) {
  const hn::ScalableTag<int32_t> di;
  const auto least = hn::Set(di, pivot - 1);
  const auto one = hn::Set(di, 1);
  auto sum = hn::Zero(di);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto above = hn::Gt(hn::LoadU(di, bits + i), least);
    sum = hn::Add(sum, hn::IfThenElseZero(above, weights ? hn::LoadU(di, weights + i) : one));
  }
  HWY_ALIGN int32_t lanes[kLanes];
  hn::Store(sum, di, lanes);
  int64_t total = 0;
  for (int32_t lane : lanes) total += lane;
  for (; i < count; i++)
    if (bits[i] >= pivot) total += weights ? weights[i] : 1;
  return total;
}

size_t indices_from(const int32_t* bits, size_t count, int32_t pivot, int32_t* out) {
  const hn::ScalableTag<int32_t> di;
  const auto least = hn::Set(di, pivot - 1);
  size_t kept = 0;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto above = hn::Gt(hn::LoadU(di, bits + i), least);
    // Not CompressStore: compressing to memory is microcode on Zen 4.
    hn::StoreU(hn::Compress(hn::Iota(di, static_cast<int32_t>(i)), above), di, out + kept);
    kept += hn::CountTrue(di, above);
  }
  for (; i < count; i++)
    if (bits[i] >= pivot) out[kept++] = static_cast<int32_t>(i);
  return kept;
}

// x: room for a vector more.
void exp_in_place(float* x, size_t count) {
  const Floats d;
  for (size_t i = 0; i < count; i += kLanes) hn::StoreU(exp(d, hn::LoadU(d, x + i)), d, x + i);
}

// Natural log of Σ exp(q·k) over the steady zone, for each query head of the group.
void steady_lse(const LanesArgs& args, const Lane& lane, const float* query, double* lse) {
  const Floats d;
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  const size_t bytes = row_bytes(args.kv, args.head_dim);
  for (int first = 0; first < args.group; first += kBlockHeads) {
    with_type_and_width(args.kv, block_width(args.group, first), [&]<DType kKv, int kHeads>() HWY_ATTR {
      constexpr int64_t kTile = kLanes / kHeads;
      Vector max = hn::Set(d, kLowest);
      Vector sum = hn::Zero(d);
      for (int32_t r = 0; r < lane.steady_count; r++) {
        const KvRun& run = lane.steady[r];
        for (int64_t token = 0; token < run.tokens; token += kTile) {
          const std::byte* rows[kTile];
          for (int64_t i = 0; i < kTile; i++) {
            rows[i] = static_cast<const std::byte*>(run.keys) + HWY_MIN(token + i, run.tokens - 1) * bytes;
          }
          HWY_ALIGN float scores[kLanes];
          hn::Store(dot_rows<kKv, kHeads>(d, query + first * padded_dim(head_dim), rows, head_dim), d,
                    scores);
          for (int64_t i = (run.tokens - token) * kHeads; i < static_cast<int64_t>(kLanes); i++) {
            scores[i] = -INFINITY;
          }
          const Vector score = hn::Load(d, scores);
          const Vector higher = hn::Max(max, score);
          sum = hn::Add(hn::Mul(sum, exp(d, hn::Sub(max, higher))), exp(d, hn::Sub(score, higher)));
          max = higher;
        }
      }
      const Vector top = max_across_rows<kHeads>(d, max);
      sum = sum_across_rows<kHeads>(d, hn::Mul(sum, exp(d, hn::Sub(max, top))));
      HWY_ALIGN float tops[kLanes], sums[kLanes];
      hn::Store(top, d, tops);
      hn::Store(sum, d, sums);
      for (int h = 0; h < HWY_MIN(kHeads, args.group - first); h++) {
        lse[first + h] = static_cast<double>(tops[h]) + std::log(static_cast<double>(sums[h]));
      }
    });
  }
}

}  // namespace
}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace wi::cpu {

HWY_EXPORT(rank_lane);
HWY_EXPORT(padded_query_floats);
HWY_EXPORT(rank_bits);
HWY_EXPORT(weight_from);
HWY_EXPORT(indices_from);
HWY_EXPORT(exp_in_place);
HWY_EXPORT(steady_lse);

size_t query_floats(const LanesArgs& args) { return HWY_DYNAMIC_DISPATCH(padded_query_floats)(args); }
void rank_partitions(const LanesArgs& args, const Lane& lane, const RankScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(rank_lane)(args, lane, scratch);
  HWY_DYNAMIC_DISPATCH(rank_bits)(scratch.rank, static_cast<size_t>(lane.partition_count), scratch.bits);
}
int64_t weight_ranked_from(const int32_t* bits, const int32_t* weights, size_t count, int32_t pivot) {
  return HWY_DYNAMIC_DISPATCH(weight_from)(bits, weights, count, pivot);
}
size_t ranked_from(const int32_t* bits, size_t count, int32_t pivot, int32_t* out) {
  return HWY_DYNAMIC_DISPATCH(indices_from)(bits, count, pivot, out);
}

void cluster_masses(const LanesArgs& args, const Lane& lane, const float* query, const int32_t* sizes,
                    float* masses, double* steady, double* total) {
  const int group = args.group;
  const int64_t count = lane.partition_count;
  HWY_DYNAMIC_DISPATCH(steady_lse)(args, lane, query, steady);
  for (int h = 0; h < group; h++) {
    float highest = lane.scores[h];
    for (int64_t i = 1; i < count; i++) highest = HWY_MAX(highest, lane.scores[i * group + h]);
    const float unit = HWY_MAX(highest, static_cast<float>(steady[h]));
    for (int64_t i = 0; i < count; i++) masses[i * group + h] = lane.scores[i * group + h] - unit;
    steady[h] = total[h] = std::exp(steady[h] - unit);
  }
  HWY_DYNAMIC_DISPATCH(exp_in_place)(masses, static_cast<size_t>(count) * group);
  for (int64_t i = 0; i < count; i++)
    for (int h = 0; h < group; h++) {
      masses[i * group + h] *= static_cast<float>(sizes[i]);
      total[h] += masses[i * group + h];
    }
}

}  // namespace wi::cpu

#endif  // HWY_ONCE
