// mmap behind RAII. The descriptor is closed at once: the mapping keeps the file alive by itself.
#include "src/model/mapped_file.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "src/error.h"

namespace wi {

MappedFile::MappedFile(const std::string& path) {
  int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw_errno(WI_E_IO, concat("cannot open ", path), errno);
  struct stat status {};
  int error = ::fstat(file, &status) != 0 ? errno : 0;
  if (error == 0 && S_ISDIR(status.st_mode)) error = EISDIR;
  if (error == 0 && !S_ISREG(status.st_mode)) error = EINVAL;
  if (error == 0 && status.st_size > 0) {
    size_ = static_cast<size_t>(status.st_size);
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    if (data_ == MAP_FAILED) error = errno;
  }
  ::close(file);
  if (error != 0) throw_errno(WI_E_IO, concat("cannot map ", path), error);
  check(size_ > 0, WI_E_FORMAT, file_name(path), ": the file is empty");
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

void MappedFile::read_ahead() const {
  ::madvise(data_, size_, MADV_WILLNEED);  // advice: where the system ignores it, pages come on first touch
}

void MappedFile::drop_pages() const { ::madvise(data_, size_, MADV_DONTNEED); }

std::string file_name(const std::string& path) {
  size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path;
  size_t slash = path.find_last_of('/', end);
  size_t begin = slash == std::string::npos ? 0 : slash + 1;
  return path.substr(begin, end + 1 - begin);
}

}  // namespace wi
