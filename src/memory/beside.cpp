#include "src/memory/beside.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

namespace wi {
namespace {

// So often it is looked whether somebody's turn has come; less than what they may rely on.
constexpr std::chrono::milliseconds kPoll{10};

struct GivenUp {};

struct Work {
  std::atomic<bool> given_up{false};
  std::mutex mutex;
  std::condition_variable ended_some;
  bool ended = false;
  std::exception_ptr failed;
  std::unique_ptr<std::thread> thread;

  void end() {
    {
      const std::lock_guard lock(mutex);
      ended = true;
    }
    ended_some.notify_one();
  }
  bool wait() {
    std::unique_lock lock(mutex);
    return ended_some.wait_for(lock, kPoll, [&] { return ended; });
  }
  ~Work() {
    given_up = true;
    if (thread) thread->join();
  }
};

}  // namespace

bool run_beside(const OwnThreads& own, const std::function<void(const std::function<void()>& poll)>& work,
                const std::function<void()>& meanwhile) {
  constexpr char kName[] = "wi-beside";
  Work state;
  int refused = 0;
  state.thread = own.start(kName, &refused, [&state, &work] {  // what outlives the thread
    try {
      work([&state] {
        if (state.given_up.load(std::memory_order_relaxed)) throw GivenUp{};
      });
    } catch (...) {
      state.failed = std::current_exception();
    }
    state.end();
  });
  if (!state.thread) {
    own.tell_refused(kName, refused);
    return false;
  }
  while (!state.wait()) meanwhile();
  if (state.failed) std::rethrow_exception(state.failed);
  return true;
}

}  // namespace wi
