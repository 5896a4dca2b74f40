// Small buffers come from mimalloc; large ones are mappings of their own. mimalloc 2 keeps a freed block
// of less than 16 MB until the thread that allocated it allocates again, which in a host with threads of
// its own may be never: a cache that shrinks must really shrink.
#include "src/memory/host_pool.h"

#include <cerrno>
#include <sys/mman.h>
#include <unistd.h>

#include "src/error.h"
#include "src/memory/mimalloc.h"

namespace wi {
namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

std::byte* map(uint64_t bytes, bool huge_pages);
void unmap(std::byte* data, uint64_t bytes);

}  // namespace

std::shared_ptr<HostPool> HostPool::create(uint64_t budget_bytes, bool huge_pages) {
  return std::shared_ptr<HostPool>(new HostPool(budget_bytes, huge_pages));
}

HostBuffer HostPool::allocate(uint64_t bytes, const char* purpose, HostPages pages) {
  if (bytes == 0) return {};
  charge(bytes, purpose);
  try {
    std::byte* data = bytes < kMappedBytes ? static_cast<std::byte*>(mimalloc().malloc_aligned(bytes, 64))
                                           : map(bytes, huge_pages_ && pages == HostPages::huge);
    if (!data)
      fail(WI_E_MEMORY, "the system refused ", bytes, " bytes for ", purpose, " (", used() - bytes,
           " in use)");
    return {shared_from_this(), data, bytes};
  } catch (...) {
    refund(bytes);
    throw;
  }
}

void HostPool::charge(uint64_t bytes, const char* purpose) {
  uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (used > budget_ || bytes > budget_ - used)
      fail(WI_E_BUDGET, purpose, " wants ", bytes, " bytes, ", used, " of the budget of ", budget_,
           " are used");
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  uint64_t peak = peak_.load(std::memory_order_relaxed);
  while (peak < used + bytes && !peak_.compare_exchange_weak(peak, used + bytes, std::memory_order_relaxed)) {
  }
}

void HostPool::refund(uint64_t bytes) noexcept { used_.fetch_sub(bytes, std::memory_order_relaxed); }

void HostPool::free(std::byte* data, uint64_t bytes) noexcept {
  if (bytes < kMappedBytes)
    mimalloc().free(data);
  else
    unmap(data, bytes);
  refund(bytes);
}

HostBuffer::~HostBuffer() {
  if (data_) pool_->free(data_, bytes_);
}

namespace {

uint64_t page_bytes() {
  static const uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}
uint64_t round_to_page(uint64_t bytes) { return (bytes + page_bytes() - 1) & ~(page_bytes() - 1); }

#ifdef MADV_HUGEPAGE
constexpr int kWithHugePages = MADV_HUGEPAGE, kWithoutHugePages = MADV_NOHUGEPAGE;
#else
constexpr int kWithHugePages = MADV_NORMAL, kWithoutHugePages = MADV_NORMAL;
#endif

// Maps a huge page more than asked and cuts both ends off, so that the piece starts on a huge page.
std::byte* map(uint64_t bytes, bool huge_pages) {
  if (bytes > PTRDIFF_MAX - 2 * kHugePageBytes) return nullptr;
  uint64_t length = round_to_page(bytes), reserved = length + kHugePageBytes - page_bytes();
  void* start = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  auto address = reinterpret_cast<uintptr_t>(start);
  uintptr_t aligned = (address + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  if (aligned > address) munmap(start, aligned - address);
  uint64_t tail = address + reserved - (aligned + length);
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + length), tail);
  auto* data = reinterpret_cast<std::byte*>(aligned);
  // Advice: a kernel without transparent huge pages says no, and small pages do.
  madvise(data, length, huge_pages ? kWithHugePages : kWithoutHugePages);
  return data;
}

void unmap(std::byte* data, uint64_t bytes) { munmap(data, round_to_page(bytes)); }

}  // namespace
}  // namespace wi
