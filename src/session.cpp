#include "src/session.h"

#include <algorithm>
#include <cstring>

#include "src/decode.h"
#include "src/memory_plan.h"
#include "src/policy_params.h"
#include "src/prefill.h"
#include "src/session_room.h"
#include "src/session_use.h"
#include "src/timely_progress.h"

namespace wi {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdu;
}

}  // namespace

KvShape kv_shape_of(const Model& model, DType kv) {
  const ModelConfig& config = model.config;
  KvShape shape{config.layers, config.kv_heads, config.head_dim, kv};
  if (!config.windows.empty()) shape.windows = std::make_shared<const std::vector<int32_t>>(config.windows);
  return shape;
}

KvShape kv_shape_of(const Model& model, DType kv, const Runtime& runtime) {
  KvShape shape = kv_shape_of(model, kv);
  shape.paged = runtime.device && !shape.windows;
  return shape;
}

std::shared_ptr<Session> Session::create(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                                         const SessionParams& params) {
  return std::shared_ptr<Session>(new Session(std::move(runtime), std::move(model), params));
}

Session::Session(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                 const SessionParams& params)
    : runtime_(std::move(runtime)),
      model_(std::move(model)),
      params_(params),
      sequence_(runtime_->kv_pools, kv_shape_of(*model_, params.kv, *runtime_), params.kv_budget_bytes),
      sampler_(params.sampling) {
  check_bias(params.sampling, model_->config.vocab);
  params_.sampling = {};  // the sampler has them
  if (runtime_->buffer)
    resident_ = std::make_unique<Residency::Member>(
        runtime_->residency, runtime_->buffer,
        2 * static_cast<size_t>(runtime_->device ? kHotPageTokens : kFrameTokens) *
            sequence_.shape().head_bytes());
  runtime_->sessions.fetch_add(1, std::memory_order_relaxed);
  publish_stats();
}

Session::~Session() { runtime_->sessions.fetch_sub(1, std::memory_order_relaxed); }

void Session::reserve_for(std::thread::id owner, bool will_read) {
  Session* const self = this;
  if (owner == std::thread::id()) {
    fast_limit_ = UINT64_MAX;
    return owner_.store(owner, std::memory_order_relaxed);
  }
  Use use({&self, 1});
  check(will_read || tokens_.size() > 0, WI_E_STATE, "session is empty and the task has no prompt");
  tries_ = {};
  owner_.store(owner, std::memory_order_relaxed);
}

// ---- reading a prompt ----

void Session::prefill(std::span<const int32_t> tokens, const PrefillParams& params,
                      const CancelToken* cancel) {
  Session* const self = this;
  Use use({&self, 1});
  run_prefill(use, tokens, params, cancel);
}

int64_t Session::prefill_chunk_of(std::span<const int32_t> tokens, const PrefillParams& params,
                                  const CancelToken* cancel) {
  Session* const self = this;
  Use use({&self, 1});
  return run_prefill(use, tokens, params, cancel, true);
}

void Session::append_text(std::string_view text, uint32_t tokenize_flags, const PrefillParams& params,
                          const CancelToken* cancel) {
  Session* const self = this;
  Use use = Use::without_reading({&self, 1});  // while it is tokenised
  check(model_->tokenizer != nullptr, WI_E_STATE, "model has no tokenizer");
  TimelyProgress progress(params.progress, params.progress_user);
  progress.set(0, text.size());
  const std::function<void()> pause = [&] { progress.take(); };
  const std::vector<int32_t> ids = model_->tokenizer->encode(text, tokenize_flags & WI_TOKENIZE_ADD_BOS,
                                                             tokenize_flags & WI_TOKENIZE_PARSE_SPECIAL,
                                                             flag_of(cancel), progress ? &pause : nullptr);
  use.begin_reading();
  run_prefill(use, ids, params, cancel);
}

