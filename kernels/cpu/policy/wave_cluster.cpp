// Spherical k-means of one segment's keys for the wave index (RetroInfer §4.2, segmented clustering). Nearly
// all of its time is the assignment: a product of keys and centroids whose scores never leave the registers,
// since all that is kept is each key's best centroid. It is taken in 8 bits: rounding moves only keys that
// are about as near to another centroid, and means are taken over the exact keys.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/policy/wave_cluster.cpp"
// clang-format off: it must come before all others.
#include "kernels/cpu/byte_products.h"
// clang-format on
#include <cmath>
#include <cstring>

#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/byte_products-inl.h"
#include "kernels/cpu/policy/wave_cluster.h"
#include "kernels/wave_clusters.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Ints = hn::ScalableTag<int32_t>;
using IntVector = hn::Vec<Ints>;
constexpr size_t kLanes = HWY_LANES(int32_t);
constexpr size_t kTileKeys = kLanes >= 16 ? 12 : 6;  // accumulators: two vectors of centroids per key
constexpr size_t kPanel = 2 * kLanes;                // centroids side by side

// Numbers as the products take them: 32-bit words of neighbouring dimensions. Bytes of centroids have 128
// added, which adds the same to all scores of a key: behind its words is what they start at for that.
using KeyNumber = std::conditional_t<kByteProducts, int8_t, int16_t>;
using CentroidNumber = std::conditional_t<kByteProducts, uint8_t, int16_t>;
constexpr size_t kPerWord = sizeof(int32_t) / sizeof(KeyNumber);
constexpr int32_t kCentroidBias = kByteProducts ? 128 : 0;
constexpr size_t words_of(size_t head_dim) { return (head_dim + kPerWord - 1) / kPerWord; }
constexpr size_t key_words_of(size_t head_dim) { return words_of(head_dim) + (kByteProducts ? 1 : 0); }

// sum += the products of a word of a key with kLanes centroids' words; odd: what some instruction sets keep
// apart.
HWY_INLINE void add_products(const int32_t* centroids, const int32_t& key, IntVector& sum, IntVector& odd) {
#if HWY_TARGET == HWY_AVX3_DL
  (void)odd;
  add_byte_products(hn::Load(hn::ScalableTag<uint8_t>(), reinterpret_cast<const uint8_t*>(centroids)), key,
                    sum);
#elif HWY_TARGET == HWY_SCALAR
  (void)odd;
  int16_t a[2], b[2];
  std::memcpy(a, centroids, sizeof(a));
  std::memcpy(b, &key, sizeof(b));
  sum = hn::Add(sum, hn::Set(Ints(), a[0] * b[0] + a[1] * b[1]));
#else
  const Ints d;
  const hn::RepartitionToNarrow<Ints> d16;
  sum = hn::ReorderWidenMulAccumulate(d, hn::BitCast(d16, hn::Load(d, centroids)),
                                      hn::BitCast(d16, hn::Set(d, key)), sum, odd);
#endif
}

HWY_INLINE IntVector whole(IntVector sum, IntVector odd) {
#if HWY_TARGET == HWY_SCALAR
  return sum;
#else
  return hn::RearrangeToOddPlusEven(sum, odd);
#endif
}

// All centroids, rounded with one scale, so that a key's scores compare as integers. Below each score go the
// bits of a number that is higher for lower centroids, so that one maximum keeps both.
struct Panels {
  const int32_t* words;  // (⌈centroids / kPanel⌉, words, kPanel)
  size_t count;
  int number_bits;
};

// One panel against a tile of keys, (kTileKeys, key words). best: (kTileKeys, kLanes).
HWY_INLINE void score_panel(const int32_t* HWY_RESTRICT keys, size_t words, const Panels& panels,
                            size_t panel, int32_t* HWY_RESTRICT best) {
  const size_t row = words + (kByteProducts ? 1 : 0);
  const Ints d;
  IntVector left[kTileKeys], right[kTileKeys], left_odd[kTileKeys], right_odd[kTileKeys];
  HWY_UNROLL(12)
  for (size_t t = 0; t < kTileKeys; t++) {
    left[t] = right[t] = kByteProducts ? hn::Set(d, keys[t * row + words]) : hn::Zero(d);
    left_odd[t] = right_odd[t] = hn::Zero(d);
  }
  const int32_t* centroids = panels.words + panel * words * kPanel;
  for (size_t i = 0; i < words; i++, centroids += kPanel) {
    HWY_UNROLL(12)
    for (size_t t = 0; t < kTileKeys; t++) {
      add_products(centroids, keys[t * row + i], left[t], left_odd[t]);
      add_products(centroids + kLanes, keys[t * row + i], right[t], right_odd[t]);
    }
  }
  const int32_t number = static_cast<int32_t>(2 * (panels.count - panel) - 1);
  const IntVector left_number = hn::Set(d, number), right_number = hn::Set(d, number - 1);
  HWY_UNROLL(12)
  for (size_t t = 0; t < kTileKeys; t++) {
    const IntVector l = hn::ShiftLeftSame(whole(left[t], left_odd[t]), panels.number_bits);
    const IntVector r = hn::ShiftLeftSame(whole(right[t], right_odd[t]), panels.number_bits);
    const IntVector higher = hn::Max(hn::Or(l, left_number), hn::Or(r, right_number));
    hn::Store(hn::Max(hn::Load(d, best + t * kLanes), higher), d, best + t * kLanes);
  }
}

