// Exact attention of lookups by the CUDA kernels against the CPU's, on random shapes: groups of 1 to 16 query
// heads, every KV type and head size, runs of any length, none at all.
#include "kernels/cuda/cuda.h"
#include "tests/lookups.h"
#include "tests/support/device_memory.h"
#include "tests/support/kernel_test.h"

using namespace wi;
using namespace wi::test;

namespace {

int64_t draw(std::mt19937_64& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}

// What a block has by compute capability: 9.0, 8.0, 8.6.
constexpr size_t kSharedBytes[] = {227 << 10, 163 << 10, 99 << 10};

// Lookups on the host, each with keys and values of its own in one piece of memory, and the same on a device.
struct Lookups {
  Lookups(std::mt19937_64& random, int32_t count, int32_t group, int32_t head_dim, DType kv,
          int64_t most_tokens)
      : args{nullptr, count, group, head_dim, kv, 1 / std::sqrt(static_cast<float>(head_dim))} {
    const size_t dim = static_cast<size_t>(head_dim);
    const float sharp = random() % 2 ? 1.0f : 4.0f;
    for (int32_t i = 0; i < count; ++i) {
      std::vector<int64_t> lengths;
      const int64_t wanted = draw(random, 0, most_tokens);
      const int64_t longest = random() % 3 ? draw(random, 1, 40) : most_tokens;
      int64_t tokens = 0;
      while (tokens < wanted) {
        lengths.push_back(std::min(draw(random, random() % 8 ? 1 : 0, longest), wanted - tokens));
        tokens += lengths.back();
      }
      const size_t steady = lengths.empty() ? 0 : random() % (lengths.size() + 1);
      memory.push_back(to_kv(random_floats(2 * static_cast<size_t>(tokens) * dim, random), kv));
      std::vector<KvRun> list;
      int64_t at = 0;
      for (const int64_t length : lengths) {
        // Keys and values of a run lie together, as packed segments have them.
        list.push_back({memory.back().data() + row_bytes(kv, 2 * at * head_dim),
                        memory.back().data() + row_bytes(kv, (2 * at + length) * head_dim), length});
        at += length;
      }
      runs.push_back(std::move(list));
      steady_counts.push_back(static_cast<int32_t>(steady));
      queries.push_back(random_floats(static_cast<size_t>(group) * dim, random));
      for (float& number : queries.back()) number *= sharp;
      outs.emplace_back(static_cast<size_t>(group) * dim);
      lses.emplace_back(static_cast<size_t>(group));
    }
    counters.resize(static_cast<size_t>(count));
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      Lookup lookup;
      lookup.query = queries[i].data();
      lookup.steady = runs[i].data();
      lookup.steady_count = steady_counts[i];
      lookup.runs = runs[i].data() + steady_counts[i];
      lookup.run_count = static_cast<int32_t>(runs[i].size()) - steady_counts[i];
      lookup.out = outs[i].data();
      lookup.lse = lses[i].data();
      lookup.counters = &counters[i];
      lookups.push_back(lookup);
    }
    args.lookups = lookups.data();
  }

  LookupArgs args;
  std::vector<AlignedBytes> memory;
  std::vector<std::vector<KvRun>> runs;
  std::vector<int32_t> steady_counts;
  std::vector<std::vector<float>> queries, outs, lses;
  std::vector<LookupCounters> counters;
  std::vector<Lookup> lookups;
};

