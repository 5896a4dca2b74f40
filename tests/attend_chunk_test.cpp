// attend_chunk against softmax in f64. Where the operation multiplies in bf16 of one term, the reference
// takes the same rounded queries, keys and values, so that only its own sums and the rounding of weights
// differ. The program runs again with less, down to where everything is f32.
#include <cmath>
#include <numbers>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/unpack.h"
#include "src/memory/breaks.h"
#include "src/memory/workers.h"
#include "tests/support/dense.h"
#include "tests/support/edged.h"
#include "tests/support/fewer.h"
#include "tests/support/kernels.h"
#include "tests/test.h"

using namespace wi;

namespace {

constexpr const char* kPrecisions[] = {"fast", "f32", "high"};

struct Shape {
  int64_t rows, past;
  int32_t kv_heads, group, head_dim;
  DType kv;
  Precision precision = Precision::fast;
  int64_t longest_run = 3000;
  int32_t window = 0;
};

// Queries, and for each head keys and values in runs of random lengths, every run in memory of its own.
struct Problem {
  Problem(std::mt19937_64& random, const Shape& s) : shape(s), tokens(s.past + s.rows) {
    queries =
        test::edged(test::normal_floats(random, size(s.rows * s.kv_heads * s.group * s.head_dim), 1.5f));
    runs.resize(size(s.kv_heads));
    for (int32_t h = 0; h < s.kv_heads; ++h) {
      keys.push_back(test::normal_floats(random, size(tokens * s.head_dim)));
      values.push_back(test::normal_floats(random, size(tokens * s.head_dim)));
      for (int64_t first = 0; first < tokens;) {
        int64_t length = std::min(tokens - first,
                                  1 + static_cast<int64_t>(random() % static_cast<uint64_t>(s.longest_run)));
        runs[size(h)].push_back(
            {store(keys.back(), first, length), store(values.back(), first, length), length});
        first += length;
      }
      run_lists.push_back(runs[size(h)].data());
      run_counts.push_back(static_cast<int32_t>(runs[size(h)].size()));
    }
    out.assign(queries.size(), NAN);
    lse.assign(size(s.rows * s.kv_heads * s.group), NAN);
  }

  AttendChunkArgs args() {
    return {queries.data(),
            shape.rows,
            shape.kv_heads,
            shape.group,
            shape.head_dim,
            shape.kv,
            1 / std::sqrt(static_cast<float>(shape.head_dim)),
            run_lists.data(),
            run_counts.data(),
            out.data(),
            lse.data(),
            shape.precision,
            shape.window};
  }

  static size_t size(int64_t n) { return static_cast<size_t>(n); }

  // Stores in the KV type and reads back what was stored.
  const void* store(std::vector<float>& from, int64_t first, int64_t length) {
    const int64_t count = length * shape.head_dim;
    float* piece = from.data() + first * shape.head_dim;
    memory.emplace_back(size(count * format_of(shape.kv).bytes));
    cpu::to_kv(piece, shape.kv, memory.back().data(), count);
    cpu::from_kv(memory.back().data(), shape.kv, piece, count);
    return memory.back().data();
  }

