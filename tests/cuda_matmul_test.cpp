// Products of few rows by the CUDA kernels: every type that the backend reads, ragged shapes, up to three
// weights, against sums in f64 of the weights as the CPU unpacks them.
#include "kernels/cuda/cuda.h"
#include "tests/support/device_memory.h"
#include "tests/support/kernel_test.h"

using namespace wi;
using namespace wi::test;

namespace {

constexpr DType kTypes[] = {DType::f32,  DType::f16,  DType::bf16, DType::q8_0,
                            DType::q4_0, DType::q4_k, DType::q5_k, DType::q6_k};

struct Part {
  DType type;
  int64_t outputs;
  std::vector<std::byte> stored;
  std::vector<float> weights, bias, before;
};

// With a workspace of its own, which is left as it has to be found.
void multiply(DeviceStream& stream, const MatmulArgs& args, int32_t processors) {
  const cuda::MatmulWorkspaceSize size = cuda::matmul_workspace(args);
  const DeviceArray<float> partials(stream, size.floats);
  const DeviceArray<uint32_t> arrived(stream, std::vector<uint32_t>(size.counts));
  assert_cuda(cuda::matmul_decode(stream, args, {partials, arrived, processors}));
  for (const uint32_t count : arrived.to_host()) assert_int_equal(count, 0);
}

void multiplies_any_shape(void**) {
  for (uint64_t shape = 0; shape < 240; ++shape) {
    std::mt19937_64 random(seed() * 1000 + shape);
    cuda_emulation::reset(random());
    DeviceStream stream;
    const bool all_quants = shape % 2;
    const int64_t inputs = all_quants ? 256 * static_cast<int64_t>(1 + random() % 5)
                                      : 32 * static_cast<int64_t>(1 + random() % 20);
    const int64_t rows =
        shape % 12 == 11 ? static_cast<int64_t>(random() % 70) : static_cast<int64_t>(1 + shape % 8);
    std::vector<Part> parts(1 + random() % 3);
    for (Part& part : parts) {
      part.type = kTypes[random() % (all_quants ? 8 : 5)];
      part.outputs = static_cast<int64_t>(1 + random() % 70);
      part.stored = random_weights(part.type, part.outputs * inputs, random);
      part.weights.resize(static_cast<size_t>(part.outputs * inputs));
      cpu::dequantize(part.stored.data(), part.type, part.weights.data(), part.outputs * inputs);
      if (random() % 2) part.bias = random_floats(static_cast<size_t>(part.outputs), random);
      part.before = random_floats(static_cast<size_t>(rows * part.outputs), random);
    }
    std::vector<float> in = random_floats(static_cast<size_t>(rows * inputs), random);
    if (shape % 5 == 4)  // sizes far apart, from row to row and within them
      for (size_t i = 0; i < in.size(); ++i)
        in[i] = std::ldexp(
            in[i], static_cast<int>(i / static_cast<size_t>(inputs) % 7) * 20 - 60 + (i % 97 ? 0 : 12));
    const bool accumulate = random() % 2;

    const DeviceArray<float> device_in(stream, in);
    std::vector<DeviceArray<std::byte>> weights;
    std::vector<DeviceArray<float>> biases, outs;
    MatmulArgs args{device_in, rows, {}, static_cast<int32_t>(parts.size())};
    for (size_t p = 0; p < parts.size(); ++p) {
      weights.emplace_back(stream, parts[p].stored);
      biases.emplace_back(stream, parts[p].bias);
      outs.emplace_back(stream, parts[p].before);
      args.parts[p] = {{weights.back(), parts[p].type, parts[p].outputs, inputs},
                       parts[p].bias.empty() ? nullptr : biases.back().data(),
                       outs.back(),
                       accumulate};
    }
    multiply(stream, args, static_cast<int32_t>(1 + shape % 3));
    for (size_t p = 0; p < parts.size(); ++p) {
      const Part& part = parts[p];
      const std::vector<float> got = outs[p].to_host();
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t o = 0; o < part.outputs; ++o) {
          const size_t at = static_cast<size_t>(r * part.outputs + o);
          double sum = part.bias.empty() ? 0 : double(part.bias[static_cast<size_t>(o)]),
                 size = std::abs(sum);
          if (accumulate) sum += double(part.before[at]), size += std::abs(double(part.before[at]));
          for (int64_t i = 0; i < inputs; ++i) {
            const double product = double(in[static_cast<size_t>(r * inputs + i)]) *
                                   double(part.weights[static_cast<size_t>(o * inputs + i)]);
            sum += product;
            size += std::abs(product);
          }
          // Of f32, a lane adds inputs / 32 products one by one, each sum rounded to 2^-24 of itself; others are
          // cut off at 2^-21 of themselves at worst, and added up in fewer steps.
          const double tolerance = size * (static_cast<double>(inputs) / 32 + 16) * 0x1p-24;
          if (!(std::abs(double(got[at]) - sum) <= tolerance))
            fail_because("shape %llu, %s, row %lld, output %lld: %.9g, wanted %.9g ± %g",
                         static_cast<unsigned long long>(shape), format_of(part.type).name,
                         static_cast<long long>(r), static_cast<long long>(o), static_cast<double>(got[at]),
                         sum, tolerance);
        }
    }
    assert_true(cuda_emulation::report().empty());
  }
}

void a_row_is_the_same_bits_in_any_company(void**) {
  // Of 768 inputs eight rows are kept in a block's memory, of 4,864 two to four.
  for (const DType type : kTypes)
    for (const int64_t inputs : {768, 4864}) {
      std::mt19937_64 random(seed());
      cuda_emulation::reset(random());
      DeviceStream stream;
      constexpr int64_t kOutputs = 37, kRows = 64;
      const std::vector<std::byte> stored = random_weights(type, kOutputs * inputs, random);
      const std::vector<float> in = random_floats(kRows * inputs, random);
      const DeviceArray<std::byte> weights(stream, stored);
      const DeviceArray<float> device_in(stream, in);
      const auto product = [&](int64_t first, int64_t rows, int32_t processors) {
        const DeviceArray<float> out(stream, static_cast<size_t>(rows * kOutputs));
        MatmulArgs args{device_in + first * inputs, rows, {}, 1};
        args.parts[0] = {{weights, type, kOutputs, inputs}, nullptr, out, false};
        multiply(stream, args, processors);
        return out.to_host();
      };
      const std::vector<float> all = product(0, kRows, 1);
      for (const int64_t rows : {1, 2, 3, 7, 8, 9, 16, 17, 24, 31, 32, 33, 45, 61}) {
        if (inputs > 768 && rows > 9) continue;  // which is no different then, and slow
        for (const int64_t first : {3, 0}) {
          const std::vector<float> some = product(first, rows, first == 0 ? 1 : 8);
          assert_memory_equal(some.data(), all.data() + first * kOutputs, some.size() * sizeof(float));
        }
      }
    }
}

void other_types_are_refused(void**) {
  cuda_emulation::reset(seed());
  DeviceStream stream;
  for (const DType type : {DType::q4_1, DType::q5_0, DType::q5_1, DType::q2_k, DType::q3_k}) {
    MatmulArgs args{nullptr, 1, {}, 1};
    args.parts[0] = {{nullptr, type, 1, 256}, nullptr, nullptr, false};
    assert_true(!cuda::reads_weights(type) && cuda::matmul_decode(stream, args, {}) == cudaErrorInvalidValue);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(multiplies_any_shape),
      cmocka_unit_test(a_row_is_the_same_bits_in_any_company),
      cmocka_unit_test(other_types_are_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
