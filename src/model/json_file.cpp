// The JSON that model directories carry, read through nlohmann's parser behind a guard against nesting.
#include "src/model/json_file.h"

#include <cmath>
#include <unordered_set>

#include "src/error.h"

namespace wi {
namespace {

constexpr int kMostNesting = 64;

void check_nesting(std::string_view text, const std::string& file);
const char* kind(const Json& value) { return value.type_name(); }

}  // namespace

Json parse_json(std::string_view text, const std::string& file, bool unique_keys) {
  check_nesting(text, file);
  std::unordered_set<std::string> keys;
  Json::parser_callback_t refuse_repeated = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth == 1 && event == Json::parse_event_t::key)
      check(keys.insert(parsed.get<std::string>()).second, WI_E_FORMAT, file, ": '",
            parsed.get<std::string>(), "' appears twice");
    return true;
  };
  try {
    Json json = Json::parse(text.begin(), text.end(), unique_keys ? refuse_repeated : nullptr);
    check(json.is_object(), WI_E_FORMAT, file, ": the JSON is ", kind(json), ", must be object");
    return json;
  } catch (const Json::parse_error& error) {
    fail(WI_E_FORMAT, file, ": broken JSON at byte ", error.byte, ": ", error.what());
  } catch (const Json::exception& error) {
    fail(WI_E_FORMAT, file, ": broken JSON: ", error.what());
  }
}

const Json* JsonFields::find(const char* key) const {
  auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::string JsonFields::at(const char* key) const { return where_ + ": " + key; }

std::optional<int64_t> JsonFields::find_integer(const char* key, int64_t least, int64_t most) const {
  const Json* value = find(key);
  if (!value) return {};
  check(value->is_number_integer(), WI_E_FORMAT, at(key), " is ", kind(*value), ", must be an integer");
  const bool huge = value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX;
  const int64_t number = huge ? INT64_MAX : value->get<int64_t>();
  check(!huge && number >= least && number <= most, WI_E_FORMAT, at(key), " is ",
        huge ? "2^63 or more" : std::to_string(number), ", must be in [", least, ", ", most, "]");
  return number;
}

std::optional<double> JsonFields::find_number(const char* key) const {
  const Json* value = find(key);
  if (!value) return {};
  check(value->is_number(), WI_E_FORMAT, at(key), " is ", kind(*value), ", must be a number");
  const double number = value->get<double>();
  check(std::isfinite(number), WI_E_FORMAT, at(key), " is ", number, ", must be finite");
  return number;
}

std::optional<bool> JsonFields::find_bool(const char* key) const {
  const Json* value = find(key);
  if (!value) return {};
  check(value->is_boolean(), WI_E_FORMAT, at(key), " is ", kind(*value), ", must be true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonFields::find_text(const char* key) const {
  const Json* value = find(key);
  if (!value) return {};
  check(value->is_string(), WI_E_FORMAT, at(key), " is ", kind(*value), ", must be a string");
  return value->get<std::string>();
}

int64_t JsonFields::integer(const char* key, int64_t least, int64_t most) const {
  auto value = find_integer(key, least, most);
  check(value.has_value(), WI_E_FORMAT, at(key), " is missing");
  return *value;
}

double JsonFields::number(const char* key) const {
  auto value = find_number(key);
  check(value.has_value(), WI_E_FORMAT, at(key), " is missing");
  return *value;
}

std::string JsonFields::text(const char* key) const {
  auto value = find_text(key);
  check(value.has_value(), WI_E_FORMAT, at(key), " is missing");
  return *std::move(value);
}

const Json* JsonFields::find_object(const char* key) const {
  const Json* value = find(key);
  check(!value || value->is_object(), WI_E_FORMAT, at(key), " is ", value ? kind(*value) : "",
        ", must be an object");
  return value;
}

const Json* JsonFields::find_array(const char* key) const {
  const Json* value = find(key);
  check(!value || value->is_array(), WI_E_FORMAT, at(key), " is ", value ? kind(*value) : "",
        ", must be an array");
  return value;
}

std::vector<int64_t> JsonFields::integers(const char* key, int64_t least, int64_t most) const {
  const Json* value = find(key);
  if (!value) return {};
  if (!value->is_array()) return {integer(key, least, most)};
  std::vector<int64_t> numbers;
  for (const Json& element : *value) {
    const bool small =
        element.is_number_integer() && !(element.is_number_unsigned() && element.get<uint64_t>() > INT64_MAX);
    check(small && element.get<int64_t>() >= least && element.get<int64_t>() <= most, WI_E_FORMAT, at(key),
          ": element ", numbers.size(), " must be an integer in [", least, ", ", most, "]");
    numbers.push_back(element.get<int64_t>());
  }
  return numbers;
}

namespace {

// Brackets outside strings. What is broken otherwise is left to the parser to say.
void check_nesting(std::string_view text, const std::string& file) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      check(++depth <= kMostNesting, WI_E_FORMAT, file, ": JSON nests deeper than ", kMostNesting,
            " at byte ", i + 1);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

}  // namespace
}  // namespace wi
