// The closing table and the JSON objects of wi_ask.
#include "ask_report.h"

#include <algorithm>
#include <cctype>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sys/resource.h>

namespace sample {
namespace {

using Cell = std::function<std::string(const Reading&)>;

void print_row(const char* title, const std::vector<Reading>& readings, const Cell& cell);
void print_answers(const std::vector<Reading>& readings);
std::string right_answers(const Reading& reading);
std::string in_bytes(double bytes);
std::string in_milliseconds(double milliseconds);
double median(const Reading& reading, double Answer::*field);
double mean(const Reading& reading, double Answer::*field);
size_t code_point_length(const std::string& text, size_t position);

}  // namespace

bool Answer::right() const {
  auto letter = [&](size_t i) {
    return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i]));
  };
  for (size_t at = text.find(question.expected); at != std::string::npos;
       at = text.find(question.expected, at + 1)) {
    if ((at == 0 || !letter(at - 1)) && !letter(at + question.expected.size())) return true;
  }
  return false;
}

void print_table(const std::vector<Reading>& readings) {
  print_answers(readings);
  print_row("", readings, [](const Reading& r) { return r.policy; });
  print_row("right answers", readings, right_answers);
  print_row("document, tokens", readings, [](const Reading& r) { return with_thousands(r.document_tokens); });
  print_row("prefill time", readings,
            [](const Reading& r) { return in_milliseconds(r.prefill_seconds * 1e3); });
  print_row("prefill, tokens/s", readings, [](const Reading& r) {
    return with_thousands(static_cast<uint64_t>(r.prefill_tokens_per_second()));
  });
  print_row("first token (median)", readings,
            [](const Reading& r) { return in_milliseconds(median(r, &Answer::first_token_ms)); });
  print_row("time per token (median)", readings,
            [](const Reading& r) { return in_milliseconds(median(r, &Answer::ms_per_token)); });
  print_row("KV cache", readings,
            [](const Reading& r) { return in_bytes(static_cast<double>(r.answers.back().kv_bytes)); });
  print_row("KV read per token", readings,
            [](const Reading& r) { return in_bytes(mean(r, &Answer::kv_bytes_read_per_token)); });
  print_row("index", readings,
            [](const Reading& r) { return in_bytes(static_cast<double>(r.answers.back().index_bytes)); });
  print_row("hit ratio", readings, [](const Reading& r) {
    char text[16];
    std::snprintf(text, sizeof text, "%.3f", mean(r, &Answer::hit_ratio));
    return std::string(text);
  });
  print_row("peak memory", readings,
            [](const Reading& r) { return in_bytes(static_cast<double>(r.answers.back().peak_rss_bytes)); });
}

void print_json(const Reading& reading, const Answer& answer) {
  std::printf(
      "{\"question\": %s, \"answer\": %s, \"policy\": %s, \"device\": %s, \"document_tokens\": %" PRIu64
      ", \"prefill_seconds\": %.6f, \"prefill_tokens_per_second\": %.2f, \"first_token_ms\": %.3f"
      ", \"ms_per_token\": %.4f, \"kv_bytes\": %" PRIu64
      ", \"kv_bytes_read_per_token\": %.0f, \"hit_ratio\": %.6f, \"peak_rss_bytes\": %" PRIu64
      ", \"index_bytes\": %" PRIu64 ", \"answer_tokens\": %" PRIu64 ", \"right\": %s, \"finish\": \"%s\"}\n",
      json_string(answer.question.text).c_str(), json_string(answer.text).c_str(),
      json_string(reading.policy).c_str(), json_string(reading.device).c_str(), reading.document_tokens,
      reading.prefill_seconds, reading.prefill_tokens_per_second(), answer.first_token_ms,
      answer.ms_per_token, answer.kv_bytes, answer.kv_bytes_read_per_token, answer.hit_ratio,
      answer.peak_rss_bytes, answer.index_bytes, answer.tokens,
      !answer.judged() ? "null"
      : answer.right() ? "true"
                       : "false",
      answer.cut ? "length" : "stop");
  std::fflush(stdout);
}

