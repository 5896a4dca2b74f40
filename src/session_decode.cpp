// Choosing tokens and telling about them: one step for the newest tokens of a session, or of many, then a
// token each, sampled or of the host's choice. All that can fail comes before anything changes, for all of
// them.
#include <algorithm>
#include <cstring>
#include <new>

#include "kernels/token_weights.h"
#include "src/batch_error.h"
#include "src/decode.h"
#include "src/host_call.h"
#include "src/prefill.h"
#include "src/repeats.h"
#include "src/sampling/logprob.h"
#include "src/session_use.h"
#include "src/tokenizer/vocabulary.h"

namespace wi {

struct Session::Company {
  std::span<Session* const> sessions;
  bool batch;  // messages say which session they are about

  // body(session, its place)
  template <class Body>
  void each(Body&& body) const {
    for (size_t i = 0; i < sessions.size(); ++i) {
      try {
        body(*sessions[i], i);
      } catch (const Error& error) {
        if (!batch) throw;
        throw BatchError(i, error);
      } catch (const std::bad_alloc&) {
        if (!batch) throw;
        fail(WI_E_MEMORY, "sessions[", i, "]: the system refused memory");
      }
    }
  }
};

Event Session::decode(const CancelToken* cancel) {
  Session* const self = this;
  Use use({&self, 1});
  Event event;
  next_tokens(use, {{&self, 1}, false}, nullptr, cancel, &event);
  return event;
}

Event Session::accept(int32_t token, const CancelToken* cancel) {
  Session* const self = this;
  Use use({&self, 1});
  Event event;
  next_tokens(use, {{&self, 1}, false}, &token, cancel, &event);
  return event;
}

void Session::decode_batch(std::span<Session* const> sessions, const CancelToken* cancel, Event* events_out) {
  for (size_t i = 0; i < sessions.size(); ++i) {
    check(sessions[i]->model_ == sessions[0]->model_ && sessions[i]->runtime_ == sessions[0]->runtime_,
          WI_E_ARGUMENT, "sessions[", i, "] has another model or runtime than sessions[0]");
    check(std::find(sessions.begin(), sessions.begin() + static_cast<std::ptrdiff_t>(i), sessions[i]) ==
              sessions.begin() + static_cast<std::ptrdiff_t>(i),
          WI_E_ARGUMENT, "sessions[", i, "] is in the batch twice");
  }
  Use use(sessions, true);
  next_tokens(use, {sessions, true}, nullptr, cancel, events_out);
}

std::span<const float> Session::logits(const CancelToken* cancel) {
  Session* const self = this;
  Use use({&self, 1});
  compute_pending(use, {{&self, 1}, false}, *runtime_->workspace(), cancel, StepFor::logits);
  return *logits_;
}

void Session::copy_logits(const CancelToken* cancel, std::span<float> out) {
  Session* const self = this;
  Use use({&self, 1});
  compute_pending(use, {{&self, 1}, false}, *runtime_->workspace(), cancel, StepFor::logits);
  std::copy(logits_->begin(), logits_->end(), out.begin());
}

// A token each: `accepted`, or the sampler's. If one cannot be had after all, the steps of all are taken back: a prompt
// that came next would find its first token computed otherwise.
void Session::next_tokens(Use& use, const Company& company, const int32_t* accepted,
                          const CancelToken* cancel, Event* events_out) {
  auto workspace = company.sessions[0]->runtime_->workspace();
  for (Session* session : company.sessions) {
    session->tokens_before_ = session->sequence_.tokens();
    session->totals_before_ = session->totals_;
  }
  workspace->sampled_of.assign(company.sessions.size(), nullptr);
  uint64_t elapsed_ns = 0;
  try {
    compute_pending(use, company, *workspace, cancel, accepted ? StepFor::accepted : StepFor::token);
    StageTimer timer(elapsed_ns);
    choose(company, accepted, *workspace, events_out);
  } catch (...) {
    for (Session* session : company.sessions) session->take_back_step();
    throw;
  }
  {
    StageTimer timer(elapsed_ns);
    for (size_t i = 0; i < company.sessions.size(); ++i) company.sessions[i]->commit(events_out[i]);
  }
  for (Session* session : company.sessions) {
    session->totals_.decode_ns += elapsed_ns;
    session->totals_.stages.weights_ns += elapsed_ns;
  }
}

void Session::take_back_step() noexcept {
  if (sequence_.tokens() == tokens_before_) return;
  sequence_.take_back(sequence_.tokens() - tokens_before_);
  sequence_.restore_settled_end(settled_before_);
  totals_ = totals_before_;
}

// Sessions beside each other, but where a host's callback takes part, which is called by the host's thread.
void Session::choose(const Company& company, const int32_t* accepted, Workspace& workspace,
                     Event* events_out) {
  Runtime& runtime = *company.sessions[0]->runtime_;
  const bool alone = company.sessions.size() == 1 ||
                     std::any_of(company.sessions.begin(), company.sessions.end(), [](Session* session) {
                       return session->sampler_.params().logits_callback != nullptr;
                     });
  workspace.sampling.resize(static_cast<size_t>(runtime.workers.threads()));
  if (alone)
    return company.each([&](Session& session, size_t i) {
      events_out[i] =
          session.prepare_event(accepted, workspace.sampled_of[i], workspace.sampling[0], nullptr);
    });
  // Whichever worker takes whichever session, after the first step nothing is allocated.
  for (const Session* session : company.sessions)
    for (SamplerScratch& scratch : workspace.sampling)
      scratch.reserve(session->sampler_.params(), session->logits_->size());
  workspace.failures.assign(company.sessions.size(), nullptr);
  runtime.workers.run(nullptr, [&](const Stream& stream) {
    stream.each(static_cast<int64_t>(company.sessions.size()), [&](int64_t number, int worker) {
      const auto i = static_cast<size_t>(number);
      const Stream alone = stream.alone(stream, worker);
      SamplerScratch& scratch = workspace.sampling[static_cast<size_t>(worker)];
      try {
        events_out[i] =
            company.sessions[i]->prepare_event(accepted, workspace.sampled_of[i], scratch, &alone);
      } catch (...) {
        workspace.failures[i] = std::current_exception();
      }
    });
  });
  company.each([&](Session&, size_t i) {  // the first one's, as if they had been one after the other
    if (workspace.failures[i]) std::rethrow_exception(workspace.failures[i]);
  });
}

// ---- the step ----

// Runs the step of every session that has a pending token. Until it is done nothing is committed, nor does what is sealed
// stay so for a prompt that comes next.
void Session::compute_pending(Use& use, const Company& company, Workspace& workspace,
                              const CancelToken* cancel, StepFor what) {
  for (Session* session : company.sessions) session->settled_before_ = session->sequence_.settled_end();
  try {
    run_step(use, company, workspace, cancel, what);
  } catch (...) {
    for (Session* session : company.sessions)
      if (session->pending()) session->sequence_.restore_settled_end(session->settled_before_);
    throw;
  }
}

void Session::run_step(Use& use, const Company& company, Workspace& workspace, const CancelToken* cancel,
                       StepFor what) {
  const std::span<Session* const> sessions = company.sessions;
  company.each([](Session& session, size_t) {
    check(session.tokens_.size() > 0, WI_E_STATE, "session is empty, prefill it first");
    check(session.pending() || session.logits_, WI_E_STATE, "session has no logits to sample from");
    if (session.pending()) session.check_length(session.tokens_.size());
  });
  const auto done = [&] {
    return std::none_of(sessions.begin(), sessions.end(),
                        [](Session* session) { return session->pending(); });
  };
  if (done()) return;
  use.rest(1, SealWhen::decoding, cancel);
  company.each([&](Session& session, size_t) { session.compute_exact_pending(workspace, cancel); });
  if (done()) return;

  Runtime& runtime = *sessions[0]->runtime_;
  const Model& model = *sessions[0]->model_;
  const size_t vocab = static_cast<size_t>(model.config.vocab);
  uint64_t elapsed_ns = 0;
  StepStats times;
  {
    StageTimer timer(elapsed_ns);
    workspace.rows.clear();
    workspace.row_stats.assign(sessions.size(), StepStats{});
    workspace.wanted.resize(sessions.size() * kMostWanted);
    const bool samples = runtime.backend.sample && what != StepFor::logits;
    if (samples) workspace.sampled.assign(sessions.size(), SampledRow{});
    float* const row_logits = workspace.row_logits(sessions.size() * vocab);
    runtime.workers.run(flag_of(cancel), [&](const Stream& stream) {
      company.each([&](Session& session, size_t i) {
        if (!session.pending()) return;
        session.seal_tail(SealWhen::decoding, stream, 0, 0, workspace.indexing());
        session.sequence_.reserve(1);
        const size_t row = workspace.rows.size();
        Row& out = workspace.rows.emplace_back(session.pending_row());
        out.stats = &workspace.row_stats[row];
        out.logits = row_logits + row * vocab;
        if (samples) workspace.sampled_of[i] = out.sampled = &workspace.sampled[row];
        if (samples && what == StepFor::token) out.sampling = session.sampler_.for_device().row;
        out.session = company.batch ? static_cast<int32_t>(i) : -1;
        StageTimer looking(times.select_ns);
        out.wanted = session.wanted_tokens({workspace.wanted.data() + row * kMostWanted, kMostWanted});
      });
      decode_step(Step{runtime.backend, stream, model, workspace, runtime.buffer.get()}, workspace.rows,
                  times);
    });
    company.each([](Session& session, size_t) {
      if (session.pending()) session.fresh_logits();  // the last thing that can fail
    });
    workspace.row_logits_of.clear();
    for (Session* session : sessions)
      if (session->pending()) workspace.row_logits_of.push_back(session->logits_->data());
    const auto copy = [&](int64_t row) {
      std::memcpy(workspace.row_logits_of[static_cast<size_t>(row)],
                  workspace.rows[static_cast<size_t>(row)].logits, vocab * sizeof(float));
    };
    const auto count = static_cast<int64_t>(workspace.row_logits_of.size());
    if (count == 1)
      copy(0);
    else
      runtime.workers.run(
          nullptr, [&](const Stream& stream) { stream.each(count, [&](int64_t row, int) { copy(row); }); });
  }

  size_t row = 0;
  for (Session* session : sessions) {
    if (!session->pending()) continue;
    session->sequence_.commit(1);
    session->totals_.decode_steps += 1;
    session->totals_.decode_ns += elapsed_ns;
    session->totals_.stages.add(times);
    session->totals_.stages.add(workspace.row_stats[row]);
    ++row;
  }
}

// The last token that a cut left: as it was computed before, exactly, if it was one of a prompt.
void Session::compute_exact_pending(Workspace& workspace, const CancelToken* cancel) {
  const int64_t position = sequence_.tokens();
  if (!pending() || !exact_.has(position)) return;
  const int32_t token = tokens_[position];
  uint64_t elapsed_ns = 0;
  {
    StageTimer timer(elapsed_ns);
    runtime_->workers.run(flag_of(cancel), [&](const Stream& stream) {
      sequence_.reserve(1);
      prefill_chunk({runtime_->backend, stream, *model_, workspace}, sequence_, {&token, 1},
                    PrefillLogits::last, fresh_logits());
    });
  }
  sequence_.commit(1);
  totals_.decode_steps += 1;
  totals_.decode_ns += elapsed_ns;
  totals_.stages.weights_ns += elapsed_ns;  // attention with it, which a chunk does not tell apart
  const KvShape& shape = sequence_.shape();
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    const int64_t window = shape.window(layer), seen = position + 1;
    totals_.stages.kv_bytes_read += static_cast<uint64_t>(window ? std::min(window, seen) : seen) * 2 *
                                    shape.head_bytes() * static_cast<uint64_t>(shape.kv_heads);
  }
}

