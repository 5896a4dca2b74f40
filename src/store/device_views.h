// The views of a sequence's segments where a device's kernels look at them: one list in its memory, which a sequence
// shares with its copies. Segments that leave for pinned memory are found there once it has been written anew, which
// takes no memory unless a copy's step is looking at it: a session whose budget is used up goes on.
#pragma once

#include <memory>
#include <mutex>
#include <span>

#include "src/store/segment.h"

namespace wi {

// Thread-safe. Always given the same segments.
class DeviceViews {
 public:
  using Segments = std::span<const std::shared_ptr<const Segment>>;
  // Throws WI_E_BUDGET or WI_E_MEMORY.
  DeviceViews(HostPool& pages, const KvShape& shape, Segments segments);

  // Steps that look at a list: while there is one, the list stays as it is.
  class Reading {
   public:
    Reading() = default;
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;
    ~Reading() { end(); }
    void end() noexcept;

   private:
    friend class DeviceViews;
    std::shared_ptr<DeviceViews> of_;
  };
  // Has `views` say where all segments are by now, and begins a reading of them, if one is given, which has ended.
  // False: others are reading what is no longer so. Throws what a copy to the device does.
  static bool refresh(const std::shared_ptr<DeviceViews>& views, Segments segments, Reading* reading);

  const SegmentView* data() const { return list_.as<const SegmentView>(); }  // (layers, kv_heads, segments)

 private:
  void write(Segments segments);

  const int32_t layers_, kv_heads_;
  std::mutex mutex_;
  int readings_ = 0;
  std::ptrdiff_t slow_ = 0;  // segments, as the list has them
  HostBuffer list_;
};

}  // namespace wi
