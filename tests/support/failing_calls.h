// The system's calls about files, each of which can be made to fail, to do its work in part, or to take its time.
// Included by one file of a program.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>
#ifdef WI_URING
#include <liburing.h>
#endif

namespace wi::test {

enum Function {
  kOpen,
  kFcntl,
  kStatx,
  kPread,
  kPwrite,
  kFallocate,
  kPunch,
  kTruncate,
  kSync,
  kAdvise,
  kRing,
  kSubmit,
  kCompletion,
  kOpenAt,
  kWrite,
  kFsync,
  kChmod,
  kLink,
  kRename,
  kLock,
  kFunctions
};
inline constexpr const char* kNames[] = {"open",
                                         "fcntl",
                                         "statx",
                                         "pread",
                                         "pwrite",
                                         "fallocate",
                                         "punching",
                                         "ftruncate",
                                         "sync_file_range",
                                         "posix_fadvise",
                                         "io_uring_queue_init",
                                         "io_uring_submit_and_wait",
                                         "a completion",
                                         "openat",
                                         "write",
                                         "fsync",
                                         "fchmod",
                                         "linkat",
                                         "renameat",
                                         "flock"};
// Instead of an errno: a part of it is done; none is; all is, 100 ms later; or 30 ms later, but for EINTR if a signal
// comes meanwhile.
inline constexpr int kShort = -1, kEnd = -2, kSlow = -3, kInterruptible = -4;

inline struct Fault {
  std::atomic<int> function{kFunctions};
  std::atomic<int64_t> first{0}, last{0};  // calls by number, from 0
  std::atomic<int> what{0};
  std::atomic<bool> happened{false};
  std::array<std::atomic<int64_t>, kFunctions> calls{};
} fault;

inline std::atomic<bool> without_rings{false};  // whatever else fails
inline std::atomic<int> rings_left_at_work{0};

// 0: the call is to be made.
inline int fault_of(Function function) {
  const int64_t number = fault.calls[function].fetch_add(1);
  if (fault.function != function || number < fault.first || number > fault.last) return 0;
  fault.happened = true;
  if (fault.what == kSlow) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return 0;
  }
  if (fault.what == kInterruptible) {
    const timespec time{0, 30'000'000};
    return nanosleep(&time, nullptr) == 0 ? 0 : EINTR;
  }
  return fault.what;
}
inline int fails(Function function) {
  const int what = fault_of(function);
  if (what > 0) errno = what;
  return what;
}

// Other files are let alone, but for regular ones while this is set.
inline std::atomic<bool> saved_files_too{false};
inline bool may_fail(int file) {
  struct stat status {};
  return fstat(file, &status) == 0 && (status.st_nlink == 0 || (saved_files_too && S_ISREG(status.st_mode)));
}
inline bool may_fail(const char* path, int flags) {
  struct stat status {};
  return (flags & O_TMPFILE) == O_TMPFILE ||
         (saved_files_too && stat(path, &status) == 0 && S_ISREG(status.st_mode));
}

// Files are locked as network file systems do it: for one alone only where they are open for writing.
inline std::atomic<bool> locks_want_writers{false};

inline void disarm() { fault.function = kFunctions; }
inline void arm(Function function, int what, int64_t first = 0, int64_t last = INT64_MAX) {
  disarm();
  for (auto& calls : fault.calls) calls = 0;
  fault.happened = false;
  fault.what = what;
  fault.first = first;
  fault.last = last;
  fault.function = function;
}

#ifndef WI_SANITIZED  // one that sees threads has to see them made
inline std::atomic<int> threads_allowed{INT32_MAX};
#endif

}  // namespace wi::test

