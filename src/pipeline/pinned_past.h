// What a prompt's chunk attends to on a device, where some of it is in pinned host memory: kernels could read it
// there, but each tile of rows would read it again. So each part is fetched into a window of device memory, while
// the one before is attended to in the other window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/memory/device.h"
#include "src/store/sequence.h"

namespace wi {

// Tokens [first, end) of one layer.
struct PastPart {
  int32_t layer = -1;  // -1: none
  int64_t first = 0, end = 0;
  bool operator==(const PastPart&) const = default;
};

// Parts are opened in turn, as the chunk attends to them.
class PinnedPast {
 public:
  // A chunk begins; nothing that the queue was asked for before is to come.
  void start() noexcept { windows_[0].part = windows_[1].part = {}; }
  // Has those of the part's runs point into a window that are of pinned segments, and begins to fetch the next
  // part's. runs: (kv_heads, most) those of Sequence::runs(). Throws WI_E_MEMORY.
  void open(Queue& queue, const Sequence& sequence, const PastPart& part, const PastPart& next, KvRun* runs,
            size_t most);

 private:
  // Of one run.
  struct Piece {
    int32_t head, run;
    const void *keys, *values;  // in pinned memory
    size_t bytes;               // of either
    size_t at;                  // in the window; values follow keys
  };
  struct Window {
    PastPart part;
    std::vector<Piece> pieces;
    std::byte* room = nullptr;
  };
  void fetch(Queue& queue, const Sequence& sequence, const PastPart& part, Window& to);

  Window windows_[2];
  int current_ = 0;
};

}  // namespace wi
