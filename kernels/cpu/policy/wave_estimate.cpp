// The wave policy's Estimate (RetroInfer §4.2, accuracy-bounded attention estimation): a cluster of the
// estimation zone weighs size · exp(q·c/√d), by Jensen never more than its tokens do, and stands for the
// mean of its values. Merged by LSE into the exact result. Also reports how much of the attention mass was
// attended exactly: by the centroids' estimate, and surely, since no token of a cluster scores above
// (q·c + |q|·radius)/√d.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/policy/wave_estimate.cpp"
#include "kernels/cpu/policy/wave_estimate.h"

#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/attend-inl.h"
#include "kernels/cpu/policy/wave.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace {

// A cluster's upper bound is cut here, in units of the exact mass's logarithm: coverage is then 0 to
// e^-60, and sums stay finite.
constexpr float kMostLogMass = 60;

// One block of heads, as constants of every lane.
struct HeadConstants {
  HWY_ALIGN float shift[kLanes];  // log of the unit of all masses of this head: nothing is above e^0
  HWY_ALIGN float reach[kLanes];  // |q|/√d
};

// Masses of the clusters that were not retrieved, in units of exp(shift): estimated[h] by centroid,
// most[h] by radius. scores (count, kHeads), weights and radii (count), each with kLanes floats more;
// weights are sizes, 0 for retrieved clusters and beyond the end.
template <int kHeads>
void missing_masses(const float* scores, const float* weights, const float* radii, size_t count,
                    const HeadConstants& heads, float* estimated, float* most) {
  const Floats d;
  constexpr size_t kRows = kLanes / kHeads;
  const Vector shift = hn::Load(d, heads.shift);
  const Vector reach = hn::Load(d, heads.reach);
  const Vector limit = hn::Set(d, kMostLogMass);
  Vector sum = hn::Zero(d), bound = hn::Zero(d);
  for (size_t i = 0; i < count; i += kRows) {
    const Vector weight = spread_rows<kHeads>(d, weights + i);
    const Vector radius = spread_rows<kHeads>(d, radii + i);
    const Vector score = hn::Sub(hn::LoadU(d, scores + i * kHeads), shift);
    sum = hn::MulAdd(weight, exp(d, score), sum);
    bound = hn::MulAdd(weight, exp(d, hn::Min(hn::MulAdd(reach, radius, score), limit)), bound);
  }
  HWY_ALIGN float lanes[kLanes];
  hn::Store(sum_across_rows<kHeads>(d, sum), d, lanes);
  for (int h = 0; h < kHeads; h++) estimated[h] = lanes[h];
  hn::Store(sum_across_rows<kHeads>(d, bound), d, lanes);
  for (int h = 0; h < kHeads; h++) most[h] = lanes[h];
}

// Adds the estimation zone's weighted value means to acc (kHeads, padded_dim); mass[h] is its mass.
template <DType kKv, int kHeads>
void add_estimates(const Lane& lane, const int32_t* first, const float* scores, size_t head_dim,
                   const HeadConstants& heads, float* acc, float* mass) {
  const Floats d;
  constexpr size_t kBlock = 64;
  const size_t bytes = row_bytes(kKv, static_cast<int64_t>(head_dim));
  const Vector shift = hn::Load(d, heads.shift);
  const std::byte* rows[kBlock];
  HWY_ALIGN float block[kBlock * kHeads];
  float sizes[kBlock + kLanes] = {};
  Vector sum = hn::Zero(d);
  int32_t open = -1;
  WaveIndex index;
  for (int32_t begin = 0; begin < lane.estimated_count; begin += kBlock) {
    const size_t here = HWY_MIN(kBlock, static_cast<size_t>(lane.estimated_count - begin));
    for (size_t i = 0; i < here; i++) {
      const PartitionRef ref = lane.estimated[begin + i];
      if (ref.segment != open) index = wave_view(lane.segments[open = ref.segment].index);
      rows[i] = index.value_means + ref.partition * bytes;
      prefetch_row(rows[i], bytes);
      sizes[i] = static_cast<float>(index.sizes[ref.partition]);
      std::memcpy(block + i * kHeads,
                  scores + static_cast<size_t>(first[ref.segment] + ref.partition) * kHeads,
                  kHeads * sizeof(float));
    }
    for (size_t i = here; i < kBlock; i++) {
      sizes[i] = 0;
      std::memcpy(block + i * kHeads, block, kHeads * sizeof(float));
    }
    for (size_t i = 0; i < kBlock; i += kLanes / kHeads) {
      const Vector score = hn::Sub(hn::Load(d, block + i * kHeads), shift);
      const Vector weight = hn::Mul(exp(d, score), spread_rows<kHeads>(d, sizes + i));
      sum = hn::Add(sum, weight);
      hn::Store(weight, d, block + i * kHeads);
    }
    add_rows<kKv, kHeads>(block, rows, here, head_dim, acc);
  }
  HWY_ALIGN float lanes[kLanes];
  hn::Store(sum_across_rows<kHeads>(d, sum), d, lanes);
  for (int h = 0; h < kHeads; h++) mass[h] = lanes[h];
}