Row Session::pending_row() {
  Row row;
  row.sequence = &sequence_;
  row.position = sequence_.tokens();
  row.token = tokens_[tokens_.size() - 1];
  row.policy = params_.policy;
  row.params = &params_.policy_params;
  return row;
}

// What followed the newest tokens where they stood before.
std::span<const WantedTokens> Session::wanted_tokens(std::span<WantedTokens> room) const {
  static_assert(kMostWanted >= 2 * size_t{kMostRepeats});  // a few tokens are in two segments at most
  if (!params_.policy->wants_repeats) return {};
  Repeat repeats[kMostRepeats];
  const int32_t count = find_repeats(tokens_, kSinkTokens, sequence_.sealed_end(),
                                     std::min(params_.policy_params.repeats, kMostRepeats), repeats);
  size_t wanted = 0;
  for (int32_t i = 0; i < count; ++i) {
    const auto& segments = sequence_.segments();
    for (size_t s = 0; s < segments.size(); ++s) {
      const int64_t first = segments[s]->first_position(), last = repeats[i].last - first;
      const int64_t begin = std::max<int64_t>(last, 0);
      const int64_t end = std::min<int64_t>(last + kFollowed, segments[s]->tokens());
      if (begin < end && wanted < room.size())
        room[wanted++] = {static_cast<int32_t>(s), static_cast<int32_t>(begin), static_cast<int32_t>(end)};
    }
  }
  return room.first(wanted);
}

