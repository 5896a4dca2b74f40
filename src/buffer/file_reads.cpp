#include "src/buffer/file_reads.h"

#include <algorithm>
#include <cerrno>
#include <unistd.h>

namespace wi {

void finish_read(FileRead& read) noexcept {
  constexpr uint64_t kMost = uint64_t{1} << 30;  // of one system call
  int stuck = 0;
  while (read.done < read.bytes) {
    const ssize_t got = pread(read.from.file, read.to + read.done, std::min(read.bytes - read.done, kMost),
                              static_cast<off_t>(read.offset + read.done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      read.error = errno;
      return;
    }
    // A part of a sector is read again, with the rest of it.
    const uint64_t whole = static_cast<uint64_t>(got) & ~(read.from.alignment - 1);
    if (whole == 0 && ++stuck == kMostStuck) {
      read.error = EIO;  // the file ends here, which it should not
      return;
    }
    read.done += whole;
  }
}

}  // namespace wi
