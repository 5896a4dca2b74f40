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

// A cluster's upper bound is cut here, relative to the exact mass and in natural log: coverage is then 0
// up to e^-60, and sums stay finite.
constexpr float kMostLogMass = 60;
constexpr size_t kBlock = 64;  // estimated clusters at a time

// One query head. All its masses are in units of exp(shift), which is not below any of them.
struct Head {
  float shift;
  float exact;    // mass attended exactly
  float missing;  // of the clusters that were not retrieved, by centroid
  float most;     // of those, by radius
};

// scores (count), weights and radii (count + kLanes); weights are sizes, 0 for retrieved clusters and
// beyond the end.
Head weigh(const float* scores, const float* weights, const float* radii, size_t count, float lse,
           float reach) {
  const Floats d;
  const size_t whole = count / kLanes * kLanes;
  Vector highest = hn::Set(d, lse > kLowest ? lse : kLowest);
  for (size_t i = 0; i < whole; i += kLanes) highest = hn::Max(highest, hn::LoadU(d, scores + i));
  HWY_ALIGN float last[kLanes] = {};
  std::memcpy(last, scores + whole, (count - whole) * sizeof(float));
  float shift = hn::GetLane(hn::MaxOfLanes(d, highest));
  for (size_t i = whole; i < count; i++) shift = HWY_MAX(shift, scores[i]);

  const Vector unit = hn::Set(d, shift);
  const Vector slope = hn::Set(d, reach);
  const Vector limit = hn::Set(d, kMostLogMass);
  Vector sum = hn::Zero(d), bound = hn::Zero(d);
  for (size_t i = 0; i < count; i += kLanes) {
    const Vector weight = hn::LoadU(d, weights + i);
    const Vector score = hn::Sub(i < whole ? hn::LoadU(d, scores + i) : hn::Load(d, last), unit);
    sum = hn::MulAdd(weight, rough_exp(d, score), sum);
    const Vector above = hn::MulAdd(slope, hn::LoadU(d, radii + i), score);
    bound = hn::MulAdd(weight, rough_exp(d, hn::Min(above, limit)), bound);
  }
  return {.shift = shift,
          .exact = std::exp(lse - shift),
          .missing = hn::GetLane(hn::SumOfLanes(d, sum)),
          .most = hn::GetLane(hn::SumOfLanes(d, bound))};
}

// The next clusters of the estimation zone.
struct Block {
  size_t count;
  const std::byte* rows[kBlock];  // value means
  int32_t clusters[kBlock];       // numbers in the lane; 0 beyond count
};
void read_block(const Lane& lane, const int32_t* first, size_t begin, size_t bytes, Block& block) {
  block.count = HWY_MIN(kBlock, static_cast<size_t>(lane.estimated_count) - begin);
  int32_t open = -1;
  const std::byte* values = nullptr;
  for (size_t i = 0; i < block.count; i++) {
    const PartitionRef ref = lane.estimated[begin + i];
    if (ref.segment != open) values = wave_view(lane.segments[open = ref.segment].index).value_means;
    block.rows[i] = values + ref.partition * bytes;
    block.clusters[i] = first[ref.segment] + ref.partition;
    prefetch_row(block.rows[i], bytes);
  }
  for (size_t i = block.count; i < kBlock; i++) block.clusters[i] = 0;
}