// A tile's best centroid for one key; the lowest of equals.
int32_t best_of(const int32_t* best, const Panels& panels) {
  size_t lane = 0;
  for (size_t i = 1; i < kLanes; i++)
    if (best[i] > best[lane]) lane = i;
  const int32_t number = best[lane] & ((1 << panels.number_bits) - 1);
  const int32_t vector = static_cast<int32_t>(2 * panels.count) - 1 - number;
  return vector * static_cast<int32_t>(kLanes) + static_cast<int32_t>(lane);
}

// units (padded tokens, head_dim) to words (padded tokens, key words), each key with a scale of its own, which
// its choice among centroids does not depend on.
void pack_keys(const float* units, int64_t tokens, int32_t head_dim, int32_t* out) {
  const size_t dim = static_cast<size_t>(head_dim), words = words_of(dim);
  for (int64_t t = 0; t < tokens; t++, units += dim, out += key_words_of(dim)) {
    float largest = 0;
    for (size_t i = 0; i < dim; i++) largest = HWY_MAX(largest, std::abs(units[i]));
    const float scale = largest > 0 ? 127 / largest : 0;
    KeyNumber* numbers = reinterpret_cast<KeyNumber*>(out);
    int32_t sum = 0;
    for (size_t i = 0; i < words * kPerWord; i++) {
      const float exact = i < dim ? units[i] * scale : 0;
      numbers[i] = static_cast<KeyNumber>(std::lrint(exact));
      sum += numbers[i];
    }
    if constexpr (kByteProducts) out[words] = -kCentroidBias * sum;
  }
}

Panels panels_of(int32_t centroids, const int32_t* words) {
  const size_t panels = (static_cast<size_t>(centroids) + kPanel - 1) / kPanel;
  Panels out = {.words = words, .count = panels, .number_bits = 1};
  while (size_t{1} << out.number_bits < 2 * panels) out.number_bits++;
  return out;
}

// centroids (count, head_dim) to panels; the last one's free columns repeat the last centroid, which wins the
// tie against them.
void pack_panels(const float* centroids, int32_t count, int32_t head_dim, int32_t* scratch) {
  const size_t dim = static_cast<size_t>(head_dim), words = words_of(dim);
  const Panels packed = panels_of(count, scratch);
  const size_t panels = packed.count;
  static_assert(kPanel >= 8 || HWY_TARGET == HWY_SCALAR);
  const float most = static_cast<float>(wave_largest_number(count, head_dim));
  float largest = 0;
  for (size_t i = 0; i < static_cast<size_t>(count) * dim; i++)
    largest = HWY_MAX(largest, std::abs(centroids[i]));
  const float scale = largest > 0 ? most / largest : 0;
  for (size_t c = 0; c < panels * kPanel; c++) {
    const float* centroid = centroids + HWY_MIN(c, static_cast<size_t>(count) - 1) * dim;
    int32_t* column = scratch + c / kPanel * words * kPanel + c % kPanel;
    for (size_t word = 0; word < words; word++) {
      CentroidNumber numbers[kPerWord];
      for (size_t i = 0; i < kPerWord; i++) {
        const size_t at = word * kPerWord + i;
        const float exact = at < dim ? centroid[at] * scale : 0;
        numbers[i] = static_cast<CentroidNumber>(std::lrint(exact) + kCentroidBias);
      }
      std::memcpy(column + word * kPanel, numbers, sizeof(numbers));
    }
  }
}

// Of tokens [first, end), first a whole number of tiles; returns how many of them moved. keys: from
// pack_keys; packed: from pack_panels.
int32_t assign(const KmeansArgs& args, const int32_t* keys, const int32_t* packed, int32_t first,
               int32_t end) {
  const Panels panels = panels_of(args.centroids, packed);
  const size_t words = words_of(static_cast<size_t>(args.head_dim));
  int32_t moved = 0;
  for (int32_t token = first; token < end; token += kTileKeys) {
    HWY_ALIGN int32_t best[kTileKeys * kLanes];
    std::fill_n(best, kTileKeys * kLanes, INT32_MIN);
    for (size_t panel = 0; panel < panels.count; panel++)
      score_panel(keys + static_cast<size_t>(token) * key_words_of(static_cast<size_t>(args.head_dim)), words,
                  panels, panel, best);
    for (int32_t t = 0; t < static_cast<int32_t>(kTileKeys) && token + t < end; t++) {
      const int32_t winner = HWY_MIN(best_of(best + t * kLanes, panels), args.centroids - 1);
      moved += winner != args.assignment[token + t];
      args.assignment[token + t] = winner;
    }
  }
  return moved;
}

