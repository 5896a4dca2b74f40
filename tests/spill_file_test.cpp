// The slow tier in a file: what is read is what was written, at any alignment, by the kernel's ring and by
// threads, past the page cache and through it, whatever call fails meanwhile; the space is the limit's, and
// goes back to the disk.
#include "src/buffer/spill_file.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <future>
#include <linux/falloc.h>
#include <linux/magic.h>
#include <random>
#include <set>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "src/buffer/spill_reader.h"
#include "tests/support/allocations.h"
#include "tests/support/failing_calls.h"
#include "tests/support/folder.h"
#include "tests/support/patience.h"
#include "tests/test.h"

using namespace wi;
using namespace wi::test;

namespace {

using Random = std::mt19937_64;
using Bytes = std::vector<unsigned char>;

constexpr uint64_t kUnlimited = SpillFile::kUnlimited;

struct Way {
  const char* name;
  SpillOptions options;
};
const Way kWays[] = {{"ring, past the page cache", {true, true, 4}},
                     {"threads, past the page cache", {true, false, 4}},
                     {"ring, through the page cache", {false, true, 4}},
                     {"threads, through the page cache", {false, false, 4}}};

std::shared_ptr<HostPool> unlimited_pool() { return HostPool::create(HostPool::kUnlimited, false); }

std::shared_ptr<SpillFile> open_in(const Folder& folder, const SpillOptions& options = {},
                                   uint64_t most = kUnlimited) {
  return SpillFile::open(folder.path, most, unlimited_pool(), options);
}

uint64_t up_to(Random& random, uint64_t most) { return random() % (most + 1); }

Bytes random_bytes(Random& random, uint64_t count) {
  Bytes bytes(count);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

// An extent and what it should hold.
struct Piece {
  SpillExtent extent;
  Bytes bytes;
};

Piece write_new(SpillFile& file, Random& random, uint64_t count) {
  Piece piece{file.reserve(count, "a piece"), random_bytes(random, count)};
  assert_int_equal(piece.extent.bytes(), count);
  file.write(piece.extent, 0, piece.bytes.data(), count);
  return piece;
}

void write_part(SpillFile& file, Random& random, Piece& piece) {
  const uint64_t first = up_to(random, piece.bytes.size() - 1);
  const uint64_t count = 1 + up_to(random, piece.bytes.size() - first - 1);
  const Bytes part = random_bytes(random, count);
  std::copy(part.begin(), part.end(), piece.bytes.begin() + static_cast<ptrdiff_t>(first));
  file.write(piece.extent, first, part.data(), count);
}

// Requests at random, of pieces; right() when all hold what they should, and nothing around them is touched.
class Batch {
 public:
  Batch(Random& random, const std::vector<Piece>& pieces, size_t count, uint64_t most_bytes) {
    uint64_t total = 0;
    for (size_t i = 0; i < count; ++i) {
      const Piece& piece = pieces[random() % pieces.size()];
      const uint64_t first = up_to(random, piece.bytes.size());
      const uint64_t bytes = std::min(piece.bytes.size() - first, up_to(random, most_bytes));
      requests_.push_back({&piece.extent, first, bytes, nullptr});
      wanted_.push_back(piece.bytes.data() + first);
      places_.push_back(total += random() % 3);
      total += bytes;
    }
    destination_.resize(total + 3);
    clear();
    for (size_t i = 0; i < count; ++i) requests_[i].to = destination_.data() + places_[i];
  }
  std::span<const ReadRequest> requests() const { return requests_; }
  void clear() { std::fill(destination_.begin(), destination_.end(), kUntouched); }
  bool right() const {
    uint64_t at = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      for (; at < places_[i]; ++at)
        if (destination_[at] != kUntouched) return false;
      if (!std::equal(wanted_[i], wanted_[i] + requests_[i].bytes, destination_.data() + at)) return false;
      at += requests_[i].bytes;
    }
    return std::all_of(destination_.begin() + static_cast<ptrdiff_t>(at), destination_.end(),
                       [](auto byte) { return byte == kUntouched; });
  }

 private:
  static constexpr unsigned char kUntouched = 0xa5;
  std::vector<ReadRequest> requests_;
  std::vector<const unsigned char*> wanted_;
  std::vector<uint64_t> places_;
  Bytes destination_;
};

void assert_reads_right(SpillReader& reader, Random& random, const std::vector<Piece>& pieces, size_t count,
                        uint64_t most_bytes) {
  Batch batch(random, pieces, count, most_bytes);
  reader.read(batch.requests());
  assert_true(batch.right());
}

// The spill file's descriptor, which nobody is told: it is the folder's only one.
int descriptor_in(const Folder& folder) {
  int found = -1;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    const std::string what = std::filesystem::read_symlink(entry.path(), none).string();
    if (what.starts_with(folder.path + "/")) found = std::stoi(entry.path().filename());
  }
  return found;
}

