// Products of every weight type against the same weights dequantised and multiplied in f64.
#include <algorithm>
#include <limits>

#include "tests/support/counted_stream.h"
#include "tests/support/edged.h"
#include "tests/support/fewer.h"
#include "tests/support/kernel_test.h"

using namespace wi;
using namespace wi::test;

namespace {

constexpr double kEpsilon = 0x1p-24;  // f32's rounding

// One product: random weights, inputs, bias and previous outputs, and the f64 result with its tolerance.
struct Case {
  DType type;
  int64_t rows, outputs, inputs;
  Edged<std::byte> weights;
  Edged<float> in, bias, before;
  std::vector<double> wanted, tolerance, magnitude;  // (rows, outputs); the last is |x|·|W|ᵀ
  bool in_bytes = false;                             // quantised weights under Precision::int8

  Case(DType type, int64_t rows, int64_t outputs, int64_t inputs, std::mt19937_64& random,
       Precision precision = Precision::fast)
      : type(type), rows(rows), outputs(outputs), inputs(inputs) {
    in_bytes = precision == Precision::int8 && is_quantised();
    weights = edged(random_weights(type, outputs * inputs, random));
    in = edged(random_floats(static_cast<size_t>(rows * inputs), random));
    in[in.size() / 2] = 50;  // an outlier, as real activations have
    bias = edged(random_floats(static_cast<size_t>(outputs), random));
    before = edged(random_floats(static_cast<size_t>(rows * outputs), random));
    compute();
  }

  // Activations become 16-bit integers under a common scale of 256 columns: half a step is
  // peak / 32639 / 2 for each. Sums in f32 lose kEpsilon for each of the at most inputs / 4 additions of a
  // lane and some more at the end, relative to the terms; formats with minima have terms larger than
  // the weights (d·q and m apart), at most 4 times the largest weight of these random ones.
  // In bytes, activations are rounded here as they are there, so that what is left are the roundings of sums:
  // an integer that is off by one would show.
  void compute() {
    std::vector<float> w(static_cast<size_t>(outputs * inputs));
    const std::vector<double> activations =
        in_bytes ? rounded_to_bytes() : std::vector<double>(in.begin(), in.end());
    cpu::dequantize(weights.data(), type, w.data(), outputs * inputs);
    wanted.assign(static_cast<size_t>(rows * outputs), 0);
    tolerance = magnitude = wanted;
    for (int64_t row = 0; row < rows; row++) {
      const double* x = &activations[static_cast<size_t>(row * inputs)];
      for (int64_t output = 0; output < outputs; output++) {
        const float* y = &w[static_cast<size_t>(output * inputs)];
        double sum = 0, quant_error = 0, terms = 0, largest = 0;
        for (int64_t i = 0; i < inputs; i++) largest = std::max(largest, std::abs(static_cast<double>(y[i])));
        for (int64_t first = 0; first < inputs; first += 256) {
          const int64_t last = std::min(inputs, first + 256);
          double peak = 0, weight_sum = 0;
          for (int64_t i = first; i < last; i++) {
            sum += x[i] * static_cast<double>(y[i]);
            terms += std::abs(x[i]) * (is_quantised() ? 4 * largest : std::abs(static_cast<double>(y[i])));
            magnitude[static_cast<size_t>(row * outputs + output)] +=
                std::abs(x[i] * static_cast<double>(y[i]));
            peak = std::max(peak, std::abs(x[i]));
            weight_sum += std::abs(static_cast<double>(y[i]));
          }
          quant_error += weight_sum * peak / 32639 / 2;
        }
        const size_t at = static_cast<size_t>(row * outputs + output);
        wanted[at] = sum;
        const double roundings = static_cast<double>(inputs) / (is_quantised() ? 32 : 4) + 16;
        tolerance[at] =
            (is_quantised() && !in_bytes ? 1.01 * quant_error : 0) + roundings * kEpsilon * terms + 1e-6;
      }
    }
  }
  std::vector<double> rounded_to_bytes() const {
    std::vector<double> out(in.size());
    for (size_t first = 0; first < in.size(); first += 32) {
      float largest = 0;
      for (size_t i = first; i < first + 32; i++) largest = std::max(largest, std::abs(in[i]));
      const float scale = largest / 127, inverse = 127 / largest;
      for (size_t i = first; i < first + 32; i++)
        out[i] = static_cast<double>(scale) * std::nearbyint(static_cast<double>(in[i] * inverse));
    }
    return out;
  }
  bool is_quantised() const { return format_of(type).elements > 1; }

