// What the two halves of the emulation know of each other: blocks of threads (emulation.cpp), and the runtime
// with its memory and streams (runtime.cpp).
#pragma once

#include <random>
#include <string>

#include "tests/cuda_emulation/accesses.h"
#include "tests/cuda_emulation/cuda_runtime.h"

namespace cuda_emulation {

constexpr uint32_t kMostThreads = 1024;
constexpr size_t kPlainShared = size_t{48} << 10;  // of shared memory, without asking

// ---- of the runtime

std::mt19937_64& drawn();
inline uint64_t draw(uint64_t below) { return drawn()() % below; }
void note(cudaError_t error, std::string text);  // the first fault stays
bool in_arena(const void* address);              // where device memory is, whether allocated or not
// What it is in goes to *found.
bool in_device(const void* address, size_t bytes, Region* found = nullptr);
bool in_pinned(const void* address, size_t bytes, Region* found = nullptr);

// Device memory is open while there is one.
struct Opening {
  Opening();
  Opening(const Opening&) = delete;
  ~Opening();
};

// ---- of the blocks

void prepare_blocks();
void run_grid(const cudaLaunchConfig_t& config, const Launch& launch);

}  // namespace cuda_emulation
