// The host's process and threads: what the library takes of them, what it must not take over, and what it
// leaves. Threads that the system refuses and what those that it gives are like, several runtimes, a thousand of them
// one after the other, ten thousand sessions, fork(), rounding modes, locales, and the log's user data.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cfenv>
#include <chrono>
#include <csignal>
#include <dlfcn.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <libintl.h>
#include <locale>
#include <malloc.h>
#include <map>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "support/abi.h"
#include "support/folder.h"
#include "support/patience.h"

namespace {

std::atomic<int> threads_allowed{INT32_MAX};

}  // namespace

// A sanitizer's that is linked into this program, where one is: it has to see threads made.
extern "C" __attribute__((weak)) int __interceptor_pthread_create(pthread_t*, const pthread_attr_t*,
                                                                  void* (*)(void*), void*);

// Takes the C library's place in this program and all libraries under it.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                              void* argument) noexcept {
  static const auto system_create =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_allowed.fetch_sub(1) <= 0) return EAGAIN;
  if (__interceptor_pthread_create) return __interceptor_pthread_create(thread, attributes, body, argument);
  return system_create(thread, attributes, body, argument);
}

namespace {

std::atomic<bool> ring_allowed{true};
std::atomic<int> rings_refused{0};

}  // namespace

// Likewise of the library of the kernel's rings, which the build may have: without one, threads read.
extern "C" __attribute__((visibility("default"))) int io_uring_queue_init(unsigned entries, void* ring,
                                                                          unsigned flags) {
  static const auto system_init =
      reinterpret_cast<decltype(&io_uring_queue_init)>(dlsym(RTLD_NEXT, "io_uring_queue_init"));
  if (ring_allowed && system_init) return system_init(entries, ring, flags);
  ++rings_refused;
  return -ENOSYS;
}

namespace {

using namespace wi::test;

const char* const kTinyModel = WI_TEST_DATA "/fixtures/models/llama.gguf";

wi_runtime_params params_with(int32_t threads) {
  auto params = sized<wi_runtime_params>();
  params.threads = threads;
  return params;
}

int32_t threads_of(wi_runtime* runtime) {
  auto info = sized<wi_device_info>();
  assert_works(wi_runtime_device_info(runtime, &info, error));
  return info.threads;
}

// Threads of this process with such a name.
struct NamedThread {
  std::string name;
  pid_t id;
};
std::vector<NamedThread> threads_called(const char* prefix) {
  std::vector<NamedThread> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    std::getline(file, name);
    if (name.starts_with(prefix)) found.push_back({name, std::stoi(task.path().filename().string())});
  }
  return found;
}

int own_threads() { return static_cast<int>(threads_called("wi-worker-").size()); }

// They name themselves a moment after they were made.
void wait_for_own_threads(int wanted) {
  for (int i = 0; i < 5000 && own_threads() != wanted; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  assert_int_equal(own_threads(), wanted);
}

Model open_tiny_model(wi_runtime* runtime) {
  wi_model* model = nullptr;
  assert_works(wi_model_open(runtime, kTinyModel, nullptr, nullptr, &model, error));
  return {model, wi_model_release};
}

std::vector<float> logits_of(wi_model* model, size_t tokens) {
  Session session = create_session(model);
  std::vector<int32_t> ids(tokens);
  for (size_t i = 0; i < tokens; ++i) ids[i] = static_cast<int32_t>(i * 7 % 251) + 5;
  assert_works(wi_session_prefill(session.get(), ids.data(), ids.size(), nullptr, nullptr, error));
  auto event = sized<wi_event>();
  for (int i = 0; i < 3; ++i) assert_works(wi_session_decode(session.get(), nullptr, &event, error));
  uint64_t count = 0;
  std::vector<float> logits(272);
  assert_works(wi_session_logits(session.get(), nullptr, logits.data(), logits.size(), &count, error));
  return logits;
}

struct Log {
  std::atomic<int> released{0};
  std::vector<std::string> lines;
  static void write(void* user, int32_t, const char* line) {
    static_cast<Log*>(user)->lines.emplace_back(line);
  }
  static void release(void* user) { ++static_cast<Log*>(user)->released; }
};

// ---- Threads ----

void threads_that_cannot_be_made_are_missing_and_logged(void**) {
  for (int allowed : {0, 1, 2}) {
    Log log;
    wi_runtime_params params = params_with(4);
    params.log = Log::write;
    params.log_user = &log;
    threads_allowed = allowed;
    Runtime runtime = create_runtime(&params);
    const int32_t threads = threads_of(runtime.get());
    Model model = open_tiny_model(runtime.get());
    const std::vector<float> logits = logits_of(model.get(), 200);
    threads_allowed = INT32_MAX;
    assert_int_equal(threads, allowed + 1);
    assert_int_equal(log.lines.size(), 1);
    assert_non_null(std::strstr(log.lines[0].c_str(), "threads (Resource temporarily unavailable)"));
    assert_true(logits == logits_of(model.get(), 200));
  }
}

// A runtime with a folder of its own for the slow tier, and a session of which nearly everything sealed goes there: what
// reads it back are threads, made when there is something to read.
struct TwoTiers {
  explicit TwoTiers(wi_runtime_params params) {
    params.spill_folder = folder.path.c_str();
    params.bind_threads = WI_BIND_OFF;
    runtime = create_runtime(&params);
    model = open_tiny_model(runtime.get());
    policy.segment_tokens = 256;
    policy.decode_segment_tokens = 64;
    session_params.policy = &policy;
    session_params.kv_fast_share = 0.05f;
    session = create_session(model.get(), &session_params);
  }
  // The prompt's chunks, and a few tokens; any thread.
  wi_status read() {
    std::vector<int32_t> ids(1500);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 251) + 5;
    auto chunks = sized<wi_prefill_params>();
    chunks.chunk_tokens = 250;
    wi_status status = wi_session_prefill(session.get(), ids.data(), ids.size(), &chunks, nullptr, nullptr);
    auto event = sized<wi_event>();
    for (int i = 0; i < 3 && status == WI_OK; ++i)
      status = wi_session_decode(session.get(), nullptr, &event, nullptr);
    return status;
  }
  std::vector<float> logits() {
    uint64_t count = 0;
    std::vector<float> out(272);
    assert_works(wi_session_logits(session.get(), nullptr, out.data(), out.size(), &count, error));
    return out;
  }

  const Folder folder;
  wi_policy_params policy = sized<wi_policy_params>();
  wi_session_params session_params = sized<wi_session_params>();
  Runtime runtime{nullptr, wi_runtime_release};
  Model model{nullptr, wi_model_release};
  Session session{nullptr, wi_session_release};
};