  Shape shape;
  int64_t tokens;
  test::Edged<float> queries, out, lse;
  std::vector<std::vector<float>> keys, values;  // per head
  std::vector<std::vector<KvRun>> runs;
  std::vector<const KvRun*> run_lists;
  std::vector<int32_t> run_counts;
  std::vector<test::Edged<std::byte>> memory;
};

// f32: rounding of scores of some tens, 1e-5 of the sum of |weight · value|. bf16, one term: each weight is
// off by at most 2^-8 of itself, nearest rounding to 8 significant bits. More terms: scores, weights and
// values are each off by some 2^-17 of their sums of magnitudes, which are some tens for scores.
void check_row(Problem& p, int64_t row, int32_t head, int32_t g) {
  const Shape& s = p.shape;
  const int terms = cpu::bf16_terms(s.precision, s.kv);
  const bool bf16 = terms == 1;
  const int64_t query_head = (row * s.kv_heads + head) * s.group + g;
  const float* q = &p.queries[Problem::size(query_head * s.head_dim)];
  const float factor = p.args().scale * std::numbers::log2e_v<float>;
  auto operand = [&](float x) { return bf16 ? test::from_bf16(test::to_bf16(x)) : x; };
  const int64_t visible = s.past + row + 1;
  const int64_t oldest = s.window ? std::max<int64_t>(visible - s.window, 0) : 0;
  std::vector<double> scores(Problem::size(visible));
  double max = -INFINITY, sum = 0;
  for (int64_t t = oldest; t < visible; ++t) {
    const float* k = &p.keys[Problem::size(head)][Problem::size(t * s.head_dim)];
    double score = 0;
    for (int32_t j = 0; j < s.head_dim; ++j) score += double{operand(q[j] * factor)} * operand(k[j]);
    scores[Problem::size(t)] = score * std::numbers::ln2;
    max = std::max(max, scores[Problem::size(t)]);
  }
  for (int64_t t = oldest; t < visible; ++t)
    sum += scores[Problem::size(t)] = std::exp(scores[Problem::size(t)] - max);
  const double tolerance = terms == 0 ? 1e-5 : terms == 1 ? 0x1p-8 + 2e-5 : 3e-4;
  for (int32_t j = 0; j < s.head_dim; ++j) {
    double want = 0, magnitude = 0;
    for (int64_t t = oldest; t < visible; ++t) {
      double product = scores[Problem::size(t)] / sum *
                       operand(p.values[Problem::size(head)][Problem::size(t * s.head_dim + j)]);
      want += product;
      magnitude += std::abs(product);
    }
    float got = p.out[Problem::size(query_head * s.head_dim + j)];
    if (!(std::abs(got - want) <= tolerance * magnitude)) {
      print_error(
          "rows %lld past %lld window %d group %d head_dim %d kv %s, %s: row %lld head %d,%d out[%d] = %g, "
          "want %g\n",
          (long long)s.rows, (long long)s.past, s.window, s.group, s.head_dim, format_of(s.kv).name,
          kPrecisions[static_cast<int>(s.precision)], (long long)row, head, g, j, got, want);
      _fail(__FILE__, __LINE__);
    }
  }
  const double lse = max + std::log(sum);
  if (!(std::abs(p.lse[Problem::size(query_head)] - lse) <=
        (terms > 1 ? 3e-5 : 1e-5) * (1 + std::abs(lse)))) {
    print_error("lse %.8g, want %.8g\n", p.lse[Problem::size(query_head)], lse);
    _fail(__FILE__, __LINE__);
  }
}

void check(Workers& workers, std::mt19937_64& random, const Shape& shape) {
  Problem problem(random, shape);
  workers.run(nullptr, [&](const Stream& stream) { cpu::attend_chunk(stream, problem.args()); });
  for (int64_t row = 0; row < shape.rows;
       row += std::max<int64_t>(1, shape.rows / test::slow_or(4, 24)))  // a sample of rows
    for (int32_t head = 0; head < shape.kv_heads; ++head)
      for (int32_t g = 0; g < shape.group; ++g) check_row(problem, row, head, g);
  for (int32_t head = 0; head < shape.kv_heads; ++head) check_row(problem, shape.rows - 1, head, 0);
  for (float value : problem.out) assert_true(std::isfinite(value));
}

void every_kv_type_and_shape_matches_f64(void**) {
  Workers workers(2);
  std::mt19937_64 random(test::seed());
  test::for_each_simd([&](const char*) {
    for (DType kv : {DType::f16, DType::bf16, DType::f32}) {
      for (Precision precision : {Precision::fast, Precision::high}) {
        check(workers, random, {40, 100, 2, 4, 64, kv, precision});
        check(workers, random, {130, 1000, 1, 3, 96, kv, precision});
        check(workers, random, {7, 515, 3, 1, 34, kv, precision});
      }
    }
    check(workers, random, {50, 600, 2, 2, 128, DType::f16, Precision::f32});
  });
}

void nothing_is_read_before_an_operand(void**) {
  const test::EdgeBefore before;
  Workers workers(2);
  std::mt19937_64 random(test::seed() + 12);
  test::for_each_simd([&](const char*) {
    for (DType kv : {DType::f16, DType::bf16, DType::f32})
      for (Precision precision : {Precision::fast, Precision::high, Precision::f32}) {
        check(workers, random, {40, 100, 2, 4, 64, kv, precision, 50});
        check(workers, random, {7, 515, 3, 1, 34, kv, precision, 300});
      }
  });
}

void causal_edges_are_exact(void**) {
  Workers workers(2);
  std::mt19937_64 random(test::seed() + 1);
  for (Precision precision : {Precision::fast, Precision::f32, Precision::high}) {
    for (int64_t rows : test::some_of<int64_t>({1, 2, 31, 33, 128, 129, 300}))
      for (int64_t past : test::some_of<int64_t>({0, 1, 31, 511, 512, 513}))
        check(workers, random, {rows, past, 1, 4, 32, DType::f16, precision});
    check(workers, random, {1, 0, 1, 1, 64, DType::bf16, precision});
    check(workers, random,
          {700, 0, 1, 1, 64, DType::bf16, precision});  // whole key tiles no row of the first tile sees
  }
}

// Windows shorter than a vector, around tiles' borders, and as long as all that there is.
void windows_show_their_last_tokens_alone(void**) {
  Workers workers(2);
  std::mt19937_64 random(test::seed() + 8);
  for (Precision precision : {Precision::fast, Precision::f32, Precision::high})
    for (int32_t window : test::some_of({1, 2, 17, 64, 255, 512, 513, 900, 1300}))
      for (const auto& [rows, past] : {std::pair<int64_t, int64_t>{300, 0}, {33, 1000}, {1, 700}, {130, 515}})
        check(workers, random, {rows, past, 1, 4, 32, DType::f16, precision, 300, window});
  test::for_each_simd([&](const char*) {
    check(workers, random, {200, 600, 2, 2, 64, DType::bf16, Precision::fast, 300, 77});
    check(workers, random, {200, 600, 2, 2, 64, DType::f32, Precision::f32, 300, 77});
  });
}

// Keys and values before a window may be anything; one that shows all is none.
void what_a_window_hides_changes_no_bit(void**) {
  std::mt19937_64 random(test::seed() + 9);
  Workers workers(2);
  for (Precision precision : {Precision::fast, Precision::f32, Precision::high}) {
    Problem problem(random, {100, 700, 2, 2, 64, DType::bf16, precision, 90, 150});
    const auto run = [&] {
      workers.run(nullptr, [&](const Stream& stream) { cpu::attend_chunk(stream, problem.args()); });
      return problem.out;
    };
    const test::Edged<float> before = run();
    for (auto& runs : problem.runs) {
      int64_t first = 0;
      for (KvRun& piece : runs) {  // of the tokens that no row sees: the first one's window begins at 551
        const int64_t hidden = std::clamp<int64_t>(551 - first, 0, piece.tokens);
        for (const void* of : {piece.keys, piece.values})
          std::fill_n(static_cast<uint16_t*>(const_cast<void*>(of)), hidden * 64,
                      uint16_t{0x7f00});  // 1.7e38
        first += piece.tokens;
      }
    }
    assert_true(run() == before);
    problem.shape.window = 800;
    const test::Edged<float> widest = run();
    problem.shape.window = 0;
    assert_memory_equal(run().data(), widest.data(), widest.size() * sizeof(float));
  }
}

// A part of a problem's tokens alone, copied into runs cut anew, each of exactly its size: what a call reads
// beyond its part is a fault.
struct Part {
  Part(std::mt19937_64& random, const Problem& whole, int64_t first, int64_t end, int64_t longest_run)
      : runs(whole.runs.size()) {
    const auto token_bytes = Problem::size(whole.shape.head_dim * format_of(whole.shape.kv).bytes);
    const auto copy = [&](const void* from, int64_t offset, int64_t count) -> const void* {
      const auto* bytes = static_cast<const std::byte*>(from) + Problem::size(offset) * token_bytes;
      memory.emplace_back(bytes, bytes + Problem::size(count) * token_bytes);
      return memory.back().data();
    };
    for (size_t head = 0; head < runs.size(); ++head) {
      int64_t run_first = 0;
      for (const KvRun& run : whole.runs[head]) {
        const int64_t run_end = run_first + run.tokens;
        for (int64_t at = std::max(first, run_first); at < std::min(end, run_end);) {
          const int64_t cut = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(longest_run));
          const int64_t count = std::min(cut, std::min(end, run_end) - at);
          const int64_t offset = at - run_first;
          runs[head].push_back({copy(run.keys, offset, count), copy(run.values, offset, count), count});
          at += count;
        }
        run_first = run_end;
      }
      run_lists.push_back(runs[head].data());
      run_counts.push_back(static_cast<int32_t>(runs[head].size()));
    }
  }