struct stat status_in(const Folder& folder) {
  struct stat status {};
  assert_int_equal(fstat(descriptor_in(folder), &status), 0);
  return status;
}
// With what the file system itself needs to find them, kOwnBytes at most.
constexpr uint64_t kOwnBytes = 65536;
uint64_t disk_bytes(const Folder& folder) { return static_cast<uint64_t>(status_in(folder).st_blocks) * 512; }

// ---- Content ----

void what_is_read_is_what_was_written(void**) {
  for (const Way& way : kWays) {
    Random random(test::seed());
    Folder folder;
    auto file = open_in(folder, way.options);
    SpillReader reader(file);
    std::vector<Piece> pieces;
    uint64_t written = 0;
    for (int round = 0; round < 40; ++round) {
      for (uint64_t n = up_to(random, 3); n > 0 || pieces.empty(); n -= n > 0) {
        const uint64_t bytes = 1 + up_to(random, round % 10 == 0 ? 3000000 : 60000);
        pieces.push_back(write_new(*file, random, bytes));
        written += bytes;
      }
      write_part(*file, random, pieces[random() % pieces.size()]);
      if (round % 10 == 5) assert_reads_right(reader, random, pieces, 700, 16384);
      assert_reads_right(reader, random, pieces, up_to(random, 60), 20000);
      assert_reads_right(reader, random, pieces, up_to(random, 3), 3000000);
      while (pieces.size() > 8 || (pieces.size() > 1 && random() % 3 == 0))
        pieces.erase(pieces.begin() + static_cast<ptrdiff_t>(random() % pieces.size()));
      assert_int_equal(folder.entries(), 0);
    }
    const SpillStats stats = file->stats();
    assert_true(stats.written_bytes > written && stats.stalls > 50 && stats.wait_ns > 0);
    assert_true(stats.reads > 0 && stats.read_bytes > 0 && stats.wanted_bytes > 0);
    if (!way.options.uring) assert_string_equal(reader.way(), "threads");
    std::printf("  %s: %s, %s, %llu requests in %llu reads\n", way.name, reader.way(),
                file->direct() ? "direct" : "cached", static_cast<unsigned long long>(stats.requests),
                static_cast<unsigned long long>(stats.reads));
    pieces.clear();
    assert_int_equal(file->used(), 0);
  }
}

// Each thread has a reader and pieces of its own, and reads those of all, which nobody writes meanwhile.
void threads_read_write_and_free_at_once(void**) {
  for (const Way& way : kWays) {
    Folder folder;
    auto file = open_in(folder, way.options);
    Random random(test::seed());
    std::vector<Piece> shared;
    for (int i = 0; i < 10; ++i) shared.push_back(write_new(*file, random, 1 + up_to(random, 90000)));
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        Random own_random(test::seed() + static_cast<uint64_t>(t) + 1);
        SpillReader reader(file);
        std::vector<Piece> own;
        for (int round = 0; round < 25; ++round) {
          own.push_back(write_new(*file, own_random, 1 + up_to(own_random, 30000)));
          write_part(*file, own_random, own.back());
          for (const auto* pieces : {&shared, &own}) {
            Batch batch(own_random, *pieces, 50, 9000);
            reader.read(batch.requests());
            wrong += !batch.right();
          }
          if (own.size() > 3) own.erase(own.begin());
        }
      });
    for (std::thread& thread : threads) thread.join();
    assert_int_equal(wrong, 0);
    shared.clear();
    assert_int_equal(file->used(), 0);
  }
}

void requests_that_share_sectors_are_one_read(void**) {
  Folder folder;
  auto file = open_in(folder);
  if (!file->direct()) skip();
  Random random(test::seed());
  const Piece piece = write_new(*file, random, 100000);
  SpillReader reader(file);
  Bytes destination(50000);
  std::vector<ReadRequest> requests;
  for (uint64_t i = 0; i < 50; ++i)
    requests.push_back(
        {&piece.extent, 30000 + 1000 * (i * 7 % 50), 1000, destination.data() + 1000 * (i * 7 % 50)});
  reader.read(requests);
  assert_memory_equal(destination.data(), piece.bytes.data() + 30000, 50000);
  assert_int_equal(file->stats().reads, 1);
  assert_int_equal(file->stats().wanted_bytes, 50000);
  assert_true(file->stats().read_bytes >= 50000 && file->stats().read_bytes < 50000 + 2 * 65536);
}

void a_reader_reads_with_the_memory_that_it_can_have(void**) {
  Folder folder;
  auto pool = HostPool::create(3 << 20, false);
  auto file = SpillFile::open(folder.path, kUnlimited, pool);
  if (!file->direct()) skip();
  Random random(test::seed());
  std::vector<Piece> pieces;
  for (int i = 0; i < 3; ++i) pieces.push_back(write_new(*file, random, 2000000));
  SpillReader reader(file);
  const HostBuffer rest = pool->allocate(pool->budget() - pool->used(), "the rest");
  const uint64_t least = reader.buffer_bytes();
  assert_reads_right(reader, random, pieces, 500, 16384);
  assert_reads_right(reader, random, pieces, 4, 2000000);
  assert_int_equal(reader.buffer_bytes(), least);
  assert_error(WI_E_BUDGET, "reading from the spill file wants", SpillReader another(file));
}

