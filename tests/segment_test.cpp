// Where a sequence is cut into segments: on a grid of positions, whatever calls the tokens came in; and what
// of that other sessions may take over.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "src/memory/breaks.h"
#include "src/pipeline/append.h"
#include "src/pipeline/building.h"
#include "src/pipeline/index.h"
#include "src/session.h"
#include "tests/support/policies.h"
#include "tests/support/random_model.h"
#include "tests/support/runtime.h"
#include "tests/test.h"

using namespace wi;
using test::runtime;

namespace {

PolicyParams small_segments() {
  PolicyParams params;
  params.segment_tokens = 512;
  params.decode_segment_tokens = 64;
  return params;
}

std::vector<SegmentSpan> cut_of(const PolicyParams& params, int64_t tokens) {
  const SegmentGrid grid(params);
  std::vector<SegmentSpan> spans;
  int64_t first = kSinkTokens;
  for (SegmentSpan span; (span = grid.longest(first, grid.sealed_end(tokens))).tokens; first = span.end())
    spans.push_back(span);
  return spans;
}

void the_grid_leaves_the_window_and_less_than_a_unit(void**) {
  for (const auto [block, unit, window] : std::vector<std::array<int32_t, 3>>{
           {8192, 1024, 64}, {512, 64, 0}, {1024, 768, 64}, {384, 64, 8}, {256, 1024, 100}, {64, 64, 0}}) {
    PolicyParams params;
    params.segment_tokens = block;
    params.decode_segment_tokens = unit;
    params.local_window = window;
    int64_t last_end = kSinkTokens;
    for (int64_t tokens = 0; tokens < 3 * block + 2 * window; tokens += 13) {
      const int64_t end = SegmentGrid(params).sealed_end(tokens);
      assert_true(end >= last_end);
      last_end = end;
      const auto spans = cut_of(params, tokens);
      assert_int_equal(spans.empty() ? kSinkTokens : spans.back().end(), end);
      assert_true(end == kSinkTokens || end + window <= tokens);
      assert_true(tokens - end < kSinkTokens + window + std::min(unit, block));
      for (const SegmentSpan& span : spans) {
        assert_int_equal(span.tokens % kBlockTokens, 0);
        assert_true(span.tokens <= block);
        if (span.tokens > unit && block % unit == 0)
          assert_int_equal((span.first - kSinkTokens) % block % span.tokens, 0);
      }
    }
  }
}

void long_segments_stay_long_and_the_rest_is_halved(void**) {
  std::vector<int32_t> sizes;
  for (const SegmentSpan& span : cut_of({}, 2 * 8192 + 7 * 1024 + 3 * 256 + 70)) sizes.push_back(span.tokens);
  assert_true((sizes == std::vector<int32_t>{8192, 8192, 4096, 2048, 1024, 512, 256}));
}

void behind_a_cut_the_next_segment_goes_on_to_the_grid(void**) {
  const SegmentGrid grid(PolicyParams{});
  for (int64_t first : {kSinkTokens + 64, kSinkTokens + 8128, kSinkTokens + 256 + 192}) {
    const SegmentSpan span = grid.unit(first);
    assert_int_equal((span.end() - kSinkTokens) % 256, 0);
    assert_true(span.tokens >= 256 && span.tokens < 512);
    assert_int_equal(grid.longest(first, 1 << 20).tokens, span.tokens);
    assert_int_equal(grid.longest(first, span.end() - 1).tokens, 0);
  }
}

// ---- the store ----

constexpr int32_t kLayers = 2, kHeads = 2, kDim = 32;

struct Keys {
  explicit Keys(int64_t tokens) {
    std::mt19937_64 random(test::seed());
    std::normal_distribution<float> normal;
    for (auto& layer : numbers) {
      layer.resize(static_cast<size_t>(tokens) * 2 * kHeads * kDim);
      for (float& number : layer) number = normal(random);
    }
  }
  void append(Sequence& sequence, int64_t count) const {
    sequence.reserve(count);
    AppendRoom room;
    runtime()->workers.run(nullptr, [&](const Stream& stream) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        const float* row = numbers[layer].data() + sequence.tokens() * 2 * kHeads * kDim;
        const uint32_t largest = wi::append(runtime()->backend, stream, sequence, layer, sequence.tokens(),
                                            count, row, row + kHeads * kDim, 2 * kHeads * kDim, room);
        check_kv_range(sequence.shape().dtype, largest, layer);
      }
    });
    sequence.commit(count);
  }
  std::vector<float> numbers[kLayers];
};

Sequence empty_sequence() { return Sequence(runtime()->kv_pools, {kLayers, kHeads, kDim, DType::f16}, 0); }

