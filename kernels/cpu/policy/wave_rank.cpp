// The vector half of the wave policy's Select: turns the centroids' scores into ranks, and sums over ranks
// above a threshold. wave_select.cpp takes the decisions.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/policy/wave_rank.cpp"
#include "kernels/cpu/policy/wave_rank.h"

#include <algorithm>

#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/attend-inl.h"
#include "kernels/cpu/compress-inl.h"
#include "kernels/cpu/policy/wave_mass-inl.h"
#include "kernels/cpu/policy/wave_score.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace {

// One block of up to kBlockHeads heads: weights, (heads, n + kRankRoom), = scores + reach · radius, the
// likely scores of each cluster's best token; and the highest of each head.
template <int kHeads>
void best_scores(const Lookup& lookup, const float* scores, const float* reach, float* weights,
                 float* highest) {
  const Floats d;
  const size_t plane = static_cast<size_t>(lookup.partition_count);
  const Vector limit = hn::Set(d, 1e30f);  // so that sums stay finite
  Vector max[kHeads];
  for (int h = 0; h < kHeads; h++) max[h] = hn::Set(d, kLowest);
  for (int32_t s = 0; s < lookup.segment_count; s++) {
    if (lookup.segments[s].partitions == 0) continue;
    const WaveIndex index = wave_view(lookup.segments[s].index);
    const size_t count = static_cast<size_t>(index.clusters);
    for (size_t i = 0; i < count; i += kLanes) {
      const Vector radius = radius_in(d, load_some(Words(), index.extents + i, count - i, 0u));
      HWY_UNROLL(4)
      for (int h = 0; h < kHeads; h++) {
        const size_t head = static_cast<size_t>(h);
        const Vector above = hn::Min(hn::Mul(hn::Set(d, reach[h]), radius), limit);
        const Vector score = hn::Add(load_some(d, scores + head * plane + i, count - i, kLowest), above);
        max[h] = hn::Max(max[h], score);
        hn::StoreU(score, d, weights + head * (plane + kRankRoom) + i);
      }
    }
    scores += count;
    weights += count;
  }
  for (int h = 0; h < kHeads; h++) highest[h] = hn::GetLane(hn::MaxOfLanes(d, max[h]));
}

// weights = exp of the best scores, for softmaxes over all clusters; shares: what to multiply each head's by.
// How likely a best token is as good as its guess is known far less well than upper_exp is exact. One more
// vector of weights is written.
template <int kHeads>
void softmax_weights(size_t count, const float* highest, float* weights, float* shares) {
  const Floats d;
  const size_t plane = count + kRankRoom;
  Vector sum[kHeads];
  for (int h = 0; h < kHeads; h++) sum[h] = hn::Zero(d);
  for (size_t i = 0; i < count; i += kLanes) {
    HWY_UNROLL(4)
    for (int h = 0; h < kHeads; h++) {
      float* at = weights + static_cast<size_t>(h) * plane + i;
      const Vector score = load_some(d, at, count - i, kLowest);
      const Vector weight = upper_exp(d, hn::Sub(score, hn::Set(d, highest[h])));
      sum[h] = hn::Add(sum[h], weight);
      hn::StoreU(weight, d, at);
    }
  }
  for (int h = 0; h < kHeads; h++) shares[h] = 1 / hn::GetLane(hn::SumOfLanes(d, sum[h]));
}

// Adds up to kBlockHeads heads' softmax to rank, or begins it. Ranks are ≥ 0 (NaN counts as 0), so that they
// compare as their bits do, and at most kRankLimit, whatever the query.
template <int kHeads>
void add_ranks(const float* weights, const float* shares, bool first, size_t count, int32_t* bits) {
  const Floats d;
  const size_t plane = count + kRankRoom;
  const hn::Rebind<int32_t, Floats> di;
  for (size_t i = 0; i < count; i += kLanes) {
    Vector sum = first ? hn::Zero(d) : hn::BitCast(d, hn::LoadU(di, bits + i));
    HWY_UNROLL(4)
    for (int h = 0; h < kHeads; h++)
      sum =
          hn::MulAdd(hn::LoadU(d, weights + static_cast<size_t>(h) * plane + i), hn::Set(d, shares[h]), sum);
    const Vector rank = hn::Min(sum, hn::Set(d, kRankLimit));
    hn::StoreU(hn::BitCast(di, hn::IfThenElseZero(hn::Gt(sum, hn::Zero(d)), rank)), di, bits + i);
  }
}