  MatmulPart part(Edged<float>& out, bool with_bias, bool accumulate) const {
    out = before;
    return {.weight = {weights.data(), type, outputs, inputs},
            .bias = with_bias ? bias.data() : nullptr,
            .out = out.data(),
            .accumulate = accumulate};
  }
  void check(const Edged<float>& out, bool with_bias, bool accumulate, double relative = 0) const {
    for (size_t i = 0; i < out.size(); i++) {
      double want = wanted[i] + (with_bias ? static_cast<double>(bias[i % static_cast<size_t>(outputs)]) : 0);
      if (accumulate) want += static_cast<double>(before[i]);
      const double limit = tolerance[i] + relative * magnitude[i] + std::abs(want) * 2 * kEpsilon;
      if (!(std::abs(static_cast<double>(out[i]) - want) <= limit))
        fail_because("%s, %s, (%d rows, %d outputs, %d inputs): output %zu is %g, wanted %g ± %g",
                     cpu::simd_name(), format_of(type).name, int(rows), int(outputs), int(inputs), i,
                     static_cast<double>(out[i]), want, limit);
    }
  }
};

using Matmul = void (*)(const Stream&, const MatmulArgs&);

// rows_alike: as a decode step asks for it.
Edged<float> multiply(const Case& c, int workers, Matmul matmul, bool with_bias = false,
                      bool accumulate = false, bool rows_alike = true) {
  Edged<float> out;
  MatmulArgs args{
      .in = c.in.data(), .rows = c.rows, .parts = {c.part(out, with_bias, accumulate)}, .part_count = 1};
  args.rows_alike = rows_alike;
  if (c.in_bytes) args.precision = Precision::int8;
  with_workers(workers, [&](const Stream& stream) { matmul(stream, args); });
  return out;
}

std::vector<int64_t> widths(DType type) {
  switch (format_of(type).elements) {
    case 1:
      return {1, 7, 33, 100, 257, 640};
    case 32:
      return {32, 96, 544, 1056};
    default:
      return {256, 768, 2048};
  }
}

void every_type_matches_f64_at_odd_shapes(void**) {
  on_every_target([] {
    std::mt19937_64 random(seed());
    for (DType type : kAllTypes)
      for (int64_t inputs : widths(type))
        for (int64_t outputs : {1, 3, 37}) {
          const Case c(type, 1 + outputs % 3, outputs, inputs, random);
          for (bool with_bias : {false, true})
            for (bool accumulate : {false, true})
              c.check(multiply(c, 2, cpu::matmul_decode, with_bias, accumulate), with_bias, accumulate);
        }
  });
}

void many_rows_match_f64_at_odd_shapes(void**) {
  on_every_target([] {
    std::mt19937_64 random(seed());
    for (DType type : kAllTypes)
      for (int64_t inputs : {widths(type)[0], widths(type).back()})
        for (int64_t rows : {3, 9, 130})
          for (bool rows_alike : {false, true}) {
            const Case c(type, rows, rows == 9 ? 77 : 13, inputs, random);
            c.check(multiply(c, 2, cpu::matmul_decode, true, true, rows_alike), true, true);
          }
  });
}

void nothing_is_read_before_an_operand(void**) {
  const EdgeBefore before;
  on_every_target([] {
    std::mt19937_64 random(seed());
    for (DType type : kAllTypes)
      for (int64_t rows : {1, 6, 40}) {
        const Case c(type, rows, 37, 512, random);
        c.check(multiply(c, 2, cpu::matmul_decode, true, true), true, true);
        if (!c.is_quantised()) continue;
        const Case b(type, rows, 37, 512, random, Precision::int8);
        b.check(multiply(b, 2, cpu::matmul_bytes, true, true), true, true);
      }
  });
}

void a_row_of_a_batch_equals_the_row_alone_bit_for_bit(void**) {
  on_every_target([] {
    std::mt19937_64 random(seed());
    for (DType type : kAllTypes) {
      // Several tiles and panels and a part of one; a chunk of inputs and, where it can be, a part of one.
      Case all(type, 64, 43, format_of(type).elements == 256 ? 512 : 416, random);
      std::vector<Edged<float>> alone;
      for (int64_t row = 0; row < all.rows; row++) {
        Case one = all;
        one.rows = 1;
        one.in.assign(all.in.begin() + row * all.inputs, all.in.begin() + (row + 1) * all.inputs);
        one.before.resize(static_cast<size_t>(all.outputs));
        alone.push_back(multiply(one, 1, cpu::matmul));
      }
      for (int64_t rows :
           some_of<int64_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 33, 64})) {
        Case some = all;
        some.rows = rows;
        some.before.resize(static_cast<size_t>(rows * all.outputs));
        const Edged<float> out = multiply(some, 2, cpu::matmul);
        for (int64_t row = 0; row < rows; row++) {
          const Edged<float> mine(out.begin() + row * all.outputs, out.begin() + (row + 1) * all.outputs);
          if (!same_bits(mine, alone[static_cast<size_t>(row)]))
            fail_because("%s, %s: row %d of %d differs from itself alone", cpu::simd_name(),
                         format_of(type).name, int(row), int(rows));
        }
      }
      all.check(multiply(all, 2, cpu::matmul), false, false);
    }
  });
}

