#include "src/kv_store.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "src/memory_plan.h"
#include "src/pipeline/index.h"
#include "src/pipeline/pipeline.h"
#include "src/pipeline/straight.h"
#include "src/session_room.h"
#include "src/workspace.h"

namespace wi {

class KvStore::Use {
 public:
  explicit Use(KvStore& store)
      : Use(store, [&] {
          if (store.sequence_.slow_segments()) store.make_room(store.sequence_, 0, false);
        }) {}
  // make_room(): before anything of the store is being read.
  template <class MakeRoom>
  Use(KvStore& store, MakeRoom&& make_room, bool reads = true) : store_(store) {
    check(!store.busy_.exchange(true, std::memory_order_acquire), WI_E_BUSY,
          "kv is in use by another thread");
    try {
      store.room_ = true;
      store.refused_ = nullptr;
      make_room();
      if (!reads) return;
      reading_.emplace(store.runtime_->buffer.get());
      store.sequence_.refresh();
    } catch (...) {
      reading_.reset();
      store.rest();
      store.busy_.store(false, std::memory_order_release);
      throw;
    }
  }
  // As Session::Use's.
  static Use without_reading(KvStore& store) {
    return Use(
        store, [] {}, false);
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() {
    reading_.reset();
    store_.rest();
    store_.publish_stats();
    store_.busy_.store(false, std::memory_order_release);
  }

 private:
  KvStore& store_;
  std::optional<WaveBuffer::Reading> reading_;
};

KvStore::KvStore(std::shared_ptr<Runtime> runtime, const KvStoreParams& params)
    : runtime_(std::move(runtime)),
      params_(params),
      sequence_(runtime_->kv_pools, params.shape, params.kv_budget_bytes),
      written_(static_cast<size_t>(params.shape.layers), 0) {
  check(!runtime_->device, WI_E_UNSUPPORTED,
        "KV stores are not on devices in this version; this runtime's is ",
        runtime_->device ? runtime_->device->description.name : "");
  if (runtime_->buffer)
    resident_ = std::make_unique<Residency::Member>(runtime_->residency, runtime_->buffer,
                                                    2 * kFrameTokens * params_.shape.head_bytes());
  publish_stats();
}

KvStore::~KvStore() = default;

void KvStore::append(int32_t layer, int64_t tokens, const float* keys, const float* values) {
  int64_t& written = written_[static_cast<size_t>(layer)];
  Use use(*this, [&] {
    const uint64_t coming = sequence_.bytes_to_reserve(written + tokens - sequence_.tokens());
    if (coming || sequence_.slow_segments()) make_room(sequence_, coming, true);
  });
  const int64_t width = int64_t{params_.shape.kv_heads} * params_.shape.head_dim;
  try {
    uint32_t largest = 0;
    in_room([&] {
      sequence_.reserve(written + tokens - sequence_.tokens());
      runtime_->workers.run(nullptr, [&](const Stream& stream) {
        largest = wi::append(runtime_->backend, stream, sequence_, layer, written, tokens, keys, values,
                             width, append_room_);
      });
    });
    check(kv_holds(DType::f32, largest), WI_E_ARGUMENT, "keys or values of layer ", layer, " are not finite");
    check_kv_range(params_.shape.dtype, largest, layer);
  } catch (...) {
    sequence_.unreserve(*std::max_element(written_.begin(), written_.end()));
    throw;
  }
  written += tokens;
  sequence_.commit(*std::min_element(written_.begin(), written_.end()) - sequence_.tokens());
}

void KvStore::seal() {
  WaveBuffer* straight = nullptr;
  Use use(*this, [&] {
    const SealPlan plan = plan_seal(sequence_, *params_.policy, params_.policy_params, 0);
    if (plan.longest)
      straight = make_room_to_make(plan.index, plan.longest, plan.stays_bytes + plan.kept_bytes);
  });
  check_even();
  StageTimer timer(totals_.index_ns);
  in_room([&] {
    runtime_->workers.run(nullptr, [&](const Stream& stream) {
      SealContext context{runtime_->backend, *params_.policy, params_.policy_params, stream, {}};
      context.straight = straight;
      seal_prompt(sequence_, context, sequence_.tokens());
    });
  });
}

// ---- room ----

// Layers of a store are read as those of a session are: what of it does not fit lies in the slow tier.
bool KvStore::make_room(const Sequence& sequence, uint64_t coming_bytes, bool may_wait,
                        const std::atomic<bool>* cancel, const Sequence* from) {
  if (!resident_) return true;
  Residency::Wish wish;
  wish.coming = coming_bytes;
  wish.patience.may_wait = may_wait && !Session::reading_here();
  segments_.clear();
  if (from) segments_.assign(from->segments().begin(), from->segments().end());
  segments_.insert(segments_.end(), sequence.segments().begin(), sequence.segments().end());
  wish_of(sequence, *params_.policy, params_.policy_params, params_.kv_budget_bytes, from, segments_, wish);
  std::exception_ptr refused;
  room_ = resident_->make_room(
      wish, [&] { throw_if_cancelled(cancel); }, refused);
  if (refused) refused_ = refused;
  segments_.clear();
  return room_;
}

// For a segment of so many tokens, and so much besides. Not null: there is none for all of it, and it is to go
// straight to the slow tier.
WaveBuffer* KvStore::make_room_to_make(const IndexSize& index, int32_t longest, uint64_t more_bytes) {
  if (!resident_) return nullptr;
  const int workers = runtime_->workers.threads();
  const bool may_be_straight = runtime_->buffer->file() && straight_planes(params_.shape, workers);
  const uint64_t whole = making_bytes(params_.shape, index, longest) + more_bytes;
  if (make_room(sequence_, whole, !may_be_straight) || !may_be_straight) return nullptr;
  make_room(sequence_, straight_making_bytes(params_.shape, index, longest, workers) + more_bytes, true);
  return runtime_->buffer.get();
}

template <class Work>
void KvStore::in_room(Work&& work) {
  wi::in_room(resident_.get(), room_, refused_, work);
}

void KvStore::rest() noexcept {
  if (resident_) resident_->rest(sequence_.segments());
}

namespace {

bool overlap(const float* a, int64_t a_count, const float* b, int64_t b_count) {
  const std::less<const float*> before;
  return before(a, b + b_count) && before(b, a + a_count);
}

}  // namespace

void KvStore::attend(int32_t layer, int64_t rows, const float* queries, const CancelToken* cancel, float* out,
                     float* lse) {
  Use use(*this);
  const int64_t end = written_[static_cast<size_t>(layer)];
  check(end > 0, WI_E_STATE, "layer ", layer, " has no tokens");
  if (rows == 0) return;
  // Estimates read the queries when what was attended is written.
  const int64_t vectors = rows * params_.query_heads, numbers = vectors * params_.shape.head_dim;
  std::vector<float> own;
  if (overlap(queries, numbers, out, numbers) || (lse && overlap(queries, numbers, lse, vectors))) {
    own.assign(queries, queries + numbers);
    queries = own.data();
  }
  auto workspace = runtime_->workspace();
  StepStats stats;
  Row row;
  row.sequence = &sequence_;
  row.position = end - 1;
  row.policy = params_.policy;
  row.params = &params_.policy_params;
  row.stats = &stats;
  workspace->rows.assign(static_cast<size_t>(rows), row);
  const Retrieval::Use using_buffer(workspace->retrieval, buffer());
  uint64_t elapsed_ns = 0;
  {
    StageTimer timer(elapsed_ns);
    runtime_->workers.run(flag_of(cancel), [&](const Stream& stream) {
      Attention& attention = workspace->attention;
      attention.begin(workspace->rows, params_.query_heads / params_.shape.kv_heads,
                      buffer() ? &workspace->retrieval : nullptr);
      attention.open(layer, queries, out, lse);
      while (attention.next_pass()) {
        attention.run(stream, stats, [&](const Stream& on, const Pass& pass) {
          select(on, pass);
          retrieve(runtime_->backend, on, pass);
          wi::attend(runtime_->backend, on, pass);
          estimate(on, pass);
        });
      }
      throw_if_cancelled(stream);
      attention.finish();
    });
  }
  totals_.add(stats);
  attend_ns_ += elapsed_ns;
  ++attend_calls_;
}

std::shared_ptr<KvStore> KvStore::fork() {
  Use use(*this);
  auto fork = std::make_shared<KvStore>(runtime_, params_);
  fork->sequence_ = sequence_;
  fork->sequence_.settle();
  fork->written_ = written_;
  fork->rest();
  fork->publish_stats();
  return fork;
}

void KvStore::truncate(int64_t tokens) {
  WaveBuffer* straight = nullptr;
  Use use(*this, [&] {
    const CutPlan plan = plan_cut(sequence_, *params_.policy, params_.policy_params, tokens);
    if (plan.longest) straight = make_room_to_make(plan.index, plan.longest, plan.again_bytes);
  });
  check(tokens >= 0 && tokens <= sequence_.tokens(), WI_E_ARGUMENT, "tokens is ", tokens, ", the store has ",
        sequence_.tokens());
  in_room([&] {
    runtime_->workers.run(nullptr, [&](const Stream& stream) {
      SealContext context{runtime_->backend, *params_.policy, params_.policy_params, stream, {}};
      context.straight = straight;
      wi::truncate(sequence_, context, tokens);
    });
  });
  std::fill(written_.begin(), written_.end(), tokens);
  sequence_.unreserve(tokens);  // of layers that ran ahead
}

// ---- saving: save.cpp does it ----

void KvStore::save(ByteSink& to, const CancelToken* cancel) {
  const Use use = Use::without_reading(*this);
  check_even();
  write(to, cancel);
}

void KvStore::save(const std::string& path, const CancelToken* cancel) {
  const Use use = Use::without_reading(*this);
  check_even();
  write(path, cancel);
}

uint64_t KvStore::saved_bytes() {
  Use use(*this);
  check_even();
  return written_bytes();
}

void KvStore::check_even() const {
  const int64_t ahead = *std::max_element(written_.begin(), written_.end());
  check(ahead == sequence_.tokens(), WI_E_STATE, "a layer has ", ahead, " tokens, another only ",
        sequence_.tokens(), ": append to every layer first");
}

wi_session_stats KvStore::stats() const {
  std::lock_guard lock(stats_mutex_);
  return published_;
}

void KvStore::publish_stats() {
  wi_session_stats stats{};
  fill_stats(sequence_, totals_, stats);
  stats.decode_steps = attend_calls_;
  stats.decode_ns = attend_ns_;
  std::lock_guard lock(stats_mutex_);
  published_ = stats;
}

}  // namespace wi
