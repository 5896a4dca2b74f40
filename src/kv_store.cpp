#include "src/kv_store.h"

#include <algorithm>
#include <optional>

#include "src/memory_plan.h"
#include "src/pipeline/index.h"
#include "src/pipeline/pipeline.h"
#include "src/workspace.h"

namespace wi {

class KvStore::Use {
 public:
  explicit Use(KvStore& store) : store_(store) {
    check(!store.busy_.exchange(true, std::memory_order_acquire), WI_E_BUSY,
          "kv is in use by another thread");
    try {
      store.share_frames();
      reading_.emplace(store.runtime_->buffer.get());
    } catch (...) {
      store.busy_.store(false, std::memory_order_release);
      throw;
    }
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() {
    reading_.reset();
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
  publish_stats();
}

KvStore::~KvStore() = default;

void KvStore::append(int32_t layer, int64_t tokens, const float* keys, const float* values) {
  Use use(*this);
  int64_t& written = written_[static_cast<size_t>(layer)];
  const int64_t width = int64_t{params_.shape.kv_heads} * params_.shape.head_dim;
  sequence_.reserve(written + tokens - sequence_.tokens());
  uint32_t largest = 0;
  runtime_->workers.run(nullptr, [&](const Stream& stream) {
    largest = wi::append(runtime_->backend, stream, sequence_, layer, written, tokens, keys, values, width,
                         append_room_);
  });
  check(kv_holds(DType::f32, largest), WI_E_ARGUMENT, "keys or values of layer ", layer, " are not finite");
  check_kv_range(params_.shape.dtype, largest, layer);
  written += tokens;
  sequence_.commit(*std::min_element(written_.begin(), written_.end()) - sequence_.tokens());
}

// Of a store that was loaded in place: what of it stays in the file has frames as the budgets have room.
void KvStore::share_frames() {
  if (!sequence_.slow_segments()) return;
  if (!resident_)
    resident_ = std::make_unique<Residency::Member>(runtime_->residency, runtime_->buffer,
                                                    2 * kFrameTokens * params_.shape.head_bytes());
  slow_segments_.clear();
  for (const auto& segment : sequence_.segments())
    if (segment->slow()) slow_segments_.push_back(segment);
  Residency::Wish wish;
  wish.segments = slow_segments_;
  wish.floor =
      looked_up_bytes(params_.shape, *params_.policy, params_.policy_params, sequence_.indexed_tokens());
  if (params_.kv_budget_bytes)
    wish.most = params_.kv_budget_bytes - std::min(params_.kv_budget_bytes, sequence_.bytes());
  std::exception_ptr refused;
  resident_->make_room(wish, {}, refused);
  slow_segments_.clear();
}

void KvStore::seal() {
  Use use(*this);
  check_even();
  StageTimer timer(totals_.index_ns);
  runtime_->workers.run(nullptr, [&](const Stream& stream) {
    seal_prompt(sequence_, {runtime_->backend, *params_.policy, params_.policy_params, stream, {}},
                sequence_.tokens());
  });
}

void KvStore::attend(int32_t layer, int64_t rows, const float* queries, const CancelToken* cancel, float* out,
                     float* lse) {
  Use use(*this);
  const int64_t end = written_[static_cast<size_t>(layer)];
  check(end > 0, WI_E_STATE, "layer ", layer, " has no tokens");
  if (rows == 0) return;
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
  totals_.add(stats);
  ++attend_calls_;
}

std::shared_ptr<KvStore> KvStore::fork() {
  Use use(*this);
  auto fork = std::make_shared<KvStore>(runtime_, params_);
  fork->sequence_ = sequence_;
  fork->sequence_.settle();
  fork->written_ = written_;
  fork->publish_stats();
  return fork;
}

void KvStore::truncate(int64_t tokens) {
  Use use(*this);
  check(tokens >= 0 && tokens <= sequence_.tokens(), WI_E_ARGUMENT, "tokens is ", tokens, ", the store has ",
        sequence_.tokens());
  runtime_->workers.run(nullptr, [&](const Stream& stream) {
    wi::truncate(sequence_, {runtime_->backend, *params_.policy, params_.policy_params, stream, {}}, tokens);
  });
  std::fill(written_.begin(), written_.end(), tokens);
}

// ---- saving: save.cpp does it ----

void KvStore::save(ByteSink& to, const CancelToken* cancel) {
  Use use(*this);
  check_even();
  write(to, cancel);
}

void KvStore::save(const std::string& path, const CancelToken* cancel) {
  Use use(*this);
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
  std::lock_guard lock(stats_mutex_);
  published_ = stats;
}

}  // namespace wi
