#include "src/store/device_views.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace wi {

DeviceViews::DeviceViews(HostPool& pages, const KvShape& shape, Segments segments)
    : layers_(shape.layers),
      kv_heads_(shape.kv_heads),
      list_(pages.allocate(segments.size() * static_cast<size_t>(shape.layers) *
                               static_cast<size_t>(shape.kv_heads) * sizeof(SegmentView),
                           "a session's list of segments")) {
  write(segments);
}

bool DeviceViews::refresh(const std::shared_ptr<DeviceViews>& views, Segments segments, Reading* reading) {
  std::lock_guard lock(views->mutex_);
  const auto slow =
      std::count_if(segments.begin(), segments.end(), [](const auto& one) { return one->is_slow(); });
  if (slow != views->slow_) {
    if (views->readings_) return false;
    views->write(segments);
  }
  if (reading) {
    reading->of_ = views;
    ++views->readings_;
  }
  return true;
}

void DeviceViews::Reading::end() noexcept {
  if (const std::shared_ptr<DeviceViews> views = std::exchange(of_, nullptr)) {
    std::lock_guard lock(views->mutex_);
    --views->readings_;
  }
}

// Where a segment is may be newer than its being counted, never older.
void DeviceViews::write(Segments segments) {
  const auto slow =
      std::count_if(segments.begin(), segments.end(), [](const auto& one) { return one->is_slow(); });
  std::vector<SegmentView> views;
  views.reserve(list_.bytes() / sizeof(SegmentView));
  for (int32_t layer = 0; layer < layers_; ++layer)
    for (int32_t head = 0; head < kv_heads_; ++head)
      for (const auto& segment : segments) views.push_back(segment->view_on_device(layer, head));
  list_.copy_in(0, views.data(), views.size() * sizeof(SegmentView));
  slow_ = slow;
}

}  // namespace wi
