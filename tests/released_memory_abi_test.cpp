// What is released goes back to the system: the process has as little memory afterwards as before.
#include <atomic>
#include <fstream>
#include <malloc.h>
#include <thread>
#include <unistd.h>

#include "support/abi.h"

namespace {

using namespace wi::test;

constexpr uint64_t kMiB = uint64_t{1} << 20;

#if defined(WI_SANITIZED) || defined(WI_EMULATED)
constexpr bool kCountsPages =
    false;  // sanitizers keep shadow memory of what was freed, emulators what they translated
#else
constexpr bool kCountsPages = true;
#endif

uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

wi_runtime_stats stats_of(wi_runtime* runtime) {
  auto stats = sized<wi_runtime_stats>();
  assert_works(wi_runtime_get_stats(runtime, &stats, error));
  return stats;
}

Kv filled_store(wi_runtime* runtime, int32_t layers, int32_t heads, int32_t tokens) {
  auto params = sized<wi_kv_params>();
  params.layers = layers;
  params.query_heads = params.kv_heads = heads;
  params.head_dim = 64;
  wi_kv* kv = nullptr;
  assert_works(wi_kv_create(runtime, &params, &kv, error));
  Kv store(kv, wi_kv_release);
  const std::vector<float> rows(static_cast<size_t>(tokens) * static_cast<size_t>(heads) * 64, 0.5f);
  for (int32_t layer = 0; layer < layers; ++layer)
    assert_works(wi_kv_append(kv, layer, tokens, rows.data(), rows.data(), error));
  return store;
}

// What a process has more of after the most of it: pieces of less than eight pages, which are kept, the C library's
// heap, and the stack and arena of a thread that was there.
constexpr uint64_t kKept = 8 * kMiB;

// Recent tokens of 250: four blocks of 64 a store, each of 768 KiB in a model of Qwen2-0.5B's shape.
void stores_of_little_are_given_back_whichever_thread_releases_them(void**) {
  const Runtime runtime = create_runtime();
  filled_store(runtime.get(), 24, 2, 250);
  const uint64_t before = resident_bytes();
  for (const bool by_another : {false, true}) {
    std::vector<Kv> stores;
    for (int i = 0; i < 60; ++i) stores.push_back(filled_store(runtime.get(), 24, 2, 250));
    const uint64_t kept = stats_of(runtime.get()).kv_bytes;
    assert_true(kept > 150 * kMiB);
    if (kCountsPages) assert_true(resident_bytes() > before + kept * 9 / 10);
    if (by_another)
      std::thread([&] { stores.clear(); }).join();
    else
      stores.clear();
    assert_int_equal(stats_of(runtime.get()).kv_bytes, 0);
    const uint64_t after = resident_bytes();
    print_message("%d MiB before, %d with %d MiB of keys and values, %d after\n",
                  static_cast<int>(before / kMiB), static_cast<int>((before + kept) / kMiB),
                  static_cast<int>(kept / kMiB), static_cast<int>(after / kMiB));
    if (kCountsPages) assert_true(after < before + kKept);
  }
}

// Small ones and then large ones, of pieces of other sizes: never both at once.
void memory_stays_within_the_budget_whatever_sizes_come_after_each_other(void**) {
  auto params = sized<wi_runtime_params>();
  params.kv_budget_bytes = 160 * kMiB;
  const Runtime runtime = create_runtime(&params);
  filled_store(runtime.get(), 4, 2, 250);
  const uint64_t before = resident_bytes();
  for (int round = 0; round < 2; ++round)
    for (const bool small : {true, false}) {
      std::vector<Kv> stores;
      while (stats_of(runtime.get()).kv_bytes < 140 * kMiB)
        stores.push_back(small ? filled_store(runtime.get(), 4, 2, 250)
                               : filled_store(runtime.get(), 16, 4, 1024));
      // Whole pages are an eighth more at the most.
      if (kCountsPages) assert_true(resident_bytes() < before + params.kv_budget_bytes * 9 / 8 + kKept);
    }
}

void prefill_and_decode(wi_model* model, std::atomic<int>& here, int callers) {
  auto params = sized<wi_session_params>();
  params.prefix_reuse = WI_PREFIX_REUSE_OFF;
  wi_session* session = nullptr;
  auto event = sized<wi_event>();
  std::vector<int32_t> tokens(600);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = 300 + static_cast<int32_t>(i * 37 % 2000);
  wi_session_create(model, &params, &session, nullptr);
  ++here;
  while (here < callers) std::this_thread::yield();
  wi_session_prefill(session, tokens.data(), tokens.size(), nullptr, nullptr, nullptr);
  wi_session_decode(session, nullptr, &event, nullptr);
  wi_session_release(session);
}

// Of callers that come at once each has scratch of its own. Two threads: two keep theirs, and the first caller's.
void scratch_of_a_burst_of_callers_is_given_back(void**) {
  auto params = sized<wi_runtime_params>();
  params.threads = 2;
  const Runtime runtime = create_runtime(&params);
  const Model model = open_sample_model(runtime.get());
  const auto call = [&](int callers) {
    std::atomic<int> here{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < callers; ++i)
      threads.emplace_back([&] { prefill_and_decode(model.get(), here, callers); });
    for (std::thread& thread : threads) thread.join();
    return stats_of(runtime.get()).scratch_bytes;
  };
  const uint64_t of_one = call(1), before = resident_bytes(), of_many = call(24), after = resident_bytes();
  print_message("%d KiB of scratch after one caller, %d after 24, resident %d MiB and %d\n",
                static_cast<int>(of_one >> 10), static_cast<int>(of_many >> 10),
                static_cast<int>(before / kMiB), static_cast<int>(after / kMiB));
  assert_true(of_one > 0);
  assert_true(of_many <= 3 * of_one);
  // The C library keeps what is small for those threads' successors: half a MiB for each.
  if (kCountsPages) assert_true(after < before + 2 * of_one + 24 * kMiB / 2);
  call(1);
  assert_true(stats_of(runtime.get()).scratch_bytes <= 3 * of_one);
}

void a_session_takes_memory_only_as_tokens_come(void**) {
#if defined(__GLIBC__) && !defined(WI_SANITIZED)
  const Runtime runtime = create_runtime();
  const Model model = open_sample_model(runtime.get());
  std::vector<Session> sessions;
  sessions.reserve(301);
  sessions.push_back(create_session(model.get()));
  const size_t before = mallinfo2().uordblks;
  for (int i = 0; i < 300; ++i) sessions.push_back(create_session(model.get()));
  const size_t each = (mallinfo2().uordblks - before) / 300;
  print_message("%zu bytes of heap for an empty session\n", each);
  assert_in_range(each, 1, 6 << 10);  // its own members; room for the first tokens' ids is 16 KiB
#else
  std::printf("skipped: the C library does not say what its heap has\n");
#endif
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(memory_stays_within_the_budget_whatever_sizes_come_after_each_other),
      cmocka_unit_test(stores_of_little_are_given_back_whichever_thread_releases_them),
      cmocka_unit_test(scratch_of_a_burst_of_callers_is_given_back),
      cmocka_unit_test(a_session_takes_memory_only_as_tokens_come),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
