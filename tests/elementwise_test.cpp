// Embedding, norms, rotations, SwiGLU and the KV conversions against plain f64 or bit-exact references.
#include <limits>

#include "tests/support/counted_stream.h"
#include "tests/support/fewer.h"
#include "tests/support/kernel_test.h"

using namespace wi;
using namespace wi::test;

namespace {

void check_close(float got, double want, double tolerance, const char* what, size_t at) {
  if (!(std::abs(static_cast<double>(got) - want) <= tolerance))
    fail_because("%s, %s: element %zu is %.9g, wanted %.9g ± %g", cpu::simd_name(), what, at,
                 static_cast<double>(got), want, tolerance);
}

// Round to nearest even, by comparing the neighbours' distances in f64.
double narrow_value(uint16_t bits, DType kv) {
  if (kv == DType::bf16) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float out;
    std::memcpy(&out, &wide, 4);
    return static_cast<double>(out);
  }
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 31  ? (mantissa ? NAN : INFINITY)
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

// The two narrow numbers around a magnitude differ by one in their bits; overflow counts as infinity
// stands for the next power of two.
bool is_nearest_even(float value, uint16_t bits, DType kv) {
  if (std::isnan(value)) return std::isnan(narrow_value(bits, kv));
  if (std::signbit(value) != ((bits & 0x8000) != 0)) return false;
  const uint16_t infinity = kv == DType::f16 ? 0x7C00 : 0x7F80;
  const double overflow = kv == DType::f16 ? 65536.0 : 0x1p128;
  const auto magnitude_of = [&](int b) {
    return b == infinity ? overflow : narrow_value(static_cast<uint16_t>(b), kv);
  };
  const int got = bits & 0x7FFF;
  if (got > infinity) return false;
  if (std::isinf(value)) return got == infinity;
  const double wanted = std::abs(static_cast<double>(value));
  const double error = std::abs(magnitude_of(got) - wanted);
  for (int other : {got - 1, got + 1}) {
    if (other < 0 || other > infinity) continue;
    const double other_error = std::abs(magnitude_of(other) - wanted);
    if (other_error < error || (other_error == error && got % 2 == 1)) return false;
  }
  return true;
}

std::vector<float> awkward_floats() {
  std::vector<float> out = {0.0f,
                            -0.0f,
                            1.0f,
                            -1.0f,
                            INFINITY,
                            -INFINITY,
                            NAN,
                            65504.0f,
                            65519.99f,
                            65520.0f,
                            65536.0f,
                            1e-8f,
                            0x1p-24f,
                            0x1p-25f,
                            0x1.000002p-25f,
                            0x1.8p-24f,
                            0x1p-14f,
                            0x1.ffcp-15f,
                            0x1.ffep-15f,
                            0x1.fffp-15f,
                            1.00048828125f,
                            1.00146484375f,
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::denorm_min(),
                            0x1.ffp-127f,
                            1.00390625f,
                            1.01171875f};
  std::mt19937_64 random(seed());
  for (int i = 0; i < few_or(1000, 20000); i++) {
    const uint32_t bits = static_cast<uint32_t>(random());
    float value;
    std::memcpy(&value, &bits, 4);
    out.push_back(value);
    // Exponents around f16's range, and exact halves between two f16 or bf16 numbers.
    const uint32_t middle = (bits & 0x8FFFFFFF) | 0x30000000;
    const uint32_t half16 = (middle & 0xFFFFE000) | 0x1000, half_b = (bits & 0xFFFF0000) | 0x8000;
    for (uint32_t b : {middle, half16, half_b}) {
      std::memcpy(&value, &b, 4);
      out.push_back(value);
    }
  }
  return out;
}

void to_kv_rounds_to_nearest_even(void**) {
  on_every_target([] {
    const std::vector<float> in = awkward_floats();
    for (DType kv : {DType::f16, DType::bf16}) {
      std::vector<uint16_t> out(in.size());
      cpu::to_kv(in.data(), kv, out.data(), static_cast<int64_t>(in.size()));
      for (size_t i = 0; i < in.size(); i++)
        if (!is_nearest_even(in[i], out[i], kv))
          fail_because("%s: %a became %s %04x", cpu::simd_name(), static_cast<double>(in[i]),
                       format_of(kv).name, out[i]);
    }
  });
}

void from_kv_is_exact_for_every_16_bit_pattern(void**) {
  on_every_target([] {
    std::vector<uint16_t> in(65536);
    for (size_t i = 0; i < in.size(); i++) in[i] = static_cast<uint16_t>(i);
    for (DType kv : {DType::f16, DType::bf16}) {
      std::vector<float> out(in.size());
      cpu::from_kv(in.data(), kv, out.data(), 65536);
      for (size_t i = 0; i < in.size(); i++) {
        const double want = narrow_value(in[i], kv);
        const bool same = std::isnan(want) ? std::isnan(out[i])
                                           : static_cast<double>(out[i]) == want &&
                                                 std::signbit(out[i]) == std::signbit(want);
        if (!same)
          fail_because("%s: %s %04zx became %a", cpu::simd_name(), format_of(kv).name, i,
                       static_cast<double>(out[i]));
      }
    }
  });
}

void conversions_write_only_what_they_were_asked_for(void**) {
  on_every_target([] {
    std::mt19937_64 random(seed());
    for (size_t count = 0; count < 40; count++)
      for (DType kv : {DType::f32, DType::f16, DType::bf16}) {
        const std::vector<float> in = random_floats(count, random);
        const size_t bytes = row_bytes(kv, static_cast<int64_t>(count));
        std::vector<uint8_t> narrow(bytes + 8, 0xAB);
        cpu::to_kv(in.data(), kv, narrow.data(), static_cast<int64_t>(count));
        for (size_t i = bytes; i < bytes + 8; i++) assert_int_equal(narrow[i], 0xAB);
        std::vector<float> back(count + 2, -7);
        cpu::from_kv(narrow.data(), kv, back.data(), static_cast<int64_t>(count));
        assert_true(back[count] == -7 && back[count + 1] == -7);
        // bf16 keeps 8 bits of each number.
        for (size_t i = 0; i < count; i++)
          check_close(back[i], in[i], std::abs(in[i]) * 0x1p-8, "round trip", i);
      }
  });
}

// Number by number, wherever in a row it stands.
void to_kv_tells_whether_all_it_wrote_is_finite(void**) {
  on_every_target([] {
    const std::vector<float> in = awkward_floats();
    size_t overflows = 0, at = 0;
    for (float value : in)
      for (DType kv : {DType::f32, DType::f16, DType::bf16}) {
        const int64_t count = static_cast<int64_t>(1 + at++ % 37);
        std::vector<float> row(static_cast<size_t>(count), -0.5f), back(row.size());
        row[at * 7 % row.size()] = value;
        std::vector<uint32_t> narrow(row.size());
        const uint32_t largest = cpu::to_kv(row.data(), kv, narrow.data(), count);
        cpu::from_kv(narrow.data(), kv, back.data(), count);
        const bool finite = std::all_of(back.begin(), back.end(), [](float v) { return std::isfinite(v); });
        if (kv_holds(kv, largest) != finite)
          fail_because("%s: %a as %s", cpu::simd_name(), static_cast<double>(value), format_of(kv).name);
        overflows += !finite;
      }
    assert_true(overflows > 100);
    assert_int_equal(cpu::to_kv(nullptr, DType::f16, nullptr, 0), 0);
  });
}

void embed_copies_each_tokens_row(void**) {
  on_every_target([] {
    std::mt19937_64 random(seed());
    for (DType type : kAllTypes)
      for (int64_t rows : {0, 1, 5, 50}) {
        const std::vector<std::byte> table = random_weights(type, 20 * 256, random);
        std::vector<float> plain(20 * 256), out(static_cast<size_t>(rows * 256));
        cpu::dequantize(table.data(), type, plain.data(), 20 * 256);
        std::vector<int32_t> tokens(static_cast<size_t>(rows));
        for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 20);
        const EmbedArgs args{
            .table = {table.data(), type, 20, 256}, .tokens = tokens.data(), .rows = rows, .out = out.data()};
        with_workers(2, [&](const Stream& stream) { cpu::embed(stream, args); });
        for (size_t row = 0; row < tokens.size(); row++)
          assert_memory_equal(&out[row * 256], &plain[static_cast<size_t>(tokens[row]) * 256],
                              256 * sizeof(float));
      }
  });
}

