// Exact attention of lookups (one query position at one KV head each) over their steady zone and retrieved
// runs: softmax(q·k/√d)·v with an online softmax, f32 throughout. What the full policy spends its time in
// and wave runs over its retrieved clusters (RetroInfer §4.2).
//
// A lookup is cut into chunks of a fixed number of tokens (flash-decoding), so that a few long lookups keep
// many workers busy; whoever finishes a lookup's last chunk merges them in order. The cut depends on nothing
// but the lookup, so results are the same bit for bit whatever the workers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/attend-inl.h"
#include "kernels/cpu/cpu.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace {

constexpr size_t kBlockTokens = 64;
constexpr size_t kAhead = 1;

// Rows of some tokens of a lookup.
struct Block {
  size_t count;  // ≤ kBlockTokens; the lists are full in any case
  const std::byte* keys[kBlockTokens];
  const std::byte* values[kBlockTokens];
};

// Rows of the next kBlockTokens tokens of a lookup, from one run to the next.
class Rows {
 public:
  Rows(const Lookup& lookup, int64_t begin, int64_t end, size_t row_bytes)
      : lookup_(lookup), left_(end - begin), row_bytes_(row_bytes) {
    open(0);
    while (begin >= run_.tokens && left_ > 0) {
      begin -= run_.tokens;
      open(index_ + 1);
    }
    at_ = begin;
  }

  // An empty block at the end. A block's lists are padded with its last row.
  void next(Block& block) {
    size_t count = 0;
    while (count < kBlockTokens && left_ > 0) {
      if (at_ == run_.tokens) {
        open(index_ + 1);
        continue;
      }
      const int64_t room = static_cast<int64_t>(kBlockTokens - count);
      const int64_t take = HWY_MIN(room, HWY_MIN(left_, run_.tokens - at_));
      const std::byte* key = static_cast<const std::byte*>(run_.keys) + at_ * row_bytes_;
      const std::byte* value = static_cast<const std::byte*>(run_.values) + at_ * row_bytes_;
      for (int64_t i = 0; i < take; i++, count++, key += row_bytes_, value += row_bytes_) {
        block.keys[count] = key;
        block.values[count] = value;
      }
      at_ += take;
      left_ -= take;
    }
    block.count = count;
    for (size_t i = count; i < kBlockTokens && count > 0; i++) {
      block.keys[i] = block.keys[count - 1];
      block.values[i] = block.values[count - 1];
    }
  }

 private:
  void open(int32_t index) {
    index_ = index;
    at_ = 0;
    if (index < lookup_.steady_count) {
      run_ = lookup_.steady[index];
    } else if (index < lookup_.steady_count + lookup_.run_count) {
      run_ = lookup_.runs[index - lookup_.steady_count];
    } else {
      run_ = {};
      left_ = 0;
    }
  }

  const Lookup& lookup_;
  KvRun run_;
  int32_t index_ = 0;
  int64_t at_ = 0;
  int64_t left_;
  size_t row_bytes_;
};

// Running softmax of one block of heads.
struct HeadState {
  float* acc;                   // (kHeads, padded_dim) Σ exp(score - max) · value
  HWY_ALIGN float max[kLanes];  // of each lane's head
  HWY_ALIGN float sum[kLanes];  // of each lane: to be added up over a head's lanes
};

