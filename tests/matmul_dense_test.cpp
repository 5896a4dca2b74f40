// matmul_dense against sums in f64 over the operands it multiplies: rounded to bf16 where the processor
// has fast bf16 products, as they are elsewhere. With every kind of products that the machine has.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <pthread.h>
#include <thread>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/unpack.h"
#include "src/memory/workers.h"
#include "tests/support/counted_stream.h"
#include "tests/support/dense.h"
#include "tests/support/edged.h"
#include "tests/support/kernels.h"
#include "tests/support/weights.h"
#include "tests/test.h"

using namespace wi;

namespace {

struct Weight {
  Weight(std::mt19937_64& random, DType type, int64_t outputs, int64_t inputs)
      : bytes(test::edged(test::random_weights(type, outputs * inputs, random))),
        matrix{bytes.data(), type, outputs, inputs} {}
  Weight(const Weight&) = delete;
  test::Edged<std::byte> bytes;
  Matrix matrix;
};

// Every output element against f64; the bound is relative to the sum of magnitudes, as rounding is: 2e-6
// covers the f32 sums of up to some thousands of products. With more than one term, each
// number is off by 2^-18 of itself at most and so is the product by the term left out.
void check_part(const MatmulArgs& args, const MatmulPart& part, const test::Edged<float>& before) {
  const Matrix& w = part.weight;
  std::vector<float> weight(static_cast<size_t>(w.rows * w.cols)), in(args.in, args.in + args.rows * w.cols);
  cpu::dequantize(w.data, w.type, weight.data(), w.rows * w.cols);
  const int terms = cpu::bf16_terms(args.precision, w.type);
  const double tolerance = terms > 1 ? 2e-6 + 3 * 0x1p-18 : 2e-6;
  if (terms == 1) {
    for (float& value : weight) value = test::from_bf16(test::to_bf16(value));
    for (float& value : in) value = test::from_bf16(test::to_bf16(value));
  }
  for (int64_t i = 0; i < args.rows; i += test::slow_or(7, 1)) {  // what is instrumented is the reference
    for (int64_t o = 0; o < w.rows; ++o) {
      double sum = (part.bias ? part.bias[o] : 0) +
                   (part.accumulate ? before[static_cast<size_t>(i * w.rows + o)] : 0);
      double magnitude = std::abs(sum);
      for (int64_t k = 0; k < w.cols; ++k) {
        double product =
            double{in[static_cast<size_t>(i * w.cols + k)]} * weight[static_cast<size_t>(o * w.cols + k)];
        sum += product;
        magnitude += std::abs(product);
      }
      double error = std::abs(sum - part.out[i * w.rows + o]);
      if (!(error <= tolerance * magnitude + 1e-30)) {
        print_error("%s, %d terms: rows %lld outputs %lld inputs %lld: out[%lld][%lld] = %g, want %g\n",
                    format_of(w.type).name, terms, (long long)args.rows, (long long)w.rows, (long long)w.cols,
                    (long long)i, (long long)o, part.out[i * w.rows + o], sum);
        _fail(__FILE__, __LINE__);
      }
    }
  }
}

struct Shape {
  int64_t rows, outputs, inputs;
};

void check_shape(Workers& workers, std::mt19937_64& random, DType type, Shape shape, bool bias,
                 bool accumulate, Precision precision = Precision::fast) {
  const auto in = test::edged(test::normal_floats(random, static_cast<size_t>(shape.rows * shape.inputs)));
  const Weight weight(random, type, shape.outputs, shape.inputs);
  const auto biases = test::edged(test::normal_floats(random, static_cast<size_t>(shape.outputs)));
  auto out = test::edged(test::normal_floats(random, static_cast<size_t>(shape.rows * shape.outputs)));
  const auto before = out;
  MatmulArgs args{in.data(),
                  shape.rows,
                  {{weight.matrix, bias ? biases.data() : nullptr, out.data(), accumulate}},
                  1,
                  precision};
  workers.run(nullptr, [&](const Stream& stream) { cpu::matmul_dense(stream, args); });
  check_part(args, args.parts[0], before);
}

void every_type_and_odd_shape_matches_f64(void**) {
  Workers workers(2);
  std::mt19937_64 random(test::seed());
  test::for_each_simd([&](const char*) {
    for (Precision precision : {Precision::fast, Precision::high, Precision::f32}) {
      for (DType type : {DType::f32, DType::f16, DType::bf16})
        for (Shape shape : {Shape{17, 1, 1}, {33, 7, 34}, {257, 300, 65}, {64, 513, 128}, {259, 70, 1100}})
          check_shape(workers, random, type, shape, false, false, precision);
      for (DType type : {DType::q8_0, DType::q4_0})
        for (Shape shape : {Shape{19, 5, 32}, {40, 260, 96}, {40, 260, 1056}})
          check_shape(workers, random, type, shape, false, false, precision);
      for (DType type : {DType::q4_k, DType::q6_k})
        check_shape(workers, random, type, {37, 270, 1280}, false, false, precision);
      for (DType type : {DType::q4_1, DType::q5_0, DType::q5_1})
        for (Shape shape : {Shape{19, 5, 32}, {20, 130, 544}})
          check_shape(workers, random, type, shape, false, false, precision);
      for (DType type : {DType::q2_k, DType::q3_k, DType::q5_k})
        check_shape(workers, random, type, {18, 130, 768}, false, false, precision);
    }
  });
}

void nothing_is_read_before_an_operand(void**) {
  const test::EdgeBefore before;
  Workers workers(2);
  std::mt19937_64 random(test::seed() + 5);
  test::for_each_simd([&](const char*) {
    for (Precision precision : {Precision::fast, Precision::high, Precision::f32})
      for (DType type : test::kAllTypes)
        check_shape(workers, random, type, {17, 37, 512}, true, true, precision);
  });
}

void bias_and_accumulation_are_added(void**) {
  Workers workers(2);
  std::mt19937_64 random(test::seed() + 1);
  for (DType type : {DType::f32, DType::bf16, DType::q8_0})
    for (int choice = 1; choice < 4; ++choice)
      check_shape(workers, random, type, {270, 290, 64}, choice & 1, choice & 2);
}

void three_parts_of_different_types_share_their_input(void**) {
  Workers workers(2);
  std::mt19937_64 random(test::seed() + 2);
  constexpr int64_t kRows = 50, kInputs = 256;
  auto in = test::normal_floats(random, kRows * kInputs);
  Weight q(random, DType::q4_k, 300, kInputs), k(random, DType::f32, 40, kInputs),
      v(random, DType::f16, 257, kInputs);
  std::vector<float> q_out(kRows * 300), k_out(kRows * 40), v_out(kRows * 257);
  MatmulArgs args{in.data(),
                  kRows,
                  {{q.matrix, nullptr, q_out.data()},
                   {k.matrix, nullptr, k_out.data()},
                   {v.matrix, nullptr, v_out.data()}},
                  3};
  for (Precision precision : {Precision::fast, Precision::high}) {
    args.precision = precision;
    workers.run(nullptr, [&](const Stream& stream) { cpu::matmul_dense(stream, args); });
    for (const MatmulPart& part : args.parts) check_part(args, part, {});
  }
}

// The same products whatever the workers: 1 and 3 give the same bits.
void workers_do_not_change_a_bit(void**) {
  std::mt19937_64 random(test::seed() + 3);
  constexpr int64_t kRows = 600, kInputs = 320, kOutputs = 700;
  auto in = test::normal_floats(random, kRows * kInputs);
  Weight weight(random, DType::q8_0, kOutputs, kInputs);
  std::vector<float> first(kRows * kOutputs), second(kRows * kOutputs);
  for (auto [threads, out] : {std::pair{1, &first}, {3, &second}}) {
    Workers workers(threads);
    MatmulArgs args{in.data(), kRows, {{weight.matrix, nullptr, out->data()}}, 1};
    workers.run(nullptr, [&](const Stream& stream) { cpu::matmul_dense(stream, args); });
  }
  assert_memory_equal(first.data(), second.data(), first.size() * sizeof(float));
}

// Panels as few as a small model has: they are cut further for many workers, and no bit changes.
void few_panels_make_tasks_for_many_workers(void**) {
  std::mt19937_64 random(test::seed() + 6);
  constexpr int64_t kRows = 600, kInputs = 160, kOutputs = 300;
  const auto in = test::normal_floats(random, kRows * kInputs);
  test::for_each_simd([&](const char*) {
    for (Precision precision : {Precision::fast, Precision::high, Precision::f32})
      for (DType type : {DType::f32, DType::bf16, DType::q8_0}) {
        const Weight weight(random, type, kOutputs, kInputs);
        std::vector<float> one;
        for (int workers : {1, 2, 8, 32}) {
          std::vector<float> out(kRows * kOutputs);
          test::CountedStream counted(workers);
          cpu::matmul_dense(counted.stream(),
                            {in.data(), kRows, {{weight.matrix, nullptr, out.data()}}, 1, precision});
          if (workers == 1) one = out;
          assert_memory_equal(one.data(), out.data(), one.size() * sizeof(float));
          if (workers >= 8) assert_true(counted.tasks().back() >= std::min(workers, 12));
        }
      }
  });
}

void no_thread_appears_but_the_workers(void**) {
  std::mt19937_64 random(test::seed() + 4);
  Workers workers(2);
  workers.run(nullptr, [](const Stream& stream) { stream.each(64, [](int64_t, int) {}); });
  const int before = test::thread_count();
  check_shape(workers, random, DType::bf16, {300, 600, 512}, false, false);
  check_shape(workers, random, DType::f32, {300, 600, 512}, true, false);
  assert_true(test::thread_count() <= std::max(before, 2));
}

// Where the handler below ran.
std::byte* stack_begin = nullptr;
size_t stack_bytes = 0;
std::atomic<int> on_stack{0}, elsewhere{0};

// A kernel that used the stack pointer for memory of the heap, as a library's did here once, would have it
// overwritten by a handler's frame.
void signal_handlers_run_on_the_threads_own_stack(void**) {
  pthread_attr_t attributes;
  void* begin = nullptr;
  assert_int_equal(pthread_getattr_np(pthread_self(), &attributes), 0);
  assert_int_equal(pthread_attr_getstack(&attributes, &begin, &stack_bytes), 0);
  pthread_attr_destroy(&attributes);
  stack_begin = static_cast<std::byte*>(begin);

  on_stack = elsewhere = 0;
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int) {
    const std::byte* here = static_cast<const std::byte*>(__builtin_frame_address(0));
    (here >= stack_begin && here < stack_begin + stack_bytes ? on_stack : elsewhere)++;
  };
  sigaction(SIGUSR1, &action, &before);
  std::atomic<bool> done{false};
  std::thread sender([&done, target = pthread_self()] {
    for (; !done; std::this_thread::sleep_for(std::chrono::microseconds(500))) pthread_kill(target, SIGUSR1);
  });
  constexpr int64_t kSize = 512;  // deep enough for a buffer of the kernel's
  const std::vector<float> a(kSize * kSize, 1), b(kSize * kSize, 1);
  std::vector<float> c(kSize * kSize);
  const cpu::Gemm gemm({kSize, kSize, kSize, DType::f32, false});
  std::byte* scratch = static_cast<std::byte*>(std::aligned_alloc(64, (gemm.scratch_bytes() + 64) / 64 * 64));
  for (int i = 0; i < 10000 && on_stack < 100; i++) gemm.run(a.data(), b.data(), c.data(), scratch);
  done = true;
  sender.join();
  sigaction(SIGUSR1, &before, nullptr);
  std::free(scratch);
  assert_int_equal(elsewhere, 0);
  assert_true(on_stack > 0);
  assert_true(c[0] == kSize);
}

