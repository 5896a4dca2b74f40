// Every stored type against what the gguf package makes of the same bytes (tests/fixtures/make_quants.py).
#include <fstream>
#include <iterator>

#include "tests/support/kernel_test.h"

using namespace wi;
using namespace wi::test;

namespace {

struct Fixture {
  std::vector<char> blocks;
  std::vector<float> values;
};

Fixture load(DType type) {
  const std::string path = concat(WI_TEST_DATA, "/fixtures/quants/", format_of(type).name, ".bin");
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  uint32_t head[2] = {};
  if (all.size() < 8) fail_because("cannot read %s", path.c_str());
  std::memcpy(head, all.data(), 8);
  assert_int_equal(all.size(), 8 + head[1] + head[0] * sizeof(float));
  Fixture out{{all.begin() + 8, all.begin() + 8 + head[1]}, std::vector<float>(head[0])};
  std::memcpy(out.values.data(), all.data() + 8 + head[1], head[0] * sizeof(float));
  return out;
}

void dequantize_equals_the_gguf_package_bit_for_bit(void**) {
  on_every_target([] {
    for (DType type : kAllTypes) {
      if (type == DType::f32) continue;
      const Fixture fixture = load(type);
      std::vector<float> out(fixture.values.size());
      cpu::dequantize(fixture.blocks.data(), type, out.data(), static_cast<int64_t>(out.size()));
      for (size_t i = 0; i < out.size(); i++)
        if (std::memcmp(&out[i], &fixture.values[i], 4) != 0)
          fail_because("%s, %s: element %zu is %a, wanted %a", cpu::simd_name(), format_of(type).name, i,
                       static_cast<double>(out[i]), static_cast<double>(fixture.values[i]));
    }
  });
}

void dequantize_copies_f32(void**) {
  const float in[3] = {1.5f, -0.0f, 1e-40f};
  float out[3];
  cpu::dequantize(in, DType::f32, out, 3);
  assert_memory_equal(in, out, sizeof(in));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(dequantize_equals_the_gguf_package_bit_for_bit),
      cmocka_unit_test(dequantize_copies_f32),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