void threads_of_the_slow_tier_that_are_missing_are_logged(void**) {
  Log log;
  wi_runtime_params params = params_with(1);
  ring_allowed = false;
  rings_refused = 0;
  std::vector<float> wanted;
  {
    TwoTiers undisturbed(params);
    assert_int_equal(undisturbed.read(), WI_OK);
    auto stats = sized<wi_session_stats>();
    assert_works(wi_session_get_stats(undisturbed.session.get(), &stats, error));
    assert_true(stats.slow_bytes > 0);
    wanted = undisturbed.logits();
  }
  params.log = Log::write;
  params.log_user = &log;
  threads_allowed = 0;
  {
    TwoTiers tiers(params);
    const wi_status status = tiers.read();
    threads_allowed = INT32_MAX;
    ring_allowed = true;
    assert_int_equal(status, WI_OK);
    assert_true(tiers.logits() == wanted);
  }
  const auto said = [&](const char* line) { return std::count(log.lines.begin(), log.lines.end(), line); };
  assert_int_equal(said("the system refused 1 of 1 thread wi-buffer (Resource temporarily unavailable)"), 1);
  assert_int_equal(said("the system refused 1 of 1 thread wi-ahead (Resource temporarily unavailable)"), 1);
  const auto readers = said("the system refused 16 of 16 threads wi-read (Resource temporarily unavailable)");
  // A library that has the rings' own inside is not to be kept from them.
  if (rings_refused > 0) assert_int_equal(readers, 1);
  assert_int_equal(log.lines.size(), 2 + readers);
}

// In a child; the exit status says what was found.
template <class Body>
int in_a_child(Body&& body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(patience(60));
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) std::printf("the child: %s\n", strsignal(WTERMSIG(status)));
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void a_limit_of_processes_is_survived(void**) {
  const int threads = in_a_child([] {
    const rlimit none{0, 0};
    constexpr uid_t kNobody = 65534;
    if (setrlimit(RLIMIT_NPROC, &none) != 0 || (getuid() == 0 && setuid(kNobody) != 0)) return 100;
    const wi_runtime_params params = params_with(4);
    wi_runtime* runtime = nullptr;
    wi_model* model = nullptr;
    if (wi_runtime_create(&params, &runtime, nullptr) != WI_OK) return 101;
    auto info = sized<wi_device_info>();
    if (wi_runtime_device_info(runtime, &info, nullptr) != WI_OK) return 102;
    // Somebody who may not even read the file has shown what there is to show.
    if (wi_model_open(runtime, kTinyModel, nullptr, nullptr, &model, nullptr) == WI_OK) logits_of(model, 100);
    return info.threads;
  });
  if (threads == 100) {
    std::printf("skipped: this system lets no limit be set\n");
    skip();
  }
  assert_int_equal(threads, 1);
}

