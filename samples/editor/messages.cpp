#include "messages.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <string_view>

namespace editor {
namespace {

constexpr size_t kMostHeaderLine = 4096, kMostContent = size_t{32} << 20;
constexpr int kMostDepth = 64;

// A document of brackets alone would take a hundred times its length.
Json parse(std::string_view content) {
  const auto not_too_deep = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMostDepth) throw RpcError(kParseError, "the JSON is nested too deep");
    return true;
  };
  try {
    return Json::parse(content, not_too_deep);
  } catch (const Json::exception&) {
    throw RpcError(kParseError, "the content is not JSON");
  }
}

std::string in_lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char byte) { return std::tolower(byte); });
  return text;
}

}  // namespace

void Inbox::feed(const char* bytes, size_t count) {
  bytes_.erase(0, at_);
  at_ = 0;
  const size_t skipped = std::min(skipping_, count);
  skipping_ -= skipped;
  bytes_.append(bytes + skipped, count - skipped);
}

bool Inbox::next(Json* message) {
  while (in_header_)
    if (!read_header_line()) return false;
  if (bytes_.size() - at_ < length_) return false;
  const std::string_view content = std::string_view(bytes_).substr(at_, length_);
  at_ += length_;
  in_header_ = true;
  *message = parse(content);
  return true;
}

// A field stands at the beginning of its line. Behind content of an unknown length it does not: it is found there too,
// so that one broken message costs no others.
bool Inbox::read_header_line() {
  const size_t end = bytes_.find('\n', at_);
  if (end == std::string::npos) {
    if (bytes_.size() - at_ > kMostHeaderLine) {
      in_long_line_ = true;
      at_ = bytes_.size() - 32;  // a field may have begun
    }
    return false;
  }
  std::string line = in_lower_case(bytes_.substr(at_, end - at_));
  at_ = end + 1;
  if (!line.empty() && line.back() == '\r') line.pop_back();
  if (line.empty()) return end_header(), true;

  static constexpr std::string_view kField = "content-length:";
  const size_t field = line.find(kField);
  if (in_long_line_ || (field != 0 && field != std::string::npos))
    complaint_ = "there is something before a header";
  in_long_line_ = false;
  if (field == std::string::npos) {
    if (line.find(": ") == std::string::npos) complaint_ = "a line of the header is no field";
    return true;
  }
  const size_t digits = line.find_first_not_of(" \t", field + kField.size());
  const std::string number = digits == std::string::npos ? "" : line.substr(digits);
  has_length_ =
      !number.empty() && number.size() < 16 && number.find_first_not_of("0123456789") == std::string::npos;
  if (has_length_)
    length_ = std::stoull(number);
  else
    complaint_ = "Content-Length is no number";
  return true;
}

void Inbox::end_header() {
  std::string complaint;
  complaint.swap(complaint_);
  const bool has_length = has_length_;
  has_length_ = false;
  if (!has_length)
    throw RpcError(kInvalidRequest, complaint.empty() ? "a header has no Content-Length" : complaint);
  if (length_ > kMostContent) {
    const size_t here = std::min(length_, bytes_.size() - at_);
    at_ += here;
    skipping_ = length_ - here;
    throw RpcError(kInvalidRequest, "the content is longer than " + std::to_string(kMostContent) + " bytes");
  }
  in_header_ = false;
  if (!complaint.empty()) throw RpcError(kInvalidRequest, complaint);
}

void send(const Json& message) {
  const std::string content = message.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::printf("Content-Length: %zu\r\n\r\n", content.size());
  std::fwrite(content.data(), 1, content.size(), stdout);
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw ClientGone();
}

}  // namespace editor
