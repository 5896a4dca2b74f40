// gpu_test kernel_bench: each kernel alone, at the sizes of an 8B model's layer, against its own limit: the bytes
// that it has to read over what a copy within the device's memory moves, or its products. One JSON object a line;
// no result is checked here, the tests do that. With WI_QUICK=1 sizes are small, to see it run; with WI_COPIES=1 copies are
// all that is measured: what the device's memory and the bus carry.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/policy/wave.h"
#include "kernels/cuda/policy/wave_build.h"
#include "tests/lookups.h"
#include "tests/support/device_memory.h"
#include "tests/support/kernel_test.h"

using namespace wi;
using namespace wi::test;

namespace {

size_t shared_bytes() { return cuda_emulation::limit_shared(227 << 10); }  // all that there is

// Of llama-8b.
constexpr int32_t kHidden = 4096, kHeads = 8, kGroup = 4, kDim = 128, kFfn = 14336;

bool quick() { return std::getenv("WI_QUICK") != nullptr; }
size_t size(int64_t count) { return static_cast<size_t>(count); }

double copy_bytes_per_second = 0;  // read and written together

// Calls of one kind, behind each other on a stream, until they take long enough; the least time of a few rounds
// is that of one call.
double seconds_of(DeviceStream& stream, const std::function<cudaError_t()>& call) {
  using Clock = std::chrono::steady_clock;
  const auto round = [&](int64_t calls) {
    stream.finish();
    const Clock::time_point begin = Clock::now();
    for (int64_t i = 0; i < calls; ++i) assert_cuda(call());
    stream.finish();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  if (quick()) return round(1);
  round(3);
  const int64_t calls =
      std::clamp<int64_t>(static_cast<int64_t>(0.02 / std::max(round(3) / 3, 1e-6)), 3, 2000);
  double least = round(calls);
  for (int i = 0; i < 4; ++i) least = std::min(least, round(calls));
  return least / static_cast<double>(calls);
}

// bytes: that must be read or written; operations: of floats. 0: says nothing about the time.
void measure(DeviceStream& stream, const char* kernel, const std::string& shape, double bytes,
             double operations, const std::function<cudaError_t()>& call) {
  const double seconds = seconds_of(stream, call);
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  std::printf("{\"kernel\":\"%s\",\"shape\":\"%s\",\"us\":%.2f", kernel, shape.c_str(), seconds * 1e6);
  if (bytes > 0)
    std::printf(",\"gb_per_s\":%.1f,\"of_copy\":%.3f", bytes / seconds * 1e-9,
                copy_bytes_per_second > 0 ? bytes / seconds / copy_bytes_per_second : 0.0);
  if (operations > 0) std::printf(",\"tflops\":%.2f", operations / seconds * 1e-12);
  std::printf(",\"date\":\"%s\"}\n", date);
  std::fflush(stdout);
}

std::string text(const char* format, auto... values) {
  char out[160];
  std::snprintf(out, sizeof out, format, values...);
  return out;
}

// Random bytes, some MB over and over: what the kernels do does not depend on it.
DeviceArray<std::byte> some_bytes(DeviceStream& stream, size_t count, DType type) {
  std::mt19937_64 random(7);
  const int64_t elements = std::min<int64_t>(static_cast<int64_t>(count), 1 << 22) / 4096 * 4096;
  const std::vector<std::byte> few = random_weights(type, std::max<int64_t>(elements, 4096), random);
  DeviceArray<std::byte> all(stream, count);
  for (size_t at = 0; at < count; at += few.size())
    assert_cuda(cudaMemcpyAsync(all + at, few.data(), std::min(few.size(), count - at),
                                cudaMemcpyHostToDevice, stream));
  stream.finish();
  return all;
}

void copies(DeviceStream& stream) {
  const size_t bytes = quick() ? size_t{1} << 20 : size_t{4} << 30;
  {
    const DeviceArray<std::byte> from = some_bytes(stream, bytes, DType::f16), to(stream, bytes);
    const auto copy = [&] { return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream); };
    copy_bytes_per_second = 2.0 * static_cast<double>(bytes) / seconds_of(stream, copy);
    measure(stream, "copy in device memory", text("%zu MB", bytes >> 20), 2.0 * static_cast<double>(bytes), 0,
            copy);
  }
  const size_t pinned_bytes = bytes / 8;
  void* pinned = nullptr;
  assert_cuda(cudaMallocHost(&pinned, pinned_bytes));
  std::memset(pinned, 1, pinned_bytes);
  const DeviceArray<std::byte> there(stream, pinned_bytes);
  measure(stream, "copy from pinned memory", text("%zu MB", pinned_bytes >> 20),
          static_cast<double>(pinned_bytes), 0,
          [&] { return cudaMemcpyAsync(there, pinned, pinned_bytes, cudaMemcpyHostToDevice, stream); });
  measure(stream, "copy to pinned memory", text("%zu MB", pinned_bytes >> 20),
          static_cast<double>(pinned_bytes), 0,
          [&] { return cudaMemcpyAsync(pinned, there, pinned_bytes, cudaMemcpyDeviceToHost, stream); });
  assert_cuda(cudaFreeHost(pinned));
}

void products(DeviceStream& stream) {
  struct Weight {
    const char* name;
    int64_t outputs, inputs;
  };
  const std::vector<Weight> weights = quick() ? std::vector<Weight>{{"q", 64, 256}}
                                              : std::vector<Weight>{{"q", kHidden, kHidden},
                                                                    {"gate", kFfn, kHidden},
                                                                    {"down", kHidden, kFfn},
                                                                    {"output", 128256, kHidden}};
  const std::vector<int64_t> few = quick() ? std::vector<int64_t>{1} : std::vector<int64_t>{1, 8, 16, 32, 64};
  const std::vector<int64_t> many = quick() ? std::vector<int64_t>{64} : std::vector<int64_t>{64, 1024};
  for (const DType type : {DType::f16, DType::q8_0, DType::q4_k})
    for (const Weight& weight : weights) {
      if (type != DType::f16 && std::strcmp(weight.name, "output") == 0) continue;
      const size_t bytes = row_bytes(type, weight.inputs) * size(weight.outputs);
      const DeviceArray<std::byte> data = some_bytes(stream, bytes, type);
      const int64_t most = many.back();
      const DeviceArray<float> in(stream, std::vector<float>(size(most * weight.inputs), 0.5f));
      const DeviceArray<float> out(stream, size(most * weight.outputs));
      const auto run = [&](const char* kernel, int64_t rows, auto function) {
        MatmulArgs args{in, rows, {}, 1};
        args.parts[0] = {{data, type, weight.outputs, weight.inputs}, nullptr, out, false};
        const double operations = 2.0 * static_cast<double>(rows * weight.outputs * weight.inputs);
        measure(
            stream, kernel,
            text("%s %lld x %lld, %s, %lld rows", weight.name, static_cast<long long>(weight.outputs),
                 static_cast<long long>(weight.inputs), format_of(type).name, static_cast<long long>(rows)),
            static_cast<double>(bytes), operations, [&, args] { return function(stream, args); });
      };
      MatmulArgs largest{in, few.back(), {}, 1};
      largest.parts[0].weight = {data, type, weight.outputs, weight.inputs};
      const cuda::MatmulWorkspaceSize need = cuda::matmul_workspace(largest);
      int processors = 0;
      (void)cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0);
      const DeviceArray<float> partials(stream, need.floats);
      const DeviceArray<uint32_t> arrived(stream, std::vector<uint32_t>(need.counts));
      for (const int64_t rows : few)
        run("matmul_decode", rows, [&](cudaStream_t on, const MatmulArgs& args) {
          return cuda::matmul_decode(on, args, {partials, arrived, processors});
        });
      if (type == DType::q4_k || weight.outputs > 100000) continue;
      largest.rows = many.back();
      const DeviceArray<std::byte> memory(stream, cuda::matmul_workspace_bytes(largest));
      for (const int64_t rows : many)
        run("matmul", rows, [&](cudaStream_t on, const MatmulArgs& args) {
          return cuda::matmul(on, args, {memory, shared_bytes()});
        });
    }
}

