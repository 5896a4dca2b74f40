// Metadata by key.
#include "src/files/metadata.h"

namespace wi {

Metadata::Metadata(const Gguf& gguf) : bytes_(gguf.field_bytes().begin(), gguf.field_bytes().end()) {
  gguf_ = Gguf::parse_fields(bytes_, gguf.name());
}

std::string_view Metadata::key(size_t index) const {
  return index < own_.size() ? own_[index].first : gguf_->fields()[index - own_.size()].key;
}

std::optional<std::string> Metadata::find(std::string_view key) const {
  for (const auto& [known, text] : own_)
    if (known == key) return text;
  const GgufField* field = gguf_ ? gguf_->find(key) : nullptr;
  if (!field) return {};
  return gguf_->value_text(*field);
}

}  // namespace wi
