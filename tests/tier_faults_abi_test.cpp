// Two tiers as a host sees them when things go wrong: processes that are killed, disks and budgets that are too
// small. What was saved is there, nothing else is left, and every call is a status or gives the same tokens.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <functional>
#include <random>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/abi.h"
#include "support/folder.h"
#include "support/patience.h"

using namespace wi::test;

namespace {

constexpr char kTinyModel[] = WI_TEST_DATA "/fixtures/models/llama.gguf";
constexpr size_t kPrompt = 400, kMostTokens = 1200, kStep = 10;

#ifdef WI_THREAD_SANITIZED
constexpr bool kThreadSanitized = true;
#else
constexpr bool kThreadSanitized = false;
#endif

#if defined(WI_SANITIZED) || defined(WI_EMULATED)
constexpr int kRounds = 10;
#else
constexpr int kRounds = 40;
#endif

std::mt19937_64 random_numbers([] {
  const char* text = std::getenv("WI_TEST_SEED");
  const uint64_t seed = text ? std::strtoull(text, nullptr, 10) : std::random_device()();
  std::printf("seed %llu (WI_TEST_SEED)\n", static_cast<unsigned long long>(seed));
  return seed;
}());

const std::vector<int32_t> kIds = [] {
  std::vector<int32_t> ids(kPrompt);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 251) + 5;
  return ids;
}();

// Small segments, of which next to nothing stays in memory.
wi_session_params session_params(float fast_share) {
  static const wi_policy_params policy = [] {
    auto p = sized<wi_policy_params>();
    p.segment_tokens = 256;
    p.decode_segment_tokens = 64;
    p.local_window = 32;
    return p;
  }();
  static const wi_sampling_params sampling = [] {
    auto p = sized<wi_sampling_params>();
    p.temperature = 1.2f;
    p.seed = 5;
    return p;
  }();
  auto params = sized<wi_session_params>();
  params.policy = &policy;
  params.sampling = &sampling;
  params.prefix_reuse = WI_PREFIX_REUSE_OFF;
  params.kv_fast_share = fast_share;
  return params;
}

// Of a process: a runtime with a model, and a slow tier if there is a folder for it.
struct World {
  explicit World(const char* spill_folder, uint64_t kv_budget_bytes = 0, uint64_t spill_bytes = 0) {
    auto params = sized<wi_runtime_params>();
    params.threads = 2;
    params.spill_folder = spill_folder;
    params.kv_budget_bytes = kv_budget_bytes;
    params.spill_bytes = spill_bytes;
    runtime = create_runtime(&params);
    wi_model* opened = nullptr;
    assert_works(wi_model_open(runtime.get(), kTinyModel, nullptr, nullptr, &opened, error));
    model.reset(opened);
  }
  Session session(float fast_share, uint64_t kv_budget_bytes = 0) const {
    wi_session_params params = session_params(fast_share);
    params.kv_budget_bytes = kv_budget_bytes;
    return create_session(model.get(), &params);
  }
  Runtime runtime{nullptr, wi_runtime_release};
  Model model{nullptr, wi_model_release};
};

std::vector<int32_t> tokens_of(wi_session* session) {
  std::vector<int32_t> tokens(4 * kMostTokens);
  uint64_t count = 0;
  assert_works(wi_session_tokens(session, tokens.data(), tokens.size(), &count, error));
  tokens.resize(count);
  return tokens;
}
void read_prompt(wi_session* session) {
  assert_works(wi_session_prefill(session, kIds.data(), kIds.size(), nullptr, nullptr, error));
}
void decode(wi_session* session, size_t steps) {
  auto event = sized<wi_event>();
  for (size_t i = 0; i < steps; ++i) assert_works(wi_session_decode(session, nullptr, &event, error));
}

// ---- Processes that are killed ----

