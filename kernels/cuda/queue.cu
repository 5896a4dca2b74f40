#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <new>
#include <type_traits>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/queue.h"

using wi::cuda::OnDevice;

namespace wi::cuda {

// The driver's own functions, by way of the runtime, for nothing links the driver; and devices' primary contexts, which
// are kept: every library of the process that uses the runtime shares them. Each thread looks once.
struct Contexts {
  static constexpr int32_t kDevices = 64;
  bool looked;
  CUresult (*get_device)(CUdevice*, int);
  CUresult (*retain_primary)(CUcontext*, CUdevice);
  CUresult (*release_primary)(CUdevice);
  CUresult (*push)(CUcontext);
  CUresult (*pop)(CUcontext*);
  CUresult (*memory_info)(size_t*, size_t*);
  CUresult (*exchange_capture_mode)(CUstreamCaptureMode*);
  CUcontext primary[kDevices];

  void look() {
    const auto find = [](const char* name, auto* function) {
      void* found = nullptr;
      if (cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, nullptr) == cudaSuccess)
        *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(found);
    };
    looked = true;
    find("cuDeviceGet", &get_device);
    find("cuDevicePrimaryCtxRetain", &retain_primary);
    find("cuDevicePrimaryCtxRelease", &release_primary);
    find("cuCtxPushCurrent", &push);
    find("cuCtxPopCurrent", &pop);
    find("cuMemGetInfo", &memory_info);
    find("cuThreadExchangeStreamCaptureMode", &exchange_capture_mode);
    (void)cudaGetLastError();
  }
  bool push_primary(int32_t index) {
    if (!looked) look();
    if (index >= kDevices || !get_device || !retain_primary || !push || !pop) return false;
    CUdevice device = 0;
    CUcontext& context = primary[index];
    if (!context &&
        (get_device(&device, index) != CUDA_SUCCESS || retain_primary(&context, device) != CUDA_SUCCESS))
      context = nullptr;
    if (context && push(context) == CUDA_SUCCESS) return true;
    context = nullptr;  // the host has reset the device: it has another one
    return false;
  }
};
static thread_local Contexts contexts;  // zeros

// The runtime's calls go to the context that is current, which may be one of the host's own, with a device of the same
// number: cudaSetDevice() alone would have the host go on in another.
OnDevice::OnDevice(int32_t index) : index_(index), pushed_(contexts.push_primary(index)) {
  relaxed_ = contexts.exchange_capture_mode && contexts.exchange_capture_mode(&captures_) == CUDA_SUCCESS;
  if (pushed_) return;
  if (cudaGetDevice(&before_) != cudaSuccess) before_ = index;
  if (before_ != index) (void)cudaSetDevice(index);
}
OnDevice::~OnDevice() {
  CUcontext popped = nullptr;
  if (relaxed_) (void)contexts.exchange_capture_mode(&captures_);
  if (pushed_)
    (void)contexts.pop(&popped);
  else if (before_ != index_)
    (void)cudaSetDevice(before_);
}

// By device, 0: nobody has asked, 1: no, 2: yes. Each thread asks once.
static thread_local int8_t early[Contexts::kDevices];

int current_device() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

bool launches_early(int device) {
  int major = 0;
  if (device < 0 || device >= Contexts::kDevices) return false;
  if (!early[device]) {
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess)
      return false;
    early[device] = major >= 9 ? 2 : 1;
  }
  return early[device] == 2;
}

cudaError_t allow_shared(const void* kernel, int device, bool again) {
  struct Allowed {
    const void* kernel;
    int device;
  };
  static thread_local Allowed allowed[64];
  Allowed& slot = allowed[((reinterpret_cast<uintptr_t>(kernel) >> 4) + static_cast<unsigned>(device)) % 64];
  if (!again && slot.kernel == kernel && slot.device == device) return cudaSuccess;
  slot = {};
  cudaError_t error = cudaSuccess;
  const size_t all = shared_bytes_of(device, &error);
  cudaFuncAttributes attributes = {};
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(all - attributes.sharedSizeBytes));
  if (error == cudaSuccess) slot = {kernel, device};
  return error;
}

