#include "src/chat/json_value.h"

#include <nlohmann/json.hpp>

#include "src/chat/limits.h"

namespace wi::chat {
namespace {

// nlohmann's events to values: no tree of its own is built, and keys keep their order.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(const char* name) : name_(name) {}

  bool null() override { return add(Value::none()); }
  bool boolean(bool value) override { return add(Value::of(value)); }
  bool number_integer(int64_t value) override { return add(Value::of(value)); }
  bool number_unsigned(uint64_t value) override {
    check(value <= INT64_MAX, WI_E_UNSUPPORTED, name_, ": the number ", value, " has more than 64 bits");
    return add(Value::of(static_cast<int64_t>(value)));
  }
  bool number_float(double value, const std::string& digits) override {
    check(digits.find_first_of(".eE") != std::string::npos, WI_E_UNSUPPORTED, name_, ": the number ",
          digits.substr(0, 40), " has more than 64 bits");
    return add(Value::of(value));
  }
  bool string(std::string& value) override { return add(Value::of(Text::of_host(value))); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(size_t) override { return open(true); }
  bool start_array(size_t) override { return open(false); }
  bool key(std::string& key) override {
    open_.back().key = Value::of(Text::of_host(key));
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& error) override {
    fail(WI_E_ARGUMENT, name_, " is no JSON: at byte ", byte, ": ", error.what());
  }

  Value take() { return std::move(result_); }

 private:
  struct Open {
    std::shared_ptr<Dict> dict;  // null: a list
    std::vector<Value> items;
    Value key;
  };

  bool open(bool is_object) {
    check(open_.size() < limits::kNesting - 10, WI_E_ARGUMENT, name_, " nests deeper than ",
          limits::kNesting - 10);
    open_.push_back({is_object ? std::make_shared<Dict>() : nullptr, {}, {}});
    return true;
  }

  bool close() {
    Open closed = std::move(open_.back());
    open_.pop_back();
    return add(closed.dict ? Value::of(std::move(closed.dict)) : Value::of(std::move(closed.items)));
  }

  bool add(Value value) {
    if (open_.empty())
      result_ = std::move(value);
    else if (open_.back().dict)
      open_.back().dict->set(open_.back().key, std::move(value));
    else
      open_.back().items.push_back(std::move(value));
    return true;
  }

  const char* name_;
  std::vector<Open> open_;
  Value result_;
};

}  // namespace

Value parse_json_value(std::string_view json, const char* name) {
  Builder builder(name);
  nlohmann::json::sax_parse(json.begin(), json.end(), &builder);
  return builder.take();
}

}  // namespace wi::chat