void rms_norm_matches_f64(void**) {
  on_every_target([] {
    std::mt19937_64 random(seed());
    for (int64_t cols : {1, 3, 64, 100, 2048})
      for (int64_t rows : {1, 3, 70}) {
        const int64_t stride = cols + 5;
        std::vector<float> x = random_floats(static_cast<size_t>(rows * stride), random);
        const std::vector<float> weight = random_floats(static_cast<size_t>(cols), random), before = x;
        const RmsNormArgs args{.in = x.data(),
                               .in_stride = stride,
                               .weight = weight.data(),
                               .out = x.data(),
                               .out_stride = stride,
                               .rows = rows,
                               .cols = cols,
                               .epsilon = 1e-5f};
        with_workers(2, [&](const Stream& stream) { cpu::rms_norm(stream, args); });
        for (int64_t row = 0; row < rows; row++) {
          const size_t at = static_cast<size_t>(row * stride);
          double sum = 0;
          for (size_t i = 0; i < size_t(cols); i++)
            sum += static_cast<double>(before[at + i]) * static_cast<double>(before[at + i]);
          const double scale = 1 / std::sqrt(sum / static_cast<double>(cols) + 1e-5);
          for (size_t i = 0; i < size_t(cols); i++) {
            const double want = static_cast<double>(before[at + i]) * scale * static_cast<double>(weight[i]);
            // The sum has only positive terms, at most cols / 8 additions a lane; its error halves in the
            // root.
            const double tolerance = std::abs(want) * 0x1p-24 * (static_cast<double>(cols) / 16 + 8);
            check_close(x[at + i], want, tolerance, "rms_norm", i);
          }
          for (size_t i = size_t(cols); i < size_t(stride); i++) assert_true(x[at + i] == before[at + i]);
        }
      }
  });
}