template <DType kKv, int kHeads>
void estimate_heads(const LanesArgs& args, Lane& lane, int first_head, const float* scores,
                    const EstimateScratch& scratch, double* coverage, double* certified) {
  const Floats d;
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  const size_t count = static_cast<size_t>(lane.partition_count);
  const int heads = HWY_MIN(kHeads, args.group - first_head);
  float shifts[kHeads] = {}, reaches[kHeads] = {};
  Vector highest = hn::Set(d, kLowest);
  size_t i = 0;
  for (; i + kLanes <= count * kHeads; i += kLanes) highest = hn::Max(highest, hn::LoadU(d, scores + i));
  HWY_ALIGN float lanes[kLanes];
  hn::Store(max_across_rows<kHeads>(d, highest), d, lanes);
  for (; i < count * kHeads; i++) lanes[i % kHeads] = HWY_MAX(lanes[i % kHeads], scores[i]);
  for (int h = 0; h < heads; h++) {
    shifts[h] = HWY_MAX(lanes[h], lane.lse[first_head + h]);
    const float* query = lane.query + (first_head + h) * head_dim;
    float squares = 0;
    for (size_t j = 0; j < head_dim; j++) squares += query[j] * query[j];
    reaches[h] = std::sqrt(squares) * args.scale * 1.00001f;
  }
  HeadConstants constants;
  hn::Store(repeat_heads<kHeads>(d, shifts), d, constants.shift);
  hn::Store(repeat_heads<kHeads>(d, reaches), d, constants.reach);

  const size_t stride = padded_dim(head_dim);
  float missing[kHeads], most[kHeads], mass[kHeads];
  missing_masses<kHeads>(scores, scratch.weights, scratch.radii, count, constants, missing, most);
  std::memset(scratch.acc, 0, kHeads * stride * sizeof(float));
  add_estimates<kKv, kHeads>(lane, scratch.first, scores, head_dim, constants, scratch.acc, mass);
  for (int h = 0; h < heads; h++) {
    float& lse = lane.lse[first_head + h];
    const float exact = std::exp(lse - shifts[h]);
    *coverage += exact / (exact + missing[h]);
    *certified += exact / (exact + most[h]);
    if (lane.estimated_count == 0 || !(mass[h] > 0)) continue;
    const float all = exact + mass[h];
    float* out = lane.out + (first_head + h) * head_dim;
    for (size_t j = 0; j < head_dim; j++) out[j] = (out[j] * exact + scratch.acc[h * stride + j]) / all;
    lse = shifts[h] + std::log(all);
  }
}

void estimate_lane(const LanesArgs& args, Lane& lane, const EstimateScratch& scratch) {
  const size_t count = static_cast<size_t>(lane.partition_count);
  const int group = args.group;
  double coverage = 0, certified = 0;
  for (int first = 0; first < group; first += kBlockHeads) {
    const int width = block_width(group, first);
    const int heads = HWY_MIN(width, group - first);
    const float* scores = lane.scores;
    // Whole vectors are read, up to one beyond the end: a copy has room for that, the lane's own may not.
    std::memset(scratch.scores, 0, (count * width + kLanes) * sizeof(float));
    for (size_t i = 0; i < count; i++)
      for (int h = 0; h < heads; h++) scratch.scores[i * width + h] = scores[i * group + first + h];
    with_type_and_width(args.kv, width, [&]<DType kKv, int kHeads>() HWY_ATTR {
      estimate_heads<kKv, kHeads>(args, lane, first, scratch.scores, scratch, &coverage, &certified);
    });
  }
  lane.estimated_coverage = static_cast<float>(coverage / group);
  lane.certified_coverage = static_cast<float>(certified / group);
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

// Sizes of the clusters that were not retrieved, and every radius, in lane order.
void gather(const Lane& lane, const EstimateScratch& scratch);

}  // namespace

void wave_estimate(const Stream& stream, const LanesArgs& args) {
  stream.each(args.lane_count, [&](int64_t task, int worker) {
    Lane& lane = args.lanes[task];
    lane.estimated_coverage = lane.certified_coverage = 1;
    if (lane.partition_count == 0) return;
    constexpr size_t kPadding = 16;
    const auto rounded = [](size_t floats) { return (floats + 15) / 16 * 16; };
    const size_t n = rounded(static_cast<size_t>(lane.partition_count) + kPadding);
    const size_t acc = HWY_DYNAMIC_DISPATCH(acc_floats)(args);
    const size_t segments = rounded(static_cast<size_t>(lane.segment_count));
    float* at = stream.worker_array<float>(worker, 6 * n + rounded(acc) + segments);
    EstimateScratch scratch;
    scratch.scores = at;
    scratch.weights = at + 4 * n;
    scratch.radii = at + 5 * n;
    scratch.acc = at + 6 * n;
    scratch.first = reinterpret_cast<int32_t*>(at + 6 * n + rounded(acc));
    gather(lane, scratch);
    HWY_DYNAMIC_DISPATCH(estimate_lane)(args, lane, scratch);
  });
}

namespace {

void gather(const Lane& lane, const EstimateScratch& scratch) {
  int32_t at = 0;
  for (int32_t s = 0; s < lane.segment_count; s++) {
    scratch.first[s] = at;
    if (lane.segments[s].partitions == 0) continue;
    const WaveIndex index = wave_view(lane.segments[s].index);
    std::memcpy(scratch.radii + at, index.radii, index.clusters * sizeof(float));
    for (int32_t i = 0; i < index.clusters; i++) scratch.weights[at + i] = static_cast<float>(index.sizes[i]);
    at += index.clusters;
  }
  std::memset(scratch.radii + at, 0, 16 * sizeof(float));
  std::memset(scratch.weights + at, 0, 16 * sizeof(float));
  for (int32_t i = 0; i < lane.retrieved_count; i++) {
    const PartitionRef ref = lane.retrieved[i];
    scratch.weights[scratch.first[ref.segment] + ref.partition] = 0;
  }
}

}  // namespace
}  // namespace wi::cpu

#endif  // HWY_ONCE
