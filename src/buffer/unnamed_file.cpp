#include "src/buffer/unnamed_file.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <sys/stat.h>
#include <unistd.h>

#include "src/buffer/file_reads.h"
#include "src/buffer/leftovers.h"
#include "src/error.h"
#include "src/file_size_signal.h"

namespace wi {
namespace {

// Of a page, of nearly every file system's blocks, and of the disks' sectors, where the system does not tell.
constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kMostAlignment = 65536;  // what asks for more is not worth going round the page cache
constexpr uint64_t kPieceBytes = uint64_t{4} << 20;  // of one system call
constexpr char kPrefix[] = ".waveinfer-spill-";

int open_nameless(const std::string& folder);

}  // namespace

UnnamedFile::UnnamedFile(const std::string& folder, bool direct) : folder_(folder) {
  file_ = open_nameless(folder);
  if (file_ < 0) throw_errno(WI_E_IO, "cannot create a spill file in " + folder, errno);
  try {
    if (direct) pass_by_page_cache();
    // Clusters are wanted here and there: what lies behind them is not.
    if (!direct_) posix_fadvise(file_, 0, 0, POSIX_FADV_RANDOM);
  } catch (...) {
    close(file_);
    throw;
  }
}

UnnamedFile::~UnnamedFile() { close(file_); }

void UnnamedFile::write(uint64_t offset, const std::byte* data, uint64_t bytes) {
  const uint64_t alignment = direct_ ? block_bytes_ : 1;
  int stuck = 0;
  while (bytes > 0) {
    ssize_t wrote;
    {
      NoFileSizeSignal guard;
      wrote = pwrite(file_, data, std::min(bytes, kPieceBytes), static_cast<off_t>(offset));
      guard.refused = wrote < 0 && errno == EFBIG;
    }
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) throw_errno(WI_E_IO, "cannot write to the spill file in " + folder_, errno);
    // A part of a block is written again, with the rest of it.
    const uint64_t done = round_down(static_cast<uint64_t>(wrote), alignment);
    if (done == 0 && ++stuck == kMostStuck)
      throw_errno(WI_E_IO, "cannot write to the spill file in " + folder_, EIO);
    offset += done;
    data += done;
    bytes -= done;
  }
}

// ---- opening ----

// Many a file system takes the flag; whether it takes the reads and writes is tried with one block.
void UnnamedFile::pass_by_page_cache() {
  const int flags = fcntl(file_, F_GETFL);
  if (flags < 0 || fcntl(file_, F_SETFL, flags | O_DIRECT) != 0) return;
  const uint64_t alignment = direct_alignment(file_, kBlockBytes);
  if (alignment > 0 && alignment <= kMostAlignment) {
    block_bytes_ = std::max(alignment, kBlockBytes);
    const std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(block_bytes_, block_bytes_),
                                                            std::free);
    check(block != nullptr, WI_E_MEMORY, "the system refused ", block_bytes_, " bytes for a spill file");
    direct_ = true;  // for write()
    direct_ = works(static_cast<std::byte*>(block.get()));
  }
  if (direct_)
    read_alignment_ = alignment;
  else
    fcntl(file_, F_SETFL, flags);
}

uint64_t direct_alignment([[maybe_unused]] int file, uint64_t untold) {
#ifdef STATX_DIOALIGN
  struct statx status {};
  if (statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN)) {
    const uint64_t told = std::max(status.stx_dio_offset_align, status.stx_dio_mem_align);
    return std::has_single_bit(told) ? told : 0;
  }
#endif
  return untold;
}

// A disk that is full at the moment takes no block, and may have room when it is asked for: that its file system took the
// flag has to do. What else is wrong says nothing of it: it is thrown.
bool UnnamedFile::works(std::byte* block) {
  std::memset(block, 0, block_bytes_);
  FileRead read{{file_, block_bytes_}, 0, block_bytes_, block};
  try {
    write(0, block, block_bytes_);
    finish_read(read);
    if (read.done < read.bytes) throw_errno(WI_E_IO, "cannot read the spill file in " + folder_, read.error);
  } catch (const Error& error) {
    const int code = error.native_code();
    const bool full = code == ENOSPC || code == EDQUOT;
    if (!full && code != EINVAL && code != EOPNOTSUPP) throw;
    return full;
  }
  [[maybe_unused]] const int cut = ftruncate(file_, 0);  // else it is in the place of what comes
  return true;
}

namespace {

// For an instant: a process that is killed then leaves it for the next one.
int open_named(const std::string& folder) {
  for (int tries = 0; tries < 100; ++tries) {
    std::string name = folder + "/" + kPrefix + "XXXXXX";
    const int file = mkostemp(name.data(), O_CLOEXEC);
    if (file < 0) return file;
    const bool is_own = lock_own(file);
    if (is_own && unlink(name.c_str()) == 0) return file;
    const int reason = errno;
    close(file);
    errno = reason;
    if (is_own) return -1;
  }
  errno = EEXIST;
  return -1;
}

int open_nameless(const std::string& folder) {
  if (const int within = open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC); within >= 0) {
    remove_leftovers(within, kPrefix, geteuid());
    close(within);
  }
  int file;
  do file = open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  while (file < 0 && errno == EINTR);
  return file >= 0 || folder.empty() ? file : open_named(folder);
}

}  // namespace
}  // namespace wi