// A copy of the sequence is cheap (it shares everything), so a call that fails half-way simply goes back to
// it.
int64_t Session::run_prefill(Use& use, std::span<const int32_t> tokens, const PrefillParams& params,
                             const CancelToken* cancel, bool one_chunk) {
  if (tokens.empty()) return 0;
  const size_t vocab = static_cast<size_t>(model_->config.vocab);
  check(params.logits.empty() || params.logits.size() >= tokens.size() * vocab, WI_E_ARGUMENT,
        "logits_capacity is ", params.logits.size(), ", must be ", tokens.size() * vocab, " for ",
        tokens.size(), " tokens");
  const int64_t skip = pending() ? 1 : 0;  // rows that no logits are asked of
  std::vector<int32_t> with_pending;
  std::span<const int32_t> ids = tokens;
  if (skip) {
    with_pending.reserve(1 + tokens.size());
    with_pending.push_back(tokens_[tokens_.size() - 1]);
    with_pending.insert(with_pending.end(), tokens.begin(), tokens.end());
    ids = with_pending;
  }

  check_length(tokens_.size() + static_cast<int64_t>(tokens.size()));
  uint64_t elapsed_ns = 0;
  const bool fresh = tokens_.size() == 0;
  TimelyProgress progress(params.progress, params.progress_user);
  progress.set(0, tokens.size());
  Breaks* const breaks = progress ? &progress : params.breaks;
  spill_before(use, std::min<int64_t>(prefill_chunk_tokens(model_->config), static_cast<int64_t>(ids.size())),
               cancel, breaks);
  const TokenLog tokens_before = tokens_;
  const Sequence before = sequence_;
  const ExactTokens::Mark exact_before = exact_.mark();
  const int64_t alike_before = alike_end_;
  const std::shared_ptr<std::vector<float>> logits_before = logits_;
  logits_shared_ = true;  // with logits_before
  const SessionTotals totals_before = totals_;
  const int64_t final_tokens = tokens_.size() + static_cast<int64_t>(tokens.size());
  try {
    StageTimer timer(elapsed_ns);
    const int64_t chunk = params.chunk_tokens > 0 ? params.chunk_tokens : prefill_chunk_step(model_->config);
    if (fresh) {
      computed_here_ = true;
      // Of a longer window a chunk finds tokens unsealed that others' have in segments.
      const bool alike =
          chunk == prefill_chunk_step(model_->config) && params_.policy_params.local_window <= chunk;
      alike_end_ = alike ? 0 : -1;
      alike_final_ = final_tokens;
      // Logits of every token need every token computed.
      if (params_.prefix_reuse && params.logits.empty()) adopt_prefix(ids, chunk);
    }
    if (sequence_.tokens() != alike_end_ || final_tokens != alike_final_ ||
        chunk != prefill_chunk_step(model_->config))
      alike_end_ = -1;
    const int64_t reused = fresh ? sequence_.tokens() : 0;
    const int64_t whole = static_cast<int64_t>(ids.size());
    const int64_t total = one_chunk ? std::min(whole, reused + chunk_from(sequence_.tokens(), chunk)) : whole;
    tokens = tokens.first(static_cast<size_t>(total - skip));
    constexpr size_t kPiece = size_t{1} << 20;  // of what may be many millions
    for (std::span<const int32_t> more = tokens; !more.empty();
         more = more.subspan(std::min(kPiece, more.size()))) {
      throw_if_cancelled(flag_of(cancel));
      tokens_.append(more.first(std::min(kPiece, more.size())));
    }
    progress.set(reused - skip, tokens.size());
    runtime_->workers.run(flag_of(cancel), [&](const Stream& uninterrupted) {
      const InterruptibleStream interruptible(uninterrupted, breaks);
      const Stream& stream = interruptible.stream();
      for (int64_t done = reused; done < total;) {
        const int64_t first = sequence_.tokens(), whole_chunk = chunk_from(first, chunk);
        const int64_t count = std::min(whole_chunk, total - done);
        const bool last = done + count == total;
        use.rest(count, SealWhen::prefilling, cancel, breaks);
        // What will be sealed after it is, as far as it is there, before it: as who takes it over has it.
        if (count > params_.sparse_read_tokens) seal_read(use, stream, final_tokens, count, cancel, breaks);
        const bool alike = alike_end_ == first && count == whole_chunk && !reads_sparsely(sequence_, count);
        const int64_t coming = std::min(chunk, total - done - count);
        run_chunk({ids.data() + done, static_cast<size_t>(count)}, last, params, skip, done, final_tokens,
                  coming, stream);
        done += count;
        alike_end_ = alike ? sequence_.tokens() : -1;
        progress.set(done - skip, tokens.size());
        seal_read(use, stream, final_tokens, 0, cancel, breaks);
        progress.tell();
      }
    });
    ahead_.reset();
  } catch (...) {
    ahead_.reset();
    tokens_ = tokens_before;
    sequence_ = before;
    exact_.back_to(exact_before);
    alike_end_ = alike_before;
    logits_ = logits_before;
    logits_shared_ = true;  // as they may be a fork's too, and were before
    totals_ = totals_before;
    throw;
  }
  prompt_logits_ = logits_;
  logits_shared_ = true;
  prompt_end_ = tokens_.size();
  prompt_sealed_end_ = sequence_.sealed_end();
  grows_from_ = sealed_now();
  text_.clear();
  totals_.prefill_tokens += tokens.size();
  totals_.prefill_ns += elapsed_ns;
  return static_cast<int64_t>(tokens.size());
}

