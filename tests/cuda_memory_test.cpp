// What the CUDA backend asks of the runtime for memory, by the emulation's count of calls: pinned memory ahead of its
// use and on the device's node, few copies for much that is sealed, and what the host has of its own - a context that it
// has chosen, a stream that it captures - left alone.
#include <cuda_runtime.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include "src/memory/on_node.h"
#include "src/memory/pinned_memory.h"
#include "tests/cuda_emulation/tripling.h"
#include "tests/support/device_world.h"

using namespace wi;
using namespace wi::test;

namespace {

constexpr uint64_t kMega = uint64_t{1} << 20;

std::shared_ptr<const Device> device() { return std::make_shared<const Device>(*cuda_backend().device, 0); }

// Until the thread that pins ahead has called so often.
void wait_for_pins(uint64_t count) {
  for (int i = 0; i < 10'000 && cuda_emulation::pins() < count; ++i) usleep(1'000);
  assert_int_equal(cuda_emulation::pins(), count);
  usleep(20'000);  // it may go on
  assert_int_equal(cuda_emulation::pins(), count);
}

// A segment of 1 GB takes a good part of a second to pin: whoever wants the next finds it.
void the_next_piece_is_pinned_before_it_is_wanted(void**) {
  PinnedMemory memory(device());
  std::vector<std::byte*> pieces;
  memory.expect(4 * kMega);
  wait_for_pins(1);
  for (uint64_t i = 0; i < 4; ++i) {
    pieces.push_back(memory.allocate(4 * kMega, HostPages::huge));  // the one that waits
    wait_for_pins(2 + i);                                           // and there is another
  }
  const uint64_t before = cuda_emulation::pins();
  std::byte* const small = memory.allocate(4096, HostPages::huge);
  wait_for_pins(before + 1);  // none ahead
  memory.free(small, 4096);
  for (std::byte* piece : pieces) memory.free(piece, 4 * kMega);
  for (std::byte*& piece : pieces)
    piece = memory.allocate(4 * kMega - 4096, HostPages::huge);  // those, if a bit large
  wait_for_pins(before + 1);
  for (std::byte* piece : pieces) memory.free(piece, 4 * kMega - 4096);
}

void what_is_pinned_ahead_is_within_the_limit(void**) {
  PinnedMemory memory(device(), {.most_bytes = 9 * kMega});
  std::byte* const first = memory.allocate(4 * kMega, HostPages::huge);
  wait_for_pins(2);
  std::byte* const second = memory.allocate(4 * kMega, HostPages::huge);
  wait_for_pins(2);  // a third would be too much
  memory.free(first, 4 * kMega);
  std::byte* const other = memory.allocate(5 * kMega, HostPages::huge);  // what waits makes room
  wait_for_pins(3);
  memory.free(second, 4 * kMega);
  memory.free(other, 5 * kMega);
}

void pinned_memory_is_of_the_devices_node(void**) {
  DeviceDescription description;
  cuda_backend().device->describe(0, false, &description);
  assert_string_equal(description.bus, "0000:3B:00.0");
  {
    const OnNode on(0);
    int policy = -1;
    if (syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0) != 0 || policy != MPOL_PREFERRED) {
      std::printf("skipped: the system lets nobody choose a node\n");
      skip();
    }
  }
  PinnedMemory here(device(), {.node = 0}), anywhere(device());
  here.free(here.allocate(4096, HostPages::huge), 4096);
  assert_int_equal(cuda_emulation::last_pin_node(), 0);
  anywhere.free(anywhere.allocate(4096, HostPages::huge), 4096);
  assert_int_equal(cuda_emulation::last_pin_node(), -1);
}

// What there is to be gathered: `count` pieces of so many bytes, with a gap behind each.
struct Pieces {
  Pieces(size_t count, size_t bytes) {
    DeviceError error;
    const size_t stride = bytes + 16 - bytes % 16 + 16;
    std::vector<std::byte> all(count * stride);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::byte>(i * 2654435761u >> 24);
    there = static_cast<std::byte*>(cuda::device_table.allocate(0, all.size(), &error));
    const DeviceCopy copy{there, all.data(), all.size()};
    assert_true(cuda::device_table.copy(0, &copy, 1, &error));
    for (size_t i = 0; i < count; ++i) {
      list.push_back({there + i * stride, bytes});
      wanted.insert(wanted.end(), all.begin() + static_cast<std::ptrdiff_t>(i * stride),
                    all.begin() + static_cast<std::ptrdiff_t>(i * stride + bytes));
    }
  }
  ~Pieces() { cuda::device_table.free(0, there); }
  // Returns the calls to the runtime.
  uint64_t gather() const {
    DeviceError error;
    std::vector<std::byte> out(wanted.size());
    const uint64_t before = cuda_emulation::api_calls();
    assert_true(cuda::device_table.gather(0, list.data(), list.size(), out.data(), &error));
    const uint64_t calls = cuda_emulation::api_calls() - before;
    assert_true(out == wanted);
    assert_string_equal(cuda_emulation::report().c_str(), "");
    return calls;
  }
  std::byte* there;
  std::vector<DevicePiece> list;
  std::vector<std::byte> wanted;
};

void pieces_come_together_whatever_their_size(void**) {
  const size_t cases[][2] = {{3, 2 * kMega}, {2, 5 * kMega}, {5000, 16}, {7, 33}, {1, 4096}, {4, 0}};
  for (const auto [count, bytes] : cases) Pieces(count, bytes).gather();
}

// Room that would be taken and given back by each would be taken from what else is to be had.
void gathering_takes_memory_once(void**) {
  const Pieces few(10, 64), many(1000, 64);
  few.gather();
  const uint64_t calls = few.gather();
  cuda_emulation::fail_allocations_from(0);
  assert_int_equal(few.gather(), calls);
  assert_int_equal(many.gather(), calls);
}

void pieces_without_room_to_come_together_are_waited_for_once(void**) {
  const Pieces few(10, 64), many(110, 64);
  cuda_emulation::fail_allocations_from(0);
  const uint64_t calls = few.gather();
  assert_int_equal(many.gather() - calls, 100);
}

// A list of devices is asked for by who may use one of them, or none: what it takes to ask is given back.
void devices_that_are_asked_have_no_context_afterwards(void**) {
  cuda_emulation::Machine machine;
  machine.devices = 8;
  cuda_emulation::set_machine(machine);
  const auto ask_all = [&] {
    for (int32_t i = 0; i < machine.devices; ++i) {
      DeviceDescription description;
      cuda_backend().device->describe(i, false, &description);
      assert_string_equal(description.reason, "");
      assert_int_equal(description.free_bytes, machine.free_bytes);
    }
  };
  const int before = cuda_emulation::live_contexts();
  ask_all();
  assert_int_equal(cuda_emulation::live_contexts(), before);
  World world(cuda_backend(), {.device = 7});
  const auto session = world.session();
  session->prefill(prompt(40), {}, nullptr);
  assert_int_equal(cuda_emulation::live_contexts(), before + 1);
  ask_all();
  assert_int_equal(cuda_emulation::live_contexts(), before + 1);
  answer(*session, 2);
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

// Each has memory, streams and kernels of its own, whichever was asked for something last.
void sessions_of_two_devices_answer_side_by_side(void**) {
  const auto lives = [](std::initializer_list<int32_t> devices) {
    cuda_emulation::reset(test::seed());
    cuda_emulation::Machine machine;
    machine.devices = 2;
    cuda_emulation::set_machine(machine);
    std::vector<std::unique_ptr<World>> worlds;
    std::vector<std::shared_ptr<Session>> sessions;
    for (const int32_t device : devices) {
      worlds.push_back(std::make_unique<World>(
          cuda_backend(), Shape{.policy = "wave", .fast_share = 0.3f, .slab_bytes = 256, .device = device}));
      sessions.push_back(worlds.back()->session());
    }
    const auto each = [&](auto&& use) {
      for (size_t i = 0; i < sessions.size(); ++i) use(*worlds[i], *sessions[i]);
    };
    std::vector<std::vector<float>> logits(sessions.size());
    each([](World&, Session& session) { session.prefill(prompt(300), {}, nullptr); });
    each([](World& world, Session& session) { leave_the_device(world, session); });
    for (int step = 0; step < 6; ++step) each([](World&, Session& session) { session.decode(nullptr); });
    for (size_t i = 0; i < sessions.size(); ++i) {
      const auto fork = sessions[i]->fork();
      fork->prefill(prompt(90, 1), {}, nullptr);
      for (Session* one : {sessions[i].get(), fork.get()}) {
        const std::vector<float> own = logits_of(*one);
        logits[i].insert(logits[i].end(), own.begin(), own.end());
      }
    }
    for (const int32_t device : devices) assert_true(cuda_emulation::launches_on(device) > 0);
    assert_string_equal(cuda_emulation::report().c_str(), "");
    return logits;
  };
  const auto alone = lives({0}), both = lives({0, 1});
  for (const std::vector<float>& own : both) assert_true(own == alone[0]);
}

// However many blocks of tokens keys and values lie in.
void sealing_takes_as_many_copies_for_many_tokens_as_for_few(void**) {
  World world(cuda_backend(), {"wave", DType::f16, DType::f16, 2});
  world.session_params.policy_params.local_window = 4096;
  const auto session = world.session();
  session->prefill(prompt(1100), {}, nullptr);
  const Sequence& sequence = session->sequence();
  assert_int_equal(sequence.segments().size(), 0);
  const size_t row = sequence.shape().head_bytes();
  Pieces(2, 16).gather();  // takes the room
  std::vector<std::byte> keys(1000 * row), values(keys.size()), key(row), value(row);
  uint64_t calls[2];
  for (const int64_t count : {200, 1000}) {
    const uint64_t before = cuda_emulation::api_calls();
    sequence.copy_tokens(1, 1, kSinkTokens + 3, count, keys.data(), values.data());
    calls[count > 200] = cuda_emulation::api_calls() - before;
  }
  assert_int_equal(calls[0], calls[1]);
  for (int64_t token = 0; token < 1000; ++token) {
    sequence.copy_tokens(1, 1, kSinkTokens + 3 + token, 1, key.data(), value.data());
    assert_memory_equal(key.data(), keys.data() + static_cast<size_t>(token) * row, row);
    assert_memory_equal(value.data(), values.data() + static_cast<size_t>(token) * row, row);
  }
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

// A host that uses the driver has a context of its own current, for the same device: it finds it so after each call,
// and nothing of ours is made in it.
void a_hosts_own_context_stays_current_and_is_not_used(void**) {
  cuda_emulation::enter_host_context();
  {
    World world(cuda_backend());
    const auto session = world.session();
    session->prefill(prompt(40), {}, nullptr);
    assert_true(cuda_emulation::in_host_context());
    answer(*session, 2);
  }
  {
    World world(cuda_backend(), {.policy = "wave", .fast_share = 0.3f});
    const auto session = world.session();
    session->prefill(prompt(300), {}, nullptr);
    leave_the_device(world, *session);
    answer(*session, 4);  // with a cache of hot pages
    assert_true(session->stats().slow_bytes > 0);
  }
  assert_true(cuda_emulation::in_host_context());
  assert_int_equal(cuda_emulation::calls_in_host_context(), 0);
  cuda_emulation::leave_host_context();
}

// Of a host that captures a stream of its own meanwhile: neither do calls fail, of whichever thread, nor is its graph
// spoiled by memory that is taken, or by graphs of ours.
void what_a_host_captures_is_left_whole(void**) {
  const auto life = [] {
    World world(cuda_backend(), {.policy = "wave", .fast_share = 0.3f});
    const auto session = world.session();
    session->prefill(prompt(300), {}, nullptr);
    leave_the_device(world, *session);
    answer(*session, 8);
    return logits_of(*session);
  };
  const std::vector<float> wanted = life();
  reset(nullptr);
  cudaStream_t stream = nullptr;
  void* number = nullptr;
  assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  assert_int_equal(cudaMalloc(&number, sizeof(unsigned)), cudaSuccess);
  assert_int_equal(cudaMemsetAsync(number, 0, sizeof(unsigned), stream), cudaSuccess);
  assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  assert_int_equal(cuda_test::triple_plus_one(stream, static_cast<unsigned*>(number)), cudaSuccess);
  assert_true(life() == wanted);
  assert_int_equal(cuda_test::triple_plus_one(stream, static_cast<unsigned*>(number)), cudaSuccess);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t whole = nullptr;
  assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  assert_int_equal(cudaGraphInstantiate(&whole, graph, 0), cudaSuccess);
  assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
  assert_int_equal(cudaGraphLaunch(whole, stream), cudaSuccess);
  unsigned out = 0;
  assert_int_equal(cudaMemcpyAsync(&out, number, sizeof out, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
  assert_int_equal(out, 4);
  // The host's calls are its own affair again: this one it is not to make while it captures.
  assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  assert_int_equal(cudaFree(number), cudaErrorStreamCaptureUnsupported);
  assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnsupported);
  assert_int_equal(cudaGraphExecDestroy(whole), cudaSuccess);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test_setup(the_next_piece_is_pinned_before_it_is_wanted, reset),
      cmocka_unit_test_setup(what_is_pinned_ahead_is_within_the_limit, reset),
      cmocka_unit_test_setup(pinned_memory_is_of_the_devices_node, reset),
      cmocka_unit_test_setup(pieces_come_together_whatever_their_size, reset),
      cmocka_unit_test_setup(gathering_takes_memory_once, reset),
      cmocka_unit_test_setup(pieces_without_room_to_come_together_are_waited_for_once, reset),
      cmocka_unit_test_setup(devices_that_are_asked_have_no_context_afterwards, reset),
      cmocka_unit_test_setup(sessions_of_two_devices_answer_side_by_side, reset),
      cmocka_unit_test_setup(sealing_takes_as_many_copies_for_many_tokens_as_for_few, reset),
      cmocka_unit_test_setup(a_hosts_own_context_stays_current_and_is_not_used, reset),
      cmocka_unit_test_setup(what_a_host_captures_is_left_whole, reset),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
