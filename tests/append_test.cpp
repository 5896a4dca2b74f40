// Append against to_kv, number by number.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "src/memory/workers.h"
#include "src/store/sequence.h"
#include "tests/test.h"

using namespace wi;

namespace {

// (rows, {K, V}, kv_heads, head_dim), so that the stride is not the width.
std::vector<float> drawn(int64_t rows, int32_t kv_heads, int32_t head_dim) {
  std::mt19937_64 random(test::seed());
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<size_t>(rows) * 2 * static_cast<size_t>(kv_heads * head_dim));
  for (float& number : numbers) number = normal(random);
  return numbers;
}

// Several runs that leave room between them, few enough to be done at once and enough to be shared out.
void numbers_are_rounded_as_to_kv_does_and_nothing_else_is_touched(void**) {
  Workers workers(2);
  constexpr int32_t kHeads = 3, kRoom = 70;  // tokens of a block
  for (DType kv : {DType::f16, DType::bf16, DType::f32})
    for (int32_t head_dim : {8, 40, 64})
      for (const std::vector<int64_t>& counts : {std::vector<int64_t>{1}, {2, 1, 5}, {64, 64, 64, 33}}) {
        int64_t rows = 0;
        for (int64_t count : counts) rows += count;
        const std::vector<float> in = drawn(rows, kHeads, head_dim);
        const size_t row = row_bytes(kv, head_dim), plane = kRoom * row;
        std::vector<std::vector<std::byte>> blocks, wanted;  // (kv_heads, {K, V}, kRoom, head_dim)
        std::vector<AppendRun> runs;
        std::vector<uint32_t> largest(counts.size(), 12345), wanted_largest;
        int64_t first = 0;
        for (int64_t count : counts) {
          wanted.emplace_back(2 * kHeads * plane, std::byte{0x5a});
          blocks.push_back(wanted.back());
          const size_t skip = 3 * row;
          runs.push_back({first, count, nullptr, nullptr, 2 * plane, kv});
          uint32_t most = 0;
          for (int64_t i = 0; i < count; ++i)
            for (int32_t head = 0; head < kHeads; ++head)
              for (int32_t value = 0; value < 2; ++value) {
                const int64_t from = (((first + i) * 2 + value) * kHeads + head) * head_dim;
                std::byte* to = wanted.back().data() + static_cast<size_t>(2 * head + value) * plane + skip +
                                static_cast<size_t>(i) * row;
                most = std::max(most, cpu::to_kv(in.data() + from, kv, to, head_dim));
              }
          wanted_largest.push_back(most);
          first += count;
        }
        for (size_t i = 0; i < runs.size(); ++i) {
          runs[i].keys = blocks[i].data() + 3 * row;
          runs[i].values = runs[i].keys + plane;
        }
        workers.run(nullptr, [&](const Stream& stream) {
          cpu::append(stream,
                      {in.data(), in.data() + kHeads * head_dim, 2 * int64_t{kHeads} * head_dim, kHeads,
                       head_dim, runs.data(), static_cast<int64_t>(runs.size()), largest.data()});
        });
        assert_true(blocks == wanted);
        assert_true(largest == wanted_largest);
      }
}

void each_run_tells_its_own_largest_and_a_nan_is_larger_than_infinity(void**) {
  Workers workers(1);
  std::vector<float> in = {1, -2, 3, 4, 5, 70000, 7, 8, 9, INFINITY, 11, 12, NAN, -INFINITY, 15, 16};
  std::vector<uint16_t> out(16);
  std::vector<AppendRun> runs;
  for (int64_t row = 0; row < 4; ++row) {
    auto* to = reinterpret_cast<std::byte*>(out.data() + row * 4);
    runs.push_back({row, 1, to, to + 4, 8, DType::f16});
  }
  uint32_t largest[4];
  workers.run(nullptr, [&](const Stream& stream) {
    cpu::append(stream, {in.data(), in.data() + 2, 4, 1, 2, runs.data(), 4, largest});
  });
  assert_true(kv_holds(DType::f16, largest[0]));
  assert_true(!kv_holds(DType::f16, largest[1]) && kv_holds(DType::bf16, largest[1]));
  assert_false(kv_holds(DType::f32, largest[2]));
  assert_true(largest[0] < largest[1] && largest[1] < largest[2] && largest[2] < largest[3]);
}

// A sequence says where its tokens go: across the first four, and from block to block.
void a_sequences_places_follow_each_other(void**) {
  const auto pool = HostPool::create(HostPool::kUnlimited, false);
  const KvShape shape{2, 2, 8, DType::f16};
  Sequence sequence(pool, shape, 0);
  sequence.reserve(200);
  std::vector<AppendRun> runs;
  sequence.places(1, 0, 200, 10, runs);
  assert_int_equal(runs.size(), 1 + 4);
  int64_t row = 10;
  for (const AppendRun& run : runs) {
    assert_int_equal(run.row, row);
    row += run.rows;
  }
  assert_int_equal(row, 210);
  assert_int_equal(runs[0].rows, kSinkTokens);
  assert_true(runs[0].keys == sequence.sink()->keys(1, 0) && runs[0].values == sequence.sink()->values(1, 0));
  for (size_t block = 0; block < 4; ++block) {
    const AppendRun& run = runs[block + 1];
    assert_int_equal(run.rows, block < 3 ? kBlockTokens : 196 - 3 * kBlockTokens);
    assert_true(run.keys + run.head_stride == sequence.tail()[block]->keys(1, 1));
    assert_true(run.values + run.head_stride == sequence.tail()[block]->values(1, 1));
  }
  runs.clear();
  sequence.places(0, 70, 1, 0, runs);
  assert_int_equal(runs.size(), 1);
  assert_true(runs[0].keys == sequence.tail()[1]->keys(0, 0) + 2 * shape.head_bytes());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(numbers_are_rounded_as_to_kv_does_and_nothing_else_is_touched),
      cmocka_unit_test(each_run_tells_its_own_largest_and_a_nan_is_larger_than_infinity),
      cmocka_unit_test(a_sequences_places_follow_each_other),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
