#include "src/store/output_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "src/buffer/leftovers.h"
#include "src/error.h"
#include "src/file_size_signal.h"

namespace wi {
namespace {

constexpr char kPrefix[] = ".waveinfer-save-";
constexpr size_t kPieceBytes = size_t{4} << 20;  // of one system call

bool in_proc(const std::string& folder);
void name_anew(char* name, size_t capacity);
void sync_piece(int file, uint64_t offset, uint64_t bytes, const std::string& path);

}  // namespace

OutputFile::OutputFile(const std::string& path, Temporary kind) : path_(path) {
  try {
    follow(path);
    remove_leftovers(folder_, kPrefix, had_file_ ? owner_ : geteuid());
    const mode_t mode = had_file_ ? 0600 : 0666;
    if (kind == Temporary::unnamed) open_unnamed(mode);
    if (file_ < 0) open_named(mode);
  } catch (...) {
    close_all();
    throw;
  }
}

OutputFile::~OutputFile() { close_all(); }

void OutputFile::write(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t done;
    {
      NoFileSizeSignal guard;
      done = ::write(file_, from, std::min(bytes, kPieceBytes));
      guard.refused = done < 0 && errno == EFBIG;
    }
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw_errno(WI_E_IO, "cannot write " + path_, errno);
    sync_piece(file_, written_, static_cast<uint64_t>(done), path_);
    written_ += static_cast<uint64_t>(done);
    from += done;
    bytes -= static_cast<size_t>(done);
  }
}

void OutputFile::commit() {
  put_in_place();
  // The name itself must survive a power cut as well. The file is whole either way, so no error from here.
  if (const int folder = openat(folder_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); folder >= 0) {
    fsync(folder);
    close(folder);
  }
  close_all();
}

// ---- finding the place ----

// The folder and the name that path means once every link at its end is followed, as an editor does. The
// system itself follows first: it may refuse to (links of others in a folder that all may write).
void OutputFile::follow(const std::string& path) {
  struct stat target {};
  if (path.empty()) throw_errno(WI_E_IO, "cannot save to \"\"", ENOENT);
  if (const int there = open(path.c_str(), O_PATH | O_CLOEXEC); there >= 0) {
    had_file_ = fstat(there, &target) == 0;
    close(there);
    check(had_file_ && S_ISREG(target.st_mode), WI_E_IO, path, " is there and not a regular file");
    mode_ = target.st_mode & 0777;
    owner_ = target.st_uid;
    group_ = target.st_gid;
  } else if (errno != ENOENT) {
    throw_errno(WI_E_IO, "cannot save to " + path, errno);
  }
  constexpr int kMostLinks = 40;  // as the system
  std::string at = path;
  for (int links = 0;; ++links) {
    if (links == kMostLinks) throw_errno(WI_E_IO, "cannot save to " + path, ELOOP);
    const size_t slash = at.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : at.substr(0, slash);
    name_ = slash == std::string::npos ? at : at.substr(slash + 1);
    if (name_.empty() || name_ == "." || name_ == "..")
      throw_errno(WI_E_IO, "cannot save to " + path, EISDIR);
    char link[4096];
    const ssize_t bytes = readlink(at.c_str(), link, sizeof link);
    if (bytes < 0) return open_folder(folder);
    check(
        !in_proc(folder), WI_E_IO, "cannot save to ", path, ": ", at,
        " is an open file of a process, for which no other can be put; wi_session_save_to and wi_kv_save_to "
        "write to wherever the host does");
    const std::string to(link, static_cast<size_t>(bytes));
    at = to.starts_with('/') ? to : std::string(folder).append("/").append(to);
  }
}

void OutputFile::open_folder(const std::string& folder) {
  folder_ = open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder_ < 0) throw_errno(WI_E_IO, "cannot create a file beside " + path_, errno);
}

// ---- the temporary file ----