void each_runtime_has_the_threads_it_asked_for(void**) {
  const std::string path = (std::filesystem::temp_directory_path() / "wi-stderr-XXXXXX").string();
  std::vector<char> name(path.begin(), path.end());
  name.push_back('\0');
  const int file = mkstemp(name.data()), before = dup(STDERR_FILENO);
  assert_true(file >= 0 && before >= 0);
  std::fflush(stderr);
  dup2(file, STDERR_FILENO);
  {
    const wi_runtime_params few = params_with(2), many = params_with(7);
    Runtime first = create_runtime(&few), second = create_runtime(&many);
    const Model on_first = open_tiny_model(first.get()), on_second = open_tiny_model(second.get());
    wait_for_own_threads(1 + 6);
    assert_int_equal(threads_of(first.get()), 2);
    assert_int_equal(threads_of(second.get()), 7);
    assert_true(logits_of(on_first.get(), 200) == logits_of(on_second.get(), 200));
  }
  assert_int_equal(own_threads(), 0);
  std::fflush(stderr);
  dup2(before, STDERR_FILENO);
  close(before);
  assert_int_equal(lseek(file, 0, SEEK_END), 0);  // nothing was said
  close(file);
  unlink(name.data());
}

// A cache with helpers at work, so that their scratch and what libraries keep for each thread counts too.
void use_a_runtime_once() {
  const wi_runtime_params params = params_with(3);
  Runtime runtime = create_runtime(&params);
  auto kv_params = sized<wi_kv_params>();
  kv_params.layers = 1;
  kv_params.query_heads = 8;
  kv_params.kv_heads = 4;
  kv_params.head_dim = 16;
  wi_kv* kv = nullptr;
  assert_works(wi_kv_create(runtime.get(), &kv_params, &kv, error));
  const std::vector<float> rows(64 * 4 * 16, 0.25f), query(8 * 16, 0.5f);
  std::vector<float> out(8 * 16);
  assert_works(wi_kv_append(kv, 0, 64, rows.data(), rows.data(), error));
  assert_works(wi_kv_attend(kv, 0, 1, query.data(), nullptr, out.data(), nullptr, error));
  auto stats = sized<wi_session_stats>();
  assert_works(wi_kv_get_stats(kv, &stats, error));
  assert_true(stats.decode_steps == 1 && stats.decode_ns >= stats.attend_ns && stats.attend_ns > 0);
  wi_kv_release(kv);
}

[[maybe_unused]] int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Once for what stays: pools, workspaces, the log's buffers. A hundred bytes for each of the runs would show; resident
// memory may settle by a few pages of the allocators' own.
template <class Run>
void leaves_no_trace(const char* what, int runs, Run&& run) {
#ifdef WI_SANITIZED
  (void)runs, (void)run;
  std::printf("%s: skipped, the sanitizer keeps what is freed\n", what);
#else
  for (int i = 0; i < runs / 10; ++i) run();
  const auto heap_before = static_cast<int64_t>(mallinfo2().uordblks);
  const int64_t resident_before = resident_bytes();
  for (int i = 0; i < runs; ++i) run();
  const int64_t heap = static_cast<int64_t>(mallinfo2().uordblks) - heap_before;
  const int64_t resident = resident_bytes() - resident_before;
  std::printf("%d %s: heap %lld bytes, resident %lld bytes\n", runs, what, static_cast<long long>(heap),
              static_cast<long long>(resident));
  assert_true(heap < runs * 100);
  assert_true(resident < (4 << 20));
#endif
}

void runtimes_come_and_go_without_a_trace(void**) { leaves_no_trace("runtimes", 1000, use_a_runtime_once); }

void sessions_come_and_go_without_a_trace(void**) {
  const auto runtime_params = params_with(2);
  const Runtime runtime = create_runtime(&runtime_params);
  const Model model = open_tiny_model(runtime.get());
  const wi_text stop{"never", 5};
  auto sampling = sized<wi_sampling_params>();
  sampling.stops = &stop;
  sampling.stop_count = 1;
  auto params = sized<wi_session_params>();
  params.sampling = &sampling;
  leaves_no_trace("sessions", 10000, [&] {
    const Session session = create_session(model.get(), &params);
    const int32_t tokens[] = {1, 2, 3, 4}, none[] = {-1};
    auto event = sized<wi_event>();
    assert_works(wi_session_prefill(session.get(), tokens, 4, nullptr, nullptr, error));
    assert_works(wi_session_decode(session.get(), nullptr, &event, error));
    assert_fails(WI_E_ARGUMENT, "-1", wi_session_prefill(session.get(), none, 1, nullptr, nullptr, error));
    const Session copy = fork(session.get());
  });
}

// ---- fork() ----

struct Everything {
  wi_runtime* runtime;
  wi_model* model;
  wi_session* session;
  wi_cancel* cancel;
};

