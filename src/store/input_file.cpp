#include "src/store/input_file.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/error.h"

namespace wi {

InputFile::InputFile(const std::string& path) : path_(path) {
  // Looked at before it is opened, for opening a device may do something; and after, for it may have changed.
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) throw_errno(WI_E_IO, "cannot open " + path, errno);
  check(S_ISREG(status.st_mode), WI_E_IO, path, " is not a regular file");
  do file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  while (file_ < 0 && errno == EINTR);
  if (file_ < 0) throw_errno(WI_E_IO, "cannot open " + path, errno);
  const bool known = fstat(file_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    close(file_);
    fail(WI_E_IO, path, " is not a regular file");
  }
  bytes_ = static_cast<uint64_t>(status.st_size);
}

InputFile::~InputFile() { close(file_); }

void InputFile::read(uint64_t offset, void* to, size_t bytes) {
  char* out = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(file_, out, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(WI_E_IO, "cannot read " + path_, errno);
    check(got > 0, WI_E_FORMAT, path_, ": ends at byte ", offset, ", it became shorter while it was read");
    out += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
}

void InputFile::expect(uint64_t offset, uint64_t bytes) noexcept {
  if (offset < bytes_)
    posix_fadvise(file_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

}  // namespace wi