  std::vector<std::vector<KvRun>> runs;
  std::vector<const KvRun*> run_lists;
  std::vector<int32_t> run_counts;
  std::vector<test::Edged<std::byte>> memory;
};

// Parts of up to `longest_part` steps. What a first call must not read is NaN.
void check_parts(std::mt19937_64& random, const Shape& shape, int64_t longest_part) {
  Problem problem(random, shape);
  Workers workers(2);
  workers.run(nullptr, [&](const Stream& stream) { cpu::attend_chunk(stream, problem.args()); });
  const test::Edged<float> out = problem.out, lse = problem.lse;

  std::fill(problem.out.begin(), problem.out.end(), NAN);
  std::fill(problem.lse.begin(), problem.lse.end(), NAN);
  test::Edged<float> state(2 * lse.size(), NAN);
  AttendChunkArgs args = problem.args();
  args.state = state.data();
  std::string parts;
  while (args.first_key < problem.tokens) {
    const int64_t steps = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(longest_part));
    const int64_t end = std::min(problem.tokens, args.first_key + steps * kChunkKeyStep);
    const Part part(random, problem, args.first_key, end, shape.longest_run);
    args.runs = part.run_lists.data();
    args.run_count = part.run_counts.data();
    args.keys_after = problem.tokens - end;
    workers.run(nullptr, [&](const Stream& stream) { cpu::attend_chunk(stream, args); });
    parts += " " + std::to_string(end - args.first_key);
    args.first_key = end;
  }
  if (std::memcmp(out.data(), problem.out.data(), out.size() * sizeof(float)) != 0 ||
      std::memcmp(lse.data(), problem.lse.data(), lse.size() * sizeof(float)) != 0) {
    print_error("rows %lld past %lld heads %d group %d head_dim %d kv %s, %s, in parts of%s tokens\n",
                (long long)shape.rows, (long long)shape.past, shape.kv_heads, shape.group, shape.head_dim,
                format_of(shape.kv).name, kPrecisions[static_cast<int>(shape.precision)], parts.c_str());
    _fail(__FILE__, __LINE__);
  }
}

