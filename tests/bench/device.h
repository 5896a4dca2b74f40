// What wi_bench does with a device beside what it does with the host's processor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "src/session.h"

namespace wi::bench {

// The NVIDIA driver's version, as nvidia-smi has it: "580.159.04"; empty: there is none that says so.
std::string driver_version();

// The runtime's device, now: bytes of its memory that are taken, by whomever.
uint64_t device_bytes_taken(const Runtime& runtime);

// The same backend, whose steps are watched, and, without graphs, told of as they come and not in one call each. Null: the
// host's own processor, which stays as it is.
const Backend* watched(const Backend* backend, bool graphs);
// Of steps that the device was told of in one call, until now: how many, and how long it was until it had done them. What a
// step takes besides is the host's, while the device has nothing to do.
struct ToldAtOnce {
  uint64_t steps = 0, ns = 0;
};
ToldAtOnce told_at_once();

// What a step reads of the weights, whatever its batch: all but the rows of an embedding that is not the output, too.
uint64_t step_weight_bytes(const Model& model);

// A session of another runtime's that has everything that this one has. It goes there as one that is saved and
// loaded does, but in memory, a piece at a time. fast_share: SessionParams::kv_fast_share there.
std::shared_ptr<Session> copy_to(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                                 Session& from, float fast_share);

}  // namespace wi::bench
