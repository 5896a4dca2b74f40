// Blocks of threads on the CPU: fibers of the calling thread, where they meet, and what they may touch.
#include "tests/cuda_emulation/emulation.h"

#include <algorithm>
#include <boost/context/detail/fcontext.hpp>
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
#include "tests/cuda_emulation/internal.h"
#include "tests/cuda_emulation/shadow.h"

#if defined(__SANITIZE_ADDRESS__)
#define WI_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WI_ASAN 1
#endif
#endif
#ifdef WI_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Of the linker: where this program or library begins, and where its variables are that begin as zeros, and so
// what is declared __shared__ (a static here).
extern "C" {
extern char __ehdr_start __attribute__((visibility("hidden"))),
    __bss_start __attribute__((visibility("hidden"))), _end __attribute__((visibility("hidden")));
}

namespace cuda_emulation {
namespace {

namespace fcontext = boost::context::detail;

constexpr size_t kStackBytes = size_t{64} << 10;
constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

struct Thread {
  std::vector<Copy> copies;           // not done yet
  std::vector<size_t> copies_before;  // each committed group's end in copies
  fcontext::fcontext_t context = nullptr;
  uint3 index{};
  Moment moment;
  const char* waits_for = nullptr;  // null: it can run, runs or has returned
  bool returned = false;
  bool predicate = false;
};

struct Warp {
  uint32_t arrived = 0;
  uint32_t generation = 0;
  const char* operation = nullptr;
  Lanes values[2];
};

struct Block {
  uint3 index{}, size{}, grid{};
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Thread*> runnable;
  uint32_t arrived = 0, returned = 0;
  int count = 0, counted = 0;
  Thread* running = nullptr;
  fcontext::fcontext_t scheduler = nullptr;
  const Launch* launch = nullptr;
  bool faulted = false;
};
Block block;
thread_local bool runs_grid = false;  // others run what the host has in these sources
std::byte* stacks;
std::byte* shared_bytes;  // (kMostShared)
size_t shared_used;
Shadow* dynamic_shadow;
Shadow* static_shadow;
size_t fill;

std::byte* stack_of(const Thread& thread) {
  return stacks + static_cast<size_t>(thread.moment.thread) * kStackBytes;
}

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

// Threads of a block run in turn; this is the only place that one goes on.
fcontext::transfer_t jump(fcontext::fcontext_t to, const void* bottom, size_t bytes) {
#ifdef WI_ASAN
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, bottom, bytes);
  const fcontext::transfer_t from = fcontext::jump_fcontext(to, nullptr);
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
  return from;
#else
  (void)bottom, (void)bytes;
  return fcontext::jump_fcontext(to, nullptr);
#endif
}

const void* host_stack;
size_t host_stack_bytes;

void leave() { block.scheduler = jump(block.scheduler, host_stack, host_stack_bytes).fctx; }

[[noreturn]] void fault_here(cudaError_t error, const std::string& what) {
  note(error, here() + what);
  block.faulted = true;
  leave();
  std::abort();  // nobody goes on with a thread of a faulted block
}

void run_thread(fcontext::transfer_t from) {
#ifdef WI_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &host_stack, &host_stack_bytes);
#endif
  block.scheduler = from.fctx;
  try {
    block.launch->invoke(block.launch->parameters.get());
  } catch (const std::exception& error) {
    fault_here(cudaErrorUnknown, std::string("throws: ") + error.what());
  } catch (...) {
    fault_here(cudaErrorUnknown, "throws");
  }
  Thread& self = *block.running;
  self.returned = true;
  ++block.returned;
  leave();
  std::abort();
}

void wait_for(const char* what) {
  block.running->waits_for = what;
  leave();
}

void wake(Thread& thread) {
  thread.waits_for = nullptr;
  block.runnable.push_back(&thread);
}

// Those who still wait when nobody can run, wait for ever.
void report_waiters() {
  const Thread* waiter = nullptr;
  const Thread* other = nullptr;
  for (const Thread& thread : block.threads) {
    if (thread.returned) {
      if (!other) other = &thread;
    } else if (!waiter) {
      waiter = &thread;
    }
  }
  for (const Thread& thread : block.threads)
    if (!thread.returned && thread.waits_for != waiter->waits_for) other = &thread;
  std::string text = here() + "thread " + place(waiter->index) + " waits at " + waiter->waits_for;
  if (other)
    text += " for ever: thread " + place(other->index) +
            (other->returned ? std::string(" has returned") : std::string(" waits at ") + other->waits_for);
  note(cudaErrorLaunchFailure, text);
  block.faulted = true;
}

bool run_block() {
  const uint32_t count = block.size.x * block.size.y * block.size.z;
  block.threads.assign(count, Thread{});
  block.warps.assign(count / 32, Warp{});
  block.runnable.clear();
  block.arrived = block.returned = 0;
  block.count = 0;
  dynamic_shadow->begin_block();
  static_shadow->begin_block();
  // What an earlier block left is not to be found.
  fill = fill * 6364136223846793005u + 1442695040888963407u;
  std::memset(shared_bytes, static_cast<int>(fill >> 56), shared_used);
  for (uint32_t i = 0; i < count; ++i) {
    Thread& thread = block.threads[i];
    thread.index = {i % block.size.x, i / block.size.x % block.size.y, i / block.size.x / block.size.y};
    thread.moment.thread = i;
    // Tops at different places of a page's lines: else they would share a few sets of the cache.
    const size_t lower = i * 37 % 128 * 128;
#ifdef WI_ASAN
    // The last thread that had it never returned from its first function.
    ASAN_UNPOISON_MEMORY_REGION(stack_of(thread), kStackBytes);
#endif
    thread.context =
        fcontext::make_fcontext(stack_of(thread) + kStackBytes - lower, kStackBytes - lower, run_thread);
    block.runnable.push_back(&thread);
  }
  while (!block.runnable.empty()) {
    std::swap(block.runnable[draw(block.runnable.size())], block.runnable.back());
    block.running = block.runnable.back();
    block.runnable.pop_back();
    block.running->context = jump(block.running->context, stack_of(*block.running), kStackBytes).fctx;
    block.running = nullptr;
    if (block.faulted) return false;
  }
  if (block.returned < count) report_waiters();
  return !block.faulted;
}

}  // namespace