void a_step_allocates_nothing_once_it_was_run(void**) {
  if (!test::kCounting) skip();
  for (const Way& way : kWays) {
    Folder folder;
    auto pool = unlimited_pool();
    auto file = SpillFile::open(folder.path, kUnlimited, pool, way.options);
    Random random(test::seed());
    std::vector<Piece> pieces;
    pieces.push_back(write_new(*file, random, 3000000));
    SpillReader reader(file);
    Batch batch(random, pieces, 400, 8192);
    reader.read(batch.requests());
    const uint64_t used = pool->used();
    const int64_t before = test::allocations;
    for (int i = 0; i < 5; ++i) reader.read(batch.requests());
    assert_int_equal(test::allocations, before);
    assert_int_equal(pool->used(), used);
    assert_true(batch.right());
  }
}

// Of file systems that keep pages whatever one asks: in memory, or over another that alone could write them out.
bool keeps_pages(const Folder& folder) {
  struct statfs status {};
  assert_int_equal(fstatfs(descriptor_in(folder), &status), 0);
  return status.f_type == TMPFS_MAGIC || status.f_type == OVERLAYFS_SUPER_MAGIC;
}

// Of the first bytes of the file, in the page cache.
double cached_share(const Folder& folder, size_t bytes) {
  void* const view = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor_in(folder), 0);
  assert_true(view != MAP_FAILED);
  std::vector<unsigned char> resident((bytes + 4095) / 4096);
  assert_int_equal(mincore(view, bytes, resident.data()), 0);
  munmap(view, bytes);
  const auto cached = std::count_if(resident.begin(), resident.end(), [](auto page) { return page & 1; });
  return static_cast<double>(cached) / static_cast<double>(resident.size());
}

// What a read brings in and a write leaves there is no memory that a budget knows.
void the_page_cache_keeps_nothing(void**) {
  for (const Way& way : kWays) {
    Folder folder;
    auto file = open_in(folder, way.options);
    if (keeps_pages(folder)) skip();
    Random random(test::seed());
    std::vector<Piece> pieces;
    pieces.push_back(write_new(*file, random, 2000000));
    SpillReader reader(file);
    assert_reads_right(reader, random, pieces, 300, 16384);
    const double share = cached_share(folder, 2000000);
    arm(kAdvise, EINVAL);  // what it would be without asking
    assert_reads_right(reader, random, pieces, 300, 16384);
    disarm();
    const double unasked = cached_share(folder, 2000000);
    std::printf("  %s: %.0f %% cached, %.0f %% if not asked to forget\n", way.name, 100 * share,
                100 * unasked);
    assert_true(share < 0.05);  // a few pages may be on their way to a list of the kernel's
    assert_true((unasked > 0.3) == !file->direct());
  }
}

// ---- The file ----

void the_file_has_no_name_and_is_nobody_elses(void**) {
  for (const bool has_nameless : {true, false}) {
    Folder folder;
    if (!has_nameless) arm(kOpen, EOPNOTSUPP);
    auto file = open_in(folder);
    disarm();
    assert_int_equal(folder.entries(), 0);
    Random random(test::seed());
    std::vector<Piece> pieces;
    pieces.push_back(write_new(*file, random, 100000));
    SpillReader reader(file);
    assert_reads_right(reader, random, pieces, 20, 5000);
    assert_int_equal(folder.entries(), 0);
    const struct stat status = status_in(folder);
    assert_int_equal(status.st_nlink, 0);
    assert_int_equal(status.st_mode & 07777, 0600);
    assert_true(::fcntl(descriptor_in(folder), F_GETFD, 0L) & FD_CLOEXEC);
  }
}

// Between its making and its losing its name, where a file system has no files without one.
void what_a_killed_process_leaves_the_next_removes(void**) {
  for (const bool has_nameless : {true, false}) {
    Folder folder;
    for (const char* name :
         {".waveinfer-spill-abcdef", ".waveinfer-spill-living", "a user's .waveinfer-spill-"})
      test::spill(folder.file(name), "x");
    const int living = ::open(folder.file(".waveinfer-spill-living").c_str(), O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(living, LOCK_EX), 0);
    if (!has_nameless) arm(kOpen, EOPNOTSUPP);
    auto file = open_in(folder);
    disarm();
    assert_int_equal(access(folder.file(".waveinfer-spill-abcdef").c_str(), F_OK), -1);
    assert_int_equal(folder.entries(), 2);
    close(living);
    file = open_in(folder);
    assert_int_equal(folder.entries(), 1);
  }
}

// Many at once, each of which may take another's for one that was left.
void processes_leave_each_others_files_alone(void**) {
  Folder folder;
  arm(kOpen, EOPNOTSUPP);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) open_in(folder);
    });
  for (std::thread& thread : threads) thread.join();
  disarm();
  assert_int_equal(folder.entries(), 0);
}

