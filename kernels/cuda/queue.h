// A device's queue: a CUDA stream, one more for what is fetched beside it, and room in pinned and in device memory for
// what goes along with operations: the lists of a lookup, a run's largest number. Operations ask for what they need
// and note what went wrong; finish() waits, hands out what came back and says it.
//
// Room grows at need and is kept, so that a step allocates nothing after the first of its kind, and whatever
// an operation asked for keeps its address until finish().
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/step.h"
#include "kernels/device.h"

namespace wi::cuda {

// Has the calling thread's calls go to a device's primary context while it lives: then what the host had chosen is as
// it was, be it a device, a context of the host's own, or none. And they neither fail nor spoil it where a thread of the
// host's is capturing a stream: none of them is meant to be in its graph.
class OnDevice {
 public:
  explicit OnDevice(int32_t index);
  OnDevice(const OnDevice&) = delete;
  ~OnDevice();

 private:
  int before_ = 0, index_ = 0;  // where the driver's stack of contexts is not to be had
  bool pushed_ = false;
  CUstreamCaptureMode captures_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // the thread's own, while it has this one
  bool relaxed_ = false;
};

// That the device gives a block of threads which asks for it; 0, and the error: it does not say.
size_t shared_bytes_of(int32_t index, cudaError_t* error);

// Of the device's memory, which nobody says who has no context there: the primary one, which is kept if it is to be
// used. Else it is given back, and what it took of the device with it, if nobody else has it.
cudaError_t free_bytes_of(int32_t index, bool to_use, uint64_t* bytes);

bool loses_device(cudaError_t error);
// What went wrong, as the rest of the library says it. Returns false, for callers who do too.
bool report(cudaError_t error, const char* doing, DeviceError* out);

}  // namespace wi::cuda

struct wi::DeviceQueue {
  explicit DeviceQueue(int32_t on) : index(on) {}
  DeviceQueue(const DeviceQueue&) = delete;
  ~DeviceQueue();
  cudaError_t open();
  size_t shared_bytes() const { return shared_bytes_; }  // that the device gives a block of threads
  int32_t processors() const { return processors_; }     // that run blocks

  // The same bytes on both sides, 256-byte aligned. Null: there is no room, which is noted.
  struct Room {
    std::byte* host = nullptr;  // pinned, or, where that was refused, as it comes
    std::byte* device = nullptr;
    explicit operator bool() const { return host != nullptr; }
  };
  Room room(size_t bytes);
  // Device memory that stays from call to call, zero at first; null as above.
  static size_t kept_bytes(size_t bytes);  // of what so many are asked for: the next call may want some more
  std::byte* partials(size_t bytes);
  std::byte* clusters(size_t bytes);
  uint32_t* arrived(size_t count);

  void send(const Room& room, size_t bytes);  // to the device
  void send(void* to, const void* from, size_t bytes);
  // Back to the host; then, when the queue is finished, `use` gets the bytes that came.
  struct Return {
    const std::byte* from;  // of a room
    void* to;
    size_t count;
    void (*use)(const std::byte* from, void* to, size_t count);
  };
  // From pinned memory, on a stream of their own (kernels/device.h).
  void fetch(void* to, const void* from, size_t bytes);
  void fetch_after() {
    go_on_without_step();
    order(asked_, stream, fetching_);
  }
  void await_fetched() {
    go_on_without_step();
    order(fetched_, fetching_, stream);
  }
  // The other notes no step.
  void follow(const DeviceQueue& first) { order(first.asked_, first.stream, stream); }
  // Host memory, pinned where that is allowed, that stays from call to call. Null: there is none.
  std::byte* download_room(size_t bytes);
  // Whether a copy to it needs no other on the way.
  bool is_download_room(const void* to, size_t bytes) const;
  void bring_back(const Room& room, size_t offset, size_t bytes, const Return& then);
  // Device memory for what operations leave for the host, who has it, through use(from, to, count), when the queue is
  // finished: all of it comes at once then. Null as above.
  std::byte* left(size_t bytes, void* to, size_t count, void (*use)(const std::byte*, void*, size_t));
  // What is asked for from now on until finish() is a step (step.h), but where the system has no pinned memory: then
  // copies are not what a graph may hold.
  void begin_step() {
    if (pins_) step.begin();
  }
  // Beside what a step notes, whatever it was asked for before that is done.
  void go_on_without_step() { note(step.go_on_without(stream)); }
  void mark(int32_t mark) {
    if (!failed()) note(cudaEventRecord(marks_[mark], stream));
  }
  bool passed(int32_t mark);
  // The first error since finish() is what it says; one that loses the device before all others.
  void note(cudaError_t error);
  bool failed() const { return first_error_ != cudaSuccess; }
  cudaError_t finish();
  wi::QueueBytes bytes() const;  // between calls of the thread whose queue it is
  uint64_t take_refused_pins() { return std::exchange(refused_pins_, 0); }

  const int32_t index;
  cudaStream_t stream = nullptr;
  wi::cuda::RecordedStep step;

 private:
  struct Piece {
    Room room;
    size_t bytes = 0, used = 0;  // used: of one that is full, and when the queue is finished
    bool pinned = true;
  };
  // Device memory that grows: the old piece goes when nothing can be reading it any more.
  struct Kept {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  struct Pieces {
    std::vector<Piece> list;
    size_t used = 0;  // of the last one
  };
  std::byte* grown(Kept* kept, size_t bytes);
  Room room_of(Pieces& pieces, size_t bytes);
  cudaError_t add_piece(Pieces& pieces, size_t bytes);
  cudaError_t allocate_host(Piece& piece, size_t bytes);
  void keep_newest(Pieces& pieces);
  void order(cudaEvent_t by, cudaStream_t first, cudaStream_t then);
  void free_piece(const Piece& piece);

  cudaStream_t fetching_ = nullptr;
  cudaEvent_t asked_ = nullptr, fetched_ = nullptr, marks_[wi::kDeviceMarks] = {};
  size_t shared_bytes_ = 0;
  int processors_ = 1;
  cudaError_t first_error_ = cudaSuccess;
  Pieces going_, left_;
  uint64_t refused_pins_ = 0;
  bool pins_ = true;  // never refused so far
  std::vector<Return> returns_;
  std::vector<void*> outgrown_;
  Kept partials_, clusters_, arrived_;
  Piece downloads_;
};

namespace wi::cuda {

// While one lives, the calling thread asks a queue for something: of its device, and of the step that it may be noting.
class Asking {
 public:
  explicit Asking(DeviceQueue& queue) : on_(queue.index), noting_(&queue.step) {}

 private:
  const OnDevice on_;
  const Noting noting_;
};

}  // namespace wi::cuda
