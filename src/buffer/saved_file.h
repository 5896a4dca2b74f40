// A file with a name that is a slow tier for reading: a saved session. Others may read it too, and may rename,
// replace or remove it; what they write into it, checksums tell.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/types.h>
#include <tuple>

#include "src/buffer/spill_file.h"

namespace wi {

class SavedFile final : public SlowFile, public std::enable_shared_from_this<SavedFile> {
 public:
  // Where its extents begin and end, and the most that reads past the page cache may want of offsets.
  static constexpr uint64_t kMostAlignment = 4096;

  // The file of a descriptor that is open for reading, by one of its own. direct: past the page cache where its
  // file system can. Throws WI_E_IO.
  static std::shared_ptr<SavedFile> open(int file, const std::string& path, bool direct);
  ~SavedFile() override;

  bool direct() const { return alignment_ > 1; }
  // offset: a multiple of kMostAlignment; the file goes on at least as far as the next one behind the end.
  SpillExtent extent(uint64_t offset, uint64_t bytes) { return {shared_from_this(), offset, bytes}; }

  ReadSource source() const override { return {file_, alignment_}; }
  std::string name() const override { return path_; }
  void forget(uint64_t offset, uint64_t bytes) const noexcept override;

 private:
  SavedFile(int file, const std::string& path, bool direct);
  const std::string path_;
  int file_ = -1;
  uint64_t alignment_ = 1;
};

// Those that are open, so that however many sessions are loaded from a file, they have one descriptor. Thread-safe.
class SavedFiles {
 public:
  // As SavedFile's, or the one that is open of the same file with the same name.
  std::shared_ptr<SavedFile> open(int file, const std::string& path, bool direct);

 private:
  // A file that is open has its device and number for itself.
  using Key = std::tuple<dev_t, ino_t, std::string, bool>;
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<SavedFile>> files_;
};

}  // namespace wi
