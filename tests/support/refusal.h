// A malloc that refuses: each allocation of a call once, alone and with all that follow it. The call then says
// so or does without, what it was called on is as before, called again it gives what an undisturbed run gives,
// and nothing is left behind. Each story runs in a process of its own, where all that is done once in a process
// is done again. Included by one file of a program; a sanitizer has malloc itself, and tests are skipped.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <filesystem>
#include <functional>
#include <random>
#include <set>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/abi.h"
#include "support/fewer.h"
#include "support/patience.h"

namespace wi::test {

// Which allocation is refused: of all threads, from the arming on, by number. Blocks alive are counted always.
inline std::atomic<bool> armed{false}, refused{false};
inline std::atomic<int64_t> requests{0}, alive{0};
// Whether they are malloc's, mappings, or both.
inline bool heap_too = true, mappings_too = true;
inline int64_t refused_first = 0, refused_last = 0;

inline bool refuses() {
  if (!armed.load(std::memory_order_acquire)) return false;
  const int64_t number = requests.fetch_add(1);
  if (number < refused_first || number > refused_last) return false;
  refused = true;
  errno = ENOMEM;
  return true;
}

inline bool refuses_heap() { return heap_too && refuses(); }

inline void* counted(void* block) {
  alive.fetch_add(block != nullptr, std::memory_order_relaxed);
  return block;
}

}  // namespace wi::test

#ifndef WI_SANITIZED                  // a sanitizer has malloc itself
#pragma GCC visibility push(default)  // or the library would not find them
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
void* malloc(size_t bytes) {
  return wi::test::refuses_heap() ? nullptr : wi::test::counted(__libc_malloc(bytes));
}
void* calloc(size_t count, size_t bytes) {
  return wi::test::refuses_heap() ? nullptr : wi::test::counted(__libc_calloc(count, bytes));
}
void* realloc(void* block, size_t bytes) {
  if (wi::test::refuses_heap()) return nullptr;
  return block ? __libc_realloc(block, bytes) : wi::test::counted(__libc_malloc(bytes));
}
void* memalign(size_t alignment, size_t bytes) {
  return wi::test::refuses_heap() ? nullptr : wi::test::counted(__libc_memalign(alignment, bytes));
}
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** block, size_t alignment, size_t bytes) {
  void* const got = memalign(alignment, bytes);
  if (!got) return ENOMEM;
  *block = got;
  return 0;
}
void free(void* block) {
  wi::test::alive.fetch_sub(block != nullptr, std::memory_order_relaxed);
  __libc_free(block);
}
// Large buffers, files, and what the library's private heap takes from the system.
void* mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) {
  if (wi::test::mappings_too && wi::test::refuses()) return MAP_FAILED;
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, file, offset));
}
}
#pragma GCC visibility pop
#endif

namespace wi::test {

// What a child process leaves its parent, who may have to say how it died.
struct Shared {
  char where[256];
  int64_t requests;
  std::array<int32_t, 6> tokens;
};
inline Shared* shared;

[[noreturn, gnu::format(printf, 1, 2)]] inline void give_up(const char* words, ...) {
  armed = false;
  std::printf("%s: ", shared->where);
  va_list arguments;
  va_start(arguments, words);
  std::vprintf(words, arguments);
  va_end(arguments);
  std::printf("\n");
  std::fflush(stdout);
  _exit(1);
}

#define require(holds) \
  if (!(holds)) give_up("line %d: %s does not hold", __LINE__, #holds)

// What a child ended with; empty: all was well.
inline std::string run_in_child(const std::function<void()>& body) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    for (int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS}) std::signal(fault, SIG_DFL);  // not cmocka's
    alarm(patience(120));
    body();
    std::fflush(stdout);
    _exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFSIGNALED(status))
    return std::string(shared->where) + ": the process was ended by signal " +
           std::to_string(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : "the process gave up";
}

// What is counted from now on, while armed. kNone: nothing is refused.
constexpr int64_t kNone = INT64_MAX;
inline void choose(int64_t number, bool all) {
  requests = 0;
  refused = false;
  refused_first = number;
  refused_last = all ? INT64_MAX - 1 : number;
}

inline bool is_refusal(const wi_error& error) {
  return error.code == WI_E_MEMORY || (error.code == WI_E_IO && error.native_code == ENOMEM);
}

