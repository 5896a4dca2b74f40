#include "src/buffer/retrieval.h"

#include <algorithm>
#include <functional>
#include <numeric>

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

  if (!cache_) return;
  misses_.clear();
  StepUse& use = use_of(*cache_);
  for (size_t i = 0; i < count; ++i) {
    misses_.insert(misses_.end(), found_[i].misses.begin(), found_[i].misses.end());
    use.hits.insert(use.hits.end(), found_[i].hits.begin(), found_[i].hits.end());
  }
  if (misses_.empty()) return;
  find_same(args);
  fetch(args, stream.cancel);
}

StepUse& Retrieval::use_of(PageCache& cache) {
  for (StepUse& use : uses_) {
    if (!use.cache) use.cache = &cache;
    if (use.cache == &cache) return use;
  }
  uses_.emplace_back().cache = &cache;
  return uses_.back();
}

// What sessions share is read once for all of a step's lookups. Who does not read it has found it.
void Retrieval::find_same(const LookupArgs& args) {
  by_slot_.resize(misses_.size());
  std::iota(by_slot_.begin(), by_slot_.end(), 0);
  const auto slot_of = [&](int32_t number) { return misses_[static_cast<size_t>(number)].slot; };
  std::sort(by_slot_.begin(), by_slot_.end(), [&](int32_t a, int32_t b) {
    return slot_of(a) == slot_of(b) ? a < b : std::less<>()(slot_of(a), slot_of(b));
  });
  int32_t first = by_slot_.front();
  for (const int32_t number : by_slot_) {
    if (slot_of(number) != slot_of(first)) first = number;
    Miss& miss = misses_[static_cast<size_t>(number)];
    miss.same = first;
    if (!reads(miss)) --args.lookups[miss.lookup].counters->misses;
  }
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
    EntrySlot& slot = segment.slow->entries[ref.partition];
    const int32_t entry = cache_->find(slot, step_);
    if (entry == kNoEntry) {
      found.misses.push_back({number, r, at, kNoEntry, &slot, 0});
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
    if (&miss == misses_.data() || miss.lookup != (&miss)[-1].lookup) ++counts.stalls;
    if (!reads(miss)) continue;
    miss.entry = cache.take(pages, step_, &counts.evictions);
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
      if (!reads(miss)) {
        const Miss& same = misses_[static_cast<size_t>(miss.same)];
        std::copy_n(args.lookups[same.lookup].runs + same.run, frames_of(tokens_in(segment, ref.partition)),
                    const_cast<KvRun*>(lookup.runs) + miss.run);
        continue;
      }
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
    for (const Miss& miss : misses_)
      if (reads(miss)) verify(args, miss);
  } catch (...) {
    give_back();
    throw;
  }
  for (const Miss& miss : misses_) {
    if (miss.entry == kNoEntry) continue;
    Counts& counts = counts_of(args, miss);
    ++(cache.publish(miss.entry, *miss.slot) ? counts.admissions : counts.late);
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
  for (StepUse& use : uses_) {
    use.hits.clear();
    use.cache = nullptr;
  }
  step_ = buffer->begin_step();
  buffer_ = buffer;
}

void Retrieval::end() noexcept {
  hot_.end();
  if (!buffer_) return;
  buffer_->end_step(step_);
  for (StepUse& use : uses_) {
    use.step = step_;
    if (use.cache) buffer_->post(use);
  }
}

size_t Retrieval::bytes() const {
  return runs_.size() * sizeof(KvRun) + refused_.size() + requests_.capacity() * sizeof(ReadRequest) +
         (reader_ ? reader_->buffer_bytes() : 0);
}

}  // namespace wi
