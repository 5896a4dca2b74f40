#include "src/model/copy_weights.h"

#include <cstring>
#include <vector>

#include "src/error.h"

namespace wi {
namespace {

std::vector<Matrix*> stored_matrices(Weights* weights);
uint64_t bytes_of(const Matrix& matrix) {
  return row_bytes(matrix.type, matrix.cols) * static_cast<uint64_t>(matrix.rows);
}
uint64_t room_for(const Matrix& matrix) { return (bytes_of(matrix) + 63) & ~uint64_t{63}; }

}  // namespace

HostBuffer copy_weights(Weights* weights, const ModelFile& file, HostPool* pool,
                        const std::function<void(uint64_t, uint64_t)>& progress) {
  const bool tied = weights->output.data == weights->embedding.data;
  const std::vector<Matrix*> matrices = stored_matrices(weights);
  uint64_t room = 0, total = 0, done = 0;
  for (const Matrix* matrix : matrices) {
    room += room_for(*matrix);
    total += bytes_of(*matrix);
  }
  // The system would promise more than there is, and end the process when it is touched.
  check(room <= pool->budget() && pool->used() <= pool->budget() - room, WI_E_MEMORY, file.name,
        ": a copy of the weights wants ", room, " bytes, of the ", pool->budget(),
        " that this process may use ", pool->used(), " are such copies already");
  HostBuffer buffer = pool->allocate(room, "a copy of the weights");

  std::byte* at = buffer.data();
  for (Matrix* matrix : matrices) {
    std::memcpy(at, matrix->data, bytes_of(*matrix));
    matrix->data = at;
    at += room_for(*matrix);
    // Else the process would hold everything twice by the end.
    for (const MappedFile& mapping : file.storage->mappings) mapping.drop_pages();
    done += bytes_of(*matrix);
    if (progress) progress(done, total);
  }
  if (tied) weights->output = weights->embedding;
  return buffer;
}

namespace {

std::vector<Matrix*> stored_matrices(Weights* weights) {
  std::vector<Matrix*> matrices = {&weights->embedding};
  if (weights->output.data != weights->embedding.data) matrices.push_back(&weights->output);
  for (LayerWeights& layer : weights->layers)
    matrices.insert(matrices.end(),
                    {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down});
  return matrices;
}

}  // namespace
}  // namespace wi
