// A device makes the indexes of its prompts' segments: they are those that the host makes, however the prompt came and
// however many planes the device has room for at a time.
#include <cuda_runtime.h>

#include "src/pipeline/building.h"
#include "src/pipeline/device_index.h"
#include "src/workspace.h"
#include "tests/cuda_emulation/traffic.h"
#include "tests/support/device_world.h"

using namespace wi;
using namespace wi::test;

namespace {

// The same device, whose planes are counted that it indexes.
int64_t counted = 0;
void (*index_planes)(const Stream&, const IndexArgs*, int32_t, void*, IndexResult*) = nullptr;
void index_and_count(const Stream& stream, const IndexArgs* planes, int32_t count, void* workspace,
                     IndexResult* results) {
  counted += count;
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
  World world(cuda_backend(), {.layers = 6});
  world.session_params.policy_params.local_window = 4096;
  const auto session = world.session();
  session->prefill(prompt(200), {}, nullptr);
  const MadeByDevice in_one(world, *session, 128, kIndexingBytes), one_by_one(world, *session, 128, 1);
  assert_true(in_one.segment.heads().size() > 8);
  assert_int_equal(one_by_one.made.waits - one_by_one.before.waits, in_one.made.waits - in_one.before.waits);
  assert_same_segment(in_one.segment, one_by_one.segment);
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
                              cmocka_unit_test(a_device_without_room_leaves_indexes_to_the_host),
                              cmocka_unit_test(a_segment_in_the_making_needs_no_room_of_the_device)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
