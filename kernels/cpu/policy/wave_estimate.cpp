// The wave policy's Estimate (RetroInfer §4.2, accuracy-bounded attention estimation): a cluster of the
// estimation zone weighs what its centroid and its spread say (wave_mass-inl.h), and stands for the mean of
// its values. Merged by LSE into the exact result. Also reports how much of one head's attention mass was
// attended exactly: by the centroids' estimate, and surely, since no token of a cluster scores above
// (q·c + |q|·radius)/√d.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/policy/wave_estimate.cpp"
#include "kernels/cpu/policy/wave_estimate.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/attend-inl.h"
#include "kernels/cpu/compress-inl.h"
#include "kernels/cpu/policy/wave.h"
#include "kernels/cpu/policy/wave_mass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace {

// A cluster's mass and its upper bound are cut here, in units and natural log: coverage is then 0 up to
// e^-60, and sums stay finite.
constexpr float kMostLogMass = 60;
constexpr size_t kBlock = 64;                  // estimated clusters at a time
constexpr size_t kPrefetchBytes = 384 * 1024;  // of value means: they should still be in L2 when used

// Clusters below this share of the exact mass, for every head of a block, are left out of the output: all
// of them together are within f32's rounding. Attention is peaked, so that this saves half of the reads.
constexpr float kLeastShare = 0x1p-32f;

// One query head. All its masses are in units of exp(shift), which is not below the exact one, nor below that
// of any cluster of the estimation zone at its centroid.
struct Head {
  float deviation;  // of a cluster's scores, in units of its spread
  float shift;
  float exact;      // mass attended exactly
  float estimated;  // of the estimation zone
};

// Calls visit(index, i, number, members, kept) for vectors of clusters: those of a segment from its i-th, the
// lookup's from `number`, with a mask of those in the zone and how many came before. Every fourth cluster or so
// is in it: to compress whole vectors takes less than to collect them one by one.
template <class Visit>
HWY_INLINE void for_each_vector(const Lookup& lookup, const EstimateScratch& zone, Visit visit) {
  const Floats d;
  static_assert(kLanes <= 32);
  const uint64_t* members = zone.members;
  size_t first = 0, kept = 0;
  if (zone.count == 0) return;
  for (int32_t s = 0; s < lookup.segment_count; s++) {
    if (lookup.segments[s].partitions == 0) continue;
    const WaveIndex index = wave_view(lookup.segments[s].index);
    const size_t count = static_cast<size_t>(index.clusters);
    for (size_t i = 0; i < count; i += kLanes) {
      const uint64_t bits = members[i / 64] >> (i % 64) & ((uint64_t{1} << kLanes) - 1);
      uint8_t bytes[8];
      std::memcpy(bytes, &bits, sizeof bits);
      visit(index, i, first + i, hn::LoadMaskBits(d, bytes), kept);
      kept += static_cast<size_t>(std::popcount(bits));
    }
    members += (count + 63) / 64;
    first += count;
  }
}

// Fills zone.sizes and zone.spreads.
void gather_extents(const Lookup& lookup, const EstimateScratch& zone) {
  const Floats d;
  const Ints di;
  for_each_vector(lookup, zone,
                  [&](const WaveIndex& index, size_t i, size_t, auto members, size_t kept) HWY_ATTR {
                    const size_t left = static_cast<size_t>(index.clusters) - i;
                    const Vector size = hn::ConvertTo(d, load_some(di, index.sizes + i, left, 0));
                    const Vector spread = spread_in(d, load_some(Words(), index.extents + i, left, 0u));
                    hn::StoreU(compress(d, size, members), d, zone.sizes + kept);
                    hn::StoreU(compress(d, spread, members), d, zone.spreads + kept);
                  });
  hn::StoreU(hn::Zero(d), d, zone.sizes + zone.count);  // to a whole vector
  hn::StoreU(hn::Zero(d), d, zone.spreads + zone.count);
}

// zone.kept becomes the zone's scores of a block of heads from `first`.
template <int kHeads>
void gather_scores(const Lookup& lookup, const EstimateScratch& zone, int first, int real_heads) {
  const Floats d;
  const size_t plane = static_cast<size_t>(lookup.partition_count);
  const float* scores = lookup.scores + static_cast<size_t>(first) * plane;
  for_each_vector(lookup, zone,
                  [&](const WaveIndex&, size_t, size_t number, auto members, size_t kept) HWY_ATTR {
                    HWY_UNROLL(4)
                    for (int h = 0; h < kHeads; h++) {
                      if (h >= real_heads) continue;
                      const float* from = scores + static_cast<size_t>(h) * plane + number;
                      const Vector score = load_some(d, from, plane - number, kLowest);
                      hn::StoreU(compress(d, score, members), d,
                                 zone.kept + static_cast<size_t>(h) * zone.kept_stride + kept);
                    }
                  });
  for (int h = 0; h < real_heads; h++)
    hn::StoreU(hn::Set(d, kLowest), d, zone.kept + static_cast<size_t>(h) * zone.kept_stride + zone.count);
}

