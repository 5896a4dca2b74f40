// What is released goes back to the system: the process has as little memory afterwards as before.
#include <fstream>
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

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(memory_stays_within_the_budget_whatever_sizes_come_after_each_other),
      cmocka_unit_test(stores_of_little_are_given_back_whichever_thread_releases_them),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
