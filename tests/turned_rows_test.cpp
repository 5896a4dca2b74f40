// Weights whose rows are turned are the same weights: they come back byte by byte, and every operation that reads them
// gives the bits that it gives of those that are as stored.
#include "kernels/turned_rows.h"

#include "tests/support/edged.h"
#include "tests/support/fewer.h"
#include "tests/support/kernel_test.h"

using namespace wi;
using namespace wi::test;

namespace {

// A matrix and the same one turned, if it can be.
struct Both {
  Both(DType type, int64_t rows, int64_t cols, std::mt19937_64& random)
      : bytes(edged(random_weights(type, rows * cols, random))),
        turned_bytes(bytes),
        stored{bytes.data(), type, rows, cols},
        turned{turned_bytes.data(), type, rows, cols} {
    if (can_be_turned(turned)) turn(turned, turned_bytes.data());
  }
  Edged<std::byte> bytes, turned_bytes;  // 32 rows are a multiple of 64 bytes, as turned ones must be aligned
  Matrix stored, turned;
};

std::vector<DType> turnable() {
  std::vector<DType> types;
  for (DType type : kAllTypes)
    if (can_be_turned({nullptr, type, 32, 256})) types.push_back(type);
  return types;
}

void formats_with_blocks_of_32_can_be_turned_by_whole_32_rows(void**) {
  const std::vector<DType> wanted = {DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1};
  assert_true(turnable() == wanted);
  assert_true(can_be_turned({nullptr, DType::q8_0, 96, 32}));
  assert_false(can_be_turned({nullptr, DType::q8_0, 100, 32}));
}

void every_byte_comes_back_from_wherever(void**) {
  std::mt19937_64 random(seed());
  for (DType type : turnable()) {
    const Both both(type, 64, 160, random);
    assert_true(std::memcmp(both.turned.data, both.stored.data, both.bytes.size()) != 0);
    Edged<std::byte> back(both.bytes.size());
    copy_as_stored(both.turned, 0, back.size(), back.data());
    assert_true(back == both.bytes);
    for (int i = 0; i < 200; i++) {
      const uint64_t begin = random() % back.size(), count = random() % (back.size() - begin + 1);
      std::vector<std::byte> some(count + 1, std::byte{0x5a});
      copy_as_stored(both.turned, begin, count, some.data());
      assert_memory_equal(some.data(), both.bytes.data() + begin, count);
      assert_true(some[count] == std::byte{0x5a});
      copy_as_stored(both.stored, begin, count, some.data());
      assert_memory_equal(some.data(), both.bytes.data() + begin, count);
    }
  }
}

void products_are_the_same_bits_for_any_number_of_rows(void**) {
  on_every_target([] {
    std::mt19937_64 random(seed());
    for (DType type : turnable())
      for (int64_t inputs : {int64_t{32}, int64_t{288}, int64_t{1056}})
        for (int64_t rows : some_of<int64_t>({1, 2, 3, 4, 7, 8, 15, 16, 17, 33, 70, 300})) {
          const Both both(type, rows == 300 ? 32 : 160, inputs, random);
          const Edged<float> in = edged(random_floats(static_cast<size_t>(rows * inputs), random));
          const Edged<float> bias = edged(random_floats(static_cast<size_t>(both.stored.rows), random));
          for (Precision precision : {Precision::fast, Precision::int8, Precision::f32})
            for (bool rows_alike : {true, false}) {
              Edged<float> out[2];
              for (const Matrix* matrix : {&both.stored, &both.turned}) {
                Edged<float>& to = out[matrix == &both.turned];
                to.assign(static_cast<size_t>(rows * matrix->rows), 0.25f);
                const MatmulArgs args{.in = in.data(),
                                      .rows = rows,
                                      .parts = {{*matrix, bias.data(), to.data(), true}},
                                      .part_count = 1,
                                      .precision = precision,
                                      .rows_alike = rows_alike};
                with_workers(2, [&](const Stream& stream) { cpu::matmul(stream, args); });
              }
              if (!same_bits(out[0], out[1]))
                fail_because("%s: %s, %lld inputs, %lld rows, precision %d", cpu::simd_name(),
                             format_of(type).name, static_cast<long long>(inputs),
                             static_cast<long long>(rows), static_cast<int>(precision));
            }
        }
  });
}

void parts_that_are_turned_and_parts_that_are_not_share_a_call(void**) {
  std::mt19937_64 random(seed());
  for (int64_t rows : {1, 2, 16, 40}) {
    const Both a(DType::q8_0, 64, 256, random), b(DType::q8_0, 32, 256, random),
        c(DType::q4_k, 48, 256, random);
    const std::vector<float> in = random_floats(static_cast<size_t>(rows * 256), random);
    std::vector<float> out[2][3];
    for (bool turned : {false, true}) {
      MatmulArgs args{.in = in.data(), .rows = rows, .parts = {}, .part_count = 3, .rows_alike = true};
      const Matrix matrices[] = {turned ? a.turned : a.stored, b.stored, turned ? c.turned : c.stored};
      for (int p = 0; p < 3; p++) {
        out[turned][p].resize(static_cast<size_t>(rows * matrices[p].rows));
        args.parts[p] = {matrices[p], nullptr, out[turned][p].data(), false};
      }
      with_workers(3, [&](const Stream& stream) { cpu::matmul(stream, args); });
    }
    for (int p = 0; p < 3; p++) assert_true(same_bits(out[0][p], out[1][p]));
  }
}

void tokens_are_embedded_the_same(void**) {
  std::mt19937_64 random(seed());
  for (DType type : turnable()) {
    const Both both(type, 96, 1120, random);
    const std::vector<int32_t> tokens = {0, 95, 31, 32, 64, 7, 7};
    std::vector<float> out[2];
    for (const Matrix* matrix : {&both.stored, &both.turned}) {
      std::vector<float>& to = out[matrix == &both.turned];
      to.resize(tokens.size() * 1120);
      const EmbedArgs args{.table = *matrix,
                           .tokens = tokens.data(),
                           .rows = static_cast<int64_t>(tokens.size()),
                           .out = to.data()};
      with_workers(2, [&](const Stream& stream) { cpu::embed(stream, args); });
    }
    assert_true(same_bits(out[0], out[1]));
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(formats_with_blocks_of_32_can_be_turned_by_whole_32_rows),
      cmocka_unit_test(every_byte_comes_back_from_wherever),
      cmocka_unit_test(products_are_the_same_bits_for_any_number_of_rows),
      cmocka_unit_test(parts_that_are_turned_and_parts_that_are_not_share_a_call),
      cmocka_unit_test(tokens_are_embedded_the_same),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
