// The next token of each row of logits: the best one, or one that is drawn of what top-k, min-p and top-p leave, as
// src/sampling/sampler.cpp does, and the same token to the bit. That holds for weights are whole numbers
// (kernels/token_weights.h), whose sums no order changes, and come of additions, products and one division that are
// rounded one by one, on the processor as here; a random number is part of the row. What a row's log-probabilities are
// made of, the best logit and the sum of weights at temperature 1, comes with it.
//
// Three launches: of each 256 logits the best one; what they weigh; and, a block of threads to a row, the token. The last
// looks only at those of the 256s in which something may be left, which are few unless a distribution is flat. Where a
// cut ends is found without sorting: by histograms of the logits' bits, each over a part of the one before. For a flat
// one with cuts a multiprocessor goes through all logits four or five times. None of it was measured on a device.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace wi::cuda {

constexpr int kBlocksAtOnce = 8;  // of logits, by a warp each
constexpr int kBlockThreads = kBlocksAtOnce * kWarp;
constexpr int kLaneLogits = static_cast<int>(kLogitBlock) / kWarp;
constexpr int kSampleThreads = 1024, kSampleWarps = kSampleThreads / kWarp;
constexpr int kBins = 2 * kSampleThreads;

// What is known of each block of a row's logits.
struct LogitBlocks {
  uint64_t* sums;    // of weights at the row's temperature; then of those that cuts leave
  uint64_t* counts;  // sums at temperature 1; then logits of which a cut leaves some
  float* bests;
};

struct SampleLaunch {
  SampleArgs args;
  std::byte* workspace;
};

static size_t blocks_of(int64_t vocab) { return static_cast<size_t>(logit_blocks(vocab)); }
__device__ __forceinline__ LogitBlocks logit_blocks_of(const SampleLaunch& launch, int64_t row, int blocks) {
  const int64_t all = launch.args.rows * blocks;
  uint64_t* const sums = reinterpret_cast<uint64_t*>(launch.workspace) + row * blocks;
  float* const bests = reinterpret_cast<float*>(launch.workspace + 2 * all * sizeof(uint64_t)) + row * blocks;
  return {sums, sums + all, bests};
}

// ---- of each block

// As kernels/cpu/token_weights.cpp's, operation by operation: none is fused with another.
__device__ __forceinline__ uint64_t weight_of(float logit, float best, float temperature) {
  const float x = __fdiv_rn(__fsub_rn(logit, best), temperature);
  const float bounded = x > kWeighsNothing ? x : kWeighsNothing;  // NaN is not greater
  const double y = logit == best ? 0.0 : static_cast<double>(bounded);
  const double shifted = __dadd_rn(__dmul_rn(y, 1.4426950408889634), 0x1.8p52);
  const double r = __dsub_rn(y, __dmul_rn(__dsub_rn(shifted, 0x1.8p52), 0.6931471805599453));
  double sum = 1.0 / 5040;
  sum = __dadd_rn(__dmul_rn(sum, r), 1.0 / 720);
  sum = __dadd_rn(__dmul_rn(sum, r), 1.0 / 120);
  sum = __dadd_rn(__dmul_rn(sum, r), 1.0 / 24);
  sum = __dadd_rn(__dmul_rn(sum, r), 1.0 / 6);
  sum = __dadd_rn(__dmul_rn(sum, r), 0.5);
  sum = __dadd_rn(__dmul_rn(sum, r), 1.0);
  sum = __dadd_rn(__dmul_rn(sum, r), 1.0);
  constexpr uint64_t kExponent = uint64_t{1023 + kWeightBits} << 52;
  const uint64_t power = (static_cast<uint64_t>(__double_as_longlong(shifted)) << 52) + kExponent;
  const double rounded =
      __dadd_rn(__dmul_rn(sum, __longlong_as_double(static_cast<long long>(power))), 0x1p52);
  return static_cast<uint64_t>(__double_as_longlong(rounded) - __double_as_longlong(0x1p52));
}

__device__ __forceinline__ bool weighs_something(float block_best, float best, float temperature) {
  return block_best == best || __fdiv_rn(__fsub_rn(block_best, best), temperature) > kWeighsNothing;
}

