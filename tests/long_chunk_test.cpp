// A chunk may have a million tokens. What it takes before the first loop, and what one task of a loop does, is as little
// as for a chunk of the library's own size: a call that is cancelled, or that others wait for, looks only between.
#include <algorithm>
#include <cmath>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "src/prefill.h"
#include "src/session.h"
#include "src/workspace.h"
#include "tests/support/fewer.h"
#include "tests/support/kernel_test.h"
#include "tests/support/random_model.h"
#include "tests/support/runtime.h"

using namespace wi;
using test::runtime;

namespace {

std::shared_ptr<const Model> model_of(int32_t ffn) {
  test::ModelShape shape;
  shape.name = "long";
  shape.layers = 2;
  shape.hidden = 32;
  shape.kv_heads = shape.query_heads = 1;
  shape.ffn = ffn;
  shape.vocab = 10;
  return test::random_model(shape, DType::f32, test::seed());
}

// Of the whole pages among [from, from + bytes).
double share_in_memory(const void* from, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(from) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(from) + bytes) / page * page;
  std::vector<unsigned char> pages((end - begin) / page);
  assert_int_equal(mincore(reinterpret_cast<void*>(begin), end - begin, pages.data()), 0);
  const auto there = std::count_if(pages.begin(), pages.end(), [](unsigned char is) { return is & 1; });
  return static_cast<double>(there) / static_cast<double>(pages.size());
}

void activations_are_not_touched_before_they_are_computed(void**) {
  constexpr int64_t kRows = 100'000;
  const auto model = model_of(256);
  const auto rows_bytes = [&](int64_t rows) {
    return static_cast<size_t>(rows) * static_cast<size_t>(model->config.hidden) * sizeof(float);
  };
  Workspace work;
  work.prepare(model->config, kRows);
  assert_true(share_in_memory(work.hidden, rows_bytes(kRows)) < 0.01);
  std::fill_n(work.hidden, rows_bytes(kRows) / sizeof(float), 1.0f);
  work.prepare(model->config, 3 * kRows);  // what was there is nobody's
  assert_true(share_in_memory(work.hidden, rows_bytes(3 * kRows)) < 0.01);
}

void tables_are_each_rows_own_and_filled_in_loops(void**) {
  constexpr int64_t kRows = 1000, kFirst = 123'456;
  const auto model = model_of(64);
  const size_t half = model->rope.frequency.size(), count = kRows * half;
  Workspace work;
  work.prepare(model->config, kRows);
  const auto both = [&] {
    std::vector<float> tables(work.cos, work.cos + count);
    tables.insert(tables.end(), work.sin, work.sin + count);
    return tables;
  };
  const auto fill = [&](const std::atomic<bool>* cancel, int64_t at_once) {
    std::fill_n(work.cos, count, 7.0f), std::fill_n(work.sin, count, 7.0f);
    runtime()->workers.run(cancel, [&](const Stream& stream) {
      for (int64_t row = 0; row < kRows; row += at_once)
        rotation_tables({runtime()->backend, stream, *model, work}, row, kFirst + row, at_once);
    });
    return both();
  };
  const std::vector<float> one_by_one = fill(nullptr, 1);
  assert_true(std::find(one_by_one.begin(), one_by_one.end(), 7.0f) == one_by_one.end());
  assert_true(test::same_bits(fill(nullptr, kRows), one_by_one));
  const std::atomic<bool> cancelled{true};
  assert_true(test::same_bits(fill(&cancelled, kRows), std::vector<float>(2 * count, 7.0f)));
}

struct {
  int64_t most_rows = 0, products = 0, long_products = 0, attended = 0, with_state = 0;
} seen;

void embed_seen(const Stream& stream, const EmbedArgs& args) {
  seen.most_rows = std::max(seen.most_rows, args.rows);
  cpu_backend().embed(stream, args);
}

// A task has 256 outputs of all rows.
void matmul_seen(const Stream& stream, const MatmulArgs& args) {
  const int64_t inputs = args.parts[0].weight.cols;
  ++seen.products;
  seen.long_products += args.rows >= std::max<int64_t>(2048, (int64_t{1} << 23) / inputs) + 256;
  cpu_backend().matmul(stream, args);
}

void attend_chunk_seen(const Stream& stream, const AttendChunkArgs& args) {
  ++seen.attended;
  seen.with_state += args.state != nullptr;
  cpu_backend().attend_chunk(stream, args);
}

