#include "src/buffer/retrieval.h"

#include <algorithm>

namespace wi {
namespace {

int32_t tokens_in(const SegmentView& segment, int32_t partition) {
  return segment.offsets[partition + 1] - segment.offsets[partition];
}

}  // namespace

void Retrieval::run(const Stream& stream, const LookupArgs& args) {
  const size_t count = static_cast<size_t>(args.count);
  if (found_.size() < count) found_.resize(count);
  size_t room = 0;
  cache_ = nullptr;
  for (int32_t i = 0; i < args.count; ++i) {
    const Lookup& lookup = args.lookups[i];
    found_[static_cast<size_t>(i)].first_run = room;
    for (int32_t r = 0; r < lookup.retrieved_count; ++r) {
      const SegmentView& segment = lookup.segments[lookup.retrieved[r].segment];
      if (segment.slow) cache_ = segment.slow->cache;
      room += segment.slow ? static_cast<size_t>(frames_of(tokens_in(segment, lookup.retrieved[r].partition)))
                           : 1;
    }
  }
  if (runs_.size() < room) runs_.resize(room + room / 4);
  stream.each(args.count, [&](int64_t i, int) { find(args, static_cast<int32_t>(i)); });
  if (stream.cancelled()) return;

  misses_.clear();
  for (size_t i = 0; i < count; ++i) {
    misses_.insert(misses_.end(), found_[i].misses.begin(), found_[i].misses.end());
    use_.hits.insert(use_.hits.end(), found_[i].hits.begin(), found_[i].hits.end());
  }
  if (!cache_) return;
  use_.cache = cache_;
  if (!misses_.empty()) fetch(args, stream.cancel);
}

// A lookup's runs, but for those of its misses.
void Retrieval::find(const LookupArgs& args, int32_t number) {
  Lookup& lookup = args.lookups[number];
  Found& found = found_[static_cast<size_t>(number)];
  const size_t row = row_bytes(args.kv, args.head_dim);
  found.misses.clear();
  found.hits.clear();
  KvRun* const runs = runs_.data() + found.first_run;
  int32_t at = 0;
  for (int32_t r = 0; r < lookup.retrieved_count; ++r) {
    const PartitionRef ref = lookup.retrieved[r];
    const SegmentView& segment = lookup.segments[ref.segment];
    if (!segment.slow) {
      runs[at++] = segment.run(ref.partition, row);
      continue;
    }
    int32_t left = tokens_in(segment, ref.partition);
    const int32_t entry = cache_->find(segment.slow->entries[ref.partition], step_);
    if (entry == kNoEntry) {
      found.misses.push_back({number, r, at, kNoEntry});
      at += frames_of(left);
      continue;
    }
    found.hits.push_back(cache_->use_of(entry));
    for (int32_t frame = entry; left > 0; frame = cache_->next(frame), left -= kFrameTokens) {
      const int32_t tokens = std::min(left, kFrameTokens);
      const std::byte* const keys = cache_->frame(frame);
      runs[at++] = {keys, keys + static_cast<size_t>(tokens) * row, tokens};
    }
  }
  lookup.runs = runs;
  lookup.run_count = at;
  lookup.counters->misses += static_cast<int64_t>(found.misses.size());
}

// All misses of the pass in flight at once, each into frames in which it may stay.
void Retrieval::fetch(const LookupArgs& args, const std::atomic<bool>* cancel) {
  PageCache& cache = *cache_;
  const size_t row = row_bytes(args.kv, args.head_dim), page = cache.page_bytes();
  size_t refused = 0;
  for (Miss& miss : misses_) {
    const Lookup& lookup = args.lookups[miss.lookup];
    const PartitionRef ref = lookup.retrieved[miss.partition];
    const int32_t pages = frames_of(tokens_in(lookup.segments[ref.segment], ref.partition));
    Counts& counts = counts_of(args, miss);
    miss.entry = cache.take(pages, step_, &counts.evictions);
    if (&miss == misses_.data() || miss.lookup != (&miss)[-1].lookup) ++counts.stalls;
    if (miss.entry != kNoEntry) continue;
    refused += static_cast<size_t>(pages);
    ++counts.refusals;
  }
  try {
    if (refused_.size() < refused * page) refused_.resize(refused * page);
    requests_.clear();
    std::byte* spare = refused_.data();
    for (const Miss& miss : misses_) {
      const Lookup& lookup = args.lookups[miss.lookup];
      const PartitionRef ref = lookup.retrieved[miss.partition];
      const SegmentView& segment = lookup.segments[ref.segment];
      uint64_t offset =
          segment.slow->offset + static_cast<uint64_t>(segment.offsets[ref.partition]) * 2 * row;
      KvRun* run = const_cast<KvRun*>(lookup.runs) + miss.run;
      int32_t frame = miss.entry;
      for (int32_t left = tokens_in(segment, ref.partition); left > 0; left -= kFrameTokens) {
        const int32_t tokens = std::min(left, kFrameTokens);
        const size_t half = static_cast<size_t>(tokens) * row;
        std::byte* const to = frame == kNoEntry ? spare : cache.frame(frame);
        if (frame == kNoEntry)
          spare += page;
        else
          frame = cache.next(frame);
        requests_.push_back({segment.slow->extent, offset, 2 * half, to});
        *run++ = {to, to + half, tokens};
        offset += 2 * half;
      }
    }
    if (!reader_) reader_ = std::make_unique<SpillReader>(file_);
    reader_->read(requests_, cancel);
    for (const Miss& miss : misses_) verify(args, miss);
  } catch (...) {
    give_back();
    throw;
  }
  for (const Miss& miss : misses_) {
    if (miss.entry == kNoEntry) continue;
    const PartitionRef ref = args.lookups[miss.lookup].retrieved[miss.partition];
    const bool stays = cache.publish(
        miss.entry, args.lookups[miss.lookup].segments[ref.segment].slow->entries[ref.partition]);
    Counts& counts = counts_of(args, miss);
    ++(stays ? counts.admissions : counts.late);
  }
}

void Retrieval::verify(const LookupArgs& args, const Miss& miss) const {
  const Lookup& lookup = args.lookups[miss.lookup];
  const PartitionRef ref = lookup.retrieved[miss.partition];
  const SegmentView& segment = lookup.segments[ref.segment];
  if (!segment.slow->checksums) return;
  int32_t slot = page_slot(ref.partition, segment.offsets[ref.partition]);
  const KvRun* run = lookup.runs + miss.run;
  for (int32_t left = tokens_in(segment, ref.partition); left > 0; left -= kFrameTokens, ++run)
    segment.slow->verify(slot++, static_cast<const std::byte*>(run->keys),
                         2 * static_cast<size_t>(run->tokens) * row_bytes(args.kv, args.head_dim));
}

void Retrieval::give_back() noexcept {
  for (const Miss& miss : misses_)
    if (miss.entry != kNoEntry) cache_->give(miss.entry);
}

void Retrieval::begin(WaveBuffer* buffer) {
  buffer_ = nullptr;
  pinned_ = buffer && buffer->pinned() ? buffer : nullptr;
  if (!buffer || pinned_) return;
  if (file_ != buffer->file()) {
    reader_.reset();
    file_ = buffer->file();
  }
  use_.hits.clear();
  use_.cache = nullptr;
  step_ = buffer->begin_step();
  buffer_ = buffer;
}

void Retrieval::end() noexcept {
  hot_.end();
  if (!buffer_) return;
  buffer_->end_step(step_);
  use_.step = step_;
  if (use_.cache) buffer_->post(use_);
}

size_t Retrieval::bytes() const {
  return runs_.size() * sizeof(KvRun) + refused_.size() + requests_.capacity() * sizeof(ReadRequest) +
         (reader_ ? reader_->buffer_bytes() : 0);
}

}  // namespace wi