// The block's tokens enter the running softmax; rows of the block ahead, if any, are prefetched.
template <DType kKv, int kHeads>
void attend_block(const float* query, size_t head_dim, const Block& block, const Block* ahead,
                  HeadState& state) {
  const Floats d;
  constexpr size_t kRows = kLanes / kHeads;
  const size_t bytes = row_bytes(kKv, static_cast<int64_t>(head_dim));
  HWY_ALIGN float scores[kBlockTokens * kHeads];
  const size_t tiles = (block.count + kRows - 1) / kRows;

  Vector highest = hn::Set(d, kLowest);
  for (size_t tile = 0; tile < tiles; tile++) {
    if (ahead) {
      for (size_t r = 0; r < kRows; r++) prefetch_row(ahead->keys[tile * kRows + r], bytes);
    }
    const Vector score = dot_rows<kKv, kHeads>(d, query, block.keys + tile * kRows, head_dim);
    highest = hn::Max(highest, score);
    hn::Store(score, d, scores + tile * kLanes);
  }
  for (size_t i = block.count * kHeads; i < tiles * kLanes; i++) {
    scores[i] = -std::numeric_limits<float>::infinity();
  }

  const Vector old_max = hn::Load(d, state.max);
  const Vector max = hn::Max(old_max, max_across_rows<kHeads>(d, highest));
  Vector sum = hn::Load(d, state.sum);
  if (!hn::AllTrue(d, hn::Eq(max, old_max))) {
    HWY_ALIGN float factor[kLanes];
    const Vector shrink = exp(d, hn::Sub(old_max, max));
    hn::Store(shrink, d, factor);
    sum = hn::Mul(sum, shrink);
    const size_t stride = padded_dim(head_dim);
    for (int h = 0; h < kHeads; h++)
      for (size_t i = 0; i < stride; i += kLanes) {
        float* acc = state.acc + h * stride + i;
        hn::Store(hn::Mul(hn::Load(d, acc), hn::Set(d, factor[h])), d, acc);
      }
  }
  for (size_t i = 0; i < tiles * kLanes; i += kLanes) {
    const Vector weight = exp(d, hn::Sub(hn::Load(d, scores + i), max));
    sum = hn::Add(sum, weight);
    hn::Store(weight, d, scores + i);
  }
  hn::Store(max, d, state.max);
  hn::Store(sum, d, state.sum);
  add_rows<kKv, kHeads>({scores, kHeads, 1}, block.values, block.count, head_dim, state.acc,
                        ahead ? ahead->values : nullptr);
}

// Attends tokens [begin, end) of a lookup. partial: acc (group, head_dim), not normalised, then max (group),
// then sum (group). scratch: attend_scratch_floats().
void attend_tokens(const LookupArgs& args, const Lookup& lookup, int64_t begin, int64_t end, float* scratch,
                   float* partial) {
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  const size_t stride = padded_dim(head_dim);
  const int group = args.group;
  const int blocks = head_blocks(group);
  HeadState* states = reinterpret_cast<HeadState*>(scratch);
  float* query = scratch + blocks * sizeof(HeadState) / sizeof(float);
  float* acc = query + pack_query(lookup.query, group, head_dim, args.scale, query) * stride;
  std::memset(acc, 0, blocks * kBlockHeads * stride * sizeof(float));
  for (int b = 0; b < blocks; b++) {
    states[b].acc = acc + b * kBlockHeads * stride;
    for (size_t i = 0; i < kLanes; i++) {
      states[b].max[i] = kLowest;
      states[b].sum[i] = 0;
    }
  }

  // Blocks ahead of the one that is worked on have their rows on the way.
  Block ring[kAhead + 1];
  Rows rows(lookup, begin, end, row_bytes(args.kv, args.head_dim));
  for (size_t i = 0; i < kAhead; i++) rows.next(ring[i]);
  for (size_t now = 0; ring[now].count > 0; now = (now + 1) % (kAhead + 1)) {
    const Block& block = ring[now];
    Block& coming = ring[(now + kAhead) % (kAhead + 1)];
    rows.next(coming);
    for (int b = 0; b < blocks; b++) {
      const int first = b * kBlockHeads;
      const Block* ahead = coming.count > 0 && b == 0 ? &coming : nullptr;
      with_type_and_width(args.kv, block_width(group, first), [&]<DType kKv, int kHeads>() HWY_ATTR {
        attend_block<kKv, kHeads>(query + first * stride, head_dim, block, ahead, states[b]);
      });
    }
  }

  for (int h = 0; h < group; h++) {
    const HeadState& state = states[h / kBlockHeads];
    const int width = block_width(group, h / kBlockHeads * kBlockHeads);
    std::memcpy(partial + h * head_dim, acc + h * stride, head_dim * sizeof(float));
    float sum = 0;
    for (size_t i = h % kBlockHeads; i < kLanes; i += width) sum += state.sum[i];
    partial[group * head_dim + h] = state.max[h % kBlockHeads];
    partial[group * head_dim + group + h] = sum;
  }
}

size_t attend_scratch_floats(const LookupArgs& args) {
  const size_t blocks = static_cast<size_t>(head_blocks(args.group));
  return blocks * (sizeof(HeadState) / sizeof(float) + 2 * kBlockHeads * padded_dim(args.head_dim));
}

}  // namespace
}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <atomic>