void seal_prompt_now(Sequence& sequence, const char* policy, int64_t final_tokens) {
  const PolicyParams params = small_segments();
  runtime()->workers.run(nullptr, [&](const Stream& stream) {
    seal_prompt(sequence, {runtime()->backend, *find_policy(runtime()->backend, policy), params, stream, {}},
                final_tokens);
  });
}

void seal_decoded_now(Sequence& sequence) {
  const PolicyParams params = small_segments();
  runtime()->workers.run(nullptr, [&](const Stream& stream) {
    seal_decoded(sequence,
                 {runtime()->backend, *find_policy(runtime()->backend, "wave"), params, stream, {}});
  });
}

void assert_same_segments(const Sequence& a, const Sequence& b) {
  assert_int_equal(a.segments().size(), b.segments().size());
  assert_int_equal(a.sealed_end(), b.sealed_end());
  for (size_t i = 0; i < a.segments().size(); ++i) {
    const Segment &x = *a.segments()[i], &y = *b.segments()[i];
    assert_int_equal(x.first_position(), y.first_position());
    assert_int_equal(x.tokens(), y.tokens());
    assert_int_equal(x.index().bytes(), y.index().bytes());
    if (x.index().bytes()) assert_memory_equal(x.index().data(), y.index().data(), x.index().bytes());
    const size_t places = static_cast<size_t>(x.tokens()) * kLayers * kHeads * sizeof(int32_t);
    assert_memory_equal(x.places(0, 0), y.places(0, 0), places);
    assert_int_equal(x.kv_bytes(), y.kv_bytes());
    std::vector<std::byte> kv_of_x(x.kv_bytes()), kv_of_y(y.kv_bytes());
    x.copy_out(0, kv_of_x.data(), kv_of_x.size());
    y.copy_out(0, kv_of_y.data(), kv_of_y.size());
    assert_true(kv_of_x == kv_of_y);
  }
}

// With the same keys the segments are the same bytes: pages, positions, clusters.
void pieces_are_sealed_to_the_bytes_of_one_call(void**) {
  constexpr int64_t kTokens = 3000;
  const Keys keys(kTokens);
  std::mt19937_64 random(test::seed());
  for (const char* policy : test::policies()) {
    Sequence whole = empty_sequence();
    keys.append(whole, kTokens);
    seal_prompt_now(whole, policy, kTokens);
    assert_int_equal(whole.segments().size(), 7);  // five of 512, 256, 64
    for (int64_t piece : {int64_t{1}, int64_t{64}, int64_t{700}, int64_t{2999}, int64_t{0}}) {
      if (piece == 1 && policy != std::string("wave")) continue;
      Sequence pieces = empty_sequence();
      while (pieces.tokens() < kTokens) {
        const int64_t count =
            std::min(piece ? piece : static_cast<int64_t>(random() % 900 + 1), kTokens - pieces.tokens());
        keys.append(pieces, count);
        seal_prompt_now(pieces, policy, pieces.tokens());
      }
      assert_same_segments(whole, pieces);
    }
  }
}

// Others' work comes between whenever it may, longer than a turn lasts, and takes the workers' scratch memory.
struct Interruptions final : Breaks {
  explicit Interruptions(const Stream& on) : stream(on) {}
  bool due() override { return true; }
  void take() override {
    ++taken;
    if (taken % 4) return;
    stream.each(stream.workers, [&](int64_t, int worker) {
      std::fill_n(stream.worker_array<std::byte>(worker, size_t{4} << 20), size_t{4} << 20, std::byte{0xa5});
    });
  }
  const Stream& stream;
  int taken = 0;
};

void a_long_segment_lets_others_in_and_has_the_same_bytes(void**) {
#if defined(WI_SANITIZED) || defined(WI_EMULATED)
  constexpr int32_t kSegment = 8192;
#else
  constexpr int32_t kSegment = 32768;  // a plane takes what one of larger heads does
#endif
  constexpr int64_t kTokens = kSegment + 200;
  PolicyParams params;
  params.segment_tokens = kSegment;
  const Keys keys(kTokens);
  for (const char* policy : test::policies()) {
    Sequence alone = empty_sequence(), disturbed = empty_sequence();
    for (Sequence* sequence : {&alone, &disturbed}) keys.append(*sequence, kTokens);
    int taken = 0;
    runtime()->workers.run(nullptr, [&](const Stream& stream) {
      const Backend& backend = runtime()->backend;
      seal_prompt(alone, {backend, *find_policy(backend, policy), params, stream, {}}, kTokens);
      Interruptions others(stream);
      const InterruptibleStream interruptible(stream, &others);
      seal_prompt(disturbed, {backend, *find_policy(backend, policy), params, interruptible.stream(), {}},
                  kTokens);
      taken = others.taken;
    });
    assert_same_segments(alone, disturbed);
    std::printf("%s: %d interruptions\n", policy, taken);
    if (policy == std::string("wave")) assert_true(taken > 2 * kLayers * kHeads);  // not once a plane
  }
}

