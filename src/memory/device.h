// A device of a backend: its memory as the pools know memory, and queues for its operations. What a call of it
// fails with comes out as WI_E_MEMORY, WI_E_DEVICE or WI_E_DEVICE_LOST with the driver's code and words.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "src/memory/memory.h"

namespace wi {

class Device {
 public:
  // Throws WI_E_DEVICE with the reason, if the device cannot be used.
  Device(const DeviceTable& table, int32_t index);

  const DeviceTable& table;
  const int32_t index;
  const DeviceDescription description;

  // Throws what a call of the device failed with.
  [[noreturn]] void fail(const DeviceError& error) const;
  void copy(std::span<const CopyPiece> pieces) const;

  // The system refused to pin memory, for which something slower is in its place. The first time somebody is told.
  void count_refused_pins(uint64_t times, const char* words) const;
  uint64_t refused_pins() const { return refused_pins_.load(std::memory_order_relaxed); }
  // Whom to tell, any thread's; null: nobody any more, and nobody is being told.
  using Teller = std::function<void(const std::string& message)>;
  void tell(Teller teller) const;

 private:
  mutable std::atomic<uint64_t> refused_pins_{0};
  mutable std::mutex telling_;
  mutable Teller teller_;
};

// Its memory, of which the host reads nothing but copies. Keeps the device.
class DeviceMemory : public Memory {
 public:
  explicit DeviceMemory(std::shared_ptr<const Device> device) : device_(std::move(device)) {}
  std::byte* allocate(uint64_t bytes, HostPages pages) override;
  void free(std::byte* data, uint64_t bytes) noexcept override;
  using Memory::copy;
  void copy(std::span<const CopyPiece> pieces) override;
  void gather(std::span<const CopyPiece> pieces) override;
  bool host_loads() const override { return false; }
  bool of_device() const override { return true; }

 private:
  const std::shared_ptr<const Device> device_;
};

// A queue, and device memory that is its own. One thread at a time.
class Queue {
 public:
  explicit Queue(std::shared_ptr<const Device> device);
  Queue(const Queue&) = delete;
  ~Queue();

  DeviceQueue* get() const { return queue_; }
  void upload(void* to, const void* from, size_t bytes) { device_->table.upload(queue_, to, from, bytes); }
  // To room that is valid until finish(); null: there is none, and finish() will say so.
  template <class T>
  T* stage(const T* from, size_t count) {
    return static_cast<T*>(device_->table.stage(queue_, from, count * sizeof(T)));
  }
  void download(void* to, const void* from, size_t bytes) {
    device_->table.download(queue_, to, from, bytes);
  }
  // Of the host, where download() is quickest; valid until more is asked for. Throws WI_E_MEMORY.
  std::byte* download_room(size_t bytes);
  // From pinned memory, beside what was asked for: kernels/device.h.
  void fetch(void* to, const void* from, size_t bytes) { device_->table.fetch(queue_, to, from, bytes); }
  void fetch_after() { device_->table.fetch_after(queue_); }
  void await_fetched() { device_->table.await_fetched(queue_); }
  // What is asked for from now on comes after what `first` was asked for so far, which is in no step.
  void follow(const Queue& first) { device_->table.follow(queue_, first.queue_); }
  void order_hot_pages(const HotPages& pages) { device_->table.order_hot_pages(queue_, pages); }
  void begin_step() {
    device_->table.begin_step(queue_);
    in_step_ = true;
  }
  // After each of a long call's parts, such as a layer: waits until the device is at the part before it, so that the
  // host hears of its progress, interrupts it (breaks.h) and can cancel it while the device has the next part to go on with.
  // Throws WI_E_CANCELLED, and what a break throws.
  void keep_pace(const Stream& stream);
  bool in_step() const { return in_step_; }  // what is asked for may begin no earlier than finish()
  void finish();                             // waits; throws what went wrong since the last time
  void finish(const Stream& stream);  // the same, with others let in while it waits, as keep_pace() does
  void drain() noexcept;              // waits, whatever went wrong

  // At least so many bytes, 256-byte aligned; what the last call of the same name gave is gone for what is asked for
  // from now on. headroom: more of them, where it is made anew. Throws WI_E_MEMORY.
  enum Room {
    kActivations,
    kResults,
    kLists,
    kCounters,
    kAppendRuns,
    kSampling,
    kPast,
    kNextPast,
    kPastState,
    kIndexing,
    kRooms
  };
  std::byte* room(Room which, size_t bytes, size_t headroom = 0);
  QueueBytes bytes() const;  // of all that, and of the queue's own

 private:
  const std::shared_ptr<const Device> device_;
  DeviceQueue* queue_ = nullptr;
  struct Piece {
    void* data = nullptr;
    size_t bytes = 0;
  } rooms_[kRooms];
  void end_step() noexcept;

  bool in_step_ = false;
  int32_t next_mark_ = 0;
  std::vector<Piece> outgrown_;  // rooms that what was asked for since finish() may work on
};

}  // namespace wi
