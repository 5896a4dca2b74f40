// What a prompt's chunk attends to, part by part: tokens in the order in which they are stored, where they are,
// or, of segments in the slow tier, copies that are read for the purpose, the next part's while the workers attend
// to this one.
#pragma once

#include <memory>
#include <vector>

#include "src/buffer/read_ahead.h"
#include "src/store/sequence.h"

namespace wi {

class Past {
 public:
  // Tokens [first, end) of one layer.
  struct Part {
    int32_t layer = -1;  // -1: none
    int64_t first = 0, end = 0;
    bool operator==(const Part&) const = default;
  };
  // Its runs, for each KV head. Valid until the next call. next: what open() is called for next, of the same
  // sequence, unless close() is. Throws WI_E_IO, and WI_E_FORMAT as SlowPlane::verify().
  void open(const Stream& stream, const Sequence& sequence, const Part& part, const Part& next);
  const KvRun* const* runs() const { return runs_of_head_.data(); }  // (kv_heads) -> (run_counts)
  const int32_t* run_counts() const { return run_counts_.data(); }   // (kv_heads)
  // The end of a chunk, before what it read from may change. Nothing is being read any more.
  void close() noexcept;

  // So many tokens a part, where some are in the slow tier.
  static constexpr int64_t kPartTokens = 8192;
  size_t bytes() const {
    return runs_.size() * sizeof(KvRun) + now_.read.size() + next_.read.size() + rows_.size() +
           (ahead_ ? ahead_->buffer_bytes() : 0);
  }

 private:
  // Rows of a segment's plane that are in the slow tier.
  struct Piece {
    const SlowKv* slow;
    size_t plane;
    int32_t first, count;
    size_t read;  // where the file's bytes go
    size_t rows;  // where keys and values go, (count, head_dim) each
    int32_t head, run;
  };
  // What of a part comes from the slow tier.
  struct Slow {
    Part part;
    size_t rows = 0;  // bytes
    std::vector<Piece> pieces;
    std::vector<ReadRequest> requests;
    std::vector<std::byte> read;
  };
  static void plan(const Sequence& sequence, const Part& part, Slow& slow);
  void fetch(const Stream& stream, const Sequence& sequence, const Part& part);

  std::vector<KvRun> runs_;  // (kv_heads, runs)
  std::vector<const KvRun*> runs_of_head_;
  std::vector<int32_t> run_counts_;
  std::vector<std::byte> rows_;
  Slow now_, next_;
  bool reading_next_ = false;
  std::unique_ptr<ReadAhead> ahead_;
  std::shared_ptr<SpillFile> file_;  // of ahead_
};

}  // namespace wi
