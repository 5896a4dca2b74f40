#include "src/model/device_weights.h"

#include <algorithm>
#include <vector>

#include "src/error.h"
#include "src/memory/less.h"
#include "src/model/each_weight.h"

namespace wi {
namespace {

struct Piece {
  const void** at;  // where the model points
  uint64_t bytes;
};

std::vector<Piece> pieces_of(Model& model, const DeviceTable& device);
uint64_t room_for(uint64_t bytes) { return (bytes + 255) & ~uint64_t{255}; }

}  // namespace

void move_weights(Model& model, const DeviceTable& device, HostPool& pool, const Progress& progress) {
  constexpr uint64_t kStep = uint64_t{16} << 20;  // a host is listened to between two
  const bool tied = model.weights.output.data == model.weights.embedding.data;
  const std::vector<Piece> pieces = pieces_of(model, device);
  uint64_t room = 0, total = 0, done = 0;
  for (const Piece& piece : pieces) {
    room += room_for(piece.bytes);
    total += piece.bytes;
  }
  const uint64_t left = less(pool.budget(), pool.used());
  check(room <= left, WI_E_MEMORY, "the weights take ", room, " bytes of the device's memory, of whose ",
        pool.budget(), " other models' have ", pool.used());
  auto buffer = std::make_shared<HostBuffer>(pool.allocate(room, "the weights"));

  std::vector<const std::byte*> places;
  std::byte* to = buffer->data();
  for (const Piece& piece : pieces) {
    for (uint64_t at = 0; at < piece.bytes; at += std::min(kStep, piece.bytes - at)) {
      const uint64_t count = std::min(kStep, piece.bytes - at);
      pool.memory().copy(to + at, static_cast<const std::byte*>(*piece.at) + at, count);
      done += count;
      if (progress) progress(done, total);
    }
    places.push_back(to);
    to += room_for(piece.bytes);
  }
  for (size_t i = 0; i < pieces.size(); ++i) *pieces[i].at = places[i];
  if (tied) model.weights.output = model.weights.embedding;
  model.memory = &pool.memory();
  model.storage = std::move(buffer);
}

namespace {

std::vector<Piece> pieces_of(Model& model, const DeviceTable& device) {
  const ModelConfig& config = model.config;
  Weights& weights = model.weights;
  check(config.head_dim % 8 == 0 && config.head_dim <= 256, WI_E_UNSUPPORTED, "head_dim is ", config.head_dim,
        ", on this device it must be a multiple of 8 and at most 256");
  check(config.hidden % 8 == 0 && config.ffn % 8 == 0, WI_E_UNSUPPORTED, "hidden and ffn are ", config.hidden,
        " and ", config.ffn, ", on this device they must be multiples of 8");
  check(config.group() <= 64, WI_E_UNSUPPORTED, config.group(),
        " query heads share a KV head, on this device at most 64 may");
  std::vector<Piece> pieces;
  const auto matrix = [&](Matrix& of) {
    check(device.reads_weights(of.type), WI_E_UNSUPPORTED, "weights of type ", format_of(of.type).name,
          " are not implemented on this device");
    pieces.push_back({&of.data, row_bytes(of.type, of.cols) * static_cast<uint64_t>(of.rows)});
  };
  const auto vector = [&](const float*& of, int64_t count) {
    if (of)
      pieces.push_back({reinterpret_cast<const void**>(&of), static_cast<uint64_t>(count) * sizeof(float)});
  };
  matrix(weights.embedding);
  if (weights.output.data != weights.embedding.data) matrix(weights.output);
  vector(weights.output_norm, config.hidden);
  for (LayerWeights& layer : weights.layers) each_weight(layer, config, matrix, vector);
  return pieces;
}

}  // namespace
}  // namespace wi
