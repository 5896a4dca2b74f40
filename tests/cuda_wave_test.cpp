// The wave policy by the CUDA kernels, on indexes that the CPU has built, against the CPU's operations.
#include <set>

#include "kernels/cuda/policy/wave.h"
#include "tests/lookups.h"
#include "tests/support/device_memory.h"
#include "tests/support/kernel_test.h"

using namespace wi;
using namespace wi::test;

namespace {

#if defined(WI_SANITIZED) || defined(WI_EMULATED)
constexpr uint64_t kShapes = 20;  // which take four times as long and more
#else
constexpr uint64_t kShapes = 60;
#endif

// One KV head's segments with a few lookups over them, here and on a device.
struct Scene {
  Scene(uint64_t shape, int32_t head_dim, int32_t group, DType kv, const std::vector<int32_t>& segments,
        const PolicyParams& params)
      : random(test::seed() * 1000 + shape), cache(cpu::wave_policy, params, kv, head_dim) {
    const size_t dim = static_cast<size_t>(head_dim);
    const Keys kind = static_cast<Keys>(shape % 3);
    for (const int32_t tokens : segments)
      cache.seal(draw(kind, tokens, head_dim, random), draw(Keys::uniform, tokens, head_dim, random));
    std::normal_distribution<float> normal;
    const size_t count = 1 + random() % 3;
    for (size_t i = 0; i < count; ++i) {
      std::vector<float> query(static_cast<size_t>(group) * dim);
      const size_t near = cache.keys.empty() ? 0 : random() % (cache.keys.size() / dim) * dim;
      for (size_t j = 0; j < query.size(); ++j)
        query[j] = (cache.keys.empty() ? 0 : cache.keys[near + j % dim]) + normal(random);
      held.push_back(std::make_unique<TestLookup>(cache, query));
      Lookup& lookup = held.back()->lookup;
      for (size_t s = 0; s < segments.size() && random() % 2; ++s) {
        const int32_t begin = static_cast<int32_t>(random() % static_cast<uint64_t>(segments[s]));
        const int32_t end = std::min(segments[s], begin + 1 + static_cast<int32_t>(random() % 90));
        wanted[i].push_back({static_cast<int32_t>(s), begin, end});
      }
      lookup.wanted = wanted[i].data();
      lookup.wanted_count = static_cast<int32_t>(wanted[i].size());
      lookups.push_back(lookup);
    }
    args = lookup_args(cache, lookups.data(), static_cast<int32_t>(count), group);
  }

  std::mt19937_64 random;
  Cache cache;
  std::vector<std::unique_ptr<TestLookup>> held;
  std::vector<WantedTokens> wanted[3];
  std::vector<Lookup> lookups;
  LookupArgs args;
};

struct DeviceScene {
  DeviceScene(DeviceStream& stream, Scene& scene)
      : args(scene.args), counters(stream, std::vector<LookupCounters>(scene.lookups.size())) {
    std::vector<SegmentView> list = scene.cache.views;
    for (size_t s = 0; s < list.size(); ++s) {
      const Cache::Segment& segment = *scene.cache.segments[s];
      indexes.emplace_back(stream, segment.index.data(), segment.index_bytes);
      offsets.emplace_back(stream, segment.offsets);
      places.emplace_back(stream, segment.places);
      list[s].index = indexes.back();
      list[s].offsets = offsets.back();
      list[s].places = places.back();
    }
    views = DeviceArray<SegmentView>(stream, list);
    std::vector<Lookup> there = scene.lookups;
    const size_t room = static_cast<size_t>(scene.cache.partitions);
    for (size_t i = 0; i < there.size(); ++i) {
      queries.emplace_back(stream, scene.held[i]->query);
      scores.emplace_back(stream, room * static_cast<size_t>(args.group));
      outs.emplace_back(stream, scene.held[i]->out);
      lses.emplace_back(stream, scene.held[i]->lse);
      retrieved.emplace_back(stream, room);
      estimated.emplace_back(stream, room);
      wanted.emplace_back(stream, scene.wanted[i]);
      there[i].query = queries.back();
      there[i].segments = views;
      there[i].wanted = wanted.back();
      there[i].scores = scores.back();
      there[i].retrieved = retrieved.back();
      there[i].estimated = estimated.back();
      there[i].out = outs.back();
      there[i].lse = lses.back();
      there[i].counters = counters + i;
    }
    lookups = DeviceArray<Lookup>(stream, there);
    args.lookups = lookups;
    workspace.most_partitions = scene.cache.partitions + static_cast<int32_t>(scene.random() % 100);
    workspace.most_segments = 1 + static_cast<int32_t>(scene.random() % (list.size() + 2));
    const cuda::AttendWorkspaceSize size = cuda::attend_workspace(args.count, args.group, args.head_dim);
    partials = DeviceArray<float>(stream, size.floats);
    arrived = DeviceArray<uint32_t>(stream, std::vector<uint32_t>(size.counts));
    chunks = {partials, arrived, 1 + static_cast<int32_t>(scene.random() % 6), cuda::kLeastShared};
    memory = DeviceArray<std::byte>(
        stream, cuda::wave_select_workspace(args.count, args.group, workspace.most_partitions));
    workspace.memory = memory;
  }
  // A lookup's ranks, as select left them.
  std::vector<int32_t> ranks(DeviceStream& stream, size_t i, size_t count) const {
    const size_t each = cuda::wave_clusters_bytes(args.group, workspace.most_partitions);
    const cuda::WaveClusters own =
        cuda::wave_clusters(memory.data() + i * each, args.group, workspace.most_partitions);
    std::vector<int32_t> bits(count);
    if (count) assert_cuda(cudaMemcpyAsync(bits.data(), own.bits, count * 4, cudaMemcpyDeviceToHost, stream));
    stream.finish();
    return bits;
  }

