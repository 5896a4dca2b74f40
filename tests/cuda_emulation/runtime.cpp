// The runtime's calls on the CPU: memory that is closed to the host, streams that run late, errors that stay.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <linux/mempolicy.h>
#include <map>
#include <mutex>
#include <optional>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include "tests/cuda_emulation/cuda.h"
#include "tests/cuda_emulation/internal.h"
#include "tests/cuda_emulation/traffic.h"

namespace cuda_emulation {
namespace {

constexpr size_t kArenaBytes = size_t{1} << 36;
constexpr int kProcessors = 2;
constexpr size_t kMostFilled = size_t{1} << 20;

std::recursive_mutex api;
std::string first_report;
cudaError_t sticky = cudaSuccess;
cudaError_t last_error = cudaSuccess;
uint64_t launch_count, call_count, pin_count, host_context_calls, graph_count;
int64_t graphs_alive;
bool captures = true;
thread_local std::vector<const void*>
    contexts;  // the driver's stack; a device's primary one is its number's address
constexpr int kMostDevices = 8, kHostContext = -1, kPrimaryContexts[kMostDevices] = {};
int holders[kMostDevices];           // of primary contexts
thread_local int chosen_device = 0;  // by the runtime's call, of who has no context of the driver's
int running_on = -1;                 // the device of the kernel that runs
uint64_t device_launches[kMostDevices];
int pin_node = -1;
int64_t allocations_left = -1, launches_left = -1, launch_calls_left = -1, graph_calls_left = -1;
Machine machine;
uint64_t resets;
Traffic counted;

struct Piece {
  size_t bytes;
  size_t mapped;
  int device;
};

struct Arena {
  std::byte* base = static_cast<std::byte*>(
      mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  size_t used = 0;
  std::map<const std::byte*, Piece> pieces;
  int openings = 0;
  // By a key that only the thread has who opens, where the processor has keys; by its pages, each time, otherwise.
  int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);

