// Checked access to JSON that comes from a file: every message names the file and the field, and the byte
// where the text itself is broken. JSON's null counts as a missing field.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/files/watch.h"

namespace wi {

using Json = nlohmann::json;

// Owns a value with all that is in it. nlohmann's own destructor allocates, and so ends the process where
// memory is refused; this one takes the value apart from its leaves on, which takes none.
class JsonTree {
 public:
  explicit JsonTree(Json root = nullptr) : root_(std::move(root)) {}
  JsonTree(JsonTree&& other) noexcept
      : root_(std::exchange(other.root_, nullptr)), parts_(std::exchange(other.parts_, 0)) {}
  JsonTree& operator=(JsonTree&&) = delete;
  // Nobody waits for many parts to go: they do on a thread of their own, if the system has one.
  ~JsonTree();

  const Json& operator*() const { return root_; }
  const Json* operator->() const { return &root_; }
  // Both are objects: what stands in `other` comes in the place of what is here.
  void merge(JsonTree other);

 private:
  friend class JsonBuilder;
  Json root_;
  uint64_t parts_ = 0;  // values and keys, as it was read
};

// Throws WI_E_FORMAT for text that is no JSON, nests deeper than 64, takes more than most_memory once it is
// read, or is no object. Of a key that stands twice the last one counts.
inline constexpr uint64_t kMostJsonMemory = uint64_t{512} << 20;
JsonTree parse_json(std::string_view text, const std::string& file, Watch* watch = nullptr,
                    uint64_t most_memory = kMostJsonMemory);
// For files beside a model's large ones.
inline constexpr uint64_t kMostCompanionMemory = uint64_t{128} << 20;

// The same for an object of many small entries: each is handed over as soon as it is read and then forgotten,
// so that no more than one is in memory (of at most 64 MiB). A key that stands twice is WI_E_FORMAT.
void parse_json_entries(std::string_view text, const std::string& file, Watch* watch,
                        const std::function<void(const std::string& key, const Json& value)>& entry);

// The text as a JSON string; bytes that are no UTF-8 become U+FFFD.
std::string json_of_text(std::string_view text);

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
  bool has_null(const char* key) const;  // the key is there and its value null: for the few that tell the two
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
