// CUDA on the CPU, for tests: the same .cu sources compiled as C++ against the headers of this folder, which
// carry the names of the toolkit's. A block's threads are fibers of one host thread and meet at
// __syncthreads and at warp operations; who runs next, which block is next and which stream goes on is drawn
// from a seed. What the hardware forgives now and then is a fault here each time:
//  - device memory is closed to all but kernels and copies, has exact bounds, and begins with no zeros;
//  - shared memory is shadowed, each byte of it: a race and a read of what nobody wrote are faults;
//  - threads that wait for each other for ever, or for a lane that has returned;
//  - streams run late, or at once, in any order that events allow.
// Accesses are seen where the sources are compiled with -fsanitize=thread, whose entry points accesses.cpp
// defines; without (under other sanitizers) the checks of addresses are the page protection's alone.
//
// A fault ends the kernel and stays, as on a device: every later call returns its error until reset(). Its
// report names kernel, block, thread and address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

struct uint3;
struct cudaLaunchConfig_t;
enum cudaError_t : int;

namespace cuda_emulation {

// Forgets everything: memory, streams, events, the fault. The seed is that of all that is drawn from now on.
void reset(uint64_t seed);
const std::string& report();                  // the first fault's; empty: there is none
inline constexpr bool kForgetsFaults = true;  // reset() is enough to go on after one
bool sees_accesses();                         // whether the sources report their accesses
uint64_t launches();                          // kernels run since reset()
uint64_t launches_on(int device);             // of them
uint64_t api_calls();                         // calls to the runtime since reset()
uint64_t graph_launches();                    // of them, of graphs
int64_t graphs();                             // that there are, instantiated or not, whenever they were made
uint64_t pins();                              // of them, to cudaMallocHost
int last_pin_node();  // that the calling thread preferred at the last one; -1: none, -2: the system does not say
// Of the calls, those of a kernel's launch: which device is current, and the launch.
inline constexpr uint64_t kCallsOfLaunch = 2;

// The nth call to cudaMalloc, cudaMallocHost or cudaGraphInstantiate from now on, and those after it, fail. Negative:
// none.
void fail_allocations_from(int64_t nth);

// The machine, until reset(). Its devices are alike, and each has memory, streams and events of its own.
struct Machine {
  int devices = 1;
  int driver = 13000;  // the CUDA version that it knows; 0: there is none
  int major = 9, minor = 0;
  size_t memory_bytes = size_t{1} << 36, free_bytes = size_t{1} << 36;
  size_t shared_bytes = size_t{227} << 10;  // of a block that asks for it
  bool reads_pageable = false;              // kernels reach what is not pinned
  bool pins = true;                         // cudaMallocHost has memory
  const char* bus = "0000:3B:00.0";         // of the first device
};
void set_machine(const Machine& machine);
// Of that, shared_bytes alone; returns what a block has then: a device has no more than it has.
size_t limit_shared(size_t bytes);

// Devices whose primary context somebody has, which reset() changes nothing of.
int live_contexts();
// A context of the host's own, of the first device, is current to the calling thread: whether it is still, and how many
// calls that take memory, streams or kernels have gone to it.
void enter_host_context();
bool in_host_context();
uint64_t calls_in_host_context();
void leave_host_context();

// Whether streams can be captured, until reset(); else each attempt is refused at its end.
void allow_capture(bool allowed);

// From the nth launch from now on a kernel faults, as one does that follows a wild pointer. Negative: none.
void fail_launch(int64_t nth);
// The nth launch of a kernel from now on is refused, for want of memory, as one is whose code is loaded then; no other.
// Negative: none.
void refuse_launch(int64_t nth);
// The same of graphs, of which the first launch of each takes memory.
void refuse_graph_launch(int64_t nth);

// ---- for the headers of this folder

// Parameters of a launch, copied when it is made.
struct Launch {
  const void* kernel;
  std::unique_ptr<void, void (*)(void*)> parameters;
  size_t parameter_bytes;
  void (*invoke)(const void* parameters);
};
cudaError_t enqueue(const cudaLaunchConfig_t& config, Launch launch);

uint3 thread_index();
uint3 block_index();
uint3 block_size();
uint3 grid_size();
std::byte* dynamic_shared();

// Meetings. All of a block's threads; all of a warp's lanes, who exchange a value each.
void meet_block();
int meet_block_counting(bool predicate);  // threads with it
struct Lanes {
  uint64_t of[32];
};
Lanes meet_warp(uint32_t mask, const char* operation, uint64_t value);
const Lanes& met_lanes(uint32_t mask, const char* operation,
                       uint64_t value);  // until they have met twice more
// Work that is of all of them is done by the last that comes.
void meet_warp_for_work(uint32_t mask, const char* operation, uint64_t value,
                        const std::function<void(const Lanes&)>& work);
uint64_t meet_warp_for(uint32_t mask, const char* operation, uint64_t value, unsigned lane);  // of[lane]
unsigned vote(uint32_t mask, const char* operation, bool predicate);  // a bit of each lane
void order_warp(uint32_t mask);  // memory of a warp's lanes, once they have met
unsigned lane();

// Copies that a thread starts and waits for later: nothing of them is there before it has waited.
void copy_later(void* to, const void* from, size_t bytes);
void commit_copies();
void wait_for_copies(unsigned groups_left);

// Of tensor cores, by all of a warp's lanes together; kernels/cuda/tensor_cores.cuh says what each lane holds.
void load_matrices(const void* row, bool transposed, unsigned (&out)[4]);
struct Operands {
  float sums[4];
  unsigned left[4], right[2];
};
void multiply_add(Operands& own, const char* operation, float (*to_float)(unsigned short));
struct ByteOperands {
  int sums[4];
  unsigned left[4], right[2];
};
void multiply_add(ByteOperands& own);

// Atomic on device and shared memory: announces the access, and says what the address is.
void atomic_access(const void* address, size_t bytes);

// Faults of device code itself (assert, misaligned vectors).
[[noreturn]] void fault(const char* what, const void* address);

}  // namespace cuda_emulation
