// The wave index: what it holds for every distribution of keys, that it is the same each time, and that
// its reader refuses damaged bytes.
#include <algorithm>
#include <numeric>

#include "kernels/cpu/policy/wave.h"
#include "lookups.h"
#include "test.h"
#include "tests/support/fewer.h"

namespace {

using namespace wi;
using namespace wi::test;

// The mean square of the deviations' products with v, of length 1.
double variance_along(const std::vector<std::vector<double>>& deviations, const std::vector<double>& v) {
  double sum = 0;
  for (const std::vector<double>& x : deviations)
    sum += std::pow(std::inner_product(x.begin(), x.end(), v.begin(), 0.0), 2);
  return sum / static_cast<double>(deviations.size());
}

// A cluster's axis is as long as its keys' deviation along it, and no direction has much more: of the length
// that the power method comes to when it goes on for long, it has 0.98 on average and 0.69 at least. What is
// left is the residual's.
void check_axis(const cpu::WaveIndex& index, int32_t cluster, DType kv,
                const std::vector<std::vector<double>>& deviations, double spread) {
  const size_t dim = deviations[0].size();
  std::vector<float> stored(dim);
  cpu::from_kv(index.axes + static_cast<size_t>(cluster) * row_bytes(kv, static_cast<int64_t>(dim)), kv,
               stored.data(), static_cast<int64_t>(dim));
  std::vector<double> axis(stored.begin(), stored.end());
  const double length = std::sqrt(std::inner_product(axis.begin(), axis.end(), axis.begin(), 0.0));
  const double residual = double(index.residuals[cluster]);
  // Rounding of the axis to the KV type, and of sums in f32.
  assert_true(std::abs(length * length + residual * residual * static_cast<double>(dim) - spread * spread) <=
              0.02 * spread * spread + 1e-6);
  if (length < 1e-3) return;
  for (double& x : axis) x /= length;
  assert_true(std::abs(std::sqrt(variance_along(deviations, axis)) - length) <= 0.01 * length);
  for (int step = 0; step < 200; step++) {
    std::vector<double> next(dim);
    for (const std::vector<double>& x : deviations) {
      const double along = std::inner_product(x.begin(), x.end(), axis.begin(), 0.0);
      for (size_t j = 0; j < dim; j++) next[j] += x[j] * along;
    }
    const double norm = std::sqrt(std::inner_product(next.begin(), next.end(), next.begin(), 0.0));
    for (size_t j = 0; j < dim; j++) axis[j] = next[j] / norm;
  }
  assert_true(length > 0.6 * std::sqrt(variance_along(deviations, axis)));
}

std::mt19937_64 generator(uint64_t salt) { return std::mt19937_64(seed() + salt); }

std::vector<float> drawn(Keys kind, int32_t tokens, int32_t head_dim, uint64_t salt = 0) {
  std::mt19937_64 random = generator(salt);
  return draw(kind, tokens, head_dim, random);
}

// Everything that must hold of an index, whatever the keys.
void check_index(const Cache& cache) {
  for (const auto& segment : cache.segments) {
    const SegmentView& view = cache.views[static_cast<size_t>(&segment - cache.segments.data())];
    const size_t dim = static_cast<size_t>(cache.head_dim);
    assert_true(segment->index_bytes <= segment->index.size());
    assert_true(cpu::wave_index_valid(view.index, segment->index_bytes, view.partitions, view.tokens,
                                      cache.head_dim, cache.kv));
    const cpu::WaveIndex index = cpu::wave_view(view.index);
    const std::vector<int32_t> token_at = tokens_by_place(view);
    std::vector<float> row(dim), centroid(dim), value_mean(dim);
    const int64_t bytes = static_cast<int64_t>(row_bytes(cache.kv, cache.head_dim));
    for (int32_t c = 0; c < index.clusters; c++) {
      const int32_t begin = view.offsets[c], end = view.offsets[c + 1];
      assert_int_equal(end - begin, index.sizes[c]);
      assert_in_range(end - begin, 1, cache.params.max_cluster_tokens);
      cpu::wave_centroid(index, c, cache.head_dim, centroid.data());
      std::vector<double> mean(dim);
      double radius = 0, squares = 0;
      std::vector<std::vector<double>> deviations;
      for (int32_t i = begin; i < end; i++) {
        const auto at = static_cast<size_t>(i);
        if (i > begin) assert_true(token_at[at - 1] < token_at[at]);
        cpu::from_kv(static_cast<const std::byte*>(view.keys) + i * bytes, cache.kv, row.data(),
                     cache.head_dim);
        double distance = 0;
        deviations.emplace_back(dim);
        for (size_t j = 0; j < dim; j++) {
          const double x = std::isfinite(row[j]) ? double(row[j]) : 0;
          mean[j] += x / (end - begin);
          deviations.back()[j] = x - double(centroid[j]);
          distance += deviations.back()[j] * deviations.back()[j];
        }
        radius = std::max(radius, std::sqrt(distance));
        squares += distance / (end - begin);
        // The stored rows are the tokens' own.
        const int32_t token = token_at[at];
        const AlignedBytes key = to_kv(
            {cache.keys.begin() + token * cache.head_dim, cache.keys.begin() + (token + 1) * cache.head_dim},
            cache.kv);
        assert_memory_equal(key.data(), static_cast<const std::byte*>(view.keys) + i * bytes,
                            static_cast<size_t>(bytes));
      }
      // bf16: the radius rounded up, the spread to the nearest.
      const double stored_radius = double(cpu::wave_radius(index.extents[c]));
      assert_true(stored_radius >= radius * (1 - 1e-6) && stored_radius <= radius * 1.008 + 1e-6);
      const double spread = std::sqrt(squares);
      assert_true(std::abs(double(cpu::wave_spread(index.extents[c])) - spread) <= spread * 0.0041 + 1e-6);
      check_axis(index, c, cache.kv, deviations, spread);
      for (size_t j = 0; j < dim; j++) {  // rounded to codes; and the mean itself is a sum in f32
        const double half_step = 0.501 * double(index.scales[c]);
        assert_true(std::abs(mean[j] - double(centroid[j])) <= half_step + 1e-5 * (1 + std::abs(mean[j])));
      }
    }
    assert_int_equal(view.offsets[0], 0);
    assert_int_equal(view.offsets[index.clusters], view.tokens);
  }
}

void every_token_is_in_exactly_one_cluster_of_at_most_64(void**) {
  test::for_each_simd([](const char*) {
    for (DType kv : {DType::f32, DType::f16, DType::bf16})
      for (Keys kind : {Keys::clustered, Keys::uniform, Keys::adversarial})
        for (int32_t tokens : test::some_of({1, 2, 15, 17, 64, 65, 700, 2048})) {
          Cache cache(cpu::wave_policy, {}, kv, 64);
          cache.seal(drawn(kind, tokens, 64), drawn(Keys::uniform, tokens, 64, 1));
          check_index(cache);
          assert_true(cache.partitions <= cpu::wave_policy.most_partitions(cache.params, tokens));
        }
  });
}

void index_takes_any_head_dim_and_pieces_of_runs(void**) {
  for (int32_t head_dim : test::some_of({8, 40, 80, 128, 256})) {
    Cache whole(cpu::wave_policy, {}, DType::f16, head_dim),
        pieces(cpu::wave_policy, {}, DType::f16, head_dim);
    const std::vector<float> keys = drawn(Keys::clustered, 1000, head_dim);
    const std::vector<float> values = drawn(Keys::uniform, 1000, head_dim, 1);
    whole.seal(keys, values);
    pieces.seal(keys, values, 37);
    check_index(whole);
    assert_int_equal(whole.segments[0]->index_bytes, pieces.segments[0]->index_bytes);
    assert_memory_equal(whole.segments[0]->index.data(), pieces.segments[0]->index.data(),
                        whole.segments[0]->index_bytes);
  }
}

void equal_inputs_give_equal_bytes(void**) {
  const std::vector<float> keys = drawn(Keys::clustered, 3000, 64);
  const std::vector<float> values = drawn(Keys::uniform, 3000, 64, 1);
  Cache a(cpu::wave_policy, {}, DType::f16, 64), b(cpu::wave_policy, {}, DType::f16, 64);
  b.seal(drawn(Keys::uniform, 500, 64, 2), drawn(Keys::uniform, 500, 64, 3));  // leaves scratch dirty
  a.seal(keys, values);
  b.seal(keys, values);
  assert_int_equal(a.segments[0]->index_bytes, b.segments[1]->index_bytes);
  assert_memory_equal(a.segments[0]->index.data(), b.segments[1]->index.data(), a.segments[0]->index_bytes);
  assert_memory_equal(a.segments[0]->keys.data(), b.segments[1]->keys.data(), a.segments[0]->keys.size());
}

// On whatever worker, whatever was in the state and the scratch before.
void pieces_write_what_index_writes(void**) {
  for (int32_t tokens : test::some_of({1, 64, 1000, 3000})) {
    const std::vector<float> keys = drawn(Keys::adversarial, tokens, 64);
    const std::vector<float> values = drawn(Keys::uniform, tokens, 64, 1);
    Cache whole(cpu::wave_policy, {}, DType::f16, 64), pieces(cpu::wave_policy, {}, DType::f16, 64);
    whole.seal(keys, values);
    pieces.in_pieces = true;
    pieces.seal(keys, values, 64);
    assert_int_equal(whole.views[0].partitions, pieces.views[0].partitions);
    assert_int_equal(whole.segments[0]->index_bytes, pieces.segments[0]->index_bytes);
    assert_memory_equal(whole.segments[0]->index.data(), pieces.segments[0]->index.data(),
                        whole.segments[0]->index_bytes);
    assert_memory_equal(whole.segments[0]->values.data(), pieces.segments[0]->values.data(),
                        whole.segments[0]->values.size());
    assert_true(whole.segments[0]->places == pieces.segments[0]->places);
  }
}

// What a decode step may be held up by. Wall time of the quickest of five runs: a test machine is not quiet.
// However large a segment and however many iterations its parameters allow.
void pieces_can_be_counted_for_all_parameters(void**) {
  IndexArgs args{};
  PolicyParams params;
  args.params = &params;
  args.kv = DType::f16;
  for (const int32_t tokens : {64, 131072, 1048576}) {
    for (const int32_t head_dim : {64, 128, 8192}) {
      args.tokens = params.segment_tokens = tokens;
      args.head_dim = head_dim;
      params.tokens_per_centroid = 1;
      params.kmeans_iterations = 1;
      const int32_t once = cpu::wave_policy.pieces->count(args);
      params.kmeans_iterations = 100;
      assert_true(once > 0 && cpu::wave_policy.pieces->count(args) > once);
    }
  }
}

void no_piece_takes_long(void**) {
  constexpr int32_t kTokens = 1024, kDim = 64;
  Cache cache(cpu::wave_policy, {}, DType::f16, kDim);
  cache.in_pieces = true;
  std::vector<double> quickest;
  for (int run = 0; run < test::few_or(1, 5); run++) {
    cache.piece_ms.clear();
    cache.seal(drawn(Keys::clustered, kTokens, kDim), drawn(Keys::uniform, kTokens, kDim, 1), 64);
    quickest.resize(cache.piece_ms.size(), 1e9);
    for (size_t i = 0; i < quickest.size(); i++) quickest[i] = std::min(quickest[i], cache.piece_ms[i]);
  }
  const double all = std::accumulate(quickest.begin(), quickest.end(), 0.0);
  const double longest = *std::max_element(quickest.begin(), quickest.end());
  std::printf("%zu pieces, %.2f ms, the longest %.3f ms\n", quickest.size(), all, longest);
  assert_in_time(longest < all / 8);
}

// Of all keys from their clusters' means, squared.
double distances_of(const Cache& cache) {
  const SegmentView& view = cache.views[0];
  const std::vector<int32_t> token_at = tokens_by_place(view);
  const auto dim = static_cast<size_t>(cache.head_dim);
  double sum = 0;
  for (int32_t c = 0; c < view.partitions; c++) {
    std::vector<double> mean(dim);
    const auto each_key = [&](auto&& body) {
      for (int32_t i = view.offsets[c]; i < view.offsets[c + 1]; i++)
        body(cache.keys.data() + static_cast<size_t>(token_at[static_cast<size_t>(i)]) * dim);
    };
    const double count = view.offsets[c + 1] - view.offsets[c];
    each_key([&](const float* key) {
      for (size_t i = 0; i < dim; i++) mean[i] += double{key[i]} / count;
    });
    each_key([&](const float* key) {
      for (size_t i = 0; i < dim; i++) sum += (double{key[i]} - mean[i]) * (double{key[i]} - mean[i]);
    });
  }
  return sum;
}

// Many centroids of many dimensions leave few bits to a score; no instruction set may have less than is enough, nor more
// than another.
void large_segments_are_clustered_as_well_on_every_instruction_set(void**) {
  constexpr int32_t kTokens = 2048, kDim = 2048;
  PolicyParams params;
  params.tokens_per_centroid = 2;
  params.kmeans_iterations = 2;
  const std::vector<float> keys = drawn(Keys::clustered, kTokens, kDim);
  const std::vector<float> values = drawn(Keys::uniform, kTokens, kDim, 1);
  double least = INFINITY, most = 0;
  std::vector<std::vector<int32_t>> offsets;
  test::for_each_simd([&](const char* name) {
    Cache cache(cpu::wave_policy, params, DType::f16, kDim);
    cache.seal(keys, values);
    const double distances = distances_of(cache);
    std::printf("%s: %.0f\n", name, distances);
    least = std::min(least, distances), most = std::max(most, distances);
    const SegmentView& view = cache.views[0];
    offsets.emplace_back(view.offsets, view.offsets + view.partitions + 1);
  });
  assert_true(most < 1.01 * least);
  for (const auto& other : offsets) assert_true(other == offsets[0]);
}

// Of each cluster what the cut leaves of it, in the same order, described as any index is.
void a_cut_keeps_clusters_as_far_as_they_go(void**) {
  constexpr int32_t kTokens = 2048, kDim = 64;
  const std::vector<float> keys = drawn(Keys::clustered, kTokens, kDim);
  const std::vector<float> values = drawn(Keys::uniform, kTokens, kDim, 1);
  Cache whole(cpu::wave_policy, {}, DType::f16, kDim);
  whole.seal(keys, values);
  const SegmentView& from = whole.views[0];
  const std::vector<int32_t> token_at = tokens_by_place(from);
  for (int32_t tokens : {64, 640, 1984}) {
    const size_t numbers = static_cast<size_t>(tokens) * kDim;
    Cache cut(cpu::wave_policy, {}, DType::f16, kDim);
    cut.cut(whole, tokens);
    check_index(cut);
    const SegmentView& view = cut.views[0];
    int32_t at = 0, clusters = 0;
    for (int32_t c = 0; c < from.partitions; c++) {
      const int32_t kept_begin = at;
      for (int32_t i = from.offsets[c]; i < from.offsets[c + 1]; i++) {
        const int32_t token = token_at[static_cast<size_t>(i)];
        if (token < tokens) assert_int_equal(view.places[token], at++);
      }
      if (at == kept_begin) continue;
      assert_int_equal(view.offsets[clusters++], kept_begin);
      assert_int_equal(view.offsets[clusters], at);
    }
    assert_int_equal(clusters, view.partitions);
    assert_int_equal(cut.keys.size(), numbers);
  }
}

void degenerate_keys_are_indexed(void**) {
  for (DType kv : {DType::f32, DType::f16}) {
    for (int32_t tokens : {1, 100, 1500}) {
      const size_t numbers = static_cast<size_t>(tokens) * 64;
      const std::vector<float> values = drawn(Keys::uniform, tokens, 64, 1);
      Cache equal(cpu::wave_policy, {}, kv, 64), zero(cpu::wave_policy, {}, kv, 64);
      Cache broken(cpu::wave_policy, {}, kv, 64), huge(cpu::wave_policy, {}, kv, 64);
      equal.seal(std::vector<float>(numbers, 1.5f), values);
      check_index(equal);
      zero.seal(std::vector<float>(numbers, 0.0f), values);
      check_index(zero);
      std::vector<float> keys = drawn(Keys::clustered, tokens, 64);
      for (size_t i = 0; i < numbers; i += 97) keys[i] = i % 2 ? NAN : INFINITY;
      broken.seal(keys, std::vector<float>(numbers, NAN));
      check_index(broken);
      for (float& key : keys) key = kv == DType::f32 ? 1e30f : 65504.0f;
      huge.seal(keys, values);
      const SegmentView& view = huge.views[0];
      assert_true(
          cpu::wave_index_valid(view.index, huge.segments[0]->index_bytes, view.partitions, tokens, 64, kv));
    }
  }
}

// Of 1,600 keys in seven tight clusters a few are far from all others. There is room for 20 lone keys.
void keys_that_no_cluster_suits_are_clusters_of_their_own(void**) {
  constexpr int32_t kTokens = 1600, kDim = 64, kFar = 20;
  std::mt19937_64 random = generator(7);
  std::normal_distribution<float> normal;
  std::vector<float> keys;
  for (int32_t t = 0; t < kTokens; t++)
    for (int32_t i = 0; i < kDim; i++) keys.push_back((t % 7 == i ? 20.0f : 0.0f) + 0.1f * normal(random));
  std::vector<int32_t> far;
  for (int32_t n = 0; n < kFar; n++) {
    far.push_back(n * kTokens / kFar + 3);
    for (int32_t i = 0; i < kDim; i++) keys[size_t(far.back()) * kDim + size_t(i)] += 3 * normal(random);
  }
  Cache cache(cpu::wave_policy, {}, DType::f16, kDim);
  cache.seal(keys, drawn(Keys::uniform, kTokens, kDim, 1));
  check_index(cache);
  const SegmentView& view = cache.views[0];
  const cpu::WaveIndex index = cpu::wave_view(view.index);
  const std::vector<int32_t> token_at = tokens_by_place(view);
  std::vector<int32_t> alone;
  for (int32_t c = 0; c < index.clusters; c++)
    if (index.sizes[c] == 1) alone.push_back(token_at[static_cast<size_t>(view.offsets[c])]);
  std::sort(alone.begin(), alone.end());
  for (int32_t token : far) assert_true(std::binary_search(alone.begin(), alone.end(), token));
}

void small_limits_still_bound_every_cluster(void**) {
  for (int32_t most : {1, 2, 3, 16}) {
    PolicyParams params;
    params.max_cluster_tokens = most;
    Cache cache(cpu::wave_policy, params, DType::f16, 32);
    cache.seal(drawn(Keys::adversarial, 777, 32), drawn(Keys::uniform, 777, 32, 1));
    check_index(cache);
  }
}

void validator_rejects_damage(void**) {
  Cache cache(cpu::wave_policy, {}, DType::f16, 64);
  cache.seal(drawn(Keys::clustered, 900, 64), drawn(Keys::uniform, 900, 64, 1));
  const Cache::Segment& segment = *cache.segments[0];
  const int32_t clusters = cache.views[0].partitions;
  AlignedBytes copy(segment.index_bytes);
  const auto fresh = [&] { std::memcpy(copy.data(), segment.index.data(), segment.index_bytes); };
  const auto valid = [&](size_t bytes) {
    return cpu::wave_index_valid(copy.data(), bytes, clusters, 900, 64, DType::f16);
  };
  fresh();
  assert_true(valid(segment.index_bytes));
  assert_false(cpu::wave_index_valid(nullptr, 0, clusters, 900, 64, DType::f16));
  assert_false(cpu::wave_index_valid(copy.data(), segment.index_bytes, clusters, 901, 64, DType::f16));
  assert_false(cpu::wave_index_valid(copy.data(), segment.index_bytes, clusters + 1, 900, 64, DType::f16));
  assert_false(cpu::wave_index_valid(copy.data(), segment.index_bytes, clusters, 900, 128, DType::f16));
  assert_false(cpu::wave_index_valid(copy.data(), segment.index_bytes, clusters, 900, 64, DType::f32));
  for (size_t bytes = 0; bytes < segment.index_bytes; bytes += 61) assert_false(valid(bytes));
  for (size_t i = 0; i < sizeof(cpu::WaveHeader); i++) {  // any bit of the header
    fresh();
    copy.data()[i] ^= std::byte{1};
    assert_false(valid(segment.index_bytes));
  }
  const cpu::WaveHeader header = *reinterpret_cast<const cpu::WaveHeader*>(segment.index.data());
  const int32_t minus_one = static_cast<int32_t>(0xBF800000u);  // as f32
  for (uint64_t array : {header.sizes, header.extents, header.residuals})
    for (int32_t bad : {-1, INT32_MAX, minus_one}) {
      for (int32_t at : {0, clusters / 2, clusters - 1}) {
        fresh();
        std::memcpy(copy.data() + array + static_cast<uint64_t>(at) * 4, &bad, 4);
        assert_false(valid(segment.index_bytes));
      }
    }
  const uint16_t infinity = 0x7C00;
  fresh();
  std::memcpy(copy.data() + header.value_means + static_cast<uint64_t>(clusters) * 128 - 2, &infinity, 2);
  assert_false(valid(segment.index_bytes));
  fresh();
  std::memcpy(copy.data() + header.axes + static_cast<uint64_t>(clusters) * 128 - 2, &infinity, 2);
  assert_false(valid(segment.index_bytes));
  for (uint64_t array : {header.scales, header.centre}) {
    fresh();
    const float wrong = NAN;
    std::memcpy(copy.data() + array + 8, &wrong, 4);
    assert_false(valid(segment.index_bytes));
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_token_is_in_exactly_one_cluster_of_at_most_64),
      cmocka_unit_test(index_takes_any_head_dim_and_pieces_of_runs),
      cmocka_unit_test(equal_inputs_give_equal_bytes),
      cmocka_unit_test(pieces_write_what_index_writes),
      cmocka_unit_test(pieces_can_be_counted_for_all_parameters),
      cmocka_unit_test(no_piece_takes_long),
      cmocka_unit_test(large_segments_are_clustered_as_well_on_every_instruction_set),
      cmocka_unit_test(a_cut_keeps_clusters_as_far_as_they_go),
      cmocka_unit_test(degenerate_keys_are_indexed),
      cmocka_unit_test(keys_that_no_cluster_suits_are_clusters_of_their_own),
      cmocka_unit_test(small_limits_still_bound_every_cluster),
      cmocka_unit_test(validator_rejects_damage),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
