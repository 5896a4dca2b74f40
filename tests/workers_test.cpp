// Workers: every task once, whatever else goes on: other callers, exceptions, cancellation, refused memory;
// nothing allocated in the steady state, and the host's threads as they were before.
#include "src/memory/workers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <numeric>
#include <random>
#include <sched.h>
#include <set>
#include <stdexcept>
#include <sys/prctl.h>
#include <thread>
#include <vector>

#include "tests/support/allocations.h"
#include "tests/test.h"

using namespace wi;

namespace {

using Clock = std::chrono::steady_clock;

void spin(std::chrono::microseconds time) {
  for (auto start = Clock::now(); Clock::now() - start < time;) {
  }
}

void every_task_runs_once_under_a_worker_number_of_its_own(void**) {
  std::mt19937_64 random(test::seed());
  for (int threads : {1, 2, 5}) {
    Workers workers(threads);
    assert_int_equal(workers.threads(), threads);
    workers.run(nullptr, [&](const Stream& stream) {
      assert_int_equal(stream.workers, threads);
      for (int round = 0; round < 2000; ++round) {
        int64_t tasks = static_cast<int64_t>(random() % (round % 50 == 0 ? 3000 : 12));
        std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
        std::vector<std::atomic<int>> inside(static_cast<size_t>(threads));
        std::atomic<int> shared_numbers{0};
        stream.each(tasks, [&](int64_t task, int worker) {
          if (inside[static_cast<size_t>(worker)].fetch_add(1) != 0) shared_numbers.fetch_add(1);
          runs[static_cast<size_t>(task)].fetch_add(1);
          inside[static_cast<size_t>(worker)].fetch_sub(1);
        });
        assert_true(std::all_of(runs.begin(), runs.end(), [](auto& n) { return n == 1; }));
        assert_int_equal(shared_numbers, 0);
      }
    });
  }
}

void a_body_goes_through_several_loops_alone(void**) {
  for (int threads : {1, 3}) {
    Workers workers(threads);
    std::atomic<bool> cancel{false};
    workers.run(&cancel, [&](const Stream& stream) {
      std::atomic<int64_t> wrong{0};
      stream.each(100, [&](int64_t task, int worker) {
        int64_t* outer = stream.worker_array<int64_t>(worker, 100);
        std::fill_n(outer, 100, task);
        const Stream own = stream.alone(stream, worker);
        int64_t* shared = own.shared_array<int64_t>(100);  // nobody else's, while inner ones come and go
        std::fill_n(shared, 100, task);
        for (int64_t loop = 0; loop < 3; ++loop) {
          int64_t next = 0;
          own.each(10, [&](int64_t inner, int number) {
            if (inner != next++ || number != worker) ++wrong;
            std::fill_n(own.worker_array<int64_t>(number, 100), 100, -1);
          });
          if (next != 10) ++wrong;
        }
        for (int i = 0; i < 100; ++i) wrong += (outer[i] != task) + (shared[i] != task);
      });
      assert_int_equal(wrong.load(), 0);
      cancel = true;
      int64_t ran = 0;
      stream.alone(stream, 0).each(10, [&](int64_t, int) { ++ran; });
      assert_int_equal(ran, 0);
    });
  }
}

void what_a_body_wrote_is_seen_by_the_next_loop(void**) {
  Workers workers(2);
  std::vector<int64_t> from(1000), to(1000);  // plain memory: the loop's end is the only synchronisation
  std::iota(from.begin(), from.end(), 0);
  workers.run(nullptr, [&](const Stream& stream) {
    for (int round = 0; round < 200; ++round) {
      stream.each(10, [&](int64_t part, int) {
        for (int64_t i = part * 100; i < part * 100 + 100; ++i)
          to[static_cast<size_t>(i)] = from[static_cast<size_t>(999 - i)] + 1;
      });
      from.swap(to);
    }
  });
  for (int64_t i = 0; i < 1000; ++i) assert_int_equal(from[static_cast<size_t>(i)], i + 200);
}

void helpers_really_help(void**) {
  if (std::thread::hardware_concurrency() < 2) {
    std::printf("skipped: one CPU\n");
    return;
  }
  Workers workers(2);
  bool helped = false;
  auto start = Clock::now();
  while (!helped && Clock::now() - start < std::chrono::seconds(20))
    workers.run(nullptr, [&](const Stream& stream) {
      std::atomic<int> seen{0};
      stream.each(2, [&](int64_t, int worker) {
        seen.fetch_or(1 << worker);
        spin(std::chrono::milliseconds(5));
      });
      helped = seen == 3;
    });
  assert_true(helped);
}

void two_host_threads_make_progress_at_the_same_time(void**) {
  Workers workers(2);
  std::atomic<int> arrived{0};
  auto meet = [&](const Stream& stream) {
    stream.each(4, [](int64_t, int) {});
    arrived.fetch_add(1);
    while (arrived < 2) std::this_thread::yield();  // the other one is inside its run(), too
    for (int i = 0; i < 100; ++i) stream.each(4, [](int64_t, int) {});
  };
  std::thread other([&] { workers.run(nullptr, meet); });
  workers.run(nullptr, meet);
  other.join();
  assert_int_equal(arrived, 2);
}

void many_host_threads_get_their_own_results(void**) {
  Workers workers(2);
  std::vector<std::thread> hosts;
  std::atomic<int> wrong{0};
  for (int host = 0; host < 9; ++host)
    hosts.emplace_back([&, host] {
      for (int round = 0; round < 30; ++round)
        workers.run(nullptr, [&](const Stream& stream) {
          int64_t* sums = stream.shared_array<int64_t>(16);
          stream.each(16, [&](int64_t task, int worker) {
            int64_t* own = stream.worker_array<int64_t>(worker, 64);
            std::fill(own, own + 64, host + task);
            sums[task] = std::accumulate(own, own + 64, int64_t{0});
          });
          for (int64_t task = 0; task < 16; ++task) wrong += sums[task] != 64 * (host + task);
        });
    });
  for (std::thread& host : hosts) host.join();
  assert_int_equal(wrong, 0);
}

void an_exception_ends_the_loop_and_leaves_everything_usable(void**) {
  Workers workers(2);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> inside{0};
    bool caught = false;
    try {
      workers.run(nullptr, [&](const Stream& stream) {
        stream.each(64, [&](int64_t task, int) {
          inside.fetch_add(1);
          if (task % 7 == 3) {
            inside.fetch_sub(1);
            throw std::runtime_error("task 3 or a later one");
          }
          inside.fetch_sub(1);
        });
      });
    } catch (const std::runtime_error&) {
      caught = true;
      assert_int_equal(inside, 0);
    }
    assert_true(caught);
    std::atomic<int> runs{0};
    workers.run(nullptr,
                [&](const Stream& stream) { stream.each(64, [&](int64_t, int) { runs.fetch_add(1); }); });
    assert_int_equal(runs, 64);
  }
}

