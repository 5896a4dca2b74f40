// What a prompt's chunk attends to, part by part: tokens in the order in which they are stored, where they are,
// or, of segments and blocks in the slow tier, copies that are read for the purpose, the next part's while the
// workers or the device attend to this one.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "src/buffer/read_ahead.h"
#include "src/pipeline/pinned_past.h"
#include "src/store/sequence.h"

namespace wi {

class Past {
 public:
  using Part = PastPart;
  // A chunk begins, which ends at `end` and attends in so many layers. Until close() its sequence stays as it is, and
  // open() is called for all of its parts in turn, from the first layer's first, or for none. queue: of the device
  // that attends, or null.
  void start(const Stream& stream, const Sequence& sequence, int32_t layers, int64_t end,
             Queue* queue) noexcept;
  Part first_of(int32_t layer) const { return part_from(layer, 0); }
  Part following(const Part& part) const;  // none after the last
  // A part's runs, for each KV head; they are valid until the next call. Throws WI_E_IO, WI_E_FORMAT as
  // SlowPlane::verify(), or WI_E_CANCELLED.
  void open(const Stream& stream, const Sequence& sequence, const Part& part);
  const KvRun* const* runs() const { return runs_of_head_.data(); }  // (kv_heads) -> (run_counts)
  const int32_t* run_counts() const { return run_counts_.data(); }   // (kv_heads)
  void close() noexcept;                                             // nothing is being read any more

  // So many tokens a part, where some are in the slow tier.
  static constexpr int64_t kPartTokens = 8192;
  size_t bytes() const {
    return runs_.size() * sizeof(KvRun) + read_.size() + rows_.size() + (ahead_ ? ahead_->buffer_bytes() : 0);
  }
  // That it may come to, with a past of so many tokens in the slow tier.
  static uint64_t most_bytes(const KvShape& shape, int64_t tokens);

 private:
  // Rows of a segment's or a block's plane that are in the slow tier.
  struct Piece {
    const SlowKv* slow;       // of a segment, or null
    const TokenBlock* block;  // of the tail, or null
    size_t plane;
    int32_t first, count;
    size_t read;  // where the file's bytes go
    size_t rows;  // where keys and values go, (count, head_dim) each
    int32_t head, run;
  };
  Part part_from(int32_t layer, int64_t first) const {
    return {layer, first, std::min(first + kPartTokens, end_)};
  }
  static bool in_slow_tier(const Sequence& sequence, const Part& part);
  void plan(const Sequence& sequence, const Part& part);
  void fetch(const Stream& stream, const Sequence& sequence, const Part& part);
  void unpack(const Stream& stream, const Sequence& sequence);
  void read_ahead(const Stream& stream, const Sequence& sequence, Part part) noexcept;
  void use_file_of(const Piece& piece);
  void copy_block(const Piece& piece, size_t row, std::byte* keys, std::byte* values) const;

  int32_t layers_ = 0;
  int64_t end_ = 0;
  std::vector<KvRun> runs_;  // (kv_heads, runs)
  std::vector<const KvRun*> runs_of_head_;
  std::vector<int32_t> run_counts_;

  // What of one part comes from the slow tier: of the open one until it is unpacked, then of the next.
  std::vector<Piece> pieces_;
  std::vector<ReadRequest> requests_;
  std::vector<std::byte> read_;
  size_t rows_bytes_ = 0;
  Part reading_;                 // of that; none: nothing has begun
  std::vector<std::byte> rows_;  // of the open part
  std::unique_ptr<ReadAhead> ahead_;
  std::shared_ptr<SpillFile> file_;  // of ahead_

  Queue* queue_ = nullptr;
  PinnedPast pinned_;
};

}  // namespace wi