// Gives a head its unit, from its scores of the zone.
void open_head(const float* scores, size_t count, float lse, Head& head) {
  const Floats d;
  Vector highest = hn::Set(d, lse > kLowest ? lse : kLowest);
  for (size_t i = 0; i < count; i += kLanes) highest = hn::Max(highest, hn::LoadU(d, scores + i));
  head.shift = hn::GetLane(hn::MaxOfLanes(d, highest));
  head.exact = std::exp(lse - head.shift);
}

// What the zone's clusters weigh in the output of a block of heads: their sum to each head, and to zone.kept,
// in place of their scores, and zone.kept_rows those that matter; returns how many.
template <int kHeads>
size_t weigh_zone(const EstimateScratch& zone, int real_heads, Head* heads) {
  const Floats d;
  const hn::Rebind<int32_t, Floats> di;
  Vector sums[kHeads];
  for (int h = 0; h < kHeads; h++) sums[h] = hn::Zero(d);
  size_t kept = 0;
  for (size_t i = 0; i < zone.count; i += kLanes) {
    const Vector size = hn::LoadU(d, zone.sizes + i), spread = hn::LoadU(d, zone.spreads + i);
    Vector masses[kHeads];
    auto matters = hn::FirstN(d, 0);
    HWY_UNROLL(4)
    for (int h = 0; h < kHeads; h++) {
      masses[h] = hn::Zero(d);
      if (h >= real_heads) continue;
      const Vector deviation = hn::Mul(spread, hn::Set(d, heads[h].deviation));
      const Vector above = hn::Mul(mass_above_centroid(d, deviation), hn::Set(d, kWaveForMeanValue));
      const Vector score = hn::LoadU(d, zone.kept + static_cast<size_t>(h) * zone.kept_stride + i);
      const Vector log_mass = hn::Add(hn::Sub(score, hn::Set(d, heads[h].shift)), above);
      masses[h] = hn::Mul(exp(d, hn::Min(log_mass, hn::Set(d, kMostLogMass))), size);
      sums[h] = hn::Add(sums[h], masses[h]);
      const Vector least = hn::Set(d, heads[h].exact * kLeastShare);
      matters = hn::Or(matters, hn::Not(hn::Lt(masses[h], least)));
    }
    matters = hn::And(matters, hn::FirstN(d, zone.count - i));
    HWY_UNROLL(4)
    for (int h = 0; h < kHeads; h++)
      hn::StoreU(compress(d, masses[h], matters), d,
                 zone.kept + static_cast<size_t>(h) * zone.kept_stride + kept);
    HWY_ALIGN int32_t which[kLanes];
    const auto numbers = hn::Iota(di, static_cast<int32_t>(i));
    hn::Store(compress(di, numbers, hn::RebindMask(di, matters)), di, which);
    const size_t more = hn::CountTrue(d, matters);
    for (size_t k = 0; k < more; k++) zone.kept_rows[kept + k] = zone.rows[which[k]];
    kept += more;
  }
  for (int h = 0; h < real_heads; h++) heads[h].estimated = hn::GetLane(hn::SumOfLanes(d, sums[h]));
  return kept;
}

// Rows that will be wanted soon, to be asked for while the processor computes on what it has.
struct Wanted {
  const std::byte* const* rows;
  size_t count, row_bytes, per_step;
  size_t at = 0;

  HWY_INLINE void step() {
    for (size_t i = 0; i < per_step && at < count; i++) prefetch_row(rows[at++], row_bytes);
  }
};

