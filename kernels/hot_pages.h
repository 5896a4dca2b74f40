// The cache of hot pages of a device (RetroInfer §4.3; SPIN §5.3): copies, in frames of the device's memory, of pages
// whose home is pinned memory of the host's. A step looks residency up on the device, uses hits where they lie, and
// copies a miss once, into a frame in which it stays; nothing of that waits for the host. Copies are of what never
// changes, so that the cache decides no bit.
//
// A segment has a table with the frame of each of its pages, and numbers its pages with numbers that no other
// page of the process ever has. An entry counts if the frame says that it has that page: who takes a frame only
// writes the new page's number there, and no table of others has to be told.
//
// The least recently used go first, as bucketed.cpp has it: by 64 buckets of steps since the last use. Once a step
// all frames are put in that order, and misses take the next that this step has not used.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wi {

// A page: so many tokens of a partition, or what its last page has, of one KV head. Keys are at the beginning of a
// frame, values from its middle on.
inline constexpr int32_t kHotPageTokens = 8;
constexpr int32_t hot_pages_of(int32_t tokens) { return (tokens + kHotPageTokens - 1) / kHotPageTokens; }

// Partitions of more pages are read where they lie: whoever reads that much wants it whole and in a row.
inline constexpr int32_t kMostHotPages = 32;

// Where a segment's table has a partition's first page; the others follow. `offset`: of its first token in the stored
// order. No two pages share an entry, some have none.
constexpr int32_t hot_page_slot(int32_t partition, int32_t offset) {
  return offset / kHotPageTokens + partition;
}
constexpr size_t hot_page_slots(int32_t tokens, int32_t partitions) {
  return static_cast<size_t>(hot_page_slot(partitions, tokens));
}

inline constexpr int32_t kHotPageBuckets = 64;

// Pages [first, end), by number, of a segment that is no more.
struct HotPageRange {
  uint64_t first, end;
};

// A page to be copied into a frame.
struct HotPageMiss {
  int32_t* slot;     // of its segment's table
  uint64_t page;     // its number
  const void* keys;  // in pinned memory
  const void* values;
  uint32_t bytes;  // of either, a multiple of 16
};

struct HotPageCounts {
  uint32_t frames[kHotPageBuckets];  // by bucket
  uint32_t placed[kHotPageBuckets];  // of these, in the order
  uint32_t taken;                    // frames of the order that were given to misses, or passed over
  uint32_t misses;                   // of the pass, listed or not
};

// What is another from step to step.
struct HotPageStep {
  uint64_t step = 0;                   // > kHotPageBuckets, and more than the last one's
  uint64_t passes = 0;                 // before it
  const HotPageRange* gone = nullptr;  // since the last step
  int32_t gone_count = 0;
};

// All of it in the device's memory.
struct HotPages {
  uint64_t* pages;      // (frames) number of the page in it; 0: none
  uint64_t* last_use;   // (frames) step
  std::byte** memory;   // (frames) 256-byte aligned
  int32_t* order;       // (frames) of the step, the first to go first
  HotPageMiss* misses;  // (most_misses) of the pass
  HotPageCounts* counts;
  HotPageStep* now;  // as it is when the step's operations run
  int32_t frames = 0, most_misses = 0;
  size_t frame_bytes = 0;
  uint64_t pass = 0;  // of the step, more than the last one's
};

}  // namespace wi
