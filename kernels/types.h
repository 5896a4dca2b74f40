// Views and enumerations that every backend and everything above it share: element types, weight
// matrices, where an operation runs. Nothing here owns memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace wi {

// Element types of weights; the first three are also the KV types.
enum class DType : int32_t { f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k };

// How dense products multiply by what is narrower than f32 (WI_PRECISION_*): in bf16; in f32; in sums of two
// bf16 numbers, which keep 16 significant bits, or in f32 where that is no faster; by quantised weights all
// products in integers of 8 bits, by others as fast.
enum class Precision : int32_t { fast, f32, high, int8 };

struct TypeFormat {
  const char* name;  // as llama.cpp spells it, lower case
  int64_t elements;  // per block; a row holds whole blocks
  int64_t bytes;     // per block
};

// A switch, not a table: device code has no memory of the host's.
constexpr TypeFormat format_of(DType type) {
  switch (type) {
    case DType::f32:
      return {"f32", 1, 4};
    case DType::f16:
      return {"f16", 1, 2};
    case DType::bf16:
      return {"bf16", 1, 2};
    case DType::q8_0:
      return {"q8_0", 32, 34};
    case DType::q4_0:
      return {"q4_0", 32, 18};
    case DType::q4_1:
      return {"q4_1", 32, 20};
    case DType::q5_0:
      return {"q5_0", 32, 22};
    case DType::q5_1:
      return {"q5_1", 32, 24};
    case DType::q2_k:
      return {"q2_k", 256, 84};
    case DType::q3_k:
      return {"q3_k", 256, 110};
    case DType::q4_k:
      return {"q4_k", 256, 144};
    case DType::q5_k:
      return {"q5_k", 256, 176};
    case DType::q6_k:
      break;
  }
  return {"q6_k", 256, 210};
}
constexpr size_t row_bytes(DType type, int64_t columns) {
  return static_cast<size_t>(columns / format_of(type).elements * format_of(type).bytes);
}

// A weight matrix as stored in a model file: row-major, a row per output; or turned (turned_rows.h).
struct Matrix {
  const void* data = nullptr;
  DType type = DType::f32;
  int64_t rows = 0;  // outputs
  int64_t cols = 0;  // inputs
  bool turned = false;
};

// A head's dimensions are a multiple of this: what attention's vectors leave over is at most one vector of 8.
constexpr int32_t kHeadDimStep = 8;

// A run of tokens of one KV head that lies in one piece: keys and values (tokens, head_dim), KV dtype.
struct KvRun {
  const void* keys = nullptr;
  const void* values = nullptr;
  int64_t tokens = 0;
};

struct DeviceQueue;  // device.h

// Where an operation runs. The runtime implements it over its own threads (src/memory/workers.h); a backend
// only calls these. body(task, worker) runs once for every task in [0, tasks) on some worker in
// [0, workers); no two bodies run on one worker at a time, so per-worker scratch needs no lock. When the
// caller's cancel flag is set, remaining tasks are skipped and the caller throws; a body that may run for
// more than 50 ms polls cancelled() itself.
struct Stream {
  using Body = void (*)(void* context, int64_t task, int worker);
  void* self = nullptr;
  void (*parallel)(const Stream& stream, int64_t tasks, Body body, void* context) = nullptr;
  // 64-byte aligned memory. worker_scratch: this worker's own, until body returns (one piece per body: a
  // second call may move it). shared_scratch: the operation's, until the operation returns (one piece per
  // operation). Both grow at need and are kept, so a decode step allocates nothing after warm-up.
  std::byte* (*worker_scratch)(void* self, int worker, size_t bytes) = nullptr;
  std::byte* (*shared_scratch)(void* self, size_t bytes) = nullptr;
  // For a body that goes through several operations itself: a stream whose loops it runs alone, one task
  // after the other, under its own worker number. Null: there is none.
  Stream (*alone)(const Stream& stream, int worker) = nullptr;
  int workers = 1;
  const std::atomic<bool>* cancel = nullptr;
  // Of a device: operations go there and are done when the queue is finished; what they write into lists of the
  // host's (LookupCounters, AppendArgs::largest, SampleArgs::out) is there then, all else is in the device's memory. Null: the
  // host's processor, on which they are done when they return.
  DeviceQueue* queue = nullptr;

  bool cancelled() const { return cancel && cancel->load(std::memory_order_relaxed); }

  template <class F>
  void each(int64_t tasks, F&& body) const {
    using Function = std::remove_reference_t<F>;
    Body call = [](void* context, int64_t task, int worker) {
      (*static_cast<Function*>(context))(task, worker);
    };
    parallel(*this, tasks, call, const_cast<void*>(static_cast<const void*>(&body)));
  }
  template <class T>
  T* worker_array(int worker, size_t count) const {
    return reinterpret_cast<T*>(worker_scratch(self, worker, count * sizeof(T)));
  }
  template <class T>
  T* shared_array(size_t count) const {
    return reinterpret_cast<T*>(shared_scratch(self, count * sizeof(T)));
  }
};

}  // namespace wi
