// Sessions on the CUDA backend, and on the CPU's own with the same model, to compare with.
#pragma once

#include <cmath>
#include <cuda_runtime.h>
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "kernels/cuda/backend.h"
#include "src/model/device_weights.h"
#include "src/session.h"
#include "tests/support/random_model.h"
#include "tests/test.h"

namespace wi::test {

// Before a test: what was asked of the device before is forgotten.
inline int reset(void**) {
  cuda_emulation::reset(seed());
  return 0;
}

inline const Backend& cuda_backend() {
  static const BackendOnDevice both(cuda::backend());
  return both.backend;
}

struct Shape {
  const char* policy = "wave";
  DType weights = DType::f16, kv = DType::f16;
  int32_t kv_heads = 2;
  float fast_share = 0;  // of keys and values, in the device's memory; 0: what the budget has room for
  uint64_t budget_bytes = uint64_t{1} << 30;
  uint64_t slow_bytes = 0;  // of pinned memory at most
  int32_t head_dim = 16;
  wi_log_callback log = nullptr;
  void* log_user = nullptr;
  size_t slab_bytes = kSlabBytes;
  int32_t layers = 0;  // 0: few
  int32_t device = 0;
};

// A backend with sessions of a model that it has to itself: a device takes the model's weights away.
struct World {
  explicit World(const Backend& backend, const Shape& shape = {}) {
    RuntimeParams params;
    params.threads = 1;
    params.kv_budget_bytes = shape.budget_bytes;
    params.spill_bytes = shape.slow_bytes;
    params.slab_bytes = shape.slab_bytes;
    params.backend = &backend;
    params.device = shape.device;
    params.log = shape.log;
    params.log_user = shape.log_user;
    runtime = Runtime::create(params);
    ModelShape of = shape_named("tiny");
    of.kv_heads = shape.kv_heads;
    of.head_dim = shape.head_dim;
    if (shape.layers) of.layers = shape.layers;
    model = random_model(of, shape.weights, 7, Precision::f32);
    if (runtime->device)
      move_weights(*std::const_pointer_cast<Model>(model), *backend.device, *runtime->device_weights_pool,
                   {});
    session_params.policy = find_policy(runtime->backend, shape.policy);
    assert_non_null(session_params.policy);
    session_params.policy_params.segment_tokens = 128;
    session_params.policy_params.decode_segment_tokens = 64;
    session_params.policy_params.local_window = 32;
    session_params.policy_params.budget = 0.1f;
    session_params.kv = shape.kv;
    session_params.kv_fast_share = shape.fast_share;
    session_params.prefix_reuse = false;  // or a second session would compute less than the first
  }
  std::shared_ptr<Session> session() { return Session::create(runtime, model, session_params); }

  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<const Model> model;
  SessionParams session_params;
};

inline std::vector<int32_t> prompt(size_t count, uint64_t salt = 0) {
  std::vector<int32_t> ids(count);
  uint64_t state = seed() + salt;
  for (int32_t& id : ids) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    id = static_cast<int32_t>((state >> 33) % 100);
  }
  return ids;
}

inline std::vector<float> logits_of(Session& session) {
  const std::span<const float> view = session.logits(nullptr);
  return {view.begin(), view.end()};
}

// The manager's thread has done what steps left to it.
inline void settle(World& world) {
  const auto done = std::make_shared<std::promise<void>>();
  if (world.runtime->buffer->later([done](const auto&) { done->set_value(); })) done->get_future().wait();
}

// What a prompt has sealed leaves the device's memory beside the next steps: the first of them orders it, and the
// last finds that it is done.
inline void leave_the_device(World& world, Session& session) {
  for (int i = 0; i < 2; ++i) session.decode(nullptr);  // the prompt's own token comes without a step
  settle(world);
  session.decode(nullptr);
}

inline std::vector<int32_t> answer(Session& session, int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(session.decode(nullptr).token);
  return tokens;
}

// Both are sums of the same products, of f32 numbers in another order; keys and values that fall on the other side
// of a rounding to 16 bits are off by 2^-11 of themselves (2^-8 in bf16), of which a logit averages hundreds. Logits
// are of the order of 1. By quantised weights the CPU multiplies activations of 16 bits, each off by up to 2^-16 of the
// largest of 256, and the device those of f32: 0.9e-4 to 3e-4 of a logit over five seeds on AVX2, where with weights in
// f16 or f32 it is mostly 4e-6.
inline void assert_alike(const std::vector<float>& a, const std::vector<float>& b, DType kv,
                         DType weights = DType::f16) {
  const double by_kv = kv == DType::f32 ? 2e-4 : kv == DType::f16 ? 2e-3 : 2e-2;
  const double tolerance = by_kv + (format_of(weights).elements > 1 ? 3e-4 : 0);
  assert_int_equal(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(double(a[i]) - b[i]));
  if (!(most <= tolerance)) std::printf("logits differ by %g, more than %g\n", most, tolerance);
  assert_true(most <= tolerance);
}

inline wi_status status_of(const std::function<void()>& work) {
  try {
    work();
    return WI_OK;
  } catch (const Error& error) {
    return error.code();
  }
}

}  // namespace wi::test
