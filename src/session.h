// One token sequence: its tokens, its KV cache, its sampler. Used by one thread at a time (a second one gets
// WI_E_BUSY); fork shares everything sealed. The newest token may be pending: sampled, but its keys and
// values are computed with the next call, so that the first token of an answer needs no step of its own.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "src/cancel.h"
#include "src/event_text.h"
#include "src/memory/breaks.h"
#include "src/model/model.h"
#include "src/pipeline/index.h"
#include "src/pipeline/row.h"
#include "src/runtime.h"
#include "src/sampling/sampler.h"
#include "src/stats.h"
#include "src/store/exact_tokens.h"
#include "src/store/sequence.h"
#include "src/token_log.h"

namespace wi {

class ByteSink;
class ByteSource;
class InputFile;
struct IndexSize;
struct SavedParams;
class SegmentAhead;
struct SessionImage;

inline constexpr float kDeviceCacheShare = 0.05f;  // RetroInfer §4.3

struct SessionParams {
  const Policy* policy = nullptr;  // of the runtime's backend
  PolicyParams policy_params;
  DType kv = DType::f16;
  SamplingParams sampling;
  bool sampling_given = false;  // load: use these instead of the file's
  uint64_t kv_budget_bytes = 0;
  int32_t sparse_read_tokens = 0;
  bool prefix_reuse = true;
  bool any_prefix = false;  // also such as it would compute with other roundings
  // Of the sealed keys and values, in the fast tier; 0: as the budgets have room, and of a device's what does not fit
  // has a cache of kDeviceCacheShare of all.
  float kv_fast_share = 0;
};

KvShape kv_shape_of(const Model& model, DType kv);
KvShape kv_shape_of(const Model& model, DType kv, const Runtime& runtime);  // as its sessions have it

struct PrefillParams {
  int32_t chunk_tokens = 0;
  wi_progress_callback progress = nullptr;
  void* progress_user = nullptr;
  std::span<float> logits;   // empty, or (tokens, vocab) of this call
  Breaks* breaks = nullptr;  // what may come between, on this thread; not beside progress, whose reports do
};

struct Event {
  int32_t kind = WI_EVENT_TOKEN;
  int32_t token = -1;
  std::string_view text;  // owned by the session until its next call, as `top`
  float logprob = 0;      // of the token under the model's softmax
  std::span<const wi_token_logprob> top;
};

struct SessionTotals {
  uint64_t prefill_tokens = 0, decode_steps = 0, prefix_tokens = 0, prefill_ns = 0, decode_ns = 0;
  StepStats stages;  // of decode steps; index_ns of prefill too
};

class Session {
 public:
  static std::shared_ptr<Session> create(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                                         const SessionParams& params);
  ~Session();

  void prefill(std::span<const int32_t> tokens, const PrefillParams& params, const CancelToken* cancel);
  // The first chunk of what is left of a prompt, and what can be taken over before it; returns how many
  // tokens that was. Calls with all of what is left give exactly what one prefill() gives.
  int64_t prefill_chunk_of(std::span<const int32_t> tokens, const PrefillParams& params,
                           const CancelToken* cancel);
  void append_text(std::string_view text, uint32_t tokenize_flags, const PrefillParams& params,
                   const CancelToken* cancel);
  // Appends tokens whose keys and values come from elsewhere (a benchmark's synthetic cache, a host's own
  // prefill): fill writes (count, kv_heads, head_dim) f32, rotated, for positions [first, first + count) of
  // one layer; it is called from several threads. The last token is left pending, so logits follow.
  using Fill = std::function<void(int32_t layer, int64_t first, int64_t count, float* keys, float* values)>;
  void append_computed(std::span<const int32_t> tokens, const Fill& fill, const CancelToken* cancel);

  // ---- choosing tokens (session_decode.cpp) ----
  Event decode(const CancelToken* cancel);
  Event accept(int32_t token, const CancelToken* cancel);  // in [0, vocab)
  std::span<const float> logits(
      const CancelToken* cancel);  // of the last token; computes a pending one. Valid until the next call.
  // The same into (vocab) floats of the caller's, copied while no other thread can be inside.
  void copy_logits(const CancelToken* cancel, std::span<float> out);
  static void decode_batch(std::span<Session* const> sessions, const CancelToken* cancel, Event* events_out);

