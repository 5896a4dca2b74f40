// A host that draws 60 frames a second while the library reads and writes beside it. A frame takes some milliseconds of
// a core's time; it is missed if it is not done when the next one is due. Prints a line for each kind of work: nothing,
// reading a prompt, writing an answer, both, by tasks of a runtime that is as nice as asked.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <time.h>
#include <vector>

#include "tests/bench/help.h"
#include "waveinfer.h"

namespace {

constexpr const char* kUsage =
    "frame_bench: frames missed at 60 Hz while the library works beside them\n"
    "usage: frame_bench --model FILE --document FILE [--work MS] [--frames N] [--nice N[,N...]] [--threads "
    "N]\n"
    "--work: a core's time that a frame takes, 4 ms unless told. --document: any text of some megabytes.\n"
    "Example: frame_bench --model model.gguf --document book.txt --nice 0,10\n";

constexpr double kPeriod = 1000.0 / 60;

struct Options {
  std::string model, document, nice = "0,10";
  double work = 4;
  int frames = 600, threads = 0;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--model")
      options.model = value;
    else if (name == "--document")
      options.document = value;
    else if (name == "--work")
      options.work = std::atof(value.c_str());
    else if (name == "--frames")
      options.frames = std::max(1, std::atoi(value.c_str()));
    else if (name == "--nice")
      options.nice = value;
    else if (name == "--threads")
      options.threads = std::atoi(value.c_str());
    else
      std::fprintf(stderr, "unknown option %s\n%s", name.c_str(), kUsage), std::exit(2);
  }
  if (options.model.empty() || options.document.empty()) std::fputs(kUsage, stderr), std::exit(2);
  return options;
}

wi_error error = [] {
  wi_error empty{};
  empty.struct_size = sizeof empty;
  return empty;
}();

void must(wi_status status) {
  if (status == WI_OK) return;
  std::fprintf(stderr, "frame_bench: %s\n", error.message);
  std::exit(1);
}

double clock_ms(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

struct Frames {
  int missed = 0;
  double longest_ms = 0;  // from when a frame was due to when it was done
};

// While it lasts, the frame's thread polls the tasks, as a game would.
Frames draw(const Options& options, const std::vector<wi_task*>& tasks) {
  Frames frames;
  double due = clock_ms(CLOCK_MONOTONIC);
  for (int i = 0; i < options.frames; ++i, due += kPeriod) {
    const double wait = due - clock_ms(CLOCK_MONOTONIC);
    if (wait > 0) {
      const timespec sleep{0, static_cast<long>(wait * 1e6)};
      nanosleep(&sleep, nullptr);
    } else if (wait < -kPeriod) {
      due -= wait;  // what is lost is lost: frames are not caught up with
    }
    for (wi_task* task : tasks) {
      wi_event events[16];
      for (wi_event& event : events) event.struct_size = sizeof event;
      uint64_t count = 0;
      must(wi_task_poll(task, events, 16, &count, &error));
    }
    const double begun = clock_ms(CLOCK_THREAD_CPUTIME_ID);
    while (clock_ms(CLOCK_THREAD_CPUTIME_ID) - begun < options.work) {
    }
    const double took = clock_ms(CLOCK_MONOTONIC) - due;
    frames.missed += took > kPeriod;
    frames.longest_ms = std::max(frames.longest_ms, took);
  }
  return frames;
}

wi_task* submit(wi_session* session, const std::string& text) {
  wi_task_params params{};
  params.struct_size = sizeof params;
  params.text = text.data();
  params.text_length = text.size();
  params.max_tokens = 1'000'000;
  wi_task* task = nullptr;
  must(wi_task_submit(session, &params, &task, &error));
  return task;
}

uint64_t written(wi_task* task) {
  wi_task_info info{};
  info.struct_size = sizeof info;
  must(wi_task_get_info(task, &info, &error));
  return info.answer_tokens;
}

void measure(const Options& options, int nice, const std::string& document) {
  wi_runtime_params params{};
  params.struct_size = sizeof params;
  params.nice = nice;
  params.threads = options.threads;
  wi_runtime* runtime = nullptr;
  wi_model* model = nullptr;
  must(wi_runtime_create(&params, &runtime, &error));
  must(wi_model_open(runtime, options.model.c_str(), nullptr, nullptr, &model, &error));
  for (const char* work : {"nothing", "reading", "writing", "both"}) {
    const bool reads = *work == 'r' || *work == 'b', writes = *work == 'w' || *work == 'b';
    std::vector<wi_session*> sessions;
    std::vector<wi_task*> tasks;
    const auto begin = [&](const std::string& text) {
      sessions.push_back(nullptr);
      must(wi_session_create(model, nullptr, &sessions.back(), &error));
      tasks.push_back(submit(sessions.back(), text));
    };
    if (writes) {
      begin(document.substr(0, 60'000));
      int32_t ready = 0;
      must(wi_task_wait(tasks[0], -1, &ready, &error));  // its prompt is read
    }
    if (reads) begin(document);
    const uint64_t before = writes ? written(tasks[0]) : 0;
    const double start = clock_ms(CLOCK_MONOTONIC);
    const Frames frames = draw(options, tasks);
    const double seconds = (clock_ms(CLOCK_MONOTONIC) - start) / 1e3;
    std::printf(
        "{\"bench\":\"frames\",\"beside\":\"%s\",\"nice\":%d,\"work_ms\":%g,\"frames\":%d,\"missed\":%d,"
        "\"longest_ms\":%.2f,\"written_per_second\":%.1f}\n",
        work, nice, options.work, options.frames, frames.missed, frames.longest_ms,
        writes ? static_cast<double>(written(tasks[0]) - before) / seconds : 0.0);
    std::fflush(stdout);
    for (wi_task* task : tasks) wi_task_release(task);
    for (wi_session* session : sessions) wi_session_release(session);
  }
  wi_model_release(model);
  wi_runtime_release(runtime);
}

}  // namespace

int main(int argc, char** argv) {
  wi::answer_help(argc, argv, kUsage);
  const Options options = parse(argc, argv);
  std::ifstream file(options.document, std::ios::binary);
  const std::string document{std::istreambuf_iterator<char>(file), {}};
  if (document.empty())
    return std::fprintf(stderr, "%s is empty or cannot be read\n", options.document.c_str()), 1;
  for (size_t at = 0; at < options.nice.size();) {
    measure(options, std::atoi(options.nice.c_str() + at), document);
    at = options.nice.find(',', at);
    if (at != std::string::npos) ++at;
  }
  return 0;
}