// What picks the next tokens: the best, drawn from all, and drawn after cuts, of logits as models have them and of such as
// are nearly the same, of which cuts leave most.
void tokens(DeviceStream& stream) {
  const int64_t vocab = quick() ? 3000 : 128256;
  std::mt19937_64 random(7);
  const SamplingRow best{.picks = 1}, drawn{.picks = 1, .temperature = 0.8f, .random = random()};
  SamplingRow cut = drawn;
  cut.top_k = 40, cut.top_p = 0.9f;
  SamplingRow prefix = drawn;
  prefix.top_p = 0.9f;
  struct Case {
    const char* name;
    SamplingRow by;
    float spread;
  };
  const Case cases[] = {{"best", best, 3},
                        {"drawn", drawn, 3},
                        {"top_k 40, top_p 0.9", cut, 3},
                        {"top_p 0.9", prefix, 3},
                        {"top_p 0.9, flat", prefix, 0.1f}};
  for (const int64_t rows : quick() ? std::vector<int64_t>{1} : std::vector<int64_t>{1, 32})
    for (const Case& one : cases) {
      std::vector<float> numbers = random_floats(size(rows * vocab), random);
      for (float& number : numbers) number *= one.spread;
      const DeviceArray<float> logits(stream, numbers);
      const DeviceArray<SamplingRow> by(stream, std::vector<SamplingRow>(size(rows), one.by));
      const DeviceArray<SampledRow> out(stream, size(rows));
      const DeviceArray<std::byte> workspace(stream, cuda::sample_workspace(rows, vocab));
      measure(stream, "sample",
              text("%lld of %lld, %s", static_cast<long long>(rows), static_cast<long long>(vocab), one.name),
              static_cast<double>(rows * vocab) * sizeof(float), 0, [&] {
                return cuda::sample(stream, {logits, rows, vocab, by, out}, workspace);
              });
    }
}

