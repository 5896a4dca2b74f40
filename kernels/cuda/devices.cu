// The devices of this machine, and their memory: kernels/device.h's table but for the queues' operations.
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/queue.h"

namespace wi::cuda {

constexpr int kLeastMajor = 8;  // compute capability: what the kernels are compiled for

// The device's properties, or why there are none, in words that say what to do.
static cudaError_t properties_of(int32_t index, cudaDeviceProp* out, char* reason, size_t room) {
  int devices = 0, driver = 0, runtime = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && index < devices) return cudaGetDeviceProperties(out, index);
  (void)cudaGetLastError();
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  const auto major = [](int version) { return version / 1000; };
  const auto minor = [](int version) { return version % 1000 / 10; };
  if (driver == 0)
    std::snprintf(reason, room, "there is no NVIDIA driver (libcuda.so.1)");
  else if (error == cudaErrorInsufficientDriver)
    std::snprintf(reason, room, "the NVIDIA driver knows CUDA up to %d.%d, and %d.%d is needed",
                  major(driver), minor(driver), major(runtime), minor(runtime));
  else if (error == cudaSuccess || error == cudaErrorNoDevice)
    std::snprintf(reason, room, "the NVIDIA driver shows %d device%s to this process", devices,
                  devices == 1 ? "" : "s");
  else
    std::snprintf(reason, room, "%s (CUDA error %d)", cudaGetErrorString(error), static_cast<int>(error));
  return error == cudaSuccess ? cudaErrorInvalidDevice : error;
}

static int32_t count() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
  (void)cudaGetLastError();
  return devices > 0 ? devices : 1;
}

static void describe(int32_t index, DeviceDescription* out) {
  *out = {};
  std::snprintf(out->name, sizeof out->name, "cuda:%d", static_cast<int>(index));
  cudaDeviceProp found = {};
  const cudaError_t error = properties_of(index, &found, out->reason, sizeof out->reason);
  if (error != cudaSuccess) {
    if (!out->reason[0]) std::snprintf(out->reason, sizeof out->reason, "%s", cudaGetErrorString(error));
    return;
  }
  std::snprintf(out->product, sizeof out->product, "%.*s", static_cast<int>(sizeof out->product) - 1,
                found.name);
  std::snprintf(out->target, sizeof out->target, "sm_%d%d", found.major, found.minor);
  out->processors = found.multiProcessorCount;
  out->memory_bytes = found.totalGlobalMem;
  out->l2_bytes = static_cast<uint64_t>(found.l2CacheSize);
  out->reads_pageable = found.pageableMemoryAccess != 0;
  if (cudaDeviceGetPCIBusId(out->bus, sizeof out->bus, index) != cudaSuccess) out->bus[0] = 0;
  (void)cudaGetLastError();
  if (found.major < kLeastMajor) {
    std::snprintf(out->reason, sizeof out->reason, "its compute capability is %d.%d, and %d.0 is the least",
                  found.major, found.minor, kLeastMajor);
    return;
  }
  const OnDevice on(index);
  cudaError_t unknown = cudaSuccess;
  const size_t shared = shared_bytes_of(index, &unknown);
  if (unknown == cudaSuccess && shared < kLeastShared) {
    std::snprintf(out->reason, sizeof out->reason,
                  "a block of threads has %zu bytes of shared memory, and %zu are the least", shared,
                  kLeastShared);
    return;
  }
  size_t free_bytes = 0, all = 0;
  const cudaError_t asked = cudaMemGetInfo(&free_bytes, &all);  // the first to need a context
  (void)cudaGetLastError();
  out->free_bytes = free_bytes;
  if (asked != cudaSuccess)
    std::snprintf(out->reason, sizeof out->reason, "%s (CUDA error %d)", cudaGetErrorString(asked),
                  static_cast<int>(asked));
}

static void* allocate(int32_t index, size_t bytes, DeviceError* error) {
  const OnDevice on(index);
  void* data = nullptr;
  char doing[64];
  std::snprintf(doing, sizeof doing, "%zu bytes of cuda:%d's memory", bytes, static_cast<int>(index));
  return report(cudaMalloc(&data, bytes), doing, error) ? data : nullptr;
}

static void free(int32_t index, void* data) {
  const OnDevice on(index);
  (void)cudaFree(data);
  (void)cudaGetLastError();
}

static void* allocate_pinned(int32_t index, size_t bytes, DeviceError* error) {
  const OnDevice on(index);
  void* data = nullptr;
  char doing[64];
  std::snprintf(doing, sizeof doing, "pinning %zu bytes of host memory", bytes);
  return report(cudaMallocHost(&data, bytes), doing, error) ? data : nullptr;
}

