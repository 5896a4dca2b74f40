// HostPool: accounting, budget, alignment, and that the host program's own allocator is left alone.
#include "src/memory/host_pool.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <dlfcn.h>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "src/memory/host_memory.h"
#include "src/memory/mimalloc.h"
#include "tests/test.h"

using namespace wi;

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

[[maybe_unused]] uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::string home_of(void* symbol) {
  Dl_info info{};
  assert_int_not_equal(dladdr(symbol, &info), 0);
  return info.dli_fname;
}

void buffers_are_aligned_and_writable(void**) {
  auto pool = HostPool::create(HostPool::kUnlimited, true);
  for (uint64_t bytes : {uint64_t{1}, uint64_t{63}, uint64_t{4097}, HostMemory::least_carved_bytes(), kMiB,
                         2 * kMiB - 1, 2 * kMiB, 5 * kMiB + 3}) {
    HostBuffer buffer = pool->allocate(bytes, "test");
    assert_int_equal(buffer.bytes(), bytes);
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const uint64_t alignment = bytes >= 2 * kMiB                           ? 2 * kMiB
                               : bytes >= HostMemory::least_carved_bytes() ? page
                                                                           : 64;
    assert_int_equal(reinterpret_cast<uintptr_t>(buffer.data()) % alignment, 0);
    std::memset(buffer.data(), 0x5a, bytes);
  }
}

// The mappings of the process in which any of `pieces` lies. Of all its mappings a sanitizer's own are the most, and
// they grow with what the process maps.
int64_t mappings_of(std::span<const HostBuffer> pieces) {
  std::ifstream file("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(file, line);) {
    uintptr_t begin = 0, end = 0;
    assert_int_equal(std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end), 2);
    count += std::any_of(pieces.begin(), pieces.end(), [&](const HostBuffer& piece) {
      const auto data = reinterpret_cast<uintptr_t>(piece.data());
      return data < end && begin < data + piece.bytes();
    });
  }
  return count;
}

// A process may have 65530, which pieces of a mapping each would be at 100 GB of slabs of 1.5 MiB, and at 8 GB of
// recent tokens' blocks of 128 KiB.
void pieces_without_huge_pages_are_few_mappings(void**) {
  constexpr int kPieces = 200;
  struct Case {
    bool huge_pages;
    uint64_t bytes;
    HostPages pages;
  };
  for (const Case& one : {Case{true, kMiB / 8, HostPages::huge}, Case{true, kMiB * 3 / 2, HostPages::huge},
                          Case{true, kMiB * 3, HostPages::small}, Case{false, kMiB * 3 / 2, HostPages::huge},
                          Case{false, kMiB * 3, HostPages::huge}, Case{true, 2 * kMiB, HostPages::huge}}) {
    auto pool = HostPool::create(HostPool::kUnlimited, one.huge_pages);
    std::vector<HostBuffer> pieces(kPieces);
    for (HostBuffer& piece : pieces) {
      piece = pool->allocate(one.bytes, "a piece", one.pages);
      piece.data()[0] = std::byte{1};
    }
    const int64_t mappings = mappings_of(pieces);
    print_message("%d pieces of %" PRIu64 " bytes lie in %" PRId64 " mappings\n", kPieces, one.bytes,
                  mappings);
    assert_in_range(mappings, 1, 19);  // the gaps that the process has are filled first
  }
}

void an_empty_buffer_costs_nothing(void**) {
  auto pool = HostPool::create(0, true);
  HostBuffer buffer = pool->allocate(0, "nothing");
  assert_null(buffer.data());
  assert_false(static_cast<bool>(buffer));
  assert_int_equal(pool->used(), 0);
}

void used_and_peak_follow_the_buffers(void**) {
  auto pool = HostPool::create(100 * kMiB, true);
  HostBuffer first = pool->allocate(1000, "first");
  HostBuffer second = pool->allocate(3 * kMiB, "second");
  assert_int_equal(pool->used(), 1000 + 3 * kMiB);
  HostBuffer moved = std::move(second);
  assert_null(second.data());
  assert_int_equal(pool->used(), 1000 + 3 * kMiB);
  moved = HostBuffer();
  assert_int_equal(pool->used(), 1000);
  first = pool->allocate(500, "smaller");
  assert_int_equal(pool->used(), 500);
  assert_int_equal(pool->peak(), 1000 + 3 * kMiB);
}

// Of another memory, too: the limit is what they take together.
void pools_may_share_a_budget(void**) {
  const auto budget = std::make_shared<MemoryBudget>(1000);
  const auto memory = std::make_shared<HostMemory>(false);
  const auto one = HostPool::create(budget, memory), other = HostPool::create(budget, memory);
  const HostBuffer held = one->allocate(900, "one");
  assert_int_equal(other->used(), 900);
  assert_error(WI_E_BUDGET, "other wants 101 bytes, 900 of the budget of 1000 are used",
               other->allocate(101, "other"));
  assert_int_equal(other->allocate(100, "other").bytes(), 100);
  assert_int_equal(one->peak(), 1000);
}

