// How near the products of a decode step come to the machine's memory bandwidth, and what more rows cost.
// One JSON object per line. Every product is checked against f64 before it is timed; reads of plain memory
// alternate with the products, so that both see the same neighbours on the machine.
//   kernel_bench [--types q8_0,q4_k] [--rows 1,4] [--shapes 2048x8192] [--threads N] [--seconds S]
//                [--op decode|int8|dense|matmul] [--pages huge|small] [--order stored|turned] [--simd AVX2]
// decode: as a decode step asks for it, every row alike; int8: the same in 8-bit integers; matmul: as prefill
// does, whatever is fastest.
// simd: an instruction set that is not this processor's best, by Highway's name of it.
// Small pages and weights as stored are what a mapped file has, huge ones and, of quantised weights, turned rows
// (kernels/turned_rows.h) what is copied into memory.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

#include "kernels/cpu/cpu.h"
#include "src/memory/host_pool.h"
#include "src/memory/workers.h"
#include "tests/bench/help.h"
#include "tests/support/kernels.h"
#include "tests/support/weights.h"

using namespace wi;

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::vector<std::string> types = {"f32",  "f16",  "bf16", "q8_0", "q4_0", "q4_1", "q5_0",
                                    "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"};
  std::vector<std::string> rows = {"1"};
  std::vector<std::string> shapes = {"2048x8192", "128256x2048"};  // outputs x inputs
  std::string op = "decode", pages = "huge", order = "stored", simd;
  int threads = 0;
  double seconds = 0.5;  // per line
};
Options parse(int count, char** words);

struct Problem {
  DType type;
  int64_t rows, outputs, inputs;
  bool turned;
  int64_t copies;  // of the weights, so that one does not stay in the cache until its next turn
  HostBuffer weights;
  std::vector<float> in, out;
};
Problem make(DType type, const std::string& shape, int64_t rows, const Options& options);
Matrix matrix_of(const Problem& problem, int64_t copy);
void multiply(const Stream& stream, Problem& problem, const std::string& op, int64_t copy);
void check(const Problem& problem);
double median(std::vector<double> values);

// Reads all of the memory once; the return value keeps the compiler from dropping it.
uint64_t read_all(const Stream& stream, const HostBuffer& memory);

void run(Workers& workers, const std::string& type_name, const std::string& shape, int64_t rows,
         const Options& options) {
  const auto type = std::find_if(std::begin(test::kAllTypes), std::end(test::kAllTypes),
                                 [&](DType t) { return type_name == format_of(t).name; });
  if (type == std::end(test::kAllTypes))
    std::exit(std::fprintf(stderr, "unknown type %s\n", type_name.c_str()));
  Problem problem = make(*type, shape, rows, options);
  const double one_bytes = static_cast<double>(problem.weights.bytes()) / static_cast<double>(problem.copies);
  std::vector<double> seconds, read_gbs;
  workers.run(nullptr, [&](const Stream& stream) {
    multiply(stream, problem, options.op, 0);
    check(problem);
    volatile uint64_t sink = read_all(stream, problem.weights);
    const auto end = Clock::now() + std::chrono::duration<double>(options.seconds);
    while (Clock::now() < end || seconds.size() < 3) {
      auto start = Clock::now();
      sink = read_all(stream, problem.weights);
      read_gbs.push_back(static_cast<double>(problem.weights.bytes()) / 1e9 /
                         std::chrono::duration<double>(Clock::now() - start).count());
      for (int64_t copy = 0; copy < problem.copies; copy++) {
        start = Clock::now();
        multiply(stream, problem, options.op, copy);
        seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
      }
    }
    (void)sink;
  });
  const double typical = median(seconds), best = *std::min_element(seconds.begin(), seconds.end());
  const double bandwidth = median(read_gbs);
  const double flops = 2.0 * static_cast<double>(rows * problem.outputs * problem.inputs);
  std::printf(
      "{\"op\": \"%s\", \"type\": \"%s\", \"shape\": \"%s\", \"rows\": %d, \"threads\": %d, \"pages\": "
      "\"%s\", \"order\": \"%s\", \"simd\": "
      "\"%s\", \"us\": %.1f, "
      "\"best_us\": %.1f, \"gb_per_s\": %.2f, \"read_gb_per_s\": %.2f, \"share\": %.3f, \"gflop_per_s\": "
      "%.1f}\n",
      options.op.c_str(), type_name.c_str(), shape.c_str(), static_cast<int>(rows), workers.threads(),
      options.pages.c_str(), options.order.c_str(), cpu::simd_name(), typical * 1e6, best * 1e6,
      one_bytes / typical / 1e9, bandwidth, one_bytes / typical / 1e9 / bandwidth, flops / typical / 1e9);
  std::fflush(stdout);
}