void scratch_that_cannot_grow_is_an_error_of_the_run(void**) {
  Workers workers(2);
  constexpr size_t kFarTooMuch = size_t{1} << 60;
  assert_error(WI_E_MEMORY, "for scratch", workers.run(nullptr, [&](const Stream& stream) {
    stream.each(8, [&](int64_t, int worker) { stream.worker_array<std::byte>(worker, kFarTooMuch); });
  }));
  assert_error(WI_E_MEMORY, "for scratch", workers.run(nullptr, [&](const Stream& stream) {
    stream.shared_array<std::byte>(kFarTooMuch);
  }));
  assert_error(WI_E_MEMORY, "refused memory", workers.run(nullptr, [&](const Stream& stream) {
    stream.each(8, [&](int64_t, int) { throw std::bad_alloc(); });
  }));
  workers.run(nullptr, [&](const Stream& stream) {
    stream.each(
        8, [&](int64_t, int worker) { std::memset(stream.worker_array<std::byte>(worker, 5000), 1, 5000); });
    std::memset(stream.shared_array<std::byte>(5000), 1, 5000);
  });
}

void scratch_is_aligned_kept_and_counted(void**) {
  Workers workers(1);
  assert_int_equal(workers.scratch_bytes(), 0);
  std::byte* first = nullptr;
  workers.run(nullptr, [&](const Stream& stream) {
    first = stream.worker_array<std::byte>(0, 100000);
    assert_int_equal(reinterpret_cast<uintptr_t>(first) % 64, 0);
    assert_ptr_equal(stream.worker_array<std::byte>(0, 60000), first);
  });
  size_t held = workers.scratch_bytes();
  assert_true(held >= 100000);
  workers.run(nullptr, [&](const Stream& stream) {
    assert_ptr_equal(stream.worker_array<std::byte>(0, 100000), first);
    assert_ptr_not_equal(stream.shared_array<std::byte>(1000), first);
  });
  assert_true(workers.scratch_bytes() >= held + 1000);
}

void cancel_skips_the_remaining_tasks(void**) {
  Workers workers(2);
  std::atomic<bool> cancel{false};
  std::atomic<int> runs{0};
  workers.run(&cancel, [&](const Stream& stream) {
    stream.each(10000, [&](int64_t task, int) {
      runs.fetch_add(1);
      if (task == 5) cancel = true;
      spin(std::chrono::microseconds(1));
    });
    assert_true(stream.cancelled());
    int before = runs;
    stream.each(100, [&](int64_t, int) { runs.fetch_add(1); });
    stream.each(1, [&](int64_t, int) { runs.fetch_add(1); });
    assert_int_equal(runs, before);
  });
  assert_true(runs < 10000);
}

