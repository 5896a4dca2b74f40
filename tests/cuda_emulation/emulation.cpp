// Blocks of threads on the CPU: fibers of the calling thread, where they meet, and what they may touch.
#include "tests/cuda_emulation/emulation.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <dlfcn.h>
#include <exception>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "tests/cuda_emulation/accesses.h"
#include "tests/cuda_emulation/fibers.h"
#include "tests/cuda_emulation/internal.h"
#include "tests/cuda_emulation/shadow.h"

// Of the linker: where this program or library begins, and where its variables are that begin as zeros, and so
// what is declared __shared__ (a static here).
extern "C" {
extern char __ehdr_start __attribute__((visibility("hidden"))),
    __bss_start __attribute__((visibility("hidden"))), _end __attribute__((visibility("hidden")));
}

namespace cuda_emulation {
namespace {

constexpr uint32_t kNobody = kMostThreads;
constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

struct alignas(32) Thread {
  uint3 index{};
  const char* waits_for = nullptr;  // of who has not returned and does not run
  bool returned = false;
};

struct Copies {
  std::vector<Copy> started;   // not done yet
  std::vector<size_t> groups;  // each committed one's end in those
};

struct Warp {
  uint32_t epoch = 0;  // barriers of its own since the block's last
  uint32_t arrived = 0;
  uint32_t generation = 0;
  const char* operation = nullptr;
  Lanes values[2];
};

struct Block {
  uint3 index{}, size{}, grid{};
  uint32_t count = 0;  // of threads
  Thread threads[kMostThreads];
  Fiber fibers[kMostThreads];
  Copies copies[kMostThreads];
  Warp warps[kMostThreads / 32];
  uint16_t runnable[kMostThreads];
  uint32_t runnable_count = 0;
  uint32_t arrived = 0, returned = 0;
  int predicates = 0, counted = 0;
  uint64_t drawn = 0;             // for who runs next
  uint32_t drawn_next = kNobody;  // who does after whoever runs
  Thread* running = nullptr;
  Fiber host = nullptr;
  bool host_known = false;  // to a fiber
  const Launch* launch = nullptr;
  bool faulted = false;
};
Block block;
uint64_t epoch = 0;  // blocks and their barriers that there were

std::byte* stacks;
std::byte* shared_bytes;  // (kMostShared)
Shadow* dynamic_shadow;
Shadow* static_shadow;
size_t fill;

Stack stack_of(uint32_t thread) { return {stacks + size_t{thread} * kStackBytes, kStackBytes}; }

std::string name_of(const void* kernel) {
  Dl_info info;
  if (!dladdr(kernel, &info) || !info.dli_sname) return "kernel";
  int status = 0;
  char* const readable = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = readable ? readable : info.dli_sname;
  std::free(readable);
  return name;
}

std::string place(const uint3& index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) +
         ")";
}

std::string here() {
  std::string text = name_of(block.launch->kernel) + ", block " + place(block.index);
  if (block.running) text += ", thread " + place(block.running->index);
  return text + ": ";
}

Stack host_stack;

// Read with each access of whoever runs, and so written whole.
void tell_moment(uint32_t thread) { running.now = Moment::of(epoch, block.warps[thread / 32].epoch, thread); }

// Of those who can run, any; it is one fewer then.
uint32_t draw_next() {
  block.drawn = block.drawn * 6364136223846793005u + 1442695040888963407u;
  uint16_t& at = block.runnable[(block.drawn >> 32) * block.runnable_count >> 32];
  const uint32_t next = at;
  at = block.runnable[--block.runnable_count];
  return next;
}

// Threads of a block run in turn. Whoever leaves off has another go on; who comes after that is drawn already, so that
// its stack is on its way.
__attribute__((always_inline)) inline void go_on_with_any(Fiber* own) {
  const uint32_t next = block.drawn_next != kNobody ? block.drawn_next : draw_next();
  block.drawn_next = kNobody;
  if (block.runnable_count) {
    block.drawn_next = draw_next();
    const auto* const end = reinterpret_cast<const std::byte*>(block.fibers[block.drawn_next]);
    for (int line = 0; line < 4; ++line) __builtin_prefetch(end + line * 64, 1);
    __builtin_prefetch(&block.threads[block.drawn_next], 1);
  }
  block.running = &block.threads[next];
  tell_moment(next);
  const Stack stack = stack_of(next);
  running.stack = reinterpret_cast<uintptr_t>(stack.bottom);
  go_on_with(block.fibers[next], own, stack);
}

__attribute__((always_inline)) inline void leave() {
  Fiber* const own = &block.fibers[running.now.thread()];
  if ((block.drawn_next != kNobody || block.runnable_count) && !block.faulted) return go_on_with_any(own);
  runs_kernel = false;
  go_on_with(block.host, own, host_stack);
}

[[noreturn]] __attribute__((noinline)) void fault_here(cudaError_t error, const std::string& what) {
  runs_kernel = false;
  note(error, here() + what);
  block.faulted = true;
  leave();
  std::abort();  // nobody goes on with a thread of a faulted block
}

void run_thread() {
  if (!block.host_known) {
    host_stack = came_from();
    block.host_known = true;
  }
  try {
    block.launch->invoke(block.launch->parameters.get());
  } catch (const std::exception& error) {
    fault_here(cudaErrorUnknown, std::string("throws: ") + error.what());
  } catch (...) {
    fault_here(cudaErrorUnknown, "throws");
  }
  block.running->returned = true;
  ++block.returned;
  leave();
  std::abort();
}

__attribute__((always_inline)) inline void wait_for(const char* what) {
  block.running->waits_for = what;
  leave();
}

void wake(uint32_t thread) { block.runnable[block.runnable_count++] = static_cast<uint16_t>(thread); }

// Those who still wait when nobody can run, wait for ever.
void report_waiters() {
  const Thread* waiter = nullptr;
  const Thread* other = nullptr;
  for (uint32_t i = 0; i < block.count; ++i) {
    const Thread& thread = block.threads[i];
    if (thread.returned) {
      if (!other) other = &thread;
    } else if (!waiter) {
      waiter = &thread;
    }
  }
  for (uint32_t i = 0; i < block.count; ++i) {
    const Thread& thread = block.threads[i];
    if (!thread.returned && thread.waits_for != waiter->waits_for) other = &thread;
  }
  std::string text = here() + "thread " + place(waiter->index) + " waits at " + waiter->waits_for;
  if (other)
    text += " for ever: thread " + place(other->index) +
            (other->returned ? std::string(" has returned") : std::string(" waits at ") + other->waits_for);
  note(cudaErrorLaunchFailure, text);
  block.faulted = true;
}

// From the first again while there are as many for the block itself.
void begin_epoch() { epoch = epoch < kMostEpochs / 2 ? epoch + 1 : 1; }

bool run_block() {
  const uint32_t count = block.count = block.size.x * block.size.y * block.size.z;
  for (uint32_t i = 0; i < count / 32; ++i) {
    Warp& warp = block.warps[i];
    warp.epoch = warp.arrived = warp.generation = 0;
  }
  block.drawn_next = kNobody;
  block.runnable_count = block.arrived = block.returned = 0;
  block.predicates = 0;
  begin_epoch();
  dynamic_shadow->begin_block(epoch);
  static_shadow->begin_block(epoch);
  // What an earlier block left is not to be found.
  fill = fill * 6364136223846793005u + 1442695040888963407u;
  std::memset(shared_bytes, static_cast<int>(fill >> 56), running.shared_bytes);
  for (uint32_t i = 0; i < count; ++i) {
    Thread& thread = block.threads[i];
    thread.index = {i % block.size.x, i / block.size.x % block.size.y, i / block.size.x / block.size.y};
    thread.returned = false;
    block.copies[i].started.clear();
    block.copies[i].groups.clear();
    // Tops at different places of a page's lines: else they would share a few sets of the cache.
    const size_t lower = i * 37 % 128 * 128;
    const Stack stack = stack_of(i);
    block.fibers[i] = make_fiber({stack.bottom, kStackBytes - lower}, run_thread);
    wake(i);
  }
  block.host_known = false;
  runs_kernel = true;
  go_on_with_any(&block.host);
  runs_kernel = false;
  block.running = nullptr;
  if (!block.faulted && block.returned < count) report_waiters();
  return !block.faulted;
}

}  // namespace