void rope_turns_both_kinds_of_pairs(void**) {
  on_every_target([] {
    std::mt19937_64 random(seed());
    for (bool interleaved : {false, true})
      for (int32_t rotary : some_of({2, 6, 22, 64, 128}))
        for (int64_t rows : {1, 200}) {
          const int32_t heads = 3, head_dim = rotary + 4, half = rotary / 2;
          const int64_t stride = heads * head_dim + 7;
          std::vector<float> x = random_floats(static_cast<size_t>(rows * stride), random);
          const std::vector<float> before = x;
          std::vector<float> cos(static_cast<size_t>(rows * half)), sin = cos;
          for (size_t i = 0; i < cos.size(); i++) {
            const float angle = static_cast<float>(random() % 6283) / 1000;
            cos[i] = std::cos(angle), sin[i] = std::sin(angle);
          }
          const RopeArgs args{.x = x.data(),
                              .stride = stride,
                              .rows = rows,
                              .heads = heads,
                              .head_dim = head_dim,
                              .rotary = rotary,
                              .cos = cos.data(),
                              .sin = sin.data(),
                              .interleaved = interleaved};
          with_workers(2, [&](const Stream& stream) { cpu::rope(stream, args); });
          std::vector<double> want(before.begin(), before.end());
          for (int64_t row = 0; row < rows; row++)
            for (int32_t head = 0; head < heads; head++)
              for (int32_t i = 0; i < half; i++) {
                const size_t base = static_cast<size_t>(row * stride + head * head_dim);
                const size_t a = base + size_t(interleaved ? 2 * i : i),
                             b = base + size_t(interleaved ? 2 * i + 1 : i + half);
                const double c = static_cast<double>(cos[size_t(row * half + i)]),
                             s = static_cast<double>(sin[size_t(row * half + i)]);
                want[a] = static_cast<double>(before[a]) * c - static_cast<double>(before[b]) * s;
                want[b] = static_cast<double>(before[a]) * s + static_cast<double>(before[b]) * c;
              }
          // Three roundings of terms below 8: normal numbers beyond 8 do not occur in a sample of this size.
          for (size_t i = 0; i < x.size(); i++) check_close(x[i], want[i], 8 * 3 * 0x1p-24, "rope", i);
        }
  });
}

