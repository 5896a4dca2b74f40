// Pieces carved from mappings: disjoint, given back to the system one by one, and few mappings whatever is freed.
#include "src/memory/carved_memory.h"

#include <random>
#include <sys/mman.h>
#include <sys/resource.h>
#include <thread>
#include <vector>

#include "src/memory/pages.h"
#include "tests/test.h"

using namespace wi;

namespace {

constexpr uint64_t kMapping = CarvedMemory::kMappingBytes;

struct Piece {
  std::byte* data;
  uint64_t bytes;
  std::byte content;
};

bool holds(const Piece& piece, std::byte content) {
  return piece.data[0] == content && std::memcmp(piece.data, piece.data + 1, piece.bytes - 1) == 0;
}

void pieces_are_disjoint_whole_pages(void**) {
  std::mt19937_64 random(test::seed());
  CarvedMemory memory;
  std::vector<Piece> pieces;
  const auto free_one = [&](size_t i) {
    assert_true(holds(pieces[i], pieces[i].content));
    memory.free(pieces[i].data, pieces[i].bytes);
    pieces[i] = pieces.back();
    pieces.pop_back();
  };
  for (int i = 0; i < 3000; ++i) {
    if (pieces.size() > 100 || (random() % 3 == 0 && !pieces.empty())) free_one(random() % pieces.size());
    const uint64_t bytes = i % 100 == 0 ? kMapping : 2 + random() % (uint64_t{1} << (10 + random() % 12));
    std::byte* const data = memory.allocate(bytes);
    assert_non_null(data);
    assert_int_equal(reinterpret_cast<uintptr_t>(data) % page_bytes(), 0);
    assert_true(holds({data, bytes, {}}, std::byte{0}));  // another's content is gone
    pieces.push_back({data, bytes, static_cast<std::byte>(1 + random() % 255)});
    std::memset(data, static_cast<int>(pieces.back().content), bytes);
  }
  while (!pieces.empty()) free_one(pieces.size() - 1);
  assert_int_equal(memory.mappings(), 1);
}

// 20000 holes: each would be a mapping more.
void holes_take_no_mappings(void**) {
  CarvedMemory memory;
  const uint64_t bytes = 8 * page_bytes();
  std::vector<std::byte*> pieces(40'000);
  for (std::byte*& piece : pieces) piece = memory.allocate(bytes);
  const size_t mappings = memory.mappings();
  assert_int_equal(mappings, (pieces.size() * bytes + kMapping - 1) / kMapping);
  for (size_t i = 0; i < pieces.size(); i += 2) memory.free(pieces[i], bytes);
  for (size_t i = 0; i < pieces.size(); i += 2) pieces[i] = memory.allocate(bytes);
  assert_int_equal(memory.mappings(), mappings);
  std::thread([&] {
    for (std::byte* piece : pieces) memory.free(piece, bytes);
  }).join();
  assert_int_equal(memory.mappings(), 1);  // for the next one
}

void what_is_locked_in_memory_is_given_back_too(void**) {
#ifndef MADV_DONTNEED_LOCKED
  std::printf("skipped: this system's headers have no word for it\n");
#else
  CarvedMemory memory;
  const uint64_t bytes = 8 * page_bytes();
  std::byte* const data = memory.allocate(bytes);
  if (mlock(data, bytes) != 0) return static_cast<void>(std::printf("skipped: nothing may be locked\n"));
  if (madvise(data, bytes, MADV_DONTNEED_LOCKED) != 0)
    return static_cast<void>(std::printf("skipped: the kernel is older than 5.18\n"));
  std::memset(data, 1, bytes);
  memory.free(data, bytes);
  assert_ptr_equal(memory.allocate(bytes), data);
  assert_true(holds({data, bytes, {}}, std::byte{0}));
  munlock(data, bytes);
  memory.free(data, bytes);
#endif
}

// A process that has all the mappings it may have: what lies between others cannot be unmapped.
void without_mappings_to_spare_what_is_in_a_piece_is_given_back_all_the_same(void**) {
#if defined(WI_SANITIZED) || defined(WI_EMULATED)
  std::printf("skipped: sanitizers and emulators need mappings of their own\n");
#else
  CarvedMemory memory;
  std::byte* const piece = memory.allocate(kMapping);
  std::vector<std::byte*> others;
  for (int i = 0; i < 4; ++i) others.push_back(memory.allocate(kMapping));
  std::memset(piece, 1, kMapping);
  // Every other page of these is a mapping.
  constexpr size_t kMost = 1 << 20;
  auto* const pages = static_cast<std::byte*>(
      mmap(nullptr, kMost * page_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  assert_true(pages != MAP_FAILED);
  size_t at = 1;
  while (at < kMost && mprotect(pages + at * page_bytes(), page_bytes(), PROT_READ) == 0) at += 2;
  const bool at_the_limit = at < kMost;
  memory.free(others[0], kMapping);  // the one that stays
  for (size_t i = 1; i < others.size(); ++i) memory.free(others[i], kMapping);
  memory.free(piece, kMapping);
  const size_t left = memory.mappings();
  // None is lost: those that could not go are used again.
  std::vector<std::byte*> again;
  for (size_t i = 0; i < left; ++i) {
    again.push_back(memory.allocate(kMapping));
    assert_true(holds({again[i], kMapping, {}}, std::byte{0}));
  }
  assert_int_equal(memory.mappings(), left);
  munmap(pages, kMost * page_bytes());
  for (std::byte* data : again) memory.free(data, kMapping);
  assert_int_equal(memory.mappings(), 1);
  print_message("at the limit %d: %zu mappings of 5 stayed until there were mappings again\n", at_the_limit,
                left);
#endif
}

void what_the_system_refuses_is_null(void**) {
#if defined(WI_SANITIZED) || defined(WI_EMULATED)
  std::printf("skipped: sanitizers and emulators need memory of their own\n");
#else
  CarvedMemory memory;
  std::byte* const first = memory.allocate(100);
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  const rlimit none{0, before.rlim_max};
  setrlimit(RLIMIT_AS, &none);
  std::byte *const refused = memory.allocate(kMapping), *const second = memory.allocate(200);
  setrlimit(RLIMIT_AS, &before);
  assert_null(refused);
  assert_ptr_equal(second, first + page_bytes());
  memory.free(first, 100);
  memory.free(second, 200);
#endif
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(pieces_are_disjoint_whole_pages),
      cmocka_unit_test(holes_take_no_mappings),
      cmocka_unit_test(what_is_locked_in_memory_is_given_back_too),
      cmocka_unit_test(without_mappings_to_spare_what_is_in_a_piece_is_given_back_all_the_same),
      cmocka_unit_test(what_the_system_refuses_is_null),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
