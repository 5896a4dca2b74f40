// The logarithm of a softmax's denominator over a whole vocabulary, for log-probabilities: two passes over
// the logits, the largest first, sums in f64 from one run of a thousand numbers to the next. Workers share the
// runs, whose sums are added in their order.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/log_sum_exp.cpp"
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/spread.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

constexpr float kLowest = -hwy::HighestValue<float>();

// Logits without NaN and -infinity, which would make differences that are no number.
HWY_INLINE Vector Finite(Floats d, Vector v) {
  const Vector lowest = hn::Set(d, kLowest);
  return hn::IfThenElse(hn::Gt(v, lowest), v, lowest);
}

HWY_INLINE Vector LoadSome(Floats d, const float* in, int64_t count) {
  HWY_ALIGN float padded[hn::MaxLanes(d)];
  hn::Store(hn::Set(d, kLowest), d, padded);
  for (int64_t i = 0; i < count; i++) padded[i] = in[i];
  return Finite(d, hn::Load(d, padded));
}

// Σ exp(in - largest) of one run.
double SumBelow(const float* in, int64_t count, float largest) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto weight = [&](Vector v) HWY_ATTR {
    // Below -87 an exponential is nothing beside the largest one's 1.
    const Vector below = hn::Sub(v, hn::Set(d, largest));
    return hn::IfThenElseZero(hn::Gt(below, hn::Set(d, -87.0f)),
                              hn::CallExp(d, hn::Max(below, hn::Set(d, -87.0f))));
  };
  Vector sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) sum = hn::Add(sum, weight(Finite(d, hn::LoadU(d, in + i))));
  if (i < count) sum = hn::Add(sum, weight(LoadSome(d, in + i, count - i)));
  return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
}

float Largest(const float* in, int64_t count) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vector most = hn::Set(d, kLowest);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) most = hn::Max(most, Finite(d, hn::LoadU(d, in + i)));
  if (i < count) most = hn::Max(most, LoadSome(d, in + i, count - i));
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cmath>
#include <limits>

namespace wi::cpu {

HWY_EXPORT(SumBelow);
HWY_EXPORT(Largest);

namespace {

constexpr int64_t kRun = 1024, kRunsOfTask = 4;

double sum_of_run(const float* in, int64_t count, int64_t run, float largest) {
  const int64_t begin = run * kRun;
  return HWY_DYNAMIC_DISPATCH(SumBelow)(in + begin, std::min(kRun, count - begin), largest);
}

// The largest one and, in their order, the sums of all runs.
double added_up(float largest, int64_t runs, const auto& sum_of) {
  if (std::isinf(largest)) return static_cast<double>(largest);
  if (largest == -std::numeric_limits<float>::max()) return -std::numeric_limits<double>::infinity();
  double total = 0;
  for (int64_t run = 0; run < runs; run++) total += sum_of(run);
  return static_cast<double>(largest) + std::log(total);
}

}  // namespace

double log_sum_exp(const Stream& stream, const float* in, int64_t count) {
  const int64_t runs = (count + kRun - 1) / kRun, tasks = (runs + kRunsOfTask - 1) / kRunsOfTask;
  if (stream.workers == 1 || count <= few_elements(stream)) {
    const float largest = HWY_DYNAMIC_DISPATCH(Largest)(in, count);
    return added_up(largest, runs, [&](int64_t run) { return sum_of_run(in, count, run, largest); });
  }
  double* sums = stream.shared_array<double>(static_cast<size_t>(runs + tasks));  // (runs)
  float* largest_of = reinterpret_cast<float*>(sums + runs);                      // (tasks)
  stream.each(tasks, [&](int64_t task, int) {
    const int64_t begin = task * kRunsOfTask * kRun, end = std::min(count, begin + kRunsOfTask * kRun);
    largest_of[task] = HWY_DYNAMIC_DISPATCH(Largest)(in + begin, end - begin);
  });
  const float largest = *std::max_element(largest_of, largest_of + tasks);
  stream.each(tasks, [&](int64_t task, int) {
    for (int64_t run = task * kRunsOfTask; run < std::min(runs, (task + 1) * kRunsOfTask); run++)
      sums[run] = sum_of_run(in, count, run, largest);
  });
  return added_up(largest, runs, [&](int64_t run) { return sums[run]; });
}

}  // namespace wi::cpu
#endif
