#include <algorithm>
#include <new>
#include <utility>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/queue.h"

namespace wi::cuda {

static thread_local RecordedStep* noting_now = nullptr;

RecordedStep* noting() { return noting_now; }

Noting::Noting(RecordedStep* step) : before_(noting_now) {
  noting_now = step && step->recording() ? step : nullptr;
}
Noting::~Noting() { noting_now = before_; }

// What a step notes is kernels alone. A copy or a fill of the runtime's would be a node of the graph's that knows which
// allocation it is of, and launching it once that has been freed is undefined, though another lies at the same address by
// then and the step is the same to the byte. A kernel knows addresses only, and is quicker begun.
constexpr int kBytesThreads = 256;
constexpr unsigned kMostBytesBlocks = 64;  // which are enough for what the bus carries

// Whatever is aligned to 16 bytes by these; what is left by single ones. from null: zeros.
__global__ void __launch_bounds__(kBytesThreads)
    copy_bytes_kernel(std::byte* to, const std::byte* from, size_t bytes) {
  in_turn();
  const size_t thread = size_t{blockIdx.x} * kBytesThreads + threadIdx.x;
  const size_t threads = size_t{gridDim.x} * kBytesThreads;
  const bool at_16 = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 == 0;
  const size_t vectors = at_16 ? bytes / 16 : 0;
  for (size_t i = thread; i < vectors; i += threads)
    reinterpret_cast<uint4*>(to)[i] = from ? reinterpret_cast<const uint4*>(from)[i] : make_uint4(0, 0, 0, 0);
  for (size_t i = vectors * 16 + thread; i < bytes; i += threads) to[i] = from ? from[i] : std::byte{0};
}

static cudaError_t copy_bytes(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  const size_t blocks = (bytes / 16 + kBytesThreads - 1) / kBytesThreads + (bytes < 16);
  return launch(copy_bytes_kernel, static_cast<unsigned>(std::min<size_t>(blocks, kMostBytesBlocks)),
                kBytesThreads, 0, stream, static_cast<std::byte*>(to), static_cast<const std::byte*>(from),
                bytes);
}

cudaError_t clear(void* to, size_t bytes, cudaStream_t stream) {
  if (!bytes) return cudaSuccess;
  return noting() ? copy_bytes(to, nullptr, bytes, stream) : cudaMemsetAsync(to, 0, bytes, stream);
}

// Of memory that a step notes both sides are known to the device: its own, or pinned.
cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (!bytes) return cudaSuccess;
  return noting() ? copy_bytes(to, from, bytes, stream) : cudaMemcpyAsync(to, from, bytes, kind, stream);
}

// In front of what each was given.
struct NotedCall {
  RecordedStep::Start start;
  size_t bytes;  // up to the next one
};

void RecordedStep::forget() {
  for (Graph& each : kept_)
    if (each.graph) (void)cudaGraphExecDestroy(std::exchange(each.graph, nullptr));
}

cudaError_t RecordedStep::end(cudaStream_t stream) {
  if (!std::exchange(recording_, false)) return cudaSuccess;
  ++steps_;
  const auto found = std::find_if(std::begin(kept_), std::end(kept_),
                                  [&](const Graph& each) { return each.graph && each.step == now_; });
  Graph* const kept = found == std::end(kept_) ? nullptr : found;
  cudaGraphExec_t graph = kept ? kept->graph : seen_lately() ? captured(stream) : nullptr;
  cudaError_t error = graph ? cudaGraphLaunch(graph, stream) : cudaSuccess;
  // The first launch of a graph brings it to the device, and may find no memory for it.
  if (error != cudaSuccess && !loses_device(error)) {
    (void)cudaGraphExecDestroy(std::exchange(graph, nullptr));
    if (kept) kept->graph = nullptr;
    do_without_graphs();
  }
  if (!graph) {
    error = start_all(stream);
    if (error == cudaSuccess) std::swap(recent_[next_recent_++ % kRecent], now_);
  } else if (kept) {
    kept->used = steps_;
  } else {
    keep(graph);
  }
  now_.bytes.clear();
  now_.count = 0;
  return error;
}

cudaError_t RecordedStep::go_on_without(cudaStream_t stream) {
  if (!std::exchange(recording_, false)) return cudaSuccess;
  noting_now = nullptr;
  const cudaError_t error = start_all(stream);
  now_.bytes.clear();
  now_.count = 0;
  return error;
}

// Room for what it is given; null: there is none.
std::byte* RecordedStep::add(Start start, size_t bytes) {
  const NotedCall call = {start, (sizeof(NotedCall) + bytes + kAlign - 1) / kAlign * kAlign};
  static_assert(sizeof(NotedCall) % kAlign == 0);
  const size_t at = now_.bytes.size();
  try {
    now_.bytes.resize(at + call.bytes);  // zeros, where nothing is copied to
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  ++now_.count;
  std::memcpy(now_.bytes.data() + at, &call, sizeof call);
  return now_.bytes.data() + at + sizeof call;
}

cudaError_t RecordedStep::start_all(cudaStream_t stream) const {
  const Noting none(nullptr);
  for (size_t at = 0; at < now_.bytes.size();) {
    NotedCall call;
    std::memcpy(&call, now_.bytes.data() + at, sizeof call);
    const cudaError_t error = call.start(now_.bytes.data() + at + sizeof call, stream);
    if (error != cudaSuccess) return error;
    at += call.bytes;
  }
  return cudaSuccess;
}

// Only then its kernels are loaded, which is not to happen while a stream is captured.
bool RecordedStep::seen_lately() const {
  return now_.count >= kFewest && steps_ >= refused_until_ &&
         std::find(std::begin(recent_), std::end(recent_), now_) != std::end(recent_);
}

// Null: there is none, for whatever reason; this step goes on as it comes, and so do the next ones for a while.
cudaGraphExec_t RecordedStep::captured(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
  if (error == cudaSuccess) {
    error = start_all(stream);
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    if (error == cudaSuccess) error = ended;
  }
  if (error == cudaSuccess) error = cudaGraphInstantiate(&made, graph, 0);
  if (graph) (void)cudaGraphDestroy(graph);
  if (error == cudaSuccess) return made;
  do_without_graphs();
  return nullptr;
}

void RecordedStep::do_without_graphs() {
  (void)cudaGetLastError();  // a fault of the device's shows with what comes next
  refused_until_ = steps_ + kPatience;
}

// In the place of the one that was used least recently.
void RecordedStep::keep(cudaGraphExec_t graph) {
  Graph& place = *std::min_element(std::begin(kept_), std::end(kept_),
                                   [](const Graph& a, const Graph& b) { return a.used < b.used; });
  if (place.graph) (void)cudaGraphExecDestroy(place.graph);
  place.graph = graph;
  place.used = steps_;
  std::swap(place.step, now_);
}

size_t RecordedStep::bytes() const {
  size_t all = now_.bytes.capacity();
  for (const Graph& each : kept_) all += each.step.bytes.capacity();
  for (const Noted& each : recent_) all += each.bytes.capacity();
  return all;
}

}  // namespace wi::cuda
