// Layers whose window slides: a query sees the last tokens and no others, in every way through the library,
// whatever of them is sealed; the numbers themselves are held by logits_test against transformers.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "src/pipeline/building.h"
#include "src/session.h"
#include "src/store/input_file.h"
#include "src/store/session_file.h"
#include "tests/support/folder.h"
#include "tests/support/random_model.h"
#include "tests/support/runtime.h"
#include "tests/test.h"

using namespace wi;
using test::runtime;

namespace {

using Windows = std::vector<int32_t>;

std::shared_ptr<const Model> model(const Windows& windows, int32_t layers = 2) {
  test::ModelShape shape = test::shape_named("tiny");
  shape.layers = layers;
  shape.windows = windows;
  return test::random_model(shape, DType::f32, 7, Precision::f32);
}

// Segments so small that a few hundred tokens are several.
SessionParams params_of(const char* policy) {
  SessionParams params;
  params.policy = find_policy(runtime()->backend, policy);
  params.policy_params.segment_tokens = 256;
  params.policy_params.decode_segment_tokens = 64;
  params.kv = DType::f32;
  params.prefix_reuse = false;
  return params;
}

std::shared_ptr<Session> session_of(const std::shared_ptr<const Model>& model, const char* policy) {
  return Session::create(runtime(), model, params_of(policy));
}

std::vector<int32_t> random_ids(size_t count, uint64_t salt = 0) {
  std::mt19937_64 random(test::seed() + salt);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 100);
  return ids;
}

std::vector<float> logits_of(Session& session) {
  const auto view = session.logits(nullptr);
  return {view.begin(), view.end()};
}

std::vector<float> prefilled(Session& session, std::span<const int32_t> ids, int32_t chunk = 0) {
  std::vector<float> logits(ids.size() * 100);
  PrefillParams params;
  params.logits = logits;
  params.chunk_tokens = chunk;
  session.prefill(ids, params, nullptr);
  return logits;
}

