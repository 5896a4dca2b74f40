// What a queue is asked for in a decode step: some hundreds of kernels and copies, the same ones with the same arguments
// step after step, for what changes is data in the device's memory (cuda.h). A queue that is told where a step begins
// notes what it is asked for until finish(). What it has been asked for before, byte for byte, is a CUDA graph by then,
// and one call launches it; what is new is launched as it comes, and becomes a graph when it comes again.
//
// Comparing all of it is what makes this safe: there is no key that something could be missing from. It costs some
// hundred bytes a launch, which the host reads faster than it could launch one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda_runtime.h>
#include <type_traits>
#include <vector>

namespace wi::cuda {

class RecordedStep {
 public:
  // Does what was noted with these bytes, at once.
  using Start = cudaError_t (*)(const std::byte* given, cudaStream_t stream);

  RecordedStep() = default;
  RecordedStep(const RecordedStep&) = delete;
  ~RecordedStep() { forget(); }
  void forget();  // all graphs

  void begin() { recording_ = true; }
  bool recording() const { return recording_; }
  // Given: whatever a Start needs, copied. If it cannot be noted, everything is done now, in order.
  template <class Given>
  cudaError_t note(Start start, const Given& given, cudaStream_t stream) {
    static_assert(std::is_trivially_copyable_v<Given> && alignof(Given) <= kAlign);
    std::byte* const room = add(start, sizeof(Given));
    if (room) {
      std::memcpy(room, &given, sizeof(Given));
      return cudaSuccess;
    }
    const cudaError_t error = go_on_without(stream);
    return error == cudaSuccess ? start(reinterpret_cast<const std::byte*>(&given), stream) : error;
  }
  // Something that no graph holds comes next: what was noted is done now, and the rest of the step as it comes.
  cudaError_t go_on_without(cudaStream_t stream);
  // What was noted is done.
  cudaError_t end(cudaStream_t stream);
  size_t bytes() const;

 private:
  static constexpr size_t kAlign = 16;
  static constexpr size_t kGraphs = 4;         // that are kept: as many kinds of steps may take turns
  static constexpr size_t kRecent = 4;         // steps without one that are remembered
  static constexpr size_t kFewest = 16;        // launches that are worth a graph
  static constexpr uint32_t kPatience = 1024;  // steps until a graph is made again after one was refused

  struct Noted {
    std::vector<std::byte> bytes;  // of each: what it is, then what it was given
    size_t count = 0;
    // All of a step's bytes, each step: by what reads some dozens of them at a time, as comparing vectors does not.
    bool operator==(const Noted& other) const {
      return bytes.size() == other.bytes.size() &&
             std::memcmp(bytes.data(), other.bytes.data(), bytes.size()) == 0;
    }
  };
  struct Graph {
    Noted step;
    cudaGraphExec_t graph = nullptr;
    uint64_t used = 0;
  };
  std::byte* add(Start start, size_t bytes);
  cudaError_t start_all(cudaStream_t stream) const;
  bool seen_lately() const;
  cudaGraphExec_t captured(cudaStream_t stream);
  void do_without_graphs();  // for a while
  void keep(cudaGraphExec_t graph);

  bool recording_ = false;
  Noted now_;
  Graph kept_[kGraphs];
  Noted recent_[kRecent];
  size_t next_recent_ = 0;
  uint64_t steps_ = 0, refused_until_ = 0;
};

// Of the operation that the calling thread is asking for: where it is noted; null: it is done now.
RecordedStep* noting();
// While one lives; null: as if there were none.
class Noting {
 public:
  explicit Noting(RecordedStep* step);
  Noting(const Noting&) = delete;
  ~Noting();

 private:
  RecordedStep* const before_;
};

}  // namespace wi::cuda
