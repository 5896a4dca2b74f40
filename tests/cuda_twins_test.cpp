// What kernels have the hardware's own instructions do, against the same done plainly: products by tensor cores,
// how their operands are loaded and rounded, products of bytes, loads that bring
// their line, copies that run ahead.
#include "kernels/cuda/cuda.h"
#include "tests/cuda_emulation/twins.h"
#include "tests/lookups.h"
#include "tests/support/device_memory.h"
#include "tests/support/kernel_test.h"

using namespace wi;
using namespace wi::test;

namespace {

constexpr DType kTypes[] = {DType::f16, DType::bf16};

std::vector<uint16_t> random_bits(size_t count, std::mt19937_64& random) {
  std::vector<uint16_t> bits(count);
  for (uint16_t& one : bits) one = static_cast<uint16_t>(random());
  return bits;
}

std::vector<uint16_t> numbers_of(DType type, const std::vector<float>& numbers) {
  std::vector<uint16_t> bits(numbers.size());
  cpu::to_kv(numbers.data(), type, bits.data(), static_cast<int64_t>(numbers.size()));
  return bits;
}

// Tensor cores add sixteen products to a sum at once, each cut off at 2^-23 or so of the largest.
void tensor_cores_multiply_as_plain_code(void**) {
  constexpr int kCount = 40;
  for (const DType type : kTypes) {
    std::mt19937_64 random(seed());
    cuda_emulation::reset(random());
    DeviceStream stream;
    std::vector<float> numbers = random_floats(kCount * 256, random),
                       others = random_floats(kCount * 256, random);
    for (size_t i = 0; i < numbers.size(); ++i)  // some problems with sizes far apart
      if (i / 256 % 4 == 3) numbers[i] *= i % 3 ? 1e-3f : 300.0f;
    const std::vector<float> start = random_floats(kCount * 256, random);
    const std::vector<uint16_t> left_bits = numbers_of(type, numbers), right_bits = numbers_of(type, others);
    const DeviceArray<uint16_t> left(stream, left_bits), right(stream, right_bits);
    const DeviceArray<float> before(stream, start), out(stream, start.size()),
        transposed(stream, start.size()), plain(stream, start.size());
    assert_cuda(cuda_test::products(stream, {type, kCount, left, right, before, out, transposed, plain}));
    const std::vector<float> got = out.to_host(), again = transposed.to_host(), want = plain.to_host();
    cpu::from_kv(left_bits.data(), type, numbers.data(), static_cast<int64_t>(numbers.size()));
    cpu::from_kv(right_bits.data(), type, others.data(), static_cast<int64_t>(others.size()));
    for (size_t i = 0; i < want.size(); ++i) {
      const size_t first = i / 256 * 256, row = i % 256 / 16, column = i % 16;
      double size = std::abs(double(start[i]));
      for (size_t input = 0; input < 16; ++input)
        size +=
            std::abs(double(numbers[first + row * 16 + input]) * double(others[first + input * 16 + column]));
      if (!(std::abs(double(got[i]) - double(want[i])) <= size * 0x1p-20))
        fail_because("%s, product %zu, row %zu, column %zu: %.9g, plainly %.9g of %.9g", format_of(type).name,
                     i / 256, row, column, double(got[i]), double(want[i]), size);
    }
    assert_true(same_bits(got, again));
    assert_string_equal(cuda_emulation::report().c_str(), "");
  }
}

void tensor_cores_multiply_bytes_as_plain_code(void**) {
  constexpr size_t kCount = 40;
  std::mt19937_64 random(seed());
  cuda_emulation::reset(random());
  DeviceStream stream;
  std::vector<int8_t> left(kCount * 512), right(kCount * 512);
  for (auto* bytes : {&left, &right})
    for (int8_t& one : *bytes) one = static_cast<int8_t>(random());
  std::vector<int32_t> before(kCount * 256);
  for (int32_t& one : before) one = static_cast<int32_t>(random() % 2'000'000) - 1'000'000;
  const DeviceArray<int8_t> lefts(stream, left), rights(stream, right);
  const DeviceArray<int32_t> start(stream, before), out(stream, before.size()), plain(stream, before.size());
  assert_cuda(cuda_test::products(stream, {kCount, lefts, rights, start, out, plain}));
  assert_true(out.to_host() == plain.to_host());
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

void matrices_are_loaded_as_plain_code_does(void**) {
  constexpr int kCount = 20;
  std::mt19937_64 random(seed());
  cuda_emulation::reset(random());
  DeviceStream stream;
  const DeviceArray<uint16_t> in(stream, random_bits(kCount * 256, random));
  const DeviceArray<uint32_t> loaded(stream, kCount * 128), plain(stream, kCount * 128),
      transposed(stream, kCount * 128), transposed_plainly(stream, kCount * 128);
  assert_cuda(cuda_test::matrices(stream, {kCount, in, loaded, plain, transposed, transposed_plainly}));
  assert_true(loaded.to_host() == plain.to_host());
  assert_true(transposed.to_host() == transposed_plainly.to_host());
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

// Ties, and what is too small or too large for either type, among the rest.
void pairs_are_rounded_as_plain_code_does(void**) {
  std::mt19937_64 random(seed());
  std::vector<float> in = {0.0f,           -0.0f,      1.0f,      -1.0f,        65504.0f,      65519.0f,
                           65520.0f,       1e30f,      -1e30f,    1e-40f,       0x1p-14f,      0x1p-24f,
                           0x1p-25f,       0x1.8p-25f, INFINITY,  -INFINITY,    1.0009765625f, 1.00048828125f,
                           1.00146484375f, 0x1.01p0f,  0x1.03p0f, 3.3895314e38f};
  while (in.size() < 20000) {
    const float number = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isnan(number))
      in.push_back(random() % 2 ? number
                                : std::bit_cast<float>(std::bit_cast<uint32_t>(number) & 0xFFFF8000u));
  }
  const int count = static_cast<int>(in.size() / 2);
  for (const DType type : kTypes) {
    cuda_emulation::reset(random());
    DeviceStream stream;
    const DeviceArray<float> numbers(stream, in);
    const DeviceArray<uint32_t> packed(stream, in.size() / 2), plain(stream, in.size() / 2);
    assert_cuda(cuda_test::pairs(stream, type, numbers, packed, plain, count));
    assert_true(packed.to_host() == plain.to_host());
    assert_string_equal(cuda_emulation::report().c_str(), "");
  }
}

void bytes_are_multiplied_as_plain_code_does(void**) {
  constexpr size_t kCount = 5000;
  std::mt19937_64 random(seed());
  cuda_emulation::reset(random());
  DeviceStream stream;
  std::vector<uint32_t> codes(kCount);
  std::vector<int32_t> numbers(kCount), before(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    codes[i] = i ? static_cast<uint32_t>(random()) : UINT32_MAX;
    numbers[i] = i ? static_cast<int32_t>(random()) : static_cast<int32_t>(0x80808080u);
    before[i] = static_cast<int32_t>(random() % 2000000) - 1000000;
  }
  const DeviceArray<uint32_t> device_codes(stream, codes);
  const DeviceArray<int32_t> device_numbers(stream, numbers), device_before(stream, before),
      out(stream, kCount), plain(stream, kCount);
  assert_cuda(cuda_test::byte_products(stream, device_codes, device_numbers, device_before, out, plain,
                                       static_cast<int>(kCount)));
  assert_true(out.to_host() == plain.to_host());
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

std::vector<uint4> random_vectors(size_t count, std::mt19937_64& random) {
  std::vector<uint4> vectors(count);
  for (uint4& one : vectors)
    one = make_uint4(static_cast<unsigned>(random()), static_cast<unsigned>(random()),
                     static_cast<unsigned>(random()), static_cast<unsigned>(random()));
  return vectors;
}

void loads_with_their_line_are_loads(void**) {
  constexpr size_t kCount = 1001;
  std::mt19937_64 random(seed());
  cuda_emulation::reset(random());
  DeviceStream stream;
  const std::vector<uint4> in = random_vectors(kCount, random);
  const DeviceArray<uint4> from(stream, in), to(stream, 4 * kCount);
  assert_cuda(cuda_test::loads(stream, from, to, static_cast<int>(kCount)));
  const std::vector<uint4> out = to.to_host();
  for (size_t width = 0; width < 4; ++width)
    assert_memory_equal(out.data() + width * kCount, in.data(), kCount * sizeof(uint4));
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

void copies_that_run_ahead_arrive(void**) {
  for (const size_t count : {size_t{1}, size_t{255}, size_t{1024}, size_t{5001}}) {
    std::mt19937_64 random(seed() + count);
    cuda_emulation::reset(random());
    DeviceStream stream;
    const std::vector<uint4> in = random_vectors(count, random);
    const DeviceArray<uint4> from(stream, in), to(stream, count);
    assert_cuda(cuda_test::copies(stream, from, to, static_cast<int>(count)));
    const std::vector<uint4> out = to.to_host();
    assert_memory_equal(out.data(), in.data(), count * sizeof(uint4));
    assert_string_equal(cuda_emulation::report().c_str(), "");
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(tensor_cores_multiply_as_plain_code),
      cmocka_unit_test(tensor_cores_multiply_bytes_as_plain_code),
      cmocka_unit_test(matrices_are_loaded_as_plain_code_does),
      cmocka_unit_test(pairs_are_rounded_as_plain_code_does),
      cmocka_unit_test(bytes_are_multiplied_as_plain_code_does),
      cmocka_unit_test(loads_with_their_line_are_loads),
      cmocka_unit_test(copies_that_run_ahead_arrive),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