// Fills scratch.bits from lookup.scores.
void rank_one(const LookupArgs& args, const Lookup& lookup, const RankScratch& scratch) {
  const size_t count = static_cast<size_t>(lookup.partition_count);
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  for (int first = 0; first < args.group; first += kBlockHeads) {
    const int heads = HWY_MIN(kBlockHeads, args.group - first);
    float reach[kBlockHeads], highest[kBlockHeads], shares[kBlockHeads];
    for (int h = 0; h < heads; h++) {
      const float* query = lookup.query + static_cast<size_t>(first + h) * head_dim;
      reach[h] = kWaveBestAbove * args.scale *
                 std::sqrt(squared_length(query, head_dim) / static_cast<float>(head_dim));
    }
    const float* scores = lookup.scores + static_cast<size_t>(first) * count;
    with_heads(heads, [&]<int kHeads>() HWY_ATTR {
      best_scores<kHeads>(lookup, scores, reach, scratch.weights, highest);
      softmax_weights<kHeads>(count, highest, scratch.weights, shares);
      add_ranks<kHeads>(scratch.weights, shares, first == 0, count, scratch.bits);
    });
  }
}

// One block of up to kBlockHeads heads: look.scores, (rows, heads), becomes each row's softmax, and its sum
// over the heads is added to the rank, or begins it.
template <DType kKv, int kHeads>
void look_along_axes(const LookupArgs& args, const Lookup& lookup, const SecondLook& look, int first) {
  const Floats d;
  constexpr size_t kRows = kLanes / kHeads;
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  const int heads = HWY_MIN(kHeads, args.group - first);
  const float* query = look.query + static_cast<size_t>(first) * padded_dim(head_dim);
  const float* plane =
      lookup.scores + static_cast<size_t>(first) * static_cast<size_t>(lookup.partition_count);
  HWY_ALIGN float lengths[kLanes];  // of the lane's head's scaled query
  for (size_t i = 0; i < kLanes; i++) {
    lengths[i] = std::sqrt(squared_length(query + i % kHeads * padded_dim(head_dim), head_dim));
  }
  const Vector length = hn::Load(d, lengths);
  const Vector reach = hn::Set(d, kWaveBestAlong), limit = hn::Set(d, 1e30f);
  Vector max = hn::Set(d, kLowest);
  for (size_t row = 0; row < look.count; row += kRows) {
    HWY_ALIGN float scores[kLanes], residuals[kLanes];
    for (size_t r = 0; r < kRows; r++) {
      for (int h = 0; h < kHeads; h++) {
        const bool real = row + r < look.count && h < heads;
        const size_t at = r * kHeads + static_cast<size_t>(h);
        scores[at] = real ? plane[static_cast<size_t>(h) * static_cast<size_t>(lookup.partition_count) +
                                  static_cast<size_t>(look.numbers[row + r])]
                          : kLowest;
        residuals[at] = look.residuals[row + r];
      }
    }
    const Vector along = dot_rows<kKv, kHeads>(d, query, look.rows + row, head_dim);
    const Vector across = hn::Mul(length, hn::Load(d, residuals));
    const Vector deviation = hn::Sqrt(hn::MulAdd(along, along, hn::Mul(across, across)));
    const Vector above = hn::Min(hn::Mul(reach, deviation), limit);
    const Vector best = hn::Add(hn::Load(d, scores), above);
    max = hn::Max(max, best);
    hn::StoreU(best, d, look.scores + row * kHeads);
  }
  max = max_across_rows<kHeads>(d, max);
  Vector sum = hn::Zero(d);
  for (size_t i = 0; i < look.count * kHeads; i += kLanes) {
    const Vector weight = upper_exp(d, hn::Sub(hn::LoadU(d, look.scores + i), max));
    const size_t left = look.count * kHeads - i;
    sum = hn::Add(sum, left >= kLanes ? weight : hn::IfThenElseZero(hn::FirstN(d, left), weight));
    hn::StoreU(weight, d, look.scores + i);
  }
  HWY_ALIGN float sums[kLanes];
  hn::Store(sum_across_rows<kHeads>(d, sum), d, sums);
  for (size_t row = 0; row < look.count; row++) {
    float rank = 0;
    if (first > 0) std::memcpy(&rank, look.bits + row, sizeof(rank));
    for (int h = 0; h < heads; h++) rank += look.scores[row * kHeads + static_cast<size_t>(h)] / sums[h];
    rank = rank > 0 ? HWY_MIN(rank, kRankLimit) : 0;
    std::memcpy(look.bits + row, &rank, sizeof(rank));
  }
}

