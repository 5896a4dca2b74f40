#include "src/buffer/saved_file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/error.h"

namespace wi {
namespace {

// Another description of the same file, whatever its name is by now, with flags of its own.
int open_again(int file, int flags) {
  char by_number[32];
  std::snprintf(by_number, sizeof by_number, "/proc/self/fd/%d", file);
  int again;
  do again = open(by_number, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
  while (again < 0 && errno == EINTR);
  return again;
}

// Whether the first block can be read so.
bool works(int file) {
  constexpr uint64_t kBytes = SavedFile::kMostAlignment;
  const std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(kBytes, kBytes), std::free);
  return block && pread(file, block.get(), kBytes, 0) == static_cast<ssize_t>(kBytes);
}

}  // namespace

std::shared_ptr<SavedFile> SavedFile::open(int file, const std::string& path, bool direct) {
  return std::shared_ptr<SavedFile>(new SavedFile(file, path, direct));
}

SavedFile::SavedFile(int file, const std::string& path, bool direct) : path_(path) {
  if (direct && (file_ = open_again(file, O_DIRECT)) >= 0) {
    alignment_ = direct_alignment(file_, kMostAlignment);
    if (alignment_ > 1 && alignment_ <= kMostAlignment && works(file_)) return;
    alignment_ = 1;
    close(file_);
  }
  file_ = open_again(file, 0);
  if (file_ >= 0)
    posix_fadvise(file_, 0, 0, POSIX_FADV_RANDOM);
  else
    file_ = fcntl(file, F_DUPFD_CLOEXEC, 0);  // without /proc
  if (file_ < 0) throw_errno(WI_E_IO, "cannot open " + path + " again", errno);
}

SavedFile::~SavedFile() { close(file_); }

void SavedFile::forget(uint64_t offset, uint64_t bytes) const noexcept {
  const uint64_t begin = round_down(offset, kMostAlignment), end = round_up(offset + bytes, kMostAlignment);
  posix_fadvise(file_, static_cast<off_t>(begin), static_cast<off_t>(end - begin), POSIX_FADV_DONTNEED);
}

std::shared_ptr<SavedFile> SavedFiles::open(int file, const std::string& path, bool direct) {
  struct stat status {};
  if (fstat(file, &status) != 0) throw_errno(WI_E_IO, "cannot look at " + path, errno);
  std::lock_guard lock(mutex_);
  std::erase_if(files_, [](const auto& known) { return known.second.expired(); });
  std::weak_ptr<SavedFile>& known = files_[{status.st_dev, status.st_ino, path, direct}];
  std::shared_ptr<SavedFile> found = known.lock();
  if (!found) known = found = SavedFile::open(file, path, direct);
  return found;
}

}  // namespace wi
