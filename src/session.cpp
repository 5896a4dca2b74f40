#include "src/session.h"

#include <algorithm>
#include <cstring>

#include "src/decode.h"
#include "src/prefill.h"
#include "src/repeats.h"
#include "src/store/session_file.h"

namespace wi {
namespace {

KvShape shape_of(const Model& model, DType kv) {
  return {model.config.layers, model.config.kv_heads, model.config.head_dim, kv};
}

uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdu;
}

}  // namespace

// The right to be inside sessions; a second thread is told so instead of racing.
class Session::Use {
 public:
  explicit Use(std::span<Session* const> sessions) : sessions_(sessions) {
    for (Session* session : sessions_) {
      if (session->busy_.exchange(true, std::memory_order_acquire)) {
        leave();
        fail(WI_E_BUSY, "session is in use by another thread");
      }
      ++entered_;
    }
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() { leave(); }

 private:
  void leave() {
    for (Session* session : sessions_.first(entered_)) {
      session->publish_stats();
      session->busy_.store(false, std::memory_order_release);
    }
  }
  std::span<Session* const> sessions_;
  size_t entered_ = 0;
};

std::shared_ptr<Session> Session::create(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                                         const SessionParams& params) {
  return std::shared_ptr<Session>(new Session(std::move(runtime), std::move(model), params));
}

Session::Session(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                 const SessionParams& params)
    : runtime_(std::move(runtime)),
      model_(std::move(model)),
      params_(params),
      sequence_(runtime_->pool, shape_of(*model_, params.kv), params.kv_budget_bytes),
      sampler_(params.sampling) {
  runtime_->sessions.fetch_add(1, std::memory_order_relaxed);
  publish_stats();
}

Session::~Session() { runtime_->sessions.fetch_sub(1, std::memory_order_relaxed); }

// ---- reading a prompt ----

void Session::prefill(std::span<const int32_t> tokens, const PrefillParams& params,
                      const CancelToken* cancel) {
  Session* const self = this;
  Use use({&self, 1});
  run_prefill(tokens, params, cancel);
}

void Session::append_text(std::string_view text, uint32_t tokenize_flags, const PrefillParams& params,
                          const CancelToken* cancel) {
  Session* const self = this;
  Use use({&self, 1});
  check(model_->tokenizer != nullptr, WI_E_STATE, "model has no tokenizer");
  const std::vector<int32_t> ids = model_->tokenizer->encode(text, tokenize_flags & WI_TOKENIZE_ADD_BOS,
                                                             tokenize_flags & WI_TOKENIZE_PARSE_SPECIAL);
  run_prefill(ids, params, cancel);
}

// A copy of the sequence is cheap (it shares everything), so a call that fails half-way simply goes back to
// it.
void Session::run_prefill(std::span<const int32_t> tokens, const PrefillParams& params,
                          const CancelToken* cancel) {
  if (tokens.empty()) return;
  const size_t vocab = static_cast<size_t>(model_->config.vocab);
  check(params.logits.empty() || params.logits.size() >= tokens.size() * vocab, WI_E_ARGUMENT,
        "logits_capacity is ", params.logits.size(), ", must be ", tokens.size() * vocab, " for ",
        tokens.size(), " tokens");
  const int64_t skip = pending() ? 1 : 0;  // rows that no logits are asked of
  std::vector<int32_t> ids(static_cast<size_t>(skip) + tokens.size());
  if (skip) ids[0] = tokens_[tokens_.size() - 1];
  std::copy(tokens.begin(), tokens.end(), ids.begin() + skip);

  uint64_t elapsed_ns = 0;
  const bool fresh = tokens_.size() == 0;
  const TokenLog tokens_before = tokens_;
  const Sequence before = sequence_;
  const int64_t exact_before = exact_end_;
  const std::shared_ptr<std::vector<float>> logits_before = logits_;
  logits_shared_ = true;  // with logits_before
  const SessionTotals totals_before = totals_;
  try {
    StageTimer timer(elapsed_ns);
    // Logits of every token need every token computed.
    tokens_.append(tokens);
    if (params_.prefix_reuse && fresh && params.logits.empty()) {
      totals_.prefix_tokens +=
          static_cast<uint64_t>(runtime_->prefixes.adopt_longest(prefix_root(), ids, sequence_));
      exact_end_ = sequence_.tokens();
    }
    const int64_t total = static_cast<int64_t>(ids.size());
    const int64_t chunk =
        params.chunk_tokens > 0 ? params.chunk_tokens : prefill_chunk_tokens(model_->config);
    const int64_t reused = fresh ? sequence_.tokens() : 0;
    runtime_->workers.run(flag_of(cancel), [&](const Stream& stream) {
      for (int64_t done = reused; done < total;) {
        const int64_t count = std::min(chunk, total - done);
        const bool last = done + count == total;
        run_chunk({ids.data() + done, static_cast<size_t>(count)}, last, params, skip, done, stream);
        done += count;
        seal_tail(last ? SealWhen::prefilled : SealWhen::prefilling, stream);
        if (params.progress)
          params.progress(params.progress_user, static_cast<uint64_t>(std::max<int64_t>(done - skip, 0)),
                          tokens.size());
      }
    });
  } catch (...) {
    tokens_ = tokens_before;
    sequence_ = before;
    exact_end_ = exact_before;
    logits_ = logits_before;
    totals_ = totals_before;
    throw;
  }
  text_.clear();
  totals_.prefill_tokens += tokens.size();
  totals_.prefill_ns += elapsed_ns;
}

// A chunk attends exactly, unless it is short, comes after a long past and the session lets such chunks read
// through the policy: then it is a decode step of several rows.
void Session::run_chunk(std::span<const int32_t> ids, bool last, const PrefillParams& params, int64_t skip,
                        int64_t done, const Stream& stream) {
  const int64_t count = static_cast<int64_t>(ids.size());
  const size_t vocab = static_cast<size_t>(model_->config.vocab);
  const bool all = !params.logits.empty();
  auto workspace = runtime_->workspace();
  const Step step{runtime_->backend, stream, *model_, *workspace};
  std::vector<float> room;
  if (all && done < skip)
    room.resize(static_cast<size_t>(count) * vocab);  // the pending token's row is not the caller's
  float* all_out = !all          ? nullptr
                   : done < skip ? room.data()
                                 : params.logits.data() + static_cast<size_t>(done - skip) * vocab;
  float* last_out = last ? fresh_logits() : nullptr;

  sequence_.reserve(count);
  const bool sparse = count <= params_.sparse_read_tokens && sequence_.indexed_tokens() > 0;
  if (sparse) {
    std::vector<DecodeRow> rows;
    std::vector<StepStats> row_stats(ids.size());
    for (int64_t i = 0; i < count; ++i) {
      float* out = all ? all_out + static_cast<size_t>(i) * vocab : i + 1 == count ? last_out : nullptr;
      rows.push_back({&sequence_, sequence_.tokens() + i, ids[static_cast<size_t>(i)], params_.policy,
                      &params_.policy_params, &row_stats[static_cast<size_t>(i)], out});
    }
    StepStats times;
    decode_step(step, rows, times);
  } else {
    prefill_chunk(step, sequence_, ids,
                  all    ? PrefillLogits::all
                  : last ? PrefillLogits::last
                         : PrefillLogits::none,
                  all ? all_out : last_out);
  }
  sequence_.commit(count);
  if (!sparse && exact_end_ == sequence_.tokens() - count) exact_end_ = sequence_.tokens();
  if (all) {
    if (done < skip)
      std::memcpy(params.logits.data(), room.data() + static_cast<size_t>(skip - done) * vocab,
                  static_cast<size_t>(count - skip + done) * vocab * sizeof(float));
    if (last) std::memcpy(last_out, all_out + static_cast<size_t>(count - 1) * vocab, vocab * sizeof(float));
  }
}

void Session::append_computed(std::span<const int32_t> tokens, const Fill& fill, const CancelToken* cancel) {
  Session* const self = this;
  Use use({&self, 1});
  check(!pending(), WI_E_STATE, "session has a pending token: ask for its logits first");
  if (tokens.empty()) return;
  constexpr int64_t kChunk = 1024;
  const Sequence before = sequence_;
  const TokenLog tokens_before = tokens_;
  const int64_t width = int64_t{model_->config.kv_heads} * model_->config.head_dim;
  try {
    tokens_.append(tokens);
    runtime_->workers.run(flag_of(cancel), [&](const Stream& stream) {
      const int64_t end = tokens_.size() - 1;
      while (sequence_.tokens() < end) {
        const int64_t first = sequence_.tokens(), count = std::min(kChunk, end - first);
        sequence_.reserve(count);
        stream.each(model_->config.layers, [&](int64_t layer, int worker) {
          float* keys = stream.worker_array<float>(worker, static_cast<size_t>(2 * count * width));
          float* values = keys + count * width;
          fill(static_cast<int32_t>(layer), first, count, keys, values);
          sequence_.write(runtime_->backend, static_cast<int32_t>(layer), first, count, keys, values, width);
        });
        throw_if_cancelled(stream);
        sequence_.commit(count);
        seal_tail(sequence_.tokens() == end ? SealWhen::prefilled : SealWhen::prefilling, stream);
      }
    });
  } catch (...) {
    tokens_ = tokens_before;
    sequence_ = before;
    throw;
  }
  logits_.reset();
}

// ---- decoding ----

Event Session::decode(const CancelToken* cancel) {
  Session* const self = this;
  Use use({&self, 1});
  compute_pending({&self, 1}, cancel);
  return sample_event();
}

void Session::decode_batch(std::span<Session* const> sessions, const CancelToken* cancel, Event* events_out) {
  for (size_t i = 0; i < sessions.size(); ++i) {
    check(sessions[i]->model_ == sessions[0]->model_ && sessions[i]->runtime_ == sessions[0]->runtime_,
          WI_E_ARGUMENT, "sessions[", i, "] has another model or runtime than sessions[0]");
    check(std::find(sessions.begin(), sessions.begin() + static_cast<std::ptrdiff_t>(i), sessions[i]) ==
              sessions.begin() + static_cast<std::ptrdiff_t>(i),
          WI_E_ARGUMENT, "sessions[", i, "] is in the batch twice");
  }
  Use use(sessions);
  compute_pending(sessions, cancel);
  for (size_t i = 0; i < sessions.size(); ++i) events_out[i] = sessions[i]->sample_event();
}

// Runs the step of every session that has a pending token. Until it is done nothing is committed.
void Session::compute_pending(std::span<Session* const> sessions, const CancelToken* cancel) {
  uint64_t elapsed_ns = 0;
  Runtime& runtime = *sessions[0]->runtime_;
  auto workspace = runtime.workspace();
  std::vector<DecodeRow>& rows = workspace->decode_rows;
  rows.clear();
  workspace->row_stats.assign(sessions.size(), StepStats{});
  const size_t vocab = static_cast<size_t>(sessions[0]->model_->config.vocab);
  workspace->wanted.resize(sessions.size() * kMostWanted);
  if (workspace->row_logits.size() < sessions.size() * vocab)
    workspace->row_logits.resize(sessions.size() * vocab);
  StepStats times;
  for (Session* session : sessions) {
    check(session->tokens_.size() > 0, WI_E_STATE, "session is empty, prefill it first");
    check(session->pending() || session->logits_, WI_E_STATE, "session has no logits to sample from");
  }
  StageTimer timer(elapsed_ns);
  const auto step_all = [&](const Stream& stream) {
    for (Session* session : sessions) {
      if (!session->pending()) continue;
      session->seal_tail(SealWhen::decoding, stream);
      session->sequence_.reserve(1);
      const size_t row = rows.size();
      rows.push_back({&session->sequence_, session->sequence_.tokens(),
                      session->tokens_[session->tokens_.size() - 1], session->params_.policy,
                      &session->params_.policy_params, &workspace->row_stats[row],
                      workspace->row_logits.data() + row * vocab,
                      session->wanted_tokens({workspace->wanted.data() + row * kMostWanted, kMostWanted})});
    }
    if (rows.empty()) return;
    decode_step(Step{runtime.backend, stream, *sessions[0]->model_, *workspace}, rows, times);
  };
  runtime.workers.run(flag_of(cancel), step_all);
  if (rows.empty()) return;

  for (Session* session : sessions) {
    if (session->pending()) session->fresh_logits();  // the last thing that can fail
  }
  size_t row = 0;
  for (Session* session : sessions) {
    if (!session->pending()) continue;
    std::memcpy(session->logits_->data(), rows[row].logits, session->logits_->size() * sizeof(float));
    session->sequence_.commit(1);
    session->totals_.decode_steps += 1;
    session->totals_.stages.add(times);
    session->totals_.stages.add(workspace->row_stats[row]);
    ++row;
  }
  const uint64_t step_ns = elapsed_ns;
  for (Session* session : sessions) session->totals_.decode_ns += step_ns;
}

// What followed the newest tokens where they stood before.
std::span<const WantedTokens> Session::wanted_tokens(std::span<WantedTokens> room) const {
  if (!params_.policy->wants_repeats) return {};
  Repeat repeats[kMostRepeats];
  const int32_t count = find_repeats(tokens_, kSinkTokens, sequence_.sealed_end(),
                                     std::min(params_.policy_params.repeats, kMostRepeats), repeats);
  size_t wanted = 0;
  for (int32_t i = 0; i < count; ++i) {
    const auto& segments = sequence_.segments();
    for (size_t s = 0; s < segments.size(); ++s) {
      const int64_t begin = std::max(repeats[i].last, segments[s]->first_position());
      const int64_t end = std::min(repeats[i].last + kFollowed, segments[s]->end_position());
      if (begin < end && wanted < room.size())
        room[wanted++] = {static_cast<int32_t>(s), static_cast<int32_t>(begin), static_cast<int32_t>(end)};
    }
  }
  return room.first(wanted);
}

Event Session::sample_event() {
  const int64_t window = std::min<int64_t>(tokens_.size(), sampler_.params().repetition_window);
  recent_.resize(static_cast<size_t>(window));
  tokens_.copy(tokens_.size() - window, recent_);
  const int32_t token = sampler_.sample(*logits_, recent_);
  tokens_.push_back(token);
  Event event;
  event.token = token;
  if (!model_->tokenizer) return event;
  if (model_->tokenizer->ends_generation(token)) {
    event.kind = WI_EVENT_END;
    event.text = text_.finish();
  } else {
    event.text = text_.next(model_->tokenizer->piece(token, false));
  }
  return event;
}

std::span<const float> Session::logits(const CancelToken* cancel) {
  Session* const self = this;
  Use use({&self, 1});
  compute_pending({&self, 1}, cancel);
  return *logits_;
}

void Session::copy_logits(const CancelToken* cancel, std::span<float> out) {
  Session* const self = this;
  Use use({&self, 1});
  compute_pending({&self, 1}, cancel);
  std::copy(logits_->begin(), logits_->end(), out.begin());
}

// Room for new logits. What a fork may be looking at is never written again: both sides take new room.
float* Session::fresh_logits() {
  if (!logits_ || logits_shared_)
    logits_ = std::make_shared<std::vector<float>>(static_cast<size_t>(model_->config.vocab));
  logits_shared_ = false;
  return logits_->data();
}

// ---- structure ----

void Session::seal_tail(SealWhen when, const Stream& stream) {
  StageTimer timer(totals_.stages.index_ns);
  SealContext context{runtime_->backend, *params_.policy, params_.policy_params, stream, {}};
  std::vector<std::shared_ptr<const Segment>> published;
  if (params_.prefix_reuse && when != SealWhen::decoding) {
    context.on_segment = [&](const std::shared_ptr<Segment>& segment) {
      if (segment->end_position() > exact_end_) return;
      auto lineage = std::make_shared<Segment::Lineage>();
      lineage->parent = sequence_.segments().empty() ? prefix_root() : sequence_.segments().back()->id();
      lineage->ids = std::vector<int32_t>(static_cast<size_t>(segment->tokens()));
      lineage->sink_ids = std::vector<int32_t>(kSinkTokens);
      lineage->sink = sequence_.sink();
      tokens_.copy(segment->first_position(), lineage->ids);
      tokens_.copy(0, lineage->sink_ids);
      segment->lineage = std::move(lineage);
      published.push_back(segment);
    };
  }
  seal(sequence_, context, when);
  for (const auto& segment : published) runtime_->prefixes.publish(segment);
}

std::vector<int32_t> Session::tokens() {
  Session* const self = this;
  Use use({&self, 1});
  std::vector<int32_t> ids(static_cast<size_t>(tokens_.size()));
  tokens_.copy(0, ids);
  return ids;
}

std::shared_ptr<Session> Session::fork() {
  Session* const self = this;
  Use use({&self, 1});
  std::shared_ptr<Session> fork(new Session(runtime_, model_, params_));
  fork->tokens_ = tokens_;
  fork->sequence_ = sequence_;
  fork->exact_end_ = exact_end_;
  fork->logits_ = logits_;
  fork->logits_shared_ = logits_shared_ = true;
  fork->sampler_ = sampler_;
  fork->text_ = text_;
  fork->publish_stats();
  return fork;
}

std::shared_ptr<Session> Session::fork_as(const SessionParams& params, const CancelToken* cancel) {
  Session* const self = this;
  Use use({&self, 1});
  check(params.kv == params_.kv, WI_E_ARGUMENT, "wi_session_params.kv_type is ", format_of(params.kv).name,
        ", the session has ", format_of(params_.kv).name);
  std::shared_ptr<Session> fork(new Session(runtime_, model_, params));
  if (params.policy == params_.policy && same_index(params.policy_params, params_.policy_params)) {
    fork->sequence_ = sequence_;
    fork->sequence_.set_budget(params.kv_budget_bytes);
  } else {
    runtime_->workers.run(flag_of(cancel), [&](const Stream& stream) {
      const SealContext context{runtime_->backend, *params.policy, fork->params_.policy_params, stream, {}};
      reindex(sequence_, context, fork->sequence_);
    });
  }
  fork->tokens_ = tokens_;
  fork->exact_end_ = exact_end_;
  fork->logits_ = logits_;
  fork->logits_shared_ = logits_shared_ = true;
  if (!params.sampling_given) {
    fork->sampler_ = sampler_;
    fork->params_.sampling = params_.sampling;
  }
  fork->text_ = text_;
  fork->publish_stats();
  return fork;
}

// The last token that is left becomes pending: the next call computes its logits anew.
void Session::truncate(int64_t tokens) {
  Session* const self = this;
  Use use({&self, 1});
  check(tokens >= 0 && tokens <= tokens_.size(), WI_E_ARGUMENT, "tokens is ", tokens, ", the session has ",
        tokens_.size());
  if (tokens == tokens_.size()) return;
  sequence_.truncate(std::max<int64_t>(tokens - 1, 0));
  tokens_.truncate(tokens);
  exact_end_ = std::min(exact_end_, sequence_.tokens());
  logits_.reset();
  text_.clear();
}

void Session::set_sampling(const SamplingParams& sampling) {
  Session* const self = this;
  Use use({&self, 1});
  sampler_ = Sampler(sampling);
  params_.sampling = sampling;
}

// ---- files ----

namespace {

struct SamplerImage {
  SamplingParams params;
  uint64_t state;
};

}  // namespace

void Session::save(const std::string& path, const CancelToken* cancel) {
  Session* const self = this;
  Use use({&self, 1});
  SessionImage image;
  image.model_fingerprint = model_->fingerprint;
  image.policy = params_.policy->name;
  image.params = params_.policy_params;
  image.tokens.resize(static_cast<size_t>(tokens_.size()));
  tokens_.copy(0, image.tokens);
  image.exact_end = exact_end_;
  if (logits_) image.logits = *logits_;
  SamplerImage sampler{};
  std::memset(static_cast<void*>(&sampler), 0, sizeof sampler);
  sampler.params = sampler_.params();
  sampler.state = sampler_.state();
  image.sampler.resize(sizeof sampler);
  std::memcpy(image.sampler.data(), &sampler, sizeof sampler);
  image.pending_bytes = text_.pending();
  save_session(path, image, sequence_, flag_of(cancel));
}

std::shared_ptr<Session> Session::load(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                                       const std::string& path, const SessionParams& params) {
  std::shared_ptr<Session> session(new Session(std::move(runtime), std::move(model), params));
  const ModelConfig& config = session->model_->config;
  const SessionExpectation expected{session->model_->fingerprint, session->sequence_.shape(), config.vocab,
                                    params.policy, params.policy_params};
  SessionImage image = load_session(path, expected, session->sequence_);
  session->tokens_.append(image.tokens);
  session->exact_end_ = image.exact_end;
  if (!image.logits.empty()) session->logits_ = std::make_shared<std::vector<float>>(std::move(image.logits));
  // The file's sampler goes on where it was, unless the loader brings its own parameters.
  if (SamplerImage sampler; image.sampler.size() == sizeof sampler) {
    std::memcpy(&sampler, image.sampler.data(), sizeof sampler);
    session->sampler_ = Sampler(params.sampling_given ? params.sampling : sampler.params);
    if (!params.sampling_given) session->sampler_.set_state(sampler.state);
  }
  session->text_.restore(std::move(image.pending_bytes));
  session->publish_stats();
  return session;
}

// ---- statistics ----

wi_session_stats Session::stats() const {
  std::lock_guard lock(stats_mutex_);
  return published_;
}

void Session::publish_stats() {
  wi_session_stats stats{};
  fill_stats(sequence_, totals_.stages, stats);
  stats.tokens = static_cast<uint64_t>(tokens_.size());
  stats.prefill_tokens = totals_.prefill_tokens;
  stats.decode_steps = totals_.decode_steps;
  stats.prefix_tokens = totals_.prefix_tokens;
  stats.prefill_ns = totals_.prefill_ns;
  stats.decode_ns = totals_.decode_ns;
  std::lock_guard lock(stats_mutex_);
  published_ = stats;
}

// Names what equal token ids must agree in for their segments to be the same.
uint64_t Session::prefix_root() const {
  const PolicyParams& policy = params_.policy_params;
  uint64_t hash = model_->fingerprint;
  for (const char* c = params_.policy->name; *c; ++c) hash = mix(hash, static_cast<uint64_t>(*c));
  for (int32_t value : {static_cast<int32_t>(model_->precision), static_cast<int32_t>(params_.kv),
                        policy.segment_tokens, policy.tokens_per_centroid, policy.kmeans_iterations,
                        policy.max_cluster_tokens, policy.decode_segment_tokens}) {
    hash = mix(hash, static_cast<uint64_t>(value));
  }
  return hash | (uint64_t{1} << 63);  // ids of segments are small
}

}  // namespace wi
