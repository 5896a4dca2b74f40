// A program's options: each said once, with where its value goes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sample {

// The value of an option as a number, whole and in range, or an error that names the option and the value.
int64_t parse_integer(std::string_view option, const std::string& text, int64_t least, int64_t most);
double parse_number(std::string_view option, const std::string& text, double least, double most);

std::vector<std::string> split_at_commas(const std::string& list);

class CommandLine {
 public:
  explicit CommandLine(const char* usage) : usage_(usage) {}

  CommandLine& flag(const char* name, bool* out);
  CommandLine& text(const char* name, std::string* out);
  // A value between commas at a time replaces what was there.
  CommandLine& list(const char* name, std::vector<std::string>* out);
  // A number in [least, most].
  template <class T>
  CommandLine& integer(const char* name, T* out, int64_t least, int64_t most = INT32_MAX) {
    return each(name, [=](const std::string& value) {
      *out = static_cast<T>(parse_integer(name, value, least, most));
    });
  }
  template <class T>
  CommandLine& number(const char* name, T* out, double least, double most) {
    return each(name, [=](const std::string& value) {
      *out = static_cast<T>(parse_number(name, value, least, most));
    });
  }
  // Calls take with the value every time that the option is given.
  CommandLine& each(const char* name, std::function<void(const std::string& value)> take);

  // Reads the words; throws at one that is no option, lacks its value or has a wrong one. --help or -h,
  // wherever it stands, prints the usage, --version the library's; then it returns false: there is nothing
  // else to do.
  bool parse(int count, char** words) const;

 private:
  struct Option {
    std::string name;
    bool* flag;
    std::function<void(const std::string&)> take;
  };
  const char* usage_;
  std::vector<Option> options_;
};

}  // namespace sample