// So many lookups over a context of their own each, the same in all.
class Contexts {
 public:
  Contexts(DeviceStream& stream, const Cache& cache, const std::vector<float>& query, int32_t count)
      : stream_(stream), counters_(stream, std::vector<LookupCounters>(size(count))) {
    const TestLookup here(cache, query);
    std::vector<Lookup> lookups;
    for (int32_t i = 0; i < count; ++i) {
      std::vector<SegmentView> views = cache.views;
      std::vector<KvRun> whole;
      for (size_t s = 0; s < views.size(); ++s) {
        const Cache::Segment& segment = *cache.segments[s];
        views[s].keys = hold(segment.keys.data(), segment.keys.size());
        views[s].values = hold(segment.values.data(), segment.values.size());
        views[s].index = hold(segment.index.data(), segment.index_bytes);
        views[s].offsets = hold(segment.offsets.data(), segment.offsets.size());
        views[s].places = hold(segment.places.data(), segment.places.size());
        whole.push_back({views[s].keys, views[s].values, views[s].tokens});
      }
      Lookup lookup = here.lookup;
      const size_t n = size(cache.partitions);
      lookup.query = hold(query.data(), query.size());
      lookup.segments = hold(views.data(), views.size());
      lookup.scores = room<float>(n * kGroup);
      lookup.retrieved = room<PartitionRef>(n);
      lookup.estimated = room<PartitionRef>(n);
      lookup.runs = room<KvRun>(n);
      lookup.out = room<float>(query.size());
      lookup.lse = room<float>(kGroup);
      lookup.counters = counters_ + i;
      lookups.push_back(lookup);
      // The same, attended to as a whole.
      lookup.steady = hold(whole.data(), whole.size());
      lookup.steady_count = static_cast<int32_t>(whole.size());
      full_lookups_.push_back(lookup);
    }
    wave_ = hold(lookups.data(), lookups.size());
    full_ = hold(full_lookups_.data(), full_lookups_.size());
    const cuda::AttendWorkspaceSize need = cuda::attend_workspace(count, kGroup, kDim);
    chunks_ = {room<float>(need.floats), nullptr, 1, shared_bytes()};
    const std::vector<uint32_t> zeros(need.counts);
    chunks_.arrived = hold(zeros.data(), zeros.size());
    clusters_ = {room<std::byte>(cuda::wave_select_workspace(count, kGroup, cache.partitions)),
                 cache.partitions, static_cast<int32_t>(cache.views.size())};
    args_ = {nullptr, count, kGroup, kDim, cache.kv, 1 / std::sqrt(static_cast<float>(kDim))};
    tokens_ = cache.indexed_tokens;
  }