// Logits after each of the ids, taken by decode steps.
std::vector<float> decoded(Session& session, std::span<const int32_t> ids) {
  std::vector<float> logits;
  for (int32_t id : ids) {
    session.accept(id, nullptr);
    const auto row = session.logits(nullptr);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

double difference(std::span<const float> a, std::span<const float> b) {
  assert_int_equal(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double apart = std::abs(double{a[i]} - double{b[i]});
    worst = apart >= worst ? apart : worst;
    if (std::isnan(apart)) return INFINITY;
  }
  return worst;
}

constexpr double kRounding = 2e-4;  // sums in another order, through all layers

// In one layer a token's logits depend on what its window shows and on nothing else.
void a_query_sees_its_window_and_no_more(void**) {
  constexpr size_t kPrompt = 700, kSteps = 300;
  const auto ids = random_ids(kPrompt + kSteps);
  for (const char* policy : {"full", "wave"}) {
    for (int32_t window : {1, 5, 64, 100, 333, 900}) {
      const auto one = model({window}, 1);
      for (const size_t at : {kPrompt - 1, kPrompt + 20, kPrompt + kSteps - 1}) {  // read, and decoded twice
        const auto run = [&](std::vector<int32_t> given) {
          const auto session = session_of(one, policy);
          const std::span<const int32_t> all(given);
          session->prefill(all.first(std::min(kPrompt, at + 1)), {}, nullptr);
          if (at >= kPrompt) decoded(*session, all.subspan(kPrompt, at + 1 - kPrompt));
          return logits_of(*session);
        };
        const auto changed = [&](size_t position) {
          auto other = ids;
          other[position] = (other[position] + 1) % 100;
          return other;
        };
        const auto logits = run(ids);
        const size_t oldest = at + 1 < static_cast<size_t>(window) ? 0 : at + 1 - static_cast<size_t>(window);
        assert_true(difference(logits, run(changed(oldest))) > 0);
        if (oldest == 0) continue;
        assert_true(difference(logits, run(changed(oldest - 1))) == 0);
        assert_true(difference(logits, run(changed(0))) == 0);
      }
    }
  }
}

// Decoding goes on in another order of sums once segments are sealed, hence not the same bits there.
void a_window_as_long_as_the_text_changes_no_bit(void**) {
  const auto ids = random_ids(700);
  const auto sliding = model({701, 100000}), plain = model({});
  const auto a = session_of(sliding, "full"), b = session_of(plain, "full");
  const std::span<const int32_t> all(ids);
  assert_true(prefilled(*a, all.first(64), 9) == prefilled(*b, all.first(64), 9));
  assert_true(decoded(*a, all.subspan(64, 50)) == decoded(*b, all.subspan(64, 50)));
  assert_true(prefilled(*a, all.subspan(114, 500)) == prefilled(*b, all.subspan(114, 500)));
  assert_true(a->stats().segments > 1);
  assert_true(difference(decoded(*a, all.subspan(614)), decoded(*b, all.subspan(614))) < kRounding);
}

void a_prompt_in_pieces_is_one_in_a_window(void**) {
  const auto ids = random_ids(900);
  const std::span<const int32_t> all(ids);
  for (const Windows& windows : {Windows{50, 200}, Windows{300, 0}, Windows{0, 7}}) {
    const auto both = model(windows);
    const auto whole = session_of(both, "full"), pieces = session_of(both, "full");
    const auto expected = prefilled(*whole, all);
    std::vector<float> got;
    for (size_t first = 0; first < all.size(); first += 130) {
      const auto rows = prefilled(*pieces, all.subspan(first, std::min<size_t>(130, all.size() - first)), 60);
      got.insert(got.end(), rows.begin(), rows.end());
    }
    assert_true(difference(expected, got) < kRounding);
  }
}

// Decode steps against a prefill of the same tokens: two kernels, two ways to cut a window off.
void decoding_in_a_window_equals_reading(void**) {
  const auto ids = random_ids(800 + kBuildTokens);
  const std::span<const int32_t> all(ids);
  for (const Windows& windows : {Windows{50, 200}, Windows{300, 0}, Windows{0, 7}}) {
    const auto both = model(windows);
    const auto expected = prefilled(*session_of(both, "full"), all);
    const auto session = session_of(both, "full");
    session->prefill(all.first(600), {}, nullptr);
    const int32_t segments = session->stats().segments;
    const auto got = decoded(*session, all.subspan(600));
    assert_true(session->stats().segments > segments);  // some were sealed on the way
    assert_true(difference(std::span(expected).subspan(60000), got) < kRounding);
  }
}

// Nothing is looked up and nothing estimated: not a bit is left to the policy.
void every_policy_is_full_where_all_windows_slide(void**) {
  const auto ids = random_ids(1000);
  const std::span<const int32_t> all(ids);
  const auto sliding = model({130, 40}), mixed = model({130, 0});
  const auto run = [&](const std::shared_ptr<const Model>& of, const char* policy) {
    const auto session = session_of(of, policy);
    session->prefill(all.first(700), {}, nullptr);
    return decoded(*session, all.subspan(700));
  };
  const auto expected = run(sliding, "full");
  for (const char* policy : {"wave", "streaming", "blocks"}) assert_true(run(sliding, policy) == expected);
  assert_true(difference(run(mixed, "wave"), run(mixed, "full")) > 1e-3);  // else this would say nothing
}

void statistics_count_what_a_window_shows(void**) {
  constexpr uint64_t kTokenBytes = 2 * 2 * 16 * 4;  // of a layer: K and V, KV heads, head_dim, f32
  const auto ids = random_ids(901);
  const auto run = [&](const Windows& windows, const char* policy) {
    const auto session = session_of(model(windows), policy);
    session->prefill({ids.data(), 900}, {}, nullptr);
    session->accept(ids[900], nullptr);
    session->logits(nullptr);
    return session->stats();
  };
  for (const char* policy : {"full", "wave"}) {
    const wi_session_stats stats = run({130, 40}, policy);
    assert_int_equal(stats.kv_bytes_read, (130 + 40) * kTokenBytes);
    assert_int_equal(stats.index_bytes_read, 0);
    assert_int_equal(stats.retrieved_tokens, 0);
    assert_int_equal(stats.dropped_clusters + stats.estimated_clusters, 0);
    assert_true(stats.estimated_coverage == 1 && stats.certified_coverage_min == 1);
  }
  assert_int_equal(run({130, 0}, "full").kv_bytes_read, (130 + 901) * kTokenBytes);
  // An index is made, and read, for the layer that looks everything up; of the others what orders their
  // tokens is kept: layers, KV heads; a place for each sealed token, and each of 4 segments' only partition's
  // two ends.
  constexpr uint64_t kOrder = uint64_t{2} * 2 * (832 + 4 * 2) * sizeof(int32_t);
  const wi_session_stats none = run({130, 40}, "wave"), one = run({130, 0}, "wave"),
                         two = run({0, 0}, "wave");
  assert_int_equal(none.index_bytes, kOrder);
  assert_in_range(one.index_bytes - kOrder, 1, (two.index_bytes - kOrder) * 2 / 3);
  assert_in_range(one.index_bytes_read, 1, two.index_bytes_read * 2 / 3);
}

void forks_cuts_and_batches_keep_the_window(void**) {
  const auto ids = random_ids(1200);
  const std::span<const int32_t> all(ids);
  for (const char* policy : {"full", "wave"}) {
    for (const Windows& windows : {Windows{130, 40}, Windows{0, 100}}) {
      const auto both = model(windows);
      const auto session = session_of(both, policy);
      session->prefill(all.first(800), {}, nullptr);
      const auto fork = session->fork();
      const auto expected = decoded(*session, all.subspan(800, 300));
      assert_true(decoded(*fork, all.subspan(800, 300)) == expected);

      // Cut back to the prompt, whose segments had become longer ones meanwhile: the same bits again.
      fork->truncate(800);
      assert_true(decoded(*fork, all.subspan(800, 300)) == expected);
      // And into a segment, to where nobody stopped before.
      const auto fresh = session_of(both, policy);
      fresh->prefill(all.first(411), {}, nullptr);
      session->truncate(411);
      assert_true(difference(logits_of(*session), logits_of(*fresh)) < kRounding);

      // Alone and in company.
      const auto alone = fresh->fork(), company = session_of(both, policy);
      company->prefill(all.first(500), {}, nullptr);
      for (int i = 0; i < 100; ++i) {
        Session* const batch[] = {company.get(), fresh.get()};
        Event events[2];
        Session::decode_batch(batch, nullptr, events);
        assert_int_equal(events[1].token, alone->decode(nullptr).token);
      }
      assert_true(logits_of(*fresh) == logits_of(*alone));
    }
  }
}

void a_fork_under_another_policy_keeps_the_window(void**) {
  const auto ids = random_ids(900);
  const std::span<const int32_t> all(ids);
  const auto both = model({130, 40});
  const auto wave = session_of(both, "wave"), full = session_of(both, "full");
  for (const auto& session : {wave, full}) session->prefill(all.first(800), {}, nullptr);
  const auto fork = wave->fork_as(params_of("full"), nullptr);
  assert_true(decoded(*fork, all.subspan(800)) == decoded(*full, all.subspan(800)));
}

void saved_sessions_go_on_in_their_windows(void**) {
  const test::Folder folder;
  const std::string path = folder.file("saved");
  const auto ids = random_ids(1100);
  const std::span<const int32_t> all(ids);
  const auto as_saved = [](const SessionParams& saved) { return saved; };
  for (const char* policy : {"full", "wave"}) {
    for (const Windows& windows : {Windows{130, 40}, Windows{0, 100}}) {
      const auto both = model(windows);
      const auto session = session_of(both, policy);
      session->prefill(all.first(700), {}, nullptr);
      decoded(*session, all.subspan(700, 150));
      session->save(path, nullptr);
      const auto loaded = Session::load(runtime(), both, path, as_saved, nullptr);
      assert_true(decoded(*loaded, all.subspan(850)) == decoded(*session, all.subspan(850)));
      // The same weights with other windows are another model.
      for (const Windows& other : {Windows{}, Windows{131, 40}})
        assert_error(WI_E_MISMATCH, "another model",
                     Session::load(runtime(), model(other), path, as_saved, nullptr));
    }
  }
}

// A file whose tokens are sorted by cluster, in a sequence of which a window reads them in order.
void a_file_with_tokens_out_of_order_is_refused(void**) {
  const test::Folder folder;
  const std::string path = folder.file("saved");
  const auto session = session_of(model({}), "wave");
  session->prefill(random_ids(700), {}, nullptr);
  session->save(path, nullptr);
  InputFile from(path);
  SessionFile file(from, FileKind::session, runtime()->backend, nullptr);
  KvShape shape = session->sequence().shape();
  shape.windows = std::make_shared<const Windows>(Windows{0, 100});
  Sequence to(runtime()->kv_pools, shape, 0);
  runtime()->workers.run(nullptr, [&](const Stream& stream) {
    assert_error(WI_E_FORMAT, "are not in their order", file.read_sequence(to, stream, {}));
  });
}

void sessions_share_prefixes_with_windows(void**) {
  const auto ids = random_ids(900);
  const auto both = model({130, 0});
  SessionParams params = params_of("full");
  params.prefix_reuse = params.any_prefix = true;
  const auto first = Session::create(runtime(), both, params),
             second = Session::create(runtime(), both, params);
  first->prefill(ids, {}, nullptr);
  second->prefill(ids, {}, nullptr);
  assert_true(second->stats().prefix_tokens > 500);
  assert_true(difference(logits_of(*first), logits_of(*second)) < kRounding);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_query_sees_its_window_and_no_more),
      cmocka_unit_test(a_window_as_long_as_the_text_changes_no_bit),
      cmocka_unit_test(a_prompt_in_pieces_is_one_in_a_window),
      cmocka_unit_test(decoding_in_a_window_equals_reading),
      cmocka_unit_test(every_policy_is_full_where_all_windows_slide),
      cmocka_unit_test(statistics_count_what_a_window_shows),
      cmocka_unit_test(forks_cuts_and_batches_keep_the_window),
      cmocka_unit_test(a_fork_under_another_policy_keeps_the_window),
      cmocka_unit_test(saved_sessions_go_on_in_their_windows),
      cmocka_unit_test(a_file_with_tokens_out_of_order_is_refused),
      cmocka_unit_test(sessions_share_prefixes_with_windows),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