pid_t start_child(const std::function<void()>& body) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) std::signal(fault, SIG_DFL);
    alarm(patience(60));
    body();
    std::fflush(stdout);
    _exit(0);
  }
  assert_true(child > 0);
  return child;
}
// 0: all was well; else an exit status or, negative, a signal.
int end_of(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}
int in_a_child(const std::function<void()>& body, useconds_t killed_after = 0) {
  const pid_t child = start_child(body);
  if (killed_after) {
    usleep(killed_after);
    kill(child, SIGKILL);
  }
  return end_of(child);
}
bool children_may_make_threads() {
  if (kThreadSanitized) std::puts("skipped: this sanitizer ends a child that makes threads");
  return !kThreadSanitized;
}

// What processes know of each other.
struct Shared {
  std::array<int32_t, kMostTokens> tokens;  // of an undisturbed session
  volatile uint64_t saved, saving;  // tokens in the session that was saved last, and in the one after it
};

// Goes on with what was saved, and saves now and then, until somebody ends it.
void decode_and_save(Shared& shared, const char* spill_folder, const std::string& path) {
  const World world(spill_folder);
  wi_session_params params = session_params(0.05f);
  params.sampling = nullptr;  // goes on as it was saved
  Session session{nullptr, wi_session_release};
  for (;;) {
    wi_session* loaded = nullptr;
    if (access(path.c_str(), F_OK) == 0)
      assert_works(wi_session_load(world.model.get(), path.c_str(), &params, nullptr, &loaded, error));
    session.reset(loaded);
    // Not what the last process noted: it may have been ended between a save and its note.
    shared.saved = session ? tokens_of(session.get()).size() : 0;
    shared.saving = shared.saved;
    if (!session) {
      session = world.session(0.05f);
      read_prompt(session.get());
    }
    for (size_t tokens = tokens_of(session.get()).size(); tokens + kStep <= kMostTokens - kStep;
         tokens += kStep) {
      decode(session.get(), kStep);
      shared.saving = tokens + kStep;
      assert_works(wi_session_save(session.get(), path.c_str(), nullptr, error));
      shared.saved = tokens + kStep;
    }
    unlink(path.c_str());
  }
}

// What is there loads, is the last one or the one that was being saved, and goes on as if nothing had happened.
void check_saved(const Shared& shared, const std::string& path) {
  const World world(nullptr);
  wi_session* loaded = nullptr;
  assert_works(wi_session_load(world.model.get(), path.c_str(), nullptr, nullptr, &loaded, error));
  const Session session{loaded, wi_session_release};
  const size_t count = tokens_of(loaded).size();
  assert_true(count == shared.saved || count == shared.saving);
  decode(loaded, kStep);
  const std::vector<int32_t> tokens = tokens_of(loaded);
  assert_int_equal(tokens.size(), count + kStep);
  assert_memory_equal(tokens.data(), shared.tokens.data(), tokens.size() * sizeof(int32_t));
}

void a_killed_process_leaves_what_it_saved_and_nothing_else(void**) {
  if (!children_may_make_threads()) return;
  auto* const shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  assert_true(shared != MAP_FAILED);
  const auto start = std::chrono::steady_clock::now();
  const int reference = in_a_child([&] {
    const World world(nullptr);
    const Session session = world.session(0);
    read_prompt(session.get());
    decode(session.get(), kMostTokens - kPrompt);
    const std::vector<int32_t> tokens = tokens_of(session.get());
    std::copy(tokens.begin(), tokens.end(), shared->tokens.begin());
  });
  assert_int_equal(reference, 0);
  const std::chrono::microseconds time = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - start);  // of more than a first save takes

  const Folder spilled, saved;
  const std::string path = saved.file("saved");
  std::uniform_int_distribution<useconds_t> moment(
      1000, std::max<useconds_t>(90000, static_cast<useconds_t>(time.count())));
  int loadable = 0;
  for (int round = 0; round < kRounds; ++round) {
    const useconds_t after = moment(random_numbers);
    assert_int_equal(in_a_child([&] { decode_and_save(*shared, spilled.path.c_str(), path); }, after),
                     -SIGKILL);
    assert_int_equal(spilled.entries(), 0);
    // A save that was killed between its two names leaves one, which the next save removes.
    assert_true(saved.entries() <= 2);
    if (access(path.c_str(), F_OK) != 0) continue;
    ++loadable;
    assert_int_equal(in_a_child([&] { check_saved(*shared, path); }), 0);
  }
  std::printf("  %d of %d had saved; the last one had %llu tokens\n", loadable, kRounds,
              static_cast<unsigned long long>(shared->saved));
  assert_true(loadable > 0);
  munmap(shared, sizeof(Shared));
}