// What a child may do with its parent's handles: be told so, and let them go.
int use_in_a_child(const Everything& parents) {
  auto error = sized<wi_error>();
  auto event = sized<wi_event>();
  auto info = sized<wi_device_info>();
  auto model_info = sized<wi_model_info>();
  wi_session* session = nullptr;
  const auto refused = [&](wi_status status) {
    return status == WI_E_STATE && std::strstr(error.message, "before fork()");
  };
  if (!refused(wi_runtime_device_info(parents.runtime, &info, &error))) return 1;
  if (!refused(wi_model_get_info(parents.model, &model_info, &error))) return 2;
  if (!refused(wi_session_create(parents.model, nullptr, &session, &error))) return 3;
  if (!refused(wi_session_decode(parents.session, nullptr, &event, &error))) return 4;
  if (!refused(wi_batch_decode(&parents.session, 1, nullptr, &event, &error))) return 5;
  wi_session_release(wi_session_retain(parents.session));
  wi_session_release(parents.session);
  wi_model_release(parents.model);
  wi_cancel_trigger(parents.cancel);
  wi_cancel_release(parents.cancel);
  wi_runtime_release(parents.runtime);

  const wi_runtime_params params = params_with(2);
  wi_runtime* runtime = nullptr;
  wi_model* model = nullptr;
  if (wi_runtime_create(&params, &runtime, &error) != WI_OK) return 6;
  if (wi_model_open(runtime, kTinyModel, nullptr, nullptr, &model, &error) != WI_OK) return 7;
  if (wi_session_create(model, nullptr, &session, &error) != WI_OK) return 8;
  const int32_t tokens[] = {5, 6, 7, 8, 9, 10, 11, 12};
  if (!refused(wi_session_prefill(session, tokens, 8, nullptr, parents.cancel, &error))) return 9;
  if (wi_session_prefill(session, tokens, 8, nullptr, nullptr, &error) != WI_OK) return 10;
  if (wi_session_decode(session, nullptr, &event, &error) != WI_OK) return 11;
  wi_session_release(session);
  wi_model_release(model);
  wi_runtime_release(runtime);
  return 0;
}

#ifdef WI_THREAD_SANITIZED
constexpr bool kThreadSanitized = true;
#else
constexpr bool kThreadSanitized = false;
#endif

void a_child_is_told_that_handles_are_its_parents_and_makes_its_own(void**) {
  if (kThreadSanitized) {
    std::puts("skipped: this sanitizer ends a child that makes threads");
    return;
  }
  const wi_runtime_params params = params_with(2);
  Runtime runtime = create_runtime(&params);
  Model model = open_tiny_model(runtime.get());
  Session session = create_session(model.get());
  Cancel cancel = create_cancel();
  const int32_t token = 5;
  assert_works(wi_session_prefill(session.get(), &token, 1, nullptr, nullptr, error));
  const Everything parents{runtime.get(), model.get(), session.get(), cancel.get()};
  // Another thread is in calls of all kinds at the instant of the fork. Not where a sanitizer has the
  // allocator: it does not prepare for fork(), and the child waits for a lock that nobody has any more.
#ifdef WI_SANITIZED
  std::atomic<bool> stop{true};
#else
  std::atomic<bool> stop{false};
#endif
  std::thread busy([&] {
    while (!stop) logits_of(model.get(), 50 + static_cast<size_t>(std::rand() % 50));
  });
  auto event = sized<wi_event>();
  for (int i = 0; i < 60; ++i) {
    assert_works(wi_session_decode(session.get(), nullptr, &event, error));
    assert_int_equal(in_a_child([&] { return use_in_a_child(parents); }), 0);
  }
  stop = true;
  busy.join();
  assert_works(wi_session_decode(session.get(), nullptr, &event, error));  // the parent goes on
}

// ---- exit() ----

// A host's static object: it goes after whatever was made later, with the engine at work.
struct StaticOfHost {
  std::array<wi_task*, 150> tasks{};
  wi_model* model = nullptr;
  wi_runtime* runtime = nullptr;
  ~StaticOfHost() {
    for (wi_task* task : tasks) wi_task_release(task);
    wi_model_release(model);
    wi_runtime_release(runtime);
    usleep(50'000);
  }
};

bool ends_amid_work = false;

}  // namespace

// Asked by a sanitizer before it looks for leaks: what threads hold that were cut off is none.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() { return ends_amid_work; }

