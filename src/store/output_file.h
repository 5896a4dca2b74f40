// A file that appears at its path whole or not at all. What is written goes to a file without a name (or,
// where the filesystem has none of those, to one named ".waveinfer-save-…" beside the target); commit() syncs
// it and puts it in its place. An older file at the path survives every failure, and a killed process leaves
// nothing but, within a moment of commit(), such a named file, which the next save into the folder removes.
#pragma once

#include <string>
#include <sys/types.h>

#include "src/store/byte_stream.h"

namespace wi {

class OutputFile final : public ByteSink {
 public:
  enum class Temporary { unnamed, named };  // unnamed: where it can be

  // A symbolic link is followed: what it names is written, the link stays. Throws WI_E_IO, also if something
  // other than a regular file is there.
  explicit OutputFile(const std::string& path, Temporary kind = Temporary::unnamed);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile() override;

  void write(const void* data, size_t bytes) override;
  // A new file's mode is 0666 without the process's umask; one that replaces another has its mode and, as far
  // as the system permits, its owner and group.
  void commit();

 private:
  static constexpr size_t kNameBytes = 40;
  void follow(const std::string& path);
  void open_folder(const std::string& folder);
  void open_unnamed(mode_t mode);
  void open_named(mode_t mode);
  bool link_as(const char* name) const;
  void link_temporary();
  void put_in_place();
  void flush();
  void close_all() noexcept;

  std::string path_;  // as given, for messages
  std::string name_;  // in the folder, links followed
  int folder_ = -1, file_ = -1;
  char temporary_[kNameBytes] = "";  // its name while it has one
  bool had_file_ = false;            // at path when this began
  mode_t mode_ = 0;                  // of that
  uid_t owner_ = 0;
  gid_t group_ = 0;
  uint64_t written_ = 0;
};

}  // namespace wi
