// Weights in memory of the process's own (WI_WEIGHTS_COPIED), so that nothing that happens to their file
// matters any more. Huge pages are what makes decoding faster: `small` in f16 at 64 tokens of context took
// 16.5 ms a token instead of 17.8 mapped, on two cores of an AMD EPYC (Zen 4). Rows of quantised matrices are turned on
// the way (turned_rows.h), which is what makes a step of many sessions faster.
#pragma once

#include <cstdint>
#include <string>

#include "src/memory/host_pool.h"
#include "src/model/model.h"
#include "src/model/model_file.h"

namespace wi {

// Copies every matrix into one buffer, 64-byte aligned, and points the weights at it: nothing of theirs lies
// in the file then. Those that can be turned are. Tied embeddings stay one matrix. watch: bytes copied, bytes in all. WI_E_MEMORY, with
// the weights as they were: more than the pool's budget, or the system refused.
HostBuffer copy_weights(Weights* weights, const ModelFile& file, HostPool* pool, Watch* watch);

// Room for weights, which the system would promise even where there is none, and end the process when it is
// touched. what: "a copy of the weights"
HostBuffer room_for_weights(HostPool* pool, uint64_t bytes, const std::string& file, const char* what);

}  // namespace wi
