// The JSON that model directories carry, read through nlohmann's parser behind guards: against nesting, and
// against a text that grows far beyond its length when it is read.
#include "src/files/json_file.h"

#include <array>
#include <cmath>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_set>

#include "src/error.h"
#include "src/host_process.h"
#include "src/no_signals.h"
#include "src/text_hash.h"

namespace wi {
namespace {

constexpr int kMostNesting = 64;  // clear() goes as deep
// Of a string, a number or white space, which the parser reads without asking the host; no file's has a fifth of it.
constexpr uint64_t kMostTokenBytes = uint64_t{8} << 20;
constexpr uint64_t kManyParts = 50'000;  // take ten milliseconds to go
constexpr uint64_t kMostEntryMemory = uint64_t{64} << 20;

void check_nesting(std::string_view text, const std::string& file, Watch* watch);
const char* kind(const Json& value) { return value.type_name(); }

}  // namespace

// Builds values from the parser's events. The library's own builder would do, but for three things: memory is
// counted while it grows (thirty and more bytes for one of text, in the worst case), the host is listened to,
// and the entries of the outermost object may be handed on one by one. (The library's parse with a callback
// takes time quadratic in the length of an array.)
class JsonBuilder : public nlohmann::json_sax<Json> {
 public:
  using Entry = std::function<void(const std::string& key, const Json& value)>;
  JsonBuilder(const std::string& file, uint64_t most_memory, Watch* watch, const Entry* entry)
      : file_(file), most_memory_(most_memory), watch_(watch), entry_(entry) {}

  JsonTree take() { return std::move(root_); }

  bool null() override { return add(nullptr, 0); }
  bool boolean(bool value) override { return add(value, 0); }
  bool number_integer(int64_t value) override { return add(value, 0); }
  bool number_unsigned(uint64_t value) override { return add(value, 0); }
  bool number_float(double value, const std::string&) override { return add(value, 0); }
  bool string(std::string& value) override {
    const uint64_t memory = sizeof(std::string) + value.size();
    return add(std::move(value), memory);
  }
  bool binary(Json::binary_t&) override { return false; }  // not in JSON text
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool key(std::string& key) override {
    if (stack_.size() == 1 && entry_) {
      const bool fresh = keys_.insert(key).second;
      if (!fresh) fail(WI_E_FORMAT, file_, ": '", key, "' appears twice");
      key_ = std::move(key);
    } else {
      count(kNodeBytes + key.size());
      slot_ = &(*stack_.back())[std::move(key)];
    }
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t byte, const std::string&, const Json::exception& error) override {
    fail(WI_E_FORMAT, file_, ": broken JSON at byte ", byte, ": ", error.what());
  }

 private:
  static constexpr uint64_t kNodeBytes = 80;  // of a map: colour, three pointers, key
  static constexpr uint64_t kContainerBytes = 64;

  bool is_entry() const { return stack_.size() == 1 && entry_; }

  bool add(Json value, uint64_t memory) {
    place(std::move(value), memory);
    if (is_entry()) hand_over();
    return true;
  }
  bool open(Json container) {
    stack_.push_back(place(std::move(container), kContainerBytes));
    return true;
  }
  bool close() {
    stack_.pop_back();
    if (is_entry()) hand_over();
    return true;
  }
  Json* place(Json value, uint64_t memory) {
    count(memory + sizeof(Json));
    Json* at = &root_.root_;
    if (is_entry()) {
      at = &current_.root_;
    } else if (!stack_.empty() && stack_.back()->is_array()) {
      stack_.back()->push_back(nullptr);  // no container of the stack lies in this array: they may move
      at = &stack_.back()->back();
    } else if (!stack_.empty()) {
      at = slot_;
    }
    *at = std::move(value);
    return at;
  }
  void hand_over() {
    const JsonTree whole = std::move(current_);
    (*entry_)(key_, *whole);
    memory_ = 0;
  }
  void count(uint64_t memory) {
    memory_ += memory;
    ++(entry_ ? current_ : root_).parts_;
    if (memory_ > most_memory_)
      fail(WI_E_FORMAT, file_, ": the JSON takes more than ", most_memory_ >> 20,
           " MiB of memory once it is read");
    if (++events_ % 1024 == 0) tick(watch_);
  }

