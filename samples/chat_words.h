// The words of a conversation as wi_chat keeps them beside its session, so that they can be rendered again.
#pragma once

#include <string>
#include <vector>

namespace sample {

struct Message {
  std::string role, content;
};

// A line that counts the messages and the bytes behind it, then each message with its role and length.
std::string words_of(const std::vector<Message>& messages);
// Throws for all that is not exactly that; `name` is for the error.
std::vector<Message> messages_of(const std::string& words, const std::string& name);

// A file that replaces the one at `path` when it is put in its place; else nothing of it is left.
class WordsFile {
 public:
  explicit WordsFile(const std::string& path);
  ~WordsFile();
  WordsFile(const WordsFile&) = delete;
  WordsFile& operator=(const WordsFile&) = delete;
  void write(const std::string& words);  // to the disk
  void put_in_place(const std::string& session);

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& then = "") const;

  std::string path_, temporary_;
  int file_ = -1;
};

}  // namespace sample
