// Attention of chunks by the CUDA kernels, on random shapes: against softmax in f64 of the operands as they are
// multiplied (queries rounded to the KV type where tensor cores work), and against the CPU's in f32; windows,
// and keys that come in parts.
#include <numbers>

#include "kernels/cuda/cuda.h"
#include "tests/lookups.h"
#include "tests/support/device_memory.h"
#include "tests/support/kernel_test.h"

using namespace wi;
using namespace wi::test;

namespace {

constexpr DType kTypes[] = {DType::f16, DType::bf16, DType::f32};
constexpr Precision kPrecisions[] = {Precision::fast, Precision::f32, Precision::high, Precision::int8};

int64_t draw(std::mt19937_64& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}
size_t size(int64_t count) { return static_cast<size_t>(count); }

struct Shape {
  int64_t rows, past;
  int32_t kv_heads, group, head_dim;
  DType kv;
  Precision precision = Precision::fast;
  int32_t window = 0;
  int64_t longest_run = 100;

  int64_t tokens() const { return past + rows; }
  bool on_tensor_cores() const {
    return kv != DType::f32 && (precision == Precision::fast || precision == Precision::int8);
  }
};

// Queries, keys and values on the host, stored in the KV type.
struct Problem {
  Problem(std::mt19937_64& random, const Shape& s)
      : shape(s), queries(random_floats(size(s.rows * s.kv_heads * s.group * s.head_dim), random)) {
    for (int32_t head = 0; head < s.kv_heads; ++head)
      for (auto* side : {&keys, &values})
        side->push_back(to_kv(random_floats(size(s.tokens() * s.head_dim), random), s.kv));
  }
  size_t row_size() const { return row_bytes(shape.kv, shape.head_dim); }
  std::vector<float> wide(const AlignedBytes& side) const {
    std::vector<float> out(size(shape.tokens() * shape.head_dim));
    cpu::from_kv(side.data(), shape.kv, out.data(), static_cast<int64_t>(out.size()));
    return out;
  }
  AttendChunkArgs args() const {
    AttendChunkArgs args{};
    args.rows = shape.rows;
    args.kv_heads = shape.kv_heads;
    args.group = shape.group;
    args.head_dim = shape.head_dim;
    args.kv = shape.kv;
    args.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
    args.precision = shape.precision;
    args.window = shape.window;
    return args;
  }
  Shape shape;
  std::vector<float> queries;
  std::vector<AlignedBytes> keys, values;  // (tokens, head_dim) per head
};

// Tokens [first, end) of a problem on a device, in runs of random lengths, each in memory of exactly its size.
struct DeviceRuns {
  DeviceRuns(DeviceStream& stream, std::mt19937_64& random, const Problem& problem, int64_t first,
             int64_t end) {
    std::vector<const KvRun*> heads;
    std::vector<int32_t> counts;
    for (int32_t head = 0; head < problem.shape.kv_heads; ++head) {
      std::vector<KvRun> runs;
      for (int64_t at = first; at < end;) {
        const int64_t length =
            std::min(end - at, random() % 9 ? draw(random, 1, problem.shape.longest_run) : 0);
        const auto copy = [&](const AlignedBytes& side) {
          memory.emplace_back(stream, side.data() + size(at) * problem.row_size(),
                              size(length) * problem.row_size());
          return memory.back().data();
        };
        runs.push_back({copy(problem.keys[size(head)]), copy(problem.values[size(head)]), length});
        at += length;
      }
      lists.emplace_back(stream, runs);
      heads.push_back(lists.back());
      counts.push_back(static_cast<int32_t>(runs.size()));
    }
    list = DeviceArray<const KvRun*>(stream, heads);
    count = DeviceArray<int32_t>(stream, counts);
  }
  void to(AttendChunkArgs& args) const { args.runs = list, args.run_count = count; }

