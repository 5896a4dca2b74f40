#include "src/model/copy_weights.h"

#include <vector>

#include "kernels/turned_rows.h"
#include "src/error.h"

namespace wi {
namespace {

std::vector<Matrix*> stored_matrices(Weights* weights);
uint64_t bytes_of(const Matrix& matrix) {
  return row_bytes(matrix.type, matrix.cols) * static_cast<uint64_t>(matrix.rows);
}
bool is_turned(const Matrix& matrix) { return can_be_turned(matrix) && turned_rows_pay(); }
void copy_matrix(const Matrix& matrix, bool turned, std::byte* to, Watch* watch);
uint64_t room_for(const Matrix& matrix) { return (bytes_of(matrix) + 63) & ~uint64_t{63}; }

}  // namespace

HostBuffer copy_weights(Weights* weights, const ModelFile& file, HostPool* pool, Watch* watch) {
  const bool tied = weights->output.data == weights->embedding.data;
  const std::vector<Matrix*> matrices = stored_matrices(weights);
  uint64_t room = 0, total = 0, done = 0;
  for (const Matrix* matrix : matrices) {
    room += room_for(*matrix);
    total += bytes_of(*matrix);
  }
  HostBuffer buffer = room_for_weights(pool, room, file.name, "a copy of the weights");

  // All is copied before any matrix is pointed elsewhere: what is cancelled leaves the weights as they were.
  std::vector<const std::byte*> places;
  std::byte* at = buffer.data();
  for (const Matrix* matrix : matrices) {
    copy_matrix(*matrix, is_turned(*matrix), at, watch);
    places.push_back(at);
    at += room_for(*matrix);
    // Else the process would hold everything twice by the end.
    for (const MappedFile& mapping : file.storage->mappings) mapping.drop_pages();
    done += bytes_of(*matrix);
    if (watch) watch->reached(done, total);
  }
  for (size_t i = 0; i < matrices.size(); ++i) {
    matrices[i]->data = places[i];
    matrices[i]->turned = is_turned(*matrices[i]);
  }
  if (tied) weights->output = weights->embedding;
  return buffer;
}

HostBuffer room_for_weights(HostPool* pool, uint64_t bytes, const std::string& file, const char* what) {
  check(bytes <= pool->budget() && pool->used() <= pool->budget() - bytes, WI_E_MEMORY, file, ": ", what,
        " wants ", bytes, " bytes, of the ", pool->budget(), " that this process may use ", pool->used(),
        " are such copies already");
  return pool->allocate(bytes, what);
}

namespace {

void copy_matrix(const Matrix& matrix, bool turned, std::byte* to, Watch* watch) {
  if (!turned) return copy_watched(to, matrix.data, bytes_of(matrix), watch);
  for (int64_t row = 0; row < matrix.rows; row += kTurnedRows) {
    turn_rows(matrix, row, to);
    to += row_bytes(matrix.type, matrix.cols) * kTurnedRows;
    tick(watch);
  }
}

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
