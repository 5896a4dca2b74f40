// What cutting a session back promises: the logits it had there, and work in proportion to what is new.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "src/pipeline/building.h"
#include "src/session.h"
#include "src/store/byte_stream.h"
#include "tests/support/fewer.h"
#include "tests/support/random_model.h"
#include "tests/support/runtime.h"
#include "tests/test.h"

using namespace wi;
using test::runtime;

namespace {

std::shared_ptr<const Model> model() {
  static const std::shared_ptr<const Model> shared =
      test::random_model(test::shape_named("tiny"), DType::f32, 7);
  return shared;
}

std::shared_ptr<Session> wave_session() {
  SessionParams params;
  params.policy = find_policy(runtime()->backend, "wave");
  params.policy_params.segment_tokens = 512;
  params.policy_params.decode_segment_tokens = 64;
  params.kv = DType::f32;
  params.prefix_reuse = false;
  return Session::create(runtime(), model(), params);
}

std::vector<int32_t> prompt(size_t count, uint64_t salt = 0) {
  std::mt19937_64 random(test::seed() + salt);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 100);
  return ids;
}

std::vector<float> logits_of(Session& session) {
  const auto view = session.logits(nullptr);
  return {view.begin(), view.end()};
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  assert_int_equal(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double{a[i]} - double{b[i]}));
  return worst;
}

std::vector<int32_t> decoded(Session& session, int count) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(session.decode(nullptr).token);
  return ids;
}

constexpr double kRounding = 2e-4;  // one row's products and sums instead of a chunk's, through all layers

void logits_come_back_exact_under_wave(void**) {
  const auto ids = prompt(1800);
  for (size_t kept : test::some_of<size_t>({1799, 1700, 1025, 600, 70, 1})) {
    const auto fresh = wave_session(), session = wave_session();
    fresh->prefill({ids.data(), kept}, {}, nullptr);
    session->prefill(ids, {}, nullptr);
    if (kept % 2) decoded(*session, 30);
    session->truncate(static_cast<int64_t>(kept));
    const auto fork = session->fork();
    assert_true(difference(logits_of(*session), logits_of(*fresh)) < kRounding);
    assert_true(difference(logits_of(*fork), logits_of(*fresh)) < kRounding);
  }
}

struct Saved final : ByteSink, ByteSource {
  std::string of;
  void write(const void* data, size_t count) override { of.append(static_cast<const char*>(data), count); }
  uint64_t bytes() const override { return of.size(); }
  void read(uint64_t offset, void* to, size_t count) override { std::memcpy(to, of.data() + offset, count); }
};

// Prompts that come after answers: turns of a conversation. Also in a fork, and saved.
void logits_of_a_later_prompt_come_back_exact_too(void**) {
  const auto ids = prompt(1500);
  const auto turns = [&](Session& session, size_t second) {
    session.prefill({ids.data(), 700}, {}, nullptr);
    decoded(session, 5);
    session.prefill({ids.data() + 700, second}, {}, nullptr);
  };
  for (const size_t kept : test::some_of<size_t>({599, 300, 1})) {
    const auto fresh = wave_session(), session = wave_session();
    turns(*fresh, kept);
    turns(*session, 600);
    const auto after = static_cast<int64_t>(700 + 5 + kept);
    decoded(*session, 30);
    session->prefill({ids.data() + 1300, 200}, {}, nullptr);
    decoded(*session, 5);
    const auto fork = session->fork();
    Saved saved;
    session->save(saved, nullptr);
    const auto loaded = Session::load(
        runtime(), model(), saved, [](const SessionParams& params) { return params; }, nullptr);
    const auto wanted = logits_of(*fresh);
    for (Session* one : {session.get(), fork.get(), loaded.get()}) {
      one->truncate(after);
      assert_true(difference(logits_of(*one), wanted) < kRounding);
    }
  }
}

// In a batch too, beside sessions that have nothing to bring back.
void a_batch_brings_exact_logits_back(void**) {
  const auto ids = prompt(1200);
  const auto cut = wave_session(), fresh = wave_session(), other = wave_session();
  cut->prefill(ids, {}, nullptr);
  fresh->prefill({ids.data(), 1000}, {}, nullptr);
  other->prefill(prompt(300, 1), {}, nullptr);
  decoded(*other, 5);
  cut->truncate(1000);
  Session* const batch[] = {other.get(), cut.get()};
  Event events[2];
  Session::decode_batch(batch, nullptr, events);
  assert_int_equal(events[1].token, fresh->decode(nullptr).token);
}

// Also where the answer went on past the sealing of several segments, and in a fork.
void another_answer_to_a_prompt_starts_from_the_bits_of_the_first(void**) {
  constexpr int kSteps = 210 + kBuildTokens;
  const auto session = wave_session();
  session->prefill(prompt(1500), {}, nullptr);
  const auto before = logits_of(*session);
  const int32_t segments = session->stats().segments;
  const auto answer = decoded(*session, kSteps);
  assert_true(session->stats().segments > segments);
  const auto fork = session->fork();
  for (Session* again : {session.get(), fork.get()}) {
    again->truncate(1500);
    assert_int_equal(again->stats().segments, segments);
    assert_true(difference(before, logits_of(*again)) == 0);
    assert_true(decoded(*again, kSteps) == answer);
  }
  // Behind another cut there is no such prompt any more.
  session->truncate(1400);
  session->prefill(prompt(100, 3), {}, nullptr);
  assert_true(difference(before, logits_of(*session)) > 1e-3);
}

