// One number for all that a model computes with, so that a session file says which model its KV belongs to.
// The weights are cut into pieces that the workers hash on their own; the hash of those, of every tensor's
// place, type and shape, and of the hyper-parameters, is the result. It does not depend on the number of
// threads, nor on where the weights lie, in which order, or how their files were split.
#include <chrono>
#include <cstring>
#include <thread>
#include <xxhash.h>

#include "kernels/turned_rows.h"
#include "src/error.h"
#include "src/memory/memory.h"
#include "src/memory/workers.h"
#include "src/model/each_weight.h"
#include "src/model/model.h"

namespace wi {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

struct Piece {
  const std::byte* data;
  uint64_t bytes;
  Matrix turned = {};  // or: the matrix of which it is a part as stored, from `begin` on
  uint64_t begin = 0;
};

// What is hashed in the end, and the pieces whose hashes go before it.
class Inventory {
 public:
  void number(uint64_t value) { append(&value, sizeof value); }
  void number(double value) { append(&value, sizeof value); }
  void matrix(const Matrix& matrix) {
    number(static_cast<uint64_t>(matrix.type));
    number(static_cast<uint64_t>(matrix.rows));
    number(static_cast<uint64_t>(matrix.cols));
    const size_t first = pieces_.size();
    cut(matrix.data, row_bytes(matrix.type, matrix.cols) * static_cast<uint64_t>(matrix.rows));
    for (size_t i = first; matrix.turned && i < pieces_.size(); ++i) {
      pieces_[i].turned = matrix;
      pieces_[i].begin = (i - first) * kPieceBytes;
    }
  }
  void vector(const float* values, int64_t count) {
    number(static_cast<uint64_t>(values ? count : 0));
    if (values) cut(values, static_cast<uint64_t>(count) * sizeof(float));
  }

  const std::vector<Piece>& pieces() const { return pieces_; }
  const std::vector<std::byte>& description() const { return description_; }

 private:
  void append(const void* data, size_t bytes) {
    const size_t at = description_.size();
    description_.resize(at + bytes);
    std::memcpy(description_.data() + at, data, bytes);
  }
  void cut(const void* data, uint64_t bytes) {
    const auto* begin = static_cast<const std::byte*>(data);
    for (uint64_t at = 0; at < bytes; at += kPieceBytes)
      pieces_.push_back({begin + at, std::min(kPieceBytes, bytes - at)});
  }

  std::vector<std::byte> description_;
  std::vector<Piece> pieces_;
};

void take_config(const ModelConfig& config, Inventory* inventory) {
  for (int64_t number :
       {int64_t(config.architecture), int64_t(config.layers), int64_t(config.hidden),
        int64_t(config.query_heads), int64_t(config.kv_heads), int64_t(config.head_dim), int64_t(config.ffn),
        int64_t(config.vocab), int64_t(config.rotary), int64_t(config.rope_interleaved),
        int64_t(config.qk_norm), int64_t(config.rope.kind)})
    inventory->number(static_cast<uint64_t>(number));
  for (int32_t window : config.windows) inventory->number(static_cast<uint64_t>(window));
  const RopeScaling& rope = config.rope;
  for (double number : {config.rope_theta, rope.factor, rope.original_positions, rope.low_frequency,
                        rope.high_frequency, rope.beta_fast, rope.beta_slow, rope.attention_factor,
                        double(rope.truncate), double(config.rms_epsilon)})
    inventory->number(number);
}

Inventory take_inventory(const Model& model) {
  const ModelConfig& config = model.config;
  const Weights& weights = model.weights;
  Inventory inventory;
  take_config(config, &inventory);
  inventory.vector(model.rope_factors.data(), static_cast<int64_t>(model.rope_factors.size()));
  inventory.matrix(weights.embedding);
  const bool tied = weights.output.data == weights.embedding.data;
  inventory.number(uint64_t{tied});
  if (!tied) inventory.matrix(weights.output);
  inventory.vector(weights.output_norm, config.hidden);
  for (const LayerWeights& layer : weights.layers)
    each_weight(
        layer, config, [&](const Matrix& matrix) { inventory.matrix(matrix); },
        [&](const float* values, int64_t count) { inventory.vector(values, count); });
  return inventory;
}

// memory: where the pieces are, if the host cannot read them.
uint64_t hash_of(const Inventory& inventory, Memory* memory, Workers& workers,
                 const std::atomic<bool>* cancel) {
  const std::vector<Piece>& pieces = inventory.pieces();
  std::vector<uint64_t> hashes(pieces.size());
  workers.run(cancel, [&](const Stream& stream) {
    stream.each(static_cast<int64_t>(pieces.size()), [&](int64_t task, int worker) {
      const Piece& piece = pieces[static_cast<size_t>(task)];
      const std::byte* data = piece.data;
      if (memory) {
        std::byte* const copy = stream.worker_array<std::byte>(worker, piece.bytes);
        memory->copy(copy, piece.data, piece.bytes);
        data = copy;
      } else if (piece.turned.turned) {
        std::byte* const copy = stream.worker_array<std::byte>(worker, piece.bytes);
        copy_as_stored(piece.turned, piece.begin, piece.bytes, copy);
        data = copy;
      }
      hashes[static_cast<size_t>(task)] = XXH3_64bits(data, piece.bytes);
    });
  });
  if (cancel && cancel->load(std::memory_order_relaxed)) fail(WI_E_CANCELLED, "cancelled");
  const uint64_t of_weights = XXH3_64bits(hashes.data(), hashes.size() * sizeof(uint64_t));
  const std::vector<std::byte>& description = inventory.description();
  const uint64_t hash = XXH3_64bits_withSeed(description.data(), description.size(), of_weights);
  return hash ? hash : 1;  // 0 means unknown
}

}  // namespace

uint64_t Model::weights_hash(Workers& workers, const std::atomic<bool>* cancel) const {
  for (;;) {
    if (const uint64_t known = hash_.load()) return known;
    if (std::unique_lock lock(hash_mutex_, std::try_to_lock); lock) {
      if (hash_.load() == 0) hash_.store(hash_of(take_inventory(*this), memory, workers, cancel));
    } else {  // another thread is at it; a lock could not be given up when the host cancels
      if (cancel && cancel->load(std::memory_order_relaxed)) fail(WI_E_CANCELLED, "cancelled");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

uint64_t Model::next_identity() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace wi