static void free_pinned(int32_t index, void* data) {
  const OnDevice on(index);
  (void)cudaFreeHost(data);
  (void)cudaGetLastError();
}

// Streams of the library's own, for calls that copy at once: they wait for nobody else's work, which the runtime's
// stream of a thread does where the host uses the default one. Kept for the next call.
class CopyStream {
 public:
  explicit CopyStream(int32_t index) : index_(index) {
    {
      std::lock_guard lock(mutex_);
      if (index < kDevices && idle_count_[index] > 0) stream_ = idle_[index][--idle_count_[index]];
    }
    if (const cudaError_t state = stream_ ? cudaStreamQuery(stream_) : cudaSuccess;
        state != cudaSuccess && state != cudaErrorNotReady) {  // the host reset the device
      (void)cudaGetLastError();
      stream_ = nullptr;
    }
    if (!stream_) error_ = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  }
  CopyStream(const CopyStream&) = delete;
  ~CopyStream() {
    if (!stream_ || error_ != cudaSuccess) return;
    {
      std::lock_guard lock(mutex_);
      if (index_ < kDevices && idle_count_[index_] < kKept) {
        idle_[index_][idle_count_[index_]++] = stream_;
        return;
      }
    }
    (void)cudaStreamDestroy(stream_);
  }
  cudaError_t error() const { return error_; }  // why there is none
  operator cudaStream_t() const { return stream_; }

  cudaError_t copy(const DeviceCopy* pieces, size_t count) const {
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < count && error == cudaSuccess; ++i)
      error = cudaMemcpyAsync(pieces[i].to, pieces[i].from, pieces[i].bytes, cudaMemcpyDefault, stream_);
    const cudaError_t done = cudaStreamSynchronize(stream_);  // of what was asked for, whatever failed then
    return error == cudaSuccess ? done : error;
  }

 private:
  static constexpr int32_t kDevices = 64, kKept = 16;
  static inline std::mutex mutex_;
  static inline cudaStream_t idle_[kDevices][kKept];
  static inline int32_t idle_count_[kDevices];

  const int32_t index_;
  cudaStream_t stream_ = nullptr;
  cudaError_t error_ = cudaSuccess;
};

static bool copy(int32_t index, const DeviceCopy* pieces, size_t count, DeviceError* error) {
  const OnDevice on(index);
  const CopyStream stream(index);
  return report(stream.error() == cudaSuccess ? stream.copy(pieces, count) : stream.error(), "copying",
                error);
}

// By one kernel to room of the device's, and by one copy from there.
static cudaError_t gather_now(cudaStream_t stream, const std::vector<GatheredPiece>& pieces, uint64_t bytes,
                              void* to) {
  const size_t list_bytes = (pieces.size() * sizeof(GatheredPiece) + 255) & ~size_t{255};
  void* room = nullptr;
  cudaError_t error = cudaMallocAsync(&room, list_bytes + bytes, stream);
  if (error != cudaSuccess) return error;
  auto* const list = static_cast<GatheredPiece*>(room);
  std::byte* const together = static_cast<std::byte*>(room) + list_bytes;
  error = cudaMemcpyAsync(list, pieces.data(), pieces.size() * sizeof(GatheredPiece), cudaMemcpyHostToDevice,
                          stream);
  if (error == cudaSuccess) error = gather(stream, list, static_cast<uint32_t>(pieces.size()), together);
  if (error == cudaSuccess) error = cudaMemcpyAsync(to, together, bytes, cudaMemcpyDeviceToHost, stream);
  const cudaError_t freed = cudaFreeAsync(room, stream), done = cudaStreamSynchronize(stream);
  return error != cudaSuccess ? error : freed != cudaSuccess ? freed : done;
}

// Where the device has no room for that, or no pool that room comes from, piece by piece.
static bool gather(int32_t index, const DevicePiece* pieces, size_t count, void* to, DeviceError* error) {
  const OnDevice on(index);
  const CopyStream stream(index);
  if (!report(stream.error(), "gathering", error)) return false;
  try {
    std::vector<GatheredPiece> list;
    list.reserve(count);
    uint64_t bytes = 0, uneven = 0;
    for (size_t i = 0; i < count; i++) {
      list.push_back({pieces[i].from, pieces[i].bytes, bytes});
      uneven |= (pieces[i].bytes | reinterpret_cast<uintptr_t>(pieces[i].from)) % 16;
      bytes += pieces[i].bytes;
    }
    cudaError_t gathered = cudaErrorMemoryAllocation;
    if (!uneven && count > 1) gathered = gather_now(stream, list, bytes, to);
    if (gathered != cudaErrorMemoryAllocation && gathered != cudaErrorNotSupported)
      return report(gathered, "gathering", error);
    (void)cudaGetLastError();
    for (const GatheredPiece& piece : list) {
      const DeviceCopy alone{static_cast<std::byte*>(to) + piece.at, piece.from, piece.bytes};
      if (!report(stream.copy(&alone, 1), "copying", error)) return false;
    }
    return true;
  } catch (const std::bad_alloc&) {
    return report(cudaErrorMemoryAllocation, "a list of pieces", error);
  }
}

