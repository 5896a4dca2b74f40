// wi_ask: reads a long document once, then answers each question from a fork of that session, so that
// the document's KV cache and index are shared by all of them. With several policies it does so once per
// policy and sets them side by side. Everything here goes through waveinfer.h.
#include <chrono>
#include <cstdio>
#include <stdexcept>

#include "ask_options.h"
#include "ask_progress.h"
#include "ask_prompt.h"
#include "ask_report.h"
#include "interrupt.h"
#include "sample.h"

namespace {

using namespace sample;
using Clock = std::chrono::steady_clock;

void ask(const AskOptions& options);
std::vector<Session> create_sessions(const Model& model, const AskOptions& options, uint64_t tokens);
void check_room(const Model& model, const wi_session_params& params, const AskOptions& options,
                uint64_t tokens);
void read_document(const Session& session, const Prompt& prompt, wi_cancel* cancel, Reading* reading);
Answer answer_question(const Session& document, const Prompt& prompt, const Question& question,
                       const AskOptions& options, wi_cancel* cancel);
void measure_cache(const wi_session_stats& before, const wi_session_stats& after, Answer* answer);
wi_session_stats session_stats(const Session& session);
double milliseconds(Clock::duration duration);

}  // namespace

int main(int argument_count, char** arguments) {
  return end_status(run_main("wi_ask", [&] {
    AskOptions options;
    if (parse_ask_options(argument_count, arguments, options)) ask(options);
  }));
}

namespace {

void ask(const AskOptions& options) {
  Interrupt interrupt;
  Runtime runtime = create_runtime(options.threads, options.device, options.spill,
                                   static_cast<uint64_t>(options.kv_budget_mb) << 20);
  Model model = open_model(runtime, options.model, parse_load(options.load),
                           parse_precision(options.precision), interrupt.cancel());
  Prompt prompt(model, options);
  warn_beyond_model("wi_ask", model, prompt.most_tokens(), static_cast<uint64_t>(options.max_tokens));
  std::vector<Session> sessions =
      create_sessions(model, options, prompt.most_tokens() + static_cast<uint64_t>(options.max_tokens));

  std::vector<Reading> readings;
  for (size_t i = 0; i < sessions.size(); i++) {
    Reading& reading = readings.emplace_back();
    reading.policy = options.policies[i];
    reading.device = options.device;
    reset_peak_rss();
    read_document(sessions[i], prompt, interrupt.cancel(), &reading);
    if (!options.json) {
      std::printf("%s: read %s tokens in %.1f s (%s tokens/s)\n\n", reading.policy.c_str(),
                  with_thousands(reading.document_tokens).c_str(), reading.prefill_seconds,
                  with_thousands(static_cast<uint64_t>(reading.prefill_tokens_per_second())).c_str());
    }
    for (const Question& question : options.questions) {
      reading.answers.push_back(answer_question(sessions[i], prompt, question, options, interrupt.cancel()));
      if (options.json) print_json(reading, reading.answers.back());
    }
    sessions[i].reset();  // the next policy's peak memory is its own
  }
  if (!options.json) print_table(readings);
}

// One session per policy, all created before the first reads, so that a wrong name fails at once, and so does what
// memory has no room for. tokens: of document, question and answer.
std::vector<Session> create_sessions(const Model& model, const AskOptions& options, uint64_t tokens) {
  auto sampling = sized<wi_sampling_params>();
  sampling.temperature = static_cast<float>(options.temperature);
  sampling.seed = static_cast<uint64_t>(options.seed);
  auto policy = sized<wi_policy_params>();
  policy.budget = static_cast<float>(options.budget);
  auto params = sized<wi_session_params>();
  params.kv_type = parse_kv_type(options.kv_type);
  params.policy = &policy;
  params.sampling = &sampling;
  params.kv_fast_share = static_cast<float>(options.kv_fast);
  params.sparse_read_tokens = static_cast<int32_t>(options.sparse_read_tokens);
  params.prefix_reuse = WI_PREFIX_REUSE_OFF;  // each policy's prefill time is its own

  std::vector<Session> sessions;
  for (const std::string& name : options.policies) {
    policy.name = name.c_str();
    check_room(model, params, options, tokens);
    sessions.push_back(create_session(model, params));
  }
  return sessions;
}

void check_room(const Model& model, const wi_session_params& params, const AskOptions& options,
                uint64_t tokens) {
  auto plan = sized<wi_memory_plan>();
  call(wi_model_plan_memory, model.get(), &params, tokens, &plan);
  if (tokens <= plan.max_tokens) return;
  const std::string budget =
      options.kv_budget_mb > 0 ? "--kv-budget " + std::to_string(options.kv_budget_mb) : "memory";
  throw std::runtime_error("the document, a question and --max-tokens " + std::to_string(options.max_tokens) +
                           " are " + with_thousands(tokens) + " tokens, " + budget + " has room for " +
                           with_thousands(plan.max_tokens) +
                           " (max_tokens): read fewer (--tokens), or give more with --kv-budget" +
                           (options.spill.empty() ? " or --spill" : ""));
}

void read_document(const Session& session, const Prompt& prompt, wi_cancel* cancel, Reading* reading) {
  Progress progress;
  auto params = sized<wi_prefill_params>();
  params.progress = Progress::on_progress;
  params.progress_user = &progress;
  progress.show(0, prompt.opening().size());
  auto start = Clock::now();
  call(wi_session_prefill, session.get(), prompt.opening().data(), prompt.opening().size(), &params, cancel);
  reading->prefill_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  reading->document_tokens = prompt.document_tokens();
}

// Writes the answer as it comes, and ends its line whatever happens.
class AnswerStream {
 public:
  explicit AnswerStream(bool silent) : silent_(silent) {}
  ~AnswerStream() { write("\n\n"); }
  AnswerStream(const AnswerStream&) = delete;
  AnswerStream& operator=(const AnswerStream&) = delete;