void Session::check_length(int64_t tokens) const {
  const ModelConfig& config = model_->config;
  check(!config.most_tokens || tokens <= config.most_tokens, WI_E_UNSUPPORTED, "tokens would be ", tokens,
        ", but ", config.beyond_most, ", and what the model computes beyond ", config.most_tokens,
        " tokens is not supported");
}

// The tokens of a chunk that begins there: of a first prompt in chunks of the library's own size, up to where one ends
// whose tokens before it are the sink and whole steps.
int64_t Session::chunk_from(int64_t first, int64_t chunk) const {
  return first == 0 && alike_end_ == 0 ? kSinkTokens + chunk : chunk;
}

// Takes over what others have read of the same prompt. What is left must be read as the whole would have been: from
// where a chunk begins, and none of it sparsely that would else be read with what was taken.
void Session::adopt_prefix(std::span<const int32_t> ids, int64_t chunk) {
  const bool any = params_.any_prefix;
  const bool alike = alike_end_ == 0 && params_.sparse_read_tokens < chunk;
  const auto whole = static_cast<int64_t>(ids.size());
  const auto may_end = [&](int64_t end) {
    return whole - end > params_.sparse_read_tokens && (any || (alike && (end - kSinkTokens) % chunk == 0));
  };
  const int64_t taken = runtime_->prefixes.adopt_longest(
      prefix_root(), ids, SegmentGrid(params_.policy_params), any, may_end, sequence_);
  totals_.prefix_tokens += static_cast<uint64_t>(taken);
  exact_.restore(taken);
  if (alike_end_ == 0) alike_end_ = taken && any ? -1 : taken;
}

// A chunk attends exactly, unless it is short, comes after a long past and the session lets such chunks read
// through the policy: then it is a decode step of several rows.
void Session::run_chunk(std::span<const int32_t> ids, bool last, const PrefillParams& params, int64_t skip,
                        int64_t done, int64_t final_tokens, int64_t coming, const Stream& stream) {
  const int64_t count = static_cast<int64_t>(ids.size());
  const size_t vocab = static_cast<size_t>(model_->config.vocab);
  const bool all = !params.logits.empty();
  auto workspace = runtime_->workspace();
  const Step step{runtime_->backend, stream, *model_, *workspace, runtime_->buffer.get()};
  const int64_t unwanted = std::max<int64_t>(skip - done, 0);  // the pending token's row is not the caller's
  float* const all_out =
      all ? params.logits.data() + static_cast<size_t>(done + unwanted - skip) * vocab : nullptr;
  float* last_out = last ? fresh_logits() : nullptr;

  sequence_.reserve(count);
  const bool sparse = reads_sparsely(sequence_, count);
  if (sparse) {
    sequence_.bring_back_tail();
    std::vector<Row> rows;
    std::vector<StepStats> row_stats(ids.size());
    std::vector<float> room(all ? static_cast<size_t>(unwanted) * vocab : 0);
    for (int64_t i = 0; i < count; ++i) {
      float* out = i + 1 == count ? last_out : nullptr;
      if (all)
        out = i < unwanted ? room.data() + static_cast<size_t>(i) * vocab
                           : all_out + static_cast<size_t>(i - unwanted) * vocab;
      Row& row = rows.emplace_back();
      row.sequence = &sequence_;
      row.position = sequence_.tokens() + i;
      row.token = ids[static_cast<size_t>(i)];
      row.policy = params_.policy;
      row.params = &params_.policy_params;
      row.stats = &row_stats[static_cast<size_t>(i)];
      row.logits = out;
    }
    StepStats times;
    decode_step(step, rows, times);
    // All else is said of decode steps, of which this is none.
    for (const StepStats& of_row : row_stats) totals_.stages.add_buffer(of_row);
  } else {
    try {
      begin_ahead(count, final_tokens, coming, *workspace, stream);
      prefill_chunk(step, sequence_, ids,
                    all    ? PrefillLogits::all
                    : last ? PrefillLogits::last
                           : PrefillLogits::none,
                    all ? all_out : last_out, unwanted, ahead_.get());
      wait_ahead(stream);
    } catch (...) {
      ahead_.reset();  // before somebody else has the workspace
      throw;
    }
  }
  sequence_.commit(count);
  const int64_t first = sequence_.tokens() - count;
  exact_.cut(first);  // of which a pending one may be computed otherwise now
  if (!sparse) exact_.add(first, sequence_.tokens());
  if (all && last)
    std::memcpy(last_out, all_out + static_cast<size_t>(count - unwanted - 1) * vocab, vocab * sizeof(float));
}

