// The KV store alone, for hosts with their own model code: append keys and values per layer, get attention
// back. The same sequence, policies and pipeline as a session's.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "src/cancel.h"
#include "src/pipeline/append.h"
#include "src/runtime.h"
#include "src/stats.h"
#include "src/store/sequence.h"

namespace wi {

class ByteSink;
class ByteSource;
class InputFile;
struct IndexSize;
struct SavedParams;

struct KvStoreParams {
  KvShape shape;
  int32_t query_heads = 0;
  const Policy* policy = nullptr;
  PolicyParams policy_params;
  uint64_t kv_budget_bytes = 0;
};

class KvStore {
 public:
  KvStore(std::shared_ptr<Runtime> runtime, const KvStoreParams& params);
  ~KvStore();
  const KvStoreParams& params() const { return params_; }

  // keys, values: (tokens, kv_heads, head_dim) f32, rotated. Layers may run ahead of each other within one
  // round; a token counts once every layer has it.
  void append(int32_t layer, int64_t tokens, const float* keys, const float* values);
  void seal();  // as many whole segments as the policy's sizes allow beyond the local window
  // queries (rows, query_heads, head_dim) f32 rotated; out the same shape; lse (rows, query_heads) or null.
  // Every row sees every token appended to this layer.
  void attend(int32_t layer, int64_t rows, const float* queries, const CancelToken* cancel, float* out,
              float* lse);
  std::shared_ptr<KvStore> fork();
  void truncate(int64_t tokens);

  // ---- saving (save.cpp); as of sessions ----
  void save(const std::string& path, const CancelToken* cancel);
  void save(ByteSink& to, const CancelToken* cancel);
  uint64_t saved_bytes();
  using Choice = std::function<KvStoreParams(const KvStoreParams& saved)>;
  static std::shared_ptr<KvStore> load(std::shared_ptr<Runtime> runtime, const std::string& path,
                                       const Choice& choose, const CancelToken* cancel);
  static std::shared_ptr<KvStore> load(std::shared_ptr<Runtime> runtime, ByteSource& from,
                                       const Choice& choose, const CancelToken* cancel);
  wi_session_stats stats() const;

 private:
  class Use;
  static std::shared_ptr<KvStore> load(std::shared_ptr<Runtime> runtime, ByteSource& from,
                                       const InputFile* place, const Choice& choose,
                                       const CancelToken* cancel);
  WaveBuffer* buffer() const { return sequence_.slow_segments() ? runtime_->buffer.get() : nullptr; }
  // As a session does; no reading of the store lives.
  bool make_room(const Sequence& sequence, uint64_t coming_bytes, bool may_wait,
                 const std::atomic<bool>* cancel = nullptr, const Sequence* from = nullptr);
  WaveBuffer* make_room_to_make(const IndexSize& index, int32_t longest, uint64_t more_bytes);
  template <class Work>
  void in_room(Work&& work);
  void rest() noexcept;
  void publish_stats();
  void check_even() const;
  void write(const std::string& path, const CancelToken* cancel) const;
  void write(ByteSink& to, const CancelToken* cancel) const;
  uint64_t written_bytes() const;
  SavedParams saved_params() const;
  std::shared_ptr<Runtime> runtime_;
  KvStoreParams params_;
  std::unique_ptr<Residency::Member> resident_;  // null: there is no slow tier; outlives the segments
  Sequence sequence_;
  std::vector<std::shared_ptr<const Segment>> segments_;  // scratch
  bool room_ = true;                                      // as in Session
  std::exception_ptr refused_;
  AppendRoom append_room_;
  std::vector<int64_t> written_;  // (layers) tokens appended to each
  std::atomic<bool> busy_{false};
  StepStats totals_;
  uint64_t attend_calls_ = 0, attend_ns_ = 0;
  mutable std::mutex stats_mutex_;
  wi_session_stats published_{};
};

}  // namespace wi
