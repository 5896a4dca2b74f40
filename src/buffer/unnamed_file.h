// A file without a name, which ends with the last descriptor of it, however the process ends; past the page
// cache (O_DIRECT) where its file system can.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace wi {

class UnnamedFile {
 public:
  // Without a name from the start (O_TMPFILE); where the file system has no such files, it has one for the
  // instant until that is removed, by the next one in the folder if this process is killed then. direct false: through
  // the page cache in any case. Throws WI_E_IO, which names the folder and the reason, also where a block cannot be
  // written or read now; not where the disk is full, which is no error before there is something to write.
  UnnamedFile(const std::string& folder, bool direct);
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;
  ~UnnamedFile();

  int number() const { return file_; }
  const std::string& folder() const { return folder_; }
  bool direct() const { return direct_; }
  // What offsets and lengths of reads, and addresses, must be multiples of: 1 through the page cache.
  uint64_t read_alignment() const { return read_alignment_; }
  // The same for writes, holes and reserved space, which are the file system's blocks.
  uint64_t block_bytes() const { return block_bytes_; }

  // All of it, or throws WI_E_IO. Aligned as above.
  void write(uint64_t offset, const std::byte* data, uint64_t bytes);

 private:
  void pass_by_page_cache();
  bool works(std::byte* block);

  std::string folder_;
  int file_ = -1;
  bool direct_ = false;
  uint64_t read_alignment_ = 1, block_bytes_ = 4096;
};

// What a file opened with O_DIRECT wants its offsets and lengths, and addresses, to be multiples of, as the
// system tells, or `untold` where it does not; 0: it is to be read through the page cache.
uint64_t direct_alignment(int file, uint64_t untold);

// A whole multiple of a power of two.
inline uint64_t round_down(uint64_t value, uint64_t alignment) { return value & ~(alignment - 1); }
inline uint64_t round_up(uint64_t value, uint64_t alignment) {
  return round_down(value + alignment - 1, alignment);
}
inline std::byte* round_up(std::byte* at, uint64_t alignment) {
  return at + (round_up(reinterpret_cast<uintptr_t>(at), alignment) - reinterpret_cast<uintptr_t>(at));
}

}  // namespace wi
