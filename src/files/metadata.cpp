// Metadata by key.
#include "src/files/metadata.h"

namespace wi {

Metadata::Metadata(const Gguf& gguf, Watch* watch) {
  const std::span<const std::byte> bytes = gguf.field_bytes();
  bytes_ = std::make_unique_for_overwrite<std::byte[]>(bytes.size());
  copy_watched(bytes_.get(), bytes.data(), bytes.size(), watch);
  gguf_ = Gguf::parse_fields({bytes_.get(), bytes.size()}, gguf.name(), watch);
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