  void run(const std::string& shape) {
    const double row = 2.0 * static_cast<double>(row_bytes(args_.kv, kDim)), count = args_.count;
    args_.lookups = full_;
    args_.usual_tokens = tokens_;
    chunks_.blocks = blocks();
    measure(stream_, "attend, full", shape, row * static_cast<double>(tokens_) * count, 0,
            [&] { return cuda::attend(stream_, args_, chunks_); });

    args_.lookups = wave_;
    // Counters of one call each.
    const auto counted = [&](auto member, const std::function<cudaError_t()>& call) {
      const auto sum = [&] {
        double all = 0;
        for (const LookupCounters& one : counters_.to_host()) all += static_cast<double>(one.*member);
        return all;
      };
      const double before = sum();
      assert_cuda(call());
      return sum() - before;
    };
    const auto score = [&] { return cuda::wave_score(stream_, args_, clusters_); };
    const auto select = [&] { return cuda::wave_select(stream_, args_, clusters_); };
    assert_cuda(score());
    const double index_bytes = counted(&LookupCounters::index_bytes_read, select);
    const double partitions = clusters_.most_partitions,
                 retrieved = counted(&LookupCounters::retrieved, select);
    measure(stream_, "wave_score", shape, index_bytes, 0, score);
    // Each score once.
    measure(stream_, "wave_select", shape, partitions * kGroup * sizeof(float) * count, 0, select);
    measure(stream_, "retrieve", shape,
            retrieved * (sizeof(PartitionRef) + 2 * sizeof(int32_t) + sizeof(KvRun)), 0,
            [&] { return cuda::retrieve(stream_, args_); });
    args_.usual_tokens = tokens_ / 50;
    chunks_.blocks = blocks();
    const auto attend = [&] { return cuda::attend(stream_, args_, chunks_); };
    const double attended = counted(&LookupCounters::attended_tokens, attend);
    measure(stream_, "attend, wave", shape, row * attended, 0, attend);
    const auto estimate = [&] { return cuda::wave_estimate(stream_, args_, clusters_, chunks_); };
    const double means = counted(&LookupCounters::index_bytes_read, estimate);
    measure(stream_, "wave_estimate", shape, means, 0, estimate);
    measure(stream_, "wave, all of it", shape, index_bytes + row * attended, 0, [&] {
      cudaError_t error = score();
      if (error == cudaSuccess) error = select();
      if (error == cudaSuccess) error = cuda::retrieve(stream_, args_);
      if (error == cudaSuccess) error = attend();
      return error == cudaSuccess ? estimate() : error;
    });
  }