void look_again(const LookupArgs& args, const Lookup& lookup, const SecondLook& look) {
  if (look.count == 0) return;
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  pack_query(lookup.query, args.group, head_dim, args.scale, look.query);
  for (size_t i = 0; i < kRankRoom; i++) {  // whole tiles
    look.rows[look.count + i] = look.rows[0];
    look.residuals[look.count + i] = 0;
  }
  for (int first = 0; first < args.group; first += kBlockHeads)
    with_type_and_width(args.kv, block_width(args.group, first), [&]<DType kKv, int kHeads>() HWY_ATTR {
      look_along_axes<kKv, kHeads>(args, lookup, look, first);
    });
}

size_t padded_query_floats(const LookupArgs& args) {
  return static_cast<size_t>(head_blocks(args.group)) * kBlockHeads * padded_dim(args.head_dim);
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
  HWY_ALIGN int32_t lookups[kLanes];
  hn::Store(sum, di, lookups);
  int64_t total = 0;
  for (int32_t lookup : lookups) total += lookup;
  for (; i < count; i++)
    if (bits[i] >= pivot) total += weights ? weights[i] : 1;
  return total;
}

size_t indices_from(const int32_t* bits, size_t count, int32_t pivot, int32_t* out) {
  const hn::ScalableTag<int32_t> di;
  const auto least = hn::Set(di, pivot - 1);
  size_t kept = 0, i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto above = hn::Gt(hn::LoadU(di, bits + i), least);
    if (hn::AllFalse(di, above)) continue;
    // In the register and not on the way to memory, which is microcode on some processors.
    hn::StoreU(compress(di, hn::Iota(di, static_cast<int32_t>(i)), above), di, out + kept);
    kept += hn::CountTrue(di, above);
  }
  for (; i < count; i++)
    if (bits[i] >= pivot) out[kept++] = static_cast<int32_t>(i);
  return kept;
}

size_t entries_between(const int32_t* bits, const int32_t* weights, size_t count, int32_t low, int32_t high,
                       int32_t* out_bits, int32_t* out_weights) {
  const hn::ScalableTag<int32_t> di;
  const auto least = hn::Set(di, low - 1), end = hn::Set(di, high), one = hn::Set(di, 1);
  size_t kept = 0, i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto v = hn::LoadU(di, bits + i);
    const auto within = hn::And(hn::Gt(v, least), hn::Lt(v, end));
    if (hn::AllFalse(di, within)) continue;
    hn::StoreU(compress(di, v, within), di, out_bits + kept);
    hn::StoreU(compress(di, weights ? hn::LoadU(di, weights + i) : one, within), di, out_weights + kept);
    kept += hn::CountTrue(di, within);
  }
  for (; i < count; i++) {
    if (bits[i] < low || bits[i] >= high) continue;
    out_bits[kept] = bits[i];
    out_weights[kept++] = weights ? weights[i] : 1;
  }
  return kept;
}

// masses of one head's clusters, in units of the highest or, if higher, of *steady, which becomes
// exp(*steady - unit); returns their sum with it. slope: deviation_per_spread().
double head_masses(const float* scores, const int32_t* sizes, const uint32_t* extents, float slope,
                   size_t count, float* masses, double* steady) {
  const Floats d;
  const hn::Rebind<int32_t, Floats> di;
  Vector max = hn::Set(d, kLowest);
  for (size_t i = 0; i < count; i += kLanes) {
    const Vector above =
        mass_above_centroid(d, hn::Mul(spread_in(d, hn::LoadU(Words(), extents + i)), hn::Set(d, slope)));
    const Vector log_mass = hn::Add(load_some(d, scores + i, count - i, kLowest), above);
    max = hn::Max(max, log_mass);
    hn::StoreU(log_mass, d, masses + i);
  }
  const float unit = HWY_MAX(hn::GetLane(hn::MaxOfLanes(d, max)), static_cast<float>(*steady));
  *steady = std::exp(*steady - unit);
  double total = *steady;
  for (size_t i = 0; i < count; i += kLanes) {
    const Vector weight = exp(d, hn::Sub(load_some(d, masses + i, count - i, kLowest), hn::Set(d, unit)));
    const Vector mass = hn::Mul(weight, hn::ConvertTo(d, hn::LoadU(di, sizes + i)));
    hn::StoreU(mass, d, masses + i);
    total += hn::GetLane(hn::SumOfLanes(d, mass));
  }
  return total;
}