void bytes_match_their_exact_sums_at_odd_shapes(void**) {
  on_every_target([] {
    std::mt19937_64 random(seed());
    for (DType type : kAllTypes) {
      if (format_of(type).elements == 1) continue;
      for (int64_t inputs : widths(type))
        for (int64_t rows : some_of<int64_t>({1, 2, 3, 7, 16, 130})) {
          const Case c(type, rows, rows == 16 ? 77 : 13, inputs, random, Precision::int8);
          for (bool with_bias : {false, true})
            c.check(multiply(c, 2, cpu::matmul_bytes, with_bias, !with_bias), with_bias, !with_bias);
        }
    }
  });
}

// In a step with others, and in a chunk of a prompt, which need not ask for rows alike.
void a_row_in_bytes_is_the_same_bits_in_any_company(void**) {
  on_every_target([] {
    std::mt19937_64 random(seed());
    for (DType type : kAllTypes) {
      if (format_of(type).elements == 1) continue;
      const Case all(type, 300, 77, format_of(type).elements == 256 ? 512 : 416, random, Precision::int8);
      for (int64_t rows :
           some_of<int64_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 64, 300})) {
        Case some = all;
        some.rows = rows;
        some.before.resize(static_cast<size_t>(rows * all.outputs));
        const Edged<float> out = multiply(some, 2, cpu::matmul, false, false, rows < 64);
        for (int64_t row = 0; row<rows; row += rows> 64 ? 23 : 1) {
          Case one = all;
          one.rows = 1;
          one.in.assign(all.in.begin() + row * all.inputs, all.in.begin() + (row + 1) * all.inputs);
          one.before.resize(static_cast<size_t>(all.outputs));
          const Edged<float> mine(out.begin() + row * all.outputs, out.begin() + (row + 1) * all.outputs);
          if (!same_bits(mine, multiply(one, 1, cpu::matmul)))
            fail_because("%s, %s: row %d of %d differs from itself alone", cpu::simd_name(),
                         format_of(type).name, int(row), int(rows));
        }
      }
    }
  });
}

void results_do_not_depend_on_the_workers(void**) {
  std::mt19937_64 random(seed());
  for (DType type : kAllTypes) {
    for (int64_t rows : {2, 7}) {
      const Case c(type, rows, 700, 512, random);
      const Edged<float> one = multiply(c, 1, cpu::matmul_decode);
      for (int workers : {2, 3, 5}) assert_true(same_bits(one, multiply(c, workers, cpu::matmul_decode)));
      const Case b(type, rows, 700, 512, random, Precision::int8);
      assert_true(same_bits(multiply(b, 1, cpu::matmul), multiply(b, 3, cpu::matmul)));
    }
  }
}

