// The wave policy's Estimate (RetroInfer §4.2, accuracy-bounded attention estimation): a cluster of the
// estimation zone weighs what its centroid and its spread say (wave_mass-inl.h), and stands for the mean of
// its values. Merged by LSE into the exact result. Also reports how much of the attention mass was
// attended exactly: by the centroids' estimate, and surely, since no token of a cluster scores above
// (q·c + |q|·radius)/√d.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/policy/wave_estimate.cpp"
#include "kernels/cpu/policy/wave_estimate.h"

#include <algorithm>

#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/attend-inl.h"
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
// of them together are within f32's rounding. Attention is peaked, so that this saves most of the reads.
constexpr float kLeastShare = 0x1p-32f;

// One query head. All its masses are in units of exp(shift), which is not below the exact one, nor below any
// cluster's at its centroid.
struct Head {
  float deviation;  // of a cluster's scores, in units of its spread
  float shift;
  float exact;      // mass attended exactly
  float missing;    // of the clusters that were not retrieved, by centroid and spread
  float most;       // of those, by radius
  float estimated;  // of the estimation zone
};

void choose_unit(const float* scores, size_t count, float lse, Head& head) {
  const Floats d;
  Vector highest = hn::Set(d, lse > kLowest ? lse : kLowest);
  for (size_t i = 0; i < count; i += kLanes)
    highest = hn::Max(highest, load_some(d, scores + i, count - i, kLowest));
  head.shift = hn::GetLane(hn::MaxOfLanes(d, highest));
  head.exact = std::exp(lse - head.shift);
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

// Sizes are 0 for retrieved clusters and beyond the end.
void weigh(const float* scores, const EstimateScratch& scratch, size_t count, float reach, Wanted& wanted,
           Head& head) {
  const Floats d;
  const Vector unit = hn::Set(d, head.shift);
  const Vector slope = hn::Set(d, reach), deviation_slope = hn::Set(d, head.deviation);
  const Vector limit = hn::Set(d, kMostLogMass);
  Vector sum = hn::Zero(d), bound = hn::Zero(d);
  for (size_t i = 0; i < count; i += kLanes) {
    wanted.step();
    const Vector size = hn::LoadU(d, scratch.sizes + i);
    const Vector score = hn::Sub(load_some(d, scores + i, count - i, kLowest), unit);
    const auto extents = hn::LoadU(Words(), scratch.extents + i);
    const Vector deviation = hn::Mul(spread_in(d, extents), deviation_slope);
    const Vector log_mass = hn::Add(score, mass_above_centroid(d, deviation));
    sum = hn::MulAdd(size, rough_exp(d, hn::Min(log_mass, limit)), sum);
    const Vector most = hn::MulAdd(slope, radius_in(d, extents), score);
    bound = hn::MulAdd(size, upper_exp(d, hn::Min(most, limit)), bound);
  }
  head.missing = hn::GetLane(hn::SumOfLanes(d, sum));
  head.most = hn::GetLane(hn::SumOfLanes(d, bound));
}

// What the clusters of the estimation zone weigh in the output of a block of heads: their sum to each head,
// and to zone.kept_rows and zone.kept (kHeads, stride) those that matter; returns how many. slopes: of each
// head.
template <int kHeads>
size_t weigh_zone(const Lane& lane, const EstimateScratch& zone, const float* scores, int real_heads,
                  Head* heads) {
  const Floats d;
  const hn::Rebind<int32_t, Floats> di;
  HWY_ALIGN float weights[kHeads][kBlock] = {};
  HWY_ALIGN float sizes[kBlock], spreads[kBlock];
  Vector sums[kHeads];
  for (int h = 0; h < kHeads; h++) sums[h] = hn::Zero(d);
  const size_t estimated = static_cast<size_t>(lane.estimated_count);
  size_t kept = 0;
  for (size_t begin = 0; begin < estimated; begin += kBlock) {
    const size_t count = HWY_MIN(kBlock, estimated - begin);
    const int32_t* clusters = zone.clusters + begin;
    for (size_t i = 0; i < kBlock; i++) {
      sizes[i] = i < count ? zone.sizes[clusters[i]] : 0;
      spreads[i] = wave_spread(zone.extents[clusters[i]]);
    }
    for (int h = 0; h < real_heads; h++) {
      const float* plane = scores + h * static_cast<size_t>(lane.partition_count);
      for (size_t i = 0; i < kBlock; i++) weights[h][i] = plane[clusters[i]];
      for (size_t i = 0; i < kBlock; i += kLanes) {
        const Vector deviation = hn::Mul(hn::Load(d, spreads + i), hn::Set(d, heads[h].deviation));
        const Vector above = hn::Mul(mass_above_centroid(d, deviation), hn::Set(d, kWaveForMeanValue));
        const Vector score = hn::Sub(hn::Load(d, weights[h] + i), hn::Set(d, heads[h].shift));
        const Vector weight = exp(d, hn::Min(hn::Add(score, above), hn::Set(d, kMostLogMass)));
        const Vector mass = hn::Mul(weight, hn::Load(d, sizes + i));
        sums[h] = hn::Add(sums[h], mass);
        hn::Store(mass, d, weights[h] + i);
      }
    }
    for (size_t i = 0; i < count; i += kLanes) {
      auto matters = hn::FirstN(d, 0);
      for (int h = 0; h < real_heads; h++) {
        const Vector least = hn::Set(d, heads[h].exact * kLeastShare);
        matters = hn::Or(matters, hn::Not(hn::Lt(hn::Load(d, weights[h] + i), least)));
      }
      matters = hn::And(matters, hn::FirstN(d, count - i));
      for (int h = 0; h < kHeads; h++) {
        float* mass = zone.kept + static_cast<size_t>(h) * zone.kept_stride + kept;
        hn::StoreU(hn::Compress(hn::Load(d, weights[h] + i), matters), d, mass);
      }
      HWY_ALIGN int32_t which[kLanes];
      const auto numbers = hn::Iota(di, static_cast<int32_t>(begin + i));
      hn::Store(hn::Compress(numbers, hn::RebindMask(di, matters)), di, which);
      const size_t more = hn::CountTrue(d, matters);
      for (size_t k = 0; k < more; k++) zone.kept_rows[kept + k] = zone.rows[which[k]];
      kept += more;
    }
  }
  for (int h = 0; h < real_heads; h++) heads[h].estimated = hn::GetLane(hn::SumOfLanes(d, sums[h]));
  return kept;
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

// A block of heads from `first`; adds their coverages to the sums.
template <DType kKv, int kHeads>
void estimate_heads(const LanesArgs& args, Lane& lane, const EstimateScratch& scratch, int first,
                    double* coverage, double* certified) {
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  const size_t stride = padded_dim(head_dim);
  const size_t count = static_cast<size_t>(lane.partition_count);
  const size_t bytes = row_bytes(kKv, args.head_dim);
  const int real_heads = HWY_MIN(kHeads, args.group - first);
  const float* scores = lane.scores + first * count;
  Head heads[kHeads];
  for (int h = 0; h < real_heads; h++) {
    heads[h].deviation = deviation_per_spread(lane.query + (first + h) * head_dim, head_dim, args.scale);
    choose_unit(scores + h * count, count, lane.lse[first + h], heads[h]);
  }

  const size_t kept = weigh_zone<kHeads>(lane, scratch, scores, real_heads, heads);
  const size_t steps = static_cast<size_t>(real_heads) * (count / kLanes) + 1;
  Wanted wanted = {.rows = scratch.kept_rows,
                   .count = HWY_MIN(kept, kPrefetchBytes / bytes),
                   .row_bytes = bytes,
                   .per_step = kept / steps + 1};
  for (int h = 0; h < real_heads; h++) {
    const float reach = length(lane.query + (first + h) * head_dim, head_dim) * args.scale;
    weigh(scores + h * count, scratch, count, reach, wanted, heads[h]);
    *coverage += heads[h].exact / (heads[h].exact + heads[h].missing);
    *certified += heads[h].exact / (heads[h].exact + heads[h].most);
  }

  std::memset(scratch.acc, 0, kHeads * stride * sizeof(float));
  for (size_t begin = 0; begin < kept; begin += kBlock) {
    const bool ahead = begin + kBlock >= wanted.count && begin + 2 * kBlock <= kept;
    const std::byte* const* rows = scratch.kept_rows + begin;
    add_rows<kKv, kHeads>({scratch.kept + begin, 1, scratch.kept_stride}, rows, HWY_MIN(kBlock, kept - begin),
                          head_dim, scratch.acc, ahead ? rows + kBlock : nullptr);
  }
  for (int h = 0; h < real_heads; h++) {
    merge(heads[h], scratch.acc + h * stride, head_dim, lane.out + (first + h) * head_dim,
          &lane.lse[first + h]);
  }
}

void estimate_lane(const LanesArgs& args, Lane& lane, const EstimateScratch& scratch) {
  double coverage = 0, certified = 0;
  for (int first = 0; first < args.group; first += kBlockHeads) {
    with_type_and_width(args.kv, block_width(args.group, first), [&]<DType kKv, int kHeads>() HWY_ATTR {
      estimate_heads<kKv, kHeads>(args, lane, scratch, first, &coverage, &certified);
    });
  }
  lane.estimated_coverage = static_cast<float>(coverage / args.group);
  lane.certified_coverage = static_cast<float>(certified / args.group);
}

size_t acc_floats(const LanesArgs& args) { return kBlockHeads * padded_dim(args.head_dim); }

}  // namespace
}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace wi::cpu {
namespace {

HWY_EXPORT(estimate_lane);
HWY_EXPORT(acc_floats);

// Sizes of the clusters that were not retrieved, every extent, and where the estimated ones are.
void gather(const LanesArgs& args, const Lane& lane, const EstimateScratch& scratch);

}  // namespace

void wave_estimate(const Stream& stream, const LanesArgs& args) {
  stream.each(args.lane_count, [&](int64_t task, int worker) {
    Lane& lane = args.lanes[task];
    lane.estimated_coverage = lane.certified_coverage = 1;
    if (lane.partition_count == 0) return;
    const auto rounded = [](size_t floats) { return (floats + 15) / 16 * 16; };
    const size_t n = rounded(static_cast<size_t>(lane.partition_count) + 16);
    const size_t acc = rounded(HWY_DYNAMIC_DISPATCH(acc_floats)(args));
    const size_t segments = rounded(static_cast<size_t>(lane.segment_count));
    const size_t estimated = rounded(static_cast<size_t>(lane.estimated_count) + 64);
    float* at = stream.worker_array<float>(worker, 2 * n + acc + segments + 9 * estimated);
    EstimateScratch scratch;
    scratch.sizes = at;
    scratch.extents = reinterpret_cast<uint32_t*>(at + n);
    scratch.acc = at + 2 * n;
    scratch.kept = scratch.acc + acc;
    scratch.kept_stride = estimated;
    scratch.first = reinterpret_cast<int32_t*>(scratch.kept + 4 * estimated);
    scratch.clusters = scratch.first + segments;
    scratch.rows = reinterpret_cast<const std::byte**>(scratch.clusters + estimated);
    scratch.kept_rows = scratch.rows + estimated;
    gather(args, lane, scratch);
    HWY_DYNAMIC_DISPATCH(estimate_lane)(args, lane, scratch);
  });
}

namespace {

void gather(const LanesArgs& args, const Lane& lane, const EstimateScratch& scratch) {
  int32_t at = 0;
  for (int32_t s = 0; s < lane.segment_count; s++) {
    scratch.first[s] = at;
    if (lane.segments[s].partitions == 0) continue;
    const WaveIndex index = wave_view(lane.segments[s].index);
    std::copy_n(index.extents, index.clusters, scratch.extents + at);
    for (int32_t i = 0; i < index.clusters; i++) scratch.sizes[at + i] = static_cast<float>(index.sizes[i]);
    at += index.clusters;
  }
  std::memset(scratch.extents + at, 0, 16 * sizeof(uint32_t));
  std::memset(scratch.sizes + at, 0, 16 * sizeof(float));
  for (int32_t i = 0; i < lane.retrieved_count; i++) {
    const PartitionRef ref = lane.retrieved[i];
    scratch.sizes[scratch.first[ref.segment] + ref.partition] = 0;
  }
  const size_t bytes = row_bytes(args.kv, args.head_dim);
  int32_t open = -1;
  const std::byte* values = nullptr;
  for (int32_t i = 0; i < lane.estimated_count; i++) {
    const PartitionRef ref = lane.estimated[i];
    if (ref.segment != open) values = wave_view(lane.segments[open = ref.segment].index).value_means;
    scratch.rows[i] = values + static_cast<size_t>(ref.partition) * bytes;
    scratch.clusters[i] = scratch.first[ref.segment] + ref.partition;
  }
  std::memset(scratch.clusters + lane.estimated_count, 0, 64 * sizeof(int32_t));
}

}  // namespace
}  // namespace wi::cpu

#endif  // HWY_ONCE
