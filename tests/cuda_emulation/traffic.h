// What the emulated runtime's copies have carried since reset(), and how often the host has waited for a stream.
#pragma once

#include <cstdint>

namespace cuda_emulation {

struct Traffic {
  uint64_t to_device = 0, to_host = 0;  // bytes across the bus
  uint64_t within = 0;                  // bytes from a device's memory to a device's
  uint64_t waits = 0;                   // calls to cudaStreamSynchronize
};
// On a real device nobody counts: the test is skipped.
Traffic traffic();

}  // namespace cuda_emulation
