// Log-probabilities against the softmax in f64, the list of the likeliest tokens against a full sort, and
// what broken logits make of both.
#include "src/sampling/logprob.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/ops.h"
#include "tests/support/counted_stream.h"
#include "tests/support/kernels.h"
#include "tests/test.h"

namespace wi {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

double log_sum(const std::vector<float>& logits, int workers = 1) {
  const test::CountedStream counted(workers);
  return cpu_backend().log_sum_exp(counted.stream(), logits.data(), static_cast<int64_t>(logits.size()));
}

double expected_log_sum(const std::vector<float>& logits) {
  double most = -INFINITY, sum = 0;
  for (float logit : logits) most = std::max(most, static_cast<double>(logit));
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  return most + std::log(sum);
}

void log_sum_exp_is_that_of_f64(void**) {
  std::mt19937 random(static_cast<unsigned>(test::seed()));
  for (size_t count : {1u, 2u, 3u, 7u, 8u, 16u, 17u, 100u, 1023u, 1024u, 1025u, 32000u, 151936u}) {
    for (float spread : {0.0f, 0.01f, 1.0f, 5.0f, 50.0f, 1000.0f}) {
      std::vector<float> logits(count);
      for (float& logit : logits) logit = std::normal_distribution<float>(-3, 1)(random) * spread;
      const double expected = expected_log_sum(logits);
      test::for_each_simd([&](const char*) {
        // A thousand f32 sums of weights within 3e-7 of theirs; the rest is in f64.
        assert_true(std::abs(log_sum(logits) - expected) < 1e-5 + 1e-7 * std::abs(expected));
      });
    }
  }
}

void log_sum_exp_is_shared_and_the_same_bits_with_any_workers(void**) {
  std::mt19937 random(static_cast<unsigned>(test::seed()));
  for (size_t count : {4097u, 8192u, 32769u, 151936u}) {
    std::vector<float> logits(count);
    for (float& logit : logits) logit = std::normal_distribution<float>(-3, 4)(random);
    test::for_each_simd([&](const char*) {
      const double one = log_sum(logits);
      for (int workers : {2, 5, 32}) assert_true(log_sum(logits, workers) == one);
    });
  }
  std::vector<float> logits(151936, -1);
  test::CountedStream counted(32);
  cpu_backend().log_sum_exp(counted.stream(), logits.data(), static_cast<int64_t>(logits.size()));
  for (int64_t tasks : counted.tasks()) assert_true(tasks >= 32);
}

void log_sum_exp_leaves_out_what_is_no_number(void**) {
  assert_true(std::abs(log_sum({kNan, 0, -kInf, 0, kNan}) - std::log(2.0)) < 1e-6);
  std::vector<float> logits(1001, kNan);
  logits[1000] = -1e30f;
  assert_true(log_sum(logits) == static_cast<double>(-1e30f));
  assert_true(log_sum({kNan, -kInf}) == -INFINITY);
  assert_true(log_sum({1, kInf, kNan}) == INFINITY);
}

void a_token_without_a_number_has_no_probability(void**) {
  assert_true(log_probability(kNan, 1) == -kInf);
  assert_true(log_probability(-kInf, 1) == -kInf);
  assert_true(log_probability(kInf, INFINITY) == 0);
  assert_true(log_probability(3, INFINITY) == -kInf);
  assert_true(log_probability(3, 4.5) == -1.5f);
}

void the_likeliest_are_those_of_a_sort(void**) {
  std::mt19937 random(static_cast<unsigned>(test::seed()));
  std::vector<wi_token_logprob> got;
  for (size_t count : {1u, 5u, 64u, 1000u}) {
    for (int kinds : {2, 10, 100000}) {
      std::vector<float> logits(count);
      for (float& logit : logits) logit = static_cast<float>(static_cast<int>(random()) % kinds);
      std::vector<int32_t> order(count);
      for (size_t i = 0; i < count; ++i) order[i] = static_cast<int32_t>(i);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
      });
      for (size_t most : {0u, 1u, 3u, 64u}) {
        best_log_probabilities(logits, 2.0, most, got);
        assert_int_equal(got.size(), std::min(most, count));
        for (size_t i = 0; i < got.size(); ++i) {
          assert_int_equal(got[i].token, order[i]);
          assert_true(got[i].logprob == logits[static_cast<size_t>(order[i])] - 2);
        }
      }
    }
  }
}

void the_likeliest_leave_out_nan_and_put_infinities_where_they_belong(void**) {
  std::vector<wi_token_logprob> got;
  best_log_probabilities(std::vector<float>{kNan, -kInf, 1, kNan, -kInf}, 1, 4, got);
  assert_int_equal(got.size(), 3);
  assert_int_equal(got[0].token, 2);
  assert_int_equal(got[1].token, 1);
  assert_int_equal(got[2].token, 4);
  assert_true(got[2].logprob == -kInf);
}

}  // namespace
}  // namespace wi

int main() {
  using namespace wi;
  const CMUnitTest tests[] = {
      cmocka_unit_test(log_sum_exp_is_that_of_f64),
      cmocka_unit_test(log_sum_exp_is_shared_and_the_same_bits_with_any_workers),
      cmocka_unit_test(log_sum_exp_leaves_out_what_is_no_number),
      cmocka_unit_test(a_token_without_a_number_has_no_probability),
      cmocka_unit_test(the_likeliest_are_those_of_a_sort),
      cmocka_unit_test(the_likeliest_leave_out_nan_and_put_infinities_where_they_belong),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