  const std::string& file_;
  const uint64_t most_memory_;
  Watch* const watch_;
  const Entry* const entry_;
  JsonTree root_, current_;
  std::vector<Json*> stack_;
  Json* slot_ = nullptr;  // of the key that was read last
  std::string key_;
  std::unordered_set<std::string, TextHash> keys_;
  uint64_t memory_ = 0, events_ = 0;
};

namespace {

JsonTree parse(std::string_view text, const std::string& file, uint64_t most_memory, Watch* watch,
               const JsonBuilder::Entry* entry) {
  check_nesting(text, file, watch);
  JsonBuilder builder(file, most_memory, watch, entry);
  try {
    Json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const Json::exception& error) {
    fail(WI_E_FORMAT, file, ": broken JSON: ", error.what());
  }
  JsonTree json = builder.take();
  check(json->is_object(), WI_E_FORMAT, file, ": the JSON is ", kind(*json), ", must be object");
  return json;
}

}  // namespace

JsonTree parse_json(std::string_view text, const std::string& file, Watch* watch, uint64_t most_memory) {
  return parse(text, file, most_memory, watch, nullptr);
}

void parse_json_entries(std::string_view text, const std::string& file, Watch* watch,
                        const std::function<void(const std::string&, const Json&)>& entry) {
  parse(text, file, kMostEntryMemory, watch, &entry);
}

namespace {

// An empty array or object destroys itself without memory.
void clear(Json& value) noexcept {
  if (value.is_structured())
    for (Json& child : value) clear(child);
  if (value.is_array()) value.get_ref<Json::array_t&>().clear();
  if (value.is_object()) value.get_ref<Json::object_t&>().clear();
}

// Frees large trees one after another, beside the calls that go on. Its thread ends when there are no more,
// and with the library, whose code it runs: where the program has that from a plugin, it may be unloaded.
class Cleaner {
 public:
  void end() {
    if (!has_thread_here()) return;
    std::thread last;
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      last = std::move(thread_);
    }
    if (last.joinable()) last.join();
  }
  // Leaves null in the tree's place. False: too many wait already, or there is no thread to be had.
  bool take(Json& tree) noexcept {
    if (!has_thread_here()) return false;
    try {
      const std::lock_guard lock(mutex_);
      if (ended_ || waiting_ == trees_.size()) return false;
      if (!running_) start();
      trees_[waiting_++].swap(tree);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

 private:
  // A child of fork(2) has no such thread, and the lock may be another's for ever.
  bool has_thread_here() const { return fork_count() == made_after_forks_; }
  void start() {
    if (thread_.joinable()) thread_.join();  // it has nothing left to do
    const NoSignals none;
    thread_ = std::thread([this] {
      for (Json tree; next(tree); tree = nullptr) clear(tree);
    });
    running_ = true;
  }
  bool next(Json& tree) {
    const std::lock_guard lock(mutex_);
    running_ = waiting_ > 0;
    if (running_) tree.swap(trees_[--waiting_]);
    return running_;
  }

  const uint32_t made_after_forks_ = fork_count();
  std::mutex mutex_;
  std::array<Json, 8> trees_;  // an opening leaves three or four
  size_t waiting_ = 0;
  std::thread thread_;
  bool running_ = false, ended_ = false;
};

// Never destroyed, only ended: others' calls may go on while the process ends. Nor does it take memory, which
// a destructor may not be refused.
Cleaner& cleaner() {
  static union Kept {
    Cleaner one{};
    Kept() {}
    ~Kept() { one.end(); }
  } kept;
  return kept.one;
}

}  // namespace

JsonTree::~JsonTree() {
  if (parts_ < kManyParts || !cleaner().take(root_)) clear(root_);
}

void JsonTree::merge(JsonTree other) {
  parts_ += other.parts_;
  for (auto& [key, value] : other.root_.get_ref<Json::object_t&>()) {
    Json& here = root_[key];
    clear(here);
    here = std::move(value);
  }
}

std::string json_of_text(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool JsonFields::has_null(const char* key) const {
  auto found = object_.find(key);
  return found != object_.end() && found->is_null();
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

// Brackets outside strings, and how long what stands between them is: the parser says nothing before a string, a number
// or white space has ended. What is broken otherwise is left to it to say.
void check_nesting(std::string_view text, const std::string& file, Watch* watch) {
  int depth = 0;
  bool quoted = false;
  size_t begin = 0, ticked = 0;  // of a run without , : { } [ ] outside strings
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (i - ticked >= 1 << 20) {
      tick(watch);
      ticked = i;
      check(i - begin <= kMostTokenBytes, WI_E_FORMAT, file, ": the JSON has more than ", kMostTokenBytes,
            " bytes in one piece at byte ", begin);
    }
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      check(++depth <= kMostNesting, WI_E_FORMAT, file, ": JSON nests deeper than ", kMostNesting,
            " at byte ", i + 1);
      begin = i + 1;
    } else if (c == '}' || c == ']') {
      --depth;
      begin = i + 1;
    } else if (c == ',' || c == ':') {
      begin = i + 1;
    }
  }
}

}  // namespace
}  // namespace wi
