// Reads the GGUF container (versions 2 and 3, little endian): metadata by key, tensors by name. Nothing in
// the bytes is trusted: every count, length, offset and type is checked before use, and a message names the
// key or tensor and the byte offset. What the keys mean is for config_gguf.cpp and vocabulary_gguf.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/files/tensor_table.h"
#include "src/files/watch.h"
#include "src/text_hash.h"

namespace wi {

enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

struct GgufField {
  std::string_view key;
  GgufType type;
  GgufType element;  // of an array
  uint64_t count;    // elements of an array
  size_t offset;     // of the value, or of an array's first element
};

class Gguf {
 public:
  // The bytes must outlive the object; name is the file's, for messages.
  static Gguf parse(std::span<const std::byte> bytes, std::string name, Watch* watch = nullptr);
  // Only the metadata, of bytes that may end behind it.
  static Gguf parse_fields(std::span<const std::byte> bytes, std::string name, Watch* watch = nullptr);

  // The value of a key, checked to have a fitting type. Integers may be stored in any width, but must lie in
  // [least, most]. A missing key yields nothing, or WI_E_FORMAT from the forms without optional.
  std::optional<int64_t> find_integer(std::string_view key, int64_t least, int64_t most) const;
  std::optional<double> find_number(std::string_view key) const;  // finite
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string_view> find_text(std::string_view key) const;
  int64_t integer(std::string_view key, int64_t least, int64_t most) const;
  double number(std::string_view key) const;
  std::string_view text(std::string_view key) const;
  // These four: empty if the key is missing.
  std::vector<std::string_view> texts(std::string_view key, Watch* watch = nullptr) const;
  std::vector<float> floats(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key) const;
  std::vector<bool> booleans(std::string_view key) const;

  const GgufField* find(std::string_view key) const;
  std::string where(std::string_view key) const;  // "model.gguf: key 'llama.block_count' (byte 120)"
  const std::string& name() const { return name_; }
  const std::vector<GgufField>& fields() const { return fields_; }
  std::span<const std::byte> field_bytes() const { return bytes_.first(fields_end_); }  // with the header
  std::string value_text(const GgufField& field) const;  // a string as it is, everything else as JSON
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // data points into the bytes

 private:
  const GgufField* find_array(std::string_view key) const;
  int64_t integer_at(const GgufField& field, GgufType type, size_t offset) const;
  double number_at(const GgufField& field, GgufType type, size_t offset) const;
  std::string_view text_at(size_t offset) const;
  void append_json(GgufType type, size_t* at, std::string* out) const;
  void append_array(GgufType element, uint64_t count, size_t* at, std::string* out) const;

  std::span<const std::byte> bytes_;
  std::string name_;
  std::vector<GgufField> fields_;
  size_t fields_end_ = 0;
  std::unordered_map<std::string_view, size_t, TextHash> index_;
  std::vector<StoredTensor> tensors_;

  friend class GgufParser;
};

}  // namespace wi
