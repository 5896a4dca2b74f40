#include "src/workspace.h"

#include <span>
#include <utility>

namespace wi {

Workspace::Workspace(std::shared_ptr<const Device> device) : device_(std::move(device)) {
  if (device_) queue_ = std::make_unique<Queue>(device_);
}

Queue* Workspace::indexing() {
  if (device_ && !indexing_) indexing_ = std::make_unique<Queue>(device_);
  return indexing_.get();
}

void Workspace::prepare(const ModelConfig& config, int64_t rows) {
  const size_t n = static_cast<size_t>(rows), half = static_cast<size_t>(config.rotary / 2);
  const size_t q_heads = static_cast<size_t>(config.query_heads), dim = static_cast<size_t>(config.head_dim);
  const size_t kv_width = static_cast<size_t>(config.kv_heads) * dim;
  struct Piece {
    float** at;
    size_t count;
  };
  const Piece tables[] = {{&cos, n * half}, {&sin, n * half}};
  const Piece activations[] = {{&hidden, n * static_cast<size_t>(config.hidden)},
                               {&normed, n * static_cast<size_t>(config.hidden)},
                               {&q, n * q_heads * dim},
                               {&attended, n * q_heads * dim},
                               {&k, n * kv_width},
                               {&v, n * kv_width},
                               {&gate, n * static_cast<size_t>(config.ffn)},
                               {&up, n * static_cast<size_t>(config.ffn)},
                               {&lse, n * q_heads}};
  constexpr size_t kAlign = 64;  // floats: what copies and tensor cores like
  const auto whole = [](size_t count) { return (count + kAlign - 1) / kAlign * kAlign; };
  const auto total = [&](std::span<const Piece> pieces) {
    size_t sum = 0;
    for (const Piece& piece : pieces) sum += whole(piece.count);
    return sum;
  };
  const auto place = [&](std::span<const Piece> pieces, float* next) {
    for (const Piece& piece : pieces) {
      *piece.at = next;
      next += whole(piece.count);
    }
    return next;
  };

  if (tokens.size() < n) tokens.resize(n);
  const size_t here = total(tables) + (queue_ ? 0 : total(activations)) + kAlign;
  float* next = memory_.at_least(here);
  while (reinterpret_cast<uintptr_t>(next) % 64) ++next;  // a cache line
  next = place(tables, next);
  if (!queue_) {
    place(activations, next);
    sent = {tokens.data(), cos, sin};
    return;
  }
  const size_t bytes = (total(activations) + total(tables) + whole(n)) * sizeof(float);
  next = place(activations, reinterpret_cast<float*>(queue_->room(Queue::kActivations, bytes)));
  sent = {reinterpret_cast<int32_t*>(next), next + whole(n), next + whole(n) + whole(n * half)};
}

Stream Workspace::on_device(const Stream& stream) const {
  Stream with = stream;
  with.queue = queue_ ? queue_->get() : nullptr;
  return with;
}

void Workspace::send(const ModelConfig& config, int64_t rows) {
  if (!queue_) return;
  const size_t n = static_cast<size_t>(rows), angles = n * static_cast<size_t>(config.rotary / 2);
  const auto upload = [&](const void* to, const void* from, size_t bytes) {
    queue_->upload(const_cast<void*>(to), from, bytes);
  };
  upload(sent.tokens, tokens.data(), n * sizeof(int32_t));
  upload(sent.cos, cos, angles * sizeof(float));
  upload(sent.sin, sin, angles * sizeof(float));
}

float* Workspace::results(float* out, size_t count) {
  return queue_ ? reinterpret_cast<float*>(queue_->room(Queue::kResults, count * sizeof(float))) : out;
}

void Workspace::fetch(float* out, size_t count) {
  if (queue_) queue_->download(out, queue_->room(Queue::kResults, 0), count * sizeof(float));
}

float* Workspace::state_of_parts(size_t count) {
  if (queue_) return reinterpret_cast<float*>(queue_->room(Queue::kPastState, count * sizeof(float)));
  return state_of_parts_.at_least(count);
}

float* Workspace::row_logits(size_t count) {
  if (queue_) return reinterpret_cast<float*>(queue_->download_room(count * sizeof(float)));
  return row_logits_.at_least(count);
}

void Workspace::finish() {
  if (queue_) queue_->finish();
}

size_t Workspace::bytes() const {
  size_t of_samplers = 0;
  for (const SamplerScratch& scratch : sampling) of_samplers += scratch.bytes();
  const QueueBytes of_queues = queue_bytes();
  return memory_.bytes() + row_logits_.bytes() + state_of_parts_.bytes() + attention.bytes() +
         retrieval.bytes() + past.bytes() + of_samplers + of_queues.device + of_queues.host;
}

QueueBytes Workspace::queue_bytes() const {
  QueueBytes all;
  for (const Queue* queue : {queue_.get(), indexing_.get()}) {
    if (!queue) continue;
    const QueueBytes own = queue->bytes();
    all.device += own.device, all.host += own.host;
  }
  return all;
}

uint64_t Workspace::device_bytes() const { return queue_bytes().device; }

}  // namespace wi