 private:
  int32_t blocks() const {  // as the backend has it
    int processors = 0;
    assert_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    return cuda::attend_blocks(args_, processors, shared_bytes());
  }
  template <class T>
  T* room(size_t count) {
    memory_.emplace_back(stream_, count * sizeof(T));
    return reinterpret_cast<T*>(memory_.back().data());
  }
  template <class T>
  T* hold(const T* from, size_t count) {
    memory_.emplace_back(stream_, reinterpret_cast<const std::byte*>(from), count * sizeof(T));
    return reinterpret_cast<T*>(memory_.back().data());
  }

  DeviceStream& stream_;
  std::vector<DeviceArray<std::byte>> memory_;
  DeviceArray<LookupCounters> counters_;
  std::vector<Lookup> full_lookups_;
  Lookup *wave_ = nullptr, *full_ = nullptr;
  LookupArgs args_{};
  cuda::AttendWorkspace chunks_{};
  cuda::WaveSelectWorkspace clusters_{};
  int64_t tokens_ = 0;
};

void lookups(DeviceStream& stream) {
  struct Case {
    int64_t tokens;
    int32_t batch;
  };
  const std::vector<Case> cases = quick()
                                      ? std::vector<Case>{{1500, 1}}
                                      : std::vector<Case>{{122880, 1}, {8192, 1}, {122880, 4}, {8192, 32}};
  for (const Case& one : cases) {
    std::mt19937_64 random(11);
    PolicyParams params;
    if (quick()) params.kmeans_iterations = 2;
    Cache cache(cpu::wave_policy, params, DType::f16, kDim);
    for (int64_t left = one.tokens; left > 0; left -= 8192) {
      const auto tokens = static_cast<int32_t>(std::min<int64_t>(left, 8192));
      cache.seal(draw(Keys::clustered, tokens, kDim, random), draw(Keys::uniform, tokens, kDim, random));
    }
    const std::vector<float> query = random_floats(kGroup * kDim, random);
    Contexts contexts(stream, cache, query, kHeads * one.batch);
    contexts.run(text("%lld tokens, batch %d, %d heads of %d, f16", static_cast<long long>(one.tokens),
                      one.batch, kHeads, kGroup));
  }
}

// Of a segment of one layer. Its limits: keys once for each iteration, then keys and values from here to there; and the
// products of each key with all centroids.
void index_build(DeviceStream& stream) {
  const int32_t tokens = quick() ? 300 : 8192;
  PolicyParams params;
  if (quick()) params.kmeans_iterations = 2;
  cuda::WaveIndexArgs args = cuda::wave_index_args(params, tokens, kDim, DType::f16);
  args.count = kHeads;
  const size_t half = row_bytes(DType::f16, kDim) * size(tokens), each = args.layout.bytes,
               index = cpu::wave_policy.index_capacity(params, tokens, kDim, DType::f16);
  const DeviceArray<std::byte> workspace(stream, kHeads * each);
  std::mt19937_64 random(13);
  std::vector<DeviceArray<std::byte>> memory;
  std::vector<DeviceArray<int32_t>> places;
  std::vector<cuda::WavePlane> planes;
  for (size_t i = 0; i < kHeads; ++i) {
    for (size_t of = 0; of < 2; ++of) {
      const AlignedBytes rows =
          to_kv(draw(of ? Keys::uniform : Keys::clustered, tokens, kDim, random), DType::f16);
      assert_cuda(cudaMemcpyAsync(workspace.data() + i * each + of * half, rows.data(), half,
                                  cudaMemcpyHostToDevice, stream));
      stream.finish();
    }
    std::byte* out[3];
    for (size_t of = 0; of < 3; ++of) {
      memory.emplace_back(stream, std::vector<std::byte>(of < 2 ? half : index));
      out[of] = memory.back();
    }
    places.emplace_back(stream, size(tokens));
    planes.push_back({out[0], out[1], places.back(), out[2]});
  }
  const DeviceArray<cuda::WavePlane> list(stream, planes);
  const DeviceArray<IndexResult> results(stream, size(kHeads));
  args.planes = list;
  args.results = results;
  args.workspace = workspace.data();
  const double rounds = params.kmeans_iterations, planes_bytes = kHeads * static_cast<double>(half);
  measure(stream, "index build", text("%d tokens, %d heads, f16", tokens, kHeads),
          planes_bytes * (rounds + 4),
          rounds * 2.0 * kDim * kHeads * static_cast<double>(tokens) * args.centroids,
          [&] { return cuda::wave_index(stream, args); });
}

