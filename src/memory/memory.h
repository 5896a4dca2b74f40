// A kind of memory that pools hand out pieces of. Whoever owns a piece knows its address, but only code that
// the memory is meant for may follow it; all other code has copy(), and so does not care where keys and
// values are: with the host, in a file or on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace wi {

// What a large piece of host memory is made of: huge pages, if the system has them, are quicker to read from
// all over; the first touch of one takes the system 0.1 ms where memory is at hand and 7 ms where it is not.
enum class HostPages { huge, small };

struct CopyPiece {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

// Thread-safe; any thread may free what another allocated.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;

  // 64-byte aligned, its content unspecified. bytes > 0. Null: the system refused; what else went wrong is thrown.
  virtual std::byte* allocate(uint64_t bytes, HostPages pages) = 0;
  virtual void free(std::byte* data, uint64_t bytes) noexcept = 0;  // bytes: as allocated
  // So many are likely to be asked for soon: memory that is slow to be had may get them ready.
  virtual void expect([[maybe_unused]] uint64_t bytes) noexcept {}

  // From and to this memory and the host's, in any combination; all of it is done on return. Pieces do not
  // overlap.
  virtual void copy(std::span<const CopyPiece> pieces) = 0;
  // The same of pieces of this memory that come to lie one behind the other in the host's.
  virtual void gather(std::span<const CopyPiece> pieces) { copy(pieces); }
  void copy(void* to, const void* from, size_t bytes) {
    const CopyPiece piece{to, from, bytes};
    copy({&piece, 1});
  }

  // Whether any code of this process may follow its pointers. If not, the kernels may that it is made for.
  virtual bool host_loads() const = 0;
  // Whether the kernels that may are a device's, which then read nothing of the host's own memory.
  virtual bool of_device() const { return false; }
};

}  // namespace wi
