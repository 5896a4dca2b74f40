// A regular file to be read. Anything else at its path (a FIFO, a device, a folder) is refused at once:
// opening or reading it could wait for ever.
#pragma once

#include <string>

#include "src/store/byte_stream.h"

namespace wi {

class InputFile final : public ByteSource {
 public:
  explicit InputFile(const std::string& path);  // throws WI_E_IO
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile() override;

  const std::string& path() const { return path_; }
  int number() const { return file_; }
  uint64_t bytes() const override { return bytes_; }
  void read(uint64_t offset, void* to, size_t bytes) override;
  void expect(uint64_t offset, uint64_t bytes) noexcept override;

 private:
  std::string path_;
  int file_ = -1;
  uint64_t bytes_ = 0;
};

}  // namespace wi
