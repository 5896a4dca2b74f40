#include "src/memory/device.h"

#include <cassert>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "src/error.h"
#include "src/memory/breaks.h"

namespace wi {
namespace {

DeviceDescription describe(const DeviceTable& table, int32_t index) {
  DeviceDescription description;
  table.describe(index, true, &description);
  return description;
}

}  // namespace

Device::Device(const DeviceTable& table_in, int32_t index_in)
    : table(table_in), index(index_in), description(describe(table_in, index_in)) {
  check(!description.reason[0], WI_E_DEVICE, description.name, " cannot be used: ", description.reason);
}

void Device::fail(const DeviceError& error) const {
  const wi_status status = error.fault == DeviceFault::memory ? WI_E_MEMORY
                           : error.fault == DeviceFault::lost ? WI_E_DEVICE_LOST
                                                              : WI_E_DEVICE;
  throw_error(status, concat(description.name, ": ", error.message), error.native_code);
}

void Device::copy(std::span<const CopyPiece> pieces) const {
  constexpr size_t kAtOnce = 256;
  DeviceCopy asked[kAtOnce];
  size_t count = 0;
  DeviceError error;
  const auto ask = [&] {
    if (count && !table.copy(index, asked, count, &error)) fail(error);
    count = 0;
  };
  for (const CopyPiece& piece : pieces) {
    if (!piece.bytes) continue;
    if (count == kAtOnce) ask();
    asked[count++] = {piece.to, piece.from, piece.bytes};
  }
  ask();
}

void Device::count_refused_pins(uint64_t times, const char* words) const {
  if (refused_pins_.fetch_add(times, std::memory_order_relaxed)) return;
  std::lock_guard lock(telling_);
  if (teller_)
    teller_(concat(description.name, ": ", words,
                   "; memory that is not pinned takes its place where it can, and is slower"));
}

void Device::tell(Teller teller) const {
  std::lock_guard lock(telling_);
  teller_ = std::move(teller);
}

// Null for no room, as Memory says it; a device that failed or is lost is no matter of room.
std::byte* DeviceMemory::allocate(uint64_t bytes, HostPages) {
  DeviceError error;
  void* const data = device_->table.allocate(device_->index, bytes, &error);
  if (!data && error.fault != DeviceFault::memory) device_->fail(error);
  return static_cast<std::byte*>(data);
}

void DeviceMemory::free(std::byte* data, uint64_t) noexcept { device_->table.free(device_->index, data); }

void DeviceMemory::copy(std::span<const CopyPiece> pieces) { device_->copy(pieces); }

void DeviceMemory::gather(std::span<const CopyPiece> pieces) {
  if (pieces.empty()) return;
  std::vector<DevicePiece> there(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) there[i] = {pieces[i].from, pieces[i].bytes};
  DeviceError error;
  if (!device_->table.gather(device_->index, there.data(), there.size(), pieces[0].to, &error))
    device_->fail(error);
}

Queue::Queue(std::shared_ptr<const Device> device) : device_(std::move(device)) {
  DeviceError error;
  queue_ = device_->table.open_queue(device_->index, &error);
  if (!queue_) device_->fail(error);
}

Queue::~Queue() {
  drain();
  for (const Piece& room : rooms_)
    if (room.data) device_->table.free(device_->index, room.data);
  device_->table.close_queue(queue_);
}

// As long as a device has two parts before it, of some hundred microseconds at the least, so short a sleep leaves it at work.
// One that keeps up is never waited for: others have their turn all the same.
void Queue::keep_pace(const Stream& stream) {
  assert(!in_step_);
  constexpr std::chrono::microseconds kPoll{50};
  take_break(stream);
  if (stream.cancelled()) wi::fail(WI_E_CANCELLED, "cancelled");
  const int32_t mark = next_mark_;
  while (!device_->table.passed(queue_, mark)) {
    std::this_thread::sleep_for(kPoll);
    take_break(stream);
    if (stream.cancelled()) wi::fail(WI_E_CANCELLED, "cancelled");
  }
  device_->table.mark(queue_, mark);
  next_mark_ = (mark + 1) % kDeviceMarks;
}

void Queue::finish(const Stream& stream) {
  for (int32_t mark = 0; mark <= kDeviceMarks; ++mark)
    keep_pace(stream);  // the last waits for the first one's
  finish();
}

void Queue::finish() {
  DeviceError error;
  const bool finished = device_->table.finish(queue_, &error);
  end_step();
  if (const uint64_t refused = device_->table.take_refused_pins(queue_))
    device_->count_refused_pins(refused, "pinning host memory was refused");
  if (!finished) device_->fail(error);
}

void Queue::drain() noexcept {
  DeviceError error;
  (void)device_->table.finish(queue_, &error);
  end_step();
}

void Queue::end_step() noexcept {
  in_step_ = false;
  for (const Piece& room : outgrown_) device_->table.free(device_->index, room.data);
  outgrown_.clear();
}

std::byte* Queue::download_room(size_t bytes) {
  void* const room = device_->table.download_room(queue_, bytes);
  check(room, WI_E_MEMORY, "the system refused ", bytes, " bytes for what a device computed");
  return static_cast<std::byte*>(room);
}

QueueBytes Queue::bytes() const {
  QueueBytes all = device_->table.queue_bytes(queue_);
  for (const Piece& room : rooms_) all.device += room.bytes;
  for (const Piece& room : outgrown_) all.device += room.bytes;
  return all;
}

std::byte* Queue::room(Room which, size_t bytes, size_t headroom) {
  Piece& room = rooms_[which];
  if (room.bytes < bytes) {
    bytes += headroom;
    outgrown_.reserve(outgrown_.size() + 1);
    DeviceError error;
    void* const larger = device_->table.allocate(device_->index, bytes, &error);
    if (!larger) device_->fail(error);
    if (room.data) outgrown_.push_back(room);  // what was asked for with it may not have ended, or begun
    room = {larger, bytes};
  }
  return static_cast<std::byte*>(room.data);
}

}  // namespace wi
