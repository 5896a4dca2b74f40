// What sampling asks of a vocabulary's logits: the best of each block, and what each weighs in the softmax. Weights are
// whole numbers, so that sums are the same in any order, on any processor, on a device; and they come of additions,
// products and one division of each logit alone, which are the same bits everywhere, as libm's exp is not.
#pragma once

#include <cstdint>

namespace wi {

constexpr int64_t kLogitBlock = 256;
// The best logit's weight. What would weigh less than half of 1 beside it, e^-29.1, weighs nothing.
constexpr int kWeightBits = 41;
constexpr uint64_t kBestWeight = uint64_t{1} << kWeightBits;
constexpr int64_t kMostWeighed = int64_t{1} << (63 - kWeightBits);  // logits, whose weights have a sum
constexpr float kWeighsNothing = -31;  // (logit - best) / temperature from which on weights are 0

constexpr int64_t logit_blocks(int64_t count) { return (count + kLogitBlock - 1) / kLogitBlock; }

// bests (logit_blocks(count)): the highest logit of each block. NaN counts as -infinity.
void best_of_blocks(const float* logits, int64_t count, float* bests);

// weights (count): kBestWeight · e^((logit - best) / temperature), rounded. best: none is higher. Those that equal it
// have kBestWeight, the others none where it is infinite.
void token_weights(const float* logits, int64_t count, float best, float temperature, uint64_t* weights);

// sums (logit_blocks(count)): of each block's weights. bests: best_of_blocks().
void weights_of_blocks(const float* logits, int64_t count, const float* bests, float best, float temperature,
                       uint64_t* sums);

// Of a sum of weights, rounded up: at least 1.
constexpr uint64_t weight_share(float share, uint64_t sum) {
  const double wanted = static_cast<double>(share) * static_cast<double>(sum);
  uint64_t whole = static_cast<uint64_t>(wanted);
  if (static_cast<double>(whole) < wanted) ++whole;
  return whole < 1 ? 1 : whole > sum ? sum : whole;
}

// A whole number below `most`, each as likely to 2^-64.
constexpr uint64_t draw_below(uint64_t most, uint64_t random) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(random) * most >> 64);
}

// ---- where a device picks

// By what it picks a row's token: the one that src/sampling/sampler.h picks from the same logits.
struct SamplingRow {
  int32_t picks = 0;      // 0: the host does, for it has more to say than this
  float temperature = 0;  // 0: the best token
  int32_t top_k = 0;      // 0: all
  float top_p = 1;
  uint64_t lightest = 1;  // weight that min_p leaves
  uint64_t random = 0;    // of which the token is drawn
};

struct SampledRow {
  int32_t token = -1;  // -1: it was not asked for one, or there is none
  float best = 0;      // logit
  uint64_t sum = 0;    // of weights at temperature 1
};

}  // namespace wi
