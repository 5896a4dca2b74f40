// The two heavy operations of prefill at llama-1b's shapes, as JSON lines: GFLOP/s, and the share of what
// one product alone reaches in the same run with operands that fit in the cache. The share compares processor
// time, not wall time, so that it stays true on a machine that others use too.
//   prefill_bench [--threads N] [--only matmul|attend] [--precision fast|high|f32|int8]
// Quantised weights may be multiplied as integers: then the share is of the f32 peak and may exceed 1.
// With terms (kernels/cpu/unpack.h) each counts: a product of three makes three times the operations.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/unpack.h"
#include "src/memory/workers.h"
#include "tests/bench/help.h"

using namespace wi;

namespace {

constexpr int64_t kHidden = 2048;

struct Peak {
  double f32, bf16;  // GFLOP per second of processor time
};

Peak measure_peak(Workers& workers);
void bench_matmul(Workers& workers, const Peak& peak, Precision precision, DType type, int64_t rows,
                  int64_t outputs, int64_t inputs);
void bench_attend(Workers& workers, const Peak& peak, Precision precision, DType kv, int32_t head_dim,
                  int64_t rows, int64_t past);

}  // namespace

constexpr const char* kUsage =
    "prefill_bench: the heavy operations of prefill against what one product reaches alone, as JSON lines\n"
    "  --threads N    default: every core this process may use\n"
    "  --only OP      matmul or attend\n"
    "  --precision P  fast (default), high, f32 or int8\n"
    "Example: prefill_bench --only matmul\n";

int main(int count, char** arguments) {
  answer_help(count, arguments, kUsage);
  int threads = 0;
  std::string_view only, precision_name = "fast";
  for (int i = 1; i + 1 < count; i += 2) {
    if (std::strcmp(arguments[i], "--threads") == 0) threads = std::atoi(arguments[i + 1]);
    if (std::strcmp(arguments[i], "--only") == 0) only = arguments[i + 1];
    if (std::strcmp(arguments[i], "--precision") == 0) precision_name = arguments[i + 1];
  }
  const Precision precision = precision_name == "high"   ? Precision::high
                              : precision_name == "f32"  ? Precision::f32
                              : precision_name == "int8" ? Precision::int8
                                                         : Precision::fast;
  Workers workers(threads);
  const Peak peak = measure_peak(workers);
  std::printf("{\"bench\":\"peak\",\"threads\":%d,\"f32_core_gflops\":%.0f,\"bf16_core_gflops\":%.0f}\n",
              workers.threads(), peak.f32, peak.bf16);
  if (only != "attend") {
    for (DType type : {DType::f16, DType::bf16, DType::q8_0, DType::q4_k, DType::f32}) {
      for (int64_t rows : {128, 512, 2048}) {
        bench_matmul(workers, peak, precision, type, rows, kHidden, kHidden);
        bench_matmul(workers, peak, precision, type, rows, 8192, kHidden);
        bench_matmul(workers, peak, precision, type, rows, kHidden, 8192);
      }
    }
  }
  if (only != "matmul") {
    for (int64_t past : {2048, 8192, 32768})
      for (int64_t rows : {128, 512, 2048})
        bench_attend(workers, peak, precision, DType::f16, 64, rows, past);
    bench_attend(workers, peak, precision, DType::f16, 128, 512, 8192);
    bench_attend(workers, peak, precision, DType::bf16, 64, 512, 8192);
    bench_attend(workers, peak, precision, DType::f32, 64, 512, 8192);
  }
}

