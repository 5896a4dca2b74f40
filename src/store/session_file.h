// Saving a session and loading it again: one file with everything that computing on needs. A save is atomic
// (a temporary file beside the target, fsync, rename); a load trusts nothing it reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/policy.h"
#include "src/store/sequence.h"

namespace wi {

// What a file holds beside keys, values and indexes.
struct SessionImage {
  uint64_t model_fingerprint = 0;
  std::string policy;
  PolicyParams params;  // a load must agree in what shapes the index; the rest is the loader's choice
  std::vector<int32_t> tokens;
  int64_t exact_end = 0;
  std::vector<float> logits;           // of the last computed token; may be empty
  std::vector<unsigned char> sampler;  // opaque to this file
  std::string pending_bytes;
};

// Throws WI_E_IO (errno) and leaves an existing file at path as it was; WI_E_CANCELLED likewise.
void save_session(const std::string& path, const SessionImage& image, const Sequence& sequence,
                  const std::atomic<bool>* cancel);

// What the loader must find; anything else is WI_E_MISMATCH naming what differs, damage is WI_E_FORMAT
// naming the field and the byte offset.
struct SessionExpectation {
  uint64_t model_fingerprint;
  KvShape shape;
  int32_t vocab;
  const Policy* policy;
  PolicyParams params;
};
// Fills `sequence`, which is empty, charging its budget.
SessionImage load_session(const std::string& path, const SessionExpectation& expected, Sequence& sequence);

// True if two parameter sets build the same index from the same keys.
bool same_index(const PolicyParams& a, const PolicyParams& b);

}  // namespace wi