void a_folder_that_takes_no_file_is_named(void**) {
  Folder folder;
  const auto open_at = [](const std::string& path) { SpillFile::open(path, kUnlimited, unlimited_pool()); };
  assert_error(WI_E_IO, "/absent: No such file", open_at(folder.file("absent")));
  test::spill(folder.file("file"), "x");
  assert_error(WI_E_IO, "/file: Not a directory", open_at(folder.file("file")));
  assert_error(WI_E_IO, "No such file", open_at(""));
}

// What fails for another reason, as on a disk that is full at that moment, does not send all that is written later
// through the page cache.
void only_a_file_system_that_cannot_goes_through_the_page_cache(void**) {
  Folder folder;
  const bool can = open_in(folder)->direct();
  if (!can) std::printf("  no O_DIRECT in %s\n", folder.path.c_str());
  const auto with = [&](Function function, int what) {
    arm(function, what, 0, 0);
    auto file = open_in(folder);
    assert_true(fault.happened || !can);
    disarm();
    return file;
  };
  for (const Function function : {kPwrite, kPread}) {
    for (const int reason : {EINVAL, EOPNOTSUPP}) assert_false(with(function, reason)->direct());
    for (const int interrupted : {EINTR, kShort, kEnd})
      assert_true(with(function, interrupted)->direct() == can);
    for (const int reason : {ENOSPC, EDQUOT}) assert_true(with(function, reason)->direct() == can);
    if (can) assert_error(WI_E_IO, strerror(EIO), with(function, EIO));
    assert_int_equal(folder.entries(), 0);
  }
  disarm();
  assert_true(open_in(folder)->direct() == can);
  assert_true(with(kTruncate, EIO)->direct() == can);
}

// ---- Space ----

// Against a map of bytes.
void extents_are_disjoint_and_first_fit(void**) {
  Random random(test::seed());
  for (int story = 0; story < 30; ++story) {
    Extents extents;
    std::vector<bool> taken;
    std::vector<std::pair<uint64_t, uint64_t>> held;
    const uint64_t most = 200 + up_to(random, 400);
    for (int step = 0; step < 400; ++step) {
      if (held.empty() || random() % 100 < 55) {
        const uint64_t bytes = 1 + up_to(random, 30);
        uint64_t wanted = 0, run = 0, at = 0;
        for (; at < taken.size() && run < bytes; ++at) run = taken[at] ? 0 : run + 1;
        wanted = run >= bytes ? at - bytes : taken.size();
        if (wanted + bytes > most) wanted = Extents::kNowhere;
        const uint64_t got = extents.take(bytes, most);
        assert_int_equal(got, wanted);
        if (got == Extents::kNowhere) continue;
        taken.resize(std::max<size_t>(taken.size(), got + bytes), true);
        std::fill_n(taken.begin() + static_cast<ptrdiff_t>(got), bytes, true);
        held.emplace_back(got, bytes);
      } else {
        std::swap(held[random() % held.size()], held.back());
        const auto [offset, bytes] = held.back();
        held.pop_back();
        extents.give(offset, bytes);
        std::fill_n(taken.begin() + static_cast<ptrdiff_t>(offset), bytes, false);
        while (!taken.empty() && !taken.back()) taken.pop_back();
      }
      assert_int_equal(extents.end(), taken.size());
      assert_int_equal(extents.used(), std::count(taken.begin(), taken.end(), true));
    }
  }
}

void the_limit_is_held_and_the_refused_are_told(void**) {
  Folder folder;
  auto file = open_in(folder, {}, 1 << 20);
  SpillExtent first = file->reserve(600000, "first");
  const uint64_t used = file->used();
  assert_true(used >= 600000 && used < 600000 + 65536);
  assert_error(WI_E_BUDGET, "second wants 500000 bytes of the spill file in",
               file->reserve(500000, "second"));
  assert_error(WI_E_BUDGET, concat(used, " of its 1048576 are used").c_str(),
               file->reserve(500000, "second"));
  for (uint64_t bytes : {UINT64_MAX, UINT64_MAX - 4095, uint64_t{1} << 63, uint64_t{(1 << 20) + 1}})
    assert_error(WI_E_BUDGET, "wants", file->reserve(bytes, "too much"));
  assert_int_equal(file->used(), used);
  assert_true(disk_bytes(folder) <= (1 << 20) + kOwnBytes);
  const SpillExtent rest = file->reserve((1 << 20) - used, "rest");
  assert_error(WI_E_BUDGET, "wants 1 bytes", file->reserve(1, "one more"));
  assert_false(static_cast<bool>(file->reserve(0, "nothing")));
  first = SpillExtent();
  const SpillExtent again = file->reserve(600000, "again");
  assert_int_equal(file->used(), 1 << 20);
}