size_t words_per_key(int32_t head_dim) { return key_words_of(static_cast<size_t>(head_dim)); }

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
    double squares =
        0;  // each is exact, so that instruction sets that add it to a product at once make no other sum
    for (size_t i = 0; i < dim; i++) squares += static_cast<double>(sum[i]) * static_cast<double>(sum[i]);
    if (squares < 1e-12) continue;
    const float inverse = static_cast<float>(1 / std::sqrt(squares));
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

HWY_EXPORT(pack_keys);
HWY_EXPORT(words_per_key);
HWY_EXPORT(pack_panels);
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

namespace {

// Words of the packed keys, of the centroids and of their panels or sums, each to whole cache lines.
struct KmeansWords {
  size_t keys, centroids, panels;
};
KmeansWords kmeans_words(int32_t tokens, int32_t centroids, int32_t head_dim) {
  const size_t padded = (static_cast<size_t>(centroids) + kPanelMost - 1) / kPanelMost * kPanelMost;
  const size_t dim = static_cast<size_t>(head_dim);
  const auto rounded = [](size_t words) { return (words + 15) / 16 * 16; };
  return {.keys = rounded(static_cast<size_t>(kmeans_padded_tokens(tokens)) * ((dim + 1) / 2 + 1)),
          .centroids = rounded(padded * dim),
          .panels = rounded(padded * dim)};
}

}  // namespace

size_t kmeans_scratch_floats(int32_t tokens, int32_t centroids, int32_t head_dim) {
  const KmeansWords words = kmeans_words(tokens, centroids, head_dim);
  return words.keys + words.centroids + words.panels;
}

namespace {

constexpr int64_t kPiecePack = 1 << 14;      // numbers of keys that a piece packs
constexpr int64_t kPieceProducts = 1 << 22;  // products that a piece takes

// A piece's share of all keys, in whole tiles.
int32_t packing_pieces(const KmeansArgs& args) {
  return static_cast<int32_t>(kmeans_padded_tokens(args.tokens) * args.head_dim / kPiecePack) + 1;
}
// No more than all iterations' can be counted.
int32_t assigning_pieces(const KmeansArgs& args) {
  const int64_t pieces = int64_t{args.tokens} * args.centroids * args.head_dim / kPieceProducts;
  return static_cast<int32_t>(std::min<int64_t>(pieces, INT32_MAX / 4 / std::max(args.iterations, 1))) + 1;
}
int32_t tile_border(const KmeansArgs& args, int32_t piece, int32_t pieces) {
  const int64_t tiles = kmeans_padded_tokens(args.tokens) / kTileKeysMost;
  return static_cast<int32_t>(tiles * piece / pieces * kTileKeysMost);
}

}  // namespace

// Packing; then for each iteration the centroids and the assignment.
int32_t kmeans_pieces(const KmeansArgs& args) {
  return packing_pieces(args) + args.iterations * (1 + assigning_pieces(args));
}

void kmeans_piece(const KmeansArgs& args, int32_t piece, KmeansProgress& progress) {
  const int64_t dim = args.head_dim;
  const KmeansWords words = kmeans_words(args.tokens, args.centroids, args.head_dim);
  int32_t* keys = reinterpret_cast<int32_t*>(args.scratch);
  float* centroids = args.scratch + words.keys;
  float* sums = centroids + words.centroids;
  int32_t* panels = reinterpret_cast<int32_t*>(sums);
  const int32_t packing = packing_pieces(args), assigning = assigning_pieces(args);
  if (piece < packing) {
    const int64_t first = tile_border(args, piece, packing), end = tile_border(args, piece + 1, packing);
    const auto row = static_cast<int64_t>(HWY_DYNAMIC_DISPATCH(words_per_key)(args.head_dim));
    HWY_DYNAMIC_DISPATCH(pack_keys)(args.units + first * dim, end - first, args.head_dim, keys + first * row);
    progress = {};
    return;
  }
  if (progress.settled) return;
  const int32_t iteration = (piece - packing) / (1 + assigning), part = (piece - packing) % (1 + assigning);
  if (part == 0) {
    if (iteration > 0) {
      HWY_DYNAMIC_DISPATCH(update)(args, sums, centroids);
    } else {
      for (int64_t c = 0; c < args.centroids; c++)
        std::copy_n(args.units + c * args.tokens / args.centroids * dim, dim, centroids + c * dim);
      std::fill_n(args.assignment, args.tokens, -1);
    }
    HWY_DYNAMIC_DISPATCH(pack_panels)(centroids, args.centroids, args.head_dim, panels);
    progress.moved = 0;
    return;
  }
  const int32_t end = std::min(tile_border(args, part, assigning), args.tokens);
  progress.moved +=
      HWY_DYNAMIC_DISPATCH(assign)(args, keys, panels, tile_border(args, part - 1, assigning), end);
  progress.settled = part == assigning && progress.moved == 0;
}

int32_t split_cluster(const float* keys, int32_t head_dim, int32_t* members, int32_t count,
                      int32_t max_tokens, float* projections, int32_t* sizes) {
  std::sort(members, members + count);
  if (count <= max_tokens) {
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
  // The token with number t projects to projections[its place among the members].
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