static DeviceQueue* open_queue(int32_t index, DeviceError* error) {
  auto* const queue = new (std::nothrow) DeviceQueue(index);
  if (!queue) return report(cudaErrorMemoryAllocation, "a queue", error), nullptr;
  if (report(queue->open(), "a stream", error)) return queue;
  delete queue;
  return nullptr;
}

static void close_queue(DeviceQueue* queue) { delete queue; }

static void upload(DeviceQueue* queue, void* to, const void* from, size_t bytes) {
  const Asking asking(*queue);
  queue->send(to, from, bytes);
}

static void* stage(DeviceQueue* queue, const void* from, size_t bytes) {
  const Asking asking(*queue);
  const DeviceQueue::Room room = queue->room(bytes);
  if (!room) return nullptr;
  std::memcpy(room.host, from, bytes);
  queue->send(room, bytes);
  return room.device;
}

static void download(DeviceQueue* queue, void* to, const void* from, size_t bytes) {
  const Asking asking(*queue);
  constexpr size_t kMostStaged = size_t{8} << 20;
  // Straight there: what more is, at the pace of memory that is not pinned.
  const bool has_room = queue->is_download_room(to, bytes);
  if (!has_room && bytes > kMostStaged) queue->go_on_without_step();
  if (has_room || bytes > kMostStaged)
    return queue->note(copy(to, from, bytes, cudaMemcpyDeviceToHost, queue->stream));
  const DeviceQueue::Room staged = queue->room(bytes);
  if (!staged) return;
  queue->bring_back({staged.host, const_cast<std::byte*>(static_cast<const std::byte*>(from))}, 0, bytes,
                    {staged.host, to, bytes, [](const std::byte* came, void* place, size_t count) {
                       std::memcpy(place, came, count);
                     }});
}

static void* download_room(DeviceQueue* queue, size_t bytes) {
  const Asking asking(*queue);
  return queue->download_room(bytes);
}

static void fetch(DeviceQueue* queue, void* to, const void* from, size_t bytes) {
  const Asking asking(*queue);
  queue->fetch(to, from, bytes);
}

static void fetch_after(DeviceQueue* queue) {
  const Asking asking(*queue);
  queue->fetch_after();
}

static void await_fetched(DeviceQueue* queue) {
  const Asking asking(*queue);
  queue->await_fetched();
}

static QueueBytes queue_bytes(const DeviceQueue* queue) { return queue->bytes(); }

static uint64_t take_refused_pins(DeviceQueue* queue) { return queue->take_refused_pins(); }

// A step with a cache is no graph: launched again as one it ended the process in an H200's driver, with copies among its
// nodes (docs/results/gpu.md). As kernels alone (step.cu) it was not seen on a device yet, and would gain 2 %.
static void order_hot_pages(DeviceQueue* queue, const HotPages& pages) {
  const Asking asking(*queue);
  queue->go_on_without_step();
  if (!queue->failed()) queue->note(order_hot_pages(queue->stream, pages));
}

static void begin_step(DeviceQueue* queue) { queue->begin_step(); }

static void mark(DeviceQueue* queue, int32_t mark) {
  const Asking asking(*queue);
  queue->mark(mark);
}

static bool passed(DeviceQueue* queue, int32_t mark) {
  const Asking asking(*queue);
  return queue->passed(mark);
}

static bool finish(DeviceQueue* queue, DeviceError* error) {
  const Asking asking(*queue);
  return report(queue->finish(), "a step", error);
}

const DeviceTable device_table = {
    .count = count,
    .describe = describe,
    .reads_weights = reads_weights,
    .allocate = allocate,
    .free = free,
    .allocate_pinned = allocate_pinned,
    .free_pinned = free_pinned,
    .copy = copy,
    .gather = gather,
    .open_queue = open_queue,
    .close_queue = close_queue,
    .upload = upload,
    .stage = stage,
    .download = download,
    .download_room = download_room,
    .fetch = fetch,
    .fetch_after = fetch_after,
    .await_fetched = await_fetched,
    .queue_bytes = queue_bytes,
    .work_bytes = work_bytes,
    .take_refused_pins = take_refused_pins,
    .order_hot_pages = order_hot_pages,
    .begin_step = begin_step,
    .mark = mark,
    .passed = passed,
    .finish = finish,
};

}  // namespace wi::cuda