namespace {

// Of a host that waits for nothing. Prompts of many lengths, for each of which products are made anew.
[[noreturn]] void end_amid_tasks(useconds_t after, bool release_before) {
  ends_amid_work = true;
  static StaticOfHost last;
  const wi_runtime_params params = params_with(2);
  wi_runtime* runtime = nullptr;
  wi_model* model = nullptr;
  if (wi_runtime_create(&params, &runtime, nullptr) != WI_OK) _exit(1);
  const char* const path = WI_SOURCE_DIR "/samples/model/needle-f16.gguf";
  if (wi_model_open(runtime, path, nullptr, nullptr, &model, nullptr) != WI_OK) _exit(2);
  static std::array<wi_task*, 150> tasks;  // let go of by the end of the process
  static std::array<int32_t, 1200> ids;
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 200) + 5;
  for (size_t i = 0; i < tasks.size(); ++i) {
    wi_session* session = nullptr;
    if (wi_session_create(model, nullptr, &session, nullptr) != WI_OK) _exit(3);
    auto task = sized<wi_task_params>();
    task.tokens = ids.data();
    task.token_count = 130 + 7 * i;
    task.max_tokens = 1;
    if (wi_task_submit(session, &task, &tasks[i], nullptr) != WI_OK) _exit(4);
    wi_session_release(session);
  }
  usleep(after);
  if (release_before) {
    wi_model_release(model);
    wi_runtime_release(runtime);
  } else {
    last.tasks = tasks;
    last.model = model;
    last.runtime = runtime;
  }
  std::exit(0);
}

void a_process_may_end_while_its_engine_works(void**) {
  if (kThreadSanitized) {
    std::puts("skipped: this sanitizer ends a child that makes threads");
    return;
  }
  for (useconds_t round = 0; round < 16; ++round)
    assert_int_equal(in_a_child([&]() -> int { end_amid_tasks(500 + 3000 * round, round % 2 == 0); }), 0);
}

// ---- Floating point ----

void set_flush_to_zero(bool on) {
#if defined(__SSE2__)
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  const unsigned others = _mm_getcsr() & ~(kFlushToZero | kDenormalsAreZero);
  _mm_setcsr(on ? others | kFlushToZero | kDenormalsAreZero : others);
#else
  static_cast<void>(on);
#endif
}

// Attention over values that are denormal: zeros, where those are flushed.
std::vector<float> attend_to_denormals(wi_runtime* runtime) {
  auto params = sized<wi_kv_params>();
  params.layers = 1;
  params.query_heads = 4;
  params.kv_heads = 4;
  params.head_dim = 16;
  params.kv_type = WI_KV_F32;
  wi_kv* kv = nullptr;
  assert_works(wi_kv_create(runtime, &params, &kv, error));
  const std::vector<float> keys(64 * 4 * 16, 0.25f), values(64 * 4 * 16, 1e-40f), query(4 * 16, 0.5f);
  std::vector<float> out(4 * 16);
  assert_works(wi_kv_append(kv, 0, 64, keys.data(), values.data(), error));
  assert_works(wi_kv_attend(kv, 0, 1, query.data(), nullptr, out.data(), nullptr, error));
  wi_kv_release(kv);
  return out;
}

void the_hosts_rounding_and_denormals_do_not_reach_results(void**) {
  for (int32_t threads : {1, 2}) {
    const wi_runtime_params params = params_with(threads);
    Runtime runtime = create_runtime(&params);
    Model model = open_tiny_model(runtime.get());
    const std::vector<float> wanted = logits_of(model.get(), 300), small = attend_to_denormals(runtime.get());
    assert_true(small[0] > 0);
    for (int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO, FE_TONEAREST}) {
      // A runtime's threads must not inherit it either.
      std::fesetround(rounding);
      set_flush_to_zero(true);
      std::feclearexcept(FE_ALL_EXCEPT);
      Runtime inheriting = create_runtime(&params);
      Model on_it = open_tiny_model(inheriting.get());
      const std::vector<float> got = logits_of(model.get(), 300), also = logits_of(on_it.get(), 300);
      const std::vector<float> got_small = attend_to_denormals(inheriting.get());
      const int rounding_after = std::fegetround();
#if defined(__SSE2__)
      const bool still_flushes = (_mm_getcsr() & 0x8040) == 0x8040;
#else
      const bool still_flushes = true;
#endif
      const int raised = std::fetestexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
      set_flush_to_zero(false);
      std::fesetround(FE_TONEAREST);
      assert_true(std::memcmp(got.data(), wanted.data(), wanted.size() * sizeof(float)) == 0);
      assert_true(std::memcmp(also.data(), wanted.data(), wanted.size() * sizeof(float)) == 0);
      assert_true(std::memcmp(got_small.data(), small.data(), small.size() * sizeof(float)) == 0);
      assert_int_equal(rounding_after, rounding);
      assert_true(still_flushes);
      assert_int_equal(raised, 0);
    }
  }
}

// A callback that leaves the thread so, as a game's own code might.
void disturb(void* user) {
  if (!*static_cast<const bool*>(user)) return;
  std::fesetround(FE_UPWARD);
  set_flush_to_zero(true);
}