namespace {

struct Time {
  double wall_ms, cpu_ms;
};

// The best of several samples, each figure by itself; at least 3 and half a second of them. A sample is as
// many calls as take 40 ms, for the system counts processor time in ticks of several.
template <class F>
Time best_time(F&& call) {
  using Clock = std::chrono::steady_clock;
  auto sample = [&](int calls) {
    const auto start = Clock::now();
    const auto cpu_start = std::clock();
    for (int i = 0; i < calls; ++i) call();
    const double cpu_seconds = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
    return Time{std::chrono::duration<double, std::milli>(Clock::now() - start).count() / calls,
                1e3 * cpu_seconds / calls};
  };
  sample(1);  // compiles and grows the scratch
  const int calls = 1 + static_cast<int>(40 / sample(1).wall_ms);
  Time best{INFINITY, INFINITY};
  double total = 0;
  for (int i = 0; i < 3 || total < 500; ++i) {
    const Time time = sample(calls);
    total += time.wall_ms * calls;
    best = {std::min(best.wall_ms, time.wall_ms), std::min(best.cpu_ms, time.cpu_ms)};
  }
  return best;
}

Peak measure_peak(Workers& workers) {
  constexpr int64_t kRows = 256, kOutputs = 256, kInputs = 512, kTimes = 128;
  constexpr size_t kA = kRows * kInputs, kB = kOutputs * kInputs, kC = kRows * kOutputs;
  auto rate = [&](DType type) {
    const cpu::GemmShape shape{kRows, kOutputs, kInputs, type, true};
    Time time = best_time([&] {
      workers.run(nullptr, [&](const Stream& stream) {
        stream.each(stream.workers * 4, [&](int64_t, int worker) {
          const cpu::Gemm gemm(shape);
          float* a =
              stream.worker_array<float>(worker, kA + kB + kC + gemm.scratch_bytes() / sizeof(float) + 1);
          float *b = a + kA, *c = b + kB;
          std::fill(a, c, 0.5f);
          for (int64_t i = 0; i < kTimes; ++i) gemm.run(a, b, c, reinterpret_cast<std::byte*>(c + kC));
        });
      });
    });
    return 2.0 * kRows * kOutputs * kInputs * kTimes * 4 * workers.threads() / time.cpu_ms * 1e-6;
  };
  return {rate(DType::f32), cpu::has_fast_bf16() ? rate(DType::bf16) : 0};
}

void report(const char* bench, const char* type, const std::string& shape, double flop, Time time,
            double peak) {
  std::printf(
      "{\"bench\":\"%s\",\"type\":\"%s\",%s,\"ms\":%.3f,\"gflops\":%.0f,\"core_gflops\":%.0f,\"share\":%.3f}"
      "\n",
      bench, type, shape.c_str(), time.wall_ms, flop / time.wall_ms * 1e-6, flop / time.cpu_ms * 1e-6,
      flop / time.cpu_ms * 1e-6 / peak);
  std::fflush(stdout);
}

void require_near(double got, double want, double tolerance, const char* what) {
  if (std::abs(got - want) <= tolerance) return;
  std::fprintf(stderr, "%s: %g, want %g within %g\n", what, got, want, tolerance);
  std::exit(1);
}

// Small integers with a short period, so that weights of every type are cheap to make and results easy to
// check.
float pattern(int64_t i) { return static_cast<float>((i * 7 + i / 61) % 17 - 8) / 16; }

void bench_matmul(Workers& workers, const Peak& peak, Precision precision, DType type, int64_t rows,
                  int64_t outputs, int64_t inputs) {
  std::vector<float> in(static_cast<size_t>(rows * inputs)), out(static_cast<size_t>(rows * outputs));
  for (size_t i = 0; i < in.size(); ++i) in[i] = pattern(static_cast<int64_t>(i));
  std::vector<uint8_t> weight(row_bytes(type, inputs) * static_cast<size_t>(outputs));
  const size_t block = static_cast<size_t>(format_of(type).bytes);
  for (size_t at = 0; at < weight.size(); at += block) {
    const float value = pattern(static_cast<int64_t>(at / block));
    for (size_t j = 0; j < block; ++j) weight[at + j] = static_cast<uint8_t>(at * 31 + j * 37);
    if (type == DType::q4_k) cpu::to_kv(&value, DType::f16, &weight[at + 2], 1);
    if (format_of(type).elements > 1) {
      cpu::to_kv(&value, DType::f16, &weight[at], 1);
    } else {
      cpu::to_kv(&value, type, &weight[at], 1);
    }
  }
  MatmulArgs args{
      in.data(), rows, {{{weight.data(), type, outputs, inputs}, nullptr, out.data()}}, 1, precision};
  auto call = [&] { workers.run(nullptr, [&](const Stream& stream) { cpu::matmul(stream, args); }); };
  call();
  std::vector<float> row(static_cast<size_t>(inputs));
  cpu::dequantize(weight.data() + row_bytes(type, inputs) * static_cast<size_t>(outputs - 1), type,
                  row.data(), inputs);
  double want = 0, magnitude = 0;
  for (int64_t k = 0; k < inputs; ++k) {
    double product = double{row[static_cast<size_t>(k)]} * in[static_cast<size_t>((rows - 1) * inputs + k)];
    want += product;
    magnitude += std::abs(product);
  }
  require_near(out.back(), want, 0x1p-8 * magnitude, "matmul");
  const double flop =
      2.0 * static_cast<double>(rows) * static_cast<double>(outputs) * static_cast<double>(inputs);
  std::string shape = "\"rows\":" + std::to_string(rows) + ",\"outputs\":" + std::to_string(outputs) +
                      ",\"inputs\":" + std::to_string(inputs);
  const int terms = cpu::bf16_terms(precision, type);
  report("matmul", format_of(type).name, shape, flop * std::max(terms, 1), best_time(call),
         terms ? peak.bf16 : peak.f32);
}

void bench_attend(Workers& workers, const Peak& peak, Precision precision, DType kv, int32_t head_dim,
                  int64_t rows, int64_t past) {
  constexpr int32_t kKvHeads = 8, kGroup = 4;
  constexpr int64_t kRun = 1024;
  const int64_t tokens = past + rows, head_floats = tokens * head_dim;
  const size_t element = static_cast<size_t>(format_of(kv).bytes);
  std::vector<float> queries(static_cast<size_t>(rows * kKvHeads * kGroup * head_dim)), out(queries.size());
  for (size_t i = 0; i < queries.size(); ++i) queries[i] = pattern(static_cast<int64_t>(i));
  std::vector<float> wide(static_cast<size_t>(head_floats));
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = pattern(static_cast<int64_t>(i));
  std::vector<std::byte> stored(wide.size() * element * kKvHeads);
  std::vector<std::vector<KvRun>> runs(kKvHeads);
  std::vector<const KvRun*> lists;
  std::vector<int32_t> counts;
  for (int32_t h = 0; h < kKvHeads; ++h) {
    std::byte* head = stored.data() + wide.size() * element * static_cast<size_t>(h);
    cpu::to_kv(wide.data(), kv, head, head_floats);
    for (int64_t first = 0; first < tokens; first += kRun) {
      const std::byte* at = head + static_cast<size_t>(first * head_dim) * element;
      runs[static_cast<size_t>(h)].push_back({at, at, std::min(kRun, tokens - first)});
    }
    lists.push_back(runs[static_cast<size_t>(h)].data());
    counts.push_back(static_cast<int32_t>(runs[static_cast<size_t>(h)].size()));
  }
  const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
  AttendChunkArgs args{queries.data(), rows,         kKvHeads,      kGroup,     head_dim, kv,
                       scale,          lists.data(), counts.data(), out.data(), nullptr,  precision};
  auto call = [&] { workers.run(nullptr, [&](const Stream& stream) { cpu::attend_chunk(stream, args); }); };
  call();
  const float* query = queries.data() + queries.size() - static_cast<size_t>(head_dim);
  double sum = 0, want = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    double score = 0;
    for (int32_t j = 0; j < head_dim; ++j)
      score += double{query[j]} * wide[static_cast<size_t>(t * head_dim + j)];
    sum += std::exp(score * scale);
    want += std::exp(score * scale) * wide[static_cast<size_t>((t + 1) * head_dim - 1)];
  }
  require_near(out.back(), want / sum, 0x1p-8, "attend_chunk");
  const double pairs =
      static_cast<double>(rows) * (static_cast<double>(past) + static_cast<double>(rows + 1) / 2);
  std::string shape = "\"head_dim\":" + std::to_string(head_dim) + ",\"rows\":" + std::to_string(rows) +
                      ",\"past\":" + std::to_string(past);
  const int terms = cpu::bf16_terms(precision, kv);
  report("attend_chunk", format_of(kv).name, shape,
         4 * pairs * head_dim * kKvHeads * kGroup * std::max(terms, 1), best_time(call),
         terms ? peak.bf16 : peak.f32);
}

}  // namespace
