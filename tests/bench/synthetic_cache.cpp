#include "tests/bench/synthetic_cache.h"

#include <cmath>
#include <memory>
#include <vector>

namespace wi::bench {
namespace {

constexpr int kTopics = 512;        // per KV head
constexpr int kDriftTokens = 4096;  // tokens over which the favourite topics move on

uint64_t mixed(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Sum of two uniforms, centred; standard deviation 1. Near enough to a normal and four a call.
void four_normals(uint64_t bits, float* out) {
  const uint64_t more = bits * 0xd1342543de82ef95u + 1;
  for (int i = 0; i < 4; ++i) {
    const float sum =
        static_cast<float>((bits >> (16 * i)) & 0xffff) + static_cast<float>((more >> (16 * i)) & 0xffff);
    out[i] = (sum - 65535.0f) * (1.0f / 26754.6f);
  }
}

struct Head {
  std::vector<float> topics;  // (kTopics, head_dim)
  float spread;               // of a key around its topic
};

}  // namespace

Session::Fill synthetic_cache(const ModelConfig& config, uint64_t seed) {
  auto heads = std::make_shared<std::vector<Head>>(static_cast<size_t>(config.layers) *
                                                   static_cast<size_t>(config.kv_heads));
  const int dim = config.head_dim;
  for (size_t i = 0; i < heads->size(); ++i) {
    Head& head = (*heads)[i];
    head.spread = 0.25f + 0.75f * static_cast<float>(mixed(seed ^ i) >> 40) * 0x1p-24f;
    head.topics.resize(static_cast<size_t>(kTopics) * static_cast<size_t>(dim) + 4);
    for (size_t j = 0; j + 4 <= head.topics.size(); j += 4)
      four_normals(mixed(seed + i * 7919 + j), head.topics.data() + j);
  }
  const int32_t kv_heads = config.kv_heads;
  return [heads, seed, dim, kv_heads](int32_t layer, int64_t first, int64_t count, float* keys,
                                      float* values) {
    float noise[4];
    for (int64_t t = 0; t < count; ++t) {
      for (int32_t h = 0; h < kv_heads; ++h) {
        const Head& head = (*heads)[static_cast<size_t>(layer * kv_heads + h)];
        const uint64_t draw =
            mixed(seed ^ (static_cast<uint64_t>(first + t) << 20) ^ static_cast<uint64_t>(layer * 64 + h));
        // u^3 favours low ranks: the first topics of a stretch hold most of its tokens.
        const float u = static_cast<float>(draw >> 40) * 0x1p-24f;
        const int rank = static_cast<int>(u * u * u * kTopics);
        const int topic =
            (draw & 7) == 0 ? rank % 4 : (rank + static_cast<int>((first + t) / kDriftTokens) * 37) % kTopics;
        const float* centre = head.topics.data() + static_cast<size_t>(topic) * static_cast<size_t>(dim);
        float* key = keys + (t * kv_heads + h) * dim;
        float* value = values + (t * kv_heads + h) * dim;
        for (int d = 0; d < dim; d += 4) {
          const uint64_t bits = mixed(draw + static_cast<uint64_t>(d));
          four_normals(bits, noise);
          for (int j = 0; j < 4 && d + j < dim; ++j) key[d + j] = centre[d + j] + head.spread * noise[j];
          four_normals(bits ^ 0x5555, noise);
          for (int j = 0; j < 4 && d + j < dim; ++j) value[d + j] = noise[j];
        }
      }
    }
  };
}

}  // namespace wi::bench