// Everything that a model says of a prompt and its answer while callbacks of all kinds come and go.
std::vector<float> told_through_callbacks(bool disturbed) {
  std::vector<float> all;
  void* const user = &disturbed;
  auto params = params_with(1);
  params.log = [](void* of, int32_t, const char*) { disturb(of); };
  params.log_user = user;
  params.log_level = WI_LOG_DEBUG;
  const Runtime runtime = create_runtime(&params);
  const Model model = open_tiny_model(runtime.get());
  std::vector<int32_t> ids(600);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 251) + 5;
  auto chunks = sized<wi_prefill_params>();
  chunks.chunk_tokens = 100;
  chunks.progress = [](void* of, uint64_t, uint64_t) { return disturb(of), 0; };
  chunks.progress_user = user;
  auto sampling = sized<wi_sampling_params>();
  sampling.repetition_penalty = 1.1f;
  sampling.top_logprobs = 5;
  sampling.logits_callback = [](void* of, float*, uint64_t) { return disturb(of), 0; };
  sampling.logits_user = user;
  auto session_params = sized<wi_session_params>();
  session_params.sampling = &sampling;
  const auto add_event = [&](const wi_event& event) {
    all.push_back(static_cast<float>(event.token));
    all.push_back(event.logprob);
    for (uint64_t i = 0; i < event.top_count; ++i) all.push_back(event.top[i].logprob);
  };
  const auto add_logits = [&](wi_session* session) {
    std::vector<float> logits(272);
    uint64_t count = 0;
    assert_works(wi_session_logits(session, nullptr, logits.data(), logits.size(), &count, error));
    all.insert(all.end(), logits.begin(), logits.end());
  };
  auto event = sized<wi_event>();

  const Session session = create_session(model.get(), &session_params);
  assert_works(wi_session_prefill(session.get(), ids.data(), ids.size(), &chunks, nullptr, error));
  add_logits(session.get());
  for (int i = 0; i < 10; ++i) {
    assert_works(wi_session_decode(session.get(), nullptr, &event, error));
    add_event(event);
  }
  add_logits(session.get());

  const Session with_task = create_session(model.get(), &session_params);
  auto work = sized<wi_task_params>();
  work.tokens = ids.data();
  work.token_count = ids.size();
  work.max_tokens = 20;
  work.notify = disturb;
  work.notify_user = user;
  wi_task* task = nullptr;
  assert_works(wi_task_submit(with_task.get(), &work, &task, error));
  for (event.kind = WI_EVENT_TOKEN; event.kind == WI_EVENT_TOKEN;) {
    int32_t ready = 0;
    uint64_t count = 0;
    assert_works(wi_task_wait(task, -1, &ready, error));
    assert_works(wi_task_poll(task, &event, 1, &count, error));
    if (count > 0) add_event(event);
    if (count == 0) event.kind = WI_EVENT_TOKEN;
  }
  wi_task_release(task);
  add_logits(with_task.get());
  return all;
}

void what_callbacks_do_to_rounding_and_denormals_does_not_either(void**) {
  const std::vector<float> wanted = told_through_callbacks(false), got = told_through_callbacks(true);
  assert_int_equal(std::fegetround(), FE_TONEAREST);
  assert_int_equal(got.size(), wanted.size());
  assert_true(std::memcmp(got.data(), wanted.data(), wanted.size() * sizeof(float)) == 0);
}

// ---- Locale ----

// As in German: thousands in groups, a comma before the fraction.
struct GroupedNumbers : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

void numbers_in_messages_and_files_know_no_locale(void**) {
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new GroupedNumbers));
  const char* c_locale = std::setlocale(LC_NUMERIC, "de_DE.UTF-8");
  std::printf("LC_NUMERIC: %s\n", c_locale ? c_locale : "de_DE is not installed; the C++ locale alone");
  wi_runtime_params params = params_with(123456789);
  wi_runtime* none = nullptr;
  assert_fails(WI_E_ARGUMENT, "threads is 123456789, must be in [0, 1024]",
               wi_runtime_create(&params, &none, error));
  params = params_with(1);
  Runtime runtime = create_runtime(&params);
  wi_model* folder = nullptr;  // its configuration has numbers with fractions
  assert_works(
      wi_model_open(runtime.get(), WI_TEST_DATA "/fixtures/models/qwen2", nullptr, nullptr, &folder, error));
  Model model{folder, wi_model_release};
  const std::vector<float> logits = logits_of(model.get(), 100);
  auto sampling = sized<wi_sampling_params>();
  sampling.temperature = -1.5f;
  auto session_params = sized<wi_session_params>();
  session_params.sampling = &sampling;
  wi_session* session = nullptr;
  assert_fails(WI_E_ARGUMENT, "temperature is -1.5, must",
               wi_session_create(model.get(), &session_params, &session, error));
  std::setlocale(LC_NUMERIC, "C");
  std::locale::global(before);
  Runtime plain_runtime = create_runtime(&params);
  assert_works(wi_model_open(plain_runtime.get(), WI_TEST_DATA "/fixtures/models/qwen2", nullptr, nullptr,
                             &folder, error));
  Model plain{folder, wi_model_release};
  assert_true(logits == logits_of(plain.get(), 100));
}

