// A host's read and write callbacks as what a session is loaded from and saved to.
#pragma once

#include "src/store/byte_stream.h"
#include "waveinfer.h"

namespace wi {

class HostWriter final : public ByteSink {
 public:
  explicit HostWriter(const wi_writer& writer) : writer_(writer) {}
  void write(const void* data, size_t bytes) override;

 private:
  wi_writer writer_;
};

class HostReader final : public ByteSource {
 public:
  explicit HostReader(const wi_reader& reader) : reader_(reader) {}
  uint64_t bytes() const override { return reader_.bytes; }
  void read(uint64_t offset, void* to, size_t bytes) override;

 private:
  wi_reader reader_;
};

}  // namespace wi
