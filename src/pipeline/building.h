// A segment in the making while its sequence goes on decoding. Its tokens are all there and never change, so
// the work is taken in pieces, some with each step, and the segment takes its tokens' place at a token
// that is fixed beforehand: when the work was done decides nothing. Forks share it; whoever comes does some.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/ops.h"
#include "src/pipeline/index_room.h"
#include "src/store/sequence.h"

namespace wi {

// A segment takes its place so many tokens after it could; over these steps its work is spread.
constexpr int32_t kBuildTokens = 384;

class Building {
 public:
  // The span is the beginning of the sequence's tail. Throws WI_E_MEMORY or WI_E_BUDGET.
  // workers: so many can work at once, each on a head of its own. by_device: the device that keys and values are on
  // makes the indexes.
  Building(const Sequence& sequence, SegmentSpan span, const Backend& backend, const Policy& policy,
           const PolicyParams& params, int workers, bool by_device);

  const SegmentSpan& span() const { return span_; }
  // Does its share of what is left, so that steps_left such calls do all of it; nothing if another thread is
  // at it. queue: the device's; may be null where it is not by the device. What the device has no room to make by the
  // last call, the host makes.
  void advance(const Stream& stream, Queue* queue, int64_t steps_left);
  // Does all that is left. Throws WI_E_CANCELLED, WI_E_MEMORY or WI_E_BUDGET, and may be called again.
  std::shared_ptr<const Segment> finish(const Stream& stream, Queue* queue);

 private:
  // Whoever works at a column is alone there: the host's planes are dealt to columns in turn, and taken one after
  // another.
  struct Column {
    size_t next = 0;    // of host_planes_
    int32_t piece = 0;  // the next of that plane
    int64_t left = 0;   // pieces of all planes
    IndexArgs args{};   // of plane, once its first piece is begun
    std::byte* state = nullptr;
    std::vector<std::byte> copies, layout;  // of plane, where keys and values are a device's; else empty
    KvRun run;                              // of copies
  };
  void deal_columns();
  void work(const Stream& stream, Queue* queue, int64_t steps_left);
  void work_on_host(const Stream& stream, int64_t steps_left);
  bool work_on_device(const Stream& stream, Queue& queue, int64_t steps_left);
  bool work_at(Column& column, const Stream& stream, int worker);
  const Policy& policy_of(size_t plane) const;
  size_t plane_of(const Column& column) const { return host_planes_[column.next]; }
  void open(Column& column);
  int32_t pieces_of(size_t plane) const { return policy_of(plane).pieces ? pieces_ : 1; }

  const SegmentSpan span_;
  const bool on_device_;
  const Backend& backend_;
  const Policy& policy_;
  const PolicyParams params_;
  const std::shared_ptr<HostPool> host_pool_;
  const size_t most_columns_;
  std::vector<BlockRef> blocks_;  // while they are held here nobody writes into them
  std::vector<KvRun> runs_;       // (planes, blocks)
  std::mutex mutex_;
  std::shared_ptr<Segment> segment_;
  IndexRoom room_;
  int32_t pieces_ = 1;  // of a plane that is made in pieces
  HostBuffer states_;
  std::vector<size_t> device_planes_, host_planes_;
  size_t done_on_device_ = 0;
  std::vector<Column> columns_;
  bool attached_ = false;  // the segment has its index
};

}  // namespace wi
