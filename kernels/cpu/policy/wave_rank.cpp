// The vector half of the wave policy's Select: turns the centroids' scores into ranks, and sums over ranks
// above a threshold. wave_select.cpp takes the decisions.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/policy/wave_rank.cpp"
#include "kernels/cpu/policy/wave_rank.h"

#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/attend-inl.h"
#include "kernels/cpu/policy/wave_score.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace {

// Up to kLanes numbers; those beyond count are `rest`.
HWY_INLINE Vector load_some(Floats d, const float* from, size_t count, float rest) {
  if (HWY_LIKELY(count >= kLanes)) return hn::LoadU(d, from);
  HWY_ALIGN float lanes[kLanes];
  for (size_t i = 0; i < kLanes; i++) lanes[i] = i < count ? from[i] : rest;
  return hn::Load(d, lanes);
}
HWY_INLINE void store_some(Floats d, Vector v, size_t count, float* to) {
  if (HWY_LIKELY(count >= kLanes)) return hn::StoreU(v, d, to);
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, d, lanes);
  std::memcpy(to, lanes, count * sizeof(float));
}

// weights = scores + reach · radius, the likely scores of each cluster's best token; returns the highest.
HWY_INLINE Vector best_scores(const Lane& lane, const float* scores, float reach, float* weights) {
  const Floats d;
  const Vector slope = hn::Set(d, reach);
  const Vector limit = hn::Set(d, 1e30f);  // so that sums stay finite
  Vector max = hn::Set(d, kLowest);
  for (int32_t s = 0; s < lane.segment_count; s++) {
    if (lane.segments[s].partitions == 0) continue;
    const WaveIndex index = wave_view(lane.segments[s].index);
    const size_t count = static_cast<size_t>(index.clusters);
    for (size_t i = 0; i < count; i += kLanes) {
      const Vector above = hn::Min(hn::Mul(slope, load_some(d, index.radii + i, count - i, 0)), limit);
      const Vector score = hn::Add(load_some(d, scores + i, count - i, kLowest), above);
      max = hn::Max(max, score);
      hn::StoreU(score, d, weights + i);
    }
    scores += count;
    weights += count;
  }
  return hn::MaxOfLanes(d, max);
}

// Adds one head's softmax over all clusters' best scores to rank. weights: scratch (count + kLanes), as rank.
void add_rank(const Lane& lane, const float* scores, float reach, float* weights, float* rank) {
  const Floats d;
  const size_t count = static_cast<size_t>(lane.partition_count);
  const Vector max = best_scores(lane, scores, reach, weights);
  Vector sum = hn::Zero(d);
  for (size_t i = 0; i < count; i += kLanes) {
    const Vector weight = rough_exp(d, hn::Sub(load_some(d, weights + i, count - i, kLowest), max));
    sum = hn::Add(sum, weight);
    hn::StoreU(weight, d, weights + i);
  }
  const Vector share = hn::Div(hn::Set(d, 1.0f), hn::SumOfLanes(d, sum));
  for (size_t i = 0; i < count; i += kLanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, weights + i), share, hn::LoadU(d, rank + i)), d, rank + i);
  }
}

// Fills scratch.rank from lane.scores.
void rank_lane(const LanesArgs& args, const Lane& lane, const RankScratch& scratch) {
  const size_t count = static_cast<size_t>(lane.partition_count);
  std::memset(scratch.rank, 0, (count + kLanes) * sizeof(float));
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  for (int h = 0; h < args.group; h++) {
    const float* query = lane.query + h * head_dim;
    float squares = 0;
    for (size_t i = 0; i < head_dim; i++) squares += query[i] * query[i];
    const float reach = kWaveBestAbove * args.scale * std::sqrt(squares / static_cast<float>(head_dim));
    add_rank(lane, lane.scores + h * count, reach, scratch.weights, scratch.rank);
  }
}

size_t padded_query_floats(const LanesArgs& args) {
  return static_cast<size_t>(head_blocks(args.group)) * kBlockHeads * padded_dim(args.head_dim);
}

