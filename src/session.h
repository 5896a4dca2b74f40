// One token sequence: its tokens, its KV cache, its sampler. Used by one thread at a time (a second one gets
// WI_E_BUSY); fork shares everything sealed. The newest token may be pending: sampled, but its keys and
// values are computed with the next call, so that the first token of an answer needs no step of its own.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/cancel.h"
#include "src/event_text.h"
#include "src/model/model.h"
#include "src/model/sampler.h"
#include "src/pipeline/index.h"
#include "src/runtime.h"
#include "src/stats.h"
#include "src/store/sequence.h"
#include "src/token_log.h"

namespace wi {

struct SessionParams {
  const Policy* policy = nullptr;  // of the runtime's backend
  PolicyParams policy_params;
  DType kv = DType::f16;
  SamplingParams sampling;
  bool sampling_given = false;  // load: use these instead of the file's
  uint64_t kv_budget_bytes = 0;
  int32_t sparse_read_tokens = 0;
  bool prefix_reuse = true;
};

struct PrefillParams {
  int32_t chunk_tokens = 0;
  wi_progress_callback progress = nullptr;
  void* progress_user = nullptr;
  std::span<float> logits;  // empty, or (tokens, vocab) of this call
};

struct Event {
  int32_t kind = WI_EVENT_TOKEN;
  int32_t token = -1;
  std::string_view text;  // owned by the session until its next call
};

struct SessionTotals {
  uint64_t prefill_tokens = 0, decode_steps = 0, prefix_tokens = 0, prefill_ns = 0, decode_ns = 0;
  StepStats stages;  // of decode steps; index_ns of prefill too
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  static std::shared_ptr<Session> create(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                                         const SessionParams& params);
  ~Session();

  void prefill(std::span<const int32_t> tokens, const PrefillParams& params, const CancelToken* cancel);
  void append_text(std::string_view text, uint32_t tokenize_flags, const PrefillParams& params,
                   const CancelToken* cancel);
  // Appends tokens whose keys and values come from elsewhere (a benchmark's synthetic cache, a host's own
  // prefill): fill writes (count, kv_heads, head_dim) f32, rotated, for positions [first, first + count) of
  // one layer; it is called from several threads. The last token is left pending, so logits follow.
  using Fill = std::function<void(int32_t layer, int64_t first, int64_t count, float* keys, float* values)>;
  void append_computed(std::span<const int32_t> tokens, const Fill& fill, const CancelToken* cancel);
  Event decode(const CancelToken* cancel);
  std::span<const float> logits(
      const CancelToken* cancel);  // of the last token; computes a pending one. Valid until the next call.
  // The same into (vocab) floats of the caller's, copied while no other thread can be inside.
  void copy_logits(const CancelToken* cancel, std::span<float> out);
  std::vector<int32_t> tokens();
  std::shared_ptr<Session> fork();
  std::shared_ptr<Session> fork_as(const SessionParams& params, const CancelToken* cancel);
  const Backend& backend() const { return runtime_->backend; }
  void truncate(int64_t tokens);
  void save(const std::string& path, const CancelToken* cancel);
  static std::shared_ptr<Session> load(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                                       const std::string& path, const SessionParams& params);
  void set_sampling(const SamplingParams& sampling);
  wi_session_stats stats() const;  // any thread, any time; struct_size is left to the caller

  static void decode_batch(std::span<Session* const> sessions, const CancelToken* cancel, Event* events_out);

 private:
  Session(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model, const SessionParams& params);
  class Use;  // the right to be inside; throws WI_E_BUSY

  std::span<const WantedTokens> wanted_tokens(std::span<WantedTokens> room) const;
  static void compute_pending(std::span<Session* const> sessions, const CancelToken* cancel);
  void run_prefill(std::span<const int32_t> tokens, const PrefillParams& params, const CancelToken* cancel);
  void run_chunk(std::span<const int32_t> ids, bool last, const PrefillParams& params, int64_t skip,
                 int64_t done, const Stream& stream);
  void seal_tail(SealWhen when, const Stream& stream);
  Event sample_event();
  bool pending() const { return tokens_.size() > sequence_.tokens(); }
  float* fresh_logits();
  void publish_stats();
  uint64_t prefix_root() const;

  std::shared_ptr<Runtime> runtime_;
  std::shared_ptr<const Model> model_;
  SessionParams params_;
  std::atomic<bool> busy_{false};

  TokenLog tokens_;  // all; the last is pending if there is one more than the sequence has
  Sequence sequence_;
  int64_t exact_end_ =
      0;  // tokens below it were computed with exact attention (their segments may be reused)
  std::shared_ptr<std::vector<float>> logits_;  // (vocab) after the last computed token; null: none
  bool logits_shared_ = false;                  // with a fork, at some time
  Sampler sampler_;
  EventText text_;
  std::vector<int32_t> recent_;  // what the sampler looks back at

  SessionTotals totals_;
  mutable std::mutex stats_mutex_;
  wi_session_stats published_{};
};

}  // namespace wi
