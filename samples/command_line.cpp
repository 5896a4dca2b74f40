#include "command_line.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "waveinfer.h"

namespace sample {

bool CommandLine::parse(int count, char** words) const {
  const std::vector<std::string> given(words + 1, words + count);
  const auto has = [&](const char* name) {
    return std::find(given.begin(), given.end(), name) != given.end();
  };
  if (has("--help") || has("-h")) {
    std::fputs(usage_, stdout);
    return false;
  }
  if (has("--version")) {
    const std::string usage = usage_;
    std::printf("%s %s\n", usage.substr(0, usage.find(':')).c_str(), wi_version());
    return false;
  }
  for (size_t i = 0; i < given.size(); i++) {
    const std::string& name = given[i];
    const auto option =
        std::find_if(options_.begin(), options_.end(), [&](const Option& o) { return o.name == name; });
    if (option == options_.end()) throw std::runtime_error("unknown option " + name + " (--help lists them)");
    if (option->flag) {
      *option->flag = true;
      continue;
    }
    if (++i == given.size()) throw std::runtime_error(name + " needs a value");
    option->take(given[i]);
  }
  return true;
}

CommandLine& CommandLine::flag(const char* name, bool* out) {
  options_.push_back({name, out, nullptr});
  return *this;
}

CommandLine& CommandLine::text(const char* name, std::string* out) {
  return each(name, [=](const std::string& value) { *out = value; });
}

CommandLine& CommandLine::list(const char* name, std::vector<std::string>* out) {
  return each(name, [=](const std::string& value) { *out = split_at_commas(value); });
}

CommandLine& CommandLine::each(const char* name, std::function<void(const std::string&)> take) {
  options_.push_back({name, nullptr, std::move(take)});
  return *this;
}

std::vector<std::string> split_at_commas(const std::string& list) {
  std::vector<std::string> parts(1);
  for (char letter : list) {
    if (letter == ',')
      parts.emplace_back();
    else
      parts.back() += letter;
  }
  return parts;
}

int64_t parse_integer(std::string_view option, const std::string& text, int64_t least, int64_t most) {
  char* end = nullptr;
  errno = 0;
  long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end || errno || value < least || value > most) {
    throw std::runtime_error(std::string(option) + " is \"" + text + "\", must be a whole number from " +
                             std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

double parse_number(std::string_view option, const std::string& text, double least, double most) {
  char* end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end || !(value >= least && value <= most)) {
    char range[64];
    std::snprintf(range, sizeof range, "%g to %g", least, most);
    throw std::runtime_error(std::string(option) + " is \"" + text + "\", must be a number from " + range);
  }
  return value;
}

}  // namespace sample
