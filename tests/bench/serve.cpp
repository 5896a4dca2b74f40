#include "tests/bench/serve.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "src/engine/engine.h"
#include "tests/bench/synthetic_cache.h"

namespace wi::bench {
namespace {

using Clock = std::chrono::steady_clock;

enum Kind { kChat, kDocument, kQuestion, kKinds };
constexpr const char* kNames[] = {"chat", "document", "question", "all"};

struct Request {
  Kind kind;
  double arrives_s;
  TaskParams params;
  std::shared_ptr<Session> session;
  std::shared_ptr<Task> task;
  Clock::time_point submitted;
  std::vector<Clock::time_point> tokens;  // the engine's thread writes, until the task has ended
};

std::vector<int32_t> some_tokens(int64_t count, int32_t vocab, std::mt19937_64& random) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return ids;
}

// The whole mix is made before the first request arrives, from the seed alone.
std::vector<Request> make_requests(const Model& model, const ServeOptions& options) {
  std::mt19937_64 random(options.seed);
  std::exponential_distribution<double> gap(options.per_second);
  const auto between = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
  };
  std::vector<Request> requests(static_cast<size_t>(options.requests));
  double now = 0;
  for (Request& request : requests) {
    const uint64_t lot = random() % 10;
    request.kind = lot < 7 ? kChat : lot < 8 ? kDocument : kQuestion;
    request.arrives_s = now += gap(random);
    const int64_t prompt = request.kind == kChat       ? between(32, 512)
                           : request.kind == kDocument ? between(options.long_tokens / 4, options.long_tokens)
                                                       : between(16, 64);
    request.params.tokens = some_tokens(prompt, model.config.vocab, random);
    request.params.max_tokens = static_cast<uint64_t>(request.kind == kChat ? between(16, 64) : 32);
    request.params.notify_user = &request;
    request.params.notify = [](void* user) { static_cast<Request*>(user)->tokens.push_back(Clock::now()); };
  }
  return requests;
}

void write_ids(std::ostream& out, const std::vector<int32_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) out << (i ? "," : "[") << ids[i];
  out << "]";
}

void write_mix(const std::string& path, const std::vector<int32_t>& library,
               const std::vector<Request>& requests) {
  std::ofstream out(path);
  out << "{\"library\":";
  write_ids(out, library);
  out << "}\n";
  for (const Request& request : requests) {
    out << "{\"kind\":\"" << kNames[request.kind] << "\",\"arrives_s\":" << request.arrives_s
        << ",\"max_tokens\":" << request.params.max_tokens << ",\"tokens\":";
    write_ids(out, request.params.tokens);
    out << "}\n";
  }
  out.close();
  check(out.good(), WI_E_IO, "cannot write ", path);
}

void print(const std::vector<const Request*>& requests, const char* name, double seconds) {
  std::vector<double> first, gaps;
  uint64_t read = 0, written = 0;
  for (const Request* request : requests) {
    const size_t count = static_cast<size_t>(request->task->info().answer_tokens);
    read += request->params.tokens.size();
    written += count;
    const auto ms = [](Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); };
    if (count) first.push_back(ms(request->tokens[0] - request->submitted));
    for (size_t i = 1; i < count; ++i) gaps.push_back(ms(request->tokens[i] - request->tokens[i - 1]));
  }
  const auto percentile = [](std::vector<double>& values, double share) {
    if (values.empty()) return 0.0;
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(std::ceil(share * static_cast<double>(values.size()))) - 1];
  };
  std::printf(
      "{\"bench\":\"serve\",\"kind\":\"%s\",\"requests\":%zu,\"seconds\":%.2f,\"tokens_read\":%llu,"
      "\"tokens_written\":%llu,\"written_per_second\":%.1f,\"first_token_ms_p50\":%.1f,"
      "\"first_token_ms_p99\":%.1f,\"between_tokens_ms_p50\":%.2f,\"between_tokens_ms_p99\":%.2f}\n",
      name, requests.size(), seconds, static_cast<unsigned long long>(read),
      static_cast<unsigned long long>(written), static_cast<double>(written) / seconds,
      percentile(first, 0.5), percentile(first, 0.99), percentile(gaps, 0.5), percentile(gaps, 0.99));
  std::fflush(stdout);
}

}  // namespace

void serve(const std::shared_ptr<Runtime>& runtime, const std::shared_ptr<const Model>& model,
           const SessionParams& params, const ServeOptions& options) {
  std::mt19937_64 random(options.seed + 1);
  const std::shared_ptr<Session> library = Session::create(runtime, model, params);
  const std::vector<int32_t> read = some_tokens(options.long_tokens, model->config.vocab, random);
  library->append_computed(read, synthetic_cache(model->config, options.seed), nullptr);
  std::vector<Request> requests = make_requests(*model, options);
  if (!options.mix.empty()) write_mix(options.mix, read, requests);

  const Clock::time_point start = Clock::now();
  for (Request& request : requests) {
    std::this_thread::sleep_until(start + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double>(request.arrives_s)));
    request.session = request.kind == kQuestion ? library->fork() : Session::create(runtime, model, params);
    request.submitted = Clock::now();
    request.task = std::make_shared<Task>(request.session, request.params);
    submit_task(request.task);
  }
  for (Request& request : requests) {
    while (!request.task->ended()) {
      request.task->poll(1000, [](size_t, const Event&) {});
      request.task->wait(100'000'000);
    }
    request.task->abandon();  // the last notification is over
    check(request.task->info().state == WI_TASK_DONE, WI_E_INTERNAL, "a ", kNames[request.kind],
          " failed: ", request.task->info().message);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (int kind = 0; kind <= kKinds; ++kind) {
    std::vector<const Request*> own;
    for (const Request& request : requests)
      if (kind == kKinds || request.kind == kind) own.push_back(&request);
    print(own, kNames[kind], seconds);
  }
}

}  // namespace wi::bench
