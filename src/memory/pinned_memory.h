// Memory of the host's that a device's kernels read too, where it is, on the device's own NUMA node. Pinning takes the
// system long, a second for a few GB, which no step is to wait for: large pieces that are freed wait to be used again,
// and a thread pins the next one of the size that was wanted last before it is.
//
// Where the system refuses to pin, a device that reads any of the host's memory gets what is not pinned, which is
// slower; of others this memory has come to an end.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "src/memory/device.h"
#include "src/memory/host_memory.h"
#include "src/memory/own_threads.h"

namespace wi {

struct PinnedParams {
  int node = -1;                     // -1: whatever the system chooses
  uint64_t most_bytes = UINT64_MAX;  // in all, those included that wait
  uint64_t least_ahead = 1 << 20;    // smaller pieces are pinned as they come
  std::shared_ptr<const OwnThreads> own_threads = std::make_shared<const OwnThreads>();  // not null
};

// Keeps the device.
class PinnedMemory : public Memory {
 public:
  explicit PinnedMemory(std::shared_ptr<const Device> device, const PinnedParams& params = {});
  ~PinnedMemory() override;
  // Throws WI_E_MEMORY, which says what was refused and why it must be pinned.
  std::byte* allocate(uint64_t bytes, HostPages pages) override;
  void free(std::byte* data, uint64_t bytes) noexcept override;
  // One of so many bytes will be wanted: is pinned beside, if none waits.
  void expect(uint64_t bytes) noexcept override;
  using Memory::copy;
  void copy(std::span<const CopyPiece> pieces) override;
  bool host_loads() const override { return true; }
  bool of_device() const override { return true; }

 private:
  struct Piece {
    std::byte* data = nullptr;
    uint64_t bytes = 0;  // at least as many as were asked for
    bool pinned = true;
  };
  Piece pin(uint64_t bytes, DeviceError& error);
  Piece pin_at_need(uint64_t bytes);
  void unpin(const Piece& piece) noexcept;
  void pin_ahead();
  // With mutex_ held:
  std::vector<Piece>::iterator waiting_for(uint64_t bytes);
  bool wants_ahead() const;

  const std::shared_ptr<const Device> device_;
  const PinnedParams params_;
  const uint32_t made_after_forks_;
  HostMemory pageable_{true};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<const std::byte*, Piece> given_;
  std::vector<Piece> waiting_;
  uint64_t pinned_bytes_ = 0;  // given, waiting and being pinned ahead
  uint64_t expected_ = 0;      // bytes of a piece; 0: none
  uint64_t coming_ = 0;        // bytes of what is being pinned ahead
  bool stopping_ = false;
  std::unique_ptr<std::thread> thread_;  // made at need; null too where the system refused it
};

}  // namespace wi
