#include "src/store/segment.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <iterator>
#include <optional>

#include "src/buffer/patient_lock.h"

namespace wi {
namespace {

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// The number of the first of so many pages (kernels/hot_pages.h).
uint64_t next_pages(size_t count) {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(count);
}

// A plane of the slow tier in memory for a moment: keys, then values, in the stored order.
class PlaneCopy {
 public:
  PlaneCopy(const SlowKv& slow, size_t plane, size_t half) : half_(half), bytes_(2 * half) {
    const auto tokens = static_cast<int32_t>(half / slow.row_bytes());
    std::vector<std::byte> read(2 * half);
    const ReadRequest request = slow.request(plane, 0, tokens, read.data());
    SpillReader(slow.file()).read({&request, 1});
    slow.unpack(plane, 0, tokens, read.data(), bytes_.data(), bytes_.data() + half);
  }
  const std::byte* keys() const { return bytes_.data(); }
  const std::byte* values() const { return bytes_.data() + half_; }

 private:
  size_t half_;
  std::vector<std::byte> bytes_;
};

// Pieces that lie one behind the other here and there are one.
void add_piece(std::vector<CopyPiece>& pieces, void* to, const void* from, size_t bytes) {
  if (!bytes) return;
  if (!pieces.empty()) {
    CopyPiece& last = pieces.back();
    if (static_cast<std::byte*>(last.to) + last.bytes == to &&
        static_cast<const std::byte*>(last.from) + last.bytes == from) {
      last.bytes += bytes;
      return;
    }
  }
  pieces.push_back({to, from, bytes});
}

}  // namespace

void partition_offsets(const Policy& policy, const void* index, int32_t partitions, int32_t tokens,
                       int32_t* out) {
  if (partitions > 1) return policy.partition_offsets(index, partitions, tokens, out);
  out[0] = 0;
  if (partitions == 1) out[1] = tokens;
}

Segment::Segment(const KvPools& pools, const KvShape& shape, int64_t first_position, int32_t tokens,
                 HostPages pages)
    : Segment(pools, shape, first_position, tokens, WithoutKv{}, pages) {
  allocate_kv(pages);
}

Segment::Segment(const KvPools& pools, const KvShape& shape, int64_t first_position, int32_t tokens,
                 WithoutKv, HostPages pages)
    : shape_(shape), first_position_(first_position), tokens_(tokens), id_(next_id()), pool_(pools.pages) {
  const size_t planes = static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.kv_heads);
  if (shape.indexed_layers() < shape.layers && !pool_->memory().of_device()) {
    int32_t leaving = 0, staying = 0;
    for (int32_t layer = 0; layer < shape.layers; ++layer)
      layers_before_.push_back(shape.window(layer) ? staying++ : leaving++);
  }
  places_ = pools.host->allocate(planes * static_cast<size_t>(tokens) * sizeof(int32_t), "a segment's order",
                                 pages);
  if (pool_->memory().of_device())
    places_there_ = pool_->allocate(places_.bytes(), "a segment's order on the device");
}

Segment::~Segment() {
  if (hot_ && first_page_) hot_->forget({first_page_, first_page_ + frames_at_.back()});
}

void Segment::allocate_kv(HostPages pages) {
  staying_ = pool_->allocate(staying_bytes(), "a segment's pages", pages);
  pages_ = pool_->allocate(leaving_bytes(), "a segment's pages", pages);
  kv_.store(pages_.data(), std::memory_order_release);
}

size_t Segment::index_bytes() const {
  const SlowKv* const there = slow();
  if (places_there_) return places_there_.bytes() + on_device_.bytes();
  return index_.bytes() + offsets_.bytes() + places_.bytes() + (there ? there->checksum_bytes() : 0);
}

uint64_t Segment::order_bytes(const KvShape& shape, int32_t tokens, uint64_t partitions) {
  const uint64_t planes = static_cast<uint64_t>(shape.layers) * static_cast<uint64_t>(shape.kv_heads);
  const uint64_t frames = shape.paged ? planes * hot_page_slots(tokens, 0) + partitions : 0;
  return (planes * static_cast<uint64_t>(tokens) + partitions + planes + frames) * sizeof(int32_t);
}