// Leaves file_ at -1 where the filesystem has no unnamed files, or they could not be given a name afterwards.
void OutputFile::open_unnamed(mode_t mode) {
  file_ = openat(folder_, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
  if (file_ < 0) return;
  char by_number[32];
  std::snprintf(by_number, sizeof by_number, "/proc/self/fd/%d", file_);
  if (access(by_number, F_OK) != 0) {
    close(file_);
    file_ = -1;
    return;
  }
  lock_own(file_);  // it is given a name later
}

void OutputFile::open_named(mode_t mode) {
  for (int tries = 0; tries < 100; ++tries) {
    name_anew(temporary_, sizeof temporary_);
    file_ = openat(folder_, temporary_, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, mode);
    if (file_ < 0 && errno != EEXIST) {
      temporary_[0] = 0;
      throw_errno(WI_E_IO, "cannot create a file beside " + path_, errno);
    }
    if (file_ < 0) continue;
    if (lock_own(file_)) return;
    close(file_);
    file_ = -1;
  }
  temporary_[0] = 0;
  throw_errno(WI_E_IO, "cannot create a file beside " + path_, EEXIST);
}

bool OutputFile::link_as(const char* name) const {
  char by_number[32];
  std::snprintf(by_number, sizeof by_number, "/proc/self/fd/%d", file_);
  return linkat(AT_FDCWD, by_number, folder_, name, AT_SYMLINK_FOLLOW) == 0;
}

void OutputFile::link_temporary() {
  for (int tries = 0; tries < 100 && !temporary_[0]; ++tries) {
    char name[kNameBytes];
    name_anew(name, sizeof name);
    if (link_as(name))
      std::memcpy(temporary_, name, sizeof name);
    else if (errno != EEXIST)
      break;
  }
  if (!temporary_[0]) throw_errno(WI_E_IO, "cannot create a file beside " + path_, errno);
}

// ---- the end ----

void OutputFile::put_in_place() {
  struct stat target {};
  const bool there = fstatat(folder_, name_.c_str(), &target, AT_SYMLINK_NOFOLLOW) == 0;
  if (there) {
    check(S_ISREG(target.st_mode), WI_E_IO, path_, " is there and not a regular file");
    had_file_ = true;
    mode_ = target.st_mode & 0777;
    owner_ = target.st_uid;
    group_ = target.st_gid;
  }
  flush();
  if (had_file_) {
    // Given away when nothing is left to write: killed from here on, its file is not this user's to remove any more.
    // A group that cannot be kept must not get what the old group could do.
    struct stat own {};
    mode_t mode = mode_;
    if (fstat(file_, &own) != 0) throw_errno(WI_E_IO, "cannot write " + path_, errno);
    if ((own.st_uid != owner_ || own.st_gid != group_) && fchown(file_, owner_, group_) != 0 &&
        own.st_gid != group_ && fchown(file_, static_cast<uid_t>(-1), group_) != 0)
      mode = (mode & ~mode_t{070}) | (mode & mode_t{07}) << 3;
    if (fchmod(file_, mode) != 0) throw_errno(WI_E_IO, "cannot write " + path_, errno);
    flush();
  }
  if (!there && !temporary_[0] && link_as(name_.c_str())) return;
  if (!temporary_[0]) link_temporary();
  if (renameat(folder_, temporary_, folder_, name_.c_str()) != 0)
    throw_errno(WI_E_IO, "cannot rename onto " + path_, errno);
  temporary_[0] = 0;
}

void OutputFile::flush() {
  int synced;
  while ((synced = fsync(file_)) != 0 && errno == EINTR) {
  }
  if (synced != 0) throw_errno(WI_E_IO, "cannot flush " + path_, errno);
}

void OutputFile::close_all() noexcept {
  if (temporary_[0]) unlinkat(folder_, temporary_, 0);
  temporary_[0] = 0;
  if (file_ >= 0) close(file_);
  if (folder_ >= 0) close(folder_);
  file_ = folder_ = -1;
}

namespace {

// Links there (/proc/self/fd/1, which /dev/stdout is one to) lead to a file by themselves; what they read is a text
// about it: a path that it had once, or one that is none.
bool in_proc(const std::string& folder) {
  struct statfs system {};
  return statfs(folder.c_str(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
}

void name_anew(char* name, size_t capacity) {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof number)) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    number = (static_cast<uint64_t>(now.tv_nsec) << 32) ^ (static_cast<uint64_t>(getpid()) << 8) ^
             static_cast<uint64_t>(now.tv_sec);
  }
  std::snprintf(name, capacity, "%s%016llx", kPrefix, static_cast<unsigned long long>(number));
}

// Starts writing a piece to the disk and waits for those before it, so that the sync at the end, which
// nothing can interrupt, has little left to do. What is no disk says so and is left alone.
void sync_piece(int file, uint64_t offset, uint64_t bytes, const std::string& path) {
  const auto failed = [](int result) {
    return result != 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT);
  };
  constexpr unsigned kWait = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  const uint64_t lag = std::min<uint64_t>(offset, 2 * kPieceBytes);
  const auto at = static_cast<off_t>(offset);
  if (failed(sync_file_range(file, at, static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE)) ||
      (lag == 2 * kPieceBytes &&
       failed(sync_file_range(file, at - static_cast<off_t>(lag), static_cast<off_t>(bytes), kWait))))
    throw_errno(WI_E_IO, "cannot write " + path, errno);
}

}  // namespace
}  // namespace wi