void freed_space_is_reused_and_goes_back_to_the_disk(void**) {
  Folder folder;
  auto file = open_in(folder);
  constexpr uint64_t kPiece = 1 << 20;
  std::vector<SpillExtent> extents;
  for (int i = 0; i < 8; ++i) extents.push_back(file->reserve(kPiece, "a piece"));
  const uint64_t all = disk_bytes(folder);
  const off_t length = status_in(folder).st_size;
  assert_true(all >= 8 * kPiece);  // before anything is written
  extents[2] = SpillExtent();
  extents[3] = SpillExtent();
  assert_true(disk_bytes(folder) <= all - 2 * kPiece + kOwnBytes);
  assert_int_equal(status_in(folder).st_size, length);
  extents[2] = file->reserve(2 * kPiece, "both");
  assert_int_equal(status_in(folder).st_size, length);
  assert_true(disk_bytes(folder) >= 8 * kPiece);
  extents[6] = SpillExtent();
  extents[7] = SpillExtent();
  assert_int_equal(status_in(folder).st_size, 6 * kPiece);
  extents.clear();
  assert_int_equal(status_in(folder).st_size, 0);
  assert_int_equal(disk_bytes(folder), 0);
}

// There the file's length is what the disk has lost.
void without_holes_the_files_length_is_held_to_the_limit(void**) {
  Folder folder;
  auto file = open_in(folder, {}, 4 << 20);
  arm(kPunch, EOPNOTSUPP);
  std::vector<SpillExtent> extents;
  for (int i = 0; i < 4; ++i) extents.push_back(file->reserve(1 << 20, "a piece"));
  extents[0] = SpillExtent();
  extents[2] = SpillExtent();
  assert_error(WI_E_BUDGET, "in smaller pieces", file->reserve(2 << 20, "large"));
  extents[2] = file->reserve(1 << 20, "small");
  assert_true(disk_bytes(folder) <= (4 << 20) + kOwnBytes);
  disarm();
}

// A disk that is full, or fails once, makes the holes later; meanwhile it has lost the file's length.
void holes_that_failed_are_made_later(void**) {
  for (const int reason : {EIO, ENOSPC, EDQUOT}) {
    Folder folder;
    auto file = open_in(folder, {}, 4 << 20);
    std::vector<SpillExtent> extents;
    for (int i = 0; i < 4; ++i) extents.push_back(file->reserve(1 << 20, "a piece"));
    const uint64_t all = disk_bytes(folder);
    arm(kPunch, reason);
    extents[0] = SpillExtent();
    assert_true(fault.happened);
    extents[2] = SpillExtent();
    assert_error(WI_E_BUDGET, "in smaller pieces", file->reserve(2 << 20, "large"));
    assert_true(disk_bytes(folder) >= all - kOwnBytes && disk_bytes(folder) <= (4 << 20) + kOwnBytes);
    disarm();
    extents[2] = file->reserve(2 << 20, "large");  // behind the others
    assert_true(disk_bytes(folder) <= (4 << 20) + kOwnBytes);
    arm(kPunch, reason, 0, 0);
    extents[3] = SpillExtent();
    assert_true(disk_bytes(folder) >= all - kOwnBytes);
    extents[1] = SpillExtent();  // both
    assert_true(disk_bytes(folder) <= (2 << 20) + kOwnBytes);
    disarm();
    assert_int_equal(file->used(), 2 << 20);
  }
}

void where_nothing_can_be_reserved_zeros_are_written(void**) {
  for (const Way& way : kWays) {
    Folder folder;
    arm(kFallocate, EOPNOTSUPP);
    auto file = open_in(folder, way.options, 8 << 20);
    Random random(test::seed());
    std::vector<Piece> pieces;
    for (int i = 0; i < 5; ++i) pieces.push_back({file->reserve(1500000, "a piece"), Bytes(1500000)});
    assert_true(disk_bytes(folder) >= 5 * 1500000);
    SpillReader reader(file);
    assert_reads_right(reader, random, pieces, 30, 5000);
    for (Piece& piece : pieces) write_part(*file, random, piece);
    pieces.erase(pieces.begin() + 1);
    assert_error(WI_E_BUDGET, "wants", file->reserve(2000000, "large"));
    pieces.push_back(write_new(*file, random, 1400000));
    assert_reads_right(reader, random, pieces, 30, 5000);
    disarm();
  }
}

// As a profiler's come. A file system in memory gives back what it has reserved when it is interrupted, and would have
// to begin anew for ever.
void signals_that_come_again_and_again_keep_nothing_from_being_reserved(void**) {
  Folder folder;
  const auto file = open_in(folder);
  struct sigaction counted {
  }, before{};
  static volatile sig_atomic_t ticks;
  ticks = 0;
  counted.sa_handler = [](int) { ticks = ticks + 1; };
  counted.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &counted, &before);
  const itimerval often{{0, 5000}, {0, 5000}}, never{};
  setitimer(ITIMER_REAL, &often, nullptr);
  constexpr int kTries = 20;  // that the signals may spoil before they are let work
  arm(kFallocate, kInterruptible, 0, kTries - 1);
  const SpillExtent extent = file->reserve(100000, "a piece");
  const int64_t tries = fault.calls[kFallocate];
  disarm();
  for (int waits = 0; ticks == 0 && waits < 1000; ++waits) usleep(1000);
  setitimer(ITIMER_REAL, &never, nullptr);
  assert_true(ticks > 0);  // the handler is the thread's again
  sigaction(SIGALRM, &before, nullptr);
  assert_int_equal(tries, 1);
}

