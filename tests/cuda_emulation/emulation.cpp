#include "tests/cuda_emulation/emulation.h"

#include <algorithm>
#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <deque>
#include <dlfcn.h>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "tests/cuda_emulation/accesses.h"
#include "tests/cuda_emulation/cuda_runtime.h"
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

// Of the linker: where the program's variables are, and so what is declared __shared__ (a static here).
extern "C" char __executable_start, __data_start, _end;

namespace cuda_emulation {
namespace {

namespace fcontext = boost::context::detail;

constexpr size_t kStackBytes = size_t{64} << 10;
constexpr uint32_t kMostThreads = 1024;
constexpr size_t kMostShared = size_t{227} << 10;  // a block's, of compute capability 9.0
constexpr size_t kPlainShared = size_t{48} << 10;  // of that, without asking
constexpr size_t kArenaBytes = size_t{1} << 36;
constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

std::recursive_mutex api;
std::mt19937_64 drawn;
std::string first_report;
cudaError_t sticky = cudaSuccess;
cudaError_t last_error = cudaSuccess;
uint64_t launch_count, call_count;
int64_t allocations_left = -1;

uint64_t draw(uint64_t below) { return drawn() % below; }

// ---- memory

struct Piece {
  size_t bytes;
  size_t mapped;
};

struct Arena {
  std::byte* base = static_cast<std::byte*>(
      mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  size_t used = 0;
  std::map<const std::byte*, Piece> pieces;
  const std::byte *last = nullptr, *last_end = nullptr;  // of the piece that was last looked up
  int openings = 0;

  bool holds(const void* address) const { return address >= base && address < base + kArenaBytes; }
  void protect(int how) {
    if (used) mprotect(base, used, how);
  }
};
Arena arena;
std::map<const std::byte*, size_t> pinned;

struct Opening {
  Opening() {
    if (arena.openings++ == 0) arena.protect(PROT_READ | PROT_WRITE);
  }
  Opening(const Opening&) = delete;
  ~Opening() {
    if (--arena.openings == 0) arena.protect(PROT_NONE);
  }
};

bool in_device(const void* address, size_t bytes) {
  const auto* const at = static_cast<const std::byte*>(address);
  if (at >= arena.last && at + bytes <= arena.last_end) return true;
  auto after = arena.pieces.upper_bound(at);
  if (after == arena.pieces.begin()) return false;
  --after;
  if (at + bytes > after->first + after->second.bytes) return false;
  arena.last = after->first;
  arena.last_end = after->first + after->second.bytes;
  return true;
}
bool in_pinned(const void* address, size_t bytes) {
  const auto* const at = static_cast<const std::byte*>(address);
  const auto after = pinned.upper_bound(at);
  return after != pinned.begin() && at + bytes <= std::prev(after)->first + std::prev(after)->second;
}

// ---- a block

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

void note(cudaError_t error, std::string text) {
  if (sticky != cudaSuccess) return;
  sticky = error;
  first_report = std::move(text);
  std::fprintf(stderr, "cuda_emulation: %s\n", first_report.c_str());
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

void run_grid(const cudaLaunchConfig_t& config, const Launch& launch) {
  const Opening open;
  block.launch = &launch;
  block.faulted = false;
  const dim3 grid = config.gridDim, size = config.blockDim;
  block.grid = {grid.x, grid.y, grid.z};
  block.size = {size.x, size.y, size.z};
  shared_used = config.dynamicSmemBytes;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  std::vector<uint64_t> order(blocks);
  for (uint64_t i = 0; i < blocks; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), drawn);
  ++launch_count;
  for (const uint64_t at : order) {
    block.index = {static_cast<uint32_t>(at % grid.x), static_cast<uint32_t>(at / grid.x % grid.y),
                   static_cast<uint32_t>(at / grid.x / grid.y)};
    if (!run_block()) break;
  }
  block.launch = nullptr;
}

}  // namespace

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
  if (!block.running || block.faulted) return;
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
  if (arena.holds(at)) {
    if (!in_device(at, bytes))
      refuse(cudaErrorIllegalAddress,
             reads ? "reads device memory out of bounds" : "writes device memory out of bounds");
    return;
  }
  Shadow* shadow = nullptr;
  size_t offset = 0;
  const auto* const variables = reinterpret_cast<const std::byte*>(&__data_start);
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
  if (reads && at >= reinterpret_cast<const std::byte*>(&__executable_start) && at < variables) return;
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

// ---- streams

}  // namespace cuda_emulation

using namespace cuda_emulation;

struct CUevent_st {
  uint64_t recorded = 0, done = 0;
};

namespace cuda_emulation {
namespace {

struct Operation {
  std::function<void()> run;
  CUevent_st* waits = nullptr;  // until this one is done as often as
  uint64_t until = 0;
};

}  // namespace
}  // namespace cuda_emulation

struct CUstream_st {
  std::deque<Operation> queue;
  bool ready() const {
    return !queue.empty() && (!queue.front().waits || queue.front().waits->done >= queue.front().until);
  }
};

namespace cuda_emulation {
namespace {

std::vector<std::unique_ptr<CUstream_st>> streams;
std::vector<std::unique_ptr<CUevent_st>> events;
std::map<const void*, int> shared_limits;  // what cudaFuncSetAttribute allowed

using Call = std::lock_guard<std::recursive_mutex>;

cudaError_t failed(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// One operation of one stream that can go on; false: there is none.
bool advance() {
  std::vector<CUstream_st*> ready;
  for (const auto& stream : streams)
    if (stream->ready()) ready.push_back(stream.get());
  if (ready.empty() || sticky != cudaSuccess) return false;
  CUstream_st& stream = *ready[draw(ready.size())];
  const Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (operation.run) operation.run();
  return true;
}

template <class Done>
cudaError_t advance_until(Done&& done) {
  while (!done() && sticky == cudaSuccess)
    if (!advance()) note(cudaErrorUnknown, "waits for an event that no stream comes to");
  if (sticky != cudaSuccess)
    for (const auto& stream : streams) stream->queue.clear();
  return failed(sticky);
}

bool known(CUstream_st* stream) {
  return std::any_of(streams.begin(), streams.end(), [&](auto& each) { return each.get() == stream; });
}

cudaError_t push(CUstream_st* stream, Operation operation) {
  if (sticky != cudaSuccess) return failed(sticky);
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);  // the default stream is one of those
  stream->queue.push_back(std::move(operation));
  // Some work is done before the host has said more, most of it late.
  while (draw(4) == 0 && advance()) {
  }
  return failed(sticky);
}

}  // namespace

void reset(uint64_t seed) {
  const Call call(api);
  if (!stacks) {
    stacks = static_cast<std::byte*>(mmap(nullptr, kMostThreads * kStackBytes, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    shared_bytes = static_cast<std::byte*>(
        mmap(nullptr, kMostShared, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    dynamic_shadow = new Shadow(kMostShared);
    static_shadow = new Shadow(static_cast<size_t>(&_end - &__data_start));
  }
  drawn.seed(seed);
  first_report.clear();
  sticky = last_error = cudaSuccess;
  launch_count = call_count = 0;
  allocations_left = -1;
  streams.clear();
  events.clear();
  shared_limits.clear();
  for (const auto& [at, piece] : arena.pieces)
    madvise(const_cast<std::byte*>(at), piece.mapped, MADV_DONTNEED);
  arena.pieces.clear();
  arena.last = arena.last_end = nullptr;
  arena.used = 0;
  for (const auto& [at, bytes] : pinned) std::free(const_cast<std::byte*>(at));
  pinned.clear();
}

const std::string& report() { return first_report; }
uint64_t launches() { return launch_count; }
uint64_t api_calls() { return call_count; }
void fail_allocations_from(int64_t nth) { allocations_left = nth; }

cudaError_t enqueue(const cudaLaunchConfig_t& config, Launch launch) {
  const Call call(api);
  ++call_count;
  if (!stacks) reset(0);
  const dim3 &grid = config.gridDim, &size = config.blockDim;
  const uint64_t threads = uint64_t{size.x} * size.y * size.z;
  // Whole warps: part of one has no use here, and hides that lanes are missing.
  if (threads == 0 || threads > kMostThreads || threads % 32 || grid.x == 0 || grid.x > 0x7FFFFFFF ||
      grid.y == 0 || grid.y > 65535 || grid.z == 0 || grid.z > 65535)
    return failed(cudaErrorInvalidConfiguration);
  const auto allowed = shared_limits.find(launch.kernel);
  const size_t most = allowed == shared_limits.end() ? kPlainShared : static_cast<size_t>(allowed->second);
  if (config.dynamicSmemBytes > most) return failed(cudaErrorInvalidValue);
  Operation operation;
  operation.run = [config, launch = std::make_shared<Launch>(std::move(launch))] {
    run_grid(config, *launch);
  };
  return push(config.stream, std::move(operation));
}

}  // namespace cuda_emulation

// ---- the runtime's own calls

cudaError_t cudaMalloc(void** out, size_t bytes) {
  const Call call(api);
  ++call_count;
  *out = nullptr;
  if (sticky != cudaSuccess) return failed(sticky);
  if (allocations_left >= 0 && allocations_left-- <= 0) {
    allocations_left = 0;
    return failed(cudaErrorMemoryAllocation);
  }
  if (bytes == 0) return cudaSuccess;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t mapped = (bytes + page - 1) / page * page;
  if (mapped > kArenaBytes || arena.used + mapped + page > kArenaBytes)
    return failed(cudaErrorMemoryAllocation);
  std::byte* const at = arena.base + arena.used;
  arena.used += mapped + page;  // one that nobody has
  arena.pieces[at] = {bytes, mapped};
  *out = at;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  const Call call(api);
  ++call_count;
  if (!data) return cudaSuccess;
  advance_until([] {  // as the device's does
    return std::all_of(streams.begin(), streams.end(), [](auto& stream) { return stream->queue.empty(); });
  });
  const auto piece = arena.pieces.find(static_cast<std::byte*>(data));
  if (piece == arena.pieces.end()) return failed(cudaErrorInvalidValue);
  madvise(data, piece->second.mapped, MADV_DONTNEED);
  arena.pieces.erase(piece);
  arena.last = arena.last_end = nullptr;
  return failed(sticky);
}

cudaError_t cudaMallocHost(void** out, size_t bytes) {
  const Call call(api);
  ++call_count;
  *out = nullptr;
  if (sticky != cudaSuccess) return failed(sticky);
  if (allocations_left >= 0 && allocations_left-- <= 0) {
    allocations_left = 0;
    return failed(cudaErrorMemoryAllocation);
  }
  *out = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!*out) return failed(cudaErrorMemoryAllocation);
  pinned[static_cast<std::byte*>(*out)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  const Call call(api);
  ++call_count;
  if (!data) return cudaSuccess;
  if (!pinned.erase(static_cast<std::byte*>(data))) return failed(cudaErrorInvalidValue);
  std::free(data);
  return failed(sticky);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  const Call call(api);
  ++call_count;
  for (const void* end : {static_cast<const void*>(to), from})
    if (arena.holds(end) && !in_device(end, bytes)) return failed(cudaErrorInvalidValue);
  Operation operation;
  operation.run = [=] {
    const Opening open;
    std::memcpy(to, from, bytes);
  };
  return push(stream, std::move(operation));
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const Call call(api);
  ++call_count;
  if (!in_device(to, bytes) && bytes) return failed(cudaErrorInvalidValue);
  Operation operation;
  operation.run = [=] {
    const Opening open;
    std::memset(to, value, bytes);
  };
  return push(stream, std::move(operation));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  const Call call(api);
  ++call_count;
  if (sticky != cudaSuccess) return failed(sticky);
  streams.push_back(std::make_unique<CUstream_st>());
  *out = streams.back().get();
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Call call(api);
  ++call_count;
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);
  advance_until([&] { return stream->queue.empty(); });
  std::erase_if(streams, [&](auto& each) { return each.get() == stream; });
  return failed(sticky);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Call call(api);
  ++call_count;
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);
  return advance_until([&] { return stream->queue.empty(); });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Call call(api);
  ++call_count;
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);
  advance();
  if (sticky != cudaSuccess) return failed(sticky);
  return stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize() {
  const Call call(api);
  ++call_count;
  return advance_until([] {
    return std::all_of(streams.begin(), streams.end(), [](auto& stream) { return stream->queue.empty(); });
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  const Call call(api);
  ++call_count;
  if (sticky != cudaSuccess) return failed(sticky);
  events.push_back(std::make_unique<CUevent_st>());
  *out = events.back().get();
  return cudaSuccess;
}

// Streams may still name it, so that it lives until reset().
cudaError_t cudaEventDestroy(cudaEvent_t) { return sticky; }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Call call(api);
  ++call_count;
  Operation operation;
  operation.run = [event, turn = ++event->recorded] { event->done = std::max(event->done, turn); };
  return push(stream, std::move(operation));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Call call(api);
  ++call_count;
  Operation operation;
  operation.waits = event;
  operation.until = event->recorded;  // what is recorded later does not count
  return push(stream, std::move(operation));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Call call(api);
  ++call_count;
  return advance_until([event, turn = event->recorded] { return event->done >= turn; });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Call call(api);
  ++call_count;
  advance();
  if (sticky != cudaSuccess) return failed(sticky);
  return event->done >= event->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const Call call(api);
  ++call_count;
  if (sticky != cudaSuccess) return failed(sticky);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      value > static_cast<int>(kMostShared))
    return failed(cudaErrorInvalidValue);
  shared_limits[kernel] = value;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const Call call(api);
  const cudaError_t error = last_error;
  last_error = sticky;
  return error;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    default:
      return "unknown error";
  }
}