  LookupArgs args;
  cuda::WaveSelectWorkspace workspace{};
  DeviceArray<LookupCounters> counters;
  std::vector<DeviceArray<std::byte>> indexes;
  std::vector<DeviceArray<int32_t>> offsets, places;
  DeviceArray<SegmentView> views;
  std::vector<DeviceArray<float>> queries, scores, outs, lses;
  std::vector<DeviceArray<PartitionRef>> retrieved, estimated;
  std::vector<DeviceArray<WantedTokens>> wanted;
  DeviceArray<Lookup> lookups;
  DeviceArray<std::byte> memory;
  DeviceArray<float> partials;
  DeviceArray<uint32_t> arrived;
  cuda::AttendWorkspace chunks{};
};

std::vector<int32_t> numbers(const Lookup& lookup, const PartitionRef* list, int32_t count) {
  std::vector<int32_t> first{0}, out;
  for (int32_t s = 0; s < lookup.segment_count; ++s)
    first.push_back(first.back() + lookup.segments[s].partitions);
  for (int32_t i = 0; i < count; ++i)
    out.push_back(first[static_cast<size_t>(list[i].segment)] + list[i].partition);
  return out;
}

// Ranks as numbers that grow with them: those of a second look lie above all others.
struct Rank {
  int look;
  double value;
};
Rank rank_of(int32_t bits) {
  constexpr int32_t kSecondLook = (127 + 16) << 23;
  if (bits < kSecondLook) return {0, static_cast<double>(std::bit_cast<float>(bits))};
  return {1, static_cast<double>(std::bit_cast<float>((bits - kSecondLook) << 1))};
}

// A zone's list is the CPU's, but for clusters that rank within 1e-4 of where it ends: sums of exponentials
// are rounded in another order. Returns how many differ.
size_t check_zone(const char* what, uint64_t shape, const std::vector<int32_t>& got,
                  const std::vector<int32_t>& want, const std::vector<int32_t>& bits) {
  assert_true(std::is_sorted(got.begin(), got.end()));
  const std::set<int32_t> here(want.begin(), want.end()), there(got.begin(), got.end());
  assert_int_equal(there.size(), got.size());
  size_t different = 0;
  int32_t pivot = INT32_MAX, top = 0;
  for (const int32_t cluster : got) {
    pivot = std::min(pivot, bits[static_cast<size_t>(cluster)]);
    top = std::max(top, bits[static_cast<size_t>(cluster)]);
  }
  const auto check = [&](int32_t cluster) {
    ++different;
    const Rank own = rank_of(bits[static_cast<size_t>(cluster)]);
    bool near = false;
    for (const int32_t end : {pivot, top}) {
      const Rank there = rank_of(end);
      near = near || (own.look == there.look && std::abs(own.value - there.value) <= 1e-4 * there.value);
    }
    if (!near)
      fail_because("shape %llu, %s: cluster %d is in one list alone, rank %.9g, zone %.9g to %.9g",
                   static_cast<unsigned long long>(shape), what, cluster, own.value, rank_of(top).value,
                   rank_of(pivot).value);
  };
  for (const int32_t cluster : here)
    if (!there.count(cluster)) check(cluster);
  for (const int32_t cluster : there)
    if (!here.count(cluster)) check(cluster);
  return different;
}

Scene random_scene(uint64_t shape) {
  constexpr int32_t kDims[] = {64, 96, 128, 256};
  constexpr DType kTypes[] = {DType::f16, DType::bf16, DType::f32};
  std::mt19937_64 random(seed() * 77 + shape);
  const int32_t group = 1 + static_cast<int32_t>(shape / 4 % 16);
  std::vector<int32_t> segments;
  if (shape % 15 != 14)  // else none at all
    for (uint64_t s = 1 + random() % 4; s > 0; --s)
      segments.push_back(shape % 10 == 9 ? 1 : static_cast<int32_t>(1 + random() % (s == 1 ? 1500 : 300)));
  PolicyParams params;
  params.kmeans_iterations = 3;
  constexpr float kBudgets[] = {0.018f, 0.1f, 0, 1, 0.3f};
  params.budget = kBudgets[random() % 5];
  params.estimation = random() % 4 ? 0.232f : random() % 2 ? 0.0f : 1.0f;
  if (random() % 5 == 0) params.tokens_per_centroid = 1 + static_cast<int32_t>(random() % 4);
  const DType kv = kTypes[random() % 3];
  if (shape % 5 != 4) return Scene(shape, kDims[shape % 4], group, kv, segments, params);
  const auto any = [&](int32_t least, int32_t most) {
    return least + static_cast<int32_t>(random() % static_cast<uint64_t>(most - least + 1));
  };
  const int32_t head_dim = 8 * any(1, 32), many = any(17, cuda::kMostWaveGroup);
  return Scene(shape, head_dim, many, kv, segments, params);
}

void selects_as_the_cpu(void**) {
  size_t different = 0, all = 0;
  for (uint64_t shape = 0; shape < 2 * kShapes; ++shape) {
    Scene scene = random_scene(shape);
    cuda_emulation::reset(scene.random());
    DeviceStream stream;
    DeviceScene device(stream, scene);
    select_lookups(*scene.cache.stream, cpu::wave_policy, scene.args);
    assert_cuda(cuda::wave_score(stream, device.args, device.workspace));
    assert_cuda(cuda::wave_select(stream, device.args, device.workspace));
    const std::vector<Lookup> got = device.lookups.to_host();
    const std::vector<LookupCounters> counters = device.counters.to_host();
    for (size_t i = 0; i < got.size(); ++i) {
      const Lookup& want = scene.lookups[i];
      const std::vector<float> scores = device.scores[i].to_host();
      // The integers' sum is the same; the centre's score is a sum of as many products as there are dimensions.
      double size = 0;
      for (const float number : scene.held[i]->query) size = std::max(size, std::abs(double(number)));
      for (size_t at = 0; at < scores.size(); ++at)
        if (!(std::abs(scores[at] - want.scores[at]) <= 1e-4 * (1 + size)))
          fail_because("shape %llu, lookup %zu: score %zu is %.9g, the CPU's %.9g",
                       static_cast<unsigned long long>(shape), i, at, static_cast<double>(scores[at]),
                       static_cast<double>(want.scores[at]));
      const std::vector<PartitionRef> retrieved = device.retrieved[i].to_host(),
                                      estimated = device.estimated[i].to_host();
      const std::vector<int32_t> bits = device.ranks(stream, i, static_cast<size_t>(want.partition_count));
      different += check_zone("retrieved", shape, numbers(want, retrieved.data(), got[i].retrieved_count),
                              numbers(want, want.retrieved, want.retrieved_count), bits);
      different += check_zone("estimated", shape, numbers(want, estimated.data(), got[i].estimated_count),
                              numbers(want, want.estimated, want.estimated_count), bits);
      all += static_cast<size_t>(want.retrieved_count + want.estimated_count);
      assert_int_equal(counters[i].retrieved, got[i].retrieved_count);
      assert_int_equal(counters[i].estimated, got[i].estimated_count);
      assert_int_equal(counters[i].retrieved + counters[i].estimated + counters[i].dropped,
                       want.partition_count);
      assert_true(std::abs(counters[i].retrieved_tokens - want.counters->retrieved_tokens) <= 64);
    }
    assert_true(cuda_emulation::report().empty());
  }
  std::printf("%zu of %zu clusters in one list alone\n", different, all);
  assert_true(different * 200 <= all);
}

void segments_may_be_more_than_a_grid_is_high(void**) {
  Scene scene = random_scene(3);
  cuda_emulation::reset(test::seed());
  DeviceStream stream;
  DeviceScene device(stream, scene);
  device.workspace.most_segments = 70'000;
  assert_cuda(cuda::wave_score(stream, device.args, device.workspace));
  stream.finish();
  assert_true(cuda_emulation::report().empty());
}

// Scores are off by rounding, by some 1e-6 of the products that they sum, and exponentials of them as much more
// as they are large.
constexpr float kTolerance = 3e-4f;

void estimates_as_the_cpu(void**) {
  size_t compared = 0;
  for (uint64_t shape = 1000; shape < 1000 + kShapes; ++shape) {
    Scene scene = random_scene(shape);
    cuda_emulation::reset(scene.random());
    DeviceStream stream;
    select_lookups(*scene.cache.stream, cpu::wave_policy, scene.args);
    // What attend might have left: some share of all, or nothing.
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < scene.lookups.size(); ++i) {
      Lookup& lookup = scene.lookups[i];
      const size_t group = static_cast<size_t>(scene.args.group),
                   count = static_cast<size_t>(lookup.partition_count);
      lookup.coverage_head = static_cast<int32_t>(scene.random() % group);
      for (float& number : scene.held[i]->out) number = normal(scene.random);
      for (size_t h = 0; h < group; ++h) {
        float highest = 0;
        for (size_t c = 0; c < count; ++c)
          highest = c == 0 ? lookup.scores[h * count] : std::max(highest, lookup.scores[h * count + c]);
        lookup.lse[h] = scene.random() % 8 ? highest + 3 * normal(scene.random) : -INFINITY;
        if (lookup.lse[h] < -1e30f)
          std::fill_n(lookup.out + h * static_cast<size_t>(scene.args.head_dim), scene.args.head_dim, 0.0f);
      }
      *lookup.counters = {};
    }
    DeviceScene device(stream, scene);
    assert_cuda(cuda::wave_score(stream, device.args, device.workspace));
    assert_cuda(cuda::wave_select(stream, device.args, device.workspace));
    const std::vector<Lookup> selected = device.lookups.to_host();
    assert_cuda(cuda::wave_estimate(stream, device.args, device.workspace, device.chunks));
    cpu::wave_policy.estimate(*scene.cache.stream, scene.args);
    const std::vector<LookupCounters> counters = device.counters.to_host();
    for (size_t i = 0; i < scene.lookups.size(); ++i) {
      const Lookup& want = scene.lookups[i];
      const auto same_list = [&](const DeviceArray<PartitionRef>& list, int32_t count,
                                 const PartitionRef* other, int32_t other_count) {
        return numbers(want, list.to_host().data(), count) == numbers(want, other, other_count);
      };
      if (!same_list(device.retrieved[i], selected[i].retrieved_count, want.retrieved,
                     want.retrieved_count) ||
          !same_list(device.estimated[i], selected[i].estimated_count, want.estimated, want.estimated_count))
        continue;
      ++compared;
      const std::vector<float> out = device.outs[i].to_host(), lse = device.lses[i].to_host();
      const auto check = [&](const char* what, size_t at, double got, double wanted, double size) {
        if (!(std::abs(got - wanted) <= static_cast<double>(kTolerance) * (1 + size)) && got != wanted)
          fail_because("shape %llu, lookup %zu: %s %zu is %.9g, the CPU's %.9g",
                       static_cast<unsigned long long>(shape), i, what, at, got, wanted);
      };
      for (size_t at = 0; at < out.size(); ++at)
        check("out", at, double(out[at]), double(want.out[at]), std::abs(double(want.out[at])));
      for (size_t h = 0; h < lse.size(); ++h)
        check("lse", h, double(lse[h]), double(want.lse[h]), std::abs(double(want.lse[h])));
      check("coverage", 0, counters[i].estimated_coverage_sum, want.counters->estimated_coverage_sum, 0);
      check("certified coverage", 0, counters[i].certified_coverage_sum,
            want.counters->certified_coverage_sum, 0);
      check("least coverage", 0, counters[i].certified_coverage_min, want.counters->certified_coverage_min,
            0);
      assert_int_equal(counters[i].coverage_count, want.counters->coverage_count);
    }
    assert_true(cuda_emulation::report().empty());
  }
  assert_true(compared > kShapes);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(selects_as_the_cpu),
                              cmocka_unit_test(segments_may_be_more_than_a_grid_is_high),
                              cmocka_unit_test(estimates_as_the_cpu)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
