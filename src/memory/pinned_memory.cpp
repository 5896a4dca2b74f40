#include "src/memory/pinned_memory.h"

#include <algorithm>
#include <sys/resource.h>

#include "src/error.h"
#include "src/host_process.h"
#include "src/memory/on_node.h"

namespace wi {
namespace {

// What may wait, beside one piece of the size that is expected.
constexpr uint64_t kMostWaiting = uint64_t{512} << 20;

bool fits(uint64_t piece_bytes, uint64_t wanted) {
  return piece_bytes >= wanted && piece_bytes - wanted <= wanted / 8;
}

std::string limit_of_locking() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return concat(limit.rlim_cur >> 10, " KiB");
}

}  // namespace

PinnedMemory::PinnedMemory(std::shared_ptr<const Device> device, const PinnedParams& params)
    : device_(std::move(device)), params_(params), made_after_forks_(fork_count()) {}

PinnedMemory::~PinnedMemory() {
  if (fork_count() != made_after_forks_) {  // a child has neither thread nor device
    static_cast<void>(thread_.release());
    return;
  }
  if (thread_) {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_->join();
  }
  for (const Piece& piece : waiting_) unpin(piece);
}

std::byte* PinnedMemory::allocate(uint64_t bytes, HostPages) {
  Piece piece;
  {
    std::unique_lock lock(mutex_);
    // What is on its way is there sooner than another one would be.
    changed_.wait(lock, [&] { return !fits(coming_, bytes) || waiting_for(bytes) != waiting_.end(); });
    if (const auto found = waiting_for(bytes); found != waiting_.end()) {
      piece = *found;
      waiting_.erase(found);
    }
  }
  if (!piece.data) piece = pin_at_need(bytes);
  if (!piece.data) return nullptr;
  try {
    std::lock_guard lock(mutex_);
    given_.emplace(piece.data, piece);
  } catch (...) {
    unpin(piece);
    throw;
  }
  expect(bytes);
  return piece.data;
}

void PinnedMemory::free(std::byte* data, uint64_t) noexcept {
  Piece piece;
  {
    std::lock_guard lock(mutex_);
    const auto given = given_.find(data);
    piece = given->second;
    given_.erase(given);
    uint64_t waiting = piece.bytes;
    for (const Piece& one : waiting_) waiting += one.bytes;
    try {
      if (piece.pinned && waiting <= std::max(kMostWaiting, piece.bytes)) return waiting_.push_back(piece);
    } catch (const std::bad_alloc&) {
    }
  }
  unpin(piece);
}

void PinnedMemory::expect(uint64_t bytes) noexcept {
  if (bytes < params_.least_ahead) return;
  constexpr char kName[] = "wi-pin";
  int refused = 0;  // then it is pinned at need
  {
    std::lock_guard lock(mutex_);
    expected_ = bytes;
    if (!thread_ && wants_ahead())
      thread_ = params_.own_threads->start(kName, &refused, [this] { pin_ahead(); });
  }
  changed_.notify_all();
  if (refused) params_.own_threads->tell_refused(kName, refused);
}

void PinnedMemory::copy(std::span<const CopyPiece> pieces) { device_->copy(pieces); }

// ---- pinning

// Its data is null, and error says why, if it is refused.
PinnedMemory::Piece PinnedMemory::pin(uint64_t bytes, DeviceError& error) {
  const OnNode on(params_.node);
  return {static_cast<std::byte*>(device_->table.allocate_pinned(device_->index, bytes, &error)), bytes};
}

void PinnedMemory::unpin(const Piece& piece) noexcept {
  if (!piece.pinned) return pageable_.free(piece.data, piece.bytes);
  device_->table.free_pinned(device_->index, piece.data);
  std::lock_guard lock(mutex_);
  pinned_bytes_ -= piece.bytes;
}

// What waits for others makes room, if it must.
PinnedMemory::Piece PinnedMemory::pin_at_need(uint64_t bytes) {
  bool make_room = false;
  {
    std::lock_guard lock(mutex_);
    pinned_bytes_ += bytes;
    make_room = pinned_bytes_ > params_.most_bytes;
  }
  DeviceError error;
  for (;; make_room = true) {
    std::vector<Piece> others;
    if (make_room) {
      std::lock_guard lock(mutex_);
      others.swap(waiting_);
    }
    for (const Piece& piece : others) unpin(piece);
    const Piece piece = pin(bytes, error);
    if (piece.data) return piece;
    if (make_room || error.fault != DeviceFault::memory) break;
  }
  {
    std::lock_guard lock(mutex_);
    pinned_bytes_ -= bytes;
  }
  if (error.fault != DeviceFault::memory) device_->fail(error);
  device_->count_refused_pins(1, error.message);
  check(
      device_->description.reads_pageable, WI_E_MEMORY, device_->description.name, ": ", error.message,
      "; it reads no memory that is not pinned, so that what a control group's memory limit and ulimit -l (",
      limit_of_locking(), ") let be pinned is the most that spill_bytes can be");
  const OnNode on(params_.node);
  return {pageable_.allocate(bytes, HostPages::huge), bytes, false};
}

// The thread's. What is refused here is asked for again at need.
void PinnedMemory::pin_ahead() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || wants_ahead(); });
    if (stopping_) return;
    const uint64_t bytes = std::exchange(expected_, 0);
    coming_ = bytes;
    pinned_bytes_ += bytes;
    lock.unlock();
    DeviceError error;
    const Piece piece = pin(bytes, error);
    lock.lock();
    coming_ = 0;
    bool kept = false;
    try {
      if (piece.data) waiting_.push_back(piece);
      kept = piece.data != nullptr;
    } catch (const std::bad_alloc&) {
    }
    if (!piece.data) pinned_bytes_ -= bytes;
    changed_.notify_all();
    if (kept || !piece.data) continue;
    lock.unlock();
    unpin(piece);
    lock.lock();
  }
}

// The smallest that fits.
std::vector<PinnedMemory::Piece>::iterator PinnedMemory::waiting_for(uint64_t bytes) {
  auto found = waiting_.end();
  for (auto at = waiting_.begin(); at != waiting_.end(); ++at)
    if (fits(at->bytes, bytes) && (found == waiting_.end() || at->bytes < found->bytes)) found = at;
  return found;
}

bool PinnedMemory::wants_ahead() const {
  return expected_ && pinned_bytes_ < params_.most_bytes && expected_ <= params_.most_bytes - pinned_bytes_ &&
         std::none_of(waiting_.begin(), waiting_.end(),
                      [&](const Piece& piece) { return fits(piece.bytes, expected_); });
}

}  // namespace wi