// Adds the estimation zone to acc (kHeads, padded_dim); mass[h] is its mass. Reads a block ahead.
template <DType kKv, int kHeads>
void add_estimates(const Lane& lane, const int32_t* first, const float* weights, const float* scores,
                   size_t head_dim, const Head* heads, int real_heads, float* acc, float* mass) {
  const Floats d;
  const size_t bytes = row_bytes(kKv, static_cast<int64_t>(head_dim));
  HWY_ALIGN float block_weights[kHeads][kBlock] = {};
  HWY_ALIGN float sizes[kBlock] = {};
  Vector sums[kHeads];
  for (int h = 0; h < kHeads; h++) sums[h] = hn::Zero(d);
  Block blocks[2];
  read_block(lane, first, 0, bytes, blocks[0]);
  size_t begin = 0;
  for (int now = 0; blocks[now].count > 0; now ^= 1) {
    const Block& block = blocks[now];
    begin += block.count;
    read_block(lane, first, begin, bytes, blocks[now ^ 1]);
    for (size_t i = 0; i < kBlock; i++) sizes[i] = i < block.count ? weights[block.clusters[i]] : 0;
    for (int h = 0; h < real_heads; h++) {
      const float* plane = scores + h * static_cast<size_t>(lane.partition_count);
      for (size_t i = 0; i < kBlock; i++) block_weights[h][i] = plane[block.clusters[i]];
      for (size_t i = 0; i < kBlock; i += kLanes) {
        const Vector score = hn::Sub(hn::Load(d, block_weights[h] + i), hn::Set(d, heads[h].shift));
        const Vector weight = hn::Mul(exp(d, score), hn::Load(d, sizes + i));
        sums[h] = hn::Add(sums[h], weight);
        hn::Store(weight, d, block_weights[h] + i);
      }
    }
    add_rows<kKv, kHeads>({block_weights[0], 1, kBlock}, block.rows, block.count, head_dim, acc);
  }
  for (int h = 0; h < kHeads; h++) mass[h] = hn::GetLane(hn::SumOfLanes(d, sums[h]));
}

float length(const float* query, size_t head_dim) {
  float squares = 0;
  for (size_t i = 0; i < head_dim; i++) squares += query[i] * query[i];
  return std::sqrt(squares) * 1.00001f;  // not below the true one
}

void estimate_lane(const LanesArgs& args, Lane& lane, const EstimateScratch& scratch) {
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  const size_t stride = padded_dim(head_dim);
  const size_t count = static_cast<size_t>(lane.partition_count);
  double coverage = 0, certified = 0;
  for (int first = 0; first < args.group; first += kBlockHeads) {
    const int width = block_width(args.group, first);
    const int real_heads = HWY_MIN(width, args.group - first);
    Head heads[kBlockHeads];
    for (int h = 0; h < real_heads; h++) {
      const float reach = length(lane.query + (first + h) * head_dim, head_dim) * args.scale;
      heads[h] = weigh(lane.scores + (first + h) * count, scratch.weights, scratch.radii, count,
                       lane.lse[first + h], reach);
      coverage += heads[h].exact / (heads[h].exact + heads[h].missing);
      certified += heads[h].exact / (heads[h].exact + heads[h].most);
    }
    if (lane.estimated_count == 0) continue;
    float mass[kBlockHeads];
    std::memset(scratch.acc, 0, kBlockHeads * stride * sizeof(float));
    with_type_and_width(args.kv, width, [&]<DType kKv, int kHeads>() HWY_ATTR {
      add_estimates<kKv, kHeads>(lane, scratch.first, scratch.weights, lane.scores + first * count, head_dim,
                                 heads, real_heads, scratch.acc, mass);
    });
    for (int h = 0; h < real_heads; h++) {
      if (!(mass[h] > 0)) continue;
      const float all = heads[h].exact + mass[h];
      const float keep = heads[h].exact / all, add = 1 / all;
      float* out = lane.out + (first + h) * head_dim;
      for (size_t i = 0; i < head_dim; i++) out[i] = out[i] * keep + scratch.acc[h * stride + i] * add;
      lane.lse[first + h] = heads[h].shift + std::log(all);
    }
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

// Sizes of the clusters that were not retrieved, and every radius, in lane order.
void gather(const Lane& lane, const EstimateScratch& scratch);

}  // namespace

void wave_estimate(const Stream& stream, const LanesArgs& args) {
  stream.each(args.lane_count, [&](int64_t task, int worker) {
    Lane& lane = args.lanes[task];
    lane.estimated_coverage = lane.certified_coverage = 1;
    if (lane.partition_count == 0) return;
    const auto rounded = [](size_t floats) { return (floats + 15) / 16 * 16; };
    const size_t n = rounded(static_cast<size_t>(lane.partition_count) + 16);
    const size_t acc = rounded(HWY_DYNAMIC_DISPATCH(acc_floats)(args));
    float* at = stream.worker_array<float>(worker, 2 * n + acc + static_cast<size_t>(lane.segment_count));
    const EstimateScratch scratch = {.weights = at,
                                     .radii = at + n,
                                     .acc = at + 2 * n,
                                     .first = reinterpret_cast<int32_t*>(at + 2 * n + acc)};
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
    std::memcpy(scratch.radii + at, index.radii, static_cast<size_t>(index.clusters) * sizeof(float));
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