// ---- Processes that share a file ----

// What a session says from here on, to the bit.
std::string logits_of_steps(wi_session* session) {
  uint64_t vocab = 0;
  assert_works(wi_session_logits(session, nullptr, nullptr, 0, &vocab, error));
  std::string all, logits(vocab * sizeof(float), 0);
  for (int i = 0; i < 30; ++i) {
    decode(session, 1);
    assert_works(
        wi_session_logits(session, nullptr, reinterpret_cast<float*>(logits.data()), vocab, &vocab, error));
    all += logits;
  }
  return all;
}

// Each reads it in place, with frames of its own; none writes to it.
void processes_share_a_saved_file(void**) {
  if (!children_may_make_threads()) return;
  const Folder folder;
  const std::string path = folder.file("saved"), wanted = folder.file("logits");
  assert_int_equal(in_a_child([&] {
                     const World world(nullptr);
                     const Session session = world.session(0);
                     read_prompt(session.get());
                     assert_works(wi_session_save(session.get(), path.c_str(), nullptr, error));
                     spill(wanted, logits_of_steps(session.get()));
                   }),
                   0);
  assert_int_equal(chmod(path.c_str(), 0400), 0);
  const std::string before = slurp(path);
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i)
    children.push_back(start_child([&] {
      const World world(folder.path.c_str());
      wi_session* loaded = nullptr;
      wi_session_params params = session_params(0.05f);
      params.sampling = nullptr;  // goes on as it was saved
      assert_works(wi_session_load(world.model.get(), path.c_str(), &params, nullptr, &loaded, error));
      const Session session{loaded, wi_session_release};
      auto stats = sized<wi_session_stats>();
      assert_works(wi_session_get_stats(loaded, &stats, error));
      assert_true(stats.slow_bytes > 0);
      assert_true(logits_of_steps(loaded) == slurp(wanted));
    }));
  for (const pid_t child : children) assert_int_equal(end_of(child), 0);
  assert_true(slurp(path) == before);
}

// ---- Disks and budgets that are too small ----

// Of a session that has everything in memory, which says what it says over any tiers.
struct Undisturbed {
  std::vector<int32_t> tokens;
  uint64_t kv_bytes = 0;
};
const Undisturbed& undisturbed() {
  static const Undisturbed all = [] {
    const World world(nullptr);
    const Session session = world.session(0);
    read_prompt(session.get());
    decode(session.get(), 100);
    auto stats = sized<wi_session_stats>();
    assert_works(wi_session_get_stats(session.get(), &stats, error));
    return Undisturbed{tokens_of(session.get()), stats.kv_bytes};
  }();
  return all;
}

struct Outcome {
  wi_status status = WI_OK;
  size_t tokens = 0;
};

// A prompt and a hundred tokens, as far as they go; what was said is right, and what failed changed nothing.
Outcome live(wi_session* session) {
  auto error = sized<wi_error>();
  auto event = sized<wi_event>();
  Outcome outcome;
  auto params = sized<wi_prefill_params>();
  params.chunk_tokens = 100;
  outcome.status = wi_session_prefill(session, kIds.data(), kIds.size(), &params, nullptr, &error);
  if (outcome.status == WI_OK) outcome.tokens = kPrompt;
  for (int i = 0; i < 100 && outcome.status == WI_OK; ++i) {
    outcome.status = wi_session_decode(session, nullptr, &event, &error);
    outcome.tokens += outcome.status == WI_OK;
  }
  if (outcome.status != WI_OK) {
    assert_int_equal(error.code, outcome.status);
    assert_true(std::strlen(error.message) > 20);
  }
  const std::vector<int32_t> tokens = tokens_of(session);
  assert_int_equal(tokens.size(), outcome.tokens);
  assert_memory_equal(tokens.data(), undisturbed().tokens.data(), tokens.size() * sizeof(int32_t));
  return outcome;
}

