// An answer as a host gets it: log-probabilities, stop strings, bias and callback, tokens of the host's own,
// and cancel tokens that fired before the call. On the sample model, whose greedy answers are long enough.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/abi.h"

namespace {

using namespace wi::test;

struct World {
  Runtime runtime{nullptr, wi_runtime_release};
  Model model{nullptr, wi_model_release};
  uint64_t vocab = 0;
};
World* world;

const std::string kPrompt = "The quick brown fox jumps over the lazy dog. Once upon a time there was";

Session prompted(const wi_sampling_params* sampling = nullptr) {
  auto params = sized<wi_session_params>();
  params.sampling = sampling;
  Session session = create_session(world->model.get(), &params);
  assert_works(
      wi_session_append_text(session.get(), kPrompt.data(), kPrompt.size(), 0, nullptr, nullptr, error));
  return session;
}

struct Told {
  int32_t kind, token;
  std::string text;
  float logprob;
};
Told told(const wi_event& event) {
  return {event.kind, event.token, std::string(event.text, event.text_length), event.logprob};
}

Told decode(const Session& session) {
  auto event = sized<wi_event>();
  assert_works(wi_session_decode(session.get(), nullptr, &event, error));
  return told(event);
}

std::vector<float> logits(const Session& session) {
  std::vector<float> out(world->vocab);
  uint64_t count = 0;
  assert_works(wi_session_logits(session.get(), nullptr, out.data(), out.size(), &count, error));
  return out;
}

uint64_t tokens(const Session& session) {
  uint64_t count = 0;
  assert_works(wi_session_tokens(session.get(), nullptr, 0, &count, error));
  return count;
}

struct Answer {
  std::string text;
  int32_t kind = WI_EVENT_TOKEN;
  std::vector<int32_t> ids;
};
using Step = std::function<Told(const Session&)>;
Answer answer(const Session& session, size_t most, const Step& step = decode) {
  Answer out;
  while (out.kind == WI_EVENT_TOKEN && out.ids.size() < most) {
    const Told one = step(session);
    out.kind = one.kind;
    out.text += one.text;
    out.ids.push_back(one.token);
  }
  return out;
}

wi_text text_of(const std::string& text) { return {text.data(), text.size()}; }

// The greedy answer without stop strings.
const Answer& plain() {
  static const Answer out = answer(prompted(), 40);
  return out;
}

struct Callback {
  wi_session* session = nullptr;
  int32_t only = -1, answer = 0;
  int calls = 0;
};
int32_t allow_one(void* user, float* values, uint64_t vocab) {
  auto* self = static_cast<Callback*>(user);
  ++self->calls;
  assert_int_equal(vocab, world->vocab);
  for (uint64_t i = 0; i < vocab; ++i)
    if (static_cast<int32_t>(i) != self->only) values[i] = -INFINITY;
  if (self->session) {
    auto stats = sized<wi_session_stats>();
    assert_works(wi_session_get_stats(self->session, &stats, error));
    uint64_t count = 0;
    assert_fails(WI_E_BUSY, "in use", wi_session_tokens(self->session, nullptr, 0, &count, error));
  }
  return self->answer;
}

void log_probabilities_are_the_models_own(void**) {
  auto sampling = sized<wi_sampling_params>();
  const wi_logit_bias bias[] = {{5, -INFINITY}, {9, 3}};
  sampling.temperature = 2;
  sampling.top_k = 30;
  sampling.repetition_penalty = 1.5f;
  sampling.logit_bias = bias;
  sampling.logit_bias_count = 2;
  sampling.top_logprobs = 7;
  Session session = prompted(&sampling);
  for (int step = 0; step < 10; ++step) {
    const std::vector<float> raw = logits(session);
    double most = -INFINITY, sum = 0;
    for (float logit : raw) most = std::max(most, static_cast<double>(logit));
    for (float logit : raw) sum += std::exp(static_cast<double>(logit) - most);
    const auto expected = [&](int32_t token) {
      return static_cast<double>(raw[static_cast<size_t>(token)]) - most - std::log(sum);
    };
    auto event = sized<wi_event>();
    assert_works(wi_session_decode(session.get(), nullptr, &event, error));
    // f32 of a sum in f64
    assert_true(std::abs(static_cast<double>(event.logprob) - expected(event.token)) < 1e-5);
    assert_int_equal(event.top_count, 7);
    std::vector<int32_t> order(raw.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return raw[static_cast<size_t>(a)] > raw[static_cast<size_t>(b)];
    });
    for (size_t i = 0; i < 7; ++i) {
      assert_int_equal(event.top[i].token, order[i]);
      assert_true(std::abs(static_cast<double>(event.top[i].logprob) - expected(order[i])) < 1e-5);
    }
  }
  Session without = prompted();
  auto event = sized<wi_event>();
  assert_works(wi_session_decode(without.get(), nullptr, &event, error));
  assert_true(event.top == nullptr && event.top_count == 0);
  assert_true(event.logprob <= 0 && event.logprob > -20);
}

