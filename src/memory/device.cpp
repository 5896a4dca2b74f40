#include "src/memory/device.h"

#include "src/error.h"

namespace wi {
namespace {

[[noreturn]] void throw_fault(const Device& device, const DeviceError& error) {
  const wi_status status = error.fault == DeviceFault::memory ? WI_E_MEMORY
                           : error.fault == DeviceFault::lost ? WI_E_DEVICE_LOST
                                                              : WI_E_DEVICE;
  throw_error(status, concat(device.description.name, ": ", error.message), error.native_code);
}

// What an allocation was refused with: null for no room, as Memory says it; a device that failed or is lost is no
// matter of room.
std::byte* allocated(const Device& device, void* data, const DeviceError& error) {
  if (!data && error.fault != DeviceFault::memory) throw_fault(device, error);
  return static_cast<std::byte*>(data);
}

void copy_by(const Device& device, std::span<const CopyPiece> pieces) {
  DeviceError error;
  for (const CopyPiece& piece : pieces)
    if (piece.bytes && !device.table.copy(device.index, piece.to, piece.from, piece.bytes, &error))
      throw_fault(device, error);
}

DeviceDescription describe(const DeviceTable& table, int32_t index) {
  DeviceDescription description;
  table.describe(index, &description);
  return description;
}

}  // namespace

Device::Device(const DeviceTable& table_in, int32_t index_in)
    : table(table_in), index(index_in), description(describe(table_in, index_in)) {
  check(!description.reason[0], WI_E_DEVICE, description.name, " cannot be used: ", description.reason);
}

std::byte* DeviceMemory::allocate(uint64_t bytes, HostPages) {
  DeviceError error;
  void* const data = device_->table.allocate(device_->index, bytes, &error);
  return allocated(*device_, data, error);
}

void DeviceMemory::free(std::byte* data, uint64_t) noexcept { device_->table.free(device_->index, data); }

void DeviceMemory::copy(std::span<const CopyPiece> pieces) { copy_by(*device_, pieces); }

void DeviceMemory::gather(std::span<const CopyPiece> pieces) {
  if (pieces.empty()) return;
  std::vector<DevicePiece> there(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) there[i] = {pieces[i].from, pieces[i].bytes};
  DeviceError error;
  if (!device_->table.gather(device_->index, there.data(), there.size(), pieces[0].to, &error))
    throw_fault(*device_, error);
}

constexpr uint64_t kMostSpare = uint64_t{512} << 20;

PinnedMemory::~PinnedMemory() { give_back(); }

void PinnedMemory::give_back() noexcept {
  for (std::byte* piece : spare_) device_->table.free_pinned(device_->index, piece);
  spare_.clear();
}

std::byte* PinnedMemory::allocate(uint64_t bytes, HostPages) {
  {
    std::lock_guard lock(mutex_);
    if (spare_bytes_ == bytes && !spare_.empty()) {
      std::byte* const piece = spare_.back();
      spare_.pop_back();
      return piece;
    }
    give_back();  // there may be no more to be had with them
  }
  DeviceError error;
  void* const data = device_->table.allocate_pinned(device_->index, bytes, &error);
  return allocated(*device_, data, error);
}

void PinnedMemory::free(std::byte* data, uint64_t bytes) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (spare_bytes_ != bytes) give_back();
    spare_bytes_ = bytes;
    try {
      if ((spare_.size() + 1) * bytes <= kMostSpare) return spare_.push_back(data);
    } catch (const std::bad_alloc&) {
    }
  }
  device_->table.free_pinned(device_->index, data);
}

void PinnedMemory::copy(std::span<const CopyPiece> pieces) { copy_by(*device_, pieces); }

Queue::Queue(std::shared_ptr<const Device> device) : device_(std::move(device)) {
  DeviceError error;
  queue_ = device_->table.open_queue(device_->index, &error);
  if (!queue_) throw_fault(*device_, error);
}

Queue::~Queue() {
  drain();
  for (const Piece& room : rooms_)
    if (room.data) device_->table.free(device_->index, room.data);
  device_->table.close_queue(queue_);
}

void Queue::finish() {
  DeviceError error;
  if (!device_->table.finish(queue_, &error)) throw_fault(*device_, error);
}

void Queue::drain() noexcept {
  DeviceError error;
  (void)device_->table.finish(queue_, &error);
}

std::byte* Queue::room(Room which, size_t bytes) {
  Piece& room = rooms_[which];
  if (room.bytes < bytes) {
    DeviceError error;
    void* const larger = device_->table.allocate(device_->index, bytes, &error);
    if (!larger) throw_fault(*device_, error);
    if (room.data) device_->table.free(device_->index, room.data);
    room = {larger, bytes};
  }
  return static_cast<std::byte*>(room.data);
}

}  // namespace wi