void chunks(DeviceStream& stream) {
  const int64_t rows = quick() ? 40 : 1024;
  const std::vector<int64_t> pasts =
      quick() ? std::vector<int64_t>{100} : std::vector<int64_t>{0, 7168, 31744};
  for (const DType kv : {DType::f16, DType::bf16, DType::f32})
    for (const int64_t past : pasts) {
      if (kv != DType::f16 && past != pasts.back()) continue;
      if (kv == DType::f32 && past > 8192) continue;
      const size_t head_bytes = row_bytes(kv, (past + rows) * kDim);
      std::vector<DeviceArray<std::byte>> memory;
      std::vector<DeviceArray<KvRun>> runs;
      std::vector<const KvRun*> lists;
      for (int32_t head = 0; head < kHeads; ++head) {
        memory.push_back(some_bytes(stream, head_bytes, kv));
        const std::byte* const keys = memory.back();
        memory.push_back(some_bytes(stream, head_bytes, kv));
        runs.emplace_back(stream, std::vector<KvRun>{{keys, memory.back(), past + rows}});
        lists.push_back(runs.back());
      }
      const DeviceArray<const KvRun*> list(stream, lists);
      const DeviceArray<int32_t> counts(stream, std::vector<int32_t>(kHeads, 1));
      const size_t numbers = size(rows) * kHeads * kGroup * kDim;
      const DeviceArray<float> queries(stream, std::vector<float>(numbers, 0.1f)), out(stream, numbers);
      AttendChunkArgs args{};
      args.queries = queries;
      args.rows = rows;
      args.kv_heads = kHeads;
      args.group = kGroup;
      args.head_dim = kDim;
      args.kv = kv;
      args.scale = 1 / std::sqrt(static_cast<float>(kDim));
      args.runs = list;
      args.run_count = counts;
      args.out = out;
      const double pairs =
          static_cast<double>(rows) * (static_cast<double>(past) + static_cast<double>(rows + 1) / 2);
      measure(stream, "attend_chunk",
              text("%lld rows after %lld, %d heads of %d, %s", static_cast<long long>(rows),
                   static_cast<long long>(past), kHeads, kGroup, format_of(kv).name),
              0, 4.0 * kDim * kHeads * kGroup * pairs,
              [&] { return cuda::attend_chunk(stream, args, shared_bytes()); });
    }
}

void small_ones(DeviceStream& stream) {
  const int64_t width = quick() ? 256 : kHidden;
  for (const int64_t rows : {int64_t{1}, int64_t{32}}) {
    const DeviceArray<float> in(stream, std::vector<float>(size(rows * kFfn), 0.5f)),
        weight(stream, std::vector<float>(size(width), 1.0f)), out(stream, size(rows * kFfn));
    const std::string shape = text("%lld rows", static_cast<long long>(rows));
    measure(stream, "rms_norm", shape, 0, 0, [&] {
      return cuda::rms_norm(stream, {in, width, weight, out, width, rows, width, 1e-5f});
    });
    measure(stream, "swiglu", shape, 0, 0, [&] { return cuda::swiglu(stream, {in, in, out, rows * width}); });
  }
}

}  // namespace

int main() {
  cuda_emulation::reset(1);
  DeviceStream stream;
  copies(stream);
  if (std::getenv("WI_COPIES")) return 0;
  lookups(stream);
  index_build(stream);
  products(stream);
  chunks(stream);
  small_ones(stream);
  tokens(stream);
  return cuda_emulation::report().empty() ? 0 : 1;
}