// Calls use(logit) for the lane's share of a block of logits.
template <class Use>
__device__ __forceinline__ void each_logit(const float* logits, int64_t vocab, int block, Use use) {
  const int64_t first = int64_t{block} * kLogitBlock + lane_of();
  float own[kLaneLogits];
#pragma unroll
  for (int i = 0; i < kLaneLogits; i++)
    own[i] = first + i * kWarp < vocab ? logits[first + i * kWarp] : -INFINITY;
#pragma unroll
  for (int i = 0; i < kLaneLogits; i++) use(own[i]);
}

// A warp per block of a row's logits. NaN counts as -infinity.
__global__ void __launch_bounds__(kBlockThreads) best_logits_kernel(SampleLaunch launch) {
  in_turn();
  const int64_t vocab = launch.args.vocab, row = blockIdx.x;
  const int blocks = static_cast<int>(logit_blocks(vocab));
  const int block = static_cast<int>(blockIdx.y) * kBlocksAtOnce + warp_of();
  if (block >= blocks) return;
  float best = -INFINITY;
  each_logit(launch.args.logits + row * vocab, vocab, block,
             [&](float logit) { best = logit > best ? logit : best; });
  best = warp_max(best);
  if (lane_of() == 0) logit_blocks_of(launch, row, blocks).bests[block] = best;
}

// The highest of a row, by all threads of a block.
__device__ __forceinline__ float best_of_row(const LogitBlocks& of, int blocks, float* scratch) {
  float best = -INFINITY;
  for (int block = static_cast<int>(threadIdx.x); block < blocks; block += static_cast<int>(blockDim.x))
    best = fmaxf(best, of.bests[block]);
  return block_max(best, scratch);
}

// A warp per block of a row's logits.
__global__ void __launch_bounds__(kBlockThreads) logit_weights_kernel(SampleLaunch launch) {
  in_turn();
  __shared__ float scratch[kBlocksAtOnce];
  const int64_t vocab = launch.args.vocab, row = blockIdx.x;
  const int blocks = static_cast<int>(logit_blocks(vocab));
  const LogitBlocks of = logit_blocks_of(launch, row, blocks);
  const float best = best_of_row(of, blocks, scratch);
  const int block = static_cast<int>(blockIdx.y) * kBlocksAtOnce + warp_of();
  if (block >= blocks) return;
  const SamplingRow by = launch.args.by[row];
  const float temperature = by.temperature, block_best = of.bests[block];
  const bool draws = by.picks && temperature > 0;
  const bool at_one = weighs_something(block_best, best, 1.0f);
  const bool here = draws && temperature != 1 && weighs_something(block_best, best, temperature);
  uint64_t at_one_sum = 0, sum = 0;
  if (at_one || here)
    each_logit(launch.args.logits + row * vocab, vocab, block, [&](float logit) {
      if (at_one) at_one_sum += weight_of(logit, best, 1.0f);
      if (here) sum += weight_of(logit, best, temperature);
    });
  at_one_sum = warp_sum(at_one_sum);
  sum = temperature == 1 ? at_one_sum : warp_sum(sum);
  if (lane_of() != 0) return;
  of.counts[block] = at_one_sum;
  if (draws) of.sums[block] = sum;
}

// ---- of each row

// Whole numbers in the order of the logits, of which 0 and -0 are one.
constexpr uint32_t kNever = 0x007FFFFF;  // -infinity
__device__ __forceinline__ uint32_t key_of(float logit) {
  const unsigned bits = logit == 0 ? 0u : __float_as_uint(logit);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
}

// What cuts leave: the logits above a key, and the first so many of those that have it; of these all that weigh enough.
struct Cut {
  uint32_t key = kNever;
  uint64_t equals = 0;
  uint64_t lightest = 1;
};

struct SampleMemory {
  uint32_t low[kBins], high[kBins];  // sums' halves
  uint64_t warp_sums[kSampleWarps];
  float warp_bests[kSampleWarps];
  uint64_t above, left, equals_before;
  int found, token;
};

// One row. All threads of the block call everything.
class RowSampler {
 public:
  __device__ RowSampler(const SampleLaunch& launch, SampleMemory& memory)
      : logits_(launch.args.logits + int64_t{blockIdx.x} * launch.args.vocab),
        vocab_(launch.args.vocab),
        blocks_(static_cast<int>(logit_blocks(launch.args.vocab))),
        of_(logit_blocks_of(launch, blockIdx.x, blocks_)),
        by_(launch.args.by[blockIdx.x]),
        memory_(memory) {}

