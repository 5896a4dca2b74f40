// What a model's files say about it beside the weights, by key and as text: for hosts that look for more than
// the hyper-parameters. Kept apart from the file, which may be gone when somebody asks.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/files/gguf.h"

namespace wi {

class Metadata {
 public:
  Metadata() = default;
  Metadata(const Gguf& gguf, Watch* watch);  // every key of it
  Metadata(Metadata&&) = default;
  Metadata& operator=(Metadata&&) = default;  // and no copy: the views are of this one's bytes
  void add(std::string key, std::string text) { own_.emplace_back(std::move(key), std::move(text)); }

  size_t count() const { return own_.size() + (gguf_ ? gguf_->fields().size() : 0); }
  std::string_view key(size_t index) const;
  // Strings as they are, everything else as JSON; nothing for an unknown key.
  std::optional<std::string> find(std::string_view key) const;

 private:
  // In the order of the file. The keys of a GGUF are decoded when they are asked for: most of their bytes are
  // tokens that nobody looks at here.
  std::vector<std::pair<std::string, std::string>> own_;
  std::unique_ptr<std::byte[]> bytes_;
  std::optional<Gguf> gguf_;  // its views are of bytes_
};

}  // namespace wi