struct DeviceLookups {
  DeviceLookups(DeviceStream& stream, const Lookups& host)
      : args(host.args), counters(stream, std::vector<LookupCounters>(host.lookups.size())) {
    std::vector<Lookup> list = host.lookups;
    for (size_t i = 0; i < list.size(); ++i) {
      memory.emplace_back(stream, host.memory[i].data(), host.memory[i].size());
      std::vector<KvRun> own = host.runs[i];
      const auto moved = [&](const void* at) {
        return memory.back().data() + (static_cast<const std::byte*>(at) - host.memory[i].data());
      };
      for (KvRun& run : own) run = {moved(run.keys), moved(run.values), run.tokens};
      runs.emplace_back(stream, own);
      queries.emplace_back(stream, host.queries[i]);
      outs.emplace_back(stream, host.outs[i].size());
      lses.emplace_back(stream, host.lses[i].size());
      list[i].query = queries.back();
      list[i].steady = runs.back();
      list[i].runs = runs.back() + list[i].steady_count;
      list[i].out = outs.back();
      list[i].lse = lses.back();
      list[i].counters = counters + i;
    }
    lookups = DeviceArray<Lookup>(stream, list);
    args.lookups = lookups;
    const cuda::AttendWorkspaceSize size = cuda::attend_workspace(args.count, args.group, args.head_dim);
    partials = DeviceArray<float>(stream, size.floats);
    arrived = DeviceArray<uint32_t>(stream, std::vector<uint32_t>(size.counts));
    workspace = {partials, arrived, 8, cuda_emulation::limit_shared(kSharedBytes[0])};
  }

  LookupArgs args;
  DeviceArray<LookupCounters> counters;
  std::vector<DeviceArray<std::byte>> memory;
  std::vector<DeviceArray<KvRun>> runs;
  std::vector<DeviceArray<float>> queries, outs, lses;
  DeviceArray<Lookup> lookups;
  DeviceArray<float> partials;
  DeviceArray<uint32_t> arrived;
  cuda::AttendWorkspace workspace;
};

// Both are sums of the same products to f32's precision, in other orders, of exponentials that are off by some 2^-22
// of their exponent each, and that of what a score is a sum of: some tens, for sharp queries. Weights are at most 1,
// values normal.
constexpr float kTolerance = 2e-5f;

void check_lookups(uint64_t shape, Lookups& host, DeviceLookups& device) {
  for (size_t i = 0; i < host.lookups.size(); ++i) {
    const std::vector<float> out = device.outs[i].to_host(), lse = device.lses[i].to_host();
    const auto describe = [&](const char* what, size_t at, float got, float want) {
      fail_because(
          "shape %llu, lookup %zu of %zu: %s %zu is %.9g, the CPU's %.9g (group %d, head_dim %d, %s)",
          static_cast<unsigned long long>(shape), i, host.lookups.size(), what, at, static_cast<double>(got),
          static_cast<double>(want), host.args.group, host.args.head_dim, format_of(host.args.kv).name);
    };
    for (size_t h = 0; h < lse.size(); ++h)
      if (!(std::abs(lse[h] - host.lses[i][h]) <= kTolerance * (1 + std::abs(host.lses[i][h]))) &&
          lse[h] != host.lses[i][h])
        describe("lse", h, lse[h], host.lses[i][h]);
    for (size_t at = 0; at < out.size(); ++at)
      if (!(std::abs(out[at] - host.outs[i][at]) <= kTolerance))
        describe("out", at, out[at], host.outs[i][at]);
  }
  const std::vector<LookupCounters> counters = device.counters.to_host();
  for (size_t i = 0; i < counters.size(); ++i)
    assert_int_equal(counters[i].attended_tokens, host.counters[i].attended_tokens);
}