// What one budget has in use is not there for another that it is a part of; nor is it in use there.
void a_budget_may_be_what_another_leaves(void**) {
  const auto rest = std::make_shared<MemoryBudget>(1000);
  const auto memory = std::make_shared<HostMemory>(false);
  const auto first = HostPool::create(std::make_shared<MemoryBudget>(5000, rest), memory),
             second = HostPool::create(rest, memory);
  {
    const HostBuffer held = first->allocate(900, "first");
    assert_int_equal(second->used(), 0);
    assert_int_equal(second->budget(), 100);
    assert_error(WI_E_BUDGET, "second wants 101 bytes, 0 of the budget of 100 are used",
                 second->allocate(101, "second"));
    const HostBuffer small = second->allocate(100, "second"), more = first->allocate(4000, "first");
    assert_int_equal(second->budget(), 0);
    assert_error(WI_E_BUDGET, "100 of the budget of 0 are used", second->allocate(1, "second"));
  }
  assert_int_equal(second->budget(), 1000);
  assert_int_equal(second->used(), 0);
}

void copies_are_of_all_pieces(void**) {
  const auto pool = HostPool::create(HostPool::kUnlimited, false);
  const HostBuffer from = pool->allocate(1000, "from"), to = pool->allocate(1000, "to");
  for (int i = 0; i < 1000; ++i) from.as<uint8_t>()[i] = static_cast<uint8_t>(i % 251);
  std::memset(to.data(), 255, to.bytes());
  const CopyPiece pieces[] = {{to.data() + 5, from.data() + 500, 7}, {to.data(), from.data(), 3}};
  pool->memory().copy(pieces);
  for (int i = 0; i < 1000; ++i) {
    const int expected = i < 3 ? i : i >= 5 && i < 12 ? (i + 495) % 251 : 255;
    assert_int_equal(to.as<uint8_t>()[i], expected);
  }
}

void over_budget_names_purpose_and_figures_and_changes_nothing(void**) {
  auto pool = HostPool::create(4 * kMiB, true);
  HostBuffer held = pool->allocate(3 * kMiB, "pages");
  assert_error(WI_E_BUDGET, "KV pages wants 1048577 bytes, 3145728 of the budget of 4194304 are used",
               pool->allocate(kMiB + 1, "KV pages"));
  assert_error(WI_E_BUDGET, "KV pages", pool->allocate(UINT64_MAX, "KV pages"));
  assert_int_equal(pool->used(), 3 * kMiB);
  HostBuffer rest = pool->allocate(kMiB, "KV pages");
  assert_int_equal(pool->used(), pool->budget());
}

void a_refusal_of_the_system_is_an_error_and_is_not_charged(void**) {
  auto pool = HostPool::create(HostPool::kUnlimited, true);
  assert_error(WI_E_MEMORY, "for KV pages", pool->allocate(uint64_t{1} << 60, "KV pages"));
  assert_error(WI_E_MEMORY, "for KV pages", pool->allocate(UINT64_MAX - 5, "KV pages"));
  assert_int_equal(pool->used(), 0);
  assert_int_equal(pool->allocate(3 * kMiB, "after").bytes(), 3 * kMiB);
}

void buffers_keep_their_pool_alive(void**) {
  HostBuffer buffer;
  std::weak_ptr<HostPool> watched;
  {
    auto pool = HostPool::create(kMiB, false);
    watched = pool;
    buffer = pool->allocate(100, "survivor");
  }
  assert_false(watched.expired());
  std::memset(buffer.data(), 1, 100);
  buffer = HostBuffer();
  assert_true(watched.expired());
}

void freed_pieces_go_back_to_the_system_at_once_from_any_thread(void**) {
#if defined(WI_SANITIZED) || defined(WI_EMULATED)
  std::printf("skipped: sanitizers keep shadow memory of what was freed, emulators what they translated\n");
#else
  auto pool = HostPool::create(HostPool::kUnlimited, true);
  const uint64_t least = HostMemory::least_carved_bytes();
  for (uint64_t bytes : {least, kMiB / 16, kMiB / 8, kMiB * 3 / 4, kMiB, 2 * kMiB, 4 * kMiB, 64 * kMiB}) {
    std::vector<HostBuffer> buffers(std::max<uint64_t>(4, 64 * kMiB / bytes));
    const uint64_t before = resident_bytes();
    for (HostBuffer& buffer : buffers) {
      buffer = pool->allocate(bytes, "a piece");
      std::memset(buffer.data(), 1, bytes);
    }
    assert_true(resident_bytes() >= before + buffers.size() * bytes - kMiB);
    std::thread([&] {
      for (size_t i = 0; i < buffers.size(); i += 2) buffers[i] = HostBuffer();
    }).join();
    // 1 MiB covers what the threads and the C library take meanwhile.
    assert_true(resident_bytes() < before + buffers.size() / 2 * bytes + kMiB);
    std::thread([&] {
      for (HostBuffer& buffer : buffers) buffer = HostBuffer();
    }).join();
    assert_true(resident_bytes() < before + kMiB);
  }
#endif
}