float mass_slope(const LookupArgs& args, const Lookup& lookup, int head) {
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  return deviation_per_spread(lookup.query + static_cast<size_t>(head) * head_dim, head_dim, args.scale);
}

// Natural log of Σ exp(q·k) over the steady zone, for each query head of the group. query: scratch.
void steady_lse(const LookupArgs& args, const Lookup& lookup, float* query, double* lse) {
  const Floats d;
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  pack_query(lookup.query, args.group, head_dim, args.scale, query);
  const size_t bytes = row_bytes(args.kv, args.head_dim);
  for (int first = 0; first < args.group; first += kBlockHeads) {
    with_type_and_width(args.kv, block_width(args.group, first), [&]<DType kKv, int kHeads>() HWY_ATTR {
      constexpr int64_t kTile = kLanes / kHeads;
      Vector max = hn::Set(d, kLowest);
      Vector sum = hn::Zero(d);
      for (int32_t r = 0; r < lookup.steady_count; r++) {
        const KvRun& run = lookup.steady[r];
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

HWY_EXPORT(rank_one);
HWY_EXPORT(look_again);
HWY_EXPORT(padded_query_floats);
HWY_EXPORT(weight_from);
HWY_EXPORT(indices_from);
HWY_EXPORT(entries_between);
HWY_EXPORT(head_masses);
HWY_EXPORT(mass_slope);
HWY_EXPORT(steady_lse);

size_t query_floats(const LookupArgs& args) { return HWY_DYNAMIC_DISPATCH(padded_query_floats)(args); }
void score_partitions(const LookupArgs& args, const Lookup& lookup, const SegmentRun& run, std::byte* query) {
  // The headers tell where everything else is: ask for all of them at once.
  for (int32_t s = run.first; s < run.end; s++)
    for (size_t line = 0; line < sizeof(WaveHeader); line += 64)
      __builtin_prefetch(static_cast<const std::byte*>(lookup.segments[s].index) + line);
  pack_score_query(lookup.query, args.group, args.head_dim, args.scale, query);
  size_t at = run.partitions_before;
  for (int32_t s = run.first; s < run.end; s++) {
    if (lookup.segments[s].partitions == 0) continue;
    const WaveIndex index = wave_view(lookup.segments[s].index);
    const bool more = s + 1 < run.end && lookup.segments[s + 1].partitions > 0;
    score_centroids(query, args.group, args.head_dim, index,
                    more ? wave_view(lookup.segments[s + 1].index) : index, lookup.scores + at,
                    static_cast<size_t>(lookup.partition_count));
    at += static_cast<size_t>(index.clusters);
  }
}
void rank_partitions(const LookupArgs& args, const Lookup& lookup, const RankScratch& scratch) {
  size_t at = 0;
  for (int32_t s = 0; s < lookup.segment_count; s++) {
    if (lookup.segments[s].partitions == 0) continue;
    const WaveIndex index = wave_view(lookup.segments[s].index);
    std::copy_n(index.sizes, index.clusters, scratch.sizes + at);
    at += static_cast<size_t>(index.clusters);
  }
  HWY_DYNAMIC_DISPATCH(rank_one)(args, lookup, scratch);
}
void rank_again(const LookupArgs& args, const Lookup& lookup, const SecondLook& look) {
  HWY_DYNAMIC_DISPATCH(look_again)(args, lookup, look);
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

void cluster_masses(const LookupArgs& args, const Lookup& lookup, float* query, const int32_t* sizes,
                    const uint32_t* extents, float* masses, double* steady, double* total) {
  HWY_DYNAMIC_DISPATCH(steady_lse)(args, lookup, query, steady);
  const size_t count = static_cast<size_t>(lookup.partition_count), plane = count + kRankRoom;
  for (int h = 0; h < args.group; h++) {
    const float slope = HWY_DYNAMIC_DISPATCH(mass_slope)(args, lookup, h);
    total[h] = HWY_DYNAMIC_DISPATCH(head_masses)(lookup.scores + h * count, sizes, extents, slope, count,
                                                 masses + h * plane, &steady[h]);
  }
}

}  // namespace wi::cpu

#endif  // HWY_ONCE