void attends_any_shape_as_the_cpu(void**) {
  constexpr int32_t kDims[] = {64, 96, 128, 256};
  constexpr DType kTypes[] = {DType::f16, DType::bf16, DType::f32};
  for (uint64_t shape = 0; shape < 200; ++shape) {
    std::mt19937_64 random(seed() * 1000 + shape);
    const int32_t head_dim =
        shape % 10 == 9 ? 8 * static_cast<int32_t>(draw(random, 1, 32)) : kDims[shape % 4];
    const int32_t group = shape % 20 == 19 ? static_cast<int32_t>(draw(random, 17, 40))
                                           : 1 + static_cast<int32_t>(shape / 4 % 16);
    const int64_t most_tokens = shape % 50 == 0 ? 2000 : shape % 3 ? 150 : 400;
    Lookups host(random, static_cast<int32_t>(draw(random, 0, 4)), group, head_dim, kTypes[random() % 3],
                 most_tokens);
    with_workers(1, [&](const Stream& stream) { cpu::attend(stream, host.args); });

    cuda_emulation::reset(random());
    DeviceStream stream;
    DeviceLookups device(stream, host);
    device.workspace.blocks = static_cast<int32_t>(draw(random, 1, 20));
    device.workspace.shared_bytes = cuda_emulation::limit_shared(kSharedBytes[random() % 3]);
    assert_cuda(cuda::attend(stream, device.args, device.workspace));
    check_lookups(shape, host, device);
    // Again with what the first call left behind.
    assert_cuda(cuda::attend(stream, device.args, device.workspace));
    for (LookupCounters& counters : host.counters) counters.attended_tokens *= 2;
    check_lookups(shape, host, device);
    assert_true(cuda_emulation::report().empty());
  }
}

// A lookup's bits do not depend on the others of its launch.
void a_lookup_is_the_same_bits_in_any_company(void**) {
  std::mt19937_64 random(seed());
  Lookups host(random, 5, 4, 64, DType::f16, 700);
  cuda_emulation::reset(random());
  DeviceStream stream;
  DeviceLookups device(stream, host);
  assert_cuda(cuda::attend(stream, device.args, device.workspace));
  for (int32_t i = 0; i < 5; ++i) {
    const std::vector<float> together = device.outs[static_cast<size_t>(i)].to_host();
    LookupArgs alone = device.args;
    alone.lookups += i;
    alone.count = 1;
    device.workspace.blocks = i + 1;
    assert_cuda(cuda::attend(stream, alone, device.workspace));
    assert_true(same_bits(device.outs[static_cast<size_t>(i)].to_host(), together));
  }
}

// Less shared memory is less that is on its way, of the largest rows half a tile.
void less_shared_memory_changes_no_bit(void**) {
  std::mt19937_64 random(seed() + 1);
  for (const DType kv : {DType::f16, DType::f32})
    for (const int32_t head_dim : {128, 256})
      for (const int32_t group : {1, 16}) {
        Lookups host(random, 2, group, head_dim, kv, 300);
        cuda_emulation::reset(random());
        DeviceStream stream;
        DeviceLookups device(stream, host);
        std::vector<float> wanted;
        for (const size_t bytes : kSharedBytes) {
          device.workspace.shared_bytes = cuda_emulation::limit_shared(bytes);
          assert_cuda(cuda::attend(stream, device.args, device.workspace));
          std::vector<float> out;
          for (const auto& one : device.outs) {
            const std::vector<float> numbers = one.to_host();
            out.insert(out.end(), numbers.begin(), numbers.end());
          }
          if (bytes == kSharedBytes[0]) wanted = out;
          assert_true(same_bits(out, wanted));
        }
        assert_true(cuda_emulation::report().empty());
      }
}