void what_decoding_sealed_is_never_sealed_again(void**) {
  constexpr int64_t kTokens = 2000;
  const Keys keys(kTokens);
  Sequence sequence = empty_sequence();
  keys.append(sequence, 500);
  seal_prompt_now(sequence, "wave", 500);
  const int64_t decoded = 700 + kBuildTokens;
  while (sequence.tokens() < decoded) {
    keys.append(sequence, 1);
    seal_decoded_now(sequence);
  }
  std::vector<std::shared_ptr<const Segment>> before(sequence.segments().begin(), sequence.segments().end());
  assert_true(before.size() > 4);
  keys.append(sequence, kTokens - decoded);
  seal_prompt_now(sequence, "wave", kTokens);
  for (size_t i = 0; i < before.size(); ++i) assert_ptr_equal(before[i].get(), sequence.segments()[i].get());
  assert_int_equal(sequence.sealed_end(), SegmentGrid(small_segments()).sealed_end(kTokens));
  assert_int_equal(sequence.segments().back()->tokens() + sequence.segments().back()->first_position(),
                   sequence.sealed_end());
}

// At which token a segment takes its tokens' place: a function of positions alone.
int64_t sealed_end_while_decoding(int64_t from, int64_t tokens) {
  const SegmentGrid grid(small_segments());
  while (grid.unit(from).end() + small_segments().local_window + kBuildTokens <= tokens)
    from = grid.unit(from).end();
  return from;
}

// Whatever threads do the work and however far it is: here one step in three does none of it, because another
// owner is at it, and one in five is cancelled.
void decoding_seals_at_a_fixed_token(void**) {
  constexpr int64_t kTokens = 1300;
  const Keys keys(kTokens);
  Sequence steady = empty_sequence();
  keys.append(steady, 500);
  seal_prompt_now(steady, "wave", 500);
  Sequence disturbed = steady;
  const int64_t from = steady.sealed_end();
  std::atomic<bool> cancel{true};
  while (steady.tokens() < kTokens) {
    keys.append(steady, 1);
    seal_decoded_now(steady);
    assert_int_equal(steady.sealed_end(), sealed_end_while_decoding(from, steady.tokens()));
    keys.append(disturbed, 1);
    if (steady.tokens() % 5 == 0) {
      const PolicyParams params = small_segments();
      const auto cancelled = [&] {
        runtime()->workers.run(&cancel, [&](const Stream& stream) {
          seal_decoded(disturbed,
                       {runtime()->backend, *find_policy(runtime()->backend, "wave"), params, stream, {}});
        });
      };
      if (disturbed.building()) assert_error(WI_E_CANCELLED, "cancelled", cancelled());
    }
    if (steady.tokens() % 3) seal_decoded_now(disturbed);
  }
  seal_decoded_now(disturbed);
  assert_same_segments(steady, disturbed);
}

// Two that go on from one place make one segment between them, also at once on two threads.
void forks_share_a_segment_in_the_making(void**) {
  constexpr int64_t kTokens = 1000;
  const Keys keys(kTokens);
  Sequence origin = empty_sequence();
  keys.append(origin, 500);
  seal_prompt_now(origin, "wave", 500);
  while (!origin.building()) {
    keys.append(origin, 1);
    seal_decoded_now(origin);
  }
  const auto go_on = [&](Sequence& sequence) {
    while (sequence.tokens() < kTokens) {
      keys.append(sequence, 1);
      seal_decoded_now(sequence);
    }
  };
  Sequence a = origin, b = origin;
  std::thread other([&] { go_on(a); });
  go_on(b);
  other.join();
  assert_same_segments(a, b);
  const size_t first = origin.segments().size();
  assert_true(a.segments().size() > first);
  assert_ptr_equal(a.segments()[first].get(), b.segments()[first].get());
}

// ---- sessions ----

std::shared_ptr<const Model> model() {
  static const std::shared_ptr<const Model> shared =
      test::random_model(test::shape_named("tiny"), DType::f32, 7);
  return shared;
}

SessionParams session_params(bool prefix_reuse) {
  SessionParams params;
  params.policy = find_policy(runtime()->backend, "wave");
  params.policy_params = small_segments();
  params.kv = DType::f32;
  params.prefix_reuse = params.any_prefix = prefix_reuse;
  return params;
}