void small_buffers_outlive_the_thread_that_allocated_them(void**) {
  auto pool = HostPool::create(HostPool::kUnlimited, true);
  std::vector<HostBuffer> buffers(1000);
  for (int round = 0; round < 20; ++round) {
    std::thread([&] {
      for (HostBuffer& buffer : buffers) {
        buffer = pool->allocate(777, "small");
        std::memset(buffer.data(), round + 1, buffer.bytes());
      }
    }).join();
    for (const HostBuffer& buffer : buffers)
      for (uint64_t i = 0; i < buffer.bytes(); ++i) assert_int_equal(buffer.as<uint8_t>()[i], round + 1);
  }
  buffers.clear();
  assert_int_equal(pool->used(), 0);
}

void threads_share_one_budget(void**) {
  constexpr uint64_t kBudget = 5 * kMiB / 2;  // less than the largest request
  auto pool = HostPool::create(kBudget, true);
  uint64_t seed = test::seed();
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (uint64_t id = 0; id < 4; ++id)
    threads.emplace_back([&, id] {
      std::mt19937_64 random(seed + id);
      std::vector<HostBuffer> held;
      for (int i = 0; i < 2000; ++i) {
        if (held.size() > 8 || (random() % 3 == 0 && !held.empty())) held.erase(held.begin());
        try {
          held.push_back(pool->allocate(1 + random() % (i % 16 == 0 ? 3 * kMiB : 64 * 1024), "random"));
          held.back().data()[held.back().bytes() - 1] = std::byte{1};
        } catch (const Error& error) {
          if (error.code() == WI_E_BUDGET) refused.fetch_add(1);
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  assert_int_equal(pool->used(), 0);
  assert_true(pool->peak() <= kBudget);
  assert_true(refused > 0);
}

void the_host_keeps_its_own_allocator(void**) {
  std::string malloc_home = home_of(dlsym(RTLD_DEFAULT, "malloc"));
  std::string new_home = home_of(dlsym(RTLD_DEFAULT, "_Znwm"));
  auto pool = HostPool::create(HostPool::kUnlimited, true);
  HostBuffer small = pool->allocate(100, "small"), big = pool->allocate(4 * kMiB, "big");
  for (const char* name : {"malloc", "free", "calloc", "realloc", "posix_memalign", "aligned_alloc"})
    assert_string_equal(home_of(dlsym(RTLD_DEFAULT, name)).c_str(), malloc_home.c_str());
  for (const char* name : {"_Znwm", "_Znam", "_ZdlPv", "_ZdaPv"})
    assert_string_equal(home_of(dlsym(RTLD_DEFAULT, name)).c_str(), new_home.c_str());
  for (const std::string& home : {malloc_home, new_home}) assert_null(std::strstr(home.c_str(), "mimalloc"));
  assert_null(dlsym(RTLD_DEFAULT, "mi_malloc"));
}

void without_mimalloc_small_buffers_are_the_c_librarys(void**) {
  // One that is not there, and one that is none.
  for (const char* soname : {"libmimalloc.so.none", "libm.so.6"}) {
    const Mimalloc table = load_mimalloc(soname);
    assert_null(dlerror());
    void* data = table.malloc_aligned(1000, 64);
    assert_non_null(data);
    assert_int_equal(reinterpret_cast<uintptr_t>(data) % 64, 0);
    std::memset(data, 1, 1000);
    table.free(data);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(buffers_are_aligned_and_writable),
      cmocka_unit_test(pieces_without_huge_pages_are_few_mappings),
      cmocka_unit_test(an_empty_buffer_costs_nothing),
      cmocka_unit_test(used_and_peak_follow_the_buffers),
      cmocka_unit_test(pools_may_share_a_budget),
      cmocka_unit_test(a_budget_may_be_what_another_leaves),
      cmocka_unit_test(copies_are_of_all_pieces),
      cmocka_unit_test(over_budget_names_purpose_and_figures_and_changes_nothing),
      cmocka_unit_test(a_refusal_of_the_system_is_an_error_and_is_not_charged),
      cmocka_unit_test(buffers_keep_their_pool_alive),
      cmocka_unit_test(freed_pieces_go_back_to_the_system_at_once_from_any_thread),
      cmocka_unit_test(small_buffers_outlive_the_thread_that_allocated_them),
      cmocka_unit_test(threads_share_one_budget),
      cmocka_unit_test(the_host_keeps_its_own_allocator),
      cmocka_unit_test(without_mimalloc_small_buffers_are_the_c_librarys),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