// Nor on how many runs its tokens come in: those of a cache are short, and lie anywhere.
void how_tokens_are_cut_into_runs_changes_no_bit(void**) {
  for (uint64_t shape = 0; shape < 6; ++shape) {
    std::mt19937_64 random(seed() * 1000 + shape);
    Lookups host(random, 2, shape % 2 ? 4 : 1, 64, DType::f16, 1500);
    cuda_emulation::reset(random());
    DeviceStream stream;
    std::vector<float> whole[2];
    {
      DeviceLookups device(stream, host);
      assert_cuda(cuda::attend(stream, device.args, device.workspace));
      for (size_t i = 0; i < 2; ++i) whole[i] = device.outs[i].to_host();
    }
    for (size_t i = 0; i < 2; ++i) {
      std::vector<KvRun> pieces;
      const size_t row = row_bytes(DType::f16, 64);
      int32_t steady = 0;
      for (size_t r = 0; r < host.runs[i].size(); ++r) {
        KvRun left = host.runs[i][r];
        while (left.tokens > 0) {
          const int64_t tokens = std::min(left.tokens, draw(random, 1, 3));  // more than a window has
          pieces.push_back({left.keys, left.values, tokens});
          left = {static_cast<const std::byte*>(left.keys) + static_cast<size_t>(tokens) * row,
                  static_cast<const std::byte*>(left.values) + static_cast<size_t>(tokens) * row,
                  left.tokens - tokens};
        }
        if (static_cast<int32_t>(r) + 1 == host.steady_counts[i])
          steady = static_cast<int32_t>(pieces.size());
      }
      host.runs[i] = std::move(pieces);
      Lookup& lookup = host.lookups[i];
      lookup.steady_count = steady;
      lookup.run_count = static_cast<int32_t>(host.runs[i].size()) - steady;
    }
    DeviceLookups device(stream, host);
    assert_cuda(cuda::attend(stream, device.args, device.workspace));
    for (size_t i = 0; i < 2; ++i) assert_true(same_bits(device.outs[i].to_host(), whole[i]));
    assert_true(cuda_emulation::report().empty());
  }
}

// On one multiprocessor, of six chunks that one lookup has: as many blocks as it has at a time, of two or three.
void a_plan_has_as_many_blocks_as_run_at_a_time(void**) {
  constexpr size_t kMost = 227 << 10, kLess = 163 << 10;
  struct Case {
    DType kv;
    int32_t head_dim, group;
    size_t shared_bytes;
    int32_t blocks;
  };
  const Case cases[] = {{DType::f16, 128, 8, kMost, 3},  {DType::f16, 128, 16, kMost, 2},
                        {DType::bf16, 256, 8, kMost, 2}, {DType::f32, 64, 8, kMost, 3},
                        {DType::f32, 128, 8, kMost, 3},  {DType::f32, 128, 16, kMost, 2},
                        {DType::f32, 256, 4, kMost, 2},  {DType::f32, 256, 4, kLess, 1},
                        {DType::f32, 128, 1, kLess, 3},  {DType::f32, 128, 1, 99 << 10, 2}};
  for (const Case& one : cases) {
    LookupArgs args{nullptr, 1, one.group, one.head_dim, one.kv, 1};
    args.usual_tokens = 6 * cuda::kLeastChunk;
    assert_int_equal(cuda::attend_blocks(args, 1, one.shared_bytes), one.blocks);
  }
}

void other_shapes_are_refused(void**) {
  cuda_emulation::reset(seed());
  DeviceStream stream;
  constexpr size_t kShared = kSharedBytes[2];
  for (const int32_t head_dim : {0, 4, 68, 264})
    assert_true(cuda::attend(stream, {nullptr, 1, 1, head_dim, DType::f16, 1},
                             {nullptr, nullptr, 1, kShared}) == cudaErrorInvalidValue);
  assert_true(cuda::attend(stream, {nullptr, 1, 1, 64, DType::q8_0, 1}, {nullptr, nullptr, 1, kShared}) ==
              cudaErrorInvalidValue);
  assert_true(cuda::attend(stream, {nullptr, 1, 1, 64, DType::f16, 1}, {nullptr, nullptr, 0, kShared}) ==
              cudaErrorInvalidValue);
  assert_true(cuda::attend(stream, {nullptr, 1, 1, 64, DType::f16, 1}, {nullptr, nullptr, 1, kShared - 1}) ==
              cudaErrorInvalidValue);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(attends_any_shape_as_the_cpu),
      cmocka_unit_test(a_lookup_is_the_same_bits_in_any_company),
      cmocka_unit_test(less_shared_memory_changes_no_bit),
      cmocka_unit_test(how_tokens_are_cut_into_runs_changes_no_bit),
      cmocka_unit_test(a_plan_has_as_many_blocks_as_run_at_a_time),
      cmocka_unit_test(other_shapes_are_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