std::vector<int32_t> prompt(size_t count, uint64_t salt = 0) {
  std::mt19937_64 random(test::seed() + salt);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 100);
  return ids;
}

std::vector<int32_t> decoded(Session& session, int count) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(session.decode(nullptr).token);
  return ids;
}

// In other pieces other rows share a product and attention adds its runs in another order: sums of f32 differ
// by rounding, which is 1e-6 of a logit and grows through the layers. A key that lies between two clusters
// may then fall to the other one, so of the partitions a few positions may differ, and no border of a
// segment.
void a_prompt_in_pieces_goes_on_as_one_in_one_call(void**) {
  constexpr size_t kTokens = 4500;
  const auto ids = prompt(kTokens);
  const auto whole = Session::create(runtime(), model(), session_params(false));
  whole->prefill(ids, {}, nullptr);
  const std::vector<float> expected(whole->logits(nullptr).begin(), whole->logits(nullptr).end());
  const auto answer = decoded(*whole->fork(), 20);
  std::mt19937_64 random(test::seed());
  for (size_t piece : {size_t{1}, size_t{64}, size_t{1500}, size_t{4000}, size_t{0}}) {
    const auto pieces = Session::create(runtime(), model(), session_params(false));
    for (size_t done = 0; done < kTokens;) {
      const size_t count = std::min(piece ? piece : random() % 1500 + 1, kTokens - done);
      pieces->prefill({ids.data() + done, count}, {}, nullptr);
      done += count;
    }
    const auto logits = pieces->logits(nullptr);
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i)
      worst = std::max(worst, std::abs(double{expected[i]} - double{logits[i]}));
    assert_true(worst < 2e-4);
    const auto a = whole->sequence().segments(), b = pieces->sequence().segments();
    assert_int_equal(a.size(), b.size());
    int64_t moved = 0, all = 0;
    for (size_t s = 0; s < a.size(); ++s) {
      assert_int_equal(a[s]->first_position(), b[s]->first_position());
      assert_int_equal(a[s]->tokens(), b[s]->tokens());
      for (int32_t layer = 0; layer < model()->config.layers; ++layer)
        for (int32_t head = 0; head < model()->config.kv_heads; ++head)
          for (int32_t i = 0; i < a[s]->tokens(); ++i, ++all)
            moved += a[s]->places(layer, head)[i] != b[s]->places(layer, head)[i];
    }
    std::printf("pieces of %d: logits %.1e off, %d of %d places differ\n", static_cast<int>(piece), worst,
                static_cast<int>(moved), static_cast<int>(all));
    assert_true(moved <= all / 20);
    assert_true(decoded(*pieces, 20) == answer);
  }
}

// Long enough that several segments are made while decoding. Neither the number of threads nor company in a
// batch, nor a save and a load in the middle of making one, changes a token.
void segments_made_while_decoding_change_no_token(void**) {
  constexpr int kSteps = 230 + kBuildTokens;
  const auto ids = prompt(700);
  std::vector<int32_t> expected;
  for (int threads : {1, 2, 5}) {
    RuntimeParams params;
    params.threads = threads;
    const auto own = test::create_runtime(params);
    const auto session = Session::create(own, model(), session_params(false));
    session->prefill(ids, {}, nullptr);
    const int32_t segments = session->stats().segments;
    const auto fork = session->fork(), other = session->fork();
    const auto answer = decoded(*session, kSteps);
    assert_true(session->stats().segments >= segments + 2);
    if (expected.empty()) expected = answer;
    assert_true(answer == expected);
    decoded(*fork, 150);
    const std::string path = std::string(WI_BINARY_DIR) + "/segment_test.session";
    fork->save(path, nullptr);
    const auto as_saved = [](const SessionParams& saved) { return saved; };
    const auto loaded = Session::load(own, model(), path, as_saved, nullptr);
    std::remove(path.c_str());
    Session* const batch[] = {fork.get(), loaded.get(), other.get()};
    decoded(*other, 31);  // elsewhere in the making of the same segment
    for (int step = 150; step < kSteps; ++step) {
      Event events[3];
      Session::decode_batch(batch, nullptr, events);
      assert_int_equal(events[0].token, expected[static_cast<size_t>(step)]);
      assert_int_equal(events[1].token, expected[static_cast<size_t>(step)]);
      assert_int_equal(events[2].token, expected[static_cast<size_t>(step - 150 + 31)]);
    }
  }
}