namespace wi::cpu {
namespace {

HWY_EXPORT(attend_tokens);
HWY_EXPORT(attend_scratch_floats);

constexpr int64_t kChunkTokens = 1024;  // fewer take longer in all, more leave workers without any

int64_t tokens_of(const Lookup& lookup) {
  int64_t tokens = 0;
  for (int32_t i = 0; i < lookup.steady_count; i++) tokens += lookup.steady[i].tokens;
  for (int32_t i = 0; i < lookup.run_count; i++) tokens += lookup.runs[i].tokens;
  return tokens;
}

size_t partial_floats(const LookupArgs& args) {
  return static_cast<size_t>(args.group) * (args.head_dim + 2);
}

void merge(const LookupArgs& args, Lookup& lookup, const float* partials, int64_t chunks);

struct LookupPlan {
  int64_t tokens;
  int64_t first_task;  // one task per chunk, at least one
  std::atomic<int64_t> unfinished;
};

}  // namespace

void attend(const Stream& stream, const LookupArgs& args) {
  if (args.count == 0) return;
  int64_t tasks = 0;
  for (int32_t i = 0; i < args.count; i++) {
    tasks += std::max<int64_t>(1, (tokens_of(args.lookups[i]) + kChunkTokens - 1) / kChunkTokens);
  }
  const size_t plan_bytes = sizeof(LookupPlan) * args.count;
  std::byte* shared =
      stream.shared_array<std::byte>(plan_bytes + sizeof(float) * partial_floats(args) * tasks);
  LookupPlan* plans = reinterpret_cast<LookupPlan*>(shared);
  float* partials = reinterpret_cast<float*>(shared + plan_bytes);  // (tasks, partial_floats)
  tasks = 0;
  for (int32_t i = 0; i < args.count; i++) {
    LookupPlan* plan = new (&plans[i]) LookupPlan{tokens_of(args.lookups[i]), tasks, {}};
    args.lookups[i].counters->attended_tokens += plan->tokens;
    const int64_t chunks = std::max<int64_t>(1, (plan->tokens + kChunkTokens - 1) / kChunkTokens);
    plan->unfinished.store(chunks, std::memory_order_relaxed);
    tasks += chunks;
  }

  stream.each(tasks, [&](int64_t task, int worker) {
    const LookupPlan* after =
        std::upper_bound(plans, plans + args.count, task,
                         [](int64_t t, const LookupPlan& plan) { return t < plan.first_task; });
    LookupPlan& plan = plans[after - plans - 1];
    Lookup& lookup = args.lookups[&plan - plans];
    const int64_t begin = (task - plan.first_task) * kChunkTokens;
    const int64_t end = std::min(plan.tokens, begin + kChunkTokens);
    float* scratch = stream.worker_array<float>(worker, HWY_DYNAMIC_DISPATCH(attend_scratch_floats)(args));
    HWY_DYNAMIC_DISPATCH(attend_tokens)
    (args, lookup, begin, end, scratch, partials + task * partial_floats(args));
    if (plan.unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      const int64_t chunks = std::max<int64_t>(1, (plan.tokens + kChunkTokens - 1) / kChunkTokens);
      merge(args, lookup, partials + plan.first_task * partial_floats(args), chunks);
    }
  });
}

namespace {

// Partial softmaxes of a lookup's chunks to its output, in the order of the chunks.
void merge(const LookupArgs& args, Lookup& lookup, const float* partials, int64_t chunks) {
  const int64_t dim = args.head_dim;
  const float* maxima = partials + args.group * dim;
  const float* sums = maxima + args.group;
  const int64_t stride = static_cast<int64_t>(partial_floats(args));
  for (int h = 0; h < args.group; h++) {
    float max = maxima[h];
    for (int64_t c = 1; c < chunks; c++) max = std::max(max, maxima[c * stride + h]);
    float sum = 0;
    float* out = lookup.out + h * dim;
    std::fill(out, out + dim, 0.0f);
    for (int64_t c = 0; c < chunks; c++) {
      const float factor = std::exp(maxima[c * stride + h] - max);
      const float* acc = partials + c * stride + h * dim;
      sum += sums[c * stride + h] * factor;
      for (int64_t i = 0; i < dim; i++) out[i] += acc[i] * factor;
    }
    const float inverse = sum == 0 ? 0 : 1 / sum;
    for (int64_t i = 0; i < dim; i++) out[i] *= inverse;
    lookup.lse[h] = max + std::log(sum);
  }
}

}  // namespace
}  // namespace wi::cpu

#endif  // HWY_ONCE
