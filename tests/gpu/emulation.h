// What tests ask of the emulation (tests/cuda_emulation/emulation.h), where there is none: of a real device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cuda_emulation {

// A device can't forget: ends the program if it is lost. Drawn from the seed is nothing.
void reset(uint64_t seed);
// Waits for the device, and says what it says is wrong; empty: nothing.
const std::string& report();
// After a fault a process gets nothing more from its device.
inline constexpr bool kForgetsFaults = false;

void fail_allocations_from(int64_t nth);  // as the emulation's
// The nth from now on follows a kernel with a wild pointer, and so does a graph that comes before.
void fail_launch(int64_t nth);
void refuse_launch(int64_t nth);  // as the emulation's, both
void refuse_graph_launch(int64_t nth);
uint64_t api_calls();  // launches, of kernels and of graphs, copies and fills
inline constexpr uint64_t kCallsOfLaunch = 1;
uint64_t graph_launches();
int64_t graphs();  // that can be launched
void allow_capture(bool allowed);

// Other machines than this one: the test is skipped.
struct Machine {
  int devices = 1;
  int driver = 13000;
  int major = 9, minor = 0;
  size_t memory_bytes = size_t{1} << 36, free_bytes = size_t{1} << 36;
  size_t shared_bytes = size_t{227} << 10;
  bool reads_pageable = false, pins = true;
  const char* bus = "";
};
void set_machine(const Machine& machine);
// What the device has, at most so much: kernels are told, nobody holds them to it.
size_t limit_shared(size_t bytes);

}  // namespace cuda_emulation
