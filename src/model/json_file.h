// Checked access to JSON that comes from a file: every message names the file and the field, and the byte
// where the text itself is broken. JSON's null counts as a missing field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace wi {

using Json = nlohmann::json;

// Throws WI_E_FORMAT for text that is no JSON, nests deeper than 64, or is no object. unique_keys: also if
// the outermost object has a key twice (otherwise the last one counts).
Json parse_json(std::string_view text, const std::string& file, bool unique_keys = false);

// One object and its place in the file ("config.json: rope_scaling"); both must outlive it.
class JsonFields {
 public:
  JsonFields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  std::optional<int64_t> find_integer(const char* key, int64_t least, int64_t most) const;
  std::optional<double> find_number(const char* key) const;  // finite
  std::optional<bool> find_bool(const char* key) const;
  std::optional<std::string> find_text(const char* key) const;
  int64_t integer(const char* key, int64_t least, int64_t most) const;  // these throw if the key is missing
  double number(const char* key) const;
  std::string text(const char* key) const;
  const Json* find(const char* key) const;  // null for a missing key
  const Json* find_object(const char* key) const;
  const Json* find_array(const char* key) const;
  std::vector<int64_t> integers(const char* key, int64_t least,
                                int64_t most) const;  // a number or a list of them

  std::string at(const char* key) const;  // "config.json: hidden_size"

 private:
  const Json& object_;
  std::string where_;
};

}  // namespace wi