// Strings of every length from every place of the answer, most of them across tokens.
void a_stop_string_ends_the_answer_before_it(void**) {
  const std::string& whole = plain().text;
  assert_true(whole.size() > 60);
  Session origin = prompted();
  for (size_t length : {1u, 2u, 5u, 11u, 23u}) {
    for (size_t at = 0; at + length < whole.size() - 10; at += 7) {
      const std::string stop = whole.substr(at, length), other = "never in the text";
      if ((static_cast<unsigned char>(stop[0]) & 0xC0) == 0x80) continue;
      const wi_text stops[] = {text_of(other), text_of(stop)};
      auto sampling = sized<wi_sampling_params>();
      sampling.stops = stops;
      sampling.stop_count = 2;
      Session session = fork(origin.get());
      assert_works(wi_session_set_sampling(session.get(), &sampling, error));
      Session twin = fork(session.get());
      const Answer got = answer(session, 40);
      assert_int_equal(got.kind, WI_EVENT_STOP);
      assert_string_equal(got.text.c_str(), whole.substr(0, whole.find(stop)).c_str());
      assert_true(std::equal(got.ids.begin(), got.ids.end(), plain().ids.begin()));
      // The same by a batch, a fork at every token, and tokens that the host gives.
      size_t next = 0;
      const Answer by_batch = answer(twin, 40, [&](const Session& of) {
        auto event = sized<wi_event>();
        if (next++ % 2) {
          assert_works(wi_session_accept(of.get(), plain().ids[next - 1], nullptr, &event, error));
        } else {
          wi_session* const one = of.get();
          assert_works(wi_batch_decode(&one, 1, nullptr, &event, error));
        }
        Told out = told(event);
        return out;
      });
      assert_int_equal(by_batch.kind, WI_EVENT_STOP);
      assert_string_equal(by_batch.text.c_str(), got.text.c_str());
      assert_true(by_batch.ids == got.ids);
    }
  }
}

// Held back in one session, told by its fork; dropped by what starts another text.
void held_text_goes_with_a_fork_and_is_dropped_with_a_truncate(void**) {
  const std::string& whole = plain().text;
  const std::string stop = whole.substr(3, 30) + "\x01";  // all but in the text
  const wi_text stops[] = {text_of(stop)};
  auto sampling = sized<wi_sampling_params>();
  sampling.stops = stops;
  sampling.stop_count = 1;
  Session origin = prompted(&sampling);
  Answer first = answer(origin, 4);
  assert_true(first.text.size() <= 3);
  const uint64_t count = tokens(origin);
  Session copy = fork(origin.get()), cut = fork(origin.get()), anew = fork(origin.get());
  const Answer rest = answer(copy, 36);
  assert_string_equal((first.text + rest.text).c_str(), whole.c_str());

  assert_works(wi_session_truncate(cut.get(), count - 1, error));
  const Answer after = answer(cut, 37);
  assert_true(whole.size() > after.text.size() && whole.ends_with(after.text));

  // New parameters decide about what is held.
  assert_works(wi_session_set_sampling(anew.get(), nullptr, error));
  assert_string_equal((first.text + answer(anew, 36).text).c_str(), whole.c_str());
}

