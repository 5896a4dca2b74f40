// mmap behind RAII, and reading whole small files. The descriptor of a mapping is closed at once: the mapping
// keeps the file alive by itself.
#include "src/files/mapped_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "src/error.h"

namespace wi {

namespace {

constexpr size_t kPieceBytes = size_t{4}
                               << 20;  // copied or read between two looks at the clock: a millisecond

// A regular file that is open for reading, and how long it is.
class RegularFile {
 public:
  explicit RegularFile(const std::string& path)
      // Without O_NONBLOCK, opening a FIFO waits for somebody who writes to it.
      : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
    struct stat status {};
    const int error = descriptor_ < 0 || ::fstat(descriptor_, &status) != 0 ? errno : 0;
    if (error == 0 && S_ISREG(status.st_mode) && status.st_size >= 0) {
      bytes_ = static_cast<size_t>(status.st_size);
      return;
    }
    if (descriptor_ >= 0) ::close(descriptor_);  // no destructor runs after a constructor that throws
    if (error != 0) throw_errno(WI_E_IO, concat("cannot open ", path), error);
    if (S_ISDIR(status.st_mode)) throw_errno(WI_E_IO, concat("cannot open ", path), EISDIR);
    throw_error(WI_E_IO, concat("cannot open ", path, ": it is no regular file"), EINVAL);
  }
  ~RegularFile() { ::close(descriptor_); }
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  int descriptor() const { return descriptor_; }
  size_t bytes() const { return bytes_; }

 private:
  int descriptor_;
  size_t bytes_ = 0;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const RegularFile file(path);
  check(file.bytes() > 0, WI_E_FORMAT, file_name(path), ": the file is empty");
  void* data = ::mmap(nullptr, file.bytes(), PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    throw_errno(error == ENOMEM ? WI_E_MEMORY : WI_E_IO, concat("cannot map ", path), error);
  }
  data_ = data;
  size_ = file.bytes();
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

std::string read_small_file(const std::string& path, uint64_t most, Watch* watch) {
  const RegularFile file(path);
  check(file.bytes() > 0, WI_E_FORMAT, file_name(path), ": the file is empty");
  check(file.bytes() <= most, WI_E_FORMAT, file_name(path), ": the file has ", file.bytes(),
        " bytes, at most ", most, " are allowed");
  std::string text(file.bytes(), '\0');
  for (size_t at = 0; at < text.size(); tick(watch)) {
    const ssize_t count = ::pread(file.descriptor(), text.data() + at,
                                  std::min(kPieceBytes, text.size() - at), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno(WI_E_IO, concat("cannot read ", path), errno);
    check(count > 0, WI_E_FORMAT, file_name(path), ": the file ended at byte ", at, " while it was read");
    at += static_cast<size_t>(count);
  }
  return text;
}

void copy_watched(void* to, const void* from, uint64_t bytes, Watch* watch) {
  for (uint64_t at = 0; at < bytes; tick(watch)) {
    const uint64_t piece = std::min<uint64_t>(kPieceBytes, bytes - at);
    std::memcpy(static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at, piece);
    at += piece;
  }
}

std::string file_name(const std::string& path) {
  size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path;
  size_t slash = path.find_last_of('/', end);
  size_t begin = slash == std::string::npos ? 0 : slash + 1;
  return path.substr(begin, end + 1 - begin);
}

}  // namespace wi