// Ranks are ≥ 0 (NaN counts as 0), so that they compare as their bits do.
void rank_bits(const float* rank, size_t count, int32_t* bits) {
  const Floats d;
  const hn::Rebind<int32_t, Floats> di;
  for (size_t i = 0; i < count; i += kLanes) {
    const Vector r = hn::LoadU(d, rank + i);
    hn::StoreU(hn::BitCast(di, hn::IfThenElseZero(hn::Gt(r, hn::Zero(d)), r)), di, bits + i);
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

// Calls visit(i) for each i with bits[i] ≥ pivot, ascending.
template <class Visit>
HWY_INLINE void visit_from(const int32_t* bits, size_t count, int32_t pivot, Visit visit) {
  const hn::ScalableTag<int32_t> di;
  const auto least = hn::Set(di, pivot - 1);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto above = hn::Gt(hn::LoadU(di, bits + i), least);
    if (hn::AllFalse(di, above)) continue;
    uint8_t mask_bytes[8] = {};
    hn::StoreMaskBits(di, above, mask_bytes);
    uint64_t mask = 0;
    std::memcpy(&mask, mask_bytes, sizeof(mask));
    for (; mask; mask &= mask - 1) visit(i + hwy::Num0BitsBelowLS1Bit_Nonzero64(mask));
  }
  for (; i < count; i++)
    if (bits[i] >= pivot) visit(i);
}

size_t indices_from(const int32_t* bits, size_t count, int32_t pivot, int32_t* out) {
  size_t kept = 0;
  visit_from(bits, count, pivot, [&](size_t i) HWY_ATTR { out[kept++] = static_cast<int32_t>(i); });
  return kept;
}

size_t entries_between(const int32_t* bits, const int32_t* weights, size_t count, int32_t low, int32_t high,
                       int32_t* out_bits, int32_t* out_weights) {
  size_t kept = 0;
  visit_from(bits, count, low, [&](size_t i) HWY_ATTR {
    out_bits[kept] = bits[i];
    out_weights[kept] = weights ? weights[i] : 1;
    kept += bits[i] < high;
  });
  return kept;
}

// masses = sizes · exp(scores - unit), unit the highest score or, if higher, *steady, which becomes
// exp(*steady - unit); returns their sum with it.
double head_masses(const float* scores, const int32_t* sizes, size_t count, float* masses, double* steady) {
  const Floats d;
  const hn::Rebind<int32_t, Floats> di;
  Vector max = hn::Set(d, kLowest);
  for (size_t i = 0; i < count; i += kLanes) max = hn::Max(max, load_some(d, scores + i, count - i, kLowest));
  const float unit = HWY_MAX(hn::GetLane(hn::MaxOfLanes(d, max)), static_cast<float>(*steady));
  *steady = std::exp(*steady - unit);
  double total = *steady;
  for (size_t i = 0; i < count; i += kLanes) {
    const Vector weight = exp(d, hn::Sub(load_some(d, scores + i, count - i, kLowest), hn::Set(d, unit)));
    const Vector mass = hn::Mul(weight, hn::ConvertTo(d, hn::LoadU(di, sizes + i)));
    store_some(d, mass, count - i, masses + i);
    total += hn::GetLane(hn::SumOfLanes(d, mass));
  }
  return total;
}

// Natural log of Σ exp(q·k) over the steady zone, for each query head of the group. query: scratch.
void steady_lse(const LanesArgs& args, const Lane& lane, float* query, double* lse) {
  const Floats d;
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  pack_query(lane.query, args.group, head_dim, args.scale, query);
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
HWY_EXPORT(entries_between);
HWY_EXPORT(head_masses);
HWY_EXPORT(steady_lse);

size_t query_floats(const LanesArgs& args) { return HWY_DYNAMIC_DISPATCH(padded_query_floats)(args); }
void rank_partitions(const LanesArgs& args, const Lane& lane, const RankScratch& scratch) {
  // The headers tell where everything else is: ask for all of them at once.
  for (int32_t s = 0; s < lane.segment_count; s++) __builtin_prefetch(lane.segments[s].index);
  pack_score_query(lane.query, args.group, args.head_dim, args.scale, scratch.query);
  size_t at = 0;
  for (int32_t s = 0; s < lane.segment_count; s++) {
    if (lane.segments[s].partitions == 0) continue;
    const WaveIndex index = wave_view(lane.segments[s].index);
    const bool more = s + 1 < lane.segment_count && lane.segments[s + 1].partitions > 0;
    score_centroids(scratch.query, args.group, args.head_dim, index,
                    more ? wave_view(lane.segments[s + 1].index) : index, lane.scores + at,
                    static_cast<size_t>(lane.partition_count));
    at += static_cast<size_t>(index.clusters);
  }
  HWY_DYNAMIC_DISPATCH(rank_lane)(args, lane, scratch);
  HWY_DYNAMIC_DISPATCH(rank_bits)(scratch.rank, static_cast<size_t>(lane.partition_count), scratch.bits);
}
int64_t weight_ranked_from(const int32_t* bits, const int32_t* weights, size_t count, int32_t pivot) {
  return HWY_DYNAMIC_DISPATCH(weight_from)(bits, weights, count, pivot);
}
size_t ranked_from(const int32_t* bits, size_t count, int32_t pivot, int32_t* out) {
  return HWY_DYNAMIC_DISPATCH(indices_from)(bits, count, pivot, out);
}

size_t ranked_between(const int32_t* bits, const int32_t* weights, size_t count, int32_t low, int32_t high,
                      int32_t* out_bits, int32_t* out_weights) {
  return HWY_DYNAMIC_DISPATCH(entries_between)(bits, weights, count, low, high, out_bits, out_weights);
}

void cluster_masses(const LanesArgs& args, const Lane& lane, float* query, const int32_t* sizes,
                    float* masses, double* steady, double* total) {
  HWY_DYNAMIC_DISPATCH(steady_lse)(args, lane, query, steady);
  const size_t count = static_cast<size_t>(lane.partition_count);
  for (int h = 0; h < args.group; h++) {
    total[h] = HWY_DYNAMIC_DISPATCH(head_masses)(lane.scores + h * count, sizes, count, masses + h * count,
                                                 &steady[h]);
  }
}

}  // namespace wi::cpu

#endif  // HWY_ONCE
