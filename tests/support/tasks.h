// What tests of tasks share: a world of one model, tasks and their answers.
#pragma once

#include "abi.h"

namespace wi::test {

using Task = std::unique_ptr<wi_task, decltype(&wi_task_release)>;

struct World {
  explicit World(const wi_runtime_params* params = nullptr) : runtime(create_runtime(params)) {}
  Runtime runtime;
  Model model = open_sample_model(runtime.get());
};
inline World* world;

// Long prompts are shorter under a sanitizer or an emulator, which take their time with every token.
constexpr size_t length(size_t tokens) {
#if defined(WI_EMULATED)
  return tokens / 24;
#elif defined(WI_SANITIZED)
  return tokens / 8;
#else
  return tokens;
#endif
}

inline std::vector<int32_t> some_tokens(size_t count, size_t seed = 1) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>((i * 7 + seed * 31) % 1000) + 1;
  return tokens;
}

inline Task submit(wi_session* session, const wi_task_params* params = nullptr) {
  wi_task* task = nullptr;
  assert_works(wi_task_submit(session, params, &task, error));
  return {task, wi_task_release};
}

inline int32_t descriptor_of(wi_task* task) {
  int32_t fd = -1;
  assert_works(wi_task_get_fd(task, &fd, error));
  return fd;
}

inline wi_task_info info_of(wi_task* task) {
  auto info = sized<wi_task_info>();
  assert_works(wi_task_get_info(task, &info, error));
  return info;
}

struct Answer {
  std::vector<int32_t> tokens;
  std::string text;
  int32_t last = WI_EVENT_TOKEN;
};

// Takes what is there; true while the answer goes on.
inline bool take(wi_task* task, Answer* answer, uint64_t most = 7) {
  std::vector<wi_event> events(most, sized<wi_event>());
  uint64_t count = 0;
  assert_works(wi_task_poll(task, events.data(), most, &count, error));
  for (uint64_t i = 0; i < count; ++i) {
    assert_int_equal(answer->last, WI_EVENT_TOKEN);  // nothing comes after the last event
    if (events[i].token >= 0) answer->tokens.push_back(events[i].token);
    answer->text.append(events[i].text, events[i].text_length);
    answer->last = events[i].kind;
  }
  return answer->last == WI_EVENT_TOKEN;
}

inline Answer take_all(wi_task* task) {
  Answer answer;
  while (take(task, &answer)) {
    int32_t ready = 0;
    assert_works(wi_task_wait(task, 600'000'000'000, &ready, error));
    assert_int_equal(ready, 1);
  }
  return answer;
}

// The same by synchronous calls.
inline Answer alone(const std::vector<int32_t>& prompt, uint64_t most, const wi_session_params* params) {
  Session session = create_session(world->model.get(), params);
  assert_works(wi_session_prefill(session.get(), prompt.data(), prompt.size(), nullptr, nullptr, error));
  Answer answer;
  auto event = sized<wi_event>();
  while (answer.tokens.size() < most && event.kind == WI_EVENT_TOKEN) {
    assert_works(wi_session_decode(session.get(), nullptr, &event, error));
    answer.tokens.push_back(event.token);
    answer.text.append(event.text, event.text_length);
  }
  return answer;
}

inline wi_task_params prompt_of(const std::vector<int32_t>& tokens, uint64_t max_tokens) {
  auto params = sized<wi_task_params>();
  params.tokens = tokens.data();
  params.token_count = tokens.size();
  params.max_tokens = max_tokens;
  return params;
}

inline int open_world(void**) {
  world = new World;
  return 0;
}

inline int close_world(void**) {
  delete world;
  return 0;
}

}  // namespace wi::test