// Of a segment that is as long as they are.
void reserving_ends_soon_after_a_cancel(void**) {
  Folder folder;
  const auto file = open_in(folder);
  const SpillExtent first = file->reserve(100000, "a piece");
  const uint64_t used = file->used(), disk = disk_bytes(folder);
  int polls = 0;
  const std::function<void()> stop = [&] {
    if (++polls == 3) fail(WI_E_CANCELLED, "enough");
  };
  assert_error(WI_E_CANCELLED, "enough", file->reserve(uint64_t{80} << 20, "a long one", stop));
  assert_int_equal(file->used(), used);
  assert_in_range(disk_bytes(folder), 0, disk + kOwnBytes);
  assert_int_equal(file->reserve(uint64_t{80} << 20, "a long one").bytes(), uint64_t{80} << 20);
}

// Which takes as long as a disk does.
void zeros_end_soon_after_a_cancel(void**) {
  for (const Way& way : kWays) {
    Folder folder;
    arm(kFallocate, EOPNOTSUPP);
    const auto file = open_in(folder, way.options);
    const SpillExtent first = file->reserve(100000, "a piece");
    const uint64_t used = file->used();
    int polls = 0;
    const std::function<void()> stop = [&] {
      if (++polls == 2) fail(WI_E_CANCELLED, "enough");
    };
    assert_error(WI_E_CANCELLED, "enough", file->reserve(3000000, "a long one", stop));
    assert_int_equal(file->used(), used);
    assert_int_equal(file->reserve(3000000, "a long one").bytes(), 3000000);
    disarm();
  }
}

// A session is released in the middle of them.
void what_is_given_back_waits_for_no_zeros(void**) {
  for (const Way& way : kWays) {
    Folder folder;
    arm(kFallocate, EOPNOTSUPP);
    const auto file = open_in(folder, way.options);
    SpillExtent first = file->reserve(100000, "a piece");
    const uint64_t before = file->used();
    std::future<void> released;
    std::future_status status = std::future_status::deferred;
    const SpillExtent second = file->reserve(3000000, "a long one", [&] {
      if (released.valid()) return;
      released = std::async(std::launch::async, [&] { first = SpillExtent(); });
      status = released.wait_for(std::chrono::seconds(test::patience(5)));
    });
    assert_true(status == std::future_status::ready);
    const SpillExtent third = file->reserve(100000, "a piece");  // in its place
    assert_true(file->used() >= second.bytes() + before && file->used() < second.bytes() + 2 * before);
    disarm();
  }
}

// The default of SIGXFSZ ends the process.
void a_limit_on_lengths_is_an_error_and_no_signal(void**) {
  Folder folder;
  signal(SIGXFSZ, SIG_DFL);
  auto file = open_in(folder);
  Random random(test::seed());
  std::vector<Piece> pieces;
  pieces.push_back(write_new(*file, random, 50000));
  const SpillExtent late = file->reserve(50000, "late");
  struct rlimit limit {
  }, small{};
  getrlimit(RLIMIT_FSIZE, &limit);
  small = limit;
  small.rlim_cur = 60000;
  setrlimit(RLIMIT_FSIZE, &small);
  const uint64_t used = file->used();
  assert_error(WI_E_IO, "for a long one: File too large", file->reserve(100000, "a long one"));
  assert_error(WI_E_IO, "File too large", file->write(late, 20000, pieces[0].bytes.data(), 20000));
  setrlimit(RLIMIT_FSIZE, &limit);
  sigset_t pending;
  sigpending(&pending);
  assert_false(sigismember(&pending, SIGXFSZ));
  assert_int_equal(file->used(), used);
  SpillReader reader(file);
  assert_reads_right(reader, random, pieces, 20, 5000);
}

// ---- Failures ----

struct FaultCase {
  Function function;
  int what;
};
constexpr FaultCase kFaults[] = {
    {kOpen, EOPNOTSUPP},   {kOpen, EINTR},       {kFcntl, EINVAL},      {kStatx, ENOSYS},
    {kPread, EIO},         {kPread, EINTR},      {kPread, kShort},      {kPread, kEnd},
    {kPwrite, EIO},        {kPwrite, ENOSPC},    {kPwrite, EINTR},      {kPwrite, kShort},
    {kPwrite, kEnd},       {kFallocate, ENOSPC}, {kFallocate, EINTR},   {kFallocate, EOPNOTSUPP},
    {kFallocate, EIO},     {kPunch, EOPNOTSUPP}, {kPunch, EINTR},       {kTruncate, EIO},
    {kSync, EIO},          {kSync, EINVAL},      {kAdvise, EINVAL},     {kRing, ENOSYS},
    {kRing, EPERM},        {kRing, ENOMEM},      {kSubmit, EINTR},      {kSubmit, EAGAIN},
    {kSubmit, EBADF},      {kCompletion, EIO},   {kCompletion, EINVAL}, {kCompletion, EAGAIN},
    {kCompletion, kShort}, {kCompletion, kEnd},
};

