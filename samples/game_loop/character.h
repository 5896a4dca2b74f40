// A character of the game: what it has read is a session, and each question goes to a fork of it, as a task. Every
// method but the constructor is made for the frame's thread: it takes microseconds and waits for nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "../sample.h"

namespace game {

using Task = std::unique_ptr<wi_task, decltype(&wi_task_release)>;

class Character {
 public:
  // Opens the model and makes tokens of the document, which takes as long as it takes.
  Character(const std::string& model, int32_t threads, int32_t nice, const std::string& document);

  void read();                          // begins to read the document; once, and first
  void ask(std::string_view question);  // begins to answer, if not busy
  void look();                          // what has come since the last frame
  bool busy() const { return task_ != nullptr; }
  const std::string& answer() const { return answer_; }  // to the last question, as far as it is there

 private:
  void begin(wi_session* session, const std::vector<int32_t>& prompt, uint64_t max_tokens);
  void end(const wi_event& last);

  sample::Runtime runtime_;
  sample::Model model_;
  std::vector<int32_t> opening_;  // of every conversation: the document, up to where a question begins
  std::vector<int32_t> closing_;  // from the question's end to where the answer begins
  sample::Session memory_;
  bool has_read_ = false;
  Task task_;
  std::string answer_;
};

}  // namespace game