#pragma GCC visibility push(default)
extern "C" {
int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if (flags & (O_CREAT | O_TMPFILE)) {
    va_list rest;
    va_start(rest, flags);
    mode = va_arg(rest, mode_t);
    va_end(rest);
  }
  if (wi::test::may_fail(path, flags) && wi::test::fails(wi::test::kOpen)) return -1;
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
int fcntl(int file, int command, ...) {
  va_list rest;
  va_start(rest, command);
  const long argument = va_arg(rest, long);
  va_end(rest);
  if (command == F_SETFL && wi::test::fails(wi::test::kFcntl)) return -1;
  return static_cast<int>(syscall(SYS_fcntl, file, command, argument));
}
int statx(int folder, const char* path, int flags, unsigned mask, struct statx* to) noexcept {
  if (wi::test::fails(wi::test::kStatx)) return -1;
  return static_cast<int>(syscall(SYS_statx, folder, path, flags, mask, to));
}
ssize_t pread(int file, void* to, size_t bytes, off_t offset) {
  const int what = wi::test::may_fail(file) ? wi::test::fails(wi::test::kPread) : 0;
  if (what > 0) return -1;
  if (what == wi::test::kEnd) return 0;
#ifdef WI_SANITIZED  // which does not see what system calls write
  std::vector<char> data(bytes + 65536);
  char* const aligned = data.data() + (65536 - reinterpret_cast<uintptr_t>(data.data()) % 65536);
  const ssize_t got = syscall(SYS_pread64, file, aligned, bytes, offset);
  if (got > 0) std::memcpy(to, aligned, static_cast<size_t>(got));
#else
  const ssize_t got = syscall(SYS_pread64, file, to, bytes, offset);
#endif
  return got > 0 && what == wi::test::kShort ? got - std::min<ssize_t>(got, 700) : got;
}
ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
  const int what = wi::test::fails(wi::test::kPwrite);
  if (what > 0) return -1;
  if (what == wi::test::kEnd) return 0;
  const ssize_t done = syscall(SYS_pwrite64, file, data, bytes, offset);
  return done > 0 && what == wi::test::kShort ? done - std::min<ssize_t>(done, 700) : done;
}
int fallocate(int file, int mode, off_t offset, off_t bytes) {
  if (wi::test::fails(mode ? wi::test::kPunch : wi::test::kFallocate)) return -1;
  return static_cast<int>(syscall(SYS_fallocate, file, mode, offset, bytes));
}
int ftruncate(int file, off_t bytes) noexcept {
  if (wi::test::fails(wi::test::kTruncate)) return -1;
  return static_cast<int>(syscall(SYS_ftruncate, file, bytes));
}
int sync_file_range(int file, off_t offset, off_t bytes, unsigned flags) {
  if (wi::test::fails(wi::test::kSync)) return -1;
  return static_cast<int>(syscall(SYS_sync_file_range, file, offset, bytes, flags));
}
int flock(int file, int operation) noexcept {
  if (wi::test::locks_want_writers && (operation & LOCK_EX) &&
      (syscall(SYS_fcntl, file, F_GETFL) & O_ACCMODE) == O_RDONLY) {
    errno = EBADF;
    return -1;
  }
  if (wi::test::fails(wi::test::kLock)) return -1;
  return static_cast<int>(syscall(SYS_flock, file, operation));
}
int openat(int folder, const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {
    va_list rest;
    va_start(rest, flags);
    mode = va_arg(rest, mode_t);
    va_end(rest);
  }
  if (wi::test::fails(wi::test::kOpenAt)) return -1;
  return static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
}
ssize_t write(int file, const void* data, size_t bytes) {
  struct stat status {};
  const bool regular = fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  const int what = regular ? wi::test::fails(wi::test::kWrite) : 0;
  if (what > 0) return -1;
  if (what == wi::test::kEnd) return 0;
  return syscall(SYS_write, file, data,
                 what == wi::test::kShort ? bytes - std::min<size_t>(bytes, 700) : bytes);
}
int fsync(int file) {
  if (wi::test::fails(wi::test::kFsync)) return -1;
  return static_cast<int>(syscall(SYS_fsync, file));
}
int fchmod(int file, mode_t mode) noexcept {
  if (wi::test::fails(wi::test::kChmod)) return -1;
  return static_cast<int>(syscall(SYS_fchmod, file, mode));
}
int linkat(int from, const char* name, int to, const char* other, int flags) noexcept {
  if (wi::test::fails(wi::test::kLink)) return -1;
  return static_cast<int>(syscall(SYS_linkat, from, name, to, other, flags));
}
int renameat(int from, const char* name, int to, const char* other) noexcept {
  if (wi::test::fails(wi::test::kRename)) return -1;
  return static_cast<int>(syscall(SYS_renameat2, from, name, to, other, 0));
}
int posix_fadvise(int file, off_t offset, off_t bytes, int advice) noexcept {
  if (const int what = wi::test::fails(wi::test::kAdvise)) return what;
  return syscall(SYS_fadvise64, file, offset, bytes, advice) == 0 ? 0 : errno;
}
#ifdef WI_URING
int io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags) {
  static const auto system_init =
      reinterpret_cast<decltype(&io_uring_queue_init)>(dlsym(RTLD_NEXT, "io_uring_queue_init"));
  if (wi::test::without_rings) return -ENOSYS;
  if (const int what = wi::test::fault_of(wi::test::kRing)) return -what;
  return system_init(entries, ring, flags);
}
int io_uring_submit_and_wait(io_uring* ring, unsigned wait) {
  static const auto system_submit =
      reinterpret_cast<decltype(&io_uring_submit_and_wait)>(dlsym(RTLD_NEXT, "io_uring_submit_and_wait"));
  if (const int what = wi::test::fault_of(wi::test::kSubmit)) {
    if (what == EAGAIN) io_uring_submit(ring);  // it is the waiting that fails
    return -what;
  }
  const int result = system_submit(ring, wait);
  unsigned head;
  io_uring_cqe* entry;
  io_uring_for_each_cqe(ring, head, entry) {
    const int what = wi::test::fault_of(wi::test::kCompletion);
    if (what > 0) entry->res = -what;
    if (what == wi::test::kEnd) entry->res = 0;
    if (what == wi::test::kShort && entry->res > 0) entry->res -= std::min(entry->res, 700);
  }
  return result;
}
void io_uring_queue_exit(io_uring* ring) {
  static const auto system_exit =
      reinterpret_cast<decltype(&io_uring_queue_exit)>(dlsym(RTLD_NEXT, "io_uring_queue_exit"));
  // Counts of what the kernel has taken and of what was taken back from it.
  wi::test::rings_left_at_work += *ring->sq.khead != *ring->cq.khead;
  system_exit(ring);
}
#endif
#ifndef WI_SANITIZED
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) noexcept {
  static const auto system_create =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (wi::test::threads_allowed.fetch_sub(1) <= 0) return EAGAIN;
  return system_create(thread, attributes, body, argument);
}
#endif
}
#pragma GCC visibility pop

namespace wi::test {

// Whether the system lets this process have a ring: containers' filters of system calls often do not.
inline bool rings_are_to_be_had() {
#ifdef WI_URING
  io_uring ring{};
  if (io_uring_queue_init(8, &ring, 0) != 0) return false;
  io_uring_queue_exit(&ring);
  return true;
#else
  return false;
#endif
}

}  // namespace wi::test
