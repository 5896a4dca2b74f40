// A small model's sessions, and KV stores, over two tiers, and, to compare with, over memory alone.
#pragma once

#include <future>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "src/kv_store.h"
#include "src/session.h"
#include "src/store/byte_stream.h"
#include "tests/support/folder.h"
#include "tests/support/random_model.h"
#include "tests/support/runtime.h"
#include "tests/test.h"

namespace wi::test {

struct Tiers {
  bool slow = true;  // false: there is no slow tier
  uint64_t kv_budget_bytes = uint64_t{256} << 20;
  uint64_t spill_bytes = 0;
  BufferManager manager = BufferManager::lru;
  int32_t threads = 2;
  bool read_ahead = true;
  const Backend* backend = nullptr;
};

struct TiersWorld {
  explicit TiersWorld(const Tiers& tiers = {}) : TiersWorld(tiers, make_model()) {}
  TiersWorld(const Tiers& tiers, std::shared_ptr<const Model> of)
      : model(std::move(of)), runtime(create_runtime(runtime_params(tiers))) {}
  RuntimeParams runtime_params(const Tiers& tiers) const {
    RuntimeParams params;
    params.threads = tiers.threads;
    params.kv_budget_bytes = tiers.kv_budget_bytes;
    if (tiers.slow) params.spill_folder = folder.path;
    params.spill_bytes = tiers.spill_bytes;
    params.buffer_manager = tiers.manager;
    params.slab_bytes = size_t{16} << 10;
    params.read_ahead = tiers.read_ahead;
    params.backend = tiers.backend;
    return params;
  }
  static std::shared_ptr<const Model> make_model() {
    ModelShape shape;
    shape.name = "tiers";
    shape.head_dim = 32;
    return random_model(shape, DType::f32, seed());
  }
  SessionParams params(float share) const {
    SessionParams params;
    params.policy = find_policy(runtime->backend, "wave");
    params.policy_params.segment_tokens = 256;
    params.policy_params.decode_segment_tokens = 64;
    params.policy_params.budget = 0.1f;
    params.kv_fast_share = share;
    params.prefix_reuse = false;
    return params;
  }
  std::shared_ptr<Session> session(float share) const {
    return Session::create(runtime, model, params(share));
  }
  WaveBuffer& buffer() const { return *runtime->buffer; }
  // Until the manager has done what sessions left to it: what they have in the slow tier from now on is the same in
  // every world, however slow its threads were.
  void settle() const {
    const auto done = std::make_shared<std::promise<void>>();
    if (buffer().later([done](const auto&) { done->set_value(); })) done->get_future().wait();
  }

  Folder folder;
  std::shared_ptr<const Model> model;
  std::shared_ptr<Runtime> runtime;
};

struct SavedBytes final : ByteSink, ByteSource {
  std::string of;
  void write(const void* data, size_t count) override { of.append(static_cast<const char*>(data), count); }
  uint64_t bytes() const override { return of.size(); }
  void read(uint64_t offset, void* to, size_t count) override { std::memcpy(to, of.data() + offset, count); }
};

inline std::vector<int32_t> random_prompt(size_t tokens, uint64_t salt = 0) {
  std::mt19937_64 random(seed() + salt);
  std::vector<int32_t> ids(tokens);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 100);
  return ids;
}

inline PrefillParams chunks_of(int32_t tokens) {
  PrefillParams params;
  params.chunk_tokens = tokens;
  return params;
}