void a_chunk_whose_keys_come_in_parts_gives_the_same_bits(void**) {
  std::mt19937_64 random(test::seed() + 10);
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  test::for_each_simd([&](const char*) {
    for (DType kv : {DType::f16, DType::bf16, DType::f32}) {
      for (Precision precision : {Precision::fast, Precision::f32, Precision::high}) {
        for (int i = 0; i < test::slow_or(2, 3); ++i) {
          const int64_t rows = i == 0 ? draw(1, 20) : draw(20, test::slow_or(60, 200));
          const auto heads = static_cast<int32_t>(draw(1, 2)), group = static_cast<int32_t>(draw(1, 4));
          const auto head_dim = static_cast<int32_t>(2 * draw(8, i == 0 ? 128 : 40));
          check_parts(random,
                      {rows, draw(500, test::slow_or(1200, 2500)), heads, group, head_dim, kv, precision,
                       draw(1, 900)},
                      draw(1, 3));
        }
      }
    }
  });
}

// Parts within the chunk: its first tiles of rows see nothing of the later ones. One part may be all.
void rows_that_see_nothing_of_a_part_keep_their_state(void**) {
  std::mt19937_64 random(test::seed() + 11);
  for (Precision precision : {Precision::fast, Precision::f32, Precision::high}) {
    check_parts(random, {1100, 0, 1, 4, 32, DType::f16, precision, 300}, 1);
    check_parts(random, {1024, 512, 1, 2, 16, DType::bf16, precision, 300}, 1);
    check_parts(random, {700, 345, 2, 5, 16, DType::f32, precision, 300}, 2);
    check_parts(random, {300, 212, 1, 2, 16, DType::f16, precision, 300}, 1);
  }
}

