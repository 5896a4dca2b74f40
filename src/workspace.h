// The activations of one step: buffers that only grow, so that a decode step allocates nothing after warm-up. They
// lie where the backend's operations read and write; what a step is given and what comes out of it go there and
// back by send() and fetch(), which on the host's own processor have nothing to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <vector>

#include "src/memory/device.h"
#include "src/memory/pages.h"
#include "src/model/model.h"
#include "src/pipeline/append.h"
#include "src/pipeline/attention.h"
#include "src/pipeline/past.h"
#include "src/pipeline/row.h"
#include "src/sampling/sampler.h"
#include "src/stats.h"

namespace wi {

// Numbers that nobody has set: pages that the system need not clear before they are of use are not touched here. Not
// from the C library, which keeps what threads free that call no more.
class UnsetFloats {
 public:
  UnsetFloats() = default;
  UnsetFloats(const UnsetFloats&) = delete;
  ~UnsetFloats() { free(); }
  // What was there before is gone where there is less than that. Throws std::bad_alloc.
  float* at_least(size_t count) {
    if (count > count_) {
      free();  // before there is more
      numbers_ = allocate(count * sizeof(float));
      if (!numbers_) throw std::bad_alloc();
      count_ = count;
    }
    return numbers_;
  }
  size_t bytes() const { return count_ * sizeof(float); }

 private:
#ifdef WI_SANITIZED  // which are to see who reads beyond them
  static float* allocate(size_t bytes) { return static_cast<float*>(std::malloc(bytes)); }
  static void give_back(float* numbers, size_t) { std::free(numbers); }
#else
  static float* allocate(size_t bytes) {
    return reinterpret_cast<float*>(map_pages(round_to_page(bytes), PageSize::any));
  }
  static void give_back(float* numbers, size_t bytes) {
    unmap_pages(reinterpret_cast<std::byte*>(numbers), round_to_page(bytes));
  }
#endif
  void free() noexcept {
    if (numbers_) give_back(numbers_, bytes());
    numbers_ = nullptr;
    count_ = 0;
  }
  float* numbers_ = nullptr;
  size_t count_ = 0;
};

class Workspace {
 public:
  // device: what the backend runs on; null: the host's own processor.
  explicit Workspace(std::shared_ptr<const Device> device = nullptr);

  // Room for this many rows of activations. Their contents are undefined.
  void prepare(const ModelConfig& config, int64_t rows);
  size_t bytes() const;           // of the host's and of a device's memory
  uint64_t device_bytes() const;  // of these, of a device's

  Queue* queue() const { return queue_.get(); }  // null: the host's own processor
  // Another, for what becomes of a step's keys and values beside it. Null as above; throws what opening one does.
  Queue* indexing();
  // A step's stream: the caller's, with this workspace's queue.
  Stream on_device(const Stream& stream) const;
  // tokens, cos and sin are filled for so many rows: from here on operations find them.
  void send(const ModelConfig& config, int64_t rows);
  // Where an operation writes `count` numbers that the host wants at `out`; fetch() when it was asked to.
  float* results(float* out, size_t count);
  void fetch(float* out, size_t count);
  // All that was asked for is done, and what the host wants is there.
  void finish();
  // While one lives, a step is on its way: what it works on stays until it has ended, however it ends.
  class Running {
   public:
    explicit Running(Workspace& work) : work_(work) {}
    Running(const Running&) = delete;
    ~Running() {
      if (work_.queue_) work_.queue_->drain();
    }

   private:
    Workspace& work_;
  };

  float *hidden = nullptr, *normed = nullptr;  // (rows, hidden)
  float *q = nullptr, *attended = nullptr;     // (rows, query_heads * head_dim)
  float *k = nullptr, *v = nullptr;            // (rows, kv_heads * head_dim)
  float *gate = nullptr, *up = nullptr;        // (rows, ffn)
  float* lse = nullptr;                        // (rows, query_heads)
  std::vector<int32_t> tokens;                 // (rows)
  float *cos = nullptr, *sin = nullptr;        // (rows, rotary / 2)
  struct Sent {
    const int32_t* tokens = nullptr;
    const float *cos = nullptr, *sin = nullptr;
  } sent;  // the same, where operations find them
  AppendRoom append;
  Attention attention;
  Retrieval retrieval;
  std::vector<Row> rows;
  std::vector<WantedTokens> wanted;  // (rows, kMostWanted)
  std::vector<StepStats> row_stats;
  std::vector<SamplingRow> sampling_rows;       // (rows) to be sent
  const SamplingRow* sampling_there = nullptr;  // where operations find them; null: nothing is sampled
  std::vector<SampledRow> sampled;              // (rows)
  std::vector<const SampledRow*> sampled_of;    // sessions; null: by no step of this call
  // (count) of all rows, undefined: what the last call gave is gone.
  float* row_logits(size_t count);
  std::vector<SamplerScratch> sampling;      // a worker each
  std::vector<float*> row_logits_of;         // sessions
  std::vector<std::exception_ptr> failures;  // of a batch's sessions
  Past past;                                 // of prefill
  float* state_of_parts(size_t count);       // likewise, what attention keeps where the past comes in parts
  // What the runtime has on its books for this workspace.
  size_t counted_bytes = 0;
  uint64_t counted_device_bytes = 0;

 private:
  QueueBytes queue_bytes() const;

  const std::shared_ptr<const Device> device_;
  std::unique_ptr<Queue> queue_, indexing_;  // null: the host's own processor; nobody has asked for it
  UnsetFloats memory_, state_of_parts_, row_logits_;
};

}  // namespace wi