// A catalogue of translations (.mo), as msgfmt writes it: in order of what is translated.
std::string catalogue(const std::map<std::string, std::string>& translations) {
  const auto words = static_cast<uint32_t>(translations.size());
  constexpr uint32_t kHeader = 28;
  std::string from, to, strings;
  const auto add = [&](std::string& table, const std::string& text) {
    const uint32_t entry[] = {static_cast<uint32_t>(text.size()),
                              static_cast<uint32_t>(kHeader + 16 * words + strings.size())};
    table.append(reinterpret_cast<const char*>(entry), sizeof entry);
    strings += text + '\0';
  };
  for (const auto& [text, translation] : translations) {
    add(from, text);
    add(to, translation);
  }
  const uint32_t header[] = {0x950412de, 0, words, kHeader, kHeader + 8 * words, 0, kHeader + 16 * words};
  return std::string(reinterpret_cast<const char*>(header), sizeof header) + from + to + strings;
}

void the_systems_words_in_messages_are_not_translated(void**) {
  const Folder folder;
  std::filesystem::create_directories(folder.path + "/xx/LC_MESSAGES");
  spill(folder.path + "/xx/LC_MESSAGES/libc.mo",
        catalogue({{"", "Content-Type: text/plain; charset=UTF-8\n"},
                   {"No such file or directory", "translated words"},
                   {"cannot open shared object file", "translated words"}}));
  const std::string catalogues = bindtextdomain("libc", nullptr);
  setenv("LANGUAGE", "xx", 1);
  const bool has_locale = std::setlocale(LC_ALL, "C.UTF-8");
  bindtextdomain("libc", folder.path.c_str());
  const bool translates = has_locale && std::strcmp(std::strerror(ENOENT), "translated words") == 0;
  auto params = params_with(1);
  const Runtime runtime = create_runtime(&params);
  wi_model* model = nullptr;
  wi_runtime* on_device = nullptr;
  wi_error no_file = sized<wi_error>(), no_device = sized<wi_error>();
  const wi_status opened =
      wi_model_open(runtime.get(), "/nowhere/model.gguf", nullptr, nullptr, &model, &no_file);
  params.device = "cuda";  // which says why its library does not load, where that is so
  wi_runtime_create(&params, &on_device, &no_device);
  wi_runtime_release(on_device);
  std::setlocale(LC_ALL, "C");
  unsetenv("LANGUAGE");
  bindtextdomain("libc", catalogues.c_str());
  if (!translates) {
    std::printf("skipped: there is no locale in which this C library translates\n");
    skip();
  }
  assert_int_equal(opened, WI_E_IO);
  assert_non_null(std::strstr(no_file.message, "No such file or directory"));
  std::printf("%s\n", no_device.message);
  assert_null(std::strstr(no_device.message, "translated words"));
}

// ---- The log ----

void the_logs_user_data_is_released_once_when_nothing_can_log(void**) {
  Log log;
  wi_runtime_params params = params_with(2);
  params.log = Log::write;
  params.log_level = WI_LOG_INFO;
  params.log_user = &log;
  params.log_release = Log::release;
  Runtime runtime = create_runtime(&params);
  assert_true(!log.lines.empty());
  Model model = open_tiny_model(runtime.get());
  Session session = create_session(model.get());
  runtime.reset();
  model.reset();
  assert_int_equal(log.released, 0);  // the session may still log
  std::thread([&] { session.reset(); }).join();
  assert_int_equal(log.released, 1);
  params.threads = -1;
  wi_runtime* none = nullptr;
  assert_fails(WI_E_ARGUMENT, "threads is -1", wi_runtime_create(&params, &none, error));
  assert_int_equal(log.released, 1);  // of what was not made the host keeps it
}

