// Products of many rows by the CUDA kernels: every type that the backend reads, every precision, ragged
// shapes, up to three weights, against sums in f64 of the operands as they are multiplied: rounded to bf16
// where products are in bf16, as the CPU rounds them, rows to f16 where weights are in f16.
#include "kernels/cuda/cuda.h"
#include "tests/support/device_memory.h"
#include "tests/support/kernel_test.h"

using namespace wi;
using namespace wi::test;

namespace {

constexpr DType kTypes[] = {DType::f32,  DType::f16,  DType::bf16, DType::q8_0,
                            DType::q4_0, DType::q4_k, DType::q5_k, DType::q6_k};
constexpr Precision kPrecisions[] = {Precision::fast, Precision::f32, Precision::high, Precision::int8};

// What operands are rounded to.
DType operands(DType type, Precision precision) {
  if (type == DType::f32 || (precision != Precision::fast && precision != Precision::int8)) return DType::f32;
  return type == DType::f16 ? DType::f16 : DType::bf16;
}

// To f16's 11 bits, of whatever size: rows are scaled.
float to_11_bits(float number) {
  const uint32_t bits = std::bit_cast<uint32_t>(number);
  return std::bit_cast<float>((bits + 0xFFF + (bits >> 13 & 1)) & ~uint32_t{0x1FFF});
}

std::vector<float> rounded(std::vector<float> numbers, DType to) {
  for (float& number : numbers)
    number = to == DType::bf16 ? from_bf16(to_bf16(number)) : to == DType::f16 ? to_11_bits(number) : number;
  return numbers;
}

// As matmul() takes them, whatever their sizes: what f16 has no room for is scaled.
cudaError_t multiply(DeviceStream& stream, const MatmulArgs& args, size_t shared_bytes = 227 << 10) {
  const DeviceArray<std::byte> memory(stream, cuda::matmul_workspace_bytes(args));
  const cudaError_t error = cuda::matmul(stream, args, {memory, cuda_emulation::limit_shared(shared_bytes)});
  stream.finish();
  return error;
}

struct Part {
  Part(std::mt19937_64& random, DType weight_type, int64_t rows, int64_t inputs, int64_t output_count,
       bool biased)
      : type(weight_type),
        outputs(output_count),
        stored(random_weights(type, outputs * inputs, random)),
        weights(static_cast<size_t>(outputs * inputs)),
        before(random_floats(static_cast<size_t>(rows * outputs), random)) {
    cpu::dequantize(stored.data(), type, weights.data(), outputs * inputs);
    if (biased) bias = random_floats(static_cast<size_t>(outputs), random);
  }
  DType type;
  int64_t outputs;
  std::vector<std::byte> stored;
  std::vector<float> weights, before, bias;
};

int64_t draw(std::mt19937_64& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}

// Tensor cores add 16 products at a time, aligned to the largest, CUDA cores one by one: each sum is off by at
// most 2^-23 of what is added.
void check_part(uint64_t shape, const Part& part, const std::vector<float>& in, int64_t rows, int64_t inputs,
                Precision precision, bool accumulate, const std::vector<float>& got) {
  const DType to = operands(part.type, precision);
  const bool narrow = to != DType::f32;
  const std::vector<float> left = rounded(in, to), right = rounded(part.weights, to);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < part.outputs; ++o) {
      const size_t at = static_cast<size_t>(r * part.outputs + o);
      double sum = part.bias.empty() ? 0 : double(part.bias[static_cast<size_t>(o)]), size = std::abs(sum);
      if (accumulate) sum += double(part.before[at]), size += std::abs(double(part.before[at]));
      const float* const a = &left[static_cast<size_t>(r * inputs)];
      const float* const b = &right[static_cast<size_t>(o * inputs)];
      for (int64_t i = 0; i < inputs; ++i) {
        const double product = double(a[i]) * double(b[i]);
        sum += product;
        size += std::abs(product);
      }
      const double tolerance = size * (static_cast<double>(inputs) / (narrow ? 16 : 1) + 4) * 0x1p-23;
      if (!(std::abs(double(got[at]) - sum) <= tolerance))
        fail_because(
            "shape %llu, %s in %s, %lld rows, %lld inputs, %lld outputs: row %lld, output %lld is %.9g, "
            "wanted %.9g ± %g",
            static_cast<unsigned long long>(shape), format_of(part.type).name, format_of(to).name,
            static_cast<long long>(rows), static_cast<long long>(inputs),
            static_cast<long long>(part.outputs), static_cast<long long>(r), static_cast<long long>(o),
            static_cast<double>(got[at]), sum, tolerance);
    }
}