void Session::begin_ahead(int64_t count, int64_t final_tokens, int64_t coming, Workspace& workspace,
                          const Stream& stream) {
  ahead_.reset();
  if (!runtime_->device) return;
  const PolicyParams& policy = params_.policy_params;
  const SegmentSpan span = next_of_prompt(sequence_, policy, final_tokens);
  const int64_t first = sequence_.tokens(), end = first + count;
  if (!span.tokens || span.end() <= first || span.end() > end ||
      span.end() + policy.local_window > end + coming)
    return;
  SealContext context{runtime_->backend, *params_.policy, policy, stream, {}};
  context.queue = workspace.indexing();
  ahead_ = SegmentAhead::begin(sequence_, span, context);
  if (ahead_ && resident_)
    resident_->still_coming(sealing_bytes(sequence_, count, SealWhen::prefilling, making_));
}

// Without room for what goes along it is made when it is due.
void Session::wait_ahead(const Stream& stream) {
  if (!ahead_) return;
  try {
    ahead_->wait(stream);
  } catch (const Error& error) {
    ahead_.reset();
    if (error.code() != WI_E_MEMORY) throw;
  }
}

void Session::append_computed(std::span<const int32_t> tokens, const Fill& fill, const CancelToken* cancel) {
  Session* const self = this;
  Use use({&self, 1});
  check(!pending(), WI_E_STATE, "session has a pending token: ask for its logits first");
  if (tokens.empty()) return;
  check(!runtime_->device, WI_E_UNSUPPORTED, "keys and values cannot be given to a device's session");
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
        use.rest(count, SealWhen::prefilling, cancel);
        sequence_.reserve(count);
        stream.each(model_->config.layers, [&](int64_t layer, int worker) {
          float* keys = stream.worker_array<float>(worker, static_cast<size_t>(2 * count * width));
          float* values = keys + count * width;
          fill(static_cast<int32_t>(layer), first, count, keys, values);
          const auto of = static_cast<int32_t>(layer);
          AppendRoom places;
          check_kv_range(params_.kv,
                         append(runtime_->backend, stream.alone(stream, worker), sequence_, of, first, count,
                                keys, values, width, places),
                         of);
        });
        throw_if_cancelled(stream);
        sequence_.commit(count);
        seal_read(use, stream, end, 0, cancel);
      }
    });
  } catch (...) {
    tokens_ = tokens_before;
    sequence_ = before;
    throw;
  }
  logits_.reset();
  prompt_logits_.reset();
}

// ---- structure ----

// queue: of a step that is to come, which has one if a device does its work; a prompt's is found here.
void Session::seal_tail(SealWhen when, const Stream& stream, int64_t final_tokens, int64_t coming,
                        Queue* queue) {
  StageTimer timer(totals_.stages.index_ns);
  SealContext context{runtime_->backend, *params_.policy, params_.policy_params, stream, {}, &totals_.stages};
  if (making_ != Making::whole) context.straight = runtime_->buffer.get();
  if (when == SealWhen::decoding) {
    context.queue = queue;
    in_room([&] { seal_decoded(sequence_, context); });
    return;
  }
  const auto workspace = runtime_->workspace();
  context.queue = workspace->indexing();
  context.ahead = ahead_.get();
  std::vector<std::shared_ptr<Segment>> published;
  if (params_.prefix_reuse) {
    context.on_segment = [&](const std::shared_ptr<Segment>& segment) {
      if (!computed_here_ || segment->end_position() > exact_.prefix()) return;
      auto lineage = std::make_shared<Segment::Lineage>();
      lineage->parent = prefix_root();
      for (const auto& before : sequence_.segments())  // it may take the place of the last ones
        if (before->end_position() <= segment->first_position()) lineage->parent = before->id();
      lineage->ids = std::vector<int32_t>(static_cast<size_t>(segment->tokens()));
      lineage->sink_ids = std::vector<int32_t>(kSinkTokens);
      lineage->sink = sequence_.sink();
      lineage->alike = segment->end_position() <= alike_end_;
      tokens_.copy(segment->first_position(), lineage->ids);
      tokens_.copy(0, lineage->sink_ids);
      segment->lineage = std::move(lineage);
      published.push_back(segment);
    };
  }
  // What is in its place when the next one is refused is others' parent too.
  const auto publish = [&] {
    for (const auto& segment : published) {
      const auto segments = sequence_.segments();
      if (std::find(segments.begin(), segments.end(), segment) != segments.end())
        runtime_->prefixes.publish(segment);
    }
  };
  try {
    in_room([&] { seal_prompt(sequence_, context, final_tokens, coming); });
    if (ahead_ && ahead_->span().end() <= sequence_.sealed_end()) ahead_.reset();
  } catch (...) {
    publish();
    throw;
  }
  publish();
}