void the_librarys_threads_are_as_nice_as_asked_and_the_hosts_keep_theirs(void**) {
  errno = 0;
  const int own = getpriority(PRIO_PROCESS, 0);
  wi_runtime_params params = params_with(3);
  params.nice = 7;
  Runtime runtime = create_runtime(&params);
  wait_for_own_threads(2);
  Model model = open_tiny_model(runtime.get());
  logits_of(model.get(), 100);
  for (const NamedThread& thread : threads_called("wi-worker-")) {
    int priority = 0;  // a thread names itself before it steps back
    for (int i = 0; i < 1000 && (priority = getpriority(PRIO_PROCESS, static_cast<id_t>(thread.id))) == own;
         ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    assert_int_equal(priority, std::min(own + 7, 19));
  }
  assert_int_equal(getpriority(PRIO_PROCESS, 0), own);
}

// What the system lets a thread have of its own.
struct Standing {
  cpu_set_t cpus;
  int nice, policy;
  static Standing of(pid_t thread) {
    Standing standing;
    CPU_ZERO(&standing.cpus);
    sched_getaffinity(thread, sizeof standing.cpus, &standing.cpus);
    standing.nice = getpriority(PRIO_PROCESS, static_cast<id_t>(thread));
    standing.policy = sched_getscheduler(thread);
    return standing;
  }
  bool operator==(const Standing& other) const {
    return CPU_EQUAL(&cpus, &other.cpus) && nice == other.nice && policy == other.policy;
  }
};

// Without a right to it, who has stood back stays there.
bool may_step_forward() {
  bool may = false;
  std::thread([&] {
    const int own = getpriority(PRIO_PROCESS, 0);
    may = setpriority(PRIO_PROCESS, 0, own + 1) == 0 && setpriority(PRIO_PROCESS, 0, own) == 0;
  }).join();
  return may;
}

// A host's thread that it keeps to one CPU and has stand back is the first to need the engine and the slow tier's
// threads.
void the_librarys_threads_are_like_their_runtimes_maker_whoever_starts_them(void**) {
  Standing wanted = Standing::of(0);
  wi_runtime_params params = params_with(3);
  params.nice = 2;
  wanted.nice = std::min(wanted.nice + 2, 19);
  ring_allowed = false;
  rings_refused = 0;
  TwoTiers tiers(params);
  const bool stands_back = may_step_forward();
  if (!stands_back) std::printf("not nicer: this user may not step forward again\n");
  Session other = create_session(tiers.model.get());
  wi_status status = WI_E_INTERNAL;
  wi_task* task = nullptr;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
      if (CPU_ISSET(cpu, &wanted.cpus)) CPU_SET(cpu, &one);
    const sched_param none{};
    if (sched_setaffinity(0, sizeof one, &one) != 0 || sched_setscheduler(0, SCHED_BATCH, &none) != 0) return;
    if (stands_back) setpriority(PRIO_PROCESS, 0, 15);
    status = tiers.read();
    const int32_t tokens[] = {5, 6, 7};
    auto work = sized<wi_task_params>();
    work.tokens = tokens;
    work.token_count = 3;
    work.max_tokens = 2;
    if (status == WI_OK) status = wi_task_submit(other.get(), &work, &task, nullptr);
    int32_t ready = 0;
    if (status == WI_OK) status = wi_task_wait(task, -1, &ready, nullptr);
  }).join();
  ring_allowed = true;
  assert_int_equal(status, WI_OK);
  std::vector<std::string> names = {"wi-worker-1", "wi-worker-2", "wi-buffer", "wi-ahead", "wi-engine"};
  if (rings_refused > 0) names.push_back("wi-read");
  for (const NamedThread& thread : threads_called("wi-")) {
    for (int i = 0; i < 1000 && !(Standing::of(thread.id) == wanted); ++i)  // it has its name first
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const Standing got = Standing::of(thread.id);
    if (!(got == wanted))
      std::printf("%s: %d CPUs, nice %d, policy %d\n", thread.name.c_str(), CPU_COUNT(&got.cpus), got.nice,
                  got.policy);
    assert_true(got == wanted);
    std::erase(names, thread.name);
  }
  for (const std::string& name : names) std::printf("there is no %s\n", name.c_str());
  assert_true(names.empty());
  wi_task_release(task);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      // First: its children are to use the library by themselves.
      cmocka_unit_test(a_process_may_end_while_its_engine_works),
      cmocka_unit_test(threads_that_cannot_be_made_are_missing_and_logged),
      cmocka_unit_test(threads_of_the_slow_tier_that_are_missing_are_logged),
      cmocka_unit_test(a_limit_of_processes_is_survived),
      cmocka_unit_test(each_runtime_has_the_threads_it_asked_for),
      cmocka_unit_test(runtimes_come_and_go_without_a_trace),
      cmocka_unit_test(sessions_come_and_go_without_a_trace),
      cmocka_unit_test(a_child_is_told_that_handles_are_its_parents_and_makes_its_own),
      cmocka_unit_test(the_hosts_rounding_and_denormals_do_not_reach_results),
      cmocka_unit_test(what_callbacks_do_to_rounding_and_denormals_does_not_either),
      cmocka_unit_test(numbers_in_messages_and_files_know_no_locale),
      cmocka_unit_test(the_systems_words_in_messages_are_not_translated),
      cmocka_unit_test(the_logs_user_data_is_released_once_when_nothing_can_log),
      cmocka_unit_test(the_librarys_threads_are_as_nice_as_asked_and_the_hosts_keep_theirs),
      cmocka_unit_test(the_librarys_threads_are_like_their_runtimes_maker_whoever_starts_them),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
