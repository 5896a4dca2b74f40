// While a session writes, its new tokens are sealed into segments beside the steps, and no step waits for that.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <vector>

#include "src/session.h"
#include "tests/support/random_model.h"
#include "tests/test.h"

using namespace wi;

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPast = 8192;
// The work of three segments, of which two take their place.
constexpr int kSteps = 3 * 256 + 128;
// As many as it needs: of a step the least time of all runs counts, since any single run has pauses of its own.
constexpr int kMostRuns = 24;

// Mostly attention, as of a large model over a long past: what is sealed is most of what there is to do.
test::ModelShape shape() {
  test::ModelShape shape = test::shape_named("llama-8b-cache");
  shape.layers = 4;
  return shape;
}

std::shared_ptr<Session> filled(const std::shared_ptr<Runtime>& runtime,
                                const std::shared_ptr<const Model>& model) {
  SessionParams params;
  params.policy = find_policy(runtime->backend, "wave");
  params.prefix_reuse = false;
  auto session = Session::create(runtime, model, params);
  std::mt19937 random(static_cast<uint32_t>(test::seed()));
  std::vector<int32_t> ids(kPast);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 1000);
  const int64_t width = model->config.kv_heads * model->config.head_dim;
  std::normal_distribution<float> normal;
  session->append_computed(
      ids,
      [&](int32_t, int64_t, int64_t count, float* keys, float* values) {
        for (int64_t i = 0; i < count * width; ++i) keys[i] = normal(random), values[i] = normal(random);
      },
      nullptr);
  session->decode(nullptr);
  return session;
}

void no_step_waits_for_a_segment_to_be_made(void**) {
#if defined(WI_SANITIZED) || defined(WI_EMULATED)
  skip();  // of times alone
#endif
  RuntimeParams params;
  params.threads = 2;
  const auto runtime = Runtime::create(params);
  const auto model = test::random_model(shape(), DType::f32, 7);
  const auto past = filled(runtime, model);
  std::vector<double> least(kSteps, 1e9), sorted;
  double median = 0, p99 = 0, most = 0;
  int runs = 0;
  do {
    const auto session = past->fork();
    for (double& step : least) {
      const auto start = Clock::now();
      session->decode(nullptr);
      step = std::min(step, std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
    sorted = least;
    std::sort(sorted.begin(), sorted.end());
    median = sorted[kSteps / 2], p99 = sorted[kSteps * 99 / 100], most = sorted.back();
  } while (++runs < kMostRuns && (runs < 3 || p99 > 1.5 * median || most > 3 * median));
  std::printf("%d steps, the least of %d runs: median %.3f ms, p99 %.2f times that, the longest %.2f times\n",
              kSteps, runs, median, p99 / median, most / median);
  assert_in_time(p99 <= 1.5 * median);
  assert_in_time(most <= 3 * median);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(no_step_waits_for_a_segment_to_be_made)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