  __device__ void run(SampledRow* out) {
    best_ = best_of_row(of_, blocks_, memory_.warp_bests);
    const uint64_t at_one = sum_of(of_.counts);
    int32_t token = -1;
    if (by_.picks && best_ != -INFINITY) token = by_.temperature > 0 ? drawn() : first_best();
    if (thread() == 0) *out = {token, best_, at_one};
  }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  __device__ uint64_t running_sum(uint64_t value, uint64_t& total) const {
    return block_running_sum(value, memory_.warp_sums, total);
  }
  __device__ uint64_t sum_of(const uint64_t* numbers) const {
    uint64_t own = 0, total = 0;
    for (int block = thread(); block < blocks_; block += kSampleThreads) own += numbers[block];
    running_sum(own, total);
    return total;
  }
  __device__ uint64_t weight(float logit) const { return weight_of(logit, best_, by_.temperature); }

  __device__ int32_t first_best() const {
    if (thread() == 0) memory_.found = memory_.token = INT32_MAX;
    __syncthreads();
    for (int block = thread(); block < blocks_; block += kSampleThreads)
      if (of_.bests[block] == best_) atomicMin(&memory_.found, block);
    __syncthreads();
    const int64_t token = memory_.found * kLogitBlock + thread();
    if (thread() < kLogitBlock && token < vocab_ && logits_[token] == best_)
      atomicMin(&memory_.token, static_cast<int>(token));
    __syncthreads();
    return memory_.token;
  }

  // The cuts in the sampler's order, each of what the one before left.
  __device__ int32_t drawn() {
    Cut cut;
    cut.lightest = by_.lightest;
    const bool counts = by_.top_k > 0 && vocab_ > by_.top_k;
    const bool weighs = by_.lightest > 1;
    if (counts) {
      keep_best(static_cast<uint64_t>(by_.top_k), cut);
      weigh(cut);
    } else if (weighs) {
      weigh(cut);
    }
    if (by_.top_p < 1) {
      const uint64_t sum = sum_of(of_.sums) + cut.equals * weight_of_equals(cut);
      const uint64_t wanted = weight_share(by_.top_p, sum);
      // All that weigh no more than this are together less than what is left out.
      const uint64_t light = (sum - wanted) / static_cast<uint64_t>(vocab_);
      if (!counts && !weighs) cut.lightest = light + 1;
      keep_heaviest(wanted, cut);
      weigh(cut);
    }
    return pick(cut);
  }

  __device__ uint64_t weight_of_equals(const Cut& cut) const {
    return cut.equals > 0 ? weight(logit_of(cut.key)) : 0;
  }

  // ---- where a prefix ends

  struct End {
    uint32_t key;    // of its last logit
    uint64_t above;  // how much those have that are higher
  };

  // Exact whatever the order, and in adds of 32 bits, which shared memory does by itself.
  __device__ void add(uint32_t bin, uint64_t value) const {
    const unsigned low = static_cast<unsigned>(value);
    const unsigned carry = atomicAdd(&memory_.low[bin], low) > ~low;
    const unsigned high = static_cast<unsigned>(value >> 32) + carry;
    if (high) atomicAdd(&memory_.high[bin], high);
  }

  // Of entries with keys in [low, high), from the highest on, those that reach `wanted`. enter(low, high, shift) adds
  // each to its bin, of as many keys as 2^shift. False: all of them do not.
  template <class Enter>
  __device__ bool find_end(uint64_t low, uint64_t high, uint64_t wanted, End& end, Enter enter) const {
    end.above = 0;
#pragma unroll 1
    for (int shift = 32; shift > 0;) {
      for (shift = 0; (high - low - 1) >> shift >= kBins;) shift++;
#pragma unroll
      for (int i = 0; i < kBins / kSampleThreads; i++)
        memory_.low[i * kSampleThreads + thread()] = memory_.high[i * kSampleThreads + thread()] = 0;
      if (thread() == 0) memory_.found = -1;
      __syncthreads();
      enter(low, high, shift);
      __syncthreads();
      const int highest = kBins - 1 - 2 * thread();
      const auto sum_at = [&](int bin) { return uint64_t{memory_.high[bin]} << 32 | memory_.low[bin]; };
      const uint64_t first = sum_at(highest), second = sum_at(highest - 1);
      uint64_t total = 0;
      const uint64_t before = end.above + running_sum(first + second, total);
      if (before < wanted && before + first + second >= wanted) {
        const bool with_first = before + first >= wanted;
        memory_.found = with_first ? highest : highest - 1;
        memory_.above = with_first ? before : before + first;
      }
      __syncthreads();
      const int found = memory_.found;
      if (found >= 0) end.above = memory_.above;
      __syncthreads();
      if (found < 0) return false;
      low += static_cast<uint64_t>(found) << shift;
      high = min(high, low + (uint64_t{1} << shift));
    }
    end.key = static_cast<uint32_t>(low);
    return true;
  }