// An edit: a fork is cut at the cursor, what comes after it is read again. Nothing before it is clustered
// anew but what does not fill a block.
void an_edit_clusters_no_more_than_what_comes_after_it(void**) {
  constexpr int64_t kTokens = 6000;
  const auto ids = prompt(kTokens);
  const auto file = wave_session();
  file->prefill(ids, {}, nullptr);
  for (int64_t share : {99, 95, 75, 30}) {
    const int64_t cursor = kTokens * share / 100 + 7;
    const auto edited = file->fork();
    edited->truncate(cursor);
    const uint64_t before = edited->totals().stages.sealed_tokens;
    assert_int_equal(before, 0);
    auto suffix = std::vector<int32_t>(ids.begin() + cursor, ids.end());
    suffix[0] = (suffix[0] + 1) % 100;
    const auto typed = edited->fork();  // a keystroke
    typed->prefill({suffix.data(), 1}, {}, nullptr);
    assert_int_equal(typed->totals().stages.sealed_tokens, 0);
    edited->prefill(suffix, {}, nullptr);
    const auto clustered = static_cast<int64_t>(edited->totals().stages.sealed_tokens);
    std::printf("edit at %d %%: %d tokens after it, %d clustered\n", static_cast<int>(share),
                static_cast<int>(suffix.size()), static_cast<int>(clustered));
    assert_true(clustered <= static_cast<int64_t>(suffix.size()) + kBlockTokens);
    // What is left over is less than a unit and the window, and on the grid again.
    assert_int_equal(
        edited->sequence().sealed_end(),
        SegmentGrid(PolicyParams{.segment_tokens = 512, .decode_segment_tokens = 64}).sealed_end(kTokens));
    const auto fresh = wave_session();
    fresh->prefill({ids.data(), static_cast<size_t>(cursor)}, {}, nullptr);
    fresh->prefill(suffix, {}, nullptr);
    assert_true(difference(logits_of(*edited), logits_of(*fresh)) < kRounding);
  }
}

void a_cut_leaves_the_local_window_exact(void**) {
  const auto session = wave_session();
  session->prefill(prompt(3000), {}, nullptr);
  for (int64_t kept : {2700, 2000, 1025, 580, 100}) {
    session->truncate(kept);
    assert_true(session->sequence().tail_tokens() >= 64 || session->sequence().segments().empty());
    assert_true(session->sequence().tail_tokens() < 64 + kBlockTokens);
    decoded(*session, 3);
  }
}

// A cut leaves more clusters than a segment of so many tokens is made with: nearly all of a long one's have a token
// among its first. The next cut into it had room for fewer, and wrote on.
void cuts_of_a_cut_leave_what_one_cut_leaves(void**) {
  const auto session = wave_session();
  session->prefill(prompt(1500), {}, nullptr);
  for (const auto& [first, then] : {std::pair(400, 300), std::pair(300, 170), std::pair(200, 150)}) {
    const auto once = session->fork(), twice = session->fork();
    twice->truncate(first);
    const auto between = twice->fork();
    twice->truncate(then);
    once->truncate(then);
    const auto of_one = once->sequence().segments(), of_two = twice->sequence().segments();
    assert_int_equal(of_one.size(), 1);
    assert_int_equal(of_two.size(), 1);
    const Segment &a = *of_one[0], &b = *of_two[0];
    assert_int_equal(a.tokens(), b.tokens());
    assert_int_equal(a.index().bytes(), b.index().bytes());
    assert_memory_equal(a.index().data(), b.index().data(), a.index().bytes());
    int32_t most = 0;
    for (const Segment::HeadIndex& head : b.heads()) most = std::max(most, head.partitions);
    std::printf("%d tokens of %d: up to %d clusters\n", b.tokens(),
                between->sequence().segments()[0]->tokens(), most);
    for (Session* each : {once.get(), twice.get()}) each->prefill(prompt(100, 5), {}, nullptr);
    assert_true(decoded(*once, 5) == decoded(*twice, 5));
    assert_true(difference(logits_of(*once), logits_of(*twice)) == 0);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(logits_come_back_exact_under_wave),
      cmocka_unit_test(logits_of_a_later_prompt_come_back_exact_too),
      cmocka_unit_test(a_batch_brings_exact_logits_back),
      cmocka_unit_test(another_answer_to_a_prompt_starts_from_the_bits_of_the_first),
      cmocka_unit_test(an_edit_clusters_no_more_than_what_comes_after_it),
      cmocka_unit_test(a_cut_leaves_the_local_window_exact),
      cmocka_unit_test(cuts_of_a_cut_leave_what_one_cut_leaves),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