// The products of a step of a model with 896 numbers a token and weights in q4_0: matrices of some hundred kilobytes.
void small_matrices_make_tasks_for_many_workers(void**) {
  std::mt19937_64 random(seed());
  struct Product {
    int64_t outputs, inputs;
    int64_t least;  // tasks for 16 workers
  };
  for (Precision precision : {Precision::fast, Precision::int8})
    for (int64_t rows : {1, 4})
      for (Product product : {Product{896, 896, 14}, {4864, 896, 48}, {896, 4864, 28}}) {
        const Case c(DType::q4_0, rows, product.outputs, product.inputs, random, precision);
        std::vector<Edged<float>> results;
        for (int workers : {1, 2, 16, 64}) {
          Edged<float> out;
          MatmulArgs args{
              .in = c.in.data(), .rows = rows, .parts = {c.part(out, true, true)}, .part_count = 1};
          args.precision = precision;
          args.rows_alike = true;
          CountedStream counted(workers);
          cpu::matmul(counted.stream(), args);
          results.push_back(out);
          if (!same_bits(out, results[0]))
            fail_because("%d outputs, %d inputs: %d workers change them", int(product.outputs),
                         int(product.inputs), workers);
          if (workers == 16 && counted.tasks().back() < product.least)
            fail_because("%d rows, %d outputs, %d inputs: %d tasks for %d workers", int(rows),
                         int(product.outputs), int(product.inputs), int(counted.tasks().back()), workers);
        }
      }
}

void one_rows_activations_are_shared_by_many_workers(void**) {
  std::mt19937_64 random(seed());
  for (Precision precision : {Precision::fast, Precision::int8})
    for (DType type : {DType::q4_0, DType::q4_k}) {
      const Case c(type, 1, 64, 4864, random, precision);
      std::vector<Edged<float>> results;
      for (int workers : {1, 2, 16}) {
        Edged<float> out;
        MatmulArgs args{.in = c.in.data(), .rows = 1, .parts = {c.part(out, false, false)}, .part_count = 1};
        args.precision = precision;
        args.rows_alike = true;
        CountedStream counted(workers);
        cpu::matmul(counted.stream(), args);
        results.push_back(out);
        assert_true(same_bits(out, results[0]));
        assert_int_equal(counted.tasks().size(), workers > 4 ? 2 : 1);
        if (workers > 4) assert_true(counted.tasks()[0] >= 4);
      }
    }
}

void three_parts_of_different_types_share_one_call(void**) {
  std::mt19937_64 random(seed());
  const Case q(DType::q4_k, 5, 300, 512, random);
  Case k(DType::f16, 5, 33, 512, random), v(DType::q8_0, 5, 65, 512, random);
  k.in = v.in = q.in;
  k.compute();
  v.compute();
  Edged<float> q_out, k_out, v_out;
  const MatmulArgs args{
      .in = q.in.data(),
      .rows = 5,
      .parts = {q.part(q_out, false, true), k.part(k_out, true, false), v.part(v_out, false, false)},
      .part_count = 3};
  with_workers(2, [&](const Stream& stream) { cpu::matmul_decode(stream, args); });
  q.check(q_out, false, true);
  k.check(k_out, true, false);
  v.check(v_out, false, false);
}