  // The first k by logits, of which none is below the k-th of the blocks' bests.
  __device__ void keep_best(uint64_t k, Cut& cut) const {
    const uint64_t all = uint64_t{key_of(best_)} + 1;
    uint64_t least = kNever + 1;
    End end;
    const bool bounded = k <= static_cast<uint64_t>(blocks_) &&
                         find_end(least, all, k, end, [&](uint64_t low, uint64_t high, int shift) {
                           for (int block = thread(); block < blocks_; block += kSampleThreads) {
                             const uint32_t key = key_of(of_.bests[block]);
                             if (key >= low && key < high)
                               add(static_cast<uint32_t>((key - low) >> shift), 1);
                           }
                         });
    if (bounded) least = end.key;
    const bool found = find_end(least, all, k, end, [&](uint64_t low, uint64_t high, int shift) {
      enter_logits(low, high, shift, 0, [](float) { return uint64_t{1}; });
    });
    if (!found) return;
    cut.key = end.key;
    cut.equals = weight(logit_of(end.key)) >= cut.lightest ? k - end.above : 0;
  }

  // The first by logits whose weights reach `wanted`, of what `cut` leaves.
  __device__ void keep_heaviest(uint64_t wanted, Cut& cut) const {
    uint64_t least = uint64_t{cut.key} + (cut.equals == 0);
    // Of what is lower nothing weighs anything, and the fewer keys there are, the fewer times all are gone through.
    const float lowest = __fsub_rn(best_, __fmul_rn(32.0f, by_.temperature));
    if (lowest > -INFINITY && key_of(lowest) > least) least = key_of(lowest);
    const uint64_t of_equals = weight_of_equals(cut);
    End end;
    const bool found = find_end(
        least, uint64_t{key_of(best_)} + 1, wanted, end, [&](uint64_t low, uint64_t high, int shift) {
          const uint64_t above = max(low, uint64_t{cut.key} + 1);
          if (above < high)
            enter_logits(above, high, shift, above - low, [&](float logit) {
              const uint64_t own = weight(logit);
              return own >= cut.lightest ? own : 0;
            });
          if (thread() == 0 && cut.equals > 0 && cut.key >= low && cut.key < high)
            add(static_cast<uint32_t>((cut.key - low) >> shift), cut.equals * of_equals);
        });
    if (!found) return;
    const uint64_t each = weight(logit_of(end.key));
    cut.key = end.key;
    cut.equals = (wanted - end.above + each - 1) / each;
  }

  // Calls use(block) for every block of logits for which wants(block) is true, a warp each.
  template <class Wants, class Use>
  __device__ void each_block(Wants wants, Use use) const {
#pragma unroll 1
    for (int base = warp_of(); base < blocks_; base += kSampleThreads) {
      const int own = base + lane_of() * kSampleWarps;
      unsigned left = __ballot_sync(kAllLanes, own < blocks_ && wants(own));
#pragma unroll 1
      for (; left != 0; left &= left - 1) use(base + (__ffs(static_cast<int>(left)) - 1) * kSampleWarps);
    }
  }

  // value(logit) of every logit with a key in [low, high) to its bin, of which the first begins `skipped` keys before.
  template <class Value>
  __device__ void enter_logits(uint64_t low, uint64_t high, int shift, uint64_t skipped, Value value) const {
    each_block([&](int block) { return key_of(of_.bests[block]) >= low; },
               [&](int block) {
                 each_logit(logits_, vocab_, block, [&](float logit) {
                   const uint32_t key = key_of(logit);
                   if (!(logit > -INFINITY) || key < low || key >= high) return;
                   if (const uint64_t own = value(logit))
                     add(static_cast<uint32_t>((key - low + skipped) >> shift), own);
                 });
               });
  }

  // ---- the draw