// The coverages of one head, from the scores of all clusters, where retrieved ones have kLowest.
void cover(const Lookup& lookup, const float* scores, float reach, const Head& head, Wanted& wanted) {
  const Floats d;
  const Ints di;
  const Vector unit = hn::Set(d, head.shift);
  const Vector slope = hn::Set(d, reach), deviation_slope = hn::Set(d, head.deviation);
  const Vector limit = hn::Set(d, kMostLogMass);
  Vector missing = hn::Zero(d), most = hn::Zero(d);  // by centroid and spread; by radius
  for (int32_t s = 0; s < lookup.segment_count; s++) {
    if (lookup.segments[s].partitions == 0) continue;
    const WaveIndex index = wave_view(lookup.segments[s].index);
    const size_t count = static_cast<size_t>(index.clusters);
    for (size_t i = 0; i < count; i += kLanes) {
      wanted.step();
      const Vector size = hn::ConvertTo(d, load_some(di, index.sizes + i, count - i, 0));
      const auto extents = load_some(Words(), index.extents + i, count - i, 0u);
      const Vector score = hn::Sub(load_some(d, scores + i, count - i, kLowest), unit);
      const Vector deviation = hn::Mul(spread_in(d, extents), deviation_slope);
      const Vector log_mass = hn::Add(score, mass_above_centroid(d, deviation));
      missing = hn::MulAdd(size, rough_exp(d, hn::Min(log_mass, limit)), missing);
      const Vector bound = hn::MulAdd(slope, radius_in(d, extents), score);
      most = hn::MulAdd(size, upper_exp(d, hn::Min(bound, limit)), most);
    }
    scores += count;
  }
  const float estimated = head.exact / (head.exact + hn::GetLane(hn::SumOfLanes(d, missing)));
  const float certified = head.exact / (head.exact + hn::GetLane(hn::SumOfLanes(d, most)));
  LookupCounters& counters = *lookup.counters;
  counters.estimated_coverage_sum += double{estimated};
  counters.certified_coverage_sum += double{certified};
  counters.certified_coverage_min = HWY_MIN(counters.certified_coverage_min, double{certified});
  counters.coverage_count++;
}

float length(const float* query, size_t head_dim) {
  return std::sqrt(squared_length(query, head_dim)) * 1.00001f;  // not below the true one
}

void merge(const Head& head, const float* acc, size_t head_dim, float* out, float* lse) {
  if (!(head.estimated > 0)) return;
  const float all = head.exact + head.estimated;
  const float keep = head.exact / all, add = 1 / all;
  for (size_t i = 0; i < head_dim; i++) out[i] = out[i] * keep + acc[i] * add;
  *lse = head.shift + std::log(all);
}

// A block of heads from `first`; the lookup's coverages, if its head is among them.
template <DType kKv, int kHeads>
void estimate_heads(const LookupArgs& args, Lookup& lookup, const EstimateScratch& zone, int first) {
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  const size_t stride = padded_dim(head_dim);
  const size_t plane = static_cast<size_t>(lookup.partition_count);
  const size_t bytes = row_bytes(kKv, args.head_dim);
  const int real_heads = HWY_MIN(kHeads, args.group - first);
  Head heads[kHeads];
  gather_scores<kHeads>(lookup, zone, first, real_heads);
  for (int h = 0; h < real_heads; h++) {
    const size_t head = static_cast<size_t>(first + h);
    heads[h].deviation = deviation_per_spread(lookup.query + head * head_dim, head_dim, args.scale);
    open_head(zone.kept + static_cast<size_t>(h) * zone.kept_stride, zone.count, lookup.lse[head], heads[h]);
  }
  const size_t kept = weigh_zone<kHeads>(zone, real_heads, heads);

  Wanted wanted = {.rows = zone.kept_rows, .count = 0, .row_bytes = bytes, .per_step = 0};
  const int covered = lookup.coverage_head - first;
  if (covered >= 0 && covered < real_heads) {
    const size_t head = static_cast<size_t>(lookup.coverage_head);
    wanted.count = HWY_MIN(kept, kPrefetchBytes / bytes);
    wanted.per_step = wanted.count * kLanes / plane + 1;
    const float reach = length(lookup.query + head * head_dim, head_dim) * args.scale;
    cover(lookup, lookup.scores + head * plane, reach, heads[covered], wanted);
  }

  std::memset(zone.acc, 0, kHeads * stride * sizeof(float));
  for (size_t begin = 0; begin < kept; begin += kBlock) {
    const bool ahead = begin + kBlock >= wanted.count && begin + 2 * kBlock <= kept;
    const std::byte* const* rows = zone.kept_rows + begin;
    add_rows<kKv, kHeads>({zone.kept + begin, 1, zone.kept_stride}, rows, HWY_MIN(kBlock, kept - begin),
                          head_dim, zone.acc, ahead ? rows + kBlock : nullptr);
  }
  for (int h = 0; h < real_heads; h++) {
    merge(heads[h], zone.acc + h * stride, head_dim, lookup.out + (first + h) * head_dim,
          &lookup.lse[first + h]);
  }
}

// Blocks of heads from `first` to before `end`.
void estimate_some(const LookupArgs& args, Lookup& lookup, const EstimateScratch& zone, int first, int end) {
  gather_extents(lookup, zone);
  for (; first < end; first += kBlockHeads) {
    with_type_and_width(args.kv, block_width(args.group, first), [&]<DType kKv, int kHeads>() HWY_ATTR {
      estimate_heads<kKv, kHeads>(args, lookup, zone, first);
    });
  }
}

