// Keys and values that the device's memory has no room for are in pinned memory of the host's: the same bits of every
// logit, within the budget, and a status where there is no more of that memory either.
#include <cuda_runtime.h>
#include <functional>
#include <future>
#include <span>
#include <vector>

#include "src/memory_plan.h"
#include "src/pipeline/pinned_past.h"
#include "tests/support/device_world.h"
#include "tests/support/fewer.h"
#include "tests/support/folder.h"

using namespace wi;
using namespace wi::test;

namespace {

PrefillParams chunks_of(int32_t tokens) {
  PrefillParams params;
  params.chunk_tokens = tokens;
  return params;
}

// What a host does, over a past of which some is sealed, and all logits that come of it.
std::vector<float> life(World& world) {
  std::vector<float> all;
  const auto add = [&](Session& session) {
    const std::vector<float> logits = logits_of(session);
    all.insert(all.end(), logits.begin(), logits.end());
  };
  const auto session = world.session();
  session->prefill(prompt(450), chunks_of(200), nullptr);
  add(*session);
  for (int i = 0; i < 3; ++i) session->accept(i, nullptr);
  add(*session);
  const auto fork = session->fork();
  fork->prefill(prompt(150, 1), chunks_of(64), nullptr);  // over segments that are pinned by now
  Session* const both[] = {session.get(), fork.get()};
  Event events[2];
  for (int i = 0; i < 2; ++i) Session::decode_batch(both, nullptr, events);
  add(*session);
  add(*fork);
  fork->truncate(300);  // within one
  add(*fork);
  fork->prefill(prompt(30, 2), {}, nullptr);
  add(*fork);
  return all;
}

void where_keys_and_values_are_changes_no_bit(void**) {
  const Shape shapes[] = {{"wave", DType::f16, DType::f16, 2},
                          {"wave", DType::f16, DType::f32, 1},
                          {"full", DType::f16, DType::bf16, 2}};
  for (const Shape& shape : std::span(shapes).first(few_or(1u, 3u))) {
    World fast(cuda_backend(), shape);
    const std::vector<float> wanted = life(fast);
    assert_int_equal(fast.runtime->buffer->stats().slow_bytes, 0);
    for (const float share : {0.01f, 0.5f}) {
      Shape of = shape;
      of.fast_share = share;
      World world(cuda_backend(), of);
      assert_true(life(world) == wanted);
      assert_true(world.runtime->buffer->pinned()->peak() > 0);
    }
    cuda_emulation::reset(seed());
  }
}

void a_session_says_what_of_it_is_where(void**) {
  World world(cuda_backend(), {.fast_share = 0.01f});
  const auto session = world.session();
  session->prefill(prompt(300), {}, nullptr);
  leave_the_device(world, *session);
  uint64_t sealed = 0;
  for (const auto& segment : session->sequence().segments()) sealed += segment->kv_bytes();
  assert_true(sealed > 0);
  assert_int_equal(session->stats().slow_bytes, sealed);
  assert_int_equal(world.runtime->buffer->stats().slow_bytes, sealed);
  assert_int_equal(session->stats().kv_bytes, session->sequence().bytes());
  // What the host keeps of indexes is not of the device's memory.
  assert_true(world.runtime->pool->used() < sealed);
}

// A budget for what must be in the device's memory, and not for all of it.
void a_session_outgrows_the_devices_budget(void**) {
  const std::vector<int32_t> ids = prompt(few_or(900u, 1500u));
  const Shape small{"wave", DType::f16, DType::f32, 2};
  World wide(cuda_backend(), small);
  const wi_memory_plan plan = plan_memory(*wide.runtime, *wide.model, wide.session_params, ids.size() + 10);
  const auto expected = wide.session();
  expected->prefill(ids, chunks_of(128), nullptr);
  const std::vector<float> wanted = logits_of(*expected);
  const uint64_t whole = wide.runtime->pool->peak();

  Shape of = small;
  of.budget_bytes = whole * 2 / 3;
  World world(cuda_backend(), of);
  const auto session = world.session();
  session->prefill(ids, chunks_of(128), nullptr);
  assert_true(logits_of(*session) == wanted);
  assert_true(answer(*session, 3) == answer(*expected, 3));
  std::printf("  %zu KB at most of %zu, %zu pinned; all of it would be %zu, planned were %zu\n",
              size_t{world.runtime->pool->peak() >> 10}, size_t{of.budget_bytes >> 10},
              size_t{session->stats().slow_bytes >> 10}, size_t{whole >> 10}, size_t{plan.fast_bytes >> 10});
  assert_true(world.runtime->pool->peak() <= of.budget_bytes);
  assert_true(session->stats().slow_bytes > 0);
}

// What has left the device does not come back, so that nobody has to make room for it.
void a_newcomer_takes_room_that_is_free_before_it_takes_others(void**) {
  const auto fast_bytes = [](const Session& session) {
    const wi_session_stats stats = session.stats();
    return stats.kv_bytes - stats.slow_bytes;
  };
  World small(cuda_backend());
  const auto alone = small.session();
  alone->prefill(prompt(300), {}, nullptr);
  const uint64_t whole = alone->stats().kv_bytes;

  World world(cuda_backend(), {.budget_bytes = 4 * whole});
  const auto old = world.session();
  old->prefill(prompt(1200), {}, nullptr);
  for (const auto& segment : old->sequence().segments()) segment->demote(*world.runtime->buffer);
  old->decode(nullptr);
  const uint64_t left = fast_bytes(*old);
  assert_true(old->stats().slow_bytes > 2 * whole);
  const auto newcomer = world.session();
  newcomer->prefill(prompt(600, 1), {}, nullptr);
  leave_the_device(world, *newcomer);
  std::printf("  %zu KB of %zu are used\n", size_t{world.runtime->pool->used() >> 10},
              size_t{4 * whole >> 10});
  assert_int_equal(newcomer->stats().slow_bytes, 0);
  assert_true(fast_bytes(*old) >= left);
}

// Another session's reading keeps what has left the device, and all other room is somebody else's.
void a_session_goes_on_when_the_budget_is_used_up(void**) {
  World device(cuda_backend()), whole(cuda_backend());
  const auto session = device.session(), wanted = whole.session();
  // No segment is in the making, and the last block has room.
  session->prefill(prompt(620), {}, nullptr);
  wanted->prefill(prompt(620), {}, nullptr);
  auto fork = session->fork();
  const WaveBuffer::Reading reading(device.runtime->buffer.get());
  HostPool& pages = *device.runtime->kv_pools.pages;
  const HostBuffer others =
      pages.allocate(device.runtime->pool->budget() - device.runtime->pool->used(), "others");
  for (const auto& segment : session->sequence().segments()) segment->demote(*device.runtime->buffer);
  assert_int_equal(fork->tokens().size(), 620);  // whose list is the session's
  fork.reset();                                  // or the tail's last block would be copied to be written to
  assert_true(answer(*session, 2) == answer(*wanted, 2));
  assert_true(logits_of(*session) == logits_of(*wanted));
  assert_true(session->stats().slow_bytes > 0);
}

// What a fork's step is looking at stays as it is; the list is its own again when that has ended.
void a_list_of_segments_stays_while_a_step_reads_it(void**) {
  World device(cuda_backend());
  const auto session = device.session();
  session->prefill(prompt(620), {}, nullptr);
  Sequence reads = session->sequence(), other = reads;
  DeviceViews::Reading reading;
  reads.refresh(&reading);
  const SegmentView* const list = reads.views_on_device(0, 0);
  for (const auto& segment : reads.segments()) segment->demote(*device.runtime->buffer);
  const auto copy_of_list = [&] {
    SegmentView view;
    device.runtime->kv_pools.pages->memory().copy(&view, list, sizeof view);
    return view;
  };
  const void* const before = copy_of_list().keys;
  other.refresh();
  assert_true(other.views_on_device(0, 0) != list);
  assert_ptr_equal(copy_of_list().keys, before);
  reading.end();
  reads.refresh(&reading);
  assert_ptr_equal(reads.views_on_device(0, 0), list);
  assert_ptr_equal(copy_of_list().keys, reads.segments()[0]->keys(0, 0));
}

// Where there is no more pinned memory to be had, by the limit or by the system, the call says so and the session is
// as it was.
void the_slow_tier_has_an_end_too(void**) {
  World limited(cuda_backend(), {.fast_share = 0.01f, .slow_bytes = 100'000});
  const auto session = limited.session();
  session->prefill(prompt(40), {}, nullptr);
  const std::vector<float> before = logits_of(*session);
  assert_int_equal(status_of([&] { session->prefill(prompt(1500, 1), chunks_of(128), nullptr); }),
                   WI_E_BUDGET);
  assert_true(limited.runtime->buffer->stats().slow_bytes <= 100'000);
  assert_int_equal(session->stats().tokens, 40);
  assert_true(logits_of(*session) == before);
}

// Each allocation on the device or of pinned memory refused, from one on.
void refused_pinning_is_a_status_and_the_next_call_works(void**) {
  const Shape shape{.fast_share = 0.01f};
  World device(cuda_backend(), shape), whole(cuda_backend());
  const auto session = device.session(), wanted = whole.session();
  wanted->prefill(prompt(300, 5), {}, nullptr);
  const std::vector<int32_t> tokens = answer(*wanted, 2);
  int refused = 0;
  for (int64_t nth = 0;; ++nth) {
    std::vector<int32_t> got;
    cuda_emulation::fail_allocations_from(nth);
    const wi_status status = status_of([&] {
      session->prefill(prompt(300, 5), {}, nullptr);
      got = answer(*session, 2);
    });
    cuda_emulation::fail_allocations_from(-1);
    if (status == WI_OK) {
      assert_true(got == tokens);
      break;
    }
    assert_int_equal(status, WI_E_MEMORY);
    ++refused;
    session->truncate(0);
  }
  assert_true(refused > 5);
}

// Where the system pins nothing, copies go through memory as it comes, the same tokens come out, and somebody is told
// once. The slow tier is that memory too where the device reads it; otherwise the call says what there is no more of.
void refused_pinning_is_told_and_steps_go_on(void**) {
  World whole(cuda_backend());
  const auto wanted = whole.session();
  wanted->prefill(prompt(300), {}, nullptr);
  const std::vector<int32_t> tokens = answer(*wanted, 4);
  const std::vector<float> logits = logits_of(*wanted);
  for (const bool reads_pageable : {false, true}) {
    cuda_emulation::reset(seed());
    cuda_emulation::set_machine({.reads_pageable = reads_pageable, .pins = false});
    Shape fast, slow{.fast_share = 0.01f};
    std::vector<std::string> told;
    fast.log = slow.log = [](void* user, int32_t level, const char* message) {
      if (level == WI_LOG_WARNING) static_cast<std::vector<std::string>*>(user)->emplace_back(message);
    };
    fast.log_user = slow.log_user = &told;
    {
      World world(cuda_backend(), fast);
      const auto session = world.session();
      session->prefill(prompt(300), {}, nullptr);
      assert_true(answer(*session, 4) == tokens);
      assert_true(logits_of(*session) == logits);
      assert_true(world.runtime->device->refused_pins() > 0);
    }
    assert_int_equal(told.size(), 1);
    assert_non_null(std::strstr(told[0].c_str(), "pinning"));
    World world(cuda_backend(), slow);
    const auto session = world.session();
    if (reads_pageable) {
      session->prefill(prompt(300), {}, nullptr);
      assert_true(answer(*session, 4) == tokens);
      leave_the_device(world, *session);
      assert_true(session->stats().slow_bytes > 0);
      continue;
    }
    session->prefill(prompt(40), {}, nullptr);
    std::string words;
    try {
      session->prefill(prompt(1500, 1), chunks_of(128), nullptr);
    } catch (const Error& error) {
      assert_int_equal(error.code(), WI_E_MEMORY);
      words = error.what();
    }
    std::printf("  %s\n", words.c_str());
    assert_non_null(std::strstr(words.c_str(), "spill_bytes"));
    assert_int_equal(session->stats().tokens, 40);
    assert_true(answer(*session, 2).size() == 2);
  }
}

void pinned_sessions_are_saved_and_loaded_anywhere(void**) {
  const Folder folder;
  const std::string path = folder.path + "/session";
  const Shape shape{.fast_share = 0.01f};
  World pinned(cuda_backend(), shape), fast(cuda_backend()), cpu(cpu_backend());
  const auto session = pinned.session();
  session->prefill(prompt(400), {}, nullptr);
  leave_the_device(pinned, *session);
  assert_true(session->stats().slow_bytes > 0);
  session->save(path, nullptr);
  const auto as_saved = [](const SessionParams& saved) { return saved; };
  const int32_t next = session->decode(nullptr).token;
  const std::vector<float> wanted = logits_of(*session);
  for (World* world : {&pinned, &fast, &cpu}) {
    const auto loaded = Session::load(world->runtime, world->model, path, as_saved, nullptr);
    loaded->accept(next, nullptr);
    if (world == &cpu)
      assert_alike(logits_of(*loaded), wanted, DType::f16);
    else
      assert_true(logits_of(*loaded) == wanted);
  }
}

// A past of several parts, each fetched while the one before it is attended to, whatever order streams run in.
void a_pinned_past_is_attended_to_part_by_part(void**) {
  constexpr int64_t kPart = kChunkKeyStep;
  for (uint64_t salt = 0; salt < few_or(1u, 2u); ++salt) {
    cuda_emulation::reset(seed() + salt);
    World world(cuda_backend(), {"full", DType::f16, DType::f16, 2});
    const auto session = world.session();
    session->prefill(prompt(1100, salt), {}, nullptr);
    session->logits(nullptr);
    Sequence sequence = session->sequence();
    for (size_t i = 0; i + 1 < sequence.segments().size(); ++i)
      sequence.segments()[i]->demote(*world.runtime->buffer);
    sequence.refresh();
    assert_true(sequence.pinned_segments() > 1);

    const KvShape& shape = sequence.shape();
    const auto heads = static_cast<size_t>(shape.kv_heads);
    const size_t most = static_cast<size_t>(sequence.max_runs());
    const int64_t tokens = sequence.tokens(), rows = 40, group = 2;
    const size_t count = static_cast<size_t>(rows * shape.kv_heads * group * shape.head_dim);
    std::vector<float> queries(count);
    for (size_t i = 0; i < count; ++i) queries[i] = static_cast<float>(i * 7919 % 2001) * 1e-3f - 1;

    Queue queue(world.runtime->device);
    Stream stream;
    stream.queue = queue.get();
    // queries, out, state
    auto* const there = reinterpret_cast<float*>(queue.room(Queue::kActivations, 3 * count * sizeof(float)));
    std::vector<float> out[2];
    for (const bool in_parts : {false, true}) {
      queue.upload(there, queries.data(), count * sizeof(float));
      AttendChunkArgs args{};
      args.queries = there;
      args.rows = rows;
      args.kv_heads = shape.kv_heads;
      args.group = static_cast<int32_t>(group);
      args.head_dim = shape.head_dim;
      args.kv = shape.dtype;
      args.scale = 0.2f;
      args.out = there + count;
      args.precision = Precision::f32;
      args.state = there + 2 * count;
      PinnedPast past;
      past.start();
      std::vector<KvRun> runs(heads * most);
      std::vector<const KvRun*> of_head(heads);
      std::vector<int32_t> counts(heads);
      const auto part_from = [&](int64_t first) {
        return first >= tokens ? PastPart{}
                               : PastPart{1, first, in_parts ? std::min(first + kPart, tokens) : tokens};
      };
      for (PastPart part = part_from(0); part.layer >= 0; part = part_from(part.end)) {
        for (size_t head = 0; head < heads; ++head) {
          of_head[head] = runs.data() + head * most;
          counts[head] = sequence.runs(part.layer, static_cast<int32_t>(head), part.first, part.end,
                                       runs.data() + head * most);
        }
        // Whole and in place: kernels reach pinned memory.
        if (in_parts) past.open(queue, sequence, part, part_from(part.end), runs.data(), most);
        args.runs = of_head.data();
        args.run_count = counts.data();
        args.first_key = part.first;
        args.keys_after = tokens - part.end;
        world.runtime->backend.attend_chunk(stream, args);
      }
      out[in_parts].resize(count);
      queue.download(out[in_parts].data(), there + count, count * sizeof(float));
      queue.finish();
    }
    assert_true(out[0] == out[1]);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test_setup(where_keys_and_values_are_changes_no_bit, reset),
      cmocka_unit_test_setup(a_session_says_what_of_it_is_where, reset),
      cmocka_unit_test_setup(a_session_outgrows_the_devices_budget, reset),
      cmocka_unit_test_setup(a_newcomer_takes_room_that_is_free_before_it_takes_others, reset),
      cmocka_unit_test_setup(a_session_goes_on_when_the_budget_is_used_up, reset),
      cmocka_unit_test_setup(a_list_of_segments_stays_while_a_step_reads_it, reset),
      cmocka_unit_test_setup(the_slow_tier_has_an_end_too, reset),
      cmocka_unit_test_setup(refused_pinning_is_a_status_and_the_next_call_works, reset),
      cmocka_unit_test_setup(refused_pinning_is_told_and_steps_go_on, reset),
      cmocka_unit_test_setup(pinned_sessions_are_saved_and_loaded_anywhere, reset),
      cmocka_unit_test_setup(a_pinned_past_is_attended_to_part_by_part, reset),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