// Before and after a chunk. The room for it was made before, and others may have needed it more while that lasted.
void Session::seal_read(Use& use, const Stream& stream, int64_t final_tokens, int64_t coming,
                        const CancelToken* cancel, Breaks* breaks) {
  try {
    return seal_tail(SealWhen::prefilling, stream, final_tokens, coming);
  } catch (const Error& error) {
    const bool full = error.code() == WI_E_BUDGET || (refused_ && error.code() == WI_E_IO);
    if (!resident_ || !full) throw;
  }
  use.rest(coming, SealWhen::prefilling, cancel, breaks);
  // It may be too small for an old segment, and not for the new one.
  if (refused_ && least_making(sequence_, 0, SealWhen::prefilling) != Making::whole)
    making_ = Making::straight;
  seal_tail(SealWhen::prefilling, stream, final_tokens, coming);
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
  fork->sequence_.settle();
  fork->exact_ = exact_;
  fork->computed_here_ = computed_here_;
  fork->logits_ = logits_;
  fork->logits_shared_ = logits_shared_ = true;
  fork->prompt_logits_ = prompt_logits_;
  fork->prompt_end_ = prompt_end_;
  fork->prompt_sealed_end_ = prompt_sealed_end_;
  fork->grows_from_ = grows_from_;
  fork->sampler_ = sampler_;
  fork->text_ = text_;
  fork->rest();
  fork->publish_stats();
  return fork;
}

std::shared_ptr<Session> Session::fork_as(const SessionParams& params, const CancelToken* cancel) {
  Session* const self = this;
  Use use({&self, 1});
  check(params.kv == params_.kv, WI_E_ARGUMENT, "wi_session_params.kv_type is ", format_of(params.kv).name,
        ", the session has ", format_of(params_.kv).name);
  std::shared_ptr<Session> fork(new Session(runtime_, model_, params));
  const bool shared =
      params.policy == params_.policy && same_index(params.policy_params, params_.policy_params);
  if (shared) {
    fork->sequence_ = sequence_;
    fork->sequence_.set_budget(params.kv_budget_bytes);
  } else {
    runtime_->workers.run(flag_of(cancel), [&](const Stream& stream) {
      SealContext context{runtime_->backend, *params.policy, fork->params_.policy_params, stream, {}};
      const auto workspace = runtime_->workspace();
      context.queue = workspace->indexing();
      context.before_tokens = [&](int64_t tokens) {
        use.between([&](bool may_wait) {
          fork->make_room(fork->sequence_, tokens, SealWhen::prefilling, {may_wait}, flag_of(cancel));
        });
        context.straight = fork->making_ == Making::whole ? nullptr : runtime_->buffer.get();
      };
      fork->or_refused([&] { reindex(sequence_, context, fork->sequence_); });
    });
  }
  fork->sequence_.settle();
  fork->tokens_ = tokens_;
  fork->exact_ = exact_;
  fork->computed_here_ = computed_here_;
  fork->logits_ = logits_;
  fork->logits_shared_ = logits_shared_ = true;
  fork->prompt_logits_ = prompt_logits_;
  fork->prompt_end_ = prompt_end_;
  fork->prompt_sealed_end_ = shared ? prompt_sealed_end_
                                    : std::min(fork->sequence_.sealed_end(),
                                               SegmentGrid(params.policy_params).sealed_end(prompt_end_));
  const bool as_before = shared && params.policy_params.local_window == params_.policy_params.local_window;
  fork->grows_from_ = as_before ? grows_from_ : fork->sealed_now();
  if (!params.sampling_given) fork->sampler_ = sampler_;
  fork->text_ = text_;
  fork->rest();
  fork->publish_stats();
  return fork;
}