void any_budget_is_a_status_or_changes_no_token(void**) {
  const Folder folder;
  for (const int which : {0, 1, 2}) {  // the runtime's, the session's, the file's
    int tried = 0, lived = 0;
    for (double budget = 1; budget < 8e6; budget *= budget < 1e4 ? 4 : 1.25, ++tried) {
      const auto bytes = static_cast<uint64_t>(budget);
      const World world(folder.path.c_str(), which == 0 ? bytes : 0, which == 2 ? bytes : 0);
      const Session session = world.session(0, which == 1   ? bytes
                                               : which == 2 ? undisturbed().kv_bytes * 9 / 10
                                                            : 0);
      const Outcome outcome = live(session.get());
      assert_true(outcome.status == WI_OK || outcome.status == WI_E_BUDGET);
      lived += outcome.status == WI_OK;
    }
    std::printf("  %d of %d budgets of the %s were enough\n", lived, tried,
                which == 0   ? "runtime"
                : which == 1 ? "session"
                             : "file");
    assert_true(lived > 0 && lived < tried);
  }
}

// A limit of the system's on lengths stands for a disk that is full for a time: of whole blocks, as a write that it
// cuts short elsewhere is none past the page cache. (At once there is one chunk, after
// which nothing has to go: the second prompt is what needs room.)
wi_task_info end_of_task_that_reads_prompt(wi_session* session) {
  auto params = sized<wi_task_params>();
  params.tokens = kIds.data();
  params.token_count = kIds.size();
  params.max_tokens = 1;
  wi_task* task = nullptr;
  assert_works(wi_task_submit(session, &params, &task, error));
  auto info = sized<wi_task_info>();
  auto event = sized<wi_event>();
  for (int32_t ready = 0; info.state < WI_TASK_DONE;) {
    assert_works(wi_task_wait(task, -1, &ready, error));
    uint64_t count = 0;
    assert_works(wi_task_poll(task, &event, 1, &count, error));
    assert_works(wi_task_get_info(task, &info, error));
  }
  wi_task_release(task);
  return info;
}

// Of a call and of a task alike.
void a_full_disk_is_a_status_until_it_has_room(void**) {
  const Folder folder;
  const World world(folder.path.c_str());
  const World memory(nullptr);
  const Session expected = memory.session(0);
  read_prompt(expected.get());
  read_prompt(expected.get());
  decode(expected.get(), 50);
  const std::vector<int32_t> wanted = tokens_of(expected.get());
  rlimit limit{};
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
  for (const rlim_t bytes : {rlim_t{1}, rlim_t{4096}, rlim_t{12288}}) {
    const Session session = world.session(0.05f);
    read_prompt(session.get());
    rlimit small = limit;
    small.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    auto error = sized<wi_error>();
    const wi_status refused =
        wi_session_prefill(session.get(), kIds.data(), kIds.size(), nullptr, nullptr, &error);
    const wi_task_info failed = end_of_task_that_reads_prompt(session.get());
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(refused, WI_E_IO);
    assert_int_equal(error.native_code, EFBIG);
    assert_non_null(std::strstr(error.message, "File too large"));
    assert_int_equal(failed.status, WI_E_IO);
    assert_int_equal(failed.native_code, EFBIG);
    assert_string_equal(failed.message, error.message);
    assert_int_equal(tokens_of(session.get()).size(), kPrompt);
    read_prompt(session.get());
    decode(session.get(), 50);
    assert_true(tokens_of(session.get()) == wanted);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_killed_process_leaves_what_it_saved_and_nothing_else),
      cmocka_unit_test(processes_share_a_saved_file),
      cmocka_unit_test(any_budget_is_a_status_or_changes_no_token),
      cmocka_unit_test(a_full_disk_is_a_status_until_it_has_room),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
