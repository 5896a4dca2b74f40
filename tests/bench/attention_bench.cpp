// Decode attention of one layer, full and wave, as the decode step runs it: 32 query heads over 8 KV heads of
// 64 in f16. One JSON object per line. Results are checked before anything is timed; each measured run comes
// after a read of more memory than the caches hold, as other layers' KV and weights would be, and that read
// is the measure of the machine's bandwidth. With --hot 1 wave's runs come after another of its kind instead:
// what it takes to compute, where the last cache holds what one reads.
//   attention_bench [--context N[,N…]] [--threads N] [--repeat N] [--target-mass X] [--hot 0|1]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <sys/mman.h>

#include "kernels/cpu/policy/wave.h"
#include "src/memory/workers.h"
#include "src/pipeline/pipeline.h"
#include "tests/bench/help.h"
#include "tests/lookups.h"

using namespace wi;
using namespace wi::test;

namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kKvHeads = 8, kGroup = 4, kHeadDim = 64, kSegment = 8192, kSteady = 68;

struct Options {
  std::vector<int64_t> contexts = {1024, 8192, 32768, 131072};
  int threads = 0;
  int repeat = 15;
  float target_mass = 0;
  bool hot = false;
};
Options parse(int count, char** words);

template <class F>
double seconds(F&& f) {
  const Clock::time_point start = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - start).count();
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Memory on huge pages where the system allows, as the runtime's own pools have: with small ones, reading
// scattered clusters waits for address translation (twice the time here). Lives as long as the program.
std::byte* huge_pages(size_t bytes) {
  constexpr size_t kPage = size_t{2} << 20;
  bytes = (bytes + kPage - 1) / kPage * kPage;
  std::byte* memory = static_cast<std::byte*>(std::aligned_alloc(kPage, bytes));
  if (!memory) std::exit(std::fprintf(stderr, "no memory for %zu bytes\n", bytes));
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

// The heads' caches, queries and lookups of one layer.
struct Layer {
  std::vector<std::unique_ptr<Cache>> heads;
  std::vector<std::vector<float>> queries;
  std::vector<AlignedBytes> steady_bytes;
  std::vector<KvRun> steady;
  double index_seconds = 0;  // per head and segment, one worker
};
Layer build(int64_t tokens, const Options& options);

// Lookups over the first `segments` segments, as wave or as full sees them.
struct Lookups {
  Lookups(const Layer& layer, size_t segments, bool wave);
  LookupArgs args;
  std::vector<std::vector<SegmentView>> views;
  int32_t whole[2] = {0, kSegment};  // the offsets of a segment that is one partition
  std::vector<std::unique_ptr<TestLookup>> memory;
  std::vector<Lookup> lookups;
};

void move_to_huge_pages(Cache& cache);
double read_all(const Stream& stream, const std::vector<uint64_t>& memory);
void bench(const Stream& stream, const Layer& layer, int64_t tokens, const Options& options);

}  // namespace

constexpr const char* kUsage =
    "attention_bench: attention of one layer at decoding, full and wave, as JSON lines\n"
    "  --context N[,N…]  tokens\n"
    "  --threads N       default: every core this process may use\n"
    "  --repeat N        measurements\n"
    "  --target-mass X   instead of a fixed budget\n"
    "  --hot 0|1         1: wave's runs follow each other, not a read of other memory\n"
    "Example: attention_bench --context 131072 --repeat 60\n";

int main(int count, char** words) {
  answer_help(count, words, kUsage);
  const Options options = parse(count, words);
  Workers workers(options.threads, true);
  const int64_t most = *std::max_element(options.contexts.begin(), options.contexts.end());
  Layer large;
  if (most >= kSegment) large = build(most / kSegment * kSegment, options);
  for (int64_t tokens : options.contexts) {
    const Layer small = tokens < kSegment ? build(tokens, options) : Layer();
    workers.run(nullptr, [&](const Stream& stream) {
      bench(stream, tokens < kSegment ? small : large, tokens, options);
    });
  }
}