// Everything that a host does with a session, each call through attempt(call), and all logits that come of it.
template <class Attempt>
std::vector<float> life_of(const TiersWorld& world, float share, Attempt&& attempt) {
  std::vector<float> all;
  const auto add_logits = [&](Session& session) {
    attempt([&] { session.logits(nullptr); });
    const std::span<const float> logits = session.logits(nullptr);
    all.insert(all.end(), logits.begin(), logits.end());
  };
  const auto session = world.session(share);
  const std::vector<int32_t> ids = random_prompt(900);
  for (size_t at = 0; at < ids.size(); at += 450)
    attempt([&] { session->prefill({ids.data() + at, 450}, chunks_of(150), nullptr); });
  add_logits(*session);
  std::shared_ptr<Session> fork;
  attempt([&] { fork = session->fork(); });
  Session* const both[] = {session.get(), fork.get()};
  for (int i = 0; i < 6; ++i) {
    Event events[2];
    for (Session* one : both) attempt([&] { one->accept(ids[static_cast<size_t>(i * 70)], nullptr); });
    attempt([&] { Session::decode_batch(both, nullptr, events); });
    add_logits(*session);
  }
  attempt([&] { fork->truncate(600); });
  add_logits(*fork);
  SavedBytes saved;
  attempt([&] {
    saved.of.clear();
    session->save(saved, nullptr);
  });
  fork.reset();
  std::shared_ptr<Session> loaded;
  attempt([&] {
    loaded = Session::load(
        world.runtime, world.model, saved, [](const SessionParams& params) { return params; }, nullptr);
  });
  attempt([&] { loaded->accept(7, nullptr); });
  add_logits(*loaded);
  return all;
}
inline std::vector<float> life_of(const TiersWorld& world, float share) {
  return life_of(world, share, [](auto&& call) { call(); });
}

// The same of a KV store, and what its attention says.
template <class Attempt>
std::vector<float> life_of_a_store(const TiersWorld& world, const char* policy, Attempt&& attempt) {
  constexpr int32_t kLayers = 2, kHeads = 2, kGroup = 2, kDim = 32;
  constexpr int64_t kTokens = 1280, kRound = 256;
  const auto numbers = [](int64_t count, uint64_t salt) {
    std::mt19937_64 random(seed() + salt);
    std::vector<float> all(static_cast<size_t>(count));
    for (float& one : all) one = static_cast<float>(random() % 1000) * 0.002f - 1;
    return all;
  };
  KvStoreParams params;
  params.shape = {kLayers, kHeads, kDim, DType::f16};
  params.query_heads = kGroup * kHeads;
  params.policy = find_policy(world.runtime->backend, policy);
  params.policy_params.segment_tokens = 256;
  params.policy_params.decode_segment_tokens = 64;
  params.policy_params.budget = 0.1f;

  std::vector<float> all, out(static_cast<size_t>(kGroup * kHeads * kDim));
  const auto look = [&](KvStore& store) {
    for (int32_t i = 0; i < 2 * kLayers; ++i) {
      const std::vector<float> query = numbers(kGroup * kHeads * kDim, static_cast<uint64_t>(i));
      attempt([&] { store.attend(i % kLayers, 1, query.data(), nullptr, out.data(), nullptr); });
      all.insert(all.end(), out.begin(), out.end());
    }
  };
  KvStore store(world.runtime, params);
  for (int64_t done = 0; done < kTokens; done += kRound) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const auto salt = static_cast<uint64_t>(100 + 2 * done + layer);
      const std::vector<float> keys = numbers(kRound * kHeads * kDim, salt),
                               values = numbers(kRound * kHeads * kDim, salt + kRound);
      attempt([&] { store.append(layer, kRound, keys.data(), values.data()); });
    }
    attempt([&] { store.seal(); });
    look(store);
  }
  std::shared_ptr<KvStore> fork, loaded;
  attempt([&] { fork = store.fork(); });
  attempt([&] { fork->truncate(700); });
  look(*fork);
  look(store);
  const std::string path = world.folder.file("store");
  attempt([&] { store.save(path, nullptr); });
  fork.reset();
  attempt([&] {  // in place, where there is a slow tier
    loaded = KvStore::load(
        world.runtime, path, [](const KvStoreParams& saved) { return saved; }, nullptr);
  });
  look(*loaded);
  return all;
}
// Of the memory that it takes, not enough.
template <class Attempt>
uint64_t little_for_a_store(const std::shared_ptr<const Model>& model, const char* policy,
                            Attempt&& attempt) {
  const TiersWorld fast({.slow = false}, model);
  life_of_a_store(fast, policy, attempt);
  return fast.runtime->pool->peak() / 2;
}

}  // namespace wi::test
