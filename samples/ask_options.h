// The command line of wi_ask.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sample {

struct Question {
  std::string text;
  std::string expected;  // the answer is right if it holds these words; empty: nobody knows
};

struct AskOptions {
  std::string model;
  std::string document;
  int64_t document_tokens = 0;  // 0: all
  std::vector<Question> questions;
  std::vector<std::string> policies;  // each reads the document anew; empty: the library's default
  std::string device = "cpu";
  std::string kv_type = "f16";
  std::string load = "mapped";
  std::string precision = "fast";
  double budget = 0;  // share of the indexed tokens read exactly; 0: the library's default
  int64_t sparse_read_tokens = 0;
  std::string spill;   // folder for what memory has no room for; empty: there is no slow tier
  double kv_fast = 0;  // share of the cache in memory; 0: as it has room
  int64_t kv_budget_mb = 0;
  int64_t max_tokens = 256;
  double temperature = 0;
  int64_t seed = 0;
  int threads = 0;
  bool raw = false;
  bool json = false;
};

// False: --help was asked for and has been given. Throws std::runtime_error naming the option that is
// unknown, incomplete or out of range.
bool parse_ask_options(int argument_count, char** arguments, AskOptions& options);

}  // namespace sample
