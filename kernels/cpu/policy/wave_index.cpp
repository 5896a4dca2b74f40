// Builds the wave index of one (layer, KV head) of a segment (RetroInfer §4.2): clusters the keys, sets those
// apart that no cluster suits, lays keys and values out cluster by cluster, and writes each cluster's
// centroid, value mean, size, radius, spread and axis. Runs on one worker; heads run side by side. Numbers
// that are not finite count as 0 here, so that one bad key spoils no centroid; exact attention still sees
// them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/policy/wave.h"
#include "kernels/cpu/policy/wave_cluster.h"

namespace wi::cpu {
namespace {

// The build's working memory, one piece of the worker's scratch.
struct Work {
  Work(const Stream& stream, int worker, const IndexArgs& args);

  float* keys;          // (tokens, head_dim)
  float* units;         // (padded tokens, head_dim), later values (tokens, head_dim)
  float* kmeans;        // k-means' own
  float* row;           // (head_dim)
  float* centre;        // (head_dim) mean of the keys
  float* axis;          // (2 · head_dim)
  float* projections;   // (2 · tokens)
  int32_t* assignment;  // (tokens)
  int32_t* members;     // (tokens) token numbers, cluster by cluster
  int32_t* ends;        // (centroids) end of each centroid's members
  int32_t* sizes;       // (tokens) of the final clusters
};

// Of a segment, but for what splits large ones: those of k-means and the lone keys.
int32_t cluster_count(const PolicyParams& params, int32_t tokens) {
  const int32_t per_centroid = std::max(1, params.tokens_per_centroid);
  return std::max(1, tokens / per_centroid + (tokens % per_centroid != 0));
}
int32_t lone_count(const PolicyParams& params, int32_t tokens) {
  return cluster_count(params, tokens) / kWaveLoneShare;
}
int32_t centroid_count(const PolicyParams& params, int32_t tokens) {
  return cluster_count(params, tokens) - lone_count(params, tokens);
}

void load(const IndexArgs& args, bool want_values, float* out);
void centre_and_normalise(const IndexArgs& args, const Work& work);
void group_members(const IndexArgs& args, const Work& work);
int32_t split_large(const IndexArgs& args, const Work& work);
int32_t set_apart(const IndexArgs& args, const Work& work, int32_t clusters);
void lay_out(const IndexArgs& args, const int32_t* members);
void describe(const IndexArgs& args, const Work& work, int32_t clusters);

}  // namespace

IndexResult wave_index(const Stream& stream, int worker, const IndexArgs& args) {
  if (args.tokens == 0) return {};
  const Work work(stream, worker, args);
  load(args, false, work.keys);
  centre_and_normalise(args, work);
  spherical_kmeans(stream, {.units = work.units,
                            .tokens = args.tokens,
                            .head_dim = args.head_dim,
                            .centroids = centroid_count(*args.params, args.tokens),
                            .iterations = std::max(1, args.params->kmeans_iterations),
                            .scratch = work.kmeans,
                            .assignment = work.assignment});
  group_members(args, work);
  const int32_t clusters = set_apart(args, work, split_large(args, work));
  lay_out(args, work.members);
  describe(args, work, clusters);
  return {.partitions = clusters, .index_bytes = static_cast<const WaveHeader*>(args.index)->bytes};
}

// A split piece has at least half of max_cluster_tokens tokens, which bounds their number.
size_t wave_index_capacity(const PolicyParams& params, int32_t tokens, int32_t head_dim, DType kv) {
  const int32_t smallest_piece = std::max(1, (params.max_cluster_tokens + 1) / 2);
  const int64_t most = int64_t{cluster_count(params, tokens)} + tokens / smallest_piece;
  return wave_header(static_cast<int32_t>(std::min<int64_t>(most, tokens)), tokens, head_dim, kv).bytes;
}

namespace {

Work::Work(const Stream& stream, int worker, const IndexArgs& args) {
  const size_t tokens = static_cast<size_t>(args.tokens);
  const size_t dim = static_cast<size_t>(args.head_dim);
  const int32_t centroids = centroid_count(*args.params, args.tokens);
  const size_t unit_floats = static_cast<size_t>(kmeans_padded_tokens(args.tokens)) * dim;
  const size_t kmeans_floats = kmeans_scratch_floats(args.tokens, centroids, args.head_dim);
  const auto rounded = [](size_t count) { return (count + 15) / 16 * 16; };  // 64 bytes
  const size_t sizes_of[] = {tokens * dim, unit_floats, kmeans_floats, dim,    dim,
                             2 * dim,      2 * tokens,  tokens,        tokens, static_cast<size_t>(centroids),
                             tokens};
  size_t total = 0;
  for (size_t count : sizes_of) total += rounded(count);
  float* at = stream.worker_array<float>(worker, total);
  float** const floats[] = {&keys, &units, &kmeans, &row, &centre, &axis, &projections};
  int32_t** const ints[] = {&assignment, &members, &ends, &sizes};
  size_t i = 0;
  for (float** array : floats) *array = at, at += rounded(sizes_of[i++]);
  for (int32_t** array : ints) *array = reinterpret_cast<int32_t*>(at), at += rounded(sizes_of[i++]);
}

void load(const IndexArgs& args, bool want_values, float* out) {
  for (int32_t i = 0; i < args.run_count; i++) {
    const KvRun& run = args.runs[i];
    const int64_t count = run.tokens * args.head_dim;
    from_kv(want_values ? run.values : run.keys, args.kv, out, count);
    for (int64_t j = 0; j < count; j++) out[j] = std::isfinite(out[j]) ? out[j] : 0;
    out += count;
  }
}

// units: keys minus the segment's mean, scaled to length 1 (0 stays 0); rows beyond the tokens are 0.
void centre_and_normalise(const IndexArgs& args, const Work& work) {
  const int32_t dim = args.head_dim;
  const float share = 1.0f / static_cast<float>(args.tokens);
  std::fill_n(work.centre, dim, 0.0f);
  for (int64_t t = 0; t < args.tokens; t++)
    for (int32_t i = 0; i < dim; i++) work.centre[i] += work.keys[t * dim + i] * share;
  for (int64_t t = 0; t < args.tokens; t++) {
    const float* key = work.keys + t * dim;
    float* unit = work.units + t * dim;
    float squares = 0;
    for (int32_t i = 0; i < dim; i++) {
      unit[i] = key[i] - work.centre[i];
      squares += unit[i] * unit[i];
    }
    const float inverse = squares > 1e-30f && std::isfinite(squares) ? 1 / std::sqrt(squares) : 0;
    for (int32_t i = 0; i < dim; i++) unit[i] *= inverse;
  }
  const int64_t padding = (kmeans_padded_tokens(args.tokens) - args.tokens) * dim;
  std::fill_n(work.units + static_cast<int64_t>(args.tokens) * dim, padding, 0.0f);
}

// Counting sort: members by centroid, by position within one.
void group_members(const IndexArgs& args, const Work& work) {
  const int32_t centroids = centroid_count(*args.params, args.tokens);
  std::fill_n(work.ends, centroids, 0);
  for (int32_t t = 0; t < args.tokens; t++) work.ends[work.assignment[t]]++;
  std::exclusive_scan(work.ends, work.ends + centroids, work.ends, 0);
  for (int32_t t = 0; t < args.tokens; t++) work.members[work.ends[work.assignment[t]]++] = t;
}

// Leaves out empty clusters, splits large ones and writes the final sizes; returns their count.
int32_t split_large(const IndexArgs& args, const Work& work) {
  const int32_t centroids = centroid_count(*args.params, args.tokens);
  const int32_t most = std::max(1, args.params->max_cluster_tokens);
  int32_t clusters = 0;
  for (int32_t c = 0, begin = 0; c < centroids; begin = work.ends[c++]) {
    const int32_t count = work.ends[c] - begin;
    if (count == 0) continue;
    clusters += split_cluster(work.keys, args.head_dim, work.members + begin, count, most, work.projections,
                              work.sizes + clusters);
  }
  return clusters;
}

void mean_row(const float* rows, const int32_t* members, int32_t count, int32_t dim, float* mean) {
  const float share = 1.0f / static_cast<float>(count);
  std::fill_n(mean, dim, 0.0f);
  for (int32_t m = 0; m < count; m++) {
    const float* row = rows + static_cast<int64_t>(members[m]) * dim;
    for (int32_t i = 0; i < dim; i++) mean[i] += row[i] * share;
  }
}

float squared_distance(const float* a, const float* b, int32_t dim) {
  float squares = 0;
  for (int32_t i = 0; i < dim; i++) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return squares;
}

// The keys that lie farthest from their clusters' means become clusters of their own, behind all others and
// by position; returns the clusters' new count.
int32_t set_apart(const IndexArgs& args, const Work& work, int32_t clusters) {
  const int32_t dim = args.head_dim;
  constexpr float kMost = std::numeric_limits<float>::max();
  float* distances = work.projections;  // (tokens), in the order of members
  int32_t* order = reinterpret_cast<int32_t*>(work.projections + args.tokens);
  for (int32_t c = 0, m = 0; c < clusters; c++) {
    mean_row(work.keys, work.members + m, work.sizes[c], dim, work.row);
    for (const int32_t end = m + work.sizes[c]; m < end; m++) {
      const float distance =
          squared_distance(work.keys + static_cast<int64_t>(work.members[m]) * dim, work.row, dim);
      distances[m] = distance < kMost ? distance : kMost;
    }
  }
  const int32_t lone = lone_count(*args.params, args.tokens);
  std::iota(order, order + args.tokens, 0);
  std::nth_element(order, order + lone, order + args.tokens, [&](int32_t a, int32_t b) {
    return distances[a] != distances[b] ? distances[a] > distances[b] : a < b;
  });
  for (int32_t i = 0; i < lone; i++) {
    const int32_t token = work.members[order[i]];
    distances[order[i]] = -1;
    order[i] = token;
  }
  std::sort(order, order + lone);

  int32_t kept = 0, kept_clusters = 0;  // what stays moves up
  for (int32_t c = 0, m = 0; c < clusters; c++) {
    const int32_t first = kept;
    for (const int32_t end = m + work.sizes[c]; m < end; m++)
      if (distances[m] >= 0) work.members[kept++] = work.members[m];
    if (kept > first) work.sizes[kept_clusters++] = kept - first;
  }
  std::copy_n(order, lone, work.members + kept);
  std::fill_n(work.sizes + kept_clusters, lone, 1);
  return kept_clusters + lone;
}

void lay_out(const IndexArgs& args, const int32_t* members) {
  const size_t row = row_bytes(args.kv, args.head_dim);
  std::byte* keys = static_cast<std::byte*>(args.keys);
  std::byte* values = static_cast<std::byte*>(args.values);
  // Members jump between runs, but runs are few: walk on from the last one.
  int32_t run = -1;
  int64_t begin = 0, end = 0;  // tokens of the run
  for (int32_t i = 0; i < args.tokens; i++) {
    const int64_t token = members[i];
    if (token < begin) run = -1, begin = end = 0;
    while (token >= end) begin = end, end += args.runs[++run].tokens;
    const size_t from = static_cast<size_t>(token - begin) * row;
    std::memcpy(keys + i * row, static_cast<const std::byte*>(args.runs[run].keys) + from, row);
    std::memcpy(values + i * row, static_cast<const std::byte*>(args.runs[run].values) + from, row);
    args.positions[i] = args.first_position + static_cast<int32_t>(token);
  }
}

// Of a cluster's keys from the centroid as stored.
struct Distances {
  float most, sum;   // squared
  int32_t farthest;  // token
};
Distances distances_of(const float* keys, const int32_t* members, int32_t count, int32_t dim,
                       const float* centroid) {
  Distances out = {.most = -1, .sum = 0, .farthest = members[0]};
  for (int32_t m = 0; m < count; m++) {
    const float squares = squared_distance(keys + static_cast<int64_t>(members[m]) * dim, centroid, dim);
    if (squares > out.most) out.most = squares, out.farthest = members[m];
    out.sum += squares;
  }
  return out;
}

// sum = Σ over members of the deviation from the centroid times its product with v; returns the sum of the
// squared products.
float spread_along(const float* keys, const int32_t* members, int32_t count, int32_t dim,
                   const float* centroid, const float* v, float* sum) {
  float squares = 0;
  std::fill_n(sum, dim, 0.0f);
  for (int32_t m = 0; m < count; m++) {
    const float* key = keys + static_cast<int64_t>(members[m]) * dim;
    float along = 0;
    for (int32_t i = 0; i < dim; i++) along += (key[i] - centroid[i]) * v[i];
    for (int32_t i = 0; i < dim; i++) sum[i] += (key[i] - centroid[i]) * along;
    squares += along * along;
  }
  return squares;
}

// Makes v a unit vector; false if it is too short or too long to have a direction.
bool normalise(float* v, int32_t dim) {
  float squares = 0;
  for (int32_t i = 0; i < dim; i++) squares += v[i] * v[i];
  if (!(squares > 1e-30f && squares < 1e30f)) return false;
  const float inverse = 1 / std::sqrt(squares);
  for (int32_t i = 0; i < dim; i++) v[i] *= inverse;
  return true;
}

// The axis in which a cluster's keys vary most, one deviation long, to axis (2 · head_dim; the first half
// counts), by a few steps of the power method from the farthest key's direction: a rough axis does. Returns
// the deviation in every other direction, were it the same in all.
float axis_of(const float* keys, const int32_t* members, int32_t count, int32_t dim, const float* centroid,
              const Distances& distances, float* axis) {
  float* next = axis + dim;
  const float* key = keys + static_cast<int64_t>(distances.farthest) * dim;
  for (int32_t i = 0; i < dim; i++) axis[i] = key[i] - centroid[i];
  bool found = normalise(axis, dim);
  for (int step = 0; step < 3 && found; step++) {
    spread_along(keys, members, count, dim, centroid, axis, next);
    if (!(found = normalise(next, dim))) break;
    std::copy_n(next, dim, axis);
  }
  const float share = 1 / static_cast<float>(count);
  const float along = found ? spread_along(keys, members, count, dim, centroid, axis, next) : 0;
  const float deviation = std::min(std::sqrt(along * share), 6e4f);  // f16 must hold it
  for (int32_t i = 0; i < dim; i++) axis[i] = found ? axis[i] * deviation : 0;
  const float rest = std::max(distances.sum - along, 0.0f) * share / static_cast<float>(dim);
  return std::min(std::sqrt(rest), kWaveMostExtent);
}

// Rounds the mean of a cluster's keys into its column of its tile; mean becomes what is stored.
void store_centroid(std::byte* base, const WaveHeader& header, int32_t cluster, float* mean) {
  constexpr float kMost = std::numeric_limits<float>::max();
  const int32_t dim = header.head_dim;
  const float* centre = reinterpret_cast<const float*>(base + header.centre);
  uint8_t* codes = reinterpret_cast<uint8_t*>(base + header.codes);
  float largest = 0;
  for (int32_t i = 0; i < dim; i++)
    largest = std::max(largest, std::min(std::abs(mean[i] - centre[i]), kMost));
  const float scale = largest / 127;
  const float inverse = scale > 1e-30f ? 1 / scale : 0;
  reinterpret_cast<float*>(base + header.scales)[cluster] = scale;
  for (int32_t i = 0; i < dim; i++) {
    const float code = std::round(std::clamp((mean[i] - centre[i]) * inverse, -127.0f, 127.0f));
    codes[wave_code(cluster, i, dim)] = static_cast<uint8_t>(static_cast<int32_t>(code) + 128);
    mean[i] = centre[i] + scale * code;
  }
}

// Writes the index: header, then each cluster's row of every array.
void describe(const IndexArgs& args, const Work& work, int32_t clusters) {
  const int32_t dim = args.head_dim;
  const size_t row = row_bytes(args.kv, dim);
  const WaveHeader header = wave_header(clusters, args.tokens, dim, args.kv);
  std::memcpy(args.index, &header, sizeof(header));
  std::byte* base = static_cast<std::byte*>(args.index);
  int32_t* sizes = reinterpret_cast<int32_t*>(base + header.sizes);
  uint32_t* extents = reinterpret_cast<uint32_t*>(base + header.extents);
  float* residuals = reinterpret_cast<float*>(base + header.residuals);
  int32_t* offsets = reinterpret_cast<int32_t*>(base + header.offsets);
  std::copy_n(work.centre, dim, reinterpret_cast<float*>(base + header.centre));
  offsets[0] = 0;
  for (int32_t c = 0; c < clusters; c++) {
    const int32_t* members = work.members + offsets[c];
    sizes[c] = work.sizes[c];
    offsets[c + 1] = offsets[c] + sizes[c];
    mean_row(work.keys, members, sizes[c], dim, work.row);
    store_centroid(base, header, c, work.row);
    const Distances distances = distances_of(work.keys, members, sizes[c], dim, work.row);
    // The radius holds for the rounding of the sum, too.
    extents[c] = wave_extent(std::sqrt(distances.most) * 1.00001f,
                             std::sqrt(distances.sum / static_cast<float>(sizes[c])));
    residuals[c] = axis_of(work.keys, members, sizes[c], dim, work.row, distances, work.axis);
    to_kv(work.axis, args.kv, base + header.axes + static_cast<size_t>(c) * row, dim);
  }
  float* values = work.units;
  load(args, true, values);
  for (int32_t c = 0; c < clusters; c++) {
    mean_row(values, work.members + offsets[c], sizes[c], dim, work.row);
    to_kv(work.row, args.kv, base + header.value_means + c * row, dim);
  }
}

}  // namespace
}  // namespace wi::cpu