  // Of each block what the logits weigh that are left above the cut's key, and how many have that key.
  __device__ void weigh(const Cut& cut) const {
    const auto wants = [&](int block) {
      const bool some = key_of(of_.bests[block]) >= cut.key && of_.bests[block] > -INFINITY;
      if (!some) of_.sums[block] = of_.counts[block] = 0;
      return some;
    };
    __syncthreads();  // nobody reads sums any more
    each_block(wants, [&](int block) {
      uint64_t sum = 0, count = 0;
      each_logit(logits_, vocab_, block, [&](float logit) {
        if (!(logit > -INFINITY)) return;
        const uint32_t key = key_of(logit);
        count += key == cut.key;
        if (key <= cut.key) return;
        const uint64_t own = weight(logit);
        if (own >= cut.lightest) sum += own;
      });
      sum = warp_sum(sum);
      count = warp_sum(count);
      if (lane_of() == 0) of_.sums[block] = sum, of_.counts[block] = count;
    });
    __syncthreads();
  }

  // The token of which the weights up to it, in order of tokens, are the first to exceed the number that is drawn.
  __device__ int32_t pick(const Cut& cut) const {
    const uint64_t of_equals = weight_of_equals(cut);
    const auto taken = [&](uint64_t before, uint64_t count) {  // of logits with the cut's key
      return before < cut.equals ? min(count, cut.equals - before) : 0;
    };
    // A thread has some blocks that follow each other.
    const int each = (blocks_ + kSampleThreads - 1) / kSampleThreads;
    const int begin = min(thread() * each, blocks_), end = min(begin + each, blocks_);
    uint64_t sum = 0, equals = 0, total = 0;
    for (int block = begin; block < end; block++) {
      sum += of_.sums[block];
      if (cut.equals > 0) equals += of_.counts[block];
    }
    uint64_t equals_before = running_sum(equals, total);
    sum += taken(equals_before, equals) * of_equals;
    const uint64_t before = running_sum(sum, total);
    uint64_t left = draw_below(total, by_.random);
    if (before <= left && left - before < sum) {
      left -= before;
      int block = begin;
      for (;; block++) {
        const uint64_t count = cut.equals > 0 ? of_.counts[block] : 0;
        const uint64_t own = of_.sums[block] + taken(equals_before, count) * of_equals;
        if (left < own) break;
        left -= own;
        equals_before += count;
      }
      memory_.found = block;
      memory_.left = left;
      memory_.equals_before = equals_before;
    }
    __syncthreads();
    left = memory_.left;
    const int64_t token = memory_.found * kLogitBlock + thread();
    const float logit = thread() < kLogitBlock && token < vocab_ ? logits_[token] : -INFINITY;
    const bool some = logit > -INFINITY, equal = some && cut.equals > 0 && key_of(logit) == cut.key;
    const uint64_t rank = memory_.equals_before + running_sum(equal, total);
    uint64_t own = some && (equal ? rank < cut.equals : key_of(logit) > cut.key) ? weight(logit) : 0;
    if (own < cut.lightest) own = 0;
    const uint64_t before_own = running_sum(own, total);
    if (before_own <= left && left - before_own < own) memory_.token = static_cast<int>(token);
    __syncthreads();
    return memory_.token;
  }

  const float* logits_;
  int64_t vocab_;
  int blocks_;
  LogitBlocks of_;
  const SamplingRow by_;
  SampleMemory& memory_;
  float best_ = 0;
};

__global__ void __launch_bounds__(kSampleThreads) sample_kernel(SampleLaunch launch) {
  in_turn();
  __shared__ SampleMemory memory;
  RowSampler(launch, memory).run(launch.args.out + blockIdx.x);
}

size_t sample_workspace(int64_t rows, int64_t vocab) {
  return static_cast<size_t>(rows) * blocks_of(vocab) * (2 * sizeof(uint64_t) + sizeof(float));
}

cudaError_t sample(cudaStream_t stream, const SampleArgs& args, std::byte* workspace) {
  if (args.vocab < 1 || args.vocab > kMostWeighed) return cudaErrorInvalidValue;
  const SampleLaunch given = {args, workspace};
  const dim3 grid(static_cast<unsigned>(args.rows),
                  static_cast<unsigned>((blocks_of(args.vocab) + kBlocksAtOnce - 1) / kBlocksAtOnce));
  for (const auto kernel : {best_logits_kernel, logit_weights_kernel}) {
    const cudaError_t error = launch(kernel, grid, kBlockThreads, 0, stream, given);
    if (error != cudaSuccess) return error;
  }
  return launch(sample_kernel, static_cast<unsigned>(args.rows), kSampleThreads, 0, stream, given);
}

}  // namespace wi::cuda