Problem make(DType type, const std::string& shape, int64_t rows, const Options& options) {
  Problem out{.type = type,
              .rows = rows,
              .outputs = 0,
              .inputs = 0,
              .turned = options.order == "turned",
              .copies = 1,
              .weights = {},
              .in = {},
              .out = {}};
  char* end = nullptr;
  out.outputs = std::strtoll(shape.c_str(), &end, 10);
  out.inputs = *end ? std::strtoll(end + 1, nullptr, 10) : 0;
  if (out.outputs <= 0 || out.inputs <= 0 || out.inputs % 256)
    std::exit(std::fprintf(stderr, "bad shape %s\n", shape.c_str()));
  std::mt19937_64 random(1);
  const size_t one = static_cast<size_t>(out.outputs) * row_bytes(type, out.inputs);
  out.copies = static_cast<int64_t>((size_t{256} << 20) / one) + 1;
  out.weights = HostPool::create(HostPool::kUnlimited, options.pages == "huge")
                    ->allocate(one * static_cast<size_t>(out.copies), "weights");
  const int64_t pattern_rows = std::min<int64_t>(out.outputs, 61);
  const std::vector<std::byte> pattern = test::random_weights(type, pattern_rows * out.inputs, random);
  for (size_t at = 0; at < out.weights.bytes(); at += pattern.size())
    std::memcpy(out.weights.data() + at, pattern.data(), std::min(pattern.size(), out.weights.bytes() - at));
  for (int64_t copy = 0; out.turned && copy < out.copies; copy++) {
    Matrix matrix = matrix_of(out, copy);
    matrix.turned = false;
    if (!can_be_turned(matrix))
      std::exit(std::fprintf(stderr, "%s of %s cannot be turned\n", format_of(type).name, shape.c_str()));
    test::turn(matrix, out.weights.data() + static_cast<size_t>(copy) * one);
  }
  std::normal_distribution<float> normal;
  out.in.resize(static_cast<size_t>(rows * out.inputs));
  for (float& value : out.in) value = normal(random);
  out.out.resize(static_cast<size_t>(rows * out.outputs));
  return out;
}

Matrix matrix_of(const Problem& problem, int64_t copy) {
  const size_t one = problem.weights.bytes() / static_cast<size_t>(problem.copies);
  return {problem.weights.data() + static_cast<size_t>(copy) * one, problem.type, problem.outputs,
          problem.inputs, problem.turned};
}

void multiply(const Stream& stream, Problem& problem, const std::string& op, int64_t copy) {
  const Matrix weight = matrix_of(problem, copy);
  const MatmulArgs args{
      .in = problem.in.data(),
      .rows = problem.rows,
      .parts = {{.weight = weight, .bias = nullptr, .out = problem.out.data(), .accumulate = false}},
      .part_count = 1,
      .rows_alike = op == "decode"};
  if (op == "dense") return cpu::matmul_dense(stream, args);
  if (op == "int8") return cpu::matmul_bytes(stream, args);
  if (op == "matmul") return cpu::matmul(stream, args);
  cpu::matmul_decode(stream, args);
}