  Arena() {
    if (key >= 0 && pkey_mprotect(base, kArenaBytes, PROT_READ | PROT_WRITE, key) != 0) key = -1;
  }
  bool holds(const void* address) const { return address >= base && address < base + kArenaBytes; }
  void set_open(bool open) {
    if (key >= 0)
      pkey_set(key, open ? 0 : PKEY_DISABLE_ACCESS);
    else if (used)
      mprotect(base, used, open ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
};
Arena arena;
std::map<const std::byte*, size_t> pinned;

}  // namespace

std::mt19937_64& drawn() {
  static std::mt19937_64 generator;
  return generator;
}

void note(cudaError_t error, std::string text) {
  if (sticky != cudaSuccess) return;
  sticky = error;
  first_report = std::move(text);
  std::fprintf(stderr, "cuda_emulation: %s\n", first_report.c_str());
}

bool in_arena(const void* address) { return arena.holds(address); }
bool in_device(const void* address, size_t bytes, Region* found) {
  const auto* const at = static_cast<const std::byte*>(address);
  auto after = arena.pieces.upper_bound(at);
  if (after == arena.pieces.begin()) return false;
  const auto& [begin, piece] = *--after;
  if (at + bytes > begin + piece.bytes) return false;
  if (running_on >= 0 && running_on != piece.device) return false;  // no peer's
  if (found) *found = {reinterpret_cast<uintptr_t>(begin), reinterpret_cast<uintptr_t>(begin) + piece.bytes};
  return true;
}
bool in_pinned(const void* address, size_t bytes, Region* found) {
  if (machine.reads_pageable) return true;
  const auto* const at = static_cast<const std::byte*>(address);
  auto after = pinned.upper_bound(at);
  if (after == pinned.begin()) return false;
  const auto& [begin, size] = *--after;
  if (at + bytes > begin + size) return false;
  if (found) *found = {reinterpret_cast<uintptr_t>(begin), reinterpret_cast<uintptr_t>(begin) + size};
  return true;
}

Opening::Opening() {
  if (arena.openings++ == 0) arena.set_open(true);
}
Opening::~Opening() {
  if (--arena.openings == 0) arena.set_open(false);
}

}  // namespace cuda_emulation

using namespace cuda_emulation;

struct CUevent_st {
  int device = 0;
  uint64_t recorded = 0, done = 0;
};

namespace cuda_emulation {
namespace {

struct Operation {
  std::function<void()> run;
  CUevent_st* waits = nullptr;  // until this one is done as often as
  uint64_t until = 0;
  bool alone = false;   // no graph holds it
  bool copies = false;  // by the runtime: of an allocation, whatever lies at its address by then
};

}  // namespace
}  // namespace cuda_emulation

struct CUstream_st {
  int device = 0;
  std::deque<Operation> queue;
  bool capturing = false, spoiled = false;  // by something that no graph holds
  bool captures_globally = false;           // while capturing
  std::vector<Operation> captured;
  bool ready() const {
    return !queue.empty() && (!queue.front().waits || queue.front().waits->done >= queue.front().until);
  }
};

// What was captured; a graph that was instantiated has it too.
struct CUgraph_st {
  std::vector<Operation> operations;
};
struct CUgraphExec_st : CUgraph_st {};

namespace cuda_emulation {
namespace {

std::vector<std::unique_ptr<CUstream_st>> streams;
std::vector<std::unique_ptr<CUstream_st>>
    forgotten;  // so that no other has the address of one that is still known
std::vector<std::unique_ptr<CUevent_st>> events;
std::map<std::pair<const void*, int>, int>
    shared_limits;  // what cudaFuncSetAttribute allowed, on which device

using Call = std::lock_guard<std::recursive_mutex>;

// Of the context that is current.
int current() {
  if (contexts.empty()) return chosen_device;
  return contexts.back() == &kHostContext
             ? 0
             : static_cast<int>(static_cast<const int*>(contexts.back()) - kPrimaryContexts);
}

// What belongs to the context that it is made in.
void use_context() {
  if (!contexts.empty() && contexts.back() == &kHostContext) ++host_context_calls;
}

cudaError_t failed(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Of a call that could be meant for a graph and is for none, or waits for one, while a stream is captured globally, by
// whatever thread: it fails, and what is captured is of no use. But where the calling thread has said that it knows.
bool unsafe() {
  if (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  bool any = false;
  for (const auto& stream : streams) {
    if (!stream->capturing || !stream->captures_globally) continue;
    any = stream->spoiled = true;
  }
  return any;
}

// Whether memory is to be refused now, as fail_allocations_from() said.
bool refused() {
  if (allocations_left < 0) return false;
  if (allocations_left == 0) return true;
  --allocations_left;
  return false;
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
  std::optional<Opening> open;  // once for all that runs here
  while (!done() && sticky == cudaSuccess) {
    if (!open) open.emplace();
    if (!advance()) note(cudaErrorUnknown, "waits for an event that no stream comes to");
  }
  if (sticky != cudaSuccess)
    for (const auto& stream : streams) stream->queue.clear();
  return failed(sticky);
}

// cudaStreamPerThread is a stream of the calling thread's own.
CUstream_st* named(CUstream_st* stream) {
  if (stream != cudaStreamPerThread) return stream;
  thread_local CUstream_st* own = nullptr;
  thread_local uint64_t made_after = 0;
  if (!own || made_after != resets) {
    streams.push_back(std::make_unique<CUstream_st>());
    own = streams.back().get();
    own->device = current();
    made_after = resets;
  }
  return own;
}

bool forget_piece(std::byte* data) {
  const auto piece = arena.pieces.find(data);
  if (piece == arena.pieces.end()) return false;
  madvise(data, piece->second.mapped, MADV_DONTNEED);
  arena.pieces.erase(piece);
  return true;
}

// By the calling thread's memory policy.
int preferred_node() {
  int policy = 0;
  unsigned long nodes[16] = {};
  if (syscall(SYS_get_mempolicy, &policy, nodes, 8 * sizeof nodes, nullptr, 0) != 0) return -2;
  if (policy == MPOL_PREFERRED)
    for (int node = 0; node < 1024; ++node)
      if (nodes[node / 64] >> (node % 64) & 1) return node;
  return -1;
}

bool known(CUstream_st* stream) {
  return std::any_of(streams.begin(), streams.end(), [&](auto& each) { return each.get() == stream; });
}

cudaError_t push(CUstream_st* given, Operation operation) {
  CUstream_st* const stream = named(given);
  if (sticky != cudaSuccess) return failed(sticky);
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);  // the default stream is one of those
  if (stream->capturing) {
    stream->spoiled = stream->spoiled || operation.waits || operation.alone;
    if (operation.copies)
      note(cudaErrorUnknown, "a graph holds a copy, of memory that may be freed before it is");
    stream->captured.push_back(std::move(operation));
    return cudaSuccess;
  }
  stream->queue.push_back(std::move(operation));
  // Some work is done before the host has said more, most of it late.
  while (draw(4) == 0 && advance()) {
  }
  return failed(sticky);
}

}  // namespace

void reset(uint64_t seed) {
  const Call call(api);
  prepare_blocks();
  drawn().seed(seed);
  first_report.clear();
  sticky = last_error = cudaSuccess;
  std::fill(std::begin(device_launches), std::end(device_launches), 0);
  launch_count = call_count = pin_count = graph_count = 0;
  captures = true;
  allocations_left = launches_left = launch_calls_left = graph_calls_left = -1;
  machine = {};
  counted = {};
  ++resets;
  std::move(streams.begin(), streams.end(), std::back_inserter(forgotten));
  streams.clear();
  events.clear();
  shared_limits.clear();
  for (const auto& [at, piece] : arena.pieces)
    madvise(const_cast<std::byte*>(at), piece.mapped, MADV_DONTNEED);
  arena.pieces.clear();
  arena.used = 0;
  for (const auto& [at, bytes] : pinned) std::free(const_cast<std::byte*>(at));
  pinned.clear();
}

const std::string& report() { return first_report; }
uint64_t launches() { return launch_count; }
uint64_t launches_on(int device) { return device_launches[device]; }
uint64_t api_calls() { return call_count; }
Traffic traffic() {
  const Call call(api);
  return counted;
}
uint64_t graph_launches() { return graph_count; }
int64_t graphs() { return graphs_alive; }
void allow_capture(bool allowed) { captures = allowed; }
uint64_t pins() {
  const Call call(api);
  return pin_count;
}
int last_pin_node() {
  const Call call(api);
  return pin_node;
}
void fail_allocations_from(int64_t nth) { allocations_left = nth; }
void set_machine(const Machine& given) { machine = given; }
size_t limit_shared(size_t bytes) { return machine.shared_bytes = std::min(bytes, kMostShared); }
void fail_launch(int64_t nth) { launches_left = nth; }
void refuse_launch(int64_t nth) { launch_calls_left = nth; }
void refuse_graph_launch(int64_t nth) { graph_calls_left = nth; }
int live_contexts() {
  const Call call(api);
  return static_cast<int>(std::count_if(holders, holders + kMostDevices, [](int each) { return each > 0; }));
}
void enter_host_context() {
  contexts.push_back(&kHostContext);
  host_context_calls = 0;
}
bool in_host_context() { return contexts.size() == 1 && contexts.back() == &kHostContext; }
uint64_t calls_in_host_context() { return host_context_calls; }
void leave_host_context() { contexts.pop_back(); }

cudaError_t enqueue(const cudaLaunchConfig_t& config, Launch launch) {
  const Call call(api);
  ++call_count;
  use_context();
  prepare_blocks();
  const dim3 &grid = config.gridDim, &size = config.blockDim;
  const uint64_t threads = uint64_t{size.x} * size.y * size.z;
  // Whole warps: part of one has no use here, and hides that lanes are missing.
  if (threads == 0 || threads > kMostThreads || threads % 32 || grid.x == 0 || grid.x > 0x7FFFFFFF ||
      grid.y == 0 || grid.y > 65535 || grid.z == 0 || grid.z > 65535)
    return failed(cudaErrorInvalidConfiguration);
  CUstream_st* const stream = named(config.stream);
  if (!known(stream) || stream->device != current()) return failed(cudaErrorInvalidResourceHandle);
  const auto allowed = shared_limits.find({launch.kernel, stream->device});
  const size_t most = allowed == shared_limits.end() ? kPlainShared : static_cast<size_t>(allowed->second);
  if (config.dynamicSmemBytes > most) return failed(cudaErrorInvalidValue);
  if (launch_calls_left >= 0 && launch_calls_left-- == 0) return failed(cudaErrorMemoryAllocation);
  Operation operation;
  operation.run = [config, device = stream->device, launch = std::make_shared<Launch>(std::move(launch))] {
    if (launches_left >= 0 && launches_left-- == 0)
      return note(cudaErrorIllegalAddress, "a launch that was to fault");
    running_on = device;
    ++device_launches[device];
    run_grid(config, *launch);
    running_on = -1;
  };
  return push(config.stream, std::move(operation));
}

}  // namespace cuda_emulation

// ---- the runtime's own calls

cudaError_t cudaGetDeviceCount(int* out) {
  const Call call(api);
  ++call_count;
  *out = 0;
  if (machine.driver < 13000) return failed(cudaErrorInsufficientDriver);
  if (machine.devices == 0) return failed(cudaErrorNoDevice);
  *out = machine.devices;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
  const Call call(api);
  ++call_count;
  if (device < 0 || device >= machine.devices) return failed(cudaErrorInvalidDevice);
  *out = {};
  std::snprintf(out->name, sizeof out->name, "Emulated");
  out->totalGlobalMem = machine.memory_bytes;
  out->major = machine.major;
  out->minor = machine.minor;
  out->multiProcessorCount = kProcessors;
  out->l2CacheSize = 1 << 20;
  out->pageableMemoryAccess = machine.reads_pageable;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* out, int room, int device) {
  const Call call(api);
  ++call_count;
  if (device < 0 || device >= machine.devices) return failed(cudaErrorInvalidDevice);
  std::snprintf(out, static_cast<size_t>(room), "%s", device ? "" : machine.bus);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* out, cudaDeviceAttr attribute, int device) {
  const Call call(api);
  ++call_count;
  if (sticky != cudaSuccess) return failed(sticky);
  if (device < 0 || device >= machine.devices) return failed(cudaErrorInvalidDevice);
  if (attribute == cudaDevAttrMultiProcessorCount)
    *out = kProcessors;
  else if (attribute == cudaDevAttrComputeCapabilityMajor)
    *out = machine.major;
  else if (attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin)
    *out = static_cast<int>(machine.shared_bytes);
  else
    return failed(cudaErrorInvalidValue);
  return cudaSuccess;
}

namespace {
CUresult device_of(CUdevice* out, int index) { return *out = index, CUDA_SUCCESS; }
CUresult retain_primary(CUcontext* out, CUdevice device) {
  const Call call(api);
  if (device < 0 || device >= std::min(machine.devices, kMostDevices)) return CUDA_ERROR_INVALID_VALUE;
  ++holders[device];
  *out = reinterpret_cast<CUcontext>(const_cast<int*>(&kPrimaryContexts[device]));
  return CUDA_SUCCESS;
}
CUresult release_primary(CUdevice device) {
  const Call call(api);
  if (device < 0 || device >= kMostDevices || !holders[device]) return CUDA_ERROR_INVALID_CONTEXT;
  --holders[device];
  return CUDA_SUCCESS;
}
CUresult push_context(CUcontext context) {
  const Call call(api);
  const void* const at = context;
  for (int device = 0; device < kMostDevices; ++device)
    if (at == &kPrimaryContexts[device] && !holders[device]) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return contexts.push_back(at), CUDA_SUCCESS;
}
CUresult pop_context(CUcontext* out) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *out = reinterpret_cast<CUcontext>(const_cast<void*>(contexts.back()));
  contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult memory_info(size_t* free_bytes, size_t* all_bytes) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  return static_cast<CUresult>(cudaMemGetInfo(free_bytes, all_bytes));
}
CUresult exchange_capture_mode(CUstreamCaptureMode* mode) {
  return std::swap(*mode, capture_mode), CUDA_SUCCESS;
}
}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** out, unsigned, unsigned long long,
                                             void*) {
  const std::pair<const char*, void*> known[] = {
      {"cuDeviceGet", reinterpret_cast<void*>(device_of)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(retain_primary)},
      {"cuDevicePrimaryCtxRelease", reinterpret_cast<void*>(release_primary)},
      {"cuMemGetInfo", reinterpret_cast<void*>(memory_info)},
      {"cuCtxPushCurrent", reinterpret_cast<void*>(push_context)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(pop_context)},
      {"cuThreadExchangeStreamCaptureMode", reinterpret_cast<void*>(exchange_capture_mode)}};
  for (const auto& [known_name, function] : known)
    if (std::strcmp(name, known_name) == 0) return *out = function, cudaSuccess;
  return cudaErrorInvalidValue;
}

cudaError_t cudaGetDevice(int* out) {
  const Call call(api);
  ++call_count;
  *out = current();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  const Call call(api);
  ++call_count;
  if (device < 0 || device >= machine.devices) return failed(cudaErrorInvalidDevice);
  chosen_device = device;
  if (!contexts.empty()) contexts.back() = &kPrimaryContexts[device];  // in the place of what was current
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all_bytes) {
  const Call call(api);
  ++call_count;
  if (sticky != cudaSuccess) return failed(sticky);
  *free_bytes = machine.free_bytes;
  *all_bytes = machine.memory_bytes;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* out) {
  *out = machine.driver;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* out) {
  *out = 13000;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** out, size_t bytes) {
  const Call call(api);
  ++call_count;
  if (unsafe()) return failed(cudaErrorStreamCaptureUnsupported);
  use_context();
  *out = nullptr;
  if (sticky != cudaSuccess) return failed(sticky);
  if (refused()) return failed(cudaErrorMemoryAllocation);
  if (bytes == 0) return cudaSuccess;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t mapped = (bytes + page - 1) / page * page;
  if (mapped > kArenaBytes || arena.used + mapped + page > kArenaBytes)
    return failed(cudaErrorMemoryAllocation);
  std::byte* const at = arena.base + arena.used;
  arena.used += mapped + page;  // one that nobody has
  arena.pieces[at] = {bytes, mapped, current()};
  {
    const Opening open;
    std::memset(at, 0xA5, std::min(bytes, kMostFilled));  // of who had it before
  }
  *out = at;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  const Call call(api);
  ++call_count;
  if (unsafe()) return failed(cudaErrorStreamCaptureUnsupported);
  if (!data) return cudaSuccess;
  advance_until([] {  // as the device's does
    return std::all_of(streams.begin(), streams.end(), [](auto& stream) { return stream->queue.empty(); });
  });
  return failed(forget_piece(static_cast<std::byte*>(data)) ? sticky : cudaErrorInvalidValue);
}

cudaError_t cudaMallocHost(void** out, size_t bytes) {
  const Call call(api);
  ++call_count;
  if (unsafe()) return failed(cudaErrorStreamCaptureUnsupported);
  ++pin_count;
  pin_node = preferred_node();
  *out = nullptr;
  if (sticky != cudaSuccess) return failed(sticky);
  if (refused()) return failed(cudaErrorMemoryAllocation);
  if (!machine.pins) return failed(cudaErrorMemoryAllocation);
  *out = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!*out) return failed(cudaErrorMemoryAllocation);
  pinned[static_cast<std::byte*>(*out)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  const Call call(api);
  ++call_count;
  if (unsafe()) return failed(cudaErrorStreamCaptureUnsupported);
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
  const bool from_device = arena.holds(from), to_device = arena.holds(to);
  if (from_device || to_device)
    (from_device && to_device ? counted.within : to_device ? counted.to_device : counted.to_host) += bytes;
  Operation operation;
  operation.run = [=] {
    const Opening open;
    std::memcpy(to, from, bytes);
  };
  operation.copies = true;
  for (const void* end : {static_cast<const void*>(to), from})
    operation.alone = operation.alone || (!arena.holds(end) && !in_pinned(end, bytes));
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
  operation.copies = true;
  return push(stream, std::move(operation));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  const Call call(api);
  ++call_count;
  use_context();
  if (sticky != cudaSuccess) return failed(sticky);
  streams.push_back(std::make_unique<CUstream_st>());
  streams.back()->device = current();
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

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Call call(api);
  ++call_count;
  if (sticky != cudaSuccess) return failed(sticky);
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);
  if (stream->capturing) return failed(cudaErrorStreamCaptureUnsupported);
  stream->capturing = true;
  stream->captures_globally = mode == cudaStreamCaptureModeGlobal;
  stream->spoiled = !captures;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
  const Call call(api);
  ++call_count;
  *out = nullptr;
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);
  if (!stream->capturing) return failed(cudaErrorInvalidValue);
  stream->capturing = false;
  std::vector<Operation> captured = std::move(stream->captured);
  stream->captured.clear();
  if (sticky != cudaSuccess) return failed(sticky);
  if (stream->spoiled) return failed(cudaErrorStreamCaptureUnsupported);
  ++graphs_alive;
  *out = new CUgraph_st{std::move(captured)};
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  const Call call(api);
  ++call_count;
  *out = nullptr;
  if (sticky != cudaSuccess) return failed(sticky);
  if (refused()) return failed(cudaErrorMemoryAllocation);
  ++graphs_alive;
  *out = new CUgraphExec_st{{graph->operations}};
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Call call(api);
  ++call_count;
  --graphs_alive;
  delete graph;
  return cudaSuccess;
}