void cancellation_ends_a_long_product_soon(void**) {
  constexpr int64_t kRows = 2048, kInputs = 4096, kOutputs = 16384;
  std::vector<float> in(kRows * kInputs, 0.5f), out(kRows * kOutputs);
  std::vector<uint16_t> weight(static_cast<size_t>(kInputs * kOutputs), 0x3c00);
  MatmulArgs args{
      in.data(), kRows, {{{weight.data(), DType::f16, kOutputs, kInputs}, nullptr, out.data()}}, 1};
  test::assert_ends_soon_when_cancelled(
      [&](const Stream& stream) { cpu::matmul_dense(stream, args); });  // 275 GFLOP, seconds
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(no_thread_appears_but_the_workers),  // first: thread pools stay once they are there
      cmocka_unit_test(every_type_and_odd_shape_matches_f64),
      cmocka_unit_test(nothing_is_read_before_an_operand),
      cmocka_unit_test(bias_and_accumulation_are_added),
      cmocka_unit_test(three_parts_of_different_types_share_their_input),
      cmocka_unit_test(workers_do_not_change_a_bit),
      cmocka_unit_test(few_panels_make_tasks_for_many_workers),
      cmocka_unit_test(signal_handlers_run_on_the_threads_own_stack),
      cmocka_unit_test(cancellation_ends_a_long_product_soon),
  };
  return test::run_with_all_products(tests);
}