// Text that waits, stop strings and bias go through a file; the callback does not.
void an_answer_goes_on_from_a_file(void**) {
  const std::string path = std::string(WI_BINARY_DIR) + "/answer_abi_test.session";
  const std::string& whole = plain().text;
  const std::string held = whole.substr(2, 40) + "\x01", stop = whole.substr(60, 9);
  const wi_text stops[] = {text_of(held), text_of(stop)};
  const wi_logit_bias bias[] = {{plain().ids[6], 50}};
  Callback callback;
  auto sampling = sized<wi_sampling_params>();
  sampling.stops = stops;
  sampling.stop_count = 2;
  sampling.top_logprobs = 4;
  Session session = prompted(&sampling);
  const Answer first = answer(session, 4);
  sampling.logits_callback = allow_one;
  sampling.logits_user = &callback;
  assert_works(wi_session_save(session.get(), path.c_str(), nullptr, error));
  wi_session* made = nullptr;
  assert_works(wi_session_load(world->model.get(), path.c_str(), nullptr, nullptr, &made, error));
  const Session loaded{made, wi_session_release};
  const Answer rest = answer(loaded, 36);
  assert_int_equal(rest.kind, WI_EVENT_STOP);
  assert_string_equal((first.text + rest.text).c_str(), whole.substr(0, whole.find(stop)).c_str());

  sampling.logit_bias = bias;
  sampling.logit_bias_count = 1;
  assert_works(wi_session_set_sampling(session.get(), &sampling, error));
  assert_works(wi_session_save(session.get(), path.c_str(), nullptr, error));
  assert_works(wi_session_load(world->model.get(), path.c_str(), nullptr, nullptr, &made, error));
  const Session biased{made, wi_session_release};
  auto event = sized<wi_event>();
  assert_works(wi_session_decode(biased.get(), nullptr, &event, error));
  assert_int_equal(event.token, plain().ids[6]);
  assert_int_equal(event.top_count, 4);
  assert_int_equal(callback.calls, 0);
  assert_int_equal(std::remove(path.c_str()), 0);
}

void what_is_held_back_comes_with_the_end(void**) {
  auto info = sized<wi_model_info>();
  assert_works(wi_model_get_info(world->model.get(), &info, error));
  assert_true(info.eos_token >= 0);
  const std::string stop = plain().text.substr(0, 30) + "\x01";
  const wi_text stops[] = {text_of(stop)};
  auto sampling = sized<wi_sampling_params>();
  sampling.stops = stops;
  sampling.stop_count = 1;
  Session session = prompted(&sampling);
  const Answer held = answer(session, 3);
  assert_string_equal(held.text.c_str(), "");
  auto event = sized<wi_event>();
  assert_works(wi_session_accept(session.get(), info.eos_token, nullptr, &event, error));
  assert_int_equal(event.kind, WI_EVENT_END);
  const Told end = told(event);
  assert_false(end.text.empty());
  assert_true(plain().text.starts_with(end.text));
}

void the_callback_chooses_and_ends(void**) {
  Callback callback;
  auto sampling = sized<wi_sampling_params>();
  sampling.logits_callback = allow_one;
  sampling.logits_user = &callback;
  Session session = prompted(&sampling);
  callback.session = session.get();
  for (int32_t token : {7, 3, 7, 100}) {
    callback.only = token;
    const std::vector<float> raw = logits(session);
    const Told one = decode(session);
    assert_int_equal(one.token, token);
    const float best = *std::max_element(raw.begin(), raw.end());
    assert_true(one.logprob <= raw[static_cast<size_t>(token)] - best);  // the model's own, not 0
  }
  assert_int_equal(callback.calls, 4);
  Session copy = fork(session.get());  // inherits it
  callback.session = copy.get();
  callback.answer = 3;
  auto event = sized<wi_event>();
  const uint64_t count = tokens(copy);
  assert_fails(WI_E_CANCELLED, "logits_callback returned 3",
               wi_session_decode(copy.get(), nullptr, &event, error));
  assert_int_equal(tokens(copy), count);
  callback.answer = 0;
  callback.only = -1;
  assert_fails(WI_E_STATE, "logit_bias or logits_callback forbid all",
               wi_session_decode(copy.get(), nullptr, &event, error));
  callback.only = 11;
  assert_int_equal(decode(copy).token, 11);
  assert_int_equal(callback.calls, 7);
  // Tokens of the host's own are not its business.
  assert_works(wi_session_accept(copy.get(), 12, nullptr, &event, error));
  assert_int_equal(callback.calls, 7);
}

void bias_forbids_and_is_copied(void**) {
  std::vector<wi_logit_bias> bias = {{plain().ids[0], -INFINITY}};
  auto sampling = sized<wi_sampling_params>();
  sampling.logit_bias = bias.data();
  sampling.logit_bias_count = bias.size();
  Session session = prompted(&sampling);
  bias[0].token = 0;
  for (int i = 0; i < 20; ++i) assert_true(decode(session).token != plain().ids[0]);
  bias.clear();
  for (uint64_t token = 0; token < world->vocab; ++token)
    bias.push_back({static_cast<int32_t>(token), -INFINITY});
  sampling.logit_bias = bias.data();
  sampling.logit_bias_count = bias.size();
  assert_works(wi_session_set_sampling(session.get(), &sampling, error));
  auto event = sized<wi_event>();
  assert_fails(WI_E_STATE, "logit_bias or logits_callback forbid all",
               wi_session_decode(session.get(), nullptr, &event, error));
}

