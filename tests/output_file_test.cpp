// A file that appears whole or not at all, whatever happens meanwhile: kills, full disks, signals, links,
// other savers; and never on anything but a regular file.
#include "src/store/output_file.h"

#include <array>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/store/input_file.h"
#include "tests/support/failing_calls.h"
#include "tests/support/folder.h"
#include "tests/test.h"

using namespace wi;
using namespace wi::test;
using Temporary = OutputFile::Temporary;

namespace {

constexpr Temporary kBoth[] = {Temporary::unnamed, Temporary::named};

void save(const std::string& path, const std::string& bytes, Temporary kind = Temporary::unnamed) {
  OutputFile file(path, kind);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

struct stat status_of(const std::string& path) {
  struct stat status {};
  assert_int_equal(lstat(path.c_str(), &status), 0);
  return status;
}
mode_t mode_of(const std::string& path) { return status_of(path).st_mode & 07777; }

void a_file_appears_with_its_commit(void**) {
  for (Temporary kind : kBoth) {
    Folder folder;
    const std::string path = folder.file("s");
    for (const char* text : {"first", "second and longer", "third"}) {
      const std::string before = slurp(path);
      OutputFile file(path, kind);
      file.write(text, std::strlen(text));
      assert_true(slurp(path) == before);
      file.commit();
      assert_true(slurp(path) == text);
      assert_int_equal(folder.entries(), 1);
    }
    { OutputFile given_up(path, kind); }
    assert_true(slurp(path) == "third");
    assert_int_equal(folder.entries(), 1);
  }
}

void modes_are_the_umasks_and_then_the_files_own(void**) {
  for (Temporary kind : kBoth) {
    Folder folder;
    const std::string path = folder.file("s");
    const mode_t before = umask(077);
    save(path, "x", kind);
    assert_int_equal(mode_of(path), 0600);
    umask(022);
    save(path, "y", kind);
    assert_int_equal(mode_of(path), 0600);  // not opened up
    save(folder.file("t"), "x", kind);
    assert_int_equal(mode_of(folder.file("t")), 0644);
    chmod(path.c_str(), 0440);
    save(path, "z", kind);
    assert_int_equal(mode_of(path), 0440);
    umask(before);
    if (geteuid() == 0) {
      assert_int_equal(chown(path.c_str(), 1234, 2345), 0);
      save(path, "w", kind);
      assert_int_equal(status_of(path).st_uid, 1234);
      assert_int_equal(status_of(path).st_gid, 2345);
    } else {
      std::printf("  not root: no file of another owner\n");
    }
  }
}

// The longest name that a file may have, and a folder whose path is long too.
void names_may_be_as_long_as_the_system_permits(void**) {
  for (Temporary kind : kBoth) {
    Folder folder;
    const std::string deep = folder.file(std::string(255, 'd').c_str());
    std::filesystem::create_directory(deep);
    for (size_t length : {250, 255}) {
      const std::string path = deep + "/" + std::string(length, 'n');
      save(path, "x", kind);
      save(path, "y", kind);
      assert_true(slurp(path) == "y");
    }
    assert_error(WI_E_IO, "File name too long", save(deep + "/" + std::string(256, 'n'), "x", kind));
  }
}

void links_are_followed_and_stay(void**) {
  for (Temporary kind : kBoth) {
    Folder folder;
    std::filesystem::create_directory(folder.file("there"));
    const std::string target = folder.file("there/target"), link = folder.file("link");
    std::filesystem::create_symlink("there/target", link);
    std::filesystem::create_symlink("link", folder.file("again"));
    save(folder.file("again"), "through a link to nothing yet", kind);
    assert_true(slurp(target) == "through a link to nothing yet");
    chmod(target.c_str(), 0600);
    save(folder.file("again"), "x", kind);
    assert_true(slurp(target) == "x");
    assert_int_equal(mode_of(target), 0600);
    assert_true(S_ISLNK(status_of(link).st_mode) && S_ISLNK(status_of(folder.file("again")).st_mode));
    std::filesystem::create_symlink("round", folder.file("about"));
    std::filesystem::create_symlink("about", folder.file("round"));
    assert_error(WI_E_IO, "Too many levels", save(folder.file("round"), "x", kind));
  }
}

void what_is_no_regular_file_is_refused_at_once(void**) {
  Folder folder;
  const std::string fifo = folder.file("fifo");
  assert_int_equal(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, folder.path, std::string("/dev/null"), std::string("/dev/tty")}) {
    if (access(path.c_str(), F_OK) != 0) continue;
    assert_error(WI_E_IO, "not a regular file", save(path, "x"));
    assert_error(WI_E_IO, "not a regular file", InputFile file(path));
  }
  assert_error(WI_E_IO, "Is a directory", save(folder.path + "/absent/", "x"));
  assert_error(WI_E_IO, "No such file", save("", "x"));
  assert_error(WI_E_IO, "No such file", InputFile file(folder.file("absent")));
  // One that becomes such while it is written.
  OutputFile file(folder.file("late"));
  assert_int_equal(mkfifo(folder.file("late").c_str(), 0600), 0);
  assert_error(WI_E_IO, "not a regular file", file.commit());
  assert_true(S_ISFIFO(status_of(fifo).st_mode));
}

// Nor is one that replaces it what the descriptor leads to: neither its data nor anything else would be there.
void an_open_file_is_no_place_to_save_to(void**) {
  Folder folder;
  const std::string plain = folder.file("plain");
  spill(plain, "plain");
  const int files[] = {memfd_create("saved", MFD_CLOEXEC),
                       open(folder.path.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600),
                       open(plain.c_str(), O_RDWR | O_CLOEXEC), open(plain.c_str(), O_RDONLY | O_CLOEXEC)};
  std::filesystem::create_symlink("/dev/fd", folder.file("descriptors"));
  for (const int file : files) {
    if (file < 0) continue;  // no such files here
    const std::string number = std::to_string(file), named = "/proc/self/fd/" + number;
    std::filesystem::create_symlink(named, folder.file("link"));
    for (const std::string& path : {named, "/dev/fd/" + number, folder.file("descriptors") + "/" + number,
                                    folder.file("link"), "/proc/thread-self/fd/" + number})
      for (const Temporary kind : kBoth) assert_error(WI_E_IO, "wi_session_save_to", save(path, "x", kind));
    std::filesystem::remove(folder.file("link"));
    struct stat status {};
    assert_int_equal(fstat(file, &status), 0);
    assert_true(status.st_size == 0 || slurp(plain) == "plain");
    close(file);
  }
  assert_true(slurp(plain) == "plain");
  assert_int_equal(folder.entries(), 2);
  // A process's folders are as good as any.
  const int within = open(folder.path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  save("/proc/self/fd/" + std::to_string(within) + "/s", "beside");
  assert_true(slurp(folder.file("s")) == "beside");
  close(within);
}

void an_output_of_the_process_is_no_place_to_save_to(void**) {
  Folder folder;
  const int before = dup(STDOUT_FILENO);
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  std::fflush(stdout);
  for (const int to : {ends[1], open(folder.file("out").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)}) {
    dup2(to, STDOUT_FILENO);
    std::string refused;
    try {
      save("/dev/stdout", "x");
    } catch (const Error& error) {
      refused = error.what();
    }
    dup2(before, STDOUT_FILENO);
    assert_non_null(std::strstr(refused.c_str(), to == ends[1] ? "not a regular file" : "wi_kv_save_to"));
    close(to);
  }
  close(before);
  char byte;
  assert_int_equal(read(ends[0], &byte, 1), 0);
  close(ends[0]);
  assert_true(slurp(folder.file("out")).empty());
  assert_int_equal(folder.entries(), 1);
}

// The default of SIGXFSZ ends the process.
void a_limit_on_lengths_is_an_error_and_no_signal(void**) {
  Folder folder;
  const std::string path = folder.file("s");
  save(path, "old");
  signal(SIGXFSZ, SIG_DFL);
  struct rlimit limit {
  }, small{};
  getrlimit(RLIMIT_FSIZE, &limit);
  small = limit;
  small.rlim_cur = 1000;
  setrlimit(RLIMIT_FSIZE, &small);
  for (Temporary kind : kBoth) {
    try {
      save(path, std::string(5000, 'x'), kind);
      fail(WI_E_INTERNAL, "a file longer than it may be");
    } catch (const Error& error) {
      assert_int_equal(error.code(), WI_E_IO);
      assert_int_equal(error.native_code(), EFBIG);
    }
  }
  setrlimit(RLIMIT_FSIZE, &limit);
  sigset_t pending, mask;
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  assert_false(sigismember(&pending, SIGXFSZ) || sigismember(&mask, SIGXFSZ));  // as they were
  assert_true(slurp(path) == "old");
  assert_int_equal(folder.entries(), 1);
}

struct FaultCase {
  Function function;
  int what;
  bool harmless = false;  // there is a way around it, be it a second try
};

// Each of those that a save makes. It says so or gets round it; what was there is whole, and beside it is nothing.
void each_call_of_a_save_may_fail_once(void**) {
  constexpr FaultCase kFaults[] = {
      {kOpenAt, EIO},       {kOpenAt, EEXIST},     {kOpenAt, EOPNOTSUPP}, {kLock, ENOLCK, true},
      {kWrite, EIO},        {kWrite, ENOSPC},      {kWrite, EINTR, true}, {kWrite, kShort, true},
      {kWrite, kEnd, true}, {kSync, EIO},          {kSync, ENOSPC},       {kSync, EINVAL, true},
      {kFsync, EIO},        {kFsync, ENOSPC},      {kFsync, EINTR, true}, {kChmod, EPERM},
      {kLink, EPERM},       {kLink, EEXIST, true}, {kRename, EIO},        {kRename, EACCES},
  };
  const std::string text(3000, 'n');
  const auto save_in_pieces = [&](const std::string& path, Temporary kind) {
    OutputFile file(path, kind);
    for (size_t at = 0; at < text.size(); at += 1000) file.write(text.data() + at, 1000);
    file.commit();
  };
  int said = 0, lives = 0;
  for (const Temporary kind : kBoth) {
    for (const bool had_file : {false, true}) {
      std::array<int64_t, kFunctions> calls{};
      bool says[kFunctions]{};
      {
        Folder folder;
        if (had_file) spill(folder.file("s"), "old");
        arm(kFunctions, 0);
        save_in_pieces(folder.file("s"), kind);
        for (size_t i = 0; i < calls.size(); ++i) calls[i] = fault.calls[i];
        disarm();
      }
      for (const FaultCase& one : kFaults) {
        for (int64_t number = 0; number < calls[one.function]; ++number, ++lives) {
          Folder folder;
          const std::string path = folder.file("s");
          if (had_file) spill(path, "old");
          arm(one.function, one.what, number, number);
          bool failed = false;
          try {
            save_in_pieces(path, kind);
          } catch (const Error& error) {
            failed = true;
            assert_int_equal(error.code(), WI_E_IO);
            assert_int_equal(error.native_code(), one.what);
          }
          assert_true(fault.happened);
          disarm();
          if (failed && one.harmless)
            std::printf("  %s %lld fails with %d\n", kNames[one.function], static_cast<long long>(number),
                        one.what);
          assert_false(failed && one.harmless);
          assert_true(slurp(path) == (!failed ? text : had_file ? "old" : ""));
          assert_int_equal(folder.entries(), !failed || had_file);
          says[one.function] |= failed;
          said += failed;
          save_in_pieces(path, kind);
          assert_true(slurp(path) == text);
          assert_int_equal(folder.entries(), 1);
        }
      }
      for (const Function function : {kWrite, kSync, kFsync}) assert_true(says[function]);
      assert_true(says[kRename] == (calls[kRename] > 0) && says[kChmod] == had_file);
      assert_true(calls[kRename] > 0 || !had_file);
    }
  }
  std::printf("  of %d saves %d failed\n", lives, said);
}

// A disk that is really full: a small filesystem in memory, where this process may mount one.
void a_full_disk_leaves_the_old_file(void**) {
  Folder folder;
  const std::string disk = folder.file("disk");
  std::filesystem::create_directory(disk);
  if (std::system(("mount -t tmpfs -o size=64k none " + disk + " 2>/dev/null").c_str()) != 0) {
    std::printf("  may not mount: skipped\n");
    return;
  }
  for (Temporary kind : kBoth) {
    save(disk + "/s", "old", kind);
    assert_error(WI_E_IO, "No space left", save(disk + "/s", std::string(200000, 'x'), kind));
    assert_true(slurp(disk + "/s") == "old");
    assert_int_equal(std::distance(std::filesystem::directory_iterator(disk), {}), 1);
  }
  assert_int_equal(std::system(("umount " + disk).c_str()), 0);
}

// One that is killed in between has given its file away already.
void what_was_given_to_the_old_file_s_owner_is_removed_too(void**) {
  if (geteuid() != 0) return std::printf("  files cannot be given away: skipped\n"), void();
  constexpr uid_t kOther = 1234, kThird = 1235;
  Folder folder;
  const std::string path = folder.file("s");
  save(path, "old", Temporary::unnamed);
  assert_int_equal(chown(path.c_str(), kOther, 0), 0);
  for (const uid_t owner : {kOther, kThird}) {
    const std::string left = folder.file(".waveinfer-save-left");
    spill(left, "half");
    assert_int_equal(chown(left.c_str(), owner, 0), 0);
    save(path, "new", Temporary::unnamed);
    assert_int_equal(folder.entries(), owner == kOther ? 1 : 2);
  }
}

// A child saves again and again until it is killed. The file is always whole, and the next save leaves
// nothing but it.
void what_killed_savers_leave_the_next_save_removes(void**) {
  for (Temporary kind : kBoth) {
    Folder folder;
    const std::string path = folder.file("s");
    size_t left_behind = 0;
    for (int round = 0; round < 20; ++round) {
      const pid_t child = fork();
      assert_true(child >= 0);
      if (child == 0) {
        for (char c = 'a';; c = c == 'z' ? 'a' : static_cast<char>(c + 1))
          save(path, std::string(3000000, c), kind);
      }
      usleep(static_cast<useconds_t>(20000 + 3000 * round));
      kill(child, SIGKILL);
      int how = 0;
      waitpid(child, &how, 0);
      assert_true(WIFSIGNALED(how));
      const std::string whole = slurp(path);
      if (!whole.empty() && whole != "whole") {
        assert_int_equal(whole.size(), 3000000);
        assert_true(whole.find_first_not_of(whole[0]) == std::string::npos);
      }
      left_behind += folder.entries() - !whole.empty();
      save(path, "whole", kind);
      assert_int_equal(folder.entries(), 1);
    }
    std::printf("  %zu of 20 left a file behind (%s)\n", left_behind,
                kind == Temporary::named ? "named" : "unnamed");
    if (kind == Temporary::named) assert_true(left_behind > 0);  // or this shows nothing
  }
}

void a_living_savers_file_is_left_alone(void**) {
  Folder folder;
  OutputFile slow(folder.file("slow"), Temporary::named);
  slow.write("slow", 4);
  spill(folder.file(".waveinfer-save-of somebody who died"), "x");
  spill(folder.file("a user's own .waveinfer-save-"), "x");
  save(folder.file("quick"), "quick", Temporary::named);
  assert_int_equal(folder.entries(), 3);  // quick, slow's temporary, the user's own
  slow.commit();
  assert_true(slurp(folder.file("slow")) == "slow" && slurp(folder.file("quick")) == "quick");
  assert_int_equal(folder.entries(), 3);
}

void what_was_left_is_removed_where_only_writers_may_lock(void**) {
  locks_want_writers = true;
  for (const Temporary kind : kBoth) {
    Folder folder;
    OutputFile living(folder.file("living"), Temporary::named);
    const std::string left = folder.file(".waveinfer-save-0123456789abcdef");
    spill(left, "x");
    save(folder.file("s"), "s", kind);
    assert_int_equal(access(left.c_str(), F_OK), -1);
    assert_int_equal(folder.entries(), 2);
    living.commit();
  }
  locks_want_writers = false;
}

void nothing_is_inherited_by_programs_that_the_host_starts(void**) {
  Folder folder;
  for (Temporary kind : kBoth) {
    OutputFile file(folder.file("s"), kind);
    file.write("x", 1);
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code none;
      const std::string what = std::filesystem::read_symlink(entry.path(), none).string();
      if (!what.starts_with(folder.path)) continue;
      const int number = std::stoi(entry.path().filename());
      assert_true(fcntl(number, F_GETFD) & FD_CLOEXEC);
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_file_appears_with_its_commit),
      cmocka_unit_test(modes_are_the_umasks_and_then_the_files_own),
      cmocka_unit_test(names_may_be_as_long_as_the_system_permits),
      cmocka_unit_test(links_are_followed_and_stay),
      cmocka_unit_test(what_is_no_regular_file_is_refused_at_once),
      cmocka_unit_test(an_open_file_is_no_place_to_save_to),
      cmocka_unit_test(an_output_of_the_process_is_no_place_to_save_to),
      cmocka_unit_test(a_limit_on_lengths_is_an_error_and_no_signal),
      cmocka_unit_test(each_call_of_a_save_may_fail_once),
      cmocka_unit_test(a_full_disk_leaves_the_old_file),
      cmocka_unit_test(what_was_given_to_the_old_file_s_owner_is_removed_too),
      cmocka_unit_test(what_killed_savers_leave_the_next_save_removes),
      cmocka_unit_test(a_living_savers_file_is_left_alone),
      cmocka_unit_test(what_was_left_is_removed_where_only_writers_may_lock),
      cmocka_unit_test(nothing_is_inherited_by_programs_that_the_host_starts),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
