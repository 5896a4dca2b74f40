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

constexpr int64_t logit_blocks(int64_t count) { return (count + kLogitBlock - 1) / kLogitBlock; }

// bests (logit_blocks(count)): the highest logit of each block. NaN counts as -infinity.
void best_of_blocks(const float* logits, int64_t count, float* bests);

// weights (count): kBestWeight · e^((logit - best) / temperature), rounded. best: none is higher. Those that equal it
// have kBestWeight, the others none where it is infinite.
void token_weights(const float* logits, int64_t count, float best, float temperature, uint64_t* weights);

// sums (logit_blocks(count)): of each block's weights. bests: best_of_blocks().
void weights_of_blocks(const float* logits, int64_t count, const float* bests, float best, float temperature,
                       uint64_t* sums);

}  // namespace wi