// Also where a segment takes seconds to cluster. The quickest of three: a test machine is not quiet.
void sealing_a_long_segment_is_cancelled_at_once(void**) {
  constexpr int64_t kTokens = 131072 + 100;
  const ModelConfig& config = model()->config;
  const int64_t width = int64_t{config.kv_heads} * config.head_dim;
  SessionParams params = session_params(false);
  params.policy_params.segment_tokens = 131072;
  const std::vector<int32_t> ids(kTokens);
  double quickest_ms = 1e9;
  for (int run = 0; run < 3; ++run) {
    const auto session = Session::create(runtime(), model(), params);
    CancelToken cancel;
    std::atomic<bool> filled{false};
    std::chrono::steady_clock::time_point fired;
    std::thread canceller([&] {
      while (!filled) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(100 + 150 * run));
      fired = std::chrono::steady_clock::now();
      cancel.flag = true;
    });
    const auto fill = [&](int32_t, int64_t first, int64_t count, float* keys, float* values) {
      std::mt19937 random(static_cast<uint32_t>(first));
      for (int64_t i = 0; i < count * width; ++i)
        keys[i] = values[i] = static_cast<float>(random() % 1000) * 0.01f - 5;
      if (first + count == kTokens - 1) filled = true;
    };
    assert_error(WI_E_CANCELLED, "cancelled", session->append_computed(ids, fill, &cancel));
    const auto ended = std::chrono::steady_clock::now();
    canceller.join();
    quickest_ms = std::min(quickest_ms, std::chrono::duration<double, std::milli>(ended - fired).count());
    assert_int_equal(session->stats().tokens, 0);
  }
  std::printf("cancelled within %.1f ms\n", quickest_ms);
  assert_in_time(quickest_ms < 100);
}

// What others hold changes neither where a prompt is cut nor its answer.
void only_segments_that_a_prompt_would_have_itself_are_taken_over(void**) {
  const auto ids = prompt(2000);
  const std::vector<int32_t> shorter(ids.begin(), ids.begin() + 900);
  const auto alone = Session::create(runtime(), model(), session_params(false));
  alone->prefill(shorter, {}, nullptr);
  const auto longer = Session::create(runtime(), model(), session_params(true));
  longer->prefill(ids, {}, nullptr);  // 512, 512, 512, 256, 128
  const auto beside = Session::create(runtime(), model(), session_params(true));
  beside->prefill(shorter, {}, nullptr);  // 512, 256, 64
  assert_int_equal(beside->stats().prefix_tokens, kSinkTokens + 512);
  assert_int_equal(beside->stats().segments, alone->stats().segments);
  for (size_t i = 0; i < 3; ++i)
    assert_int_equal(beside->sequence().segments()[i]->tokens(), alone->sequence().segments()[i]->tokens());
  assert_true(decoded(*beside, 20) == decoded(*alone, 20));
}

void a_thousand_dead_prefixes_leave_nothing_in_the_table(void**) {
  const auto keeps = Session::create(runtime(), model(), session_params(true));
  keeps->prefill(prompt(400), {}, nullptr);
  const size_t before = runtime()->prefixes.size();
  assert_true(before > 0);
  for (uint64_t i = 1; i <= 1000; ++i) {
    const auto session = Session::create(runtime(), model(), session_params(true));
    session->prefill(prompt(140, i), {}, nullptr);
    assert_int_equal(runtime()->prefixes.size(), before + 1);
  }
  assert_int_equal(runtime()->prefixes.size(), before);
  const auto again = Session::create(runtime(), model(), session_params(true));
  again->prefill(prompt(400), {}, nullptr);
  assert_true(again->stats().prefix_tokens > 0);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(the_grid_leaves_the_window_and_less_than_a_unit),
      cmocka_unit_test(long_segments_stay_long_and_the_rest_is_halved),
      cmocka_unit_test(behind_a_cut_the_next_segment_goes_on_to_the_grid),
      cmocka_unit_test(pieces_are_sealed_to_the_bytes_of_one_call),
      cmocka_unit_test(a_long_segment_lets_others_in_and_has_the_same_bytes),
      cmocka_unit_test(what_decoding_sealed_is_never_sealed_again),
      cmocka_unit_test(decoding_seals_at_a_fixed_token),
      cmocka_unit_test(forks_share_a_segment_in_the_making),
      cmocka_unit_test(a_prompt_in_pieces_goes_on_as_one_in_one_call),
      cmocka_unit_test(segments_made_while_decoding_change_no_token),
      cmocka_unit_test(sealing_a_long_segment_is_cancelled_at_once),
      cmocka_unit_test(only_segments_that_a_prompt_would_have_itself_are_taken_over),
      cmocka_unit_test(a_thousand_dead_prefixes_leave_nothing_in_the_table),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