// With room for its state a call walks long pasts in stretches, windows from where each tile's begins.
void stretches_of_a_long_past_give_the_same_bits(void**) {
  std::mt19937_64 random(test::seed() + 13);
  Workers workers(2);
  const auto run = [&](Problem& problem, float* state) {
    AttendChunkArgs args = problem.args();
    args.state = state;
    std::fill(problem.out.begin(), problem.out.end(), NAN);
    std::fill(problem.lse.begin(), problem.lse.end(), NAN);
    workers.run(nullptr, [&](const Stream& stream) { cpu::attend_chunk(stream, args); });
  };
  test::for_each_simd([&](const char*) {
    int32_t window = 0;
    for (DType kv : {DType::f16, DType::bf16, DType::f32})
      for (Precision precision : {Precision::fast, Precision::f32, Precision::high}) {
        const int64_t past = 36'000 + static_cast<int64_t>(random() % 1000);
        const int32_t group = test::slow_or(20, 172);  // 172: two rows are a tile
        Problem problem(random, {3, past, 1, group, 16, kv, precision, 3000, window});
        run(problem, nullptr);
        const test::Edged<float> out = problem.out, lse = problem.lse;
        test::Edged<float> state(2 * lse.size(), NAN);
        run(problem, state.data());
        if (std::memcmp(out.data(), problem.out.data(), out.size() * sizeof(float)) != 0 ||
            std::memcmp(lse.data(), problem.lse.data(), lse.size() * sizeof(float)) != 0) {
          print_error("past %lld group %d kv %s, %s, window %d\n", (long long)past, group, format_of(kv).name,
                      kPrecisions[static_cast<int>(precision)], window);
          _fail(__FILE__, __LINE__);
        }
        window = window ? 0 : 34'001;
      }
  });
  check_parts(random, {5, 60'000, 1, 2, 16, DType::f16, Precision::fast, 3000}, 100);
  check_parts(random, {600, 20'000, 1, 1, 16, DType::f32, Precision::f32, 3000}, 40);
}

// What has urgent work is asked after each loop, and between tasks of one.
struct Loops final : Breaks {
  int64_t count = 0;
  bool due() override { return false; }
  void take() override { ++count; }
};

void no_task_grows_with_the_past(void**) {
  constexpr int64_t kMost = 32768;  // keys of one task
  std::mt19937_64 random(test::seed() + 14);
  Workers workers(2);
  for (Precision precision : {Precision::fast, Precision::f32, Precision::high})
    for (int32_t window : {0, 150'000}) {
      Problem problem(random, {3, 5000, 1, 2, 16, DType::f16, precision, 3000, window});
      std::vector<KvRun> runs;  // the same one again and again, before the chunk
      for (int64_t tokens = 0; tokens < 300'000; tokens += problem.runs[0][0].tokens)
        runs.push_back(problem.runs[0][0]);
      runs.insert(runs.end(), problem.runs[0].begin(), problem.runs[0].end());
      problem.run_lists[0] = runs.data();
      problem.run_counts[0] = static_cast<int32_t>(runs.size());
      std::vector<float> state(2 * problem.lse.size());
      AttendChunkArgs args = problem.args();
      args.state = state.data();
      Loops loops;
      workers.run(nullptr, [&](const Stream& stream) {
        cpu::attend_chunk(InterruptibleStream(stream, &loops).stream(), args);
      });
      assert_true(loops.count * kMost >= (window ? window : 300'000));
    }
}

void runs_of_any_length_are_one_sequence(void**) {
  Workers workers(2);
  std::mt19937_64 random(test::seed() + 2);
  for (int64_t longest : test::some_of<int64_t>({1, 2, 64, 513, 100000}))
    check(workers, random, {60, 2500, 2, 2, 64, DType::bf16, Precision::fast, longest});
}

void large_groups_and_heads_fit(void**) {
  Workers workers(2);
  std::mt19937_64 random(test::seed() + 3);
  check(workers, random, {20, 200, 1, 71, 64, DType::f16});
  check(workers, random, {3, 40, 1, 600, 32, DType::f16});
  check(workers, random, {20, 700, 1, 2, 256, DType::f16});
  check(workers, random, {20, 200, 1, 2, 2, DType::f16});
}

// A score of thousands, rising over the keys: the maximum moves in every tile and nothing overflows.
void huge_scores_do_not_overflow(void**) {
  std::mt19937_64 random(test::seed() + 4);
  Problem problem(random, {4, 2000, 1, 1, 32, DType::f32});
  for (int64_t t = 0; t < problem.tokens; ++t)
    for (int j = 0; j < 32; ++j)
      problem.keys[0][static_cast<size_t>(t * 32 + j)] = static_cast<float>(t) * 0.25f;
  for (size_t i = 0; i < problem.queries.size(); ++i) problem.queries[i] = 2;
  int64_t first = 0;
  for (KvRun& run : problem.runs[0]) {
    std::memcpy(const_cast<void*>(run.keys), &problem.keys[0][static_cast<size_t>(first * 32)],
                static_cast<size_t>(run.tokens * 32) * 4);
    first += run.tokens;
  }
  Workers workers(2);
  workers.run(nullptr, [&](const Stream& stream) { cpu::attend_chunk(stream, problem.args()); });
  // The last visible key wins by 2·0.25·32/√32 = 2.83 over the one before it; scores of 5,660 leave 5e-4 in
  // f32.
  for (int64_t row = 0; row < 4; ++row) {
    double sum = 0, want = 0;
    for (int64_t back = 0; back < 40; ++back) {
      double weight = std::exp(-static_cast<double>(back) * 16 / std::sqrt(32.0));
      sum += weight;
      want += weight * problem.values[0][static_cast<size_t>((2000 + row - back) * 32)];
    }
    assert_true(std::abs(problem.out[static_cast<size_t>(row * 32)] - want / sum) < 5e-3);
  }
}

void workers_do_not_change_a_bit(void**) {
  std::mt19937_64 random(test::seed() + 5);
  Problem problem(random, {300, 3000, 2, 4, 64, DType::f16});
  test::Edged<float> out[2];
  for (int i = 0; i < 2; ++i) {
    Workers workers(i == 0 ? 1 : 3);
    workers.run(nullptr, [&](const Stream& stream) { cpu::attend_chunk(stream, problem.args()); });
    out[i] = problem.out;
  }
  assert_memory_equal(out[0].data(), out[1].data(), out[0].size() * sizeof(float));
}

void no_thread_appears_but_the_workers(void**) {
  std::mt19937_64 random(test::seed() + 6);
  Workers workers(2);
  workers.run(nullptr, [](const Stream& stream) { stream.each(64, [](int64_t, int) {}); });
  const int before = test::thread_count();
  check(workers, random, {200, 500, 2, 4, 64, DType::f16});
  assert_true(test::thread_count() <= std::max(before, 2));
}

void cancellation_ends_a_long_attention_soon(void**) {
  std::mt19937_64 random(test::seed() + 7);
  Problem problem(random, {1024, 3000, 1, 4, 64, DType::f16});
  // 300,000 keys: the same run again and again, before the chunk.
  std::vector<KvRun> runs;
  for (int64_t tokens = 0; tokens < 300000; tokens += problem.runs[0][0].tokens)
    runs.push_back(problem.runs[0][0]);
  runs.insert(runs.end(), problem.runs[0].begin(), problem.runs[0].end());
  problem.run_lists[0] = runs.data();
  problem.run_counts[0] = static_cast<int32_t>(runs.size());
  test::assert_ends_soon_when_cancelled(
      [&](const Stream& stream) { cpu::attend_chunk(stream, problem.args()); });  // 315 GFLOP, seconds

  std::vector<float> state(2 * problem.lse.size(), 1.0f);
  AttendChunkArgs part = problem.args();
  part.first_key = 600 * kChunkKeyStep;
  part.state = state.data();
  test::assert_ends_soon_when_cancelled([&](const Stream& stream) { cpu::attend_chunk(stream, part); });
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(no_thread_appears_but_the_workers),  // first: thread pools stay once they are there
      cmocka_unit_test(every_kv_type_and_shape_matches_f64),
      cmocka_unit_test(nothing_is_read_before_an_operand),
      cmocka_unit_test(causal_edges_are_exact),
      cmocka_unit_test(windows_show_their_last_tokens_alone),
      cmocka_unit_test(what_a_window_hides_changes_no_bit),
      cmocka_unit_test(a_chunk_whose_keys_come_in_parts_gives_the_same_bits),
      cmocka_unit_test(rows_that_see_nothing_of_a_part_keep_their_state),
      cmocka_unit_test(stretches_of_a_long_past_give_the_same_bits),
      cmocka_unit_test(no_task_grows_with_the_past),
      cmocka_unit_test(runs_of_any_length_are_one_sequence),
      cmocka_unit_test(large_groups_and_heads_fit),
      cmocka_unit_test(huge_scores_do_not_overflow),
      cmocka_unit_test(workers_do_not_change_a_bit),
      cmocka_unit_test(cancellation_ends_a_long_attention_soon),
  };
  return test::run_with_all_products(tests);
}