void prepare_blocks() {
  if (stacks) return;
  stacks = static_cast<std::byte*>(mmap(nullptr, kMostThreads * kStackBytes, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  shared_bytes = static_cast<std::byte*>(
      mmap(nullptr, kMostShared, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  dynamic_shadow = new Shadow(kMostShared);
  static_shadow = new Shadow(static_cast<size_t>(&_end - &__bss_start));
}

void run_grid(const cudaLaunchConfig_t& config, const Launch& launch) {
  const Opening open;
  runs_grid = true;
  block.launch = &launch;
  block.faulted = false;
  const dim3 grid = config.gridDim, size = config.blockDim;
  block.grid = {grid.x, grid.y, grid.z};
  block.size = {size.x, size.y, size.z};
  shared_used = config.dynamicSmemBytes;
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
  runs_grid = false;
}

// ---- what device code calls

uint3 thread_index() { return block.running->index; }
uint3 block_index() { return block.index; }
uint3 block_size() { return block.size; }
uint3 grid_size() { return block.grid; }
std::byte* dynamic_shared() { return shared_bytes; }
unsigned lane() { return block.running->moment.thread % 32; }

int meet_block_counting(bool predicate) {
  Thread& self = *block.running;
  self.predicate = predicate;
  block.count += predicate;
  if (++block.arrived < block.threads.size()) {
    wait_for("__syncthreads");
    return block.counted;
  }
  block.arrived = 0;
  block.counted = block.count;
  block.count = 0;
  for (Thread& thread : block.threads) {
    ++thread.moment.block_epoch;
    if (&thread != &self) wake(thread);
  }
  return block.counted;
}
void meet_block() { meet_block_counting(false); }

namespace {

// Valid until the warp has met twice more.
const Lanes& gather(uint32_t mask, const char* operation, uint64_t value) {
  Thread& self = *block.running;
  if (mask != kAllLanes) fault_here(cudaErrorLaunchFailure, std::string(operation) + " of part of a warp");
  Warp& warp = block.warps[self.moment.warp()];
  if (warp.arrived && warp.operation != operation && std::strcmp(warp.operation, operation) != 0)
    fault_here(cudaErrorLaunchFailure,
               std::string("is at ") + operation + ", other lanes of its warp at " + warp.operation);
  warp.operation = operation;
  const uint32_t generation = warp.generation;
  warp.values[generation % 2].of[self.moment.thread % 32] = value;
  if (++warp.arrived < 32) {
    wait_for(operation);
  } else {
    warp.arrived = 0;
    ++warp.generation;
    for (uint32_t i = 0; i < 32; ++i) {
      Thread& thread = block.threads[self.moment.warp() * 32 + i];
      if (&thread != &self) wake(thread);
    }
  }
  return warp.values[generation % 2];
}

}  // namespace

Lanes meet_warp(uint32_t mask, const char* operation, uint64_t value) {
  return gather(mask, operation, value);
}
uint64_t meet_warp_for(uint32_t mask, const char* operation, uint64_t value, unsigned lane) {
  return gather(mask, operation, value).of[lane];
}

void order_warp() { ++block.running->moment.warp_epoch; }

void fault(const char* what, const void* address) {
  char at[32];
  std::snprintf(at, sizeof at, " at %p", address);
  if (!block.running) {
    std::fprintf(stderr, "cuda_emulation: outside of kernels: %s%s\n", what, at);
    std::abort();
  }
  fault_here(cudaErrorIllegalAddress, std::string(what) + at);
}

void access(const void* address, size_t bytes, Access how) {
  if (!runs_grid || !block.running || block.faulted) return;
  const auto* const at = static_cast<const std::byte*>(address);
  const Thread& self = *block.running;
  const std::byte* const stack = stack_of(self);
  if (at >= stack && at + bytes <= stack + kStackBytes) return;
  const bool reads = how == Access::read;
  char text[32];
  const auto refuse = [&](cudaError_t error, const std::string& what) {
    std::snprintf(text, sizeof text, " at %p", address);
    fault_here(error, what + text + ", " + std::to_string(bytes) + " bytes");
  };
  if (in_arena(at)) {
    if (!in_device(at, bytes))
      refuse(cudaErrorIllegalAddress,
             reads ? "reads device memory out of bounds" : "writes device memory out of bounds");
    return;
  }
  Shadow* shadow = nullptr;
  size_t offset = 0;
  const auto* const variables = reinterpret_cast<const std::byte*>(&__bss_start);
  if (at >= shared_bytes && at < shared_bytes + kMostShared) {
    offset = static_cast<size_t>(at - shared_bytes);
    if (offset + bytes > shared_used)
      refuse(cudaErrorIllegalAddress,
             reads ? "reads shared memory out of bounds" : "writes shared memory out of bounds");
    shadow = dynamic_shadow;
  } else if (at >= variables && at < reinterpret_cast<const std::byte*>(&_end)) {
    offset = static_cast<size_t>(at - variables);
    shadow = static_shadow;
  }
  if (shadow) {
    const Conflict conflict = shadow->access(offset, bytes, how, self.moment);
    if (!conflict.what) return;
    std::string what = conflict.what;
    if (conflict.other != self.moment.thread)
      what += " of thread " + place(block.threads[conflict.other].index);
    refuse(cudaErrorLaunchFailure, what);
  }
  if (reads && at >= reinterpret_cast<const std::byte*>(&__ehdr_start) && at < variables) return;
  const auto* const parameters = static_cast<const std::byte*>(block.launch->parameters.get());
  if (reads && at >= parameters && at + bytes <= parameters + block.launch->parameter_bytes) return;
  if (in_pinned(at, bytes)) return;
  refuse(cudaErrorIllegalAddress, reads ? "reads host memory" : "writes host memory");
}

void copy_later(void* to, const void* from, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(to) % bytes || reinterpret_cast<uintptr_t>(from) % bytes)
    fault("misaligned copy", to);
  block.running->copies.push_back({to, from, bytes});
}

void commit_copies() {
  Thread& self = *block.running;
  self.copies_before.push_back(self.copies.size());
}

void wait_for_copies(unsigned groups_left) {
  Thread& self = *block.running;
  if (self.copies_before.size() <= groups_left) return;
  const size_t groups = self.copies_before.size() - groups_left, end = self.copies_before[groups - 1];
  for (size_t i = 0; i < end; ++i) {
    const Copy& copy = self.copies[i];
    if (sees_accesses()) {
      access(copy.from, copy.bytes, Access::read);
      access(copy.to, copy.bytes, Access::write);
    }
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
  self.copies.erase(self.copies.begin(), self.copies.begin() + static_cast<std::ptrdiff_t>(end));
  self.copies_before.erase(self.copies_before.begin(),
                           self.copies_before.begin() + static_cast<std::ptrdiff_t>(groups));
  for (size_t& each : self.copies_before) each -= end;
}

void atomic_access(const void* address, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes) fault("misaligned atomic", address);
  if (sees_accesses()) access(address, bytes, Access::atomic);
}

}  // namespace cuda_emulation