// Runs a call in which another one may fail. If that is the disk, the call says so, and works the second
// time; all else there is a way around.
template <class Call>
void attempt(Call&& call) {
  try {
    return call();
  } catch (const Error& error) {
    const bool is_the_disks = fault.function <= kSync && (fault.what == EIO || fault.what == ENOSPC);
    if (!fault.happened || !is_the_disks || error.code() != WI_E_IO || error.native_code() != fault.what) {
      std::printf("status %d: %s\n", error.code(), error.what());
      assert_true(false);
    }
  }
  call();
}

// Ends with nothing used, and everything read was right.
void live(const SpillOptions& options) {
  Random random(test::seed());
  Folder folder;
  std::shared_ptr<SpillFile> file;
  attempt([&] { file = open_in(folder, options, 2 << 20); });
  SpillReader reader(file);
  std::vector<Piece> pieces;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 2; ++i) {
      const uint64_t bytes = 1 + up_to(random, 50000);
      Piece piece{{}, random_bytes(random, bytes)};
      attempt([&] { piece.extent = file->reserve(bytes, "a piece"); });
      attempt([&] {
        for (uint64_t done = 0; done < bytes; done += 9000)
          file->write(piece.extent, done, piece.bytes.data() + done, std::min<uint64_t>(9000, bytes - done));
      });
      pieces.push_back(std::move(piece));
    }
    Batch batch(random, pieces, 12, 9000);
    attempt([&] { reader.read(batch.requests()); });
    assert_true(batch.right());
    pieces.erase(pieces.begin() + static_cast<ptrdiff_t>(random() % pieces.size()));
    if (round % 2) pieces.pop_back();
  }
  assert_int_equal(folder.entries(), 0);
  pieces.clear();
  assert_int_equal(file->used(), 0);
  // Where giving space back failed, the next extent that goes does it.
  disarm();
  static_cast<void>(file->reserve(1, "the last"));
  assert_int_equal(disk_bytes(folder), 0);
}

// The first call of each function and one by chance; WI_TEST_ALL=1: each.
void each_call_of_the_system_may_fail_once(void**) {
  for (const Way& way : kWays) {
    arm(kFunctions, 0);
    live(way.options);
    std::array<int64_t, kFunctions> calls{};
    for (int function = 0; function < kFunctions; ++function) calls[function] = fault.calls[function];
    int64_t lives = 0;
    Random random(test::seed());
    for (const FaultCase& one : kFaults) {
      const int64_t count = calls[one.function], each = std::getenv("WI_TEST_ALL") ? count : 1;
      std::set<int64_t> numbers;
      for (int64_t n = 0; n < std::min(count, each); ++n) numbers.insert(n);
      if (count > each) numbers.insert(static_cast<int64_t>(random() % static_cast<uint64_t>(count)));
      for (int64_t number : numbers) {
        arm(one.function, one.what, number, number);
        live(way.options);
        ++lives;
        disarm();
      }
    }
    std::printf("  %s: %lld lives with a fault;", way.name, static_cast<long long>(lives));
    for (int function = 0; function < kFunctions; ++function)
      if (calls[function]) std::printf(" %s %lld", kNames[function], static_cast<long long>(calls[function]));
    std::printf("\n");
  }
}

void a_disk_that_reads_no_more_is_an_error_that_says_so(void**) {
  for (const Way& way : kWays) {
    Folder folder;
    auto file = open_in(folder, way.options);
    Random random(test::seed());
    std::vector<Piece> pieces;
    pieces.push_back(write_new(*file, random, 400000));
    SpillReader reader(file);
    Batch batch(random, pieces, 30, 5000);
    if (way.options.uring) {  // each completion fails; pread(2), asked again, decides
      arm(kCompletion, EIO);
      reader.read(batch.requests());
      assert_true(batch.right());
      continue;
    }
    arm(kPread, EIO);
    try {
      reader.read(batch.requests());
      fail(WI_E_INTERNAL, "read from a broken disk");
    } catch (const Error& error) {
      assert_int_equal(error.code(), WI_E_IO);
      assert_int_equal(error.native_code(), EIO);
      assert_non_null(std::strstr(error.what(), folder.path.c_str()));
      assert_non_null(std::strstr(error.what(), "Input/output error"));
    }
    disarm();
    reader.read(batch.requests());
    assert_true(batch.right());
  }
  disarm();
}