size_t shared_bytes_of(int32_t index, cudaError_t* error) {
  int bytes = 0;
  *error = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  return *error == cudaSuccess && bytes > 0 ? static_cast<size_t>(bytes) : 0;
}

// By the driver's own calls where the context is given back: the runtime is not to know of one that goes again.
cudaError_t free_bytes_of(int32_t index, bool to_use, uint64_t* bytes) {
  size_t free_bytes = 0, all = 0;
  if (!contexts.looked) contexts.look();
  if (to_use || !contexts.get_device || !contexts.retain_primary || !contexts.release_primary ||
      !contexts.push || !contexts.pop || !contexts.memory_info) {
    const OnDevice on(index);
    const cudaError_t error = cudaMemGetInfo(&free_bytes, &all);
    *bytes = free_bytes;
    return error;
  }
  CUdevice device = 0;
  CUcontext context = nullptr, popped = nullptr;
  CUresult result = contexts.get_device(&device, index);
  if (result == CUDA_SUCCESS) result = contexts.retain_primary(&context, device);
  if (result == CUDA_SUCCESS) {
    result = contexts.push(context);
    if (result == CUDA_SUCCESS) {
      result = contexts.memory_info(&free_bytes, &all);
      (void)contexts.pop(&popped);
    }
    (void)contexts.release_primary(device);
  }
  *bytes = free_bytes;
  return static_cast<cudaError_t>(result);  // the driver's and the runtime's have the same numbers
}

// After these a context takes no call any more.
bool loses_device(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorMpsRpcFailure:
    case cudaErrorDeviceUninitialized:
    case cudaErrorContextIsDestroyed:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

bool report(cudaError_t error, const char* doing, DeviceError* out) {
  if (error == cudaSuccess) return true;
  out->fault = error == cudaErrorMemoryAllocation ? DeviceFault::memory
               : loses_device(error)              ? DeviceFault::lost
                                                  : DeviceFault::failed;
  out->native_code = error;
  std::snprintf(out->message, sizeof out->message, "%s: %s (CUDA error %d)", doing, cudaGetErrorString(error),
                static_cast<int>(error));
  (void)cudaGetLastError();  // what failed here is not for the host to find
  return false;
}

}  // namespace wi::cuda

namespace wi {

constexpr size_t kLeastPiece = size_t{1} << 20;
constexpr size_t aligned(size_t bytes) { return (bytes + 255) & ~size_t{255}; }

DeviceQueue::~DeviceQueue() {
  const OnDevice on(index);
  for (cudaStream_t each : {stream, fetching_})
    if (each) (void)cudaStreamSynchronize(each);
  step.forget();
  for (const Pieces* pieces : {&going_, &left_})
    for (const Piece& piece : pieces->list) free_piece(piece);
  free_piece(downloads_);
  for (void* data : outgrown_) (void)cudaFree(data);
  (void)cudaFree(partials_.data);
  (void)cudaFree(clusters_.data);
  (void)cudaFree(arrived_.data);
  for (cudaEvent_t each : {asked_, fetched_, marks_[0], marks_[1]})
    if (each) (void)cudaEventDestroy(each);
  for (cudaStream_t each : {stream, fetching_})
    if (each) (void)cudaStreamDestroy(each);
}

cudaError_t DeviceQueue::open() {
  const OnDevice on(index);
  cudaError_t error = cudaSuccess;
  shared_bytes_ = wi::cuda::shared_bytes_of(index, &error);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, index);
  for (cudaStream_t* each : {&stream, &fetching_})
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(each, cudaStreamNonBlocking);
  for (cudaEvent_t* each : {&asked_, &fetched_, &marks_[0], &marks_[1]})
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(each, cudaEventDisableTiming);
  return error;
}

DeviceQueue::Room DeviceQueue::room(size_t bytes) { return room_of(going_, bytes); }

std::byte* DeviceQueue::left(size_t bytes, void* to, size_t count,
                             void (*use)(const std::byte*, void*, size_t)) {
  const Room room = room_of(left_, bytes);
  if (!room) return nullptr;
  try {
    returns_.push_back({room.host, to, count, use});
  } catch (const std::bad_alloc&) {
    note(cudaErrorMemoryAllocation);
    return nullptr;
  }
  return room.device;
}

