// The prompt of wi_ask in the model's own chat template: one user turn that holds the document, read once,
// and then a question, appended to a fork.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ask_options.h"
#include "sample.h"

namespace sample {

class Prompt {
 public:
  // Reads the document's first tokens. Throws if the model's template is unknown, unless options.raw.
  Prompt(const Model& model, const AskOptions& options);

  const std::vector<int32_t>& opening() const { return opening_; }
  uint64_t document_tokens() const { return document_tokens_; }
  std::vector<int32_t> question(const Model& model, const std::string& text) const;

 private:
  void split_template(const Model& model, const std::string& model_path);

  std::vector<int32_t> opening_;  // what the template puts before a user's message, and the document
  std::string separator_;         // between document and question
  std::vector<int32_t> closing_;  // what the template puts after a user's message to make the model answer
  uint32_t text_flags_ = 0;       // WI_TOKENIZE_*: a document cannot smuggle in special tokens, unless raw
  uint64_t document_tokens_ = 0;
};

}  // namespace sample
