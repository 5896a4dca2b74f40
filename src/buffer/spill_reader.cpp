#include "src/buffer/spill_reader.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "src/buffer/saved_file.h"
#include "src/error.h"

namespace wi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPartBytes = uint64_t{256} << 10;
constexpr uint64_t kLeastBuffer = 2 * kPartBytes;

}  // namespace

SpillReader::SpillReader(std::shared_ptr<SpillFile> file)
    : file_(std::move(file)), reads_(file_->make_reads()) {
  if (file_->direct()) grow_buffer({});
}

void SpillReader::read(std::span<const ReadRequest> requests, const std::atomic<bool>* cancel) {
  const Clock::time_point start = Clock::now();
  read_unwaited(requests, cancel);
  if (!parts_.empty()) file_->add_wait(Clock::now() - start, 1);
}

void SpillReader::read_unwaited(std::span<const ReadRequest> requests, const std::atomic<bool>* cancel) {
  file_->check_process();
  cut(requests);
  if (parts_.empty()) return;
  const auto direct = [](const Part& part) { return part.source.alignment > 1; };
  const std::span<Part> parts = parts_;
  const auto past_cache =
      static_cast<size_t>(std::partition(parts.begin(), parts.end(), direct) - parts.begin());
  if (past_cache > 0) read_through_buffer(parts.first(past_cache), cancel);
  if (past_cache < parts.size()) read_straight(parts.subspan(past_cache), cancel);
  constexpr auto kRelaxed = std::memory_order_relaxed;
  uint64_t wanted = 0;
  for (const Part& part : parts) wanted += part.bytes;
  file_->wanted_bytes_.fetch_add(wanted, kRelaxed);
  file_->requests_.fetch_add(requests.size(), kRelaxed);
}

void SpillReader::cut(std::span<const ReadRequest> requests) {
  parts_.clear();
  for (const ReadRequest& request : requests) {
    const SpillExtent& extent = *request.extent;
    assert(extent.file_ && request.offset <= extent.bytes_ &&
           request.bytes <= extent.bytes_ - request.offset);
    const ReadSource source = request.bytes > 0 ? extent.file_->source() : ReadSource{};
    for (uint64_t done = 0; done < request.bytes; done += kPartBytes)
      parts_.push_back({source, extent.file_.get(), extent.offset_ + request.offset + done,
                        std::min(kPartBytes, request.bytes - done),
                        static_cast<std::byte*>(request.to) + done, nullptr});
  }
}

// ---- through the page cache ----

void SpillReader::read_straight(std::span<const Part> parts, const std::atomic<bool>* cancel) {
  planned_.clear();
  for (const Part& part : parts) planned_.push_back({part.source, part.offset, part.bytes, part.to});
  run(cancel);
  for (const Part& part : parts) part.file->forget(part.offset, part.bytes);
}

// ---- past it ----

void SpillReader::read_through_buffer(std::span<Part> parts, const std::atomic<bool>* cancel) {
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return a.source.file != b.source.file ? a.source.file < b.source.file : a.offset < b.offset;
  });
  grow_buffer(parts);
  while (!parts.empty()) {
    const size_t count = plan(parts);
    run(cancel);
    for (const Part& part : parts.first(count)) std::memcpy(part.to, part.from, part.bytes);
    parts = parts.subspan(count);
  }
}

// For all parts, if they may and can have it. At first: for one of them, wherever it lies.
void SpillReader::grow_buffer(std::span<const Part> parts) {
  const uint64_t alignment = std::max(file_->file_.read_alignment(), SavedFile::kMostAlignment);
  uint64_t wanted = 0;
  for (const Part& part : parts)
    wanted += round_up(part.offset + part.bytes, part.source.alignment) -
              round_down(part.offset, part.source.alignment);
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

// The reads for as many parts, from the first on, as the buffer holds. Returns how many.
size_t SpillReader::plan(std::span<Part> parts) {
  planned_.clear();
  uint64_t used = 0, end = 0;  // of the buffer; of the last range of sectors, in the file
  size_t i = 0;
  for (; i < parts.size(); ++i) {
    Part& part = parts[i];
    const uint64_t alignment = part.source.alignment;
    const uint64_t part_begin = round_down(part.offset, alignment);
    const uint64_t part_end = round_up(part.offset + part.bytes, alignment);
    const bool touches = i > 0 && part.source.file == parts[i - 1].source.file && part_begin <= end;
    const uint64_t begin = touches ? end : part_begin;  // of what is new
    const uint64_t more = std::max(part_end, begin) - begin;
    const uint64_t at = round_up(used, alignment);
    if (at + more > aligned_bytes_) break;
    // The range lies in the buffer as in the file: its end there is `used`.
    part.from = aligned_ + (at + part.offset - begin);
    if (more == 0) continue;
    if (touches && planned_.back().bytes + more <= kPartBytes)
      planned_.back().bytes += more;
    else
      planned_.push_back({part.source, begin, more, aligned_ + at});
    used = at + more;
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
  for (const FileRead& read : planned_) {
    if (read.done == read.bytes) continue;
    const auto of = std::find_if(parts_.begin(), parts_.end(),
                                 [&](const Part& part) { return part.source.file == read.from.file; });
    throw_errno(WI_E_IO, concat("cannot read ", read.bytes, " bytes of ", of->file->name()), read.error);
  }
}

}  // namespace wi