  std::vector<DeviceArray<std::byte>> memory;
  std::vector<DeviceArray<KvRun>> lists;
  DeviceArray<const KvRun*> list;
  DeviceArray<int32_t> count;
};

struct Result {
  std::vector<float> out, lse;
};

// With tokens in parts that end where `ends` says; {tokens}: in one call.
Result attend_on_device(std::mt19937_64& random, const Problem& problem, const std::vector<int64_t>& ends,
                        size_t shared_bytes = 227 << 10) {
  cuda_emulation::reset(random());
  shared_bytes = cuda_emulation::limit_shared(shared_bytes);
  DeviceStream stream;
  const DeviceArray<float> queries(stream, problem.queries);
  const DeviceArray<float> out(stream, problem.queries.size());
  const size_t heads = problem.queries.size() / size(problem.shape.head_dim);
  const DeviceArray<float> lse(stream, heads), state(stream, 2 * heads);
  AttendChunkArgs args = problem.args();
  args.queries = queries;
  args.out = out;
  args.lse = lse;
  if (ends.size() > 1) args.state = state;
  std::vector<DeviceRuns> parts;
  for (const int64_t end : ends) {
    parts.emplace_back(stream, random, problem, args.first_key, end);
    parts.back().to(args);
    args.keys_after = problem.shape.tokens() - end;
    assert_cuda(cuda::attend_chunk(stream, args, shared_bytes));
    args.first_key = end;
  }
  Result result{out.to_host(), lse.to_host()};
  if (!cuda_emulation::report().empty()) fail_because("%s", cuda_emulation::report().c_str());
  return result;
}

float as_stored(DType type, float number) {
  AlignedBytes bytes = to_kv({number}, type);
  cpu::from_kv(bytes.data(), type, &number, 1);
  return number;
}

[[noreturn]] void fail_at(const Shape& s, const char* what, int64_t row, int64_t head, int64_t at, double got,
                          double want) {
  std::printf("%lld rows after %lld, window %d, %d heads of %d, head_dim %d, %s, precision %d: ",
              static_cast<long long>(s.rows), static_cast<long long>(s.past), s.window, s.kv_heads, s.group,
              s.head_dim, format_of(s.kv).name, static_cast<int>(s.precision));
  fail_because("%s of row %lld, head %lld, %lld is %.9g, wanted %.9g", what, static_cast<long long>(row),
               static_cast<long long>(head), static_cast<long long>(at), got, want);
  std::abort();
}

// Rounding of scores and sums in f32 is 1e-5 of the sum of |weight · value|; weights in bf16 and f16 are each
// off by at most 2^-8 and 2^-11 of themselves. The largest is some 2^7 in f16, whose smallest number then is
// 2^-31 of it.
void check_against_f64(const Problem& problem, const Result& result) {
  const Shape& s = problem.shape;
  const bool rounds = s.on_tensor_cores();
  const double tolerance = 2e-5 + (!rounds ? 0 : s.kv == DType::f16 ? 0x1p-11 : 0x1p-8);
  const float factor = problem.args().scale * std::numbers::log2e_v<float>;
  std::vector<double> scores(size(s.tokens()));
  for (int32_t head = 0; head < s.kv_heads; ++head) {
    const std::vector<float> keys = problem.wide(problem.keys[size(head)]);
    const std::vector<float> values = problem.wide(problem.values[size(head)]);
    for (int64_t row = 0; row < s.rows; ++row)
      for (int32_t g = 0; g < s.group; ++g) {
        const int64_t query_head = (row * s.kv_heads + head) * s.group + g;
        std::vector<float> query(&problem.queries[size(query_head * s.head_dim)],
                                 &problem.queries[size(query_head * s.head_dim)] + s.head_dim);
        for (float& number : query) number = rounds ? as_stored(s.kv, number * factor) : number * factor;
        const int64_t end = s.past + row + 1, begin = s.window ? std::max<int64_t>(end - s.window, 0) : 0;
        double highest = -INFINITY, sum = 0;
        for (int64_t t = begin; t < end; ++t) {
          double score = 0;
          for (int32_t j = 0; j < s.head_dim; ++j)
            score += double(query[size(j)]) * double(keys[size(t * s.head_dim + j)]);
          scores[size(t)] = score * std::numbers::ln2;
          highest = std::max(highest, scores[size(t)]);
        }
        for (int64_t t = begin; t < end; ++t) sum += scores[size(t)] = std::exp(scores[size(t)] - highest);
        for (int32_t j = 0; j < s.head_dim; ++j) {
          double want = 0, magnitude = 0;
          for (int64_t t = begin; t < end; ++t) {
            const double product = scores[size(t)] / sum * double(values[size(t * s.head_dim + j)]);
            want += product;
            magnitude += std::abs(product);
          }
          const double got = double(result.out[size(query_head * s.head_dim + j)]);
          if (!(std::abs(got - want) <= tolerance * magnitude)) fail_at(s, "out", row, head, j, got, want);
        }
        const double lse = highest + std::log(sum), got = double(result.lse[size(query_head)]);
        if (!(std::abs(got - lse) <= 1e-5 * (1 + std::abs(lse)))) fail_at(s, "lse", row, head, g, got, lse);
      }
  }
}

// The CPU's, with all in f32. Rounded queries change scores by 2^-11 (2^-8) of some units, and with them the
// weights; values are normal.
void check_against_the_cpu(const Problem& problem, const Result& result) {
  const Shape& s = problem.shape;
  AttendChunkArgs args = problem.args();
  std::vector<KvRun> runs;
  for (int32_t head = 0; head < s.kv_heads; ++head)
    runs.push_back({problem.keys[size(head)].data(), problem.values[size(head)].data(), s.tokens()});
  std::vector<const KvRun*> lists;
  for (const KvRun& run : runs) lists.push_back(&run);
  const std::vector<int32_t> counts(runs.size(), 1);
  Result cpu{std::vector<float>(result.out.size()), std::vector<float>(result.lse.size())};
  args.queries = problem.queries.data();
  args.runs = lists.data();
  args.run_count = counts.data();
  args.out = cpu.out.data();
  args.lse = cpu.lse.data();
  args.precision = Precision::f32;
  with_workers(1, [&](const Stream& stream) { cpu::attend_chunk(stream, args); });
  const float tolerance = !s.on_tensor_cores() ? 2e-5f : s.kv == DType::f16 ? 0x1p-8f : 0x1p-5f;
  for (size_t i = 0; i < cpu.out.size(); ++i)
    if (!(std::abs(result.out[i] - cpu.out[i]) <= tolerance))
      fail_at(s, "the CPU's out", 0, 0, static_cast<int64_t>(i), double(result.out[i]), double(cpu.out[i]));
  for (size_t i = 0; i < cpu.lse.size(); ++i)
    if (!(std::abs(result.lse[i] - cpu.lse[i]) <= tolerance * (1 + std::abs(cpu.lse[i]))))
      fail_at(s, "the CPU's lse", 0, 0, static_cast<int64_t>(i), double(result.lse[i]), double(cpu.lse[i]));
}

void check(std::mt19937_64& random, const Shape& shape) {
  const Problem problem(random, shape);
  const Result result = attend_on_device(random, problem, {shape.tokens()});
  check_against_f64(problem, result);
  check_against_the_cpu(problem, result);
}

void attends_any_shape(void**) {
  constexpr int32_t kDims[] = {64, 96, 128, 256};
  for (uint64_t number = 0; number < 160; ++number) {
    std::mt19937_64 random(seed() * 1000 + number);
    Shape shape{};
    shape.kv = kTypes[number % 3];
    shape.precision = kPrecisions[random() % 4];
    shape.head_dim = number % 8 == 7 ? 8 * static_cast<int32_t>(draw(random, 1, 32)) : kDims[number % 4];
    shape.group = 1 + static_cast<int32_t>(random() % (number % 5 ? 8 : 16));
    shape.kv_heads = static_cast<int32_t>(draw(random, 1, 2));
    const int64_t most_rows = std::max<int64_t>(number % 10 == 9 ? 300 / shape.group : 60 / shape.group, 1);
    shape.rows = draw(random, number % 30 ? 1 : 0, most_rows);
    shape.past = random() % 4 ? draw(random, 0, 200) : 0;
    if (random() % 3 == 0) shape.window = static_cast<int32_t>(draw(random, 1, shape.tokens() + 20));
    shape.longest_run = random() % 3 ? draw(random, 1, 100) : 1000;
    check(random, shape);
  }
}

void causal_and_window_edges_are_exact(void**) {
  std::mt19937_64 random(seed() + 1);
  for (const DType kv : kTypes)
    for (const int64_t rows : {1, 2, 31, 32, 33, 65})
      for (const int64_t past : {0, 1, 31, 32, 63, 64}) {
        Shape shape{rows, past, 1, 2, 32, kv};
        shape.window = random() % 2 ? static_cast<int32_t>(1 + random() % 66) : 0;
        check(random, shape);
      }
}

// What a window hides from all rows is not read: it lies in no memory here that could be.
void what_a_window_hides_is_not_read(void**) {
  std::mt19937_64 random(seed() + 2);
  for (const DType kv : kTypes) {
    Problem problem(random, {20, 150, 1, 2, 64, kv, Precision::fast, 40});
    const Result before = attend_on_device(random, problem, {170});
    for (auto* side : {&problem.keys[0], &problem.values[0]})  // the first row's window begins at 111
      std::memset(side->data(), 0xFF, 111 * problem.row_size());
    const Result after = attend_on_device(random, problem, {170});
    assert_true(same_bits(before.out, after.out) && same_bits(before.lse, after.lse));
  }
}

// Parts that no row sees, that some do, and one that ends within the chunk. The first call finds NaNs.
void a_chunk_whose_keys_come_in_parts_gives_the_same_bits(void**) {
  std::mt19937_64 random(seed() + 3);
  for (int number = 0; number < 8; ++number) {
    Shape shape{};
    shape.kv = kTypes[number % 3];
    shape.precision = number % 4 == 3 ? Precision::f32 : Precision::fast;
    shape.head_dim = number == 2 ? 40 : number == 5 ? 128 : 16;
    shape.group = static_cast<int32_t>(draw(random, 1, 3));
    shape.kv_heads = 1;
    shape.rows = number == 4 ? 530 : draw(random, 1, 40);
    shape.past = number == 4 ? 500 : draw(random, 480, 1300);
    shape.longest_run = 400;
    const Problem problem(random, shape);
    const Result whole = attend_on_device(random, problem, {shape.tokens()});
    std::vector<int64_t> ends;
    for (int64_t end = kChunkKeyStep * draw(random, 1, 2); end < shape.tokens(); end += kChunkKeyStep)
      ends.push_back(end);
    ends.push_back(shape.tokens());
    const Result parts = attend_on_device(random, problem, ends);
    if (!same_bits(whole.out, parts.out) || !same_bits(whole.lse, parts.lse))
      fail_because("number %d: %lld rows after %lld, %zu parts", number, static_cast<long long>(shape.rows),
                   static_cast<long long>(shape.past), ends.size());
  }
}

// 99 KiB of it (compute capability 8.6, 8.9 and 12): every kernel starts, with fewer rows to a block where it must.
void less_shared_memory_changes_no_bit(void**) {
  std::mt19937_64 random(seed() + 5);
  for (const DType kv : kTypes)
    for (const Precision precision : {Precision::fast, Precision::f32})
      for (const int32_t head_dim : {128, 248, 256}) {
        const Problem problem(random, {37, 90, 2, 3, head_dim, kv, precision});
        const Result most = attend_on_device(random, problem, {127});
        const Result least = attend_on_device(random, problem, {127}, cuda::kLeastShared);
        assert_true(same_bits(most.out, least.out) && same_bits(most.lse, least.lse));
      }
}

// Scores of thousands that rise from key to key: the reference moves in every tile and nothing overflows.
// Queries whose scaled numbers f16 could not hold are held to its largest.
void huge_scores_do_not_overflow(void**) {
  std::mt19937_64 random(seed() + 4);
  for (const DType kv : kTypes) {
    Problem problem(random, {3, 140, 1, 1, 32, kv});
    std::vector<float> keys(143 * 32);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<float>(i / 32) * 0.5f;
    problem.keys[0] = to_kv(keys, kv);
    for (float& number : problem.queries) number = 64;
    check_against_f64(problem, attend_on_device(random, problem, {143}));
    for (float& number : problem.queries) number = 1e6f;
    for (const float number : attend_on_device(random, problem, {143}).out)
      assert_true(std::isfinite(number));
  }
}

void other_shapes_are_refused(void**) {
  cuda_emulation::reset(seed());
  DeviceStream stream;
  const auto refused = [&](auto&& change) {
    AttendChunkArgs args{};
    args.rows = args.kv_heads = args.group = 1;
    args.head_dim = 64;
    args.kv = DType::f16;
    change(args);
    return cuda::attend_chunk(stream, args, cuda::kLeastShared) == cudaErrorInvalidValue;
  };
  for (const int32_t head_dim : {0, 4, 68, 264})
    assert_true(refused([&](AttendChunkArgs& args) { args.head_dim = head_dim; }));
  assert_true(refused([](AttendChunkArgs& args) { args.kv = DType::q8_0; }));
  assert_true(refused([](AttendChunkArgs& args) { args.group = 0; }));
  assert_true(refused([](AttendChunkArgs& args) { args.keys_after = 512; }));  // no state
  float state;
  assert_true(refused([&](AttendChunkArgs& args) { args.state = &state, args.first_key = 100; }));
  assert_true(
      refused([&](AttendChunkArgs& args) { args.state = &state, args.first_key = 512, args.window = 8; }));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(attends_any_shape),
      cmocka_unit_test(causal_and_window_edges_are_exact),
      cmocka_unit_test(what_a_window_hides_is_not_read),
      cmocka_unit_test(a_chunk_whose_keys_come_in_parts_gives_the_same_bits),
      cmocka_unit_test(less_shared_memory_changes_no_bit),
      cmocka_unit_test(huge_scores_do_not_overflow),
      cmocka_unit_test(other_shapes_are_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