// As a prompt has them: what is quantised and what is not may go different ways.
void parts_of_different_types_take_many_rows(void**) {
  std::mt19937_64 random(seed());
  Case q(DType::q4_k, 40, 300, 512, random);
  Case k(DType::f16, 40, 33, 512, random), v(DType::q8_0, 40, 65, 512, random);
  k.in = v.in = q.in;
  k.compute();
  v.compute();
  for (Precision precision : {Precision::fast, Precision::f32, Precision::high, Precision::int8}) {
    if (precision == Precision::int8)
      for (Case* c : {&q, &v}) c->in_bytes = true, c->compute();
    Edged<float> q_out, k_out, v_out;
    const MatmulArgs args{
        .in = q.in.data(),
        .rows = 40,
        .parts = {q.part(q_out, false, true), k.part(k_out, true, false), v.part(v_out, false, false)},
        .part_count = 3,
        .precision = precision};
    with_workers(2, [&](const Stream& stream) { cpu::matmul(stream, args); });
    // bf16 rounds both factors, by 2^-9 each at most.
    const double relative = precision == Precision::fast ? 0x1.04p-8 : 0;
    q.check(q_out, false, true, relative);
    k.check(k_out, true, false, precision == Precision::int8 ? 0x1.04p-8 : relative);
    v.check(v_out, false, false, relative);
  }
}

void many_rows_and_few_agree(void**) {
  std::mt19937_64 random(seed());
  for (DType type : kAllTypes)
    for (int64_t rows : some_of<int64_t>({0, 1, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 32, 40})) {
      if (rows == 0) {
        Case none(type, 1, 3, 256, random);
        none.rows = 0;
        assert_true(same_bits(multiply(none, 2, cpu::matmul), none.before));
        continue;
      }
      const Case c(type, rows, 70, 512, random);
      // Dense products round weights and activations to bf16, at most 2^-9 each, and add in f32.
      c.check(multiply(c, 2, cpu::matmul, true, true, false), true, true, rows > 8 ? 0x1.04p-8 : 0);
    }
}

void the_largest_products_of_blocks_of_256_do_not_overflow(void**) {
  struct Largest {
    DType type;
    std::byte quants, scales;  // all bytes; of Q6K those of the scales are others
    size_t scale_begin, scale_end, unit, min_unit;
    float weight;
  };
  constexpr std::byte kOnes{0xFF}, kNone{0};
  constexpr size_t kNowhere = SIZE_MAX;
  constexpr Largest kLargest[] = {{DType::q2_k, kOnes, kOnes, 0, 0, 80, 82, 3 * 15},
                                  {DType::q3_k, kNone, kNone, 0, 0, 108, kNowhere, 4 * 32},
                                  {DType::q4_k, kOnes, kOnes, 0, 0, 0, 2, 15 * 63},
                                  {DType::q5_k, kOnes, kOnes, 0, 0, 0, 2, 31 * 63},
                                  {DType::q6_k, kNone, std::byte{0x80}, 192, 208, 208, kNowhere, 32 * 128}};
  on_every_target([&] {
    for (const Largest& most : kLargest) {
      std::vector<std::byte> block(row_bytes(most.type, 256), most.quants);
      std::fill(block.begin() + static_cast<std::ptrdiff_t>(most.scale_begin),
                block.begin() + static_cast<std::ptrdiff_t>(most.scale_end), most.scales);
      const float one = 1, zero = 0;
      cpu::to_kv(&one, DType::f16, block.data() + most.unit, 1);
      if (most.min_unit != kNowhere) cpu::to_kv(&zero, DType::f16, block.data() + most.min_unit, 1);
      for (int64_t rows : {1, 2, 5, 16}) {
        std::vector<float> in(static_cast<size_t>(rows) * 256, 3.0f), out(static_cast<size_t>(rows));
        std::fill(in.end() - 256, in.end(), -3.0f);
        const MatmulArgs args{.in = in.data(),
                              .rows = rows,
                              .parts = {{.weight = {block.data(), most.type, 1, 256},
                                         .bias = nullptr,
                                         .out = out.data(),
                                         .accumulate = false}},
                              .part_count = 1};
        const float wanted = 256 * 3 * most.weight;
        for (auto matmul : {cpu::matmul_decode, cpu::matmul_bytes}) {
          with_workers(1, [&](const Stream& stream) { matmul(stream, args); });
          for (int64_t row = 0; row < rows; row++)
            assert_float_equal(out[static_cast<size_t>(row)], row == rows - 1 ? -wanted : wanted,
                               wanted * 1e-6f);
        }
      }
    }
  });
}

