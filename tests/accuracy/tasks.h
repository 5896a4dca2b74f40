// Tasks after RULER (Hsieh et al. 2024), made from a real text: facts in the wording that the sample model
// understands are planted between its lines, and asked for. Same options, same documents, on every machine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace accuracy {

struct Question {
  std::string task;
  std::string text;
  std::vector<std::string> expected;
  bool any = false;  // one of expected is enough; else all must be in the answer
  double depth = 0;  // of the (first) fact asked for, in [0, 1]
};

// Asked one after another in one session.
using Conversation = std::vector<Question>;

struct Document {
  std::string kind;    // what is planted in it
  int64_t length = 0;  // tokens asked for
  uint64_t seed = 0;
  std::string text;
  std::vector<Conversation> conversations;
};

struct TaskOptions {
  std::string text;            // to plant in
  size_t first_byte = 0;       // documents are cut from here on, where that leaves enough
  bool single_answers = true;  // the model gives one value at a time: ask for each by itself
  int questions = 8;           // most per task and document; the list tasks ask for everything
};

// How many tokens a text has, and the text of the first so many.
struct Counting {
  std::function<size_t(const std::string&)> tokens;
  std::function<std::string(const std::string&, size_t)> first;
};

// The kinds of documents, by name.
const std::vector<std::string>& document_kinds();

// A document of a kind; empty conversations if what it plants does not fit half of the length.
Document make_document(const TaskOptions& options, const Counting& counting, const std::string& kind,
                       int64_t length, uint64_t seed);

}  // namespace accuracy
