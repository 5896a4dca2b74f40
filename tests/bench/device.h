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

// A session of another runtime's that has everything that this one has. It goes there as one that is saved and
// loaded does, but in memory, a piece at a time. fast_share: SessionParams::kv_fast_share there.
std::shared_ptr<Session> copy_to(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                                 Session& from, float fast_share);

}  // namespace wi::bench
