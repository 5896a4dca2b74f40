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

static void describe(int32_t index, bool to_use, DeviceDescription* out) {
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
  cudaError_t unknown = cudaSuccess;
  const size_t shared = shared_bytes_of(index, &unknown);
  if (unknown == cudaSuccess && shared < kLeastShared) {
    std::snprintf(out->reason, sizeof out->reason,
                  "a block of threads has %zu bytes of shared memory, and %zu are the least", shared,
                  kLeastShared);
    return;
  }
  const cudaError_t asked = free_bytes_of(index, to_use, &out->free_bytes);
  (void)cudaGetLastError();
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

struct StreamAndRoom {
  cudaStream_t stream = nullptr;
  std::byte* room = nullptr;  // a list, and behind it what it brings together; null: nobody has gathered yet
};

// Streams of the library's own, for calls that copy at once: they wait for nobody else's work, which the runtime's
// stream of a thread does where the host uses the default one. Kept for the next call, each with its room.
class CopyStream {
 public:
  explicit CopyStream(int32_t index) : index_(index) {
    {
      std::lock_guard lock(mutex_);
      if (index < kDevices && idle_count_[index] > 0) own_ = idle_[index][--idle_count_[index]];
    }
    if (const cudaError_t state = own_.stream ? cudaStreamQuery(own_.stream) : cudaSuccess;
        state != cudaSuccess && state != cudaErrorNotReady) {  // the host reset the device
      (void)cudaGetLastError();
      own_ = {};
    }
    if (!own_.stream) error_ = cudaStreamCreateWithFlags(&own_.stream, cudaStreamNonBlocking);
  }
  CopyStream(const CopyStream&) = delete;
  ~CopyStream() {
    if (!own_.stream || error_ != cudaSuccess) return;
    {
      std::lock_guard lock(mutex_);
      if (index_ < kDevices && idle_count_[index_] < kKept) {
        idle_[index_][idle_count_[index_]++] = own_;
        return;
      }
    }
    (void)cudaFree(own_.room);
    (void)cudaStreamDestroy(own_.stream);
  }
  cudaError_t error() const { return error_; }  // why there is none

  cudaError_t copy(const DeviceCopy* pieces, size_t count) const {
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < count && error == cudaSuccess; ++i)
      error = cudaMemcpyAsync(pieces[i].to, pieces[i].from, pieces[i].bytes, cudaMemcpyDefault, own_.stream);
    return waited(error);
  }

  // As many pieces at a time as the room has room for: by one kernel to there, and by one copy from there. Pieces that
  // have none are copied by themselves. All of it in multiples of 16 bytes.
  cudaError_t gather(const DevicePiece* pieces, size_t count, std::byte* to) {
    void* room = own_.room;
    cudaError_t error = room ? cudaSuccess : cudaMalloc(&room, kListBytes + kRoomBytes);
    if (error != cudaSuccess) return error;
    own_.room = static_cast<std::byte*>(room);
    std::vector<GatheredPiece> list;  // of all: it is read when its turn comes
    list.reserve(count);
    for (size_t next = 0; next < count && error == cudaSuccess;) {
      const size_t first = list.size();
      uint64_t bytes = 0;
      for (; next < count && list.size() - first < kListed; ++next) {
        if (pieces[next].bytes > kRoomBytes - bytes) break;
        list.push_back({pieces[next].from, pieces[next].bytes, bytes});
        bytes += pieces[next].bytes;
      }
      if (list.size() == first) {
        bytes = pieces[next].bytes;
        error = cudaMemcpyAsync(to, pieces[next++].from, bytes, cudaMemcpyDeviceToHost, own_.stream);
      } else {
        error = gather_listed(list.data() + first, list.size() - first, bytes, to);
      }
      to += bytes;
    }
    return waited(error);
  }

 private:
  static constexpr int32_t kDevices = 64, kKept = 16;
  static constexpr size_t kListed = 4096, kListBytes = kListed * sizeof(GatheredPiece);
  // Of what the bus carries that is a tenth of a millisecond. It is in no budget, and so does not grow with what is
  // asked for.
  static constexpr uint64_t kRoomBytes = uint64_t{4} << 20;
  static_assert(kListBytes % 256 == 0);
  static inline std::mutex mutex_;
  static inline StreamAndRoom idle_[kDevices][kKept];
  static inline int32_t idle_count_[kDevices];

  // Also of what was asked for before something failed.
  cudaError_t waited(cudaError_t error) const {
    const cudaError_t done = cudaStreamSynchronize(own_.stream);
    return error == cudaSuccess ? done : error;
  }

  cudaError_t gather_listed(const GatheredPiece* list, size_t count, uint64_t bytes, std::byte* to) const {
    auto* const listed = reinterpret_cast<GatheredPiece*>(own_.room);
    std::byte* const together = own_.room + kListBytes;
    cudaError_t error =
        cudaMemcpyAsync(listed, list, count * sizeof(GatheredPiece), cudaMemcpyHostToDevice, own_.stream);
    if (error == cudaSuccess)
      error = cuda::gather(own_.stream, listed, static_cast<uint32_t>(count), together);
    if (error != cudaSuccess) return error;
    return cudaMemcpyAsync(to, together, bytes, cudaMemcpyDeviceToHost, own_.stream);
  }

  const int32_t index_;
  StreamAndRoom own_;
  cudaError_t error_ = cudaSuccess;
};

static bool copy(int32_t index, const DeviceCopy* pieces, size_t count, DeviceError* error) {
  const OnDevice on(index);
  const CopyStream stream(index);
  return report(stream.error() == cudaSuccess ? stream.copy(pieces, count) : stream.error(), "copying",
                error);
}

// Where the device has no room for that, each piece by itself, and all are waited for together.
static bool gather(int32_t index, const DevicePiece* pieces, size_t count, void* to, DeviceError* error) {
  const OnDevice on(index);
  CopyStream stream(index);
  if (!report(stream.error(), "gathering", error)) return false;
  try {
    std::vector<DeviceCopy> alone;
    alone.reserve(count);
    auto* at = static_cast<std::byte*>(to);
    uint64_t uneven = 0;
    for (size_t i = 0; i < count; i++) {
      alone.push_back({at, pieces[i].from, pieces[i].bytes});
      uneven |= (pieces[i].bytes | reinterpret_cast<uintptr_t>(pieces[i].from)) % 16;
      at += pieces[i].bytes;
    }
    cudaError_t gathered = cudaErrorMemoryAllocation;
    if (!uneven && count > 1) gathered = stream.gather(pieces, count, static_cast<std::byte*>(to));
    if (gathered != cudaErrorMemoryAllocation) return report(gathered, "gathering", error);
    (void)cudaGetLastError();
    return report(stream.copy(alone.data(), count), "copying", error);
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

static void follow(DeviceQueue* queue, DeviceQueue* first) {
  const Asking asking(*queue);
  queue->follow(*first);
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
    .follow = follow,
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