namespace {

struct Times {
  std::vector<double> full, select, retrieve, attend, estimate, wave, read;
};

// The stages as the decode step has them, and their times.
StepStats run_stages(const Stream& stream, Attention& attention, const Policy& policy,
                     const LookupArgs& args) {
  for (int32_t i = 0; i < args.count; i++) *args.lookups[i].counters = {};
  StepStats times;
  attention.run(stream, {policy, args, times, nullptr}, [](const Stream& on, const Pass& pass) {
    select(on, pass);
    wi::retrieve(cpu_backend(), on, pass);
    attend(cpu_backend(), on, pass);
    estimate(on, pass);
  });
  return times;
}

void bench(const Stream& stream, const Layer& layer, int64_t tokens, const Options& options) {
  const size_t segments = static_cast<size_t>(std::max<int64_t>(1, tokens / kSegment));
  Lookups full(layer, segments, false), wave(layer, segments, true);
  const Policy& policy = cpu::wave_policy;
  std::vector<uint64_t> other(size_t{1} << 25);  // 256 MB
  std::iota(other.begin(), other.end(), uint64_t{0});

  Attention attention;
  run_stages(stream, attention, cpu::full_policy, full.args);
  run_stages(stream, attention, policy, wave.args);
  double error = 0, coverage = 0, certified = 0;
  int64_t retrieved_tokens = 0, index_bytes = 0, kv_bytes = 0, clusters = 0;
  for (size_t h = 0; h < kKvHeads; h++) {
    const Lookup& lookup = wave.lookups[h];
    error +=
        relative_error(wave.memory[h]->out.data(), full.memory[h]->out.data(), kGroup * kHeadDim) / kKvHeads;
    coverage += lookup.counters->estimated_coverage_sum / kKvHeads;
    certified += lookup.counters->certified_coverage_sum / kKvHeads;
    retrieved_tokens += lookup.counters->retrieved_tokens;
    index_bytes += lookup.counters->index_bytes_read;
    kv_bytes += (lookup.indexed_tokens + kSteady) * kHeadDim * 4;
    clusters += lookup.partition_count;
  }
  if (!(error < 0.3)) std::exit(std::fprintf(stderr, "wave differs from full by %g\n", error));

  Times times;
  double sum = 0;
  for (int i = 0; i < options.repeat; i++) {
    times.read.push_back(seconds([&] { sum += read_all(stream, other); }));
    times.full.push_back(seconds([&] { run_stages(stream, attention, cpu::full_policy, full.args); }));
    if (options.hot) {
      for (int warm = 0; warm < 3; warm++) run_stages(stream, attention, policy, wave.args);
    } else {
      sum += read_all(stream, other);
    }
    StepStats stages;
    times.wave.push_back(seconds([&] { stages = run_stages(stream, attention, policy, wave.args); }));
    times.select.push_back(static_cast<double>(stages.select_ns) * 1e-9);
    times.retrieve.push_back(static_cast<double>(stages.retrieve_ns) * 1e-9);
    times.attend.push_back(static_cast<double>(stages.attend_ns) * 1e-9);
    times.estimate.push_back(static_cast<double>(stages.estimate_ns) * 1e-9);
  }
  const double bandwidth = static_cast<double>(other.size() * 8) / median(times.read) * 1e-9;
  const double full_rate = static_cast<double>(kv_bytes) / median(times.full) * 1e-9;
  const double segment_tokens = static_cast<double>(std::min<int64_t>(tokens, kSegment));
  const double flops = 2 * segment_tokens * std::ceil(segment_tokens / 16) * kHeadDim * 10;
  std::printf(
      "{\"bench\":\"attention\",\"simd\":\"%s\",\"threads\":%d,\"context\":%lld,"
      "\"memory_gb_per_s\":%.1f,\"full_ms\":%.3f,\"full_gb_per_s\":%.1f,\"full_bandwidth_share\":%.2f,"
      "\"wave_ms\":%.4f,\"select_ms\":%.4f,\"retrieve_ms\":%.4f,\"attend_ms\":%.4f,\"estimate_ms\":%.4f,"
      "\"full_over_wave\":%.2f,\"retrieved_tokens\":%lld,\"clusters\":%lld,\"wave_read_bytes\":%lld,"
      "\"output_error\":%.4f,\"estimated_coverage\":%.4f,\"certified_coverage\":%.4f,"
      "\"index_ms_per_head_segment\":%.2f,\"index_gflop_per_s\":%.1f,\"check\":%d}\n",
      cpu::simd_name(), stream.workers, static_cast<long long>(tokens), bandwidth, median(times.full) * 1e3,
      full_rate, full_rate / bandwidth, median(times.wave) * 1e3, median(times.select) * 1e3,
      median(times.retrieve) * 1e3, median(times.attend) * 1e3, median(times.estimate) * 1e3,
      median(times.full) / median(times.wave), static_cast<long long>(retrieved_tokens),
      static_cast<long long>(clusters), static_cast<long long>(index_bytes + retrieved_tokens * kHeadDim * 4),
      error, coverage, certified, layer.index_seconds * 1e3, flops / layer.index_seconds * 1e-9, sum > 0);
  std::fflush(stdout);
}

Layer build(int64_t tokens, const Options& options) {
  Layer layer;
  const int32_t piece = static_cast<int32_t>(std::min<int64_t>(tokens, kSegment));
  PolicyParams params;
  params.target_mass = options.target_mass;
  std::vector<double> index_seconds;
  for (int32_t h = 0; h < kKvHeads; h++) {
    std::mt19937_64 random(static_cast<uint64_t>(h) + 1);
    auto cache = std::make_unique<Cache>(cpu::wave_policy, params, DType::f16, kHeadDim);
    std::vector<float> steady = draw(Keys::clustered, kSteady, kHeadDim, random);
    std::vector<float> query(kGroup * kHeadDim);
    std::normal_distribution<float> normal;
    for (int64_t at = 0; at < tokens; at += piece) {
      const std::vector<float> keys = draw(Keys::clustered, piece, kHeadDim, random);
      const std::vector<float> values = draw(Keys::uniform, piece, kHeadDim, random);
      index_seconds.push_back(seconds([&] { cache->seal(keys, values); }));
      if (at == 0)
        for (size_t i = 0; i < query.size(); i++)
          query[i] = 0.7f * keys[5 * kHeadDim + i % kHeadDim] + normal(random);
      cache->keys.clear();
      cache->values.clear();
    }
    move_to_huge_pages(*cache);
    layer.heads.push_back(std::move(cache));
    layer.queries.push_back(std::move(query));
    layer.steady_bytes.push_back(to_kv(steady, DType::f16));
  }
  for (const AlignedBytes& bytes : layer.steady_bytes)
    layer.steady.push_back({bytes.data(), bytes.data(), kSteady});
  layer.index_seconds = median(index_seconds);
  return layer;
}

void move_to_huge_pages(Cache& cache) {
  size_t bytes = 0;
  for (const auto& segment : cache.segments) {
    bytes += segment->keys.size() + segment->values.size() + segment->index_bytes;
  }
  std::byte* at = huge_pages(bytes + 192 * cache.segments.size());
  const auto moved = [&](AlignedBytes& from, size_t size) {
    std::byte* to = at;
    std::memcpy(to, from.data(), size);
    from = AlignedBytes();
    at += (size + 63) / 64 * 64;
    return to;
  };
  for (size_t i = 0; i < cache.segments.size(); i++) {
    Cache::Segment& segment = *cache.segments[i];
    cache.views[i].keys = moved(segment.keys, segment.keys.size());
    cache.views[i].values = moved(segment.values, segment.values.size());
    cache.views[i].index = moved(segment.index, segment.index_bytes);
  }
}

Lookups::Lookups(const Layer& layer, size_t segments, bool wave) : views(kKvHeads) {
  for (size_t h = 0; h < kKvHeads; h++) {
    const Cache& cache = *layer.heads[h];
    views[h].assign(cache.views.begin(), cache.views.begin() + static_cast<int64_t>(segments));
    memory.push_back(std::make_unique<TestLookup>(cache, layer.queries[h]));
    Lookup& lookup = memory.back()->lookup;
    lookup.segments = views[h].data();
    lookup.segment_count = static_cast<int32_t>(segments);
    lookup.partition_count = 0;
    lookup.indexed_tokens = 0;
    for (SegmentView& view : views[h]) {
      if (!wave) {
        view.partitions = 1;
        whole[1] = view.tokens;  // all have the same
        view.offsets = whole;
      }
      lookup.partition_count += view.partitions;
      lookup.indexed_tokens += view.tokens;
    }
    lookup.zones = zones_of(cache.params, lookup.indexed_tokens, lookup.partition_count);
    lookup.steady = &layer.steady[h];
    lookup.steady_count = 1;
    lookups.push_back(lookup);
  }
  args = lookup_args(*layer.heads[0], lookups.data(), kKvHeads, kGroup);
}

double read_all(const Stream& stream, const std::vector<uint64_t>& memory) {
  const int64_t parts = stream.workers * 4;
  std::vector<uint64_t> sums(static_cast<size_t>(parts) * 8);
  stream.each(parts, [&](int64_t part, int) {
    const size_t begin = memory.size() / static_cast<size_t>(parts) * static_cast<size_t>(part);
    const size_t end = begin + memory.size() / static_cast<size_t>(parts);
    uint64_t sum[8] = {};
    for (size_t i = begin; i + 8 <= end; i += 8)
      for (size_t j = 0; j < 8; j++) sum[j] ^= memory[i + j];
    for (uint64_t x : sum) sums[static_cast<size_t>(part) * 8] += x;
  });
  double total = 1;
  for (uint64_t x : sums) total += static_cast<double>(x);
  return total;
}

Options parse(int count, char** words) {
  Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = words[i];
    if (name == "--threads")
      options.threads = std::atoi(words[i + 1]);
    else if (name == "--repeat")
      options.repeat = std::max(1, std::atoi(words[i + 1]));
    else if (name == "--target-mass")
      options.target_mass = static_cast<float>(std::atof(words[i + 1]));
    else if (name == "--hot")
      options.hot = std::atoi(words[i + 1]) != 0;
    else if (name == "--context") {
      options.contexts.clear();
      for (const char* at = words[i + 1]; *at;) {
        char* end = nullptr;
        options.contexts.push_back(std::max<int64_t>(16, std::strtoll(at, &end, 10)));
        at = *end == ',' ? end + 1 : end;
        if (end == words[i + 1]) break;
      }
    } else {
      std::exit(std::fprintf(stderr, "unknown option %s\n", words[i]));
    }
  }
  return options;
}

}  // namespace
