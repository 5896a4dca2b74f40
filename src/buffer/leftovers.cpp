#include "src/buffer/leftovers.h"

#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace wi {
namespace {

bool lock(int file) { return flock(file, LOCK_EX | LOCK_NB) == 0; }

// For writing where that may be: network file systems lock a file for one alone only if he might write to it.
int open_to_lock(int folder, const char* name) {
  constexpr int kFlags = O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC;
  const int file = openat(folder, name, O_RDWR | kFlags);
  return file >= 0 ? file : openat(folder, name, O_RDONLY | kFlags);
}

bool is_left(int file, uid_t given_to) {
  struct stat status {};
  return fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
         (status.st_uid == geteuid() || status.st_uid == given_to) && lock(file);
}

// It may have gone meanwhile, and its name be another's.
bool is_named(int file, int folder, const char* name) {
  struct stat status {
  }, named{};
  return fstat(file, &status) == 0 && fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         named.st_ino == status.st_ino && named.st_dev == status.st_dev;
}

}  // namespace

bool lock_own(int file) {
  struct stat status {};
  if (!lock(file) && errno == EWOULDBLOCK) return false;
  return fstat(file, &status) == 0 && status.st_nlink > 0;
}

void remove_leftovers(int folder, const char* prefix, uid_t given_to) {
  const int readable = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (readable < 0) return;
  DIR* entries = fdopendir(readable);
  if (!entries) {
    close(readable);
    return;
  }
  while (const dirent* entry = readdir(entries)) {
    if (std::strncmp(entry->d_name, prefix, std::strlen(prefix)) != 0) continue;
    const int file = open_to_lock(folder, entry->d_name);
    if (file < 0) continue;
    if (is_left(file, given_to) && is_named(file, folder, entry->d_name)) unlinkat(folder, entry->d_name, 0);
    close(file);
  }
  closedir(entries);
}

}  // namespace wi