void a_ring_that_is_lost_is_had_anew_or_done_without(void**) {
  for (const int64_t rings_lost : {0, 1, 2}) {
    Folder folder;
    arm(kRing, ENOMEM, 1, rings_lost);
    auto file = open_in(folder);
    Random random(test::seed());
    std::vector<Piece> pieces;
    pieces.push_back(write_new(*file, random, 400000));
    SpillReader reader(file);
    disarm();
    for (int round = 0; round < 3; ++round) {
      Batch batch(random, pieces, 30, 5000);
      arm(round < 2 ? kSubmit : kFunctions, round == 0 ? EAGAIN : EBADF);
      reader.read(batch.requests());
      assert_true(batch.right());
    }
    disarm();
  }
  assert_int_equal(rings_left_at_work, 0);  // nothing is written to memory that may be another's
}

#ifdef WI_SANITIZED
void threads_that_cannot_be_made_are_missed_by_nobody(void**) { skip(); }
#else
void threads_that_cannot_be_made_are_missed_by_nobody(void**) {
  for (int allowed : {0, 1, 3}) {
    Folder folder;
    auto file = open_in(folder, kWays[1].options);
    Random random(test::seed());
    std::vector<Piece> pieces;
    pieces.push_back(write_new(*file, random, 400000));
    threads_allowed = allowed;
    SpillReader reader(file);
    threads_allowed = INT32_MAX;
    assert_reads_right(reader, random, pieces, 50, 9000);
  }
}
#endif

// ---- Processes ----

void a_child_leaves_the_file_alone(void**) {
  for (const Way& way : kWays) {
    Folder folder;
    auto file = open_in(folder, way.options);
    Random random(test::seed());
    std::vector<Piece> pieces;
    for (int i = 0; i < 3; ++i) pieces.push_back(write_new(*file, random, 50000));
    auto reader = std::make_unique<SpillReader>(file);
    assert_reads_right(*reader, random, pieces, 20, 5000);
    const uint64_t disk = disk_bytes(folder);
    std::fflush(stdout);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
      alarm(patience(20));
      const auto is_refused = [](auto&& call) {
        try {
          call();
        } catch (const Error& error) {
          return error.code() == WI_E_STATE;
        }
        return false;
      };
      const ReadRequest request{&pieces[0].extent, 0, 10, pieces[0].bytes.data()};
      const bool refused = is_refused([&] { file->reserve(1, "a child's"); }) &&
                           is_refused([&] { file->write(pieces[0].extent, 0, "x", 1); }) && is_refused([&] {
                             reader->read({&request, 1});
                           }) &&
                           is_refused([&] { SpillReader another(file); });
      pieces.clear();
      reader.reset();
      file.reset();
      _exit(refused ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(disk_bytes(folder) >= disk);
    assert_reads_right(*reader, random, pieces, 20, 5000);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(what_is_read_is_what_was_written),
      cmocka_unit_test(threads_read_write_and_free_at_once),
      cmocka_unit_test(requests_that_share_sectors_are_one_read),
      cmocka_unit_test(a_reader_reads_with_the_memory_that_it_can_have),
      cmocka_unit_test(a_step_allocates_nothing_once_it_was_run),
      cmocka_unit_test(the_page_cache_keeps_nothing),
      cmocka_unit_test(the_file_has_no_name_and_is_nobody_elses),
      cmocka_unit_test(what_a_killed_process_leaves_the_next_removes),
      cmocka_unit_test(processes_leave_each_others_files_alone),
      cmocka_unit_test(a_folder_that_takes_no_file_is_named),
      cmocka_unit_test(only_a_file_system_that_cannot_goes_through_the_page_cache),
      cmocka_unit_test(extents_are_disjoint_and_first_fit),
      cmocka_unit_test(the_limit_is_held_and_the_refused_are_told),
      cmocka_unit_test(freed_space_is_reused_and_goes_back_to_the_disk),
      cmocka_unit_test(without_holes_the_files_length_is_held_to_the_limit),
      cmocka_unit_test(holes_that_failed_are_made_later),
      cmocka_unit_test(where_nothing_can_be_reserved_zeros_are_written),
      cmocka_unit_test(signals_that_come_again_and_again_keep_nothing_from_being_reserved),
      cmocka_unit_test(reserving_ends_soon_after_a_cancel),
      cmocka_unit_test(zeros_end_soon_after_a_cancel),
      cmocka_unit_test(what_is_given_back_waits_for_no_zeros),
      cmocka_unit_test(a_limit_on_lengths_is_an_error_and_no_signal),
      cmocka_unit_test(each_call_of_the_system_may_fail_once),
      cmocka_unit_test(a_disk_that_reads_no_more_is_an_error_that_says_so),
      cmocka_unit_test(a_ring_that_is_lost_is_had_anew_or_done_without),
      cmocka_unit_test(threads_that_cannot_be_made_are_missed_by_nobody),
      cmocka_unit_test(a_child_leaves_the_file_alone),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