// A call of the ABI, not owned: std::function would allocate.
class Call {
 public:
  template <class Body>
  Call(const Body& body)
      : body_(&body),
        run_([](const void* of, wi_error* error) { return (*static_cast<const Body*>(of))(error); }) {}
  wi_status operator()(wi_error* error) const { return run_(body_, error); }

 private:
  const void* body_;
  wi_status (*run_)(const void*, wi_error*);
};

inline void must(const Call& call) {
  auto error = sized<wi_error>();
  const wi_status status = call(&error);
  if (status != WI_OK) give_up("%s: %s", wi_status_name(status), error.message);
}

// A call in which an allocation may be refused. If that makes it fail, it says so, and works the second time.
inline void attempt_call(const Call& call) {
  auto error = sized<wi_error>();
  armed = true;
  const wi_status status = call(&error);
  armed = false;
  if (status == WI_OK) return;
  if (!refused || error.code != status || !is_refusal(error))
    give_up("%s (native %lld): %s", wi_status_name(error.code), static_cast<long long>(error.native_code),
            error.message);
  refused_first = kNone;
  must(call);
}

inline std::mt19937_64 random_numbers([] {
  const char* text = std::getenv("WI_TEST_SEED");
  const uint64_t seed = text ? std::strtoull(text, nullptr, 10) : std::random_device()();
  std::printf("seed %llu (WI_TEST_SEED)\n", static_cast<unsigned long long>(seed));
  return seed;
}());

// The numbers to refuse, of so many: the first few hundred each, of the others a few by chance; WI_TEST_ALL=1:
// each.
inline std::vector<int64_t> chosen_numbers(int64_t count, int64_t each, int64_t by_chance) {
  each = std::getenv("WI_TEST_ALL") ? count : few_or(each / 4, each);
  by_chance = few_or(by_chance / 4, by_chance);
  std::set<int64_t> chosen;
  for (int64_t n = 0; n < std::min(count, each); ++n) chosen.insert(n);
  if (count > each) {
    std::uniform_int_distribution<int64_t> any(each, count - 1);
    for (int64_t i = 0; i < by_chance; ++i) chosen.insert(any(random_numbers));
  }
  return {chosen.begin(), chosen.end()};
}

// Threads of the library may still be letting go of what they had.
inline void check_alive(int64_t most) {
  for (int i = 0; i < 2000 && alive > most; ++i) usleep(1000);
  if (alive > most) give_up("leaves %lld blocks behind", static_cast<long long>(alive - most));
}

// ---- One call after the other, in one process ----

// Body is handed a function that makes a call while an allocation is refused, and checks what came of it. each,
// by_chance: chosen_numbers() has them.
using Attempt = void (*)(const Call&);

inline void sweep(const char* name, const std::function<void(const Attempt&)>& body, int64_t each = 250,
                  int64_t by_chance = 60) {
  int64_t count = 0, before = 0;
  std::snprintf(shared->where, sizeof shared->where, "%s, undisturbed", name);
  for (int i = 0; i < 4; ++i) {  // what is kept for the next time is there from the second on
    before = alive;
    choose(kNone, false);
    body(attempt_call);
    count = requests;
  }
  check_alive(before);
  for (const bool all : {false, true}) {
    for (const int64_t number : chosen_numbers(count, each, by_chance)) {
      std::snprintf(shared->where, sizeof shared->where, "%s, allocation %lld refused%s", name,
                    static_cast<long long>(number), all ? " and all that follow" : "");
      choose(number, all);
      body(attempt_call);
    }
  }
  std::snprintf(shared->where, sizeof shared->where, "%s, afterwards", name);
  choose(kNone, false);
  body(attempt_call);
  check_alive(before);
  std::printf("  %s: %lld allocations\n", name, static_cast<long long>(count));
}

inline void fail_with(const std::string& problem) {
  std::printf("%s\n", problem.c_str());
  _fail(__FILE__, __LINE__);
}

inline void skip_without_malloc() {
#ifdef WI_SANITIZED
  std::printf("skipped: the sanitizer has malloc\n");
  skip();
#endif
}

template <void (*stories)()>
void each_allocation_may_be_refused_in(void**) {
  skip_without_malloc();
  const std::string problem = run_in_child(stories);
  if (!problem.empty()) fail_with(problem);
}

}  // namespace wi::test
