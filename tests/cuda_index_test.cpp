// A device makes the indexes of its prompts' segments: they are those that the host makes, however the prompt came and
// however many planes the device has room for at a time.
#include <algorithm>
#include <cuda_runtime.h>

#include "src/memory_plan.h"
#include "src/pipeline/building.h"
#include "src/pipeline/device_index.h"
#include "src/workspace.h"
#include "tests/cuda_emulation/traffic.h"
#include "tests/support/device_world.h"
#include "tests/support/fewer.h"

using namespace wi;
using namespace wi::test;

namespace {

// The same device, whose planes are counted that it indexes, call by call too.
int64_t counted = 0;
std::vector<int32_t> calls;
void (*index_planes)(const Stream&, const IndexArgs*, int32_t, void*, IndexResult*) = nullptr;
void index_and_count(const Stream& stream, const IndexArgs* planes, int32_t count, void* workspace,
                     IndexResult* results) {
  counted += count;
  calls.push_back(count);
  index_planes(stream, planes, count, workspace, results);
}
const Backend& backend_that_counts() {
  static BackendOnDevice both(cuda::backend());
  Policy& wave = *const_cast<Policy*>(find_policy(both.backend, "wave"));
  if (wave.index_planes != index_and_count) index_planes = std::exchange(wave.index_planes, index_and_count);
  return both.backend;
}

// The same, with the host to make all indexes.
const Backend& backend_that_leaves_indexes_to_the_host() {
  static BackendOnDevice both(cuda::backend());
  const_cast<Policy*>(find_policy(both.backend, "wave"))->index_planes = nullptr;
  return both.backend;
}

void assert_same_segment(const Segment& a, const Segment& b) {
  assert_int_equal(a.first_position(), b.first_position());
  assert_int_equal(a.tokens(), b.tokens());
  assert_int_equal(a.index().bytes(), b.index().bytes());
  assert_memory_equal(a.index().data(), b.index().data(), a.index().bytes());
  std::vector<std::byte> kv[2];
  for (const Segment* one : {&a, &b}) {
    std::vector<std::byte>& bytes = kv[one == &b];
    bytes.resize(one->kv_bytes());
    one->copy_out(0, bytes.data(), bytes.size());
  }
  assert_true(kv[0] == kv[1]);
  for (int32_t layer = 0; layer < a.shape().layers; ++layer)
    for (int32_t head = 0; head < a.shape().kv_heads; ++head)
      assert_memory_equal(a.places(layer, head), b.places(layer, head),
                          static_cast<size_t>(a.tokens()) * sizeof(int32_t));
}

// In pieces, so that segments are sealed again as parts of longer ones; in device and in pinned memory.
void a_device_makes_the_indexes_that_the_host_makes(void**) {
  for (const float share : {0.0f, 0.3f}) {
    cuda_emulation::reset(test::seed());
    const Shape shape{.fast_share = share};
    World device(backend_that_counts(), shape), host(backend_that_leaves_indexes_to_the_host(), shape);
    const auto found = device.session(), expected = host.session();
    counted = 0;
    int64_t sealed = 0;
    for (const size_t count : {110, 90, 150, 60}) {
      for (Session* session : {found.get(), expected.get()})
        session->prefill(prompt(count, count), {}, nullptr);
      sealed += !found->sequence().segments().empty();
    }
    assert_true(sealed > 1);
    assert_true(counted >= sealed * device.model->config.layers * device.model->config.kv_heads);
    const auto made = found->sequence().segments(), wanted = expected->sequence().segments();
    assert_true(wanted.size() > 1);
    assert_int_equal(made.size(), wanted.size());
    for (size_t i = 0; i < made.size(); ++i) assert_same_segment(*made[i], *wanted[i]);
    assert_string_equal(cuda_emulation::report().c_str(), "");
  }
}

void planes_come_in_as_many_parts_as_there_is_room_for(void**) {
  cuda_emulation::reset(test::seed());
  World world(cuda_backend());
  world.session_params.policy_params.local_window = 4096;
  const auto session = world.session();
  session->prefill(prompt(200), {}, nullptr);
  const Sequence& sequence = session->sequence();
  assert_int_equal(sequence.segments().size(), 0);
  const PolicyParams& params = world.session_params.policy_params;
  const Policy& policy = *world.session_params.policy;
  const SegmentSpan span{kSinkTokens, 128};
  const auto workspace = world.runtime->workspace();
  const size_t plane = policy.index_workspace(params, span.tokens, sequence.shape().head_dim, DType::f16);
  std::unique_ptr<Segment> whole;
  for (const size_t most : {kIndexingBytes, 4 * plane, 2 * plane, size_t{1}}) {
    auto segment = std::make_unique<Segment>(sequence.pools(), sequence.shape(), span.first, span.tokens);
    world.runtime->workers.run(nullptr, [&](const Stream& stream) {
      SealContext context{world.runtime->backend, policy, params, stream, {}};
      IndexRoom room(sequence.pools(), sequence.shape(), policy, params, span.tokens);
      assert_false(index_on_device(sequence, span, context, *segment, room, most));  // there is no queue
      context.queue = workspace->queue();
      assert_true(index_on_device(sequence, span, context, *segment, room, most));
      room.attach_to(*segment);
    });
    if (whole) assert_same_segment(*segment, *whole);
    if (!whole) whole = std::move(segment);
  }
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

// A segment of so many tokens of the session's, which has sealed nothing, as its device indexes it.
struct MadeByDevice {
  MadeByDevice(World& world, Session& session, int32_t tokens, size_t most_bytes)
      : sequence(session.sequence()),
        segment(sequence.pools(), sequence.shape(), kSinkTokens, tokens),
        room(sequence.pools(), sequence.shape(), *world.session_params.policy,
             world.session_params.policy_params, tokens) {
    const auto workspace = world.runtime->workspace();
    world.runtime->workers.run(nullptr, [&](const Stream& stream) {
      SealContext context{world.runtime->backend,
                          *world.session_params.policy,
                          world.session_params.policy_params,
                          stream,
                          {}};
      context.queue = workspace->queue();
      before = cuda_emulation::traffic();
      assert_true(index_on_device(sequence, {kSinkTokens, tokens}, context, segment, room, most_bytes));
      made = cuda_emulation::traffic();
      room.attach_to(segment);
      attached = cuda_emulation::traffic();
    });
  }
  const Sequence& sequence;
  Segment segment;
  IndexRoom room;
  cuda_emulation::Traffic before, made, attached;
};

// An index went to the host plane by plane, and from there back to the device that had made it.
void an_index_crosses_the_bus_once(void**) {
  cuda_emulation::reset(test::seed());
  static_cast<void>(cuda_emulation::traffic());  // where nobody counts the test ends here
  World world(cuda_backend());
  world.session_params.policy_params.local_window = 4096;
  const auto session = world.session();
  session->prefill(prompt(400), {}, nullptr);
  const MadeByDevice of(world, *session, 256, kIndexingBytes);
  const uint64_t index = of.segment.index().bytes(),
                 places = uint64_t{256} * sizeof(int32_t) * of.segment.heads().size();
  uint64_t partitions = 0;
  for (const Segment::HeadIndex& head : of.segment.heads())
    partitions += static_cast<uint64_t>(head.partitions);
  const uint64_t order = Segment::order_bytes(of.segment.shape(), 256, partitions) - places;
  assert_true(index > 4 * order);
  assert_int_equal(of.attached.to_host - of.made.to_host, index + places);
  assert_int_equal(of.attached.to_device - of.made.to_device, order);  // where partitions begin, no frames
  assert_int_equal(of.attached.within - of.made.within, index);
  // Before that: lists go there, and what comes back is how large each plane's index is.
  assert_int_equal(of.made.to_host - of.before.to_host, of.segment.heads().size() * sizeof(IndexResult));
}

// Each part was waited for, and the device had nothing to do until the host had copied what came of it.
void however_many_parts_planes_come_in_the_host_waits_no_longer(void**) {
  cuda_emulation::reset(test::seed());
  static_cast<void>(cuda_emulation::traffic());  // where nobody counts the test ends here
  World world(cuda_backend(), {.layers = 6});
  world.session_params.policy_params.local_window = 4096;
  const auto session = world.session();
  session->prefill(prompt(200), {}, nullptr);
  const MadeByDevice in_one(world, *session, 128, kIndexingBytes), one_by_one(world, *session, 128, 1);
  assert_true(in_one.segment.heads().size() > 8);
  assert_int_equal(one_by_one.made.waits - one_by_one.before.waits, in_one.made.waits - in_one.before.waits);
  assert_same_segment(in_one.segment, one_by_one.segment);
}

// A layer's planes are indexed beside the layers after it, each layer's as soon as its keys and values are written: of
// the first segment that a chunk completes. The host waits for none of that but at the chunk's end.
void layers_are_indexed_beside_those_that_follow(void**) {
  static_cast<void>(cuda_emulation::traffic());  // as above
  uint64_t waits[2] = {};
  for (const int32_t layers : {3, 6}) {
    cuda_emulation::reset(test::seed());
    const Shape shape{.layers = layers};
    World device(backend_that_counts(), shape), host(backend_that_leaves_indexes_to_the_host(), shape);
    const auto found = device.session(), expected = host.session();
    for (const int64_t chunk : {100, 132}) {  // that end within segments, and where one does
      for (Session* session : {found.get(), expected.get()}) {
        PrefillParams params;
        params.chunk_tokens = chunk;
        const uint64_t before = cuda_emulation::traffic().waits;
        calls.clear();
        session->truncate(0);
        session->prefill(prompt(300), params, nullptr);
        if (session == found.get()) {
          waits[layers == 6] = cuda_emulation::traffic().waits - before;
          assert_true(std::count(calls.begin(), calls.end(), device.model->config.kv_heads) >= layers);
        }
      }
      const auto made = found->sequence().segments(), wanted = expected->sequence().segments();
      assert_int_equal(wanted.size(), 2);
      assert_int_equal(made.size(), wanted.size());
      for (size_t i = 0; i < made.size(); ++i) assert_same_segment(*made[i], *wanted[i]);
    }
    assert_string_equal(cuda_emulation::report().c_str(), "");
  }
  assert_int_equal(waits[0], waits[1]);
}

// What is made ahead is counted as what is made when it is due.
void what_is_made_ahead_is_within_the_plan(void**) {
  for (const size_t count : {110, 300}) {
    for (const int64_t chunk : {0, 64, 132}) {
      cuda_emulation::reset(test::seed());
      World world(backend_that_counts());
      PrefillParams params;
      params.chunk_tokens = chunk;
      calls.clear();
      world.session()->prefill(prompt(count), params, nullptr);
      const wi_memory_plan plan =
          plan_memory(*world.runtime, *world.model, world.session_params, static_cast<uint64_t>(count));
      assert_true(world.runtime->pool->peak() <= plan.kv_bytes + plan.index_bytes + plan.sealing_bytes);
      assert_true(world.runtime->scratch_bytes() <= plan.scratch_bytes);
      assert_false(calls.empty());
    }
  }
}

// Whatever is refused of it, and whenever: the call succeeds, or changes nothing.
void a_launch_that_is_refused_changes_no_session(void**) {
  cuda_emulation::reset(test::seed());
  World world(backend_that_counts());
  const auto expected = world.session();
  expected->prefill(prompt(40), {}, nullptr);
  counted = 0;
  const uint64_t before = cuda_emulation::api_calls();
  expected->prefill(prompt(160, 1), {}, nullptr);
  const uint64_t most = (cuda_emulation::api_calls() - before) / cuda_emulation::kCallsOfLaunch;
  const int64_t usual = counted;
  const std::vector<float> logits = logits_of(*expected);
  const auto segments = expected->sequence().segments();
  assert_true(!segments.empty());
  int refused = 0, made_when_due = 0;
  for (uint64_t nth = 0; nth < most; nth += few_or<uint64_t>(60, 24)) {
    const auto session = world.session();
    session->prefill(prompt(40), {}, nullptr);
    counted = 0;
    cuda_emulation::refuse_launch(static_cast<int64_t>(nth));
    const wi_status status = status_of([&] { session->prefill(prompt(160, 1), {}, nullptr); });
    cuda_emulation::refuse_launch(-1);
    if (status != WI_OK) {
      ++refused;
      assert_int_equal(status, WI_E_MEMORY);
      assert_int_equal(session->stats().tokens, 40);
      assert_int_equal(session->sequence().segments().size(), 0);
      session->prefill(prompt(160, 1), {}, nullptr);
    } else {
      made_when_due += counted > usual;
    }
    assert_true(logits_of(*session) == logits);
    const auto made = session->sequence().segments();
    assert_int_equal(made.size(), segments.size());
    for (size_t i = 0; i < made.size(); ++i) assert_same_segment(*made[i], *segments[i]);
  }
  std::printf("of %llu launches: refused %d, indexed when it was due %d\n",
              static_cast<unsigned long long>(most), refused, made_when_due);
  assert_true(refused > 0 && made_when_due > 0);
}

// Likewise of a call that is given up: while layers are computed, or while their indexes are waited for.
void a_chunk_that_is_given_up_leaves_nothing_of_its_segment(void**) {
  struct GivenUp final : Breaks {
    explicit GivenUp(int at_in) : at(at_in) {}
    bool due() override { return true; }
    void take() override {
      if (++times == at) throw_error(WI_E_CANCELLED, "enough");
    }
    const int at;
    int times = 0;
  };
  cuda_emulation::reset(test::seed());
  World world(cuda_backend());
  const auto expected = world.session();
  expected->prefill(prompt(40), {}, nullptr);
  expected->prefill(prompt(160, 1), {}, nullptr);
  const std::vector<float> logits = logits_of(*expected);
  const auto segments = expected->sequence().segments();
  int given_up = 0;
  for (int at = 1;; at += at) {
    const auto session = world.session();
    session->prefill(prompt(40), {}, nullptr);
    const uint64_t used = world.runtime->pool->used();
    GivenUp breaks(at);
    PrefillParams params;
    params.breaks = &breaks;
    const wi_status status = status_of([&] { session->prefill(prompt(160, 1), params, nullptr); });
    if (status == WI_OK) break;
    ++given_up;
    assert_int_equal(status, WI_E_CANCELLED);
    assert_int_equal(session->stats().tokens, 40);
    assert_int_equal(world.runtime->pool->used(), used);
    session->prefill(prompt(160, 1), {}, nullptr);
    assert_true(logits_of(*session) == logits);
    const auto made = session->sequence().segments();
    assert_int_equal(made.size(), segments.size());
    for (size_t i = 0; i < made.size(); ++i) assert_same_segment(*made[i], *segments[i]);
  }
  assert_true(given_up > 2);
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

void a_fault_beside_a_chunk_loses_the_device_and_no_token(void**) {
  for (int64_t nth = 1; nth < 130; nth += few_or(60, 30)) {
    cuda_emulation::reset(test::seed());
    World world(cuda_backend());
    const auto session = world.session();
    session->prefill(prompt(40), {}, nullptr);
    cuda_emulation::fail_launch(nth);
    assert_int_equal(status_of([&] { session->prefill(prompt(160, 1), {}, nullptr); }), WI_E_DEVICE_LOST);
    assert_int_equal(session->stats().tokens, 40);
    if (!cuda_emulation::kForgetsFaults) return;
  }
  cuda_emulation::reset(test::seed());
}

// And nothing has failed: with room it is done.
void a_device_without_room_leaves_indexes_to_the_host(void**) {
  cuda_emulation::reset(test::seed());
  World device(cuda_backend());
  const auto found = device.session();
  found->prefill(prompt(100), {}, nullptr);
  const SegmentSpan span{kSinkTokens, 64};
  Queue queue(device.runtime->device);  // that has no room yet
  const PolicyParams& params = device.session_params.policy_params;
  const Policy& policy = *device.session_params.policy;
  const Sequence& sequence = found->sequence();
  Segment segment(sequence.pools(), sequence.shape(), span.first, span.tokens);
  device.runtime->workers.run(nullptr, [&](const Stream& stream) {
    SealContext context{device.runtime->backend, policy, params, stream, {}};
    context.queue = &queue;
    IndexRoom room(sequence.pools(), sequence.shape(), policy, params, span.tokens);
    cuda_emulation::fail_allocations_from(0);
    const bool done = index_on_device(sequence, span, context, segment, room, size_t{1} << 30);
    cuda_emulation::fail_allocations_from(-1);
    assert_false(done);
    assert_true(index_on_device(sequence, span, context, segment, room));
  });
}

// Beside decode steps the device may have room later; what it had none for by the last step the host makes.
void a_segment_in_the_making_needs_no_room_of_the_device(void**) {
  cuda_emulation::reset(test::seed());
  World world(cuda_backend());
  world.session_params.policy_params.local_window = 4096;
  const auto session = world.session();
  session->prefill(prompt(200), {}, nullptr);
  const Sequence& sequence = session->sequence();
  const SegmentSpan span{kSinkTokens, 128};
  std::shared_ptr<const Segment> made[3];
  const int64_t steps = 32;
  for (const int refused : {0, 1, 2}) {  // never, in the first half of the steps, always
    Queue queue(world.runtime->device);
    Building building(sequence, span, world.runtime->backend, *world.session_params.policy,
                      world.session_params.policy_params, 2, true);
    world.runtime->workers.run(nullptr, [&](const Stream& stream) {
      for (int64_t left = steps; left > 0; --left) {
        if (refused == 2 || (refused == 1 && left > steps / 2)) cuda_emulation::fail_allocations_from(0);
        building.advance(stream, &queue, left);
        cuda_emulation::fail_allocations_from(-1);
      }
      made[refused] = building.finish(stream, &queue);
    });
  }
  for (const int refused : {1, 2}) assert_same_segment(*made[refused], *made[0]);

  // Another caller's queue has the last steps, and no room: what is made stays as it is.
  Queue first(world.runtime->device), last(world.runtime->device);
  Building building(sequence, span, world.runtime->backend, *world.session_params.policy,
                    world.session_params.policy_params, 2, true);
  world.runtime->workers.run(nullptr, [&](const Stream& stream) {
    for (int64_t left = steps; left > steps * 3 / 4; --left) building.advance(stream, &first, left);
    cuda_emulation::fail_allocations_from(0);
    building.advance(stream, &last, 1);
    cuda_emulation::fail_allocations_from(-1);
    made[1] = building.finish(stream, &last);
  });
  assert_same_segment(*made[1], *made[0]);
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(a_device_makes_the_indexes_that_the_host_makes),
                              cmocka_unit_test(planes_come_in_as_many_parts_as_there_is_room_for),
                              cmocka_unit_test(an_index_crosses_the_bus_once),
                              cmocka_unit_test(however_many_parts_planes_come_in_the_host_waits_no_longer),
                              cmocka_unit_test(layers_are_indexed_beside_those_that_follow),
                              cmocka_unit_test(what_is_made_ahead_is_within_the_plan),
                              cmocka_unit_test(a_launch_that_is_refused_changes_no_session),
                              cmocka_unit_test(a_chunk_that_is_given_up_leaves_nothing_of_its_segment),
                              cmocka_unit_test(a_device_without_room_leaves_indexes_to_the_host),
                              cmocka_unit_test(a_segment_in_the_making_needs_no_room_of_the_device),
                              // Last: a device is lost for good.
                              cmocka_unit_test(a_fault_beside_a_chunk_loses_the_device_and_no_token)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