  std::vector<int32_t> tokens();
  std::shared_ptr<Session> fork();
  std::shared_ptr<Session> fork_as(const SessionParams& params, const CancelToken* cancel);
  const Sequence& sequence() const { return sequence_; }  // between calls
  const SessionTotals& totals() const { return totals_; }
  const Backend& backend() const { return runtime_->backend; }
  Runtime& runtime() const { return *runtime_; }
  const Model& model() const { return *model_; }
  const SessionParams& params() const { return params_; }
  // From now on only that thread may be inside; {}: any. will_read: tokens come first, so that it may be
  // empty. Throws WI_E_BUSY if somebody is inside or has reserved it already.
  void reserve_for(std::thread::id owner, bool will_read);
  // While it is reserved: what of its own must be in the fast tier is to be no more than that, as far as that is
  // for it to choose.
  void limit_fast(uint64_t bytes) { fast_limit_ = bytes; }
  void truncate(int64_t tokens);

  // ---- saving (save.cpp) ----
  void save(const std::string& path, const CancelToken* cancel);
  void save(ByteSink& to, const CancelToken* cancel);
  uint64_t saved_bytes();
  // What a load goes on with, made of what was saved. What shapes the index must stay, or it is
  // WI_E_MISMATCH.
  using Choice = std::function<SessionParams(const SessionParams& saved)>;
  static std::shared_ptr<Session> load(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                                       const std::string& path, const Choice& choose,
                                       const CancelToken* cancel);
  static std::shared_ptr<Session> load(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                                       ByteSource& from, const Choice& choose, const CancelToken* cancel);

  void set_sampling(const SamplingParams& sampling);
  static bool reading_here();  // this thread is in the middle of reading some session's keys and values

  // ---- any thread, any time ----
  // Whether its sealed keys and values may be in a slow tier.
  bool has_slow_tier() const;
  Residency::Part residency() const { return resident_->part(); }  // of one with a slow tier
  uint64_t mandatory_bytes() const {
    return mandatory_bytes_;
  }                                // held, and cannot be there; of the last call
  wi_session_stats stats() const;  // struct_size is left to the caller

 private:
  Session(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model, const SessionParams& params);
  static std::shared_ptr<Session> load(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                                       ByteSource& from, const InputFile* place, const Choice& choose,
                                       const CancelToken* cancel);
  class Use;  // the right to be inside; throws WI_E_BUSY

  Row pending_row();
  std::span<const WantedTokens> wanted_tokens(std::span<WantedTokens> room) const;
  struct Company;                                  // the sessions of one step
  enum class StepFor { logits, token, accepted };  // what comes next: nothing, a token, the host's
  static void compute_pending(Use& use, const Company& company, Workspace& workspace,
                              const CancelToken* cancel, StepFor what);
  static void run_step(Use& use, const Company& company, Workspace& workspace, const CancelToken* cancel,
                       StepFor what);
  void compute_exact_pending(Workspace& workspace, const CancelToken* cancel);
  static void choose(const Company& company, const int32_t* accepted, Workspace& workspace,
                     Event* events_out);
  static void next_tokens(Use& use, const Company& company, const int32_t* accepted,
                          const CancelToken* cancel, Event* events_out);
  int64_t run_prefill(Use& use, std::span<const int32_t> tokens, const PrefillParams& params,
                      const CancelToken* cancel, bool one_chunk = false);
  enum class SealWhen { prefilling, decoding };
  // Room for what a sequence of this session's takes next, while no reading of it lives (residency.h).
  void make_room(Sequence& sequence, int64_t coming_tokens, SealWhen when,
                 const Residency::Patience& patience, const std::atomic<bool>* cancel);
  bool make_room_of(const Sequence& sequence, uint64_t coming_bytes, SealWhen when,
                    const Residency::Patience& patience, const std::atomic<bool>* cancel,
                    const Sequence* from = nullptr);
  // How what is read becomes segments: whole ones in the fast tier, such as go straight to the slow one, or those
  // with the tail's older blocks there too, until it is their turn. Each needs less room than the one before.
  enum class Making { whole, straight, spilled };
  Making least_making(const Sequence& sequence, int64_t coming_tokens, SealWhen when) const;
  Making first_making(const Sequence& sequence, int64_t coming_tokens, SealWhen when) const;
  bool could_hold(const Sequence& sequence, uint64_t coming_bytes) const;
  void spill_tail(Sequence& sequence, const std::atomic<bool>* cancel, const Residency::Poll* pause);
  void spill_before(Use& use, int64_t coming_tokens, const CancelToken* cancel, Breaks* breaks);
  bool reads_sparsely(const Sequence& sequence, int64_t count) const {
    return count <= params_.sparse_read_tokens && sequence.indexed_tokens() > 0;
  }
  template <class Work>
  void or_refused(Work&& work);
  template <class Work>
  void in_room(Work&& work);
  void make_room_to_load(const Sequence& sequence, uint64_t bytes, const Sequence* from,
                         const std::atomic<bool>* cancel);
  SealedAt sealed_now() const;
  int64_t sealed_at(int64_t tokens) const;
  void make_room_to_cut(int64_t tokens, int64_t most_sealed, bool may_wait);
  void rest() noexcept;  // at the end of a call
  uint64_t making_bytes_of(Making how, const IndexSize& index, int32_t tokens) const;
  uint64_t sealing_bytes(const Sequence& sequence, int64_t coming_tokens, SealWhen when, Making how) const;
  void run_chunk(std::span<const int32_t> ids, bool last, const PrefillParams& params, int64_t skip,
                 int64_t done, int64_t final_tokens, int64_t coming, const Stream& stream);
  // The segment that so many tokens complete, if it takes its place before `coming` more are computed.
  void begin_ahead(int64_t count, int64_t final_tokens, int64_t coming, Workspace& workspace,
                   const Stream& stream);
  void wait_ahead(const Stream& stream);
  // final_tokens: with prefilling, what the sequence will have when the call ends. coming: seal_prompt() says of what.
  void seal_tail(SealWhen when, const Stream& stream, int64_t final_tokens, int64_t coming = 0,
                 Queue* queue = nullptr);
  void seal_read(Use& use, const Stream& stream, int64_t final_tokens, int64_t coming,
                 const CancelToken* cancel, Breaks* breaks = nullptr);
  void adopt_prefix(std::span<const int32_t> ids, int64_t chunk);
  int64_t chunk_from(int64_t first, int64_t chunk) const;
  void check_length(int64_t tokens) const;  // that the model can be computed so far
  Event prepare_event(const int32_t* accepted, const SampledRow* sampled, SamplerScratch& scratch,
                      const Stream* alone);
  void commit(const Event& event) noexcept;
  void take_back_step() noexcept;
  bool pending() const { return tokens_.size() > sequence_.tokens(); }
  float* fresh_logits();
  void publish_stats();
  void write(const std::string& path, const CancelToken* cancel) const;
  void write(ByteSink& to, const CancelToken* cancel) const;
  uint64_t written_bytes() const;
  SavedParams saved_params() const;
  SessionImage image() const;
  uint64_t prefix_root() const;

