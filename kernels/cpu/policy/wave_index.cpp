// Builds the wave index of one (layer, KV head) of a segment (RetroInfer §4.2): clusters the keys, sets those
// apart that no cluster suits, lays keys and values out cluster by cluster, and writes each cluster's
// centroid, value mean, size, radius, spread and axis. Runs on one worker; heads run side by side. Numbers
// that are not finite count as 0 here, so that one bad key spoils no centroid; exact attention still sees
// them.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/policy/wave.h"
#include "kernels/cpu/policy/wave_cluster.h"

namespace wi::cpu {
namespace {

// One of several parts of a stage: of so many things each takes its range.
struct Part {
  int32_t number = 0, of = 1;
  int32_t begin(int32_t count) const { return static_cast<int32_t>(int64_t{count} * number / of); }
  int32_t end(int32_t count) const { return static_cast<int32_t>(int64_t{count} * (number + 1) / of); }
  bool last() const { return number + 1 == of; }
};

// What pieces hand on to the next.
struct Progress {
  KmeansProgress kmeans;
  int32_t clusters;  // so far
  int32_t members;   // of the clusters that a stage has been through
};

// The build's working memory: a view of the state that pieces share.
struct Work {
  Work(std::byte* state, const IndexArgs& args);
  static size_t bytes(const IndexArgs& args);

  Progress* progress;
  float* keys;          // (tokens, head_dim)
  float* units;         // (padded tokens, head_dim), later values (tokens, head_dim)
  float* kmeans;        // k-means' own
  float* row;           // (head_dim)
  float* centre;        // (head_dim) mean of the keys
  float* axis;          // (2 · head_dim)
  float* projections;   // (2 · tokens)
  int32_t* assignment;  // (tokens) of k-means
  int32_t* begins;      // (clusters) of each cluster's members, once assignment has served
  int32_t* members;     // (tokens) token numbers, cluster by cluster
  int32_t* ends;        // (centroids) end of each centroid's members
  int32_t* sizes;       // (tokens) of the final clusters