void parameters_are_checked_by_name(void**) {
  Session session = prompted();
  const auto set = [&](const std::function<void(wi_sampling_params&)>& change, wi_error* error) {
    auto sampling = sized<wi_sampling_params>();
    change(sampling);
    return wi_session_set_sampling(session.get(), &sampling, error);
  };
  const wi_logit_bias negative[] = {{0, 1}, {-1, 0}}, large[] = {{1 << 30, 0}}, nan[] = {{0, NAN}};
  const std::string longest(1024, 'x'), longer(1025, 'x');
  const wi_text empty[] = {{"a", 1}, {"", 0}}, null[] = {{nullptr, 2}}, too_long[] = {text_of(longer)},
                fits[] = {text_of(longest)};
  const std::vector<wi_text> many(65, wi_text{"a", 1});
  const auto bias = [](const wi_logit_bias* at, uint64_t count) {
    return [=](auto& s) { s.logit_bias = at, s.logit_bias_count = count; };
  };
  const auto stops = [](const wi_text* at, uint64_t count) {
    return [=](auto& s) { s.stops = at, s.stop_count = count; };
  };
  assert_fails(WI_E_ARGUMENT, "logit_bias is NULL with length 3", set(bias(nullptr, 3), error));
  assert_fails(WI_E_ARGUMENT, "logit_bias[1].token is -1", set(bias(negative, 2), error));
  assert_fails(WI_E_ARGUMENT, "logit_bias[0].token is 1073741824", set(bias(large, 1), error));
  assert_fails(WI_E_ARGUMENT, "logit_bias[0].bias is NaN", set(bias(nan, 1), error));
  assert_fails(WI_E_ARGUMENT, "stops is NULL with length 1", set(stops(nullptr, 1), error));
  assert_fails(WI_E_ARGUMENT, "stop_count is 65", set(stops(many.data(), many.size()), error));
  assert_fails(WI_E_ARGUMENT, "stops[1].length is 0", set(stops(empty, 2), error));
  assert_fails(WI_E_ARGUMENT, "stops[0].text is NULL", set(stops(null, 1), error));
  assert_fails(WI_E_ARGUMENT, "stops[0].length is 1025", set(stops(too_long, 1), error));
  assert_works(set(stops(fits, 1), error));
  assert_works(set(stops(many.data(), 64), error));
  assert_fails(WI_E_ARGUMENT, "top_logprobs is 65", set([](auto& s) { s.top_logprobs = 65; }, error));
  assert_fails(WI_E_ARGUMENT, "top_logprobs is -1", set([](auto& s) { s.top_logprobs = -1; }, error));
  assert_fails(WI_E_ARGUMENT, "reserved_2 is 1", set([](auto& s) { s.reserved_2 = 1; }, error));

  auto params = sized<wi_session_params>();
  auto sampling = sized<wi_sampling_params>();
  sampling.logit_bias = large;
  sampling.logit_bias_count = 1;
  params.sampling = &sampling;
  wi_session* made = nullptr;
  assert_fails(WI_E_ARGUMENT, "logit_bias[0].token is 1073741824",
               wi_session_create(world->model.get(), &params, &made, error));
  auto plan = sized<wi_memory_plan>();
  assert_fails(WI_E_ARGUMENT, "logit_bias[0].token is 1073741824",
               wi_model_plan_memory(world->model.get(), &params, 1, &plan, error));
  sampling.logit_bias = nan;
  assert_fails(WI_E_ARGUMENT, "logit_bias[0].bias is NaN",
               wi_model_plan_memory(world->model.get(), &params, 1, &plan, error));
  auto asked = sized<wi_task_params>();
  asked.sampling = &sampling;
  wi_task* task = nullptr;
  assert_fails(WI_E_ARGUMENT, "logit_bias[0].bias is NaN",
               wi_task_submit(session.get(), &asked, &task, error));

  auto event = sized<wi_event>();
  const auto vocab = static_cast<int32_t>(world->vocab);
  for (int32_t token : {-1, vocab, INT32_MAX}) {
    assert_fails(WI_E_ARGUMENT, "token is " + std::to_string(token) + ", must be in [0, ",
                 wi_session_accept(session.get(), token, nullptr, &event, error));
  }
  assert_fails(WI_E_ARGUMENT, "event_out is NULL",
               wi_session_accept(session.get(), 1, nullptr, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "session is NULL", wi_session_accept(nullptr, 1, nullptr, &event, error));
}

// Every call that takes a token, where it would have nothing to do.
void a_token_that_fired_ends_every_call(void**) {
  Cancel cancel = create_cancel();
  Session session = prompted();
  wi_cancel_trigger(cancel.get());
  wi_session* const at = session.get();
  auto event = sized<wi_event>();
  std::vector<float> room(world->vocab);
  uint64_t count = 0;
  wi_session* out = nullptr;
  const uint64_t before = tokens(session);
  assert_fails(WI_E_CANCELLED, "", wi_session_decode(at, cancel.get(), &event, error));
  assert_fails(WI_E_CANCELLED, "", wi_session_accept(at, 1, cancel.get(), &event, error));
  assert_fails(WI_E_CANCELLED, "",
               wi_session_logits(at, cancel.get(), room.data(), room.size(), &count, error));
  assert_fails(WI_E_CANCELLED, "", wi_session_prefill(at, nullptr, 0, nullptr, cancel.get(), error));
  assert_fails(WI_E_CANCELLED, "", wi_session_append_text(at, "", 0, 0, nullptr, cancel.get(), error));
  assert_fails(WI_E_CANCELLED, "", wi_session_fork_as(at, nullptr, cancel.get(), &out, error));
  assert_fails(WI_E_CANCELLED, "", wi_session_save(at, "/nonexistent/x", cancel.get(), error));
  assert_fails(WI_E_CANCELLED, "",
               wi_session_load(world->model.get(), "/nonexistent/x", nullptr, cancel.get(), &out, error));
  wi_model* opened = nullptr;
  assert_fails(WI_E_CANCELLED, "",
               wi_model_open(world->runtime.get(), "/nonexistent/x", nullptr, cancel.get(), &opened, error));
  assert_fails(WI_E_CANCELLED, "", wi_batch_decode(&at, 1, cancel.get(), &event, error));
  assert_fails(WI_E_CANCELLED, "", wi_batch_decode(nullptr, 0, cancel.get(), nullptr, error));
  assert_null(out);
  assert_int_equal(tokens(session), before);
  auto params = sized<wi_kv_params>();
  params.layers = params.query_heads = params.kv_heads = 1;
  params.head_dim = 8;
  wi_kv* kv = nullptr;
  assert_works(wi_kv_create(world->runtime.get(), &params, &kv, error));
  const Kv owner{kv, wi_kv_release};
  const float row[8] = {1};
  float attended[8];
  assert_works(wi_kv_append(kv, 0, 1, row, row, error));
  assert_fails(WI_E_CANCELLED, "", wi_kv_attend(kv, 0, 1, row, cancel.get(), attended, nullptr, error));
  assert_fails(WI_E_CANCELLED, "", wi_kv_attend(kv, 0, 0, row, cancel.get(), attended, nullptr, error));
  wi_cancel_reset(cancel.get());
  assert_works(wi_session_decode(at, cancel.get(), &event, error));
  assert_int_equal(event.token, plain().ids[0]);
}

int set_up(void**) {
  world = new World;
  auto params = sized<wi_runtime_params>();
  params.threads = 2;
  world->runtime = create_runtime(&params);
  world->model = open_sample_model(world->runtime.get());
  auto info = sized<wi_model_info>();
  assert_works(wi_model_get_info(world->model.get(), &info, error));
  world->vocab = static_cast<uint64_t>(info.vocab);
  return 0;
}

int tear_down(void**) {
  delete world;
  return 0;
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(log_probabilities_are_the_models_own),
      cmocka_unit_test(a_stop_string_ends_the_answer_before_it),
      cmocka_unit_test(held_text_goes_with_a_fork_and_is_dropped_with_a_truncate),
      cmocka_unit_test(an_answer_goes_on_from_a_file),
      cmocka_unit_test(what_is_held_back_comes_with_the_end),
      cmocka_unit_test(the_callback_chooses_and_ends),
      cmocka_unit_test(bias_forbids_and_is_copied),
      cmocka_unit_test(parameters_are_checked_by_name),
      cmocka_unit_test(a_token_that_fired_ends_every_call),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