std::byte* Segment::keys(int32_t layer, int32_t head) const {
  std::byte* const first = stays(layer) ? staying_.data() : kv_.load(std::memory_order_acquire);
  return first + place(layer, head) * 2 * shape_.head_bytes() * static_cast<size_t>(tokens_);
}
std::byte* Segment::values(int32_t layer, int32_t head) const {
  return keys(layer, head) + shape_.head_bytes() * static_cast<size_t>(tokens_);
}
int32_t* Segment::places(int32_t layer, int32_t head) const {
  return places_.as<int32_t>() + plane(layer, head) * static_cast<size_t>(tokens_);
}
int32_t* Segment::places_on_device(int32_t layer, int32_t head) const {
  return places_there_.as<int32_t>() + plane(layer, head) * static_cast<size_t>(tokens_);
}

void Segment::copy_tokens(int32_t layer, int32_t head, int64_t first, int64_t count, std::byte* to_keys,
                          std::byte* to_values) const {
  const size_t row = shape_.head_bytes();
  const int32_t* const from = places(layer, head) + (first - first_position_);
  const std::byte *own_keys = nullptr, *own_values = nullptr;
  std::optional<PlaneCopy> plane_copy;
  std::vector<std::byte> host_copy;
  const bool host_loads = pool_->memory().host_loads();
  if (const SlowPlace there = slow_place(layer, head); there.kv) {
    plane_copy.emplace(*there.kv, there.plane, static_cast<size_t>(tokens_) * row);
    own_keys = plane_copy->keys(), own_values = plane_copy->values();
  } else {
    own_keys = keys(layer, head), own_values = own_keys + static_cast<size_t>(tokens_) * row;
    if (!host_loads) {  // neighbours lie apart: a copy from a device for each token would take seconds
      host_copy.resize(2 * static_cast<size_t>(tokens_) * row);
      pool_->memory().copy(host_copy.data(), own_keys, host_copy.size());
      own_keys = host_copy.data(), own_values = own_keys + host_copy.size() / 2;
    }
  }
  CopyPiece pieces[128];
  size_t filled = 0;
  for (int64_t i = 0, together = 1; i < count; i += together) {
    for (together = 1; i + together < count && from[i + together] == from[i] + together;) ++together;
    const size_t at = static_cast<size_t>(from[i]) * row, to = static_cast<size_t>(i) * row,
                 bytes = static_cast<size_t>(together) * row;
    if (!host_loads) {
      std::memcpy(to_keys + to, own_keys + at, bytes);
      std::memcpy(to_values + to, own_values + at, bytes);
      continue;
    }
    pieces[filled++] = {to_keys + to, own_keys + at, bytes};
    pieces[filled++] = {to_values + to, own_values + at, bytes};
    if (filled == std::size(pieces)) {
      pool_->memory().copy(pieces);
      filled = 0;
    }
  }
  pool_->memory().copy({pieces, filled});
}

template <class Work>
void Segment::each_piece(uint64_t offset, size_t bytes, Work&& work) const {
  const size_t plane_bytes = 2 * static_cast<size_t>(tokens_) * shape_.head_bytes();
  while (bytes > 0) {
    const size_t skip = offset % plane_bytes, here = std::min(bytes, plane_bytes - skip);
    const auto number = static_cast<int32_t>(offset / plane_bytes);
    work(number / shape_.kv_heads, number % shape_.kv_heads, skip, here);
    offset += here, bytes -= here;
  }
}

void Segment::copy_in(uint64_t offset, const void* from, size_t bytes) {
  if (layers_before_.empty()) return pages_.copy_in(offset, from, bytes);
  const auto* in = static_cast<const std::byte*>(from);
  each_piece(offset, bytes, [&](int32_t layer, int32_t head, size_t skip, size_t here) {
    pool_->memory().copy(keys(layer, head) + skip, in, here);
    in += here;
  });
}

void Segment::copy_out(uint64_t offset, void* to, size_t bytes) const {
  if (!slow() && layers_before_.empty())
    return pool_->memory().copy(to, kv_.load(std::memory_order_acquire) + offset, bytes);
  const size_t half = static_cast<size_t>(tokens_) * shape_.head_bytes();
  auto* out = static_cast<std::byte*>(to);
  each_piece(offset, bytes, [&](int32_t layer, int32_t head, size_t skip, size_t here) {
    if (const SlowPlace there = slow_place(layer, head); there.kv) {
      const PlaneCopy plane_copy(*there.kv, there.plane, half);
      std::memcpy(out, plane_copy.keys() + skip, here);
    } else {
      pool_->memory().copy(out, keys(layer, head) + skip, here);
    }
    out += here;
  });
}