// -128 has no opposite among bytes, and two of them by 127 are just within 16 bits.
void the_largest_products_of_bytes_do_not_saturate(void**) {
  on_every_target([] {
    for (int weight : {-128, 127, -127})
      for (int64_t rows : {1, 2, 5, 16}) {
        std::vector<std::byte> blocks(row_bytes(DType::q8_0, 288), static_cast<std::byte>(weight));
        const float one = 1;
        for (size_t at = 0; at < blocks.size(); at += 34) cpu::to_kv(&one, DType::f16, blocks.data() + at, 1);
        std::vector<float> in(static_cast<size_t>(rows) * 288, 127.0f), out(static_cast<size_t>(rows));
        std::fill(in.end() - 288, in.end(), -127.0f);
        const MatmulArgs args{.in = in.data(),
                              .rows = rows,
                              .parts = {{.weight = {blocks.data(), DType::q8_0, 1, 288},
                                         .bias = nullptr,
                                         .out = out.data(),
                                         .accumulate = false}},
                              .part_count = 1};
        with_workers(1, [&](const Stream& stream) { cpu::matmul_bytes(stream, args); });
        const float wanted = 288.0f * 127.0f * static_cast<float>(weight);
        for (int64_t row = 0; row < rows; row++)
          assert_true(out[static_cast<size_t>(row)] == (row == rows - 1 ? -wanted : wanted));
      }
  });
}

void nan_and_infinity_reach_the_output(void**) {
  on_every_target([] {
    std::mt19937_64 random(seed());
    for (DType type : kAllTypes)
      for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        for (int64_t rows : {2, 6}) {
          Case c(type, rows, 4, 768, random);
          c.in[768 + 300] = bad;
          const Edged<float> out = multiply(c, 1, cpu::matmul_decode);
          for (size_t i = 0; i < out.size(); i++) assert_int_equal(std::isfinite(out[i]), i / 4 != 1);
          if (!c.is_quantised()) continue;
          const Edged<float> in_bytes = multiply(c, 1, cpu::matmul_bytes);
          for (size_t i = 0; i < out.size(); i++) assert_int_equal(std::isfinite(in_bytes[i]), i / 4 != 1);
        }
      }
  });
}

void zero_and_tiny_inputs_give_no_nan(void**) {
  on_every_target([] {
    std::mt19937_64 random(seed());
    for (DType type : kAllTypes)
      for (float value : {0.0f, 1e-38f, 1e-42f}) {
        Case c(type, 1, 4, 256, random);
        std::fill(c.in.begin(), c.in.end(), value);
        for (float out : multiply(c, 1, cpu::matmul_decode)) assert_true(std::abs(out) < 1e-30f);
        if (c.is_quantised())
          for (float out : multiply(c, 1, cpu::matmul_bytes)) assert_true(std::abs(out) < 1e-30f);
      }
  });
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_type_matches_f64_at_odd_shapes),
      cmocka_unit_test(many_rows_match_f64_at_odd_shapes),
      cmocka_unit_test(nothing_is_read_before_an_operand),
      cmocka_unit_test(a_row_of_a_batch_equals_the_row_alone_bit_for_bit),
      cmocka_unit_test(bytes_match_their_exact_sums_at_odd_shapes),
      cmocka_unit_test(a_row_in_bytes_is_the_same_bits_in_any_company),
      cmocka_unit_test(results_do_not_depend_on_the_workers),
      cmocka_unit_test(small_matrices_make_tasks_for_many_workers),
      cmocka_unit_test(one_rows_activations_are_shared_by_many_workers),
      cmocka_unit_test(three_parts_of_different_types_share_one_call),
      cmocka_unit_test(parts_of_different_types_take_many_rows),
      cmocka_unit_test(many_rows_and_few_agree),
      cmocka_unit_test(the_largest_products_of_blocks_of_256_do_not_overflow),
      cmocka_unit_test(the_largest_products_of_bytes_do_not_saturate),
      cmocka_unit_test(nan_and_infinity_reach_the_output),
      cmocka_unit_test(zero_and_tiny_inputs_give_no_nan),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
