// Scores of centroids, q·c/√d: the one pass over all of an index, and so what select's time is measured by.
#pragma once

#include "kernels/cpu/policy/wave.h"

namespace wi::cpu {

// A lookup's queries (group, head_dim), scaled and rounded to 16 bits of their largest number, in the order
// that this processor's score_centroids reads. out: score_query_bytes(), 64-byte aligned.
size_t score_query_bytes(int32_t group, int32_t head_dim);
void pack_score_query(const float* query, int32_t group, int32_t head_dim, float scale, std::byte* out);

// scores[h · plane + c] of each query head h and cluster c. next: the index whose turn is next (or the same
// again), to be asked for in time.
void score_centroids(const std::byte* query, int32_t group, int32_t head_dim, const WaveIndex& index,
                     const WaveIndex& next, float* scores, size_t plane);

}  // namespace wi::cpu