  void write(std::string_view text) {
    if (silent_) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

 private:
  bool silent_;
};

Answer answer_question(const Session& document, const Prompt& prompt, const Question& question,
                       const AskOptions& options, wi_cancel* cancel) {
  AnswerStream stream(options.json);
  stream.write(question.text + "\n  ");
  Answer answer;
  answer.question = question;
  auto start = Clock::now();

  Session session = fork(document);
  const std::vector<int32_t>& tokens = prompt.question(question.text);
  call(wi_session_prefill, session.get(), tokens.data(), tokens.size(), nullptr, cancel);
  wi_session_stats before = session_stats(session);

  Clock::time_point first, last;
  int64_t steps = 0;  // the one that ends the answer included
  bool ended = false;
  for (; !ended && steps < options.max_tokens; steps++) {
    auto event = sized<wi_event>();
    call(wi_session_decode, session.get(), cancel, &event);
    last = Clock::now();
    if (steps == 0) first = last;
    ended = event.kind != WI_EVENT_TOKEN;
    if (!ended) answer.tokens++;
    answer.text.append(event.text, event.text_length);
    stream.write({event.text, event.text_length});
  }
  answer.cut = !ended;
  if (answer.cut) stream.write("\n  (cut off at --max-tokens " + std::to_string(options.max_tokens) + ")");
  answer.first_token_ms = milliseconds(first - start);
  if (steps > 1) answer.ms_per_token = milliseconds(last - first) / static_cast<double>(steps - 1);
  measure_cache(before, session_stats(session), &answer);
  return answer;
}

// What the decode steps between two readings of the statistics touched.
void measure_cache(const wi_session_stats& before, const wi_session_stats& after, Answer* answer) {
  answer->kv_bytes = after.kv_bytes;
  answer->index_bytes = after.index_bytes;
  answer->peak_rss_bytes = peak_rss_bytes();
  uint64_t steps = after.decode_steps - before.decode_steps;
  uint64_t hits = after.buffer_hits - before.buffer_hits;
  uint64_t misses = after.buffer_misses - before.buffer_misses;
  if (steps > 0) {
    answer->kv_bytes_read_per_token =
        static_cast<double>(after.kv_bytes_read - before.kv_bytes_read) / static_cast<double>(steps);
  }
  if (hits + misses > 0) answer->hit_ratio = static_cast<double>(hits) / static_cast<double>(hits + misses);
}

wi_session_stats session_stats(const Session& session) {
  auto stats = sized<wi_session_stats>();
  call(wi_session_get_stats, session.get(), &stats);
  return stats;
}

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace
