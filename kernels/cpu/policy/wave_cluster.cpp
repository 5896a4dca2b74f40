// Spherical k-means of one segment's keys for the wave index (RetroInfer §4.2, segmented clustering). Nearly
// all of its time is the assignment: a product of keys and centroids whose scores never leave the registers,
// since all that is kept is each key's best centroid.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/policy/wave_cluster.cpp"
#include "kernels/cpu/policy/wave_cluster.h"

#include <cmath>
#include <cstring>

#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Ints = hn::ScalableTag<int32_t>;
constexpr size_t kLanes = HWY_LANES(float);
constexpr size_t kTileKeys = kLanes >= 16 ? 12 : 6;  // accumulators: two vectors of centroids per key
constexpr size_t kPanel = 2 * kLanes;                // centroids side by side

// Best centroid so far of each key of a tile, lane by lane.
struct Best {
  HWY_ALIGN float score[kTileKeys][kLanes];
  HWY_ALIGN int32_t centroid[kTileKeys][kLanes];
};

// One panel (head_dim, kPanel) against a tile of keys. A strict comparison keeps the lower centroid.
HWY_INLINE void score_panel(const float* HWY_RESTRICT keys, size_t head_dim, const float* HWY_RESTRICT panel,
                            int32_t first, Best& best) {
  const Floats d;
  const Ints di;
  hn::Vec<Floats> left[kTileKeys], right[kTileKeys];
  HWY_UNROLL(12)
  for (size_t t = 0; t < kTileKeys; t++) left[t] = right[t] = hn::Zero(d);
  for (size_t i = 0; i < head_dim; i++) {
    const auto a = hn::Load(d, panel + i * kPanel);
    const auto b = hn::Load(d, panel + i * kPanel + kLanes);
    HWY_UNROLL(12)
    for (size_t t = 0; t < kTileKeys; t++) {
      const auto key = hn::Set(d, keys[t * head_dim + i]);
      left[t] = hn::MulAdd(key, a, left[t]);
      right[t] = hn::MulAdd(key, b, right[t]);
    }
  }
  const auto lane = hn::Iota(di, first);
  const auto lane_right = hn::Iota(di, first + static_cast<int32_t>(kLanes));
  HWY_UNROLL(12)
  for (size_t t = 0; t < kTileKeys; t++) {
    auto score = hn::Load(d, best.score[t]);
    auto centroid = hn::Load(di, best.centroid[t]);
    const auto better = hn::Gt(left[t], score);
    score = hn::IfThenElse(better, left[t], score);
    centroid = hn::IfThenElse(hn::RebindMask(di, better), lane, centroid);
    const auto better_right = hn::Gt(right[t], score);
    score = hn::IfThenElse(better_right, right[t], score);
    centroid = hn::IfThenElse(hn::RebindMask(di, better_right), lane_right, centroid);
    hn::Store(score, d, best.score[t]);
    hn::Store(centroid, di, best.centroid[t]);
  }
}

int32_t best_of(const float* score, const int32_t* centroid) {
  size_t best = 0;
  for (size_t i = 1; i < kLanes; i++) {
    const bool tie = score[i] == score[best] && centroid[i] < centroid[best];
    if (score[i] > score[best] || tie) best = i;
  }
  return centroid[best];
}

// centroids (count, head_dim) to panels (⌈count / kPanel⌉, head_dim, kPanel); the last one's free columns
// repeat the last centroid, which loses the tie against itself.
void pack_panels(const float* centroids, int32_t count, int32_t head_dim, float* panels) {
  for (int32_t first = 0; first < count; first += kPanel) {
    for (int32_t c = 0; c < static_cast<int32_t>(kPanel); c++) {
      const float* centroid = centroids + static_cast<int64_t>(HWY_MIN(first + c, count - 1)) * head_dim;
      for (int32_t i = 0; i < head_dim; i++) panels[i * kPanel + c] = centroid[i];
    }
    panels += head_dim * kPanel;
  }
}

// Returns how many tokens moved. panels: scratch.
int32_t assign(const KmeansArgs& args, const float* centroids, float* panels) {
  pack_panels(centroids, args.centroids, args.head_dim, panels);
  const size_t dim = static_cast<size_t>(args.head_dim);
  int32_t moved = 0;
  for (int32_t token = 0; token < args.tokens; token += kTileKeys) {
    Best best;
    for (auto& row : best.score)
      for (float& score : row) score = -2;  // below every cosine
    std::memset(best.centroid, 0, sizeof(best.centroid));
    const float* panel = panels;
    for (int32_t first = 0; first < args.centroids; first += kPanel, panel += dim * kPanel) {
      score_panel(args.units + token * dim, dim, panel, first, best);
    }
    for (int32_t t = 0; t < static_cast<int32_t>(kTileKeys) && token + t < args.tokens; t++) {
      const int32_t winner = HWY_MIN(best_of(best.score[t], best.centroid[t]), args.centroids - 1);
      moved += winner != args.assignment[token + t];
      args.assignment[token + t] = winner;
    }
  }
  return moved;
}

void add_to(const float* HWY_RESTRICT row, size_t count, float* HWY_RESTRICT sum) {
  for (size_t i = 0; i < count; i++) sum[i] += row[i];
}

// Members' sums in the order of tokens, scaled to length 1. One without members, or whose members cancel
// out, stays as it was. sums: scratch (centroids, head_dim).
void update(const KmeansArgs& args, float* sums, float* centroids) {
  const size_t dim = static_cast<size_t>(args.head_dim);
  std::memset(sums, 0, args.centroids * dim * sizeof(float));
  for (int32_t t = 0; t < args.tokens; t++)
    add_to(args.units + t * dim, dim, sums + args.assignment[t] * dim);
  for (int32_t c = 0; c < args.centroids; c++) {
    const float* sum = sums + c * dim;
    float squares = 0;
    for (size_t i = 0; i < dim; i++) squares += sum[i] * sum[i];
    if (squares < 1e-12f) continue;
    const float inverse = 1 / std::sqrt(squares);
    for (size_t i = 0; i < dim; i++) centroids[c * dim + i] = sum[i] * inverse;
  }
}

}  // namespace
}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>

namespace wi::cpu {
namespace {

HWY_EXPORT(assign);
HWY_EXPORT(update);

constexpr int32_t kPanelMost = 32;     // of any instruction set
constexpr int32_t kTileKeysMost = 12;  // a multiple of every tile

float squared_distance(const float* a, const float* b, int32_t dim) {
  float sum = 0;
  for (int32_t i = 0; i < dim; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

}  // namespace

int64_t kmeans_padded_tokens(int32_t tokens) {
  return (static_cast<int64_t>(tokens) + kTileKeysMost - 1) / kTileKeysMost * kTileKeysMost;
}

size_t kmeans_scratch_floats(int32_t centroids, int32_t head_dim) {
  const size_t padded = (static_cast<size_t>(centroids) + kPanelMost - 1) / kPanelMost * kPanelMost;
  return 2 * padded * head_dim;
}

void spherical_kmeans(const Stream& stream, const KmeansArgs& args) {
  const size_t dim = static_cast<size_t>(args.head_dim);
  float* centroids = args.scratch;
  float* panels = args.scratch + kmeans_scratch_floats(args.centroids, args.head_dim) / 2;  // and sums
  for (int64_t c = 0; c < args.centroids; c++) {
    const int64_t token = c * args.tokens / args.centroids;
    std::copy_n(args.units + token * dim, dim, centroids + c * dim);
  }
  std::fill_n(args.assignment, args.tokens, -1);
  for (int32_t i = 0; i < args.iterations; i++) {
    if (i > 0) HWY_DYNAMIC_DISPATCH(update)(args, panels, centroids);
    if (HWY_DYNAMIC_DISPATCH(assign)(args, centroids, panels) == 0 || stream.cancelled()) break;
  }
}

int32_t split_cluster(const float* keys, int32_t head_dim, int32_t* members, int32_t count,
                      int32_t max_tokens, float* projections, int32_t* sizes) {
  if (count <= max_tokens) {
    std::sort(members, members + count);
    sizes[0] = count;
    return 1;
  }
  const auto key = [&](int32_t token) { return keys + static_cast<int64_t>(token) * head_dim; };
  const auto farthest = [&](int32_t from) {
    int32_t best = members[0];
    float distance = -1;
    for (int32_t i = 0; i < count; i++) {
      const float d = squared_distance(key(from), key(members[i]), head_dim);
      if (d > distance) distance = d, best = members[i];
    }
    return best;
  };
  const int32_t a = farthest(members[0]);
  const int32_t b = farthest(a);
  // The token with number t projects to projections[its place among the members in ascending order].
  std::sort(members, members + count);
  int32_t* order = reinterpret_cast<int32_t*>(projections + count);
  for (int32_t i = 0; i < count; i++) {
    double projection = 0;
    for (int32_t j = 0; j < head_dim; j++) {
      projection += static_cast<double>(key(members[i])[j]) * (static_cast<double>(key(a)[j]) - key(b)[j]);
    }
    projections[i] = static_cast<float>(projection);
    order[i] = i;
  }
  const int32_t half = count / 2;
  std::nth_element(order, order + half, order + count, [&](int32_t x, int32_t y) {
    return projections[x] != projections[y] ? projections[x] < projections[y] : x < y;
  });
  for (int32_t i = 0; i < count; i++) order[i] = members[order[i]];
  std::copy_n(order, count, members);
  const int32_t pieces = split_cluster(keys, head_dim, members, half, max_tokens, projections, sizes);
  return pieces +
         split_cluster(keys, head_dim, members + half, count - half, max_tokens, projections, sizes + pieces);
}

}  // namespace wi::cpu

#endif  // HWY_ONCE