 private:
  static constexpr size_t kArrays = 11;
  static std::array<size_t, kArrays> words(const IndexArgs& args);
};

KmeansArgs kmeans_sizes(const IndexArgs& args);

// The stages, in order.
void load_keys(const IndexArgs& args, const Work& work, Part part);
void normalise_keys(const IndexArgs& args, const Work& work, Part part);
void cluster_keys(const IndexArgs& args, const Work& work, Part part);
void group_members(const IndexArgs& args, const Work& work, Part part);
void split_large(const IndexArgs& args, const Work& work, Part part);
void measure_distances(const IndexArgs& args, const Work& work, Part part);
void set_apart(const IndexArgs& args, const Work& work, Part part);
void lay_out(const IndexArgs& args, const Work& work, Part part);
void describe_keys(const IndexArgs& args, const Work& work, Part part);
void load_values(const IndexArgs& args, const Work& work, Part part);
void describe_values(const IndexArgs& args, const Work& work, Part part);

void keep_members(const IndexArgs& args, const Work& work, const SegmentView& whole, int32_t* stored);

struct Stage {
  void (*run)(const IndexArgs& args, const Work& work, Part part);
  int32_t parts;
};
// Parts of a stage are such that at 1,024 tokens one takes a tenth of a millisecond or less.
std::array<Stage, 11> stages_of(const IndexArgs& args) {
  const auto parts = [&](int32_t numbers) {
    return static_cast<int32_t>(int64_t{args.tokens} * args.head_dim / numbers) + 1;
  };
  return {{{load_keys, parts(1 << 14)},
           {normalise_keys, parts(1 << 14)},
           {cluster_keys, kmeans_pieces(kmeans_sizes(args))},
           {group_members, 1},
           {split_large, parts(1 << 13)},
           {measure_distances, parts(1 << 13)},
           {set_apart, 1},
           {lay_out, parts(1 << 15)},
           {describe_keys, parts(1 << 11)},
           {load_values, parts(1 << 14)},
           {describe_values, parts(1 << 13)}}};
}

int32_t count_pieces(const IndexArgs& args) {
  int32_t count = 0;
  for (const Stage& stage : stages_of(args)) count += stage.parts;
  return args.tokens ? count : 1;
}

IndexResult result_of(const IndexArgs& args, const Work& work) {
  return {.partitions = work.progress->clusters,
          .index_bytes = static_cast<const WaveHeader*>(args.index)->bytes};
}

IndexResult run_piece(const IndexArgs& args, std::byte* state, int32_t piece) {
  if (args.tokens == 0) return {};
  const Work work(state, args);
  const auto stages = stages_of(args);
  size_t stage = 0;
  while (piece >= stages[stage].parts) piece -= stages[stage++].parts;
  const Part part = {.number = piece, .of = stages[stage].parts};
  stages[stage].run(args, work, part);
  return stage + 1 == stages.size() && part.last() ? result_of(args, work) : IndexResult{};
}

}  // namespace

constinit const IndexPieces wave_index_pieces = {
    .count = count_pieces,
    .state_bytes = Work::bytes,
    .run = run_piece,
};

IndexResult wave_index(const Stream& stream, int worker, const IndexArgs& args) {
  std::byte* state = stream.worker_array<std::byte>(worker, Work::bytes(args));
  const int32_t pieces = count_pieces(args);
  IndexResult result;
  for (int32_t piece = 0; piece < pieces && !stream.cancelled(); piece++)
    result = run_piece(args, state, piece);
  return result;
}

IndexResult wave_cut(const Stream& stream, int worker, const IndexArgs& args, const SegmentView& whole) {
  if (args.tokens == 0) return {};
  const size_t bytes = Work::bytes(args), all = static_cast<size_t>(whole.tokens);
  std::byte* state = stream.worker_array<std::byte>(worker, bytes + all * sizeof(int32_t));
  const Work work(state, args);
  load_keys(args, work, {});
  keep_members(args, work, whole, reinterpret_cast<int32_t*>(state + bytes));
  lay_out(args, work, {});
  describe_keys(args, work, {});
  load_values(args, work, {});
  describe_values(args, work, {});
  return result_of(args, work);
}

size_t wave_index_capacity(const PolicyParams& params, int32_t tokens, int32_t head_dim, DType kv) {
  return wave_header(wave_most_clusters(params, tokens), tokens, head_dim, kv).bytes;
}

namespace {

std::array<size_t, Work::kArrays> Work::words(const IndexArgs& args) {
  const size_t tokens = static_cast<size_t>(args.tokens);
  const size_t dim = static_cast<size_t>(args.head_dim);
  const int32_t centroids = wave_centroid_count(*args.params, args.tokens);
  const size_t unit_floats = static_cast<size_t>(kmeans_padded_tokens(args.tokens)) * dim;
  const size_t kmeans_floats = kmeans_scratch_floats(args.tokens, centroids, args.head_dim);
  std::array<size_t, kArrays> sizes = {
      tokens * dim, unit_floats, kmeans_floats, dim,    dim,
      2 * dim,      2 * tokens,  tokens,        tokens, static_cast<size_t>(centroids),
      tokens};
  for (size_t& size : sizes) size = (size + 15) / 16 * 16;  // 64 bytes
  return sizes;
}

constexpr size_t kProgressBytes = 64;
static_assert(sizeof(Progress) <= kProgressBytes);

size_t Work::bytes(const IndexArgs& args) {
  size_t total = 0;
  for (size_t size : words(args)) total += size;
  return kProgressBytes + total * sizeof(float);
}

Work::Work(std::byte* state, const IndexArgs& args) {
  progress = reinterpret_cast<Progress*>(state);
  size_t at = kProgressBytes, i = 0;
  const std::array<size_t, kArrays> counts = words(args);
  float** const floats[] = {&keys, &units, &kmeans, &row, &centre, &axis, &projections};
  int32_t** const ints[] = {&assignment, &members, &ends, &this->sizes};
  for (float** array : floats)
    *array = reinterpret_cast<float*>(state + at), at += counts[i++] * sizeof(float);
  for (int32_t** array : ints)
    *array = reinterpret_cast<int32_t*>(state + at), at += counts[i++] * sizeof(float);
  begins = assignment;
}

KmeansArgs kmeans_sizes(const IndexArgs& args) {
  KmeansArgs sizes = {};
  sizes.tokens = args.tokens;
  sizes.head_dim = args.head_dim;
  sizes.centroids = wave_centroid_count(*args.params, args.tokens);
  sizes.iterations = std::max(1, args.params->kmeans_iterations);
  return sizes;
}

// Keys or values of the part's tokens as f32.
void load(const IndexArgs& args, bool want_values, Part part, float* out) {
  const int64_t first = part.begin(args.tokens), end = part.end(args.tokens);
  const size_t row = row_bytes(args.kv, args.head_dim);
  int64_t run_first = 0;
  for (int32_t i = 0; i < args.run_count; run_first += args.runs[i++].tokens) {
    const KvRun& run = args.runs[i];
    const int64_t from = std::max(first, run_first), to = std::min(end, run_first + run.tokens);
    if (from >= to) continue;
    const std::byte* rows = static_cast<const std::byte*>(want_values ? run.values : run.keys);
    float* numbers = out + from * args.head_dim;
    const int64_t count = (to - from) * args.head_dim;
    from_kv(rows + static_cast<size_t>(from - run_first) * row, args.kv, numbers, count);
    for (int64_t j = 0; j < count; j++) numbers[j] = std::isfinite(numbers[j]) ? numbers[j] : 0;
  }
}

// And their mean, the segment's centre.
void load_keys(const IndexArgs& args, const Work& work, Part part) {
  load(args, false, part, work.keys);
  const int32_t dim = args.head_dim;
  const float share = 1.0f / static_cast<float>(args.tokens);
  if (part.number == 0) std::fill_n(work.centre, dim, 0.0f);
  for (int64_t t = part.begin(args.tokens); t < part.end(args.tokens); t++)
    for (int32_t i = 0; i < dim; i++) work.centre[i] += work.keys[t * dim + i] * share;
}

void load_values(const IndexArgs& args, const Work& work, Part part) { load(args, true, part, work.units); }

// units: keys minus the segment's mean, scaled to length 1 (0 stays 0); rows beyond the tokens are 0.
void normalise_keys(const IndexArgs& args, const Work& work, Part part) {
  const int32_t dim = args.head_dim;
  for (int64_t t = part.begin(args.tokens); t < part.end(args.tokens); t++) {
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
  if (!part.last()) return;
  const int64_t padding = (kmeans_padded_tokens(args.tokens) - args.tokens) * dim;
  std::fill_n(work.units + static_cast<int64_t>(args.tokens) * dim, padding, 0.0f);
}

void cluster_keys(const IndexArgs& args, const Work& work, Part part) {
  KmeansArgs kmeans = kmeans_sizes(args);
  kmeans.units = work.units;
  kmeans.scratch = work.kmeans;
  kmeans.assignment = work.assignment;
  kmeans_piece(kmeans, part.number, work.progress->kmeans);
}

// Counting sort: members by centroid, by position within one.
void group_members(const IndexArgs& args, const Work& work, Part) {
  const int32_t centroids = wave_centroid_count(*args.params, args.tokens);
  std::fill_n(work.ends, centroids, 0);
  for (int32_t t = 0; t < args.tokens; t++) work.ends[work.assignment[t]]++;
  std::exclusive_scan(work.ends, work.ends + centroids, work.ends, 0);
  for (int32_t t = 0; t < args.tokens; t++) work.members[work.ends[work.assignment[t]]++] = t;
}

// Leaves out empty clusters, splits large ones and writes the final sizes.
void split_large(const IndexArgs& args, const Work& work, Part part) {
  const int32_t centroids = wave_centroid_count(*args.params, args.tokens);
  const int32_t most = std::max(1, args.params->max_cluster_tokens);
  int32_t& clusters = work.progress->clusters;
  if (part.number == 0) clusters = 0;
  for (int32_t c = part.begin(centroids); c < part.end(centroids); c++) {
    const int32_t begin = c ? work.ends[c - 1] : 0, count = work.ends[c] - begin;
    if (count == 0) continue;
    clusters += split_cluster(work.keys, args.head_dim, work.members + begin, count, most, work.projections,
                              work.sizes + clusters);
  }
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

// Of each key from its cluster's mean; distances: (tokens), in the order of members.
void measure_distances(const IndexArgs& args, const Work& work, Part part) {
  const int32_t dim = args.head_dim;
  constexpr float kMost = std::numeric_limits<float>::max();
  float* distances = work.projections;
  const int32_t clusters = work.progress->clusters;
  int32_t& m = work.progress->members;
  if (part.number == 0) m = 0;
  for (int32_t c = part.begin(clusters); c < part.end(clusters); c++) {
    mean_row(work.keys, work.members + m, work.sizes[c], dim, work.row);
    for (const int32_t end = m + work.sizes[c]; m < end; m++) {
      const float distance =
          squared_distance(work.keys + static_cast<int64_t>(work.members[m]) * dim, work.row, dim);
      distances[m] = distance < kMost ? distance : kMost;
    }
  }
}

// The keys that lie farthest from their clusters' means become clusters of their own, behind all others and
// by position.
void set_apart(const IndexArgs& args, const Work& work, Part) {
  float* distances = work.projections;
  int32_t* order = reinterpret_cast<int32_t*>(work.projections + args.tokens);
  const int32_t clusters = work.progress->clusters;
  const int32_t lone = wave_lone_count(*args.params, args.tokens);
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
  work.progress->clusters = kept_clusters + lone;
}

// The clusters of a longer segment as far as the tokens go; those that have none left are left out.
// stored: scratch (whole.tokens)
void keep_members(const IndexArgs& args, const Work& work, const SegmentView& whole, int32_t* stored) {
  std::fill_n(stored, whole.tokens, -1);
  for (int32_t token = 0; token < args.tokens; token++) stored[whole.places[token]] = token;
  int32_t kept = 0, clusters = 0;
  for (int32_t c = 0; c < whole.partitions; c++) {
    const int32_t first = kept;
    for (int32_t i = whole.offsets[c]; i < whole.offsets[c + 1]; i++)
      if (stored[i] >= 0) work.members[kept++] = stored[i];
    if (kept > first) work.sizes[clusters++] = kept - first;
  }
  work.progress->clusters = clusters;
}

void lay_out(const IndexArgs& args, const Work& work, Part part) {
  const size_t row = row_bytes(args.kv, args.head_dim);
  std::byte* keys = static_cast<std::byte*>(args.keys);
  std::byte* values = static_cast<std::byte*>(args.values);
  // Members jump between runs, but runs are few: walk on from the last one.
  int32_t run = -1;
  int64_t begin = 0, end = 0;  // tokens of the run
  for (int32_t i = part.begin(args.tokens); i < part.end(args.tokens); i++) {
    const int64_t token = work.members[i];
    if (token < begin) run = -1, begin = end = 0;
    while (token >= end) begin = end, end += args.runs[++run].tokens;
    const size_t from = static_cast<size_t>(token - begin) * row;
    std::memcpy(keys + i * row, static_cast<const std::byte*>(args.runs[run].keys) + from, row);
    std::memcpy(values + i * row, static_cast<const std::byte*>(args.runs[run].values) + from, row);
    args.places[token] = i;
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

// Writes the index: header, then each cluster's row of every array but that of the values.
void describe_keys(const IndexArgs& args, const Work& work, Part part) {
  const int32_t dim = args.head_dim, clusters = work.progress->clusters;
  const size_t row = row_bytes(args.kv, dim);
  const WaveHeader header = wave_header(clusters, args.tokens, dim, args.kv);
  std::byte* base = static_cast<std::byte*>(args.index);
  int32_t* sizes = reinterpret_cast<int32_t*>(base + header.sizes);
  uint32_t* extents = reinterpret_cast<uint32_t*>(base + header.extents);
  float* residuals = reinterpret_cast<float*>(base + header.residuals);
  if (part.number == 0) {
    std::memcpy(args.index, &header, sizeof(header));
    std::copy_n(work.centre, dim, reinterpret_cast<float*>(base + header.centre));
    std::exclusive_scan(work.sizes, work.sizes + clusters, work.begins, 0);
  }
  for (int32_t c = part.begin(clusters); c < part.end(clusters); c++) {
    const int32_t* members = work.members + work.begins[c];
    sizes[c] = work.sizes[c];
    mean_row(work.keys, members, sizes[c], dim, work.row);
    store_centroid(base, header, c, work.row);
    const Distances distances = distances_of(work.keys, members, sizes[c], dim, work.row);
    // The radius holds for the rounding of the sum, too.
    extents[c] = wave_extent(std::sqrt(distances.most) * 1.00001f,
                             std::sqrt(distances.sum / static_cast<float>(sizes[c])));
    residuals[c] = axis_of(work.keys, members, sizes[c], dim, work.row, distances, work.axis);
    to_kv(work.axis, args.kv, base + header.axes + static_cast<size_t>(c) * row, dim);
  }
}

void describe_values(const IndexArgs& args, const Work& work, Part part) {
  const WaveIndex index = wave_view(args.index);
  std::byte* means = const_cast<std::byte*>(index.value_means);
  const size_t row = row_bytes(args.kv, args.head_dim);
  for (int32_t c = part.begin(index.clusters); c < part.end(index.clusters); c++) {
    mean_row(work.units, work.members + work.begins[c], index.sizes[c], args.head_dim, work.row);
    to_kv(work.row, args.kv, means + static_cast<size_t>(c) * row, args.head_dim);
  }
}

}  // namespace
}  // namespace wi::cpu