  std::shared_ptr<Runtime> runtime_;
  std::shared_ptr<const Model> model_;
  SessionParams params_;
  std::atomic<bool> busy_{false};
  std::atomic<std::thread::id> owner_{};  // none: whoever comes
  std::atomic<uint64_t> fast_limit_{UINT64_MAX};

  TokenLog tokens_;  // all; the last is pending if there is one more than the sequence has
  // Null: there is no slow tier. It outlives the segments, whose memory others wait for until it is free.
  std::unique_ptr<Residency::Member> resident_;
  Sequence sequence_;
  DeviceViews::Reading reading_views_;   // during a call
  bool room_ = true;                     // was made, when it was last wanted
  std::exception_ptr refused_;           // by the slow tier then; null: it took all that was to leave
  Residency::Tries tries_;               // of a task's steps, since the last that had room
  Making making_ = Making::whole;        // of what is sealed next
  std::unique_ptr<SegmentAhead> ahead_;  // of a prompt that is being read; null: none
  ExactTokens exact_;  // or that are to be computed so, if pending: a cut brings such a one back
  // Or by a session of this process with these weights and this precision: what a file has is another's word.
  bool computed_here_ = true;
  // While a first prompt of alike_final_ tokens is read in whole chunks of the library's own size: how far. Every session
  // that reads it so has the same bits there; each number depends on what else is in its chunk. -1: it is not read so.
  int64_t alike_end_ = -1, alike_final_ = 0;
  int64_t tokens_before_ = 0, settled_before_ = 0;  // a step
  std::shared_ptr<std::vector<float>> logits_;      // (vocab) after the last computed token; null: none
  bool logits_shared_ = false;                      // with a fork or prompt_logits_, at some time
  // As they were at the end of the last prefill, so that a host that cuts the answer off starts from them.
  std::shared_ptr<std::vector<float>> prompt_logits_;  // null: none
  int64_t prompt_end_ = 0, prompt_sealed_end_ = 0;
  SealedAt grows_from_;  // since when all that was sealed were units, by the parameters of now
  Sampler sampler_;
  uint64_t next_state_ = 0;  // of the sampler, while an event is prepared
  EventText text_;
  std::vector<wi_token_logprob> top_;  // of the last event

  SessionTotals totals_, totals_before_;  // a step
  std::atomic<uint64_t> mandatory_bytes_{0};
  mutable std::mutex stats_mutex_;
  wi_session_stats published_{};
};

}  // namespace wi
