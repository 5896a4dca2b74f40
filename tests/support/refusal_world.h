// What calls are made on while memory is refused, and what tells an undisturbed session from another.
#pragma once

#include <string>

#include "support/refusal.h"

namespace wi::test {

// What calls are made on: a model of one layer and its sessions, under a policy with small segments.
struct World {
  explicit World(const char* path, int32_t threads) {
    auto runtime_params = sized<wi_runtime_params>();
    runtime_params.threads = threads;
    must([&](wi_error* error) { return wi_runtime_create(&runtime_params, &made_runtime, error); });
    runtime.reset(made_runtime);
    auto params = sized<wi_model_params>();
    params.precision = WI_PRECISION_FAST;
    must([&](wi_error* error) {
      return wi_model_open(made_runtime, path, &params, nullptr, &made_model, error);
    });
    model.reset(made_model);
    uint64_t count = 0;
    must([&](wi_error* error) {
      return wi_model_tokenize(made_model, kText.data(), kText.size(), 0, nullptr, 0, &count, error);
    });
    tokens.resize(count);
    must([&](wi_error* error) {
      return wi_model_tokenize(made_model, kText.data(), kText.size(), 0, tokens.data(), count, &count,
                               error);
    });
  }

  static wi_session_params session_params() {
    static const wi_policy_params policy = [] {
      auto p = sized<wi_policy_params>();
      p.segment_tokens = 256;
      p.decode_segment_tokens = 64;
      p.local_window = 32;
      return p;
    }();
    static const wi_sampling_params sampling = [] {
      auto p = sized<wi_sampling_params>();
      p.temperature = 1.2f;
      p.top_logprobs = 3;
      p.seed = 5;
      return p;
    }();
    auto params = sized<wi_session_params>();
    params.policy = &policy;
    params.sampling = &sampling;
    params.prefix_reuse = WI_PREFIX_REUSE_OFF;
    return params;
  }
  Session empty_session() const {
    const wi_session_params params = session_params();
    wi_session* session = nullptr;
    must([&](wi_error* error) { return wi_session_create(model.get(), &params, &session, error); });
    return {session, wi_session_release};
  }
  Session filled_session(size_t count) const {
    Session session = empty_session();
    must([&](wi_error* error) {
      return wi_session_prefill(session.get(), tokens.data(), count, nullptr, nullptr, error);
    });
    return session;
  }

  static inline const std::string kText = [] {
    std::string text;
    for (int i = 0; i < 160; ++i) text += "the waters of " + std::to_string(i * 37 % 101) + " were still; ";
    return text;
  }();

  wi_runtime* made_runtime = nullptr;
  wi_model* made_model = nullptr;
  Runtime runtime{nullptr, wi_runtime_release};
  Model model{nullptr, wi_model_release};
  std::vector<int32_t> tokens;
};

inline const std::string kFixtures = WI_SOURCE_DIR "/tests/fixtures/models/";

inline Session fork_of(wi_session* session) {
  wi_session* copy = nullptr;
  must([&](wi_error* error) { return wi_session_fork(session, &copy, error); });
  return {copy, wi_session_release};
}

inline std::vector<float> logits_of(wi_session* session) {
  uint64_t count = 0;
  must([&](wi_error* error) { return wi_session_logits(session, nullptr, nullptr, 0, &count, error); });
  std::vector<float> logits(count);
  must([&](wi_error* error) {
    return wi_session_logits(session, nullptr, logits.data(), count, &count, error);
  });
  return logits;
}

inline int32_t decode(wi_session* session) {
  auto event = sized<wi_event>();
  must([&](wi_error* error) { return wi_session_decode(session, nullptr, &event, error); });
  return event.token;
}

// What tells two sessions apart that a host must not tell apart: a few tokens of the future and logits.
struct Future {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
  bool operator==(const Future&) const = default;
};
inline Future future_of(wi_session* session) {
  const Session copy = fork_of(session);
  Future future{{}, logits_of(copy.get())};
  for (int i = 0; i < 3; ++i) future.tokens.push_back(decode(copy.get()));
  return future;
}

}  // namespace wi::test