// One call, whatever is in it.
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  const Call call(api);
  ++call_count;
  if (graph_calls_left >= 0 && graph_calls_left-- == 0) return failed(cudaErrorMemoryAllocation);
  ++graph_count;
  cudaError_t error = sticky;
  for (const Operation& each : graph->operations)
    if (error == cudaSuccess) error = push(stream, each);
  return failed(error);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  const Call call(api);
  ++call_count;
  --graphs_alive;
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t given) {
  const Call call(api);
  ++call_count;
  ++counted.waits;
  CUstream_st* const stream = named(given);
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);
  if (stream->capturing) {
    stream->spoiled = true;
    return failed(cudaErrorStreamCaptureUnsupported);
  }
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
  if (unsafe()) return failed(cudaErrorStreamCaptureUnsupported);
  return advance_until([] {
    return std::all_of(streams.begin(), streams.end(), [](auto& stream) { return stream->queue.empty(); });
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  const Call call(api);
  ++call_count;
  if (sticky != cudaSuccess) return failed(sticky);
  events.push_back(std::make_unique<CUevent_st>());
  events.back()->device = current();
  *out = events.back().get();
  return cudaSuccess;
}

// Streams may still name it, so that it lives until reset().
cudaError_t cudaEventDestroy(cudaEvent_t) { return sticky; }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Call call(api);
  ++call_count;
  if (!known(named(stream)) || named(stream)->device != event->device)
    return failed(cudaErrorInvalidResourceHandle);
  Operation operation;
  operation.run = [event, turn = ++event->recorded] { event->done = std::max(event->done, turn); };
  operation.alone = true;
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
  if (unsafe()) return failed(cudaErrorStreamCaptureUnsupported);
  advance();
  if (sticky != cudaSuccess) return failed(sticky);
  return event->done >= event->recorded ? cudaSuccess : cudaErrorNotReady;
}

// Shared memory that a kernel has without asking is the host's statics, which take none of a block's.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void*) {
  const Call call(api);
  ++call_count;
  if (sticky != cudaSuccess) return failed(sticky);
  *out = {.sharedSizeBytes = 0};
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const Call call(api);
  ++call_count;
  if (sticky != cudaSuccess) return failed(sticky);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      value > static_cast<int>(machine.shared_bytes))
    return failed(cudaErrorInvalidValue);
  shared_limits[{kernel, current()}] = value;
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