// Room for new logits. What a fork may be looking at is never written again: both sides take new room.
float* Session::fresh_logits() {
  if (!logits_ || logits_shared_)
    logits_ = std::make_shared<std::vector<float>>(static_cast<size_t>(model_->config.vocab));
  logits_shared_ = false;
  return logits_->data();
}

// ---- the token ----

static_assert(limits::kVocab <= kMostWeighed, "every model's logits can be sampled from");

// Everything about the next token that can fail; commit() then makes it the session's. sampled: by a device in this step;
// where that left the token to the host, or found none, the host finds it, or why not. alone: of a worker; null: of a
// thread that all workers may help, behind a step.
Event Session::prepare_event(const int32_t* accepted, const SampledRow* sampled, SamplerScratch& scratch,
                             const Stream* alone) {
  Event event;
  next_state_ = sampler_.state();
  if (accepted) {
    event.token = *accepted;
  } else if (sampled && sampled->token >= 0) {
    event.token = sampled->token;
    next_state_ = sampler_.for_device().state;
  } else {
    const int64_t window = std::min(tokens_.size(), sampler_.looks_back());
    scratch.recent.resize(static_cast<size_t>(window));
    tokens_.copy(tokens_.size() - window, scratch.recent);
    const HostCall host;  // the host's callback may be within
    const Sampler::Choice choice = sampler_.sample(*logits_, scratch);
    event.token = choice.token;
    next_state_ = choice.state;
  }
  const SamplingParams& sampling = sampler_.params();
  double log_sum = sampled ? log_sum_of(*sampled) : 0;
  const auto add_up = [&](const Stream& stream) {
    log_sum = runtime_->backend.log_sum_exp(stream, logits_->data(), static_cast<int64_t>(logits_->size()));
  };
  // Behind a step the other workers are there; to wake them takes as long as the sum.
  const bool stepped = sequence_.tokens() != tokens_before_;
  if (!sampled && alone) add_up(*alone);
  if (!sampled && !alone)
    runtime_->workers.run(nullptr,
                          [&](const Stream& stream) { add_up(stepped ? stream : stream.alone(stream, 0)); });
  event.logprob = log_probability((*logits_)[static_cast<size_t>(event.token)], log_sum);
  best_log_probabilities(*logits_, log_sum, static_cast<size_t>(sampling.top_logprobs), top_);
  event.top = top_;
  if (model_->tokenizer) {
    const bool ends = model_->tokenizer->ends_generation(event.token);
    const EventText::Told told =
        ends ? text_.finish(sampling.stops)
             : text_.next(model_->tokenizer->piece(event.token, false), sampling.stops);
    event.kind = ends ? WI_EVENT_END : told.stopped ? WI_EVENT_STOP : WI_EVENT_TOKEN;
    event.text = told.text;
  }
  tokens_.reserve_one();
  return event;
}

void Session::commit(const Event& event) noexcept {
  tokens_.push_back(event.token);
  sampler_.set_state(next_state_);
  text_.commit();
}

}  // namespace wi
