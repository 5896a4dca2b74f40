// Steps of a device's queue as graphs (kernels/cuda/step.h): one call for what was asked for before, whatever is in it,
// and the bits that one call after the other gives.
#include <cuda_runtime.h>
#include <set>
#include <span>
#include <vector>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/queue.h"
#include "tests/cuda_emulation/tripling.h"
#include "tests/support/device_world.h"
#include "tests/support/fewer.h"

using namespace wi;
using namespace wi::test;

namespace {

// Where the compiler leaves bytes between members as they are, steps may look different that are alike.
void needs_padding_cleared() {
  if (!cuda::kClearsPadding) skip();
}

// Of `count` steps: calls to the runtime, each step's, and the tokens that came.
struct Steps {
  std::vector<uint64_t> calls, graphs;
  std::vector<int32_t> tokens;
};
Steps steps_of(Session& session, int count) {
  Steps steps;
  for (int i = 0; i < count; ++i) {
    const uint64_t calls = cuda_emulation::api_calls(), graphs = cuda_emulation::graph_launches();
    steps.tokens.push_back(session.decode(nullptr).token);
    steps.calls.push_back(cuda_emulation::api_calls() - calls);
    steps.graphs.push_back(cuda_emulation::graph_launches() - graphs);
  }
  return steps;
}

void a_step_that_comes_again_is_one_call(void**) {
  needs_padding_cleared();
  const Shape shapes[] = {{.policy = "full"}, {.policy = "wave"}, {.policy = "wave", .fast_share = 0.3f}};
  for (const Shape& shape : std::span(shapes).last(few_or(1u, 3u))) {
    cuda_emulation::reset(test::seed());
    World device(cuda_backend(), shape);
    const auto session = device.session();
    session->prefill(prompt(300), {}, nullptr);
    const Steps steps = steps_of(*session, 14);
    // The first ones open what they need, and steps are alike until a block of tokens is full.
    int graphs = 0;
    for (size_t i = 6; i < 14; ++i) graphs += steps.graphs[i] == 1;
    assert_true(graphs >= 6);
    assert_string_equal(cuda_emulation::report().c_str(), "");
  }
}

// Forks of several lengths: of one or the other, it is not the first layer whose lists need more room than there was.
void lists_that_grow_from_layer_to_layer_are_written_where_they_are(void**) {
  World device(cuda_backend(), {.policy = "wave", .layers = 3});
  device.session_params.policy_params.tokens_per_centroid = 3;
  device.session_params.policy_params.max_cluster_tokens = 4;
  const auto session = device.session();
  session->prefill(prompt(400), {}, nullptr);
  for (int64_t tokens = 110; tokens < 390; tokens += 64) {
    const auto fork = session->fork();
    fork->truncate(tokens);
    fork->accept(7, nullptr);
    logits_of(*fork);
  }
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

// Neither graphs nor what a step asks the runtime for besides.
void calls_of_a_step_are_as_many_for_any_layers(void**) {
  needs_padding_cleared();
  const float shares[] = {0, 0.3f};
  for (const float share : std::span(shares).last(few_or(1u, 2u))) {
    std::set<uint64_t> calls;
    for (const int32_t layers : {2, 5}) {
      cuda_emulation::reset(test::seed());
      World device(cuda_backend(), {.policy = "wave", .fast_share = share, .layers = layers});
      const auto session = device.session();
      session->prefill(prompt(300), {}, nullptr);
      leave_the_device(device, *session);  // or the manager's calls are among those of a step
      const Steps steps = steps_of(*session, 11);
      assert_int_equal(steps.graphs.back(), 1);
      calls.insert(steps.calls.back());
    }
    assert_int_equal(calls.size(), 1);
  }
}

// One call after the other: of the lists that lookups need, none goes along for a layer by itself.
void another_layer_of_a_step_is_its_kernels_alone(void**) {
  std::vector<uint64_t> calls;
  for (const int32_t layers : {1, 2, 3, 6, 7}) {
    cuda_emulation::reset(test::seed());
    cuda_emulation::allow_capture(false);
    World device(cuda_backend(), {.policy = "wave", .layers = layers});
    const auto session = device.session();
    session->prefill(prompt(40), {}, nullptr);
    calls.push_back(steps_of(*session, 4).calls.back());
  }
  const uint64_t of_a_layer = calls[2] - calls[1];
  assert_int_equal(calls[1] - calls[0], of_a_layer);
  assert_int_equal(calls[4] - calls[3], of_a_layer);
}

// Nor with a cache of hot pages, with which steps are no graphs: all that a layer takes are its launches, also of kernels
// that have to ask for so much shared memory (attend's, of rows of 1 KB).
void a_layer_of_a_step_with_a_cache_is_its_kernels_alone(void**) {
  constexpr uint64_t kKernels = 15;  // and none more for the other rows
  const Shape shapes[] = {{.fast_share = 0.3f, .slab_bytes = 256},
                          {.kv = DType::f32, .fast_share = 0.3f, .head_dim = 256, .slab_bytes = 256}};
  for (const Shape& shape : std::span(shapes).first(few_or(1u, 2u))) {
    uint64_t calls[2];
    for (const int32_t layers : {2, 3}) {
      cuda_emulation::reset(test::seed());
      Shape of = shape;
      of.layers = layers;
      World device(cuda_backend(), of);
      const auto session = device.session();
      session->prefill(prompt(200), {}, nullptr);
      leave_the_device(device, *session);
      const Steps steps = steps_of(*session, 4);
      assert_true(device.runtime->buffer->stats().frame_bytes > 0);
      assert_int_equal(steps.graphs.back(), 0);
      calls[layers - 2] = steps.calls.back();
    }
    assert_int_equal(calls[1] - calls[0], kKernels * cuda_emulation::kCallsOfLaunch);
  }
}

// The same device, whose `full` is asked what it reads of segments.
const Backend& backend_that_asks() {
  static BackendOnDevice both(cuda::backend());
  const_cast<Policy*>(find_policy(both.backend, "full"))->selects_all = false;
  return both.backend;
}

// Of `full` every segment is read where it lies: of a layer's kernels none selects and none retrieves. Where some of it is
// in pinned memory retrieve is asked, which counts what is.
void a_layer_under_full_selects_and_retrieves_nothing(void**) {
  struct Case {
    float fast_share;
    const Backend& backend;
    uint64_t kernels;
  };
  constexpr uint64_t kKernels = 9, kSelects = 1, kRetrieves = 1;
  const Case cases[] = {{0, cuda_backend(), kKernels},
                        {0, backend_that_asks(), kKernels + kSelects + kRetrieves},
                        {0.3f, cuda_backend(), kKernels + kSelects + kRetrieves}};
  for (const Case& one : cases) {
    uint64_t calls[2];
    for (const int32_t layers : {2, 3}) {
      cuda_emulation::reset(test::seed());
      cuda_emulation::allow_capture(false);
      World device(one.backend,
                   {.policy = "full", .fast_share = one.fast_share, .slab_bytes = 256, .layers = layers});
      const auto session = device.session();
      session->prefill(prompt(300), {}, nullptr);
      assert_true(session->stats().segments > 0);
      leave_the_device(device, *session);
      calls[layers - 2] = steps_of(*session, 4).calls.back();
    }
    assert_int_equal(calls[1] - calls[0], one.kernels * cuda_emulation::kCallsOfLaunch);
  }
}

// Nor under `wave` while nothing is sealed, which is estimated neither.
void a_layer_without_segments_selects_and_retrieves_nothing(void**) {
  for (const char* const policy : {"full", "wave"}) {
    uint64_t calls[2];
    for (const int32_t layers : {2, 3}) {
      cuda_emulation::reset(test::seed());
      cuda_emulation::allow_capture(false);
      World device(cuda_backend(), {.policy = policy, .layers = layers});
      const auto session = device.session();
      session->prefill(prompt(20), {}, nullptr);
      calls[layers - 2] = steps_of(*session, 4).calls.back();
      assert_int_equal(session->stats().segments, 0);
    }
    assert_int_equal(calls[1] - calls[0], 9 * cuda_emulation::kCallsOfLaunch);
  }
}

// With and without graphs, of a batch of several lengths that seal segments, with keys and values in pinned memory or
// none: the bits and the counts of a backend that is asked.
void full_says_the_same_without_being_asked(void**) {
  needs_padding_cleared();
  for (const float share : {0.0f, 0.3f}) {
    struct Said {
      std::vector<int32_t> tokens;
      std::vector<std::vector<float>> logits;
      std::vector<uint64_t> counts;
      bool operator==(const Said&) const = default;
    };
    const auto life = [&](const Backend& backend, bool graphs) {
      cuda_emulation::reset(test::seed());
      cuda_emulation::allow_capture(graphs);
      World device(backend, {.policy = "full", .fast_share = share});
      const auto one = device.session(), other = device.session();
      one->prefill(prompt(300), {}, nullptr);
      other->prefill(prompt(150, 1), {}, nullptr);
      const auto fork = one->fork();
      fork->truncate(200);
      fork->accept(7, nullptr);
      Session* const all[] = {one.get(), other.get(), fork.get()};
      Said said;
      said.tokens = steps_of(*one, 8).tokens;
      const uint64_t before = cuda_emulation::graph_launches();
      for (int i = 0; i < 70; ++i) {  // seals a segment of each
        Event events[3];
        Session::decode_batch(all, nullptr, events);
        for (const Event& event : events) said.tokens.push_back(event.token);
      }
      if (share == 0) assert_int_equal(cuda_emulation::graph_launches() > before, graphs);
      for (Session* const each : all) {
        said.logits.push_back(logits_of(*each));
        const wi_session_stats stats = each->stats();
        assert_true(stats.retrieved_tokens > 0);
        for (const uint64_t count :
             {stats.retrieved_tokens, stats.kv_bytes_read, stats.buffer_hits + stats.buffer_misses,
              stats.estimated_clusters, stats.dropped_clusters})
          said.counts.push_back(count);
        if (share == 0) assert_int_equal(stats.buffer_misses, 0);
      }
      assert_string_equal(cuda_emulation::report().c_str(), "");
      return said;
    };
    const Said wanted = life(backend_that_asks(), false);
    assert_true(life(cuda_backend(), true) == wanted);
    if (share == 0) assert_true(life(cuda_backend(), false) == wanted);
  }
}

// Sessions of a batch whose tails get a block in this step or that: what lies behind the lists of one stays where it is.
void a_tail_that_gets_a_block_needs_no_other_graph(void**) {
  needs_padding_cleared();
  World device(cuda_backend(), {.policy = "wave"});
  std::vector<std::shared_ptr<Session>> each;
  std::vector<Session*> all;
  for (size_t i = 0; i < 4; ++i) {
    each.push_back(device.session());
    each.back()->prefill(prompt(52 + 4 * i, i), {}, nullptr);
    all.push_back(each.back().get());
  }
  const auto blocks = [&] {
    size_t sum = 0;
    for (const auto& one : each) sum += one->sequence().tail().size();
    return sum;
  };
  std::vector<Event> events(all.size());
  for (int i = 0; i < 4; ++i)
    Session::decode_batch(all, nullptr, events.data());  // which open what they need
  const size_t before = blocks();
  const uint64_t graphs = cuda_emulation::graph_launches();
  for (int i = 0; i < 16; ++i) Session::decode_batch(all, nullptr, events.data());
  assert_true(blocks() >= before + 3);
  assert_int_equal(cuda_emulation::graph_launches() - graphs, 16);
}

// Nor of a batch: what lookups need is brought for all sessions at once.
void calls_of_a_step_are_as_many_for_any_sessions(void**) {
  std::set<uint64_t> calls;
  for (const size_t sessions : {2, 4, 7}) {
    cuda_emulation::reset(test::seed());
    cuda_emulation::allow_capture(false);  // each call by itself
    World device(cuda_backend(), {.policy = "wave"});
    std::vector<std::shared_ptr<Session>> each;
    each.push_back(device.session());
    each[0]->prefill(prompt(120), {}, nullptr);
    while (each.size() < sessions) each.push_back(each[0]->fork());
    std::vector<Session*> all;
    for (const auto& one : each) all.push_back(one.get());
    std::vector<Event> events(sessions);
    uint64_t before = 0;
    for (int i = 0; i < 6; ++i) {
      before = cuda_emulation::api_calls();
      Session::decode_batch(all, nullptr, events.data());
    }
    calls.insert(cuda_emulation::api_calls() - before);
  }
  assert_int_equal(calls.size(), 1);
}

// Where graphs are refused, now and then or always, the same tokens come, one call after the other.
void refused_graphs_change_no_bit(void**) {
  needs_padding_cleared();
  const Shape shape{.policy = "wave", .fast_share = 0.3f};
  std::vector<float> wanted;
  for (const bool allowed : {true, false}) {
    cuda_emulation::reset(test::seed());
    cuda_emulation::allow_capture(allowed);
    World device(cuda_backend(), shape);
    const auto session = device.session();
    session->prefill(prompt(300), {}, nullptr);
    const Steps steps = steps_of(*session, 20);
    uint64_t graphs = 0;
    for (const uint64_t each : steps.graphs) graphs += each;
    assert_int_equal(graphs > 0, allowed);
    const std::vector<float> logits = logits_of(*session);
    if (allowed) wanted = logits;
    assert_true(logits == wanted);
  }
  // No memory for the graph itself: the second step asks for none but that.
  cuda_emulation::reset(test::seed());
  World device(cuda_backend(), {.policy = "wave"});
  const auto session = device.session();
  session->prefill(prompt(300), {}, nullptr);
  steps_of(*session, 2);  // the prompt's own token comes without a step
  cuda_emulation::fail_allocations_from(0);
  steps_of(*session, 2);
  cuda_emulation::fail_allocations_from(-1);
  for (const uint64_t each : steps_of(*session, 16).graphs)
    assert_int_equal(each, 0);  // nor is it tried again soon
  assert_true(logits_of(*session) == wanted);
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

// Not made, but launched: the first time, or after it has served for a while. Steps go on, with no graph for some time.
void a_graph_whose_launch_is_refused_changes_no_bit(void**) {
  needs_padding_cleared();
  const Shape shape{.policy = "wave"};
  std::vector<float> wanted;
  for (const int64_t nth : {-1, 0, 3}) {
    cuda_emulation::reset(test::seed());
    World device(cuda_backend(), shape);
    const auto session = device.session();
    session->prefill(prompt(300), {}, nullptr);
    cuda_emulation::refuse_graph_launch(nth);
    uint64_t graphs = 0;
    for (const uint64_t each : steps_of(*session, 14).graphs) graphs += each;
    if (nth >= 0)
      assert_int_equal(graphs, nth);
    else
      assert_in_range(graphs, 4, 14);
    const std::vector<float> logits = logits_of(*session);
    if (nth < 0) wanted = logits;
    assert_true(logits == wanted);
  }
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

// The first step asks for memory of the device's that is to begin with zeros, whichever of its launches is refused.
void a_step_that_was_refused_says_the_same_when_it_is_repeated(void**) {
  const Shape shape{.policy = "wave", .weights = DType::f32};
  std::vector<float> wanted;
  for (const int64_t nth : {-1, 0, 5}) {
    cuda_emulation::reset(test::seed());
    World device(cuda_backend(), shape);
    const auto session = device.session();
    session->prefill(prompt(300), {}, nullptr);
    session->decode(nullptr);  // the prompt's own token, which takes no step
    cuda_emulation::refuse_launch(nth);
    if (nth >= 0) assert_int_equal(status_of([&] { session->decode(nullptr); }), WI_E_MEMORY);
    const std::vector<float> logits = logits_of(*session);
    if (nth < 0) wanted = logits;
    assert_true(logits == wanted);
  }
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

// Two sessions that take turns, alone and in a batch, and one that grows past a segment: more kinds of steps than are
// kept.
void sessions_that_take_turns_say_what_they_say_alone(void**) {
  needs_padding_cleared();
  const Shape shape{.policy = "wave", .fast_share = 0.3f};
  const auto life = [&](bool allowed) {
    cuda_emulation::reset(test::seed());
    cuda_emulation::allow_capture(allowed);
    World device(cuda_backend(), shape);
    const auto one = device.session(), other = device.session();
    one->prefill(prompt(300), {}, nullptr);
    other->prefill(prompt(110, 1), {}, nullptr);
    const auto fork = one->fork();
    Session* const pair[] = {one.get(), other.get()};
    Session* const three[] = {fork.get(), other.get(), one.get()};
    Event events[3];
    std::vector<std::vector<float>> logits;
    for (int round = 0; round < few_or(12, 24); ++round) {
      if (round % 4 == 0) one->decode(nullptr);
      if (round % 4 == 1) other->decode(nullptr);
      if (round % 4 == 2) Session::decode_batch(pair, nullptr, events);
      if (round % 4 == 3) Session::decode_batch(three, nullptr, events);
      if (round % 6 == 5) logits.push_back(logits_of(*fork));
    }
    for (int i = 0; i < 70; ++i) other->decode(nullptr);  // seals a segment
    for (Session* each : three) logits.push_back(logits_of(*each));
    return std::pair(logits, cuda_emulation::graph_launches());
  };
  const auto [with, graphs] = life(true);
  const auto [without, none] = life(false);
  assert_true(with == without);
  assert_true(graphs > few_or(20u, 30u) && none == 0);
}

void a_graph_that_faults_loses_the_device_and_not_the_process(void**) {
  needs_padding_cleared();
  World device(cuda_backend(), {.policy = "wave"});
  const auto session = device.session();
  session->prefill(prompt(300), {}, nullptr);
  assert_int_equal(steps_of(*session, 10).graphs.back(), 1);
  cuda_emulation::fail_launch(7);
  assert_int_equal(status_of([&] { session->decode(nullptr), session->logits(nullptr); }), WI_E_DEVICE_LOST);
  assert_int_equal(status_of([&] { session->logits(nullptr); }), WI_E_DEVICE_LOST);
}

void graphs_go_with_their_queue(void**) {
  needs_padding_cleared();
  const int64_t before = cuda_emulation::graphs();
  {
    World device(cuda_backend(), {.policy = "full"});
    const auto session = device.session();
    session->prefill(prompt(100), {}, nullptr);
    steps_of(*session, 12);
    assert_true(cuda_emulation::graphs() > before);
  }
  assert_int_equal(cuda_emulation::graphs(), before);
}

// ---- a queue by itself

// Steps of one queue, each of which takes a number to the device, times three plus one some times, and back.
struct Tripling {
  Tripling() {
    DeviceError error;
    queue = cuda::device_table.open_queue(0, &error);
    there = static_cast<unsigned*>(cuda::device_table.allocate(0, sizeof(unsigned), &error));
  }
  ~Tripling() {
    cuda::device_table.close_queue(queue);
    cuda::device_table.free(0, there);
  }
  unsigned run(unsigned number, int times, bool fetches = false) {
    const DeviceTable& table = cuda::device_table;
    table.begin_step(queue);
    table.upload(queue, there, &number, sizeof number);
    for (int i = 0; i < times; ++i) {
      {
        const cuda::Asking asking(*queue);
        queue->note(cuda_test::triple_plus_one(queue->stream, there));
      }
      if (fetches && i == times / 2) table.fetch_after(queue);
    }
    unsigned out = 0;
    table.download(queue, &out, there, sizeof out);
    DeviceError error;
    assert_true(table.finish(queue, &error));
    return out;
  }
  static unsigned wanted(unsigned number, int times) {
    for (int i = 0; i < times; ++i) number = number * 3 + 1;
    return number;
  }
  DeviceQueue* queue;
  unsigned* there;
};

// What a graph copies is what is there when it is launched, not what was there when it was made.
void other_data_goes_through_the_same_graph(void**) {
  Tripling tripling;
  for (int round = 0; round < 12; ++round) {
    const unsigned first = static_cast<unsigned>(test::seed() % 7) + static_cast<unsigned>(round);
    const uint64_t before = cuda_emulation::graph_launches();
    assert_int_equal(tripling.run(first, 16), Tripling::wanted(first, 16));
    assert_int_equal(cuda_emulation::graph_launches() - before, round > 0);
  }
}

// What a step is asked for begins when it ends, and finds the rooms that it was asked for with.
void a_room_that_grows_within_a_step_keeps_what_works_on_it(void**) {
  Queue queue(std::make_shared<const Device>(*cuda_backend().device, 0));
  constexpr unsigned kFirst = 5;
  unsigned out[3] = {};
  const uint64_t before = queue.bytes().device;
  queue.begin_step();
  for (size_t i = 0; i < 3; ++i) {
    const cuda::Asking asking(*queue.get());
    auto* const number = reinterpret_cast<unsigned*>(queue.room(Queue::kLists, size_t{4096} << i));
    queue.upload(number, &kFirst, sizeof kFirst);
    queue.get()->note(cuda_test::triple_plus_one(queue.get()->stream, number));
    queue.download(out + i, number, sizeof *out);
  }
  assert_in_range(queue.bytes().device, before + 7 * 4096, UINT64_MAX);  // all three
  const uint64_t within = queue.bytes().device;
  queue.finish();
  for (const unsigned number : out) assert_int_equal(number, Tripling::wanted(kFirst, 1));
  assert_int_equal(queue.bytes().device, within - 3 * 4096);
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

void few_launches_are_worth_no_graph(void**) {
  Tripling tripling;
  for (int round = 0; round < 5; ++round) assert_int_equal(tripling.run(1, 3), Tripling::wanted(1, 3));
  assert_int_equal(cuda_emulation::graph_launches(), 0);
}

// Kinds of steps that take turns have a graph each, as long as there are few of them.
void steps_of_several_kinds_have_a_graph_each(void**) {
  for (const int kinds : {3, 9}) {
    Tripling tripling;
    const uint64_t before = cuda_emulation::graph_launches();
    for (int round = 0; round < 8 * kinds; ++round) {
      const int times = 16 + round % kinds;
      assert_int_equal(tripling.run(2, times), Tripling::wanted(2, times));
    }
    assert_int_equal(cuda_emulation::graph_launches() - before, kinds == 3 ? 7 * kinds : 0);
  }
}

// What waits for another stream is in no graph: all before it is begun, and all after it comes as it is asked for.
void a_step_that_fetches_goes_on_without(void**) {
  Tripling tripling;
  for (int round = 0; round < 5; ++round)
    assert_int_equal(tripling.run(3, 20, true), Tripling::wanted(3, 20));
  assert_int_equal(cuda_emulation::graph_launches(), 0);
}

// Where nothing can be pinned copies wait for the host, and a graph would hold other memory than is there later.
void no_pinned_memory_means_no_graphs(void**) {
  cuda_emulation::Machine machine;
  machine.pins = false;
  cuda_emulation::set_machine(machine);
  Tripling tripling;
  for (int round = 0; round < 5; ++round) assert_int_equal(tripling.run(4, 20), Tripling::wanted(4, 20));
  assert_int_equal(cuda_emulation::graph_launches(), 0);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test_setup(a_step_that_comes_again_is_one_call, reset),
      cmocka_unit_test_setup(lists_that_grow_from_layer_to_layer_are_written_where_they_are, reset),
      cmocka_unit_test_setup(calls_of_a_step_are_as_many_for_any_layers, reset),
      cmocka_unit_test_setup(another_layer_of_a_step_is_its_kernels_alone, reset),
      cmocka_unit_test_setup(a_layer_of_a_step_with_a_cache_is_its_kernels_alone, reset),
      cmocka_unit_test_setup(a_layer_under_full_selects_and_retrieves_nothing, reset),
      cmocka_unit_test_setup(a_layer_without_segments_selects_and_retrieves_nothing, reset),
      cmocka_unit_test_setup(full_says_the_same_without_being_asked, reset),
      cmocka_unit_test_setup(a_tail_that_gets_a_block_needs_no_other_graph, reset),
      cmocka_unit_test_setup(calls_of_a_step_are_as_many_for_any_sessions, reset),
      cmocka_unit_test_setup(refused_graphs_change_no_bit, reset),
      cmocka_unit_test_setup(a_graph_whose_launch_is_refused_changes_no_bit, reset),
      cmocka_unit_test_setup(a_step_that_was_refused_says_the_same_when_it_is_repeated, reset),
      cmocka_unit_test_setup(sessions_that_take_turns_say_what_they_say_alone, reset),
      cmocka_unit_test_setup(graphs_go_with_their_queue, reset),
      cmocka_unit_test_setup(other_data_goes_through_the_same_graph, reset),
      cmocka_unit_test_setup(a_room_that_grows_within_a_step_keeps_what_works_on_it, reset),
      cmocka_unit_test_setup(few_launches_are_worth_no_graph, reset),
      cmocka_unit_test_setup(steps_of_several_kinds_have_a_graph_each, reset),
      cmocka_unit_test_setup(a_step_that_fetches_goes_on_without, reset),
      cmocka_unit_test_setup(no_pinned_memory_means_no_graphs, reset),
      cmocka_unit_test_setup(a_graph_that_faults_loses_the_device_and_not_the_process, reset),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
