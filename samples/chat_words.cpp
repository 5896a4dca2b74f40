#include "chat_words.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <stdexcept>
#include <sys/stat.h>
#include <unistd.h>

namespace sample {
namespace {

constexpr const char* kHead = "a conversation of wi_chat: %zu messages, %zu bytes\n";

std::string resolved(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr), &std::free);
  return real ? real.get() : path;
}

std::string head_of(size_t messages, size_t bytes) {
  char line[128];
  std::snprintf(line, sizeof line, kHead, messages, bytes);
  return line;
}

}  // namespace

std::string words_of(const std::vector<Message>& messages) {
  std::string words;
  for (const Message& message : messages)
    words += message.role + " " + std::to_string(message.content.size()) + "\n" + message.content + "\n";
  return head_of(messages.size(), words.size()) + words;
}

// What is read is written again and compared: nothing else was written by words_of().
std::vector<Message> messages_of(const std::string& words, const std::string& name) {
  std::vector<Message> messages;
  for (size_t at = words.find('\n'); at != std::string::npos && ++at < words.size();) {
    char role[64];
    size_t bytes = 0;
    const size_t line_end = words.find('\n', at);
    if (line_end == std::string::npos ||
        std::sscanf(words.substr(at, line_end - at).c_str(), "%63s %zu", role, &bytes) != 2 ||
        bytes > words.size() - line_end - 1)
      break;
    messages.push_back({role, words.substr(line_end + 1, bytes)});
    at = line_end + 1 + bytes;
  }
  if (words_of(messages) != words)
    throw std::runtime_error(name + " is damaged, or was not saved by this version of wi_chat");
  return messages;
}

// What it replaces keeps its place behind a link, its owner and who may read it.
WordsFile::WordsFile(const std::string& path) : path_(resolved(path)), temporary_(path_ + ".saving") {
  struct stat old {};
  const bool replaces = stat(path_.c_str(), &old) == 0;
  if (replaces && !S_ISREG(old.st_mode)) throw std::runtime_error(path_ + " is not a regular file");
  unlink(temporary_.c_str());  // of a save that was killed
  file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, replaces ? 0600 : 0666);
  if (file_ < 0) fail("create");
  if (!replaces) return;
  const bool same_owner = fchown(file_, old.st_uid, old.st_gid) == 0;
  fchmod(file_, old.st_mode & (same_owner ? 07777 : 0700));
}

WordsFile::~WordsFile() {
  if (file_ < 0) return;
  close(file_);
  unlink(temporary_.c_str());
}

void WordsFile::write(const std::string& words) {
  for (size_t done = 0; done < words.size();) {
    const ssize_t count = ::write(file_, words.data() + done, words.size() - done);
    if (count < 0 && errno != EINTR) fail("write");
    if (count > 0) done += static_cast<size_t>(count);
  }
  if (fsync(file_) != 0) fail("write");
}

void WordsFile::put_in_place(const std::string& session) {
  if (rename(temporary_.c_str(), path_.c_str()) != 0)
    fail("replace", ": " + session + " is the new session, its words are not saved");
  close(file_);
  file_ = -1;
}

void WordsFile::fail(const std::string& what, const std::string& then) const {
  throw std::runtime_error("cannot " + what + " " + path_ + ": " + std::strerror(errno) + then);
}

}  // namespace sample