// Sampled outputs against f64, within bf16's rounding of both factors (what the dense products use),: errors of 8-bit
// activations, of either sign, add up to far less.
void check(const Problem& problem) {
  std::vector<float> w(static_cast<size_t>(problem.inputs));
  const size_t row_size = row_bytes(problem.type, problem.inputs);
  std::vector<std::byte> stored(row_size);
  for (int64_t output = 0; output < problem.outputs; output += 1 + problem.outputs / 97) {
    copy_as_stored(matrix_of(problem, 0), static_cast<uint64_t>(output) * row_size, row_size, stored.data());
    cpu::dequantize(stored.data(), problem.type, w.data(), problem.inputs);
    for (int64_t row = 0; row < problem.rows; row++) {
      double sum = 0, magnitude = 0;
      for (size_t i = 0; i < w.size(); i++) {
        const double term = static_cast<double>(problem.in[static_cast<size_t>(row * problem.inputs) + i]) *
                            static_cast<double>(w[i]);
        sum += term;
        magnitude += std::abs(term);
      }
      const double got =
          static_cast<double>(problem.out[static_cast<size_t>(row * problem.outputs + output)]);
      if (!(std::abs(got - sum) <= magnitude * 0x1p-8))
        std::exit(std::fprintf(stderr, "%s: output %d of row %d is %g, wanted %g\n",
                               format_of(problem.type).name, static_cast<int>(output), static_cast<int>(row),
                               got, sum));
    }
  }
}

uint64_t read_all(const Stream& stream, const HostBuffer& memory) {
  constexpr size_t kTask = 256 << 10;
  const size_t tasks = memory.bytes() / kTask;
  std::atomic<uint64_t> total{0};
  stream.each(static_cast<int64_t>(tasks), [&](int64_t task, int) {
    const std::byte* from = memory.data() + static_cast<size_t>(task) * kTask;
    uint64_t sums[8] = {};
    for (size_t i = 0; i < kTask; i += 64) {
      uint64_t words[8];
      std::memcpy(words, from + i, 64);
      for (int j = 0; j < 8; j++) sums[j] += words[j];
    }
    total += sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
  });
  return total;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) out.push_back(word);
  return out;
}

Options parse(int count, char** words) {
  Options out;
  for (int i = 1; i < count; i += 2) {
    const std::string name = words[i];
    if (i + 1 == count) std::exit(std::fprintf(stderr, "%s needs a value\n", words[i]));
    const char* value = words[i + 1];
    if (name == "--types")
      out.types = split(value);
    else if (name == "--rows")
      out.rows = split(value);
    else if (name == "--shapes")
      out.shapes = split(value);
    else if (name == "--op")
      out.op = value;
    else if (name == "--pages" && (!std::strcmp(value, "huge") || !std::strcmp(value, "small")))
      out.pages = value;
    else if (name == "--order" && (!std::strcmp(value, "stored") || !std::strcmp(value, "turned")))
      out.order = value;
    else if (name == "--threads")
      out.threads = std::atoi(value);
    else if (name == "--simd")
      out.simd = value;
    else if (name == "--seconds")
      out.seconds = std::atof(value);
    else
      std::exit(std::fprintf(stderr, "unknown option %s\n", words[i]));
  }
  return out;
}

}  // namespace

constexpr const char* kUsage =
    "kernel_bench: products of a decode step against the memory's bandwidth, as JSON lines\n"
    "  --types T[,T…]    of weights: f32, f16, bf16, q8_0, q4_0 … q6_k\n"
    "  --rows N[,N…]     tokens at once\n"
    "  --shapes RxC[,…]  outputs x inputs\n"
    "  --op OP           decode (rows alike), int8 (WI_PRECISION_INT8), dense, or matmul, as a prefill asks\n"
    "  --pages P         huge or small\n"
    "  --order O         of weights: as stored, or with their rows turned\n"
    "  --simd NAME       no better instruction set than this: SSSE3, AVX2, AVX2_VNNI, AVX3, AVX3_DL\n"
    "  --threads N       default: every core this process may use\n"
    "  --seconds S       of each measurement\n"
    "Example: kernel_bench --types q8_0,q4_0 --rows 1,16\n";

int main(int count, char** words) {
  answer_help(count, words, kUsage);
  const Options options = parse(count, words);
  Workers workers(options.threads);
  bool found = false;
  test::for_each_simd([&](const char* name) {
    if (found || (!options.simd.empty() && options.simd != name)) return;
    found = true;  // the first is the best
    for (const std::string& shape : options.shapes)
      for (const std::string& type : options.types)
        for (const std::string& rows : options.rows)
          run(workers, type, shape, std::max(1, std::atoi(rows.c_str())), options);
  });
  if (!found) std::exit(std::fprintf(stderr, "no %s here\n", options.simd.c_str()));
}
