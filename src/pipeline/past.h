// What a prompt's chunk attends to, part by part: tokens in the order in which they are stored, where they are,
// or, of segments in the slow tier, copies that are read for the purpose.
#pragma once

#include <memory>
#include <vector>

#include "src/store/sequence.h"

namespace wi {

class Past {
 public:
  // Runs of tokens [first, end) of one layer, for each KV head. Valid until the next call. Throws WI_E_IO.
  void open(const Stream& stream, const Sequence& sequence, int32_t layer, int64_t first, int64_t end);
  const KvRun* const* runs() const { return runs_of_head_.data(); }  // (kv_heads) -> (run_counts)
  const int32_t* run_counts() const { return run_counts_.data(); }   // (kv_heads)

  // So many tokens a part, where some are in the slow tier.
  static constexpr int64_t kPartTokens = 8192;
  size_t bytes() const { return runs_.size() * sizeof(KvRun) + read_.size() + rows_.size(); }

 private:
  // Rows of a segment's plane that are in the slow tier.
  struct Piece {
    const SlowKv* slow;
    size_t plane;
    int32_t first, count;
    size_t read;  // where the file's bytes go
    size_t rows;  // where keys and values go, (count, head_dim) each
    KvRun* run;
  };
  std::vector<KvRun> runs_;  // (kv_heads, runs)
  std::vector<const KvRun*> runs_of_head_;
  std::vector<int32_t> run_counts_;
  std::vector<Piece> pieces_;
  std::vector<std::byte> read_, rows_;
  std::vector<ReadRequest> requests_;
  std::unique_ptr<SpillReader> reader_;
  std::shared_ptr<SpillFile> file_;  // of reader_
};

}  // namespace wi