void multiplies_any_shape(void**) {
  for (uint64_t shape = 0; shape < 240; ++shape) {
    std::mt19937_64 random(seed() * 1000 + shape);
    cuda_emulation::reset(random());
    DeviceStream stream;
    const bool all_quants = shape % 2;
    // Inputs that are no whole step, where types let them be.
    const bool ragged = shape % 8 == 2;
    const int64_t inputs = all_quants ? 256 : ragged ? 8 * draw(random, 1, 30) : 32 * draw(random, 1, 6);
    const int64_t rows =
        shape % 20 == 19 ? draw(random, 120, 150) : draw(random, shape % 40 == 0 ? 0 : 1, 70);
    const Precision precision = kPrecisions[shape / 2 % 4];
    const bool accumulate = random() % 2;
    std::vector<Part> parts;
    for (int64_t left = draw(random, 1, 3); left > 0; --left)
      parts.emplace_back(random,
                         kTypes[random() % (all_quants ? 8
                                            : ragged   ? 3
                                                       : 5)],
                         rows, inputs, draw(random, 1, shape % 10 == 9 ? 150 : 70), random() % 2);
    const std::vector<float> in = random_floats(static_cast<size_t>(rows * inputs), random);

    const DeviceArray<float> device_in(stream, in);
    std::vector<DeviceArray<std::byte>> weights;
    std::vector<DeviceArray<float>> biases, outs;
    MatmulArgs args{device_in, rows, {}, static_cast<int32_t>(parts.size()), precision};
    for (size_t p = 0; p < parts.size(); ++p) {
      weights.emplace_back(stream, parts[p].stored);
      biases.emplace_back(stream, parts[p].bias);
      outs.emplace_back(stream, parts[p].before);
      args.parts[p] = {{weights.back(), parts[p].type, parts[p].outputs, inputs},
                       parts[p].bias.empty() ? nullptr : biases.back().data(),
                       outs.back(),
                       accumulate};
    }
    constexpr size_t kShared[] = {227 << 10, 163 << 10, 99 << 10};
    assert_cuda(multiply(stream, args, kShared[random() % 3]));
    for (size_t p = 0; p < parts.size(); ++p)
      check_part(shape, parts[p], in, rows, inputs, precision, accumulate, outs[p].to_host());
    assert_true(cuda_emulation::report().empty());
  }
}

// Rows that f16 has no room for are scaled, and scaled back.
void rows_beyond_f16_are_multiplied(void**) {
  std::mt19937_64 random(seed());
  cuda_emulation::reset(random());
  DeviceStream stream;
  constexpr int64_t kInputs = 64, kRows = 6;
  constexpr float kSizes[kRows] = {1, 1e6f, 1e20f, 1e-20f, 0, 7};
  const Part part(random, DType::f16, kRows, kInputs, 20, false);
  std::vector<float> in = random_floats(kRows * kInputs, random);
  std::vector<float> kept = in;
  for (size_t i = 0; i < in.size(); ++i) in[i] *= kSizes[i / kInputs];
  const DeviceArray<float> device_in(stream, in), plain(stream, kept);
  const DeviceArray<std::byte> weights(stream, part.stored);
  const auto product = [&](const DeviceArray<float>& rows) {
    const DeviceArray<float> out(stream, static_cast<size_t>(kRows * part.outputs));
    MatmulArgs args{rows, kRows, {}, 1};
    args.parts[0] = {{weights, part.type, part.outputs, kInputs}, nullptr, out, false};
    assert_cuda(multiply(stream, args));
    return out.to_host();
  };
  const std::vector<float> got = product(device_in), of_plain = product(plain);
  for (size_t i = 0; i < got.size(); ++i) {
    const float size = kSizes[static_cast<int64_t>(i) / part.outputs], want = of_plain[i] * size;
    // Rounded to f16 at another place of the same power of two's interval: 2^-11 of each of 64 products.
    if (!(std::abs(got[i] - want) <= size * 64 * 0x1p-9f))
      fail_because("output %zu is %.9g, wanted %.9g", i, static_cast<double>(got[i]),
                   static_cast<double>(want));
  }
}

// MatmulArgs::rows_alike, asked for or not.
void a_row_is_the_same_bits_in_any_company(void**) {
  for (const DType type : kTypes) {
    std::mt19937_64 random(seed());
    cuda_emulation::reset(random());
    DeviceStream stream;
    constexpr int64_t kInputs = 256, kOutputs = 21, kRows = 131;
    const DeviceArray<std::byte> weights(stream, random_weights(type, kOutputs * kInputs, random));
    const DeviceArray<float> in(stream, random_floats(kRows * kInputs, random));
    const auto product = [&](int64_t first, int64_t rows) {
      const DeviceArray<float> out(stream, static_cast<size_t>(rows * kOutputs));
      MatmulArgs args{in + first * kInputs, rows, {}, 1};
      args.parts[0] = {{weights, type, kOutputs, kInputs}, nullptr, out, false};
      assert_cuda(multiply(stream, args));
      return out.to_host();
    };
    const std::vector<float> all = product(0, kRows);
    for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 1}, {130, 1}, {77, 9}, {3, 17}}) {
      const std::vector<float> some = product(first, rows);
      assert_memory_equal(some.data(), all.data() + first * kOutputs, some.size() * sizeof(float));
    }
  }
}

void other_types_and_widths_are_refused(void**) {
  cuda_emulation::reset(seed());
  DeviceStream stream;
  const auto refused = [&](DType type, int64_t inputs) {
    MatmulArgs args{nullptr, 1, {}, 1};
    args.parts[0] = {{nullptr, type, 1, inputs}, nullptr, nullptr, false};
    return cuda::matmul(stream, args, {}) == cudaErrorInvalidValue;
  };
  for (const DType type : {DType::q4_1, DType::q5_0, DType::q5_1, DType::q2_k, DType::q3_k})
    assert_true(!cuda::reads_weights(type) && refused(type, 256));
  assert_true(refused(DType::f16, 36));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(multiplies_any_shape),
      cmocka_unit_test(rows_beyond_f16_are_multiplied),
      cmocka_unit_test(a_row_is_the_same_bits_in_any_company),
      cmocka_unit_test(other_types_and_widths_are_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