Running running;
constinit thread_local bool runs_kernel = false;

void prepare_blocks() {
  if (stacks) return;
  // Of large pages, if there are any: the processor looks up few of the others' places, and each turn is on another's.
  constexpr size_t kLarge = size_t{2} << 20;
  void* const room = mmap(nullptr, kMostThreads * kStackBytes + kLarge, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  stacks = static_cast<std::byte*>(room) + (kLarge - reinterpret_cast<uintptr_t>(room) % kLarge);
  madvise(stacks, kMostThreads * kStackBytes, MADV_HUGEPAGE);
  shared_bytes = static_cast<std::byte*>(
      mmap(nullptr, kMostShared, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  dynamic_shadow = new Shadow(kMostShared);
  static_shadow = new Shadow(static_cast<size_t>(&_end - &__bss_start));
}

void run_grid(const cudaLaunchConfig_t& config, const Launch& launch) {
  const Opening open;
  block.launch = &launch;
  block.faulted = false;
  block.drawn = drawn()();
  running = {};
  running.shared = reinterpret_cast<uintptr_t>(shared_bytes);
  running.shared_bytes = config.dynamicSmemBytes;
  running.shadow = dynamic_shadow;
  const dim3 grid = config.gridDim, size = config.blockDim;
  block.grid = {grid.x, grid.y, grid.z};
  block.size = {size.x, size.y, size.z};
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  std::vector<uint64_t> order(blocks);
  for (uint64_t i = 0; i < blocks; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), drawn());
  for (const uint64_t at : order) {
    block.index = {static_cast<uint32_t>(at % grid.x), static_cast<uint32_t>(at / grid.x % grid.y),
                   static_cast<uint32_t>(at / grid.x / grid.y)};
    if (!run_block()) break;
  }
  block.launch = nullptr;
}

// ---- what device code calls

uint3 thread_index() { return block.running->index; }
uint3 block_index() { return block.index; }
uint3 block_size() { return block.size; }
uint3 grid_size() { return block.grid; }
std::byte* dynamic_shared() { return shared_bytes; }
unsigned lane() { return running.now.thread() % 32; }

int meet_block_counting(bool predicate) {
  block.predicates += predicate;
  if (++block.arrived < block.count) {
    wait_for("__syncthreads");
    return block.counted;
  }
  block.arrived = 0;
  block.counted = block.predicates;
  block.predicates = 0;
  if (++epoch == kMostEpochs) fault_here(cudaErrorLaunchFailure, "is too often at __syncthreads");
  for (uint32_t i = 0; i < block.count / 32; ++i) block.warps[i].epoch = 0;
  const uint32_t self = running.now.thread();
  tell_moment(self);
  for (uint32_t i = 0; i < block.count; ++i)
    if (i != self) wake(i);
  return block.counted;
}
void meet_block() { meet_block_counting(false); }

namespace {

struct NoWork {
  void operator()(const Lanes&) const {}
};

// Valid until the warp has met twice more.
template <class Work = NoWork>
__attribute__((always_inline)) inline const Lanes& gather(uint32_t mask, const char* operation,
                                                          uint64_t value, bool orders = false,
                                                          const Work& work = {}) {
  const uint32_t self = running.now.thread();
  if (mask != kAllLanes) [[unlikely]]
    fault_here(cudaErrorLaunchFailure, std::string(operation) + " of part of a warp");
  Warp& warp = block.warps[self / 32];
  if (warp.arrived && warp.operation != operation && std::strcmp(warp.operation, operation) != 0)
    fault_here(cudaErrorLaunchFailure,
               std::string("is at ") + operation + ", other lanes of its warp at " + warp.operation);
  warp.operation = operation;
  const uint32_t generation = warp.generation;
  warp.values[generation % 2].of[self % 32] = value;
  if (++warp.arrived < 32) {
    wait_for(operation);
  } else {
    warp.arrived = 0;
    work(warp.values[generation % 2]);
    ++warp.generation;
    if (orders) {
      if (++warp.epoch == kMostWarpEpochs)
        fault_here(cudaErrorLaunchFailure, std::string("is too often at ") + operation);
      tell_moment(self);
    }
    for (uint32_t i = self / 32 * 32; i < self / 32 * 32 + 32; ++i)
      if (i != self) wake(i);
  }
  return warp.values[generation % 2];
}

}  // namespace

Lanes meet_warp(uint32_t mask, const char* operation, uint64_t value) {
  return gather(mask, operation, value);
}
const Lanes& met_lanes(uint32_t mask, const char* operation, uint64_t value) {
  return gather(mask, operation, value);
}
void meet_warp_for_work(uint32_t mask, const char* operation, uint64_t value,
                        const std::function<void(const Lanes&)>& work) {
  gather(mask, operation, value, false, work);
}
uint64_t meet_warp_for(uint32_t mask, const char* operation, uint64_t value, unsigned lane) {
  return gather(mask, operation, value).of[lane];
}
void order_warp(uint32_t mask) { gather(mask, "__syncwarp", 0, true); }
unsigned vote(uint32_t mask, const char* operation, bool predicate) {
  const Lanes& lanes = gather(mask, operation, predicate);
  unsigned votes = 0;
  for (unsigned i = 0; i < 32; ++i) votes |= static_cast<unsigned>(lanes.of[i]) << i;
  return votes;
}

void fault(const char* what, const void* address) {
  char at[32];
  std::snprintf(at, sizeof at, " at %p", address);
  if (!block.running) {
    std::fprintf(stderr, "cuda_emulation: outside of kernels: %s%s\n", what, at);
    std::abort();
  }
  fault_here(cudaErrorIllegalAddress, std::string(what) + at);
}

namespace {

[[noreturn]] void refuse(cudaError_t error, const std::string& what, uintptr_t address, size_t bytes) {
  char at[32];
  std::snprintf(at, sizeof at, " at %p", reinterpret_cast<const void*>(address));
  fault_here(error, what + at + ", " + std::to_string(bytes) + " bytes");
}

}  // namespace

void refuse(const Conflict& conflict, uintptr_t address, size_t bytes) {
  std::string what = conflict.what;
  if (conflict.other != running.now.thread())
    what += " of thread " + place(block.threads[conflict.other].index);
  refuse(cudaErrorLaunchFailure, what, address, bytes);
}

void access_elsewhere(uintptr_t address, size_t bytes, Access how) {
  const auto* const at = reinterpret_cast<const std::byte*>(address);
  const bool reads = how == Access::read;
  if (address - running.shared < kMostShared)
    refuse(cudaErrorIllegalAddress,
           reads ? "reads shared memory out of bounds" : "writes shared memory out of bounds", address,
           bytes);
  Region& region = running.region_of(address);
  if (in_arena(at)) {
    if (in_device(at, bytes, &region)) return;
    refuse(cudaErrorIllegalAddress,
           reads ? "reads device memory out of bounds" : "writes device memory out of bounds", address,
           bytes);
  }
  const auto* const variables = reinterpret_cast<const std::byte*>(&__bss_start);
  if (at >= variables && at < reinterpret_cast<const std::byte*>(&_end)) {
    const Conflict conflict =
        static_shadow->access(static_cast<size_t>(at - variables), bytes, how, running.now);
    if (conflict.what) refuse(conflict, address, bytes);
    return;
  }
  if (reads && at >= reinterpret_cast<const std::byte*>(&__ehdr_start) && at < variables) return;
  const auto* const parameters = static_cast<const std::byte*>(block.launch->parameters.get());
  if (reads && at >= parameters && at + bytes <= parameters + block.launch->parameter_bytes) return;
  if (in_pinned(at, bytes, &region)) return;
  refuse(cudaErrorIllegalAddress, reads ? "reads host memory" : "writes host memory", address, bytes);
}

void copy_later(void* to, const void* from, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(to) % bytes || reinterpret_cast<uintptr_t>(from) % bytes)
    fault("misaligned copy", to);
  block.copies[running.now.thread()].started.push_back({to, from, bytes});
}

void commit_copies() {
  Copies& own = block.copies[running.now.thread()];
  own.groups.push_back(own.started.size());
}

void wait_for_copies(unsigned groups_left) {
  auto& [started, groups] = block.copies[running.now.thread()];
  if (groups.size() <= groups_left) return;
  const size_t done = groups.size() - groups_left, end = groups[done - 1];
  for (size_t i = 0; i < end; ++i) {
    const Copy& copy = started[i];
    if (sees_accesses()) {
      access(copy.from, copy.bytes, Access::read);
      access(copy.to, copy.bytes, Access::write);
    }
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
  started.erase(started.begin(), started.begin() + static_cast<std::ptrdiff_t>(end));
  groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(done));
  for (size_t& each : groups) each -= end;
}

void atomic_access(const void* address, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes) fault("misaligned atomic", address);
  if (sees_accesses()) access(address, bytes, Access::atomic);
}

}  // namespace cuda_emulation
