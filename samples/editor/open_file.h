// One file of an editor and the sessions behind its completions, the way the manual of wi_session_truncate has it.
//   file      a session of the whole file, read beside the editor. After an edit elsewhere than at the cursor it is
//             cut back to the tokens that the new text begins with, and the rest is read
//   cut       a fork of it that ends at the cursor, made when the cursor has come to stand somewhere
//   keystroke a fork of that one, which reads what was typed since and writes the completion
// Until the whole file was read once no completion is written, wherever the cursor is: in a long file the first ones wait
// so long. All reading and writing is done by tasks; calls here take as long as it takes to make tokens of the text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "../sample.h"

namespace editor {

struct Completion {
  std::string text;
  size_t kept_tokens = 0;  // before the cursor: that a fork had already
  size_t read_tokens = 0;  // that were read for this completion
  std::string failure;     // what went wrong, if anything
};

class OpenFile {
 public:
  // model and options must outlive it.
  struct Options {
    wi_session_params session = sample::sized<wi_session_params>();
    uint64_t most_tokens = 24;  // of a completion, which ends with its line
  };
  OpenFile(const sample::Model& model, const Options& options, std::string text);

  const std::string& text() const { return text_; }
  // The text is another one now: no completion is wanted any more.
  void change(std::string text);
  // A completion behind the first `cursor` bytes; the one that was wanted before is not any more.
  void want(size_t cursor);
  void forget();

  // Goes on with whatever comes next; a completion when it is there.
  std::optional<Completion> advance();
  uint64_t file_tokens_read() const { return file_tokens_given_; }  // by the session of the whole file, ever
  bool busy() const { return task_ != nullptr; }
  int descriptor() const { return descriptor_; }  // readable when it can advance; while busy

 private:
  using Tokens = std::vector<int32_t>;
  using Task = std::unique_ptr<wi_task, decltype(&wi_task_release)>;

  Tokens tokens_of(std::string_view text) const;
  bool near_cut(const Tokens& before) const;
  bool settle(const Tokens& before);
  void read_file();
  void end_reading(bool whole);
  void write(const Tokens& before);
  Completion end_writing(std::string failure);
  void submit(const sample::Session& session, const Tokens& tokens, size_t from, uint64_t most_tokens);
  void drop_task();
  std::optional<int32_t> take_events();
  std::string failure() const;

  const sample::Model& model_;
  const Options& options_;
  std::string text_;
  sample::Session file_;
  Tokens file_tokens_;              // what the session has
  bool file_current_ = false;       // it has all of this text, is reading it, or cannot
  uint64_t file_tokens_given_ = 0;  // to be read, ever
  bool warned_ = false;             // that it is longer than the model was made for
  bool file_was_read_ = false;      // once: then it is brought up to date where a cursor needs it
  sample::Session cut_;
  Tokens cut_tokens_;
  sample::Session keystroke_;
  Tokens keystroke_tokens_;  // without the answer

  std::optional<size_t> wanted_;  // the cursor
  Completion completion_;         // as far as it is written
  Task task_;
  bool task_reads_ = false;  // it reads the file; else it writes a completion
  int descriptor_ = -1;
};

}  // namespace editor
