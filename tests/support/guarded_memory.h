// Memory that is open while a copy or a kernel runs and closed at any other time, and the CPU's backend with
// kernels that open it: whatever else follows a pointer into it is a fault. With one thread to the runtime
// that is exact; with more, one may read while another's kernel runs.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <utility>

#include "kernels/ops.h"
#include "src/memory/memory.h"

namespace wi::test {

class GuardedMemory final : public Memory {
 public:
  // While there is one, all guarded memory of the process is open.
  class Opening {
   public:
    Opening() { count(1); }
    Opening(const Opening&) = delete;
    ~Opening() { count(-1); }
  };

  std::byte* allocate(uint64_t bytes, HostPages) override {
    const std::lock_guard lock(mutex);
    if (!begin && !reserve()) return nullptr;
    const size_t size = whole(kUnit, bytes);
    const auto hole = std::find_if(holes.begin(), holes.end(), [&](auto& one) { return one.second >= size; });
    if (hole == holes.end()) return nullptr;
    std::byte* const data = hole->first;
    if (hole->second > size) holes[data + size] = hole->second - size;
    holes.erase(data);
    const size_t end = whole(kHugePage, static_cast<uint64_t>(data - begin) + size);
    if (end > used && openings) mprotect(begin + used, end - used, PROT_READ | PROT_WRITE);
    used = std::max(used, end);
    return data;
  }
  void free(std::byte* data, uint64_t bytes) noexcept override {
    const std::lock_guard lock(mutex);
    auto hole = holes.emplace(data, whole(kUnit, bytes)).first;
    const auto join_next = [](auto first) {
      const auto next = std::next(first);
      if (next == holes.end() || first->first + first->second != next->first) return;
      first->second += next->second;
      holes.erase(next);
    };
    join_next(hole);
    if (hole != holes.begin()) join_next(std::prev(hole));
  }
  void copy(std::span<const CopyPiece> copies) override {
    const Opening open;
    for (const CopyPiece& piece : copies) std::memcpy(piece.to, piece.from, piece.bytes);
    copied += copies.size();
  }
  using Memory::copy;
  bool host_loads() const override { return false; }
  static inline std::atomic<uint64_t> copied = 0;  // pieces, by all of them

 private:
  static void count(int more) {
    const std::lock_guard lock(mutex);
    const bool was_open = openings > 0;
    openings += more;
    if (was_open != (openings > 0)) mprotect(begin, used, openings ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
  static bool reserve() {
    void* const mapped =
        mmap(nullptr, kBytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return false;
    begin = reinterpret_cast<std::byte*>(whole(kHugePage, reinterpret_cast<uintptr_t>(mapped)));
    holes[begin] = kBytes;
    madvise(begin, kBytes, MADV_HUGEPAGE);
    return true;
  }
  static size_t whole(uint64_t unit, uint64_t bytes) {
    return static_cast<size_t>((bytes + unit - 1) / unit * unit);
  }
  static inline std::mutex mutex;
  static inline int openings = 0;
  // Pieces of one mapping, in huge pages where there are any: it is opened and closed for each kernel that runs.
  static constexpr size_t kUnit = 64, kHugePage = size_t{1} << 21, kBytes = size_t{1} << 31;
  static inline std::byte* begin = nullptr;
  static inline size_t used = 0;                     // of it, from the beginning on
  static inline std::map<std::byte*, size_t> holes;  // bytes from there on; no two of them side by side
};

namespace guarded {

struct CpuBackend {
  static const Backend& table() { return cpu_backend(); }
};
template <size_t Which>
struct CpuPolicy {
  static const Policy& table() { return cpu_backend().policies[Which]; }
};
template <size_t Which>
struct CpuPieces {
  static const IndexPieces& table() { return *CpuPolicy<Which>::table().pieces; }
};

// The operation of Of's table, opening the memory while it runs.
template <auto Operation, class Of, class Result, class... Args>
void open_for(Result (*&operation)(Args...)) {
  if (!operation) return;
  operation = [](Args... args) -> Result {
    const GuardedMemory::Opening open;
    return (Of::table().*Operation)(args...);
  };
}

template <size_t Which>
Policy policy() {
  Policy own = CpuPolicy<Which>::table();
  open_for<&Policy::index, CpuPolicy<Which>>(own.index);
  open_for<&Policy::cut, CpuPolicy<Which>>(own.cut);
  open_for<&Policy::select, CpuPolicy<Which>>(own.select);
  open_for<&Policy::estimate, CpuPolicy<Which>>(own.estimate);
  if (own.pieces) {
    static const IndexPieces pieces = [] {
      IndexPieces opening = CpuPieces<Which>::table();
      open_for<&IndexPieces::run, CpuPieces<Which>>(opening.run);
      return opening;
    }();
    own.pieces = &pieces;
  }
  return own;
}

constexpr size_t kPolicies = 4;  // of the CPU's, from the first on

template <size_t... Which>
const Policy* policies(std::index_sequence<Which...>) {
  static const Policy table[] = {policy<Which>()...};
  return table;
}

}  // namespace guarded

inline const Backend& guarded_backend() {
  static const Backend backend = [] {
    Backend own = cpu_backend();
    guarded::open_for<&Backend::append, guarded::CpuBackend>(own.append);
    guarded::open_for<&Backend::attend, guarded::CpuBackend>(own.attend);
    guarded::open_for<&Backend::attend_chunk, guarded::CpuBackend>(own.attend_chunk);
    own.policies = guarded::policies(std::make_index_sequence<guarded::kPolicies>());
    own.policy_count = guarded::kPolicies;
    return own;
  }();
  return backend;
}

}  // namespace wi::test
