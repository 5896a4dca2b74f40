// A whole file mapped read-only: model weights are used where they lie, shared with every process that maps
// the same file. Parsers see it as a span of bytes and never as a path.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "src/files/watch.h"

namespace wi {

// The bytes are the file's as long as nobody changes it. A file that another process shortens while it is
// mapped takes its pages away: reading them then ends the process with SIGBUS, as for every program that
// maps files. Replace model files by renaming a new one over the old; never truncate one that is in use, or
// copy the weights when they are opened (copy_weights.h).
class MappedFile {
 public:
  // Throws WI_E_IO (errno as native code; also for what is no regular file: a FIFO would be waited for), or for
  // an empty file WI_E_FORMAT.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  // Asks the system to read the file ahead, so that the first token does not pay a fault per page.
  void read_ahead() const;
  // Takes the pages that were read out of this process's memory; the system's cache keeps them.
  void drop_pages() const;

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// The bytes of a small file, read and not mapped; as above, and WI_E_FORMAT for one of more than `most` bytes.
std::string read_small_file(const std::string& path, uint64_t most, Watch* watch);

std::string file_name(const std::string& path);  // the last part: what error messages name a file by

}  // namespace wi
