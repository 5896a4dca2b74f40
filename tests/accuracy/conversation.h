// The model's chat template around a document and the questions about it: the document is read once, the
// first question is appended to a fork, later ones to the answer before.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sample.h"

namespace accuracy {

class Template {
 public:
  // Throws if the model has no template, or one that the library cannot run.
  explicit Template(const sample::Model& model);

  std::vector<int32_t> opening(const std::string& document) const;     // up to the document's end
  std::vector<int32_t> first_question(const std::string& text) const;  // behind the document
  // Behind an answer whose last token is `last`, which is not repeated.
  std::vector<int32_t> next_question(const std::string& text, int32_t last) const;

 private:
  std::string render(const std::vector<std::string>& turns) const;
  std::vector<int32_t> tokens(const std::string& text, bool special) const;

  const sample::Model& model_;
  std::vector<int32_t> before_, after_;  // of the first user's message, the answer's opening included
  std::vector<int32_t> between_;         // of an answer and the next user's message
};

}  // namespace accuracy