int heads_of_block() { return kBlockHeads; }
size_t acc_floats(const LookupArgs& args) { return kBlockHeads * padded_dim(args.head_dim); }

}  // namespace
}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace wi::cpu {
namespace {

HWY_EXPORT(estimate_some);
HWY_EXPORT(heads_of_block);
HWY_EXPORT(acc_floats);

void open_zone(const LookupArgs& args, const Lookup& lookup, EstimateScratch& zone);
void hide_retrieved(Lookup& lookup);

}  // namespace

void wave_estimate(const Stream& stream, const LookupArgs& args) {
  // Lookups that are fewer than workers are shared by blocks of heads, which have nothing in common but the zone.
  const int32_t heads_each =
      args.count < stream.workers ? HWY_DYNAMIC_DISPATCH(heads_of_block)() : args.group;
  const int32_t parts = (args.group + heads_each - 1) / heads_each;
  stream.each(int64_t{args.count} * parts, [&](int64_t task, int worker) {
    Lookup& lookup = args.lookups[task / parts];
    const int32_t first = static_cast<int32_t>(task % parts) * heads_each;
    const int32_t end = std::min(first + heads_each, args.group);
    if (lookup.partition_count == 0) return;
    const auto rounded = [](size_t floats) { return (floats + 15) / 16 * 16; };
    const size_t acc = rounded(HWY_DYNAMIC_DISPATCH(acc_floats)(args));
    const size_t estimated = rounded(static_cast<size_t>(lookup.estimated_count) + 16);
    const size_t words =
        static_cast<size_t>(lookup.partition_count) / 64 + static_cast<size_t>(lookup.segment_count);
    float* at = stream.worker_array<float>(worker, acc + rounded(2 * words) + 10 * estimated);
    EstimateScratch zone;
    zone.count = static_cast<size_t>(lookup.estimated_count);
    zone.acc = at;
    zone.sizes = at + acc;
    zone.spreads = zone.sizes + estimated;
    zone.kept = zone.spreads + estimated;
    zone.kept_stride = estimated;
    zone.rows = reinterpret_cast<const std::byte**>(zone.kept + 4 * estimated);
    zone.kept_rows = zone.rows + estimated;
    zone.members = reinterpret_cast<uint64_t*>(zone.kept_rows + estimated);
    std::fill_n(zone.members, words, 0);
    open_zone(args, lookup, zone);
    const bool covers = first <= lookup.coverage_head && lookup.coverage_head < end;
    if (covers) hide_retrieved(lookup);
    HWY_DYNAMIC_DISPATCH(estimate_some)(args, lookup, zone, first, end);
    if (covers)                             // and so is the one who counts
      lookup.counters->index_bytes_read +=  // the zone's value means
          lookup.estimated_count * static_cast<int64_t>(row_bytes(args.kv, args.head_dim));
  });
}

namespace {

// Fills members and rows. Select lists clusters by number.
void open_zone(const LookupArgs& args, const Lookup& lookup, EstimateScratch& zone) {
  const size_t bytes = row_bytes(args.kv, args.head_dim);
  uint64_t* members = zone.members;
  const PartitionRef* ref = lookup.estimated;
  const PartitionRef* const end = ref + lookup.estimated_count;
  const std::byte** row = zone.rows;
  for (int32_t s = 0; s < lookup.segment_count && ref < end; s++) {
    if (lookup.segments[s].partitions == 0) continue;
    const std::byte* means = wave_view(lookup.segments[s].index).value_means;
    for (; ref < end && ref->segment == s; ref++) {
      const size_t partition = static_cast<size_t>(ref->partition);
      members[partition / 64] |= uint64_t{1} << (partition % 64);
      *row++ = means + partition * bytes;
    }
    members += (static_cast<size_t>(lookup.segments[s].partitions) + 63) / 64;
  }
}

void hide_retrieved(Lookup& lookup) {
  float* scores = lookup.scores + int64_t{lookup.coverage_head} * lookup.partition_count;
  const PartitionRef* const end = lookup.retrieved + lookup.retrieved_count;
  int32_t segment = 0;
  for (const PartitionRef* ref = lookup.retrieved; ref < end; ref++) {
    while (segment < ref->segment) scores += lookup.segments[segment++].partitions;
    scores[ref->partition] = std::numeric_limits<float>::lowest();
  }
}

}  // namespace
}  // namespace wi::cpu

#endif  // HWY_ONCE
