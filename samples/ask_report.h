// What wi_ask measured, and how it is told: one JSON object per question, or a closing table that sets the
// policies side by side.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ask_options.h"

namespace sample {

struct Answer {
  Question question;
  std::string text;
  uint64_t tokens = 0;
  bool cut = false;           // at --max-tokens: the model would have gone on
  double first_token_ms = 0;  // from handing over the question to its answer's first token
  double ms_per_token = 0;    // of the tokens after the first
  uint64_t kv_bytes = 0;
  uint64_t index_bytes = 0;
  double kv_bytes_read_per_token = 0;  // index reads included
  double hit_ratio = 1;  // of the partitions looked up; 1 where all of the cache is in fast memory
  uint64_t peak_rss_bytes = 0;

  bool judged() const { return !question.expected.empty(); }
  bool right() const;  // the expected words stand in the answer, whole
};

// One policy's reading of the document and its answers.
struct Reading {
  std::string policy;
  std::string device;
  uint64_t document_tokens = 0;
  double prefill_seconds = 0;
  std::vector<Answer> answers;

  double prefill_tokens_per_second() const {
    return prefill_seconds > 0 ? static_cast<double>(document_tokens) / prefill_seconds : 0;
  }
};

void print_json(const Reading& reading, const Answer& answer);
void print_table(const std::vector<Reading>& readings);

std::string with_thousands(uint64_t number);       // 32,768
std::string json_string(const std::string& text);  // quoted and escaped; broken UTF-8 becomes U+FFFD

// The process's peak resident memory since the last reset, in bytes.
uint64_t peak_rss_bytes();
void reset_peak_rss();

}  // namespace sample
