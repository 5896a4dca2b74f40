// Clustering for the wave index: spherical k-means of one segment's keys, and the split of clusters that
// grew too large. Deterministic: fixed starts, fixed order of every sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

namespace wi::cpu {

struct KmeansArgs {
  const float*
      units;  // (kmeans_padded_tokens, head_dim) centred keys of length 1, or 0; rows beyond tokens 0
  int32_t tokens;
  int32_t head_dim;
  int32_t centroids;
  int32_t iterations;
  float* scratch;       // kmeans_scratch_floats(), 64-byte aligned
  int32_t* assignment;  // out (tokens) in [0, centroids); not every centroid need have a token
};

// The work in pieces, in order; once an iteration has moved no token the rest do nothing.
struct KmeansProgress {
  int32_t moved;  // tokens, in this iteration
  bool settled;
};
int32_t kmeans_pieces(const KmeansArgs& args);
void kmeans_piece(const KmeansArgs& args, int32_t piece, KmeansProgress& progress);

int64_t kmeans_padded_tokens(int32_t tokens);
size_t kmeans_scratch_floats(int32_t tokens, int32_t centroids, int32_t head_dim);

// Reorders members (token numbers, ascending; each piece ascending again) into pieces of at most
// max_tokens, each time halving along the line between two far-apart keys. Writes the pieces' sizes and
// returns their count. scratch: 2 · count floats.
int32_t split_cluster(const float* keys, int32_t head_dim, int32_t* members, int32_t count,
                      int32_t max_tokens, float* scratch, int32_t* sizes);

}  // namespace wi::cpu
