// Reads by the kernel's ring: all are handed over in one system call, which waits for them too. A reader has
// a ring of its own (512 entries, some 50 KB), since a ring is one thread's at a time.
#include <cerrno>
#include <unistd.h>

#include "src/buffer/file_reads.h"

#ifdef WI_URING
#include <liburing.h>
#endif

namespace wi {

#ifdef WI_URING
namespace {

class UringReads final : public FileReads {
 public:
  static constexpr unsigned kEntries = 512;

  UringReads() { open(); }
  UringReads(const UringReads&) = delete;
  UringReads& operator=(const UringReads&) = delete;
  ~UringReads() override { close(); }  // in a child made by fork(2): its view of it only

  bool is_open() const { return open_; }
  void run(std::span<FileRead> reads, const std::atomic<bool>* cancel) override;
  const char* way() const override { return "io_uring"; }

 private:
  void open() { open_ = io_uring_queue_init(kEntries, &ring_, 0) == 0; }
  void close() {
    if (open_) io_uring_queue_exit(&ring_);
    open_ = false;
  }
  bool run_ring(std::span<FileRead> reads, const std::atomic<bool>* cancel);
  size_t hand_over(std::span<FileRead> reads, size_t first, size_t most);
  size_t take_done(std::span<FileRead> reads);

  io_uring ring_{};
  bool open_ = false;
};

void UringReads::run(std::span<FileRead> reads, const std::atomic<bool>* cancel) {
  if (open_ && !run_ring(reads, cancel)) {
    close();
    open();
  }
  for (FileRead& read : reads)
    if (read.done < read.bytes && !is_set(cancel)) finish_read(read);
}

// False if the ring is not to be used again.
bool UringReads::run_ring(std::span<FileRead> reads, const std::atomic<bool>* cancel) {
  size_t handed = 0, back = 0;
  while (back < reads.size()) {
    if (is_set(cancel)) reads = reads.first(handed);
    if (back == reads.size()) break;
    handed += hand_over(reads, handed, kEntries - (handed - back));
    const size_t wait_for = handed < reads.size() ? 1 : handed - back;
    const int result = io_uring_submit_and_wait(&ring_, static_cast<unsigned>(wait_for));
    back += take_done(reads);
    if (result >= 0 || result == -EINTR) continue;
    // What the kernel has taken it will write, so that is waited for without its help.
    while (back + io_uring_sq_ready(&ring_) < handed) {
      usleep(50);
      back += take_done(reads);
    }
    return false;
  }
  return true;
}

size_t UringReads::hand_over(std::span<FileRead> reads, size_t first, size_t most) {
  size_t count = 0;
  for (; count < most && first + count < reads.size(); ++count) {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    if (!entry) break;
    const FileRead& read = reads[first + count];
    io_uring_prep_read(entry, read.from.file, read.to, static_cast<unsigned>(read.bytes), read.offset);
    io_uring_sqe_set_data64(entry, first + count);
  }
  return count;
}

size_t UringReads::take_done(std::span<FileRead> reads) {
  unsigned head = 0, count = 0;
  const io_uring_cqe* entry = nullptr;
  io_uring_for_each_cqe(&ring_, head, entry) {
    FileRead& read = reads[entry->user_data];
    if (entry->res > 0) read.done = static_cast<uint64_t>(entry->res) & ~(read.from.alignment - 1);
    ++count;
  }
  io_uring_cq_advance(&ring_, count);
  return count;
}

}  // namespace

std::unique_ptr<FileReads> make_uring_reads() {
  auto reads = std::make_unique<UringReads>();
  if (!reads->is_open()) return nullptr;
  return reads;
}

#else

std::unique_ptr<FileReads> make_uring_reads() { return nullptr; }

#endif

}  // namespace wi