bool Segment::demote(WaveBuffer& buffer, const std::function<void()>& poll) const {
  const std::unique_lock lock = lock_patiently(demoting_, poll);  // another thread may be at it
  if (is_slow()) return false;
  const WaveBuffer::Retiring retiring(buffer);
  if (buffer.pinned()) {
    demote_to_pinned(buffer, poll);
    return true;
  }
  const size_t plane_bytes = 2 * static_cast<size_t>(tokens_) * shape_.head_bytes();
  slow_ = SlowKv::write(
      buffer.file(), buffer.cache_of(2 * kFrameTokens * shape_.head_bytes()), layouts(), tokens_,
      shape_.head_bytes(),
      [&](size_t plane, std::byte* to) {
        pool_->memory().copy(to, pages_.data() + plane * plane_bytes, plane_bytes);
      },
      poll);
  slow_now_.store(slow_.get(), std::memory_order_release);
  is_slow_.store(true, std::memory_order_release);
  buffer.retire(std::move(pages_));
  return true;
}

// As they are: kernels read them there.
void Segment::demote_to_pinned(WaveBuffer& buffer, const std::function<void()>& poll) const {
  constexpr uint64_t kPiece = uint64_t{16} << 20;  // a millisecond's work
  hot_ = buffer.hot_pages(2 * kHotPageTokens * shape_.head_bytes());
  HostBuffer there = buffer.pinned()->allocate(kv_bytes(), "a segment's keys and values in host memory");
  for (uint64_t at = 0; at < there.bytes(); at += kPiece) {
    if (poll) poll();
    there.copy_in(at, pages_.data() + at, std::min(kPiece, there.bytes() - at));
  }
  pinned_ = std::move(there);
  kv_.store(pinned_.data(), std::memory_order_release);
  is_slow_.store(true, std::memory_order_release);
  buffer.retire(std::move(pages_));
}

void Segment::attach_slow(WaveBuffer& buffer, SpillExtent extent, HostBuffer checksums) {
  assert(layers_before_.empty());
  slow_ = SlowKv::open(buffer.file(), buffer.cache_of(2 * kFrameTokens * shape_.head_bytes()),
                       std::move(extent), std::move(checksums), layouts(), tokens_, shape_.head_bytes());
  slow_now_.store(slow_.get(), std::memory_order_release);
  is_slow_.store(true, std::memory_order_release);
}

std::vector<PlaneLayout> Segment::layouts() const {
  std::vector<PlaneLayout> planes;
  for (size_t i = 0; i < heads_.size(); ++i)
    if (!stays(static_cast<int32_t>(i) / shape_.kv_heads)) planes.push_back(layout(i));
  return planes;
}

void Segment::attach_index(HostPool& host_pool, const Policy& policy, HostBuffer index,
                           std::vector<HeadIndex> heads, std::span<const MadeThere> made_there) {
  size_t count = 0;
  for (const HeadIndex& head : heads) count += static_cast<size_t>(head.partitions) + 1;
  HostBuffer offsets = host_pool.allocate(count * sizeof(int32_t), "a segment's offsets");
  if (places_there_) {
    index_on_device(heads, made_there, index, offsets.bytes());
    bring_index(heads, made_there, index);
  }
  int32_t* out = offsets.as<int32_t>();
  for (const HeadIndex& head : heads) {
    partition_offsets(policy, index.data() + head.offset, head.partitions, tokens_, out);
    out += head.partitions + 1;
  }
  keep_index(std::move(index), std::move(heads), std::move(offsets));
}

void Segment::attach_index(HostBuffer index, std::vector<HeadIndex> heads, HostBuffer offsets) {
  if (places_there_) index_on_device(heads, {}, index, offsets.bytes());
  keep_index(std::move(index), std::move(heads), std::move(offsets));
}