DeviceQueue::Room DeviceQueue::room_of(Pieces& pieces, size_t bytes) {
  if (first_error_ != cudaSuccess) return {};
  const size_t wanted = aligned(bytes);
  if (pieces.list.empty() || pieces.list.back().bytes - pieces.used < wanted) {
    if (!pieces.list.empty()) pieces.list.back().used = pieces.used;
    const size_t twice = pieces.list.empty() ? kLeastPiece : 2 * pieces.list.back().bytes;
    note(add_piece(pieces, twice < wanted ? wanted : twice));
    if (first_error_ != cudaSuccess) return {};
    pieces.used = 0;
  }
  const Room& of = pieces.list.back().room;
  const Room found = {of.host + pieces.used, of.device + pieces.used};
  pieces.used += wanted;
  return found;
}

std::byte* DeviceQueue::partials(size_t bytes) { return grown(&partials_, bytes); }
std::byte* DeviceQueue::clusters(size_t bytes) { return grown(&clusters_, bytes); }
uint32_t* DeviceQueue::arrived(size_t count) {
  return reinterpret_cast<uint32_t*>(grown(&arrived_, count * sizeof(uint32_t)));
}

size_t DeviceQueue::kept_bytes(size_t bytes) { return aligned(bytes + bytes / 4); }

std::byte* DeviceQueue::grown(Kept* kept, size_t bytes) {
  if (first_error_ != cudaSuccess) return nullptr;
  if (kept->bytes >= bytes) return kept->data;
  void* data = nullptr;
  const size_t room = kept_bytes(bytes);
  cudaError_t error = cudaMalloc(&data, room);
  if (error == cudaSuccess) {
    // Nobody uses it yet: it is cleared even if the step that is being noted fails before all of it is begun.
    const wi::cuda::Noting at_once(nullptr);
    error = wi::cuda::clear(data, room, stream);
  }
  try {
    if (error == cudaSuccess && kept->data) outgrown_.push_back(kept->data);
  } catch (const std::bad_alloc&) {
    error = cudaErrorMemoryAllocation;
  }
  if (error != cudaSuccess) {
    (void)cudaFree(data);
    note(error);
    return nullptr;
  }
  *kept = {static_cast<std::byte*>(data), room};
  return kept->data;
}

void DeviceQueue::send(const Room& room, size_t bytes) {
  if (room && bytes) note(wi::cuda::copy(room.device, room.host, bytes, cudaMemcpyHostToDevice, stream));
}

void DeviceQueue::send(void* to, const void* from, size_t bytes) {
  const Room staged = room(bytes);
  if (!staged || !bytes) return;
  std::memcpy(staged.host, from, bytes);
  note(wi::cuda::copy(to, staged.host, bytes, cudaMemcpyHostToDevice, stream));
}

void DeviceQueue::bring_back(const Room& room, size_t offset, size_t bytes, const Return& then) {
  if (!room || first_error_ != cudaSuccess || !bytes) return;
  try {
    returns_.push_back(then);
  } catch (const std::bad_alloc&) {
    return note(cudaErrorMemoryAllocation);
  }
  note(wi::cuda::copy(room.host + offset, room.device + offset, bytes, cudaMemcpyDeviceToHost, stream));
}

std::byte* DeviceQueue::download_room(size_t bytes) {
  if (downloads_.bytes >= bytes) return downloads_.room.host;
  free_piece(downloads_);
  downloads_ = {};
  const cudaError_t error = allocate_host(downloads_, bytes + bytes / 4);
  if (error != cudaSuccess && error != cudaErrorMemoryAllocation) {
    note(error);  // a device that is lost is no lack of memory: finish() says so
    downloads_ = {};
    downloads_.pinned = false;
    downloads_.room.host = static_cast<std::byte*>(std::aligned_alloc(256, aligned(bytes)));
    downloads_.bytes = downloads_.room.host ? bytes : 0;
  }
  return downloads_.room.host;
}

bool DeviceQueue::is_download_room(const void* to, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(downloads_.room.host), at = reinterpret_cast<uintptr_t>(to);
  return downloads_.pinned && begin && at >= begin && at + bytes <= begin + downloads_.bytes;
}