void the_steady_state_allocates_nothing(void**) {
#ifndef WI_SANITIZED
  Workers workers(2);
  std::atomic<int64_t> sum{0};
  auto step = [&](const Stream& stream) {
    for (int i = 0; i < 150; ++i)
      stream.each(i % 3 == 0 ? 2 : 40, [&](int64_t task, int worker) {
        stream.worker_array<float>(worker, 1000)[0] = 1;
        sum.fetch_add(task, std::memory_order_relaxed);
      });
  };
  auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      workers.run(nullptr, step);
      if (i % 10 == 9) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // helpers go and come back
    }
  };
  steps(100);
  int64_t before = test::allocations;
  steps(300);
  assert_int_equal(test::allocations - before, 0);
#else
  std::printf("skipped: the sanitizer has malloc\n");
#endif
}

std::string own_name() {
  char name[16] = {};
  prctl(PR_GET_NAME, name);
  return name;
}

void the_host_thread_keeps_its_name_and_cpu_mask(void**) {
  cpu_set_t before, after;
  assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
  std::string name = own_name();
  for (bool bind : {false, true}) {
    Workers workers(2, bind);
    std::atomic<int> unnamed{0};
    for (int round = 0; round < 100; ++round)
      workers.run(nullptr, [&](const Stream& stream) {
        stream.each(8, [&](int64_t, int worker) {
          if (worker > 0 && own_name() != "wi-worker-" + std::to_string(worker)) unnamed.fetch_add(1);
          if (worker == 0 && own_name() != name) unnamed.fetch_add(1);
          spin(std::chrono::microseconds(10));
        });
      });
    assert_int_equal(unnamed, 0);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    assert_string_equal(own_name().c_str(), name.c_str());
  }
}

void bound_workers_have_one_cpu_each(void**) {
  Workers workers(2, true);
  for (int round = 0; round < 200; ++round)
    workers.run(nullptr, [&](const Stream& stream) {
      std::atomic<int> loose{0};
      stream.each(4, [&](int64_t, int) {
        cpu_set_t mask;
        CPU_ZERO(&mask);
        if (sched_getaffinity(0, sizeof mask, &mask) != 0 || CPU_COUNT(&mask) != 1) loose.fetch_add(1);
        spin(std::chrono::microseconds(20));
      });
      assert_int_equal(loose, 0);
    });
}

void creation_and_destruction_leave_no_helper_behind(void**) {
  for (int round = 0; round < 100; ++round) {
    Workers workers(3);
    std::vector<int> marks(16);
    workers.run(nullptr, [&](const Stream& stream) {
      stream.each(16, [&](int64_t task, int) { marks[static_cast<size_t>(task)] = 1; });
    });
    assert_int_equal(std::accumulate(marks.begin(), marks.end(), 0), 16);
  }
}

void zero_threads_means_what_the_process_may_use(void**) {
  Workers workers(0);
  assert_true(workers.threads() >= 1);
  assert_true(workers.threads() <= static_cast<int>(std::thread::hardware_concurrency()));
}

// Printed, not asserted: what a loop costs beyond its work, with tasks of equal length.
void print_the_cost_of_a_loop(void**) {
  Workers workers(2);
  for (int tasks : {2, 8, 64}) {
    std::vector<double> empty, split;
    workers.run(nullptr, [&](const Stream& stream) {
      for (int round = 0; round < 400; ++round) {
        auto start = Clock::now();
        stream.each(tasks, [](int64_t, int) {});
        auto middle = Clock::now();
        stream.each(tasks, [&](int64_t, int) { spin(std::chrono::microseconds(64 / tasks)); });
        auto end = Clock::now();
        empty.push_back(std::chrono::duration<double, std::micro>(middle - start).count());
        split.push_back(std::chrono::duration<double, std::micro>(end - middle).count());
      }
    });
    std::sort(empty.begin(), empty.end());
    std::sort(split.begin(), split.end());
    std::printf("each(%d): empty %.2f us, 64 us of work on two workers %.2f us (best), %.2f us (median)\n",
                tasks, empty[empty.size() / 2], split.front(), split[split.size() / 2]);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_task_runs_once_under_a_worker_number_of_its_own),
      cmocka_unit_test(a_body_goes_through_several_loops_alone),
      cmocka_unit_test(what_a_body_wrote_is_seen_by_the_next_loop),
      cmocka_unit_test(helpers_really_help),
      cmocka_unit_test(two_host_threads_make_progress_at_the_same_time),
      cmocka_unit_test(many_host_threads_get_their_own_results),
      cmocka_unit_test(an_exception_ends_the_loop_and_leaves_everything_usable),
      cmocka_unit_test(scratch_that_cannot_grow_is_an_error_of_the_run),
      cmocka_unit_test(scratch_is_aligned_kept_and_counted),
      cmocka_unit_test(cancel_skips_the_remaining_tasks),
      cmocka_unit_test(the_steady_state_allocates_nothing),
      cmocka_unit_test(the_host_thread_keeps_its_name_and_cpu_mask),
      cmocka_unit_test(bound_workers_have_one_cpu_each),
      cmocka_unit_test(creation_and_destruction_leave_no_helper_behind),
      cmocka_unit_test(zero_threads_means_what_the_process_may_use),
      cmocka_unit_test(print_the_cost_of_a_loop),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
