// Where the bytes of a saved session go to and come from: a file, or a host's callbacks. Both are used from
// the beginning to the end.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wi {

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void write(const void* data, size_t bytes) = 0;  // all of them, or it throws WI_E_IO
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t bytes() const = 0;
  // offset + bytes is at most bytes(). All of them, or it throws WI_E_IO, or WI_E_FORMAT if they are gone.
  virtual void read(uint64_t offset, void* to, size_t bytes) = 0;
  // These will be read soon, as far as there are so many.
  virtual void expect(uint64_t, uint64_t) noexcept {}
};

}  // namespace wi
