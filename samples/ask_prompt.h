// The prompt of wi_ask in the model's own chat template: one user turn that holds the document and a
// question. What the conversations about all questions begin with is read once; the rest is appended to a
// fork.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ask_options.h"
#include "sample.h"

namespace sample {

class Prompt {
 public:
  // Reads the document's first tokens. Throws if the model has no template, unless options.raw.
  Prompt(const Model& model, const AskOptions& options);

  const std::vector<int32_t>& opening() const { return opening_; }
  uint64_t document_tokens() const { return document_tokens_; }
  const std::vector<int32_t>& question(const std::string& text) const { return questions_.at(text); }
  uint64_t most_tokens() const;  // with the longest question

 private:
  void read_raw(const Model& model, const AskOptions& options, std::vector<int32_t> document);
  void read_chat(const Model& model, const AskOptions& options, const std::string& document);

  std::vector<int32_t> opening_;                           // the same for all questions; ends in the document
  std::map<std::string, std::vector<int32_t>> questions_;  // by their text: what follows the opening
  uint64_t document_tokens_ = 0;
};

}  // namespace sample
