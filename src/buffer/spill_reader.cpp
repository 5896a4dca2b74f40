#include "src/buffer/spill_reader.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "src/error.h"

namespace wi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPartBytes = uint64_t{256} << 10;
constexpr uint64_t kLeastBuffer = 2 * kPartBytes;
constexpr uint64_t kMostBuffer = uint64_t{32} << 20;

}  // namespace

SpillReader::SpillReader(std::shared_ptr<SpillFile> file)
    : file_(std::move(file)), reads_(file_->make_reads()) {
  if (file_->direct()) grow_buffer();
}

void SpillReader::read(std::span<const ReadRequest> requests, const std::atomic<bool>* cancel) {
  file_->check_process();
  const Clock::time_point start = Clock::now();
  cut(requests);
  if (parts_.empty()) return;
  if (file_->direct())
    read_through_buffer(cancel);
  else
    read_straight(cancel);
  constexpr auto kRelaxed = std::memory_order_relaxed;
  uint64_t wanted = 0;
  for (const Part& part : parts_) wanted += part.bytes;
  const std::chrono::nanoseconds time = Clock::now() - start;
  file_->read_ns_.fetch_add(static_cast<uint64_t>(time.count()), kRelaxed);
  file_->wanted_bytes_.fetch_add(wanted, kRelaxed);
  file_->requests_.fetch_add(requests.size(), kRelaxed);
  file_->stalls_.fetch_add(1, kRelaxed);
}

void SpillReader::cut(std::span<const ReadRequest> requests) {
  parts_.clear();
  for (const ReadRequest& request : requests) {
    const SpillExtent& extent = *request.extent;
    assert(extent.file_ == file_ && request.offset <= extent.bytes_ &&
           request.bytes <= extent.bytes_ - request.offset);
    for (uint64_t done = 0; done < request.bytes; done += kPartBytes)
      parts_.push_back({extent.offset_ + request.offset + done, std::min(kPartBytes, request.bytes - done),
                        static_cast<std::byte*>(request.to) + done, nullptr});
  }
}

// ---- through the page cache ----

void SpillReader::read_straight(const std::atomic<bool>* cancel) {
  planned_.clear();
  for (const Part& part : parts_) planned_.push_back({part.offset, part.bytes, part.to});
  run(cancel);
  for (const Part& part : parts_) file_->forget(part.offset, part.bytes);
}

// ---- past it ----

void SpillReader::read_through_buffer(const std::atomic<bool>* cancel) {
  std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) { return a.offset < b.offset; });
  grow_buffer();
  for (size_t first = 0; first < parts_.size();) {
    const size_t last = plan(first);
    run(cancel);
    for (; first < last; ++first) std::memcpy(parts_[first].to, parts_[first].from, parts_[first].bytes);
  }
}

// For all parts, if they may and can have it. At first: for one of them, wherever it lies.
void SpillReader::grow_buffer() {
  const uint64_t alignment = file_->file_.read_alignment();
  uint64_t wanted = 0;
  for (const Part& part : parts_)
    wanted += round_up(part.offset + part.bytes, alignment) - round_down(part.offset, alignment);
  if (buffer_ && std::min(wanted, kMostBuffer) <= aligned_bytes_) return;
  wanted = std::clamp(std::max(wanted, aligned_bytes_ + aligned_bytes_ / 2), kLeastBuffer, kMostBuffer);
  try {
    HostBuffer larger =
        file_->pool_->allocate(wanted + alignment, "reading from the spill file", HostPages::small);
    buffer_ = std::move(larger);
  } catch (const Error&) {
    if (!buffer_) throw;
    return;  // fewer reads at once
  }
  aligned_ = round_up(buffer_.data(), alignment);
  aligned_bytes_ = wanted;
}

// The reads for as many parts, from the first on, as the buffer holds. Returns the part behind them.
size_t SpillReader::plan(size_t first) {
  const uint64_t alignment = file_->file_.read_alignment();
  planned_.clear();
  uint64_t used = 0, end = 0;  // of the buffer; of the last range of sectors, in the file
  size_t i = first;
  for (; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    const uint64_t part_begin = round_down(part.offset, alignment);
    const uint64_t part_end = round_up(part.offset + part.bytes, alignment);
    const bool touches = i > first && part_begin <= end;
    const uint64_t begin = touches ? end : part_begin;  // of what is new
    const uint64_t more = std::max(part_end, begin) - begin;
    if (more > aligned_bytes_ - used) break;
    // The range lies in the buffer as in the file: its end there is `used`.
    part.from = aligned_ + (used + part.offset - begin);
    if (more == 0) continue;
    if (touches && planned_.back().bytes + more <= kPartBytes)
      planned_.back().bytes += more;
    else
      planned_.push_back({begin, more, aligned_ + used});
    used += more;
    end = begin + more;
  }
  return i;
}

void SpillReader::run(const std::atomic<bool>* cancel) {
  reads_->run(planned_, cancel);
  if (is_set(cancel)) fail(WI_E_CANCELLED, "cancelled");
  uint64_t bytes = 0;
  for (const FileRead& read : planned_) bytes += read.bytes;
  file_->reads_.fetch_add(planned_.size(), std::memory_order_relaxed);
  file_->read_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  for (const FileRead& read : planned_)
    if (read.done < read.bytes)
      throw_errno(WI_E_IO,
                  concat("cannot read ", read.bytes, " bytes of the spill file in ", file_->file_.folder()),
                  read.error);
}

}  // namespace wi