std::string with_thousands(uint64_t number) {
  std::string digits = std::to_string(number);
  for (size_t place = digits.size(); place > 3; place -= 3) digits.insert(place - 3, 1, ',');
  return digits;
}

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    size_t length = code_point_length(text, i);
    auto letter = static_cast<unsigned char>(text[i]);
    if (length == 0) {
      out += "\\ufffd";
    } else if (letter < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(letter));
      out += escape;
    } else {
      if (letter == '"' || letter == '\\') out += '\\';
      out.append(text, i, length);
    }
    i += std::max<size_t>(length, 1);
  }
  return out + '"';
}

uint64_t peak_rss_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (uint64_t kilobytes = 0; word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

void reset_peak_rss() {
  // "5" sets the high-water mark back to the present size (proc(5)). A kernel that refuses leaves the
  // peak of the whole process, which is an upper bound.
  std::ofstream("/proc/self/clear_refs") << "5";
}

namespace {

void print_answers(const std::vector<Reading>& readings) {
  std::printf("\n");
  for (size_t i = 0; i < readings.front().answers.size(); i++) {
    const Question& question = readings.front().answers[i].question;
    std::printf("%zu. %s", i + 1, question.text.c_str());
    if (!question.expected.empty()) std::printf("  (%s)", question.expected.c_str());
    std::printf("\n");
    for (const Reading& reading : readings) {
      const Answer& answer = reading.answers[i];
      const char* verdict = !answer.judged() ? "" : answer.right() ? "right  " : "WRONG  ";
      std::printf("     %-6s %s%s%s\n", reading.policy.c_str(), verdict, answer.text.c_str(),
                  answer.cut ? "  (cut off)" : "");
    }
  }
  std::printf("\n");
}

void print_row(const char* title, const std::vector<Reading>& readings, const Cell& cell) {
  std::printf("%-24s", title);
  for (const Reading& reading : readings) std::printf("%14s", cell(reading).c_str());
  std::printf("\n");
}

std::string right_answers(const Reading& reading) {
  auto judged = std::count_if(reading.answers.begin(), reading.answers.end(),
                              [](const Answer& answer) { return answer.judged(); });
  auto right = std::count_if(reading.answers.begin(), reading.answers.end(),
                             [](const Answer& answer) { return answer.judged() && answer.right(); });
  return judged ? std::to_string(right) + " of " + std::to_string(judged) : "-";
}

std::string in_bytes(double bytes) {
  const char* units[] = {"B", "KB", "MB", "GB", "TB"};
  size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(units); unit++) bytes /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", bytes, units[unit]);
  return text;
}

std::string in_milliseconds(double milliseconds) {
  char text[32];
  if (milliseconds < 1000) {
    std::snprintf(text, sizeof text, "%.2f ms", milliseconds);
  } else {
    std::snprintf(text, sizeof text, "%.2f s", milliseconds / 1000);
  }
  return text;
}

double median(const Reading& reading, double Answer::*field) {
  std::vector<double> values;
  values.reserve(reading.answers.size());
  for (const Answer& answer : reading.answers) values.push_back(answer.*field);
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double mean(const Reading& reading, double Answer::*field) {
  double sum = 0;
  for (const Answer& answer : reading.answers) sum += answer.*field;
  return sum / static_cast<double>(reading.answers.size());
}

// Bytes of the UTF-8 code point that starts at position; 0 if none does.
size_t code_point_length(const std::string& text, size_t position) {
  auto first = static_cast<unsigned char>(text[position]);
  size_t length = first < 0x80   ? 1
                  : first < 0xC2 ? 0
                  : first < 0xE0 ? 2
                  : first < 0xF0 ? 3
                  : first < 0xF5 ? 4
                                 : 0;
  if (length == 0 || position + length > text.size()) return 0;
  for (size_t i = 1; i < length; i++) {
    if ((static_cast<unsigned char>(text[position + i]) & 0xC0) != 0x80) return 0;
  }
  auto second = length > 2 ? static_cast<unsigned char>(text[position + 1]) : 0;
  bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  bool surrogate = first == 0xED && second > 0x9F;
  bool beyond = first == 0xF4 && second > 0x8F;
  return overlong || surrogate || beyond ? 0 : length;
}

}  // namespace
}  // namespace sample