// As chunks of a piece's size would be, none of them of a few rows.
void a_long_chunk_is_computed_in_pieces(void**) {
  constexpr int64_t kPiece = 8192, kRows = kPiece + 300;
  const auto model = model_of(test::few_or(64, 4096));
  const auto vocab = static_cast<size_t>(model->config.vocab);
  std::vector<int32_t> ids(kRows);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 10);
  Backend backend = runtime()->backend;
  backend.embed = embed_seen;
  backend.matmul = matmul_seen;
  backend.attend_chunk = attend_chunk_seen;
  const auto read = [&](const std::vector<int64_t>& chunks, PrefillLogits wanted, int64_t unwanted = 0) {
    Sequence sequence(runtime()->pool, kv_shape_of(*model, DType::f16), 0);
    sequence.reserve(kRows);
    Workspace work;
    std::vector<float> logits(
        wanted == PrefillLogits::all ? (ids.size() - static_cast<size_t>(unwanted)) * vocab : vocab);
    seen = {};
    runtime()->workers.run(nullptr, [&](const Stream& stream) {
      float* out = logits.data();
      size_t done = 0;
      for (int64_t chunk : chunks) {
        const std::span<const int32_t> some(ids.data() + done, static_cast<size_t>(chunk));
        prefill_chunk({backend, stream, *model, work}, sequence, some, wanted, out, unwanted);
        sequence.commit(chunk);
        done += some.size();
        if (wanted == PrefillLogits::all) out += some.size() * vocab;
      }
    });
    assert_true(seen.products > 0 && seen.attended > 0);
    assert_int_equal(seen.long_products, 0);
    assert_int_equal(seen.with_state, seen.attended);  // no task is as long as the past (attend_chunk_test)
    return logits;
  };
  for (const PrefillLogits wanted : {PrefillLogits::last, PrefillLogits::all}) {
    if (test::kFew && wanted == PrefillLogits::all) break;
    const std::vector<float> whole = read({kRows}, wanted);
    assert_int_equal(seen.most_rows, kPiece);
    assert_true(test::same_bits(whole, read({kPiece, kRows - kPiece}, wanted)));
    if (wanted == PrefillLogits::last) continue;
    const std::vector<float> without_first(whole.begin() + static_cast<std::ptrdiff_t>(vocab), whole.end());
    assert_true(test::same_bits(without_first, read({kRows}, wanted, 1)));
  }
  read({kPiece + 255}, PrefillLogits::last);
  assert_int_equal(seen.most_rows, kPiece + 255);
}

// So that it does not matter how many rows a product has at once.
void a_product_is_cut_between_blocks_of_rows(void**) {
  constexpr int64_t kRows = 3 * kProductRows + 7, kInputs = 256, kOutputs = 300;
  std::mt19937_64 random(test::seed());
  const std::vector<float> in = test::random_floats(kRows * kInputs, random);
  test::on_every_target([&] {
    for (const DType type : test::some_of({DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_k}))
      for (const Precision precision : {Precision::fast, Precision::f32, Precision::high, Precision::int8}) {
        test::ModelShape shape;
        shape.hidden = shape.ffn = kInputs;
        shape.head_dim = kInputs / shape.query_heads;  // all rows have whole blocks of any type
        shape.vocab = kOutputs;
        shape.layers = 1;
        const auto model = test::random_model(shape, type, test::seed(), precision);
        const auto multiply = [&](std::initializer_list<int64_t> blocks) {
          std::vector<float> out(kRows * kOutputs);
          runtime()->workers.run(nullptr, [&](const Stream& stream) {
            int64_t row = 0;
            for (const int64_t rows : blocks) {
              MatmulArgs args{in.data() + row * kInputs, rows, {}, 1};
              args.parts[0] = {model->weights.embedding, nullptr, out.data() + row * kOutputs, false};
              args.precision = precision;
              cpu_backend().matmul(stream, args);
              row += rows;
            }
          });
          return out;
        };
        assert_true(test::same_bits(multiply({kRows}), multiply({2 * kProductRows, kProductRows + 7})));
      }
  });
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(activations_are_not_touched_before_they_are_computed),
      cmocka_unit_test(tables_are_each_rows_own_and_filled_in_loops),
      cmocka_unit_test(a_long_chunk_is_computed_in_pieces),
      cmocka_unit_test(a_product_is_cut_between_blocks_of_rows),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