// Makes room there for the index, offsets and frames, and has the index and all places there.
void Segment::index_on_device(const std::vector<HeadIndex>& heads, std::span<const MadeThere> made_there,
                              const HostBuffer& index, size_t offset_bytes) {
  constexpr auto aligned = [](uint64_t bytes) { return (bytes + 255) & ~uint64_t{255}; };
  const uint64_t offsets_at = aligned(index.bytes()), frames_at = offsets_at + aligned(offset_bytes);
  size_t frames = 0;
  if (shape_.paged) {
    std::vector<size_t> slots(1);
    for (const HeadIndex& head : heads)
      slots.push_back(slots.back() + hot_page_slots(tokens_, head.partitions));
    frames = slots.back();
    frames_at_ = std::move(slots);
  }
  on_device_ = pool_->allocate(frames_at + frames * sizeof(int32_t), "a segment's index on the device");
  std::vector<CopyPiece> places, indexes;
  const size_t place_bytes = static_cast<size_t>(tokens_) * sizeof(int32_t);
  for (size_t plane = 0; plane < heads.size(); ++plane) {
    const HeadIndex& head = heads[plane];
    const bool made = !made_there.empty() && made_there[plane].made;
    add_piece(indexes, on_device_.data() + head.offset,
              made ? made_there[plane].index : index.data() + head.offset, head.bytes);
    if (!made)
      add_piece(places, places_there_.data() + plane * place_bytes, places_.data() + plane * place_bytes,
                place_bytes);
  }
  indexes.insert(indexes.end(), places.begin(), places.end());
  pool_->memory().copy(indexes);
  offsets_there_ = on_device_.data() + offsets_at;
  if (frames) {
    const std::vector<int32_t> none(frames, -1);
    on_device_.copy_in(frames_at, none.data(), frames * sizeof(int32_t));
    frames_there_ = reinterpret_cast<int32_t*>(on_device_.data() + frames_at);
    first_page_ = next_pages(frames);
  }
}

// The host's copy of what was made there.
void Segment::bring_index(const std::vector<HeadIndex>& heads, std::span<const MadeThere> made_there,
                          const HostBuffer& index) const {
  std::vector<CopyPiece> places, indexes;
  const size_t place_bytes = static_cast<size_t>(tokens_) * sizeof(int32_t);
  for (size_t plane = 0; plane < made_there.size(); ++plane) {
    if (!made_there[plane].made) continue;
    const HeadIndex& head = heads[plane];
    add_piece(indexes, index.data() + head.offset, on_device_.data() + head.offset, head.bytes);
    add_piece(places, places_.data() + plane * place_bytes, places_there_.data() + plane * place_bytes,
              place_bytes);
  }
  indexes.insert(indexes.end(), places.begin(), places.end());
  pool_->memory().copy(indexes);
}

void Segment::keep_index(HostBuffer index, std::vector<HeadIndex> heads, HostBuffer offsets) {
  std::vector<size_t> at;
  size_t count = 0;
  for (const HeadIndex& head : heads) {
    at.push_back(count);
    count += static_cast<size_t>(head.partitions) + 1;
  }
  if (on_device_)
    pool_->memory().copy(const_cast<std::byte*>(offsets_there_), offsets.data(), offsets.bytes());
  index_ = std::move(index);
  heads_ = std::move(heads);
  offsets_ = std::move(offsets);
  offsets_at_ = std::move(at);
}

SegmentView Segment::view(int32_t layer, int32_t head, const SlowKv* slow) const {
  const HeadIndex& entry = heads_[plane(layer, head)];
  SegmentView view;
  if (const SlowPlace there = slow_place(layer, head, slow); there.kv) {
    view.slow = &there.kv->plane(there.plane);
  } else {
    view.keys = keys(layer, head);
    view.values = values(layer, head);
  }
  view.offsets = offsets_.as<int32_t>() + offsets_at_[plane(layer, head)];
  view.places = places(layer, head);
  view.index = entry.bytes ? index_.data() + entry.offset : nullptr;
  view.tokens = tokens_;
  view.partitions = entry.partitions;
  return view;
}

SegmentView Segment::view_on_device(int32_t layer, int32_t head) const {
  const HeadIndex& entry = heads_[plane(layer, head)];
  const bool pinned = is_slow();  // first: what it says lies there by now
  SegmentView there = view(layer, head, nullptr);
  there.offsets = reinterpret_cast<const int32_t*>(offsets_there_) + offsets_at_[plane(layer, head)];
  there.places = places_on_device(layer, head);
  there.index = entry.bytes ? on_device_.data() + entry.offset : nullptr;
  if (pinned && frames_there_) {
    const size_t at = frames_at_[plane(layer, head)];
    there.first_page = first_page_ + at;
    there.frames = frames_there_ + at;
  }
  return there;
}

}  // namespace wi