// Pinned, or, where that is refused, as it comes.
cudaError_t DeviceQueue::allocate_host(Piece& piece, size_t bytes) {
  void* host = nullptr;
  cudaError_t error = cudaMallocHost(&host, bytes);
  piece.pinned = error == cudaSuccess;
  if (error == cudaErrorMemoryAllocation) {  // by a limit on pinning, as a rule: copies know other memory too
    (void)cudaGetLastError();
    host = std::aligned_alloc(256, aligned(bytes));
    refused_pins_++;
    pins_ = false;
    if (step.recording()) go_on_without_step();
    if (host) error = cudaSuccess;
  }
  piece.room.host = static_cast<std::byte*>(host);
  piece.bytes = host ? bytes : 0;
  return error;
}

void DeviceQueue::fetch(void* to, const void* from, size_t bytes) {
  if (failed() || !bytes) return;
  note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, fetching_));
}

// What `then` is asked for from now on comes after what `first` was asked for so far.
void DeviceQueue::order(cudaEvent_t by, cudaStream_t first, cudaStream_t then) {
  if (failed()) return;
  note(cudaEventRecord(by, first));
  if (!failed()) note(cudaStreamWaitEvent(then, by, 0));
}

bool DeviceQueue::passed(int32_t mark) {
  if (failed()) return true;
  const cudaError_t error = cudaEventQuery(marks_[mark]);
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();  // no error, for the host to find
    return false;
  }
  note(error);
  return true;
}

void DeviceQueue::note(cudaError_t error) {
  if (first_error_ == cudaSuccess || (wi::cuda::loses_device(error) && !wi::cuda::loses_device(first_error_)))
    first_error_ = error;
}

cudaError_t DeviceQueue::finish() {
  if (!left_.list.empty()) left_.list.back().used = left_.used;
  for (const Piece& piece : left_.list)
    if (!failed() && piece.used)
      note(wi::cuda::copy(piece.room.host, piece.room.device, piece.used, cudaMemcpyDeviceToHost, stream));
  note(step.end(stream));
  for (cudaStream_t each : {fetching_, stream}) note(cudaStreamSynchronize(each));
  if (first_error_ == cudaSuccess)
    for (const Return& back : returns_) back.use(back.from, back.to, back.count);
  returns_.clear();
  for (void* data : outgrown_) (void)cudaFree(data);
  outgrown_.clear();
  keep_newest(going_);
  keep_newest(left_);
  const cudaError_t error = first_error_;
  first_error_ = cudaSuccess;
  return error;
}

wi::QueueBytes DeviceQueue::bytes() const {
  QueueBytes all{.device = partials_.bytes + clusters_.bytes + arrived_.bytes,
                 .host = downloads_.bytes + step.bytes()};
  for (const Pieces* pieces : {&going_, &left_})
    for (const Piece& piece : pieces->list) all.device += piece.bytes, all.host += piece.bytes;
  return all;
}

// It is larger than all before it together: the next step gets along with it.
void DeviceQueue::keep_newest(Pieces& pieces) {
  while (pieces.list.size() > 1) {
    free_piece(pieces.list.front());
    pieces.list.erase(pieces.list.begin());
  }
  pieces.used = 0;
}

cudaError_t DeviceQueue::add_piece(Pieces& pieces, size_t bytes) {
  Piece piece;
  void* device = nullptr;
  cudaError_t error = allocate_host(piece, bytes);
  if (error == cudaSuccess) error = cudaMalloc(&device, bytes);
  piece.room.device = static_cast<std::byte*>(device);
  try {
    if (error == cudaSuccess) pieces.list.push_back(piece);
  } catch (const std::bad_alloc&) {
    error = cudaErrorMemoryAllocation;
  }
  if (error != cudaSuccess) free_piece(piece);
  return error;
}

void DeviceQueue::free_piece(const Piece& piece) {
  if (piece.pinned)
    (void)cudaFreeHost(piece.room.host);
  else
    std::free(piece.room.host);
  (void)cudaFree(piece.room.device);
}

}  // namespace wi