SealedAt Session::sealed_now() const { return {sequence_.tokens(), sequence_.sealed_end()}; }

// Up to where the sequence was sealed when it had so many tokens, as far as that is known: behind a prompt units are
// sealed at fixed tokens, by the step that then computes the next one.
int64_t Session::sealed_at(int64_t tokens) const {
  const auto since = [&](const SealedAt& at) {
    if (tokens == at.tokens) return at.sealed_end;
    return sealed_while_decoding(params_.policy_params, at.sealed_end, tokens - 1);
  };
  if (tokens >= grows_from_.tokens) return since(grows_from_);
  if (!prompt_logits_ || tokens < prompt_end_) return kSealedUnknown;
  return since({prompt_end_, prompt_sealed_end_});
}

// The last token that is left becomes pending: the next call computes its logits anew. At the end of a prompt
// the session is as it was then, logits and all, so that another answer to it starts from the same bits.
void Session::truncate(int64_t tokens) {
  Session* const self = this;
  Use use({&self, 1});
  check(tokens >= 0 && tokens <= tokens_.size(), WI_E_ARGUMENT, "tokens is ", tokens, ", the session has ",
        tokens_.size());
  if (tokens == tokens_.size()) return;
  const bool prompt = prompt_logits_ && tokens == prompt_end_;
  const int64_t computed = prompt ? tokens : std::max<int64_t>(tokens - 1, 0);
  const int64_t most_sealed = prompt ? prompt_sealed_end_ : sealed_at(computed);
  use.between([&](bool may_wait) { make_room_to_cut(tokens, most_sealed, may_wait); });
  runtime_->workers.run(nullptr, [&](const Stream& stream) {
    SealContext context{runtime_->backend, *params_.policy, params_.policy_params, stream, {}};
    if (making_ != Making::whole) context.straight = runtime_->buffer.get();
    in_room([&] { wi::truncate(sequence_, context, computed, most_sealed); });
  });
  if (computed < grows_from_.tokens) grows_from_ = sealed_now();
  tokens_.truncate(tokens);
  exact_.cut(tokens);
  alike_end_ = -1;
  if (tokens < prompt_end_) prompt_logits_.reset();
  logits_ = prompt ? prompt_logits_ : nullptr;
  logits_shared_ = true;
  text_.clear();
}

void Session::set_sampling(const SamplingParams& sampling) {
  Session* const self = this;
  Use use({&self, 1});
  check_bias(sampling, model_->config.vocab);
  sampler_ = Sampler(sampling);
}

// ---- saving: save.cpp does it ----

void Session::save(ByteSink& to, const CancelToken* cancel) {
  Session* const self = this;
  const Use use = Use::without_reading({&self, 1});
  write(to, cancel);
}

void Session::save(const std::string& path, const CancelToken* cancel) {
  Session* const self = this;
  const Use use = Use::without_reading({&self, 1});
  write(path, cancel);
}

uint64_t Session::saved_bytes() {
  Session* const self = this;
  Use use({&self, 1});
  return written_bytes();
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
  uint64_t mandatory = stats.kv_bytes;
  if (has_slow_tier())
    for (const auto& segment : sequence_.segments())
      if (!segment->is_slow()) mandatory -= std::min(mandatory, segment->leaving_bytes());
  mandatory_bytes_ = mandatory;
  std::lock_guard lock(stats_mutex_);
  published_ = stats;
}

// Names what equal token ids must agree in for their segments to be the same.
uint64_t Session::prefix_root() const {
  const PolicyParams& policy = params_.policy_params;
  uint64_t hash = mix(0, model_->identity);
  for (const char* c = params_.policy->name; *c; ++c) hash = mix(hash, static_cast<uint64_t>(*c));
  for (int32_t value : {static_cast<int32_t>(model_->precision), static_cast<int32_t>(params_.kv),
                        policy.segment_tokens, policy.tokens_per_centroid, policy.kmeans_iterations,
                        policy.max_cluster_tokens, policy.decode_segment_tokens}) {
    hash = mix(hash, static_cast<uint64_t>(value));
  }
  return hash | (uint64_t{1} << 63);  // ids of segments are small
}

}  // namespace wi