void swiglu_matches_f64(void**) {
  on_every_target([] {
    std::mt19937_64 random(seed());
    for (size_t count :
         {size_t{0}, size_t{1}, size_t{15}, size_t{100}, few_or(size_t{4000}, size_t{40000})}) {
      std::vector<float> gate = random_floats(count, random);
      const std::vector<float> up = random_floats(count, random);
      for (float& value : gate) value *= 8;
      if (count > 4) gate[0] = 1000, gate[1] = -1000, gate[2] = -87.5f, gate[3] = 0;
      const std::vector<float> before = gate;
      const SwigluArgs args{
          .gate = gate.data(), .up = up.data(), .out = gate.data(), .count = static_cast<int64_t>(count)};
      with_workers(2, [&](const Stream& stream) { cpu::swiglu(stream, args); });
      for (size_t i = 0; i < count; i++) {
        const double x = static_cast<double>(before[i]);
        const double want = x / (1 + std::exp(-x)) * static_cast<double>(up[i]);
        // The exponential is within 4 ulp, three operations follow; far below zero silu may stay above 0.
        check_close(gate[i], want, std::abs(want) * 8 * 0x1p-23 + 1e-34, "swiglu", i);
      }
    }
  });
}

// Some thousand elements: one row's SwiGLU, norms of a batch of 16.
void many_workers_share_what_few_do_not(void**) {
  on_every_target([] {
    std::mt19937_64 random(seed());
    constexpr int64_t kFfn = 4864, kRows = 16, kHidden = 896;
    const std::vector<float> gate = random_floats(kFfn, random), up = random_floats(kFfn, random),
                             in = random_floats(kRows * kHidden, random),
                             weight = random_floats(kHidden, random);
    std::vector<float> one_gate, one_norm;
    for (int workers : {1, 2, 16}) {
      std::vector<float> silu(gate.size()), normed(in.size());
      CountedStream counted(workers);
      cpu::swiglu(counted.stream(), {gate.data(), up.data(), silu.data(), kFfn});
      cpu::rms_norm(counted.stream(),
                    {in.data(), kHidden, weight.data(), normed.data(), kHidden, kRows, kHidden, 1e-6f});
      assert_int_equal(counted.tasks().size(), workers > 4 ? 2 : 0);
      for (int64_t tasks : counted.tasks()) assert_true(tasks >= 4);
      if (workers == 1) one_gate = silu, one_norm = normed;
      assert_true(same_bits(silu, one_gate));
      assert_true(same_bits(normed, one_norm));
    }
  });
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(to_kv_rounds_to_nearest_even),
      cmocka_unit_test(to_kv_tells_whether_all_it_wrote_is_finite),
      cmocka_unit_test(from_kv_is_exact_for_every_16_bit_pattern),
      cmocka_unit_test(conversions_write_only_what_they_were_asked_for),
      cmocka_unit_test(embed_copies_each_tokens_row),
      cmocka_unit_test(rms_norm_matches_f64),
      cmocka_unit_test(rope_turns_both_kinds_of_pairs),
      cmocka_unit_test(swiglu_matches_f64),
      cmocka_unit_test(many_workers_share_what_few_do_not),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
