// wi_bench --serve: many requests at once through the runtime's engine, as a service has them.
#pragma once

#include <memory>
#include <string>

#include "src/session.h"

namespace wi::bench {

struct ServeOptions {
  int64_t requests = 64;
  double per_second = 2;  // mean rate of arrivals
  int64_t long_tokens = 16384;
  uint64_t seed = 1;
  std::string mix;  // a file for the mix, that other servers may be sent the same
};

// Requests arrive at random (Poisson) and are of three kinds: chat turns (70 %: 32 to 512 tokens are read, 16
// to 64 written), documents (10 %: a quarter of long_tokens to all of them, and 32), and questions to a
// document that a session has read already, of which each takes a fork (20 %: 16 to 64, and 32). Prints a
// line for each kind and one for all: tokens a second, and percentiles of the time to the first token and
// between two tokens.
//
// The mix as JSON lines: first {"library": ids}, the document that questions go on from, then for each request
// {"kind", "arrives_s", "tokens": ids, "max_tokens"}.
void serve(const std::shared_ptr<Runtime>& runtime, const std::shared_ptr<const Model>& model,
           const SessionParams& params, const ServeOptions& options);

}  // namespace wi::bench
