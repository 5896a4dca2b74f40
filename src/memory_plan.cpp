#include "src/memory_plan.h"

#include <algorithm>

#include "src/memory/less.h"
#include "src/pipeline/attention.h"
#include "src/pipeline/building.h"
#include "src/pipeline/device_index.h"
#include "src/pipeline/past.h"
#include "src/pipeline/straight.h"
#include "src/prefill.h"
#include "src/store/sequence.h"

namespace wi {
namespace {

uint64_t scratch_bytes(const Model& model, int64_t chunk_tokens, int threads);
uint64_t device_scratch_bytes(const Runtime& runtime, const Model& model, const KvShape& shape,
                              const SessionParams& params, int64_t rows, int64_t tokens);
uint64_t past_scratch_bytes(const Model& model, const KvShape& shape, int64_t chunk_tokens, int64_t tokens);
uint64_t lookup_scratch_bytes(const KvShape& shape, const SessionParams& params, int64_t tokens);
uint64_t clustering_scratch_bytes(const KvShape& shape, const SessionParams& params, int64_t tokens,
                                  int workers);
uint64_t most_tokens(const KvShape& shape, const SessionParams& params, int64_t chunk_tokens,
                     uint64_t pool_budget_bytes, const SlowPlan* slow, int workers);
bool fits_budgets(const KvPlan& plan, uint64_t session_budget_bytes, uint64_t pool_budget_bytes,
                  const SlowPlan* slow);

// Of what is cut: no policy has more clusters of a segment's beginning than of the segment.
IndexSize index_size_of_cut(const Segment& whole) {
  IndexSize size;
  for (const Segment::HeadIndex& head : whole.heads()) {
    size.bytes = std::max<uint64_t>(size.bytes, head.bytes);
    size.partitions = std::max(size.partitions, head.partitions);
  }
  return size;
}

SlowPlan slow_plan_of(const Runtime& runtime, const KvShape& shape, const SessionParams& params) {
  SlowPlan slow;
  slow.room = slow_tier_room(runtime);
  slow.share = params.kv_fast_share;
  if (runtime.buffer->file() && !shape.windows && straight_planes(shape, runtime.workers.threads())) {
    slow.workers = runtime.workers.threads();
    slow.tail = params.sparse_read_tokens == 0;
  }
  return slow;
}

// A partition's last frame is half empty as a rule.
int64_t in_frames(const PolicyParams& params, int64_t tokens) {
  return tokens + tokens / std::max(params.tokens_per_centroid, 1) * (kFrameTokens - 1) / 2;
}

// By one step, frames' empty places included. Whatever is one partition a segment is looked at whole.
int64_t looked_up_tokens(const Policy& policy, const PolicyParams& params, int64_t indexed_tokens) {
  return policy.partition_offsets ? in_frames(params, zones_of(params, indexed_tokens, 0).budget)
                                  : indexed_tokens;
}

}  // namespace

int64_t decode_tail_tokens(const PolicyParams& params) {
  return int64_t{params.local_window} + params.decode_segment_tokens + kBuildTokens;
}

CutPlan plan_cut(const Sequence& sequence, const Policy& policy, const PolicyParams& params, int64_t tokens,
                 int64_t most_sealed) {
  // What was sealed since the session had so many tokens is tail again.
  const int64_t kept =
      std::min(tokens - params.local_window - kBuildTokens, most_sealed) - int64_t{kBlockTokens};
  CutPlan plan;
  int64_t cut = 0;
  for (const auto& segment : sequence.segments()) {
    if (segment->end_position() <= kept || segment->first_position() >= tokens) continue;
    cut += segment->tokens();
    const IndexSize index = policy.cut ? index_size_of_cut(*segment)
                                       : index_size(sequence.shape(), policy, params, segment->tokens());
    plan.index.bytes = std::max(plan.index.bytes, index.bytes);
    plan.index.partitions = std::max(plan.index.partitions, index.partitions);
  }
  if (cut == 0) return {};
  plan.longest = static_cast<int32_t>(std::min<int64_t>(cut, params.segment_tokens));
  plan.again_bytes =
      static_cast<uint64_t>(std::min(cut, tokens - kept + params.decode_segment_tokens) + kBlockTokens) *
      sequence.shape().token_bytes();
  return plan;
}

SealPlan plan_seal(const Sequence& sequence, const Policy& policy, const PolicyParams& params,
                   int64_t coming_tokens) {
  const int64_t settled = std::min(sequence.tokens(), sequence.settled_end());
  const int64_t open =
      std::min<int64_t>(sequence.tokens() - settled, sequence.tail_tokens() + params.segment_tokens) +
      coming_tokens;
  if (SegmentGrid(params).sealed_end(kSinkTokens + open) == kSinkTokens) return {};
  // One that begins off the grid goes on to a border that gives it a unit's tokens.
  const int64_t most = std::max<int64_t>(
      params.segment_tokens, 2 * int64_t{std::min(params.decode_segment_tokens, params.segment_tokens)});
  SealPlan plan;
  plan.longest = static_cast<int32_t>(std::min(most, open));
  plan.index = index_size(sequence.shape(), policy, params, plan.longest);
  plan.stays_bytes = static_cast<uint64_t>(open / plan.longest) *
                     most_index_bytes(sequence.shape(), policy, params, plan.longest);
  int64_t kept = 0;
  for (const BlockRef& block : sequence.tail())
    if (!block.unique() && !block->is_slow()) kept += kBlockTokens;
  // A segment of full length is part of none that is longer.
  for (const auto& segment : sequence.segments())
    if (segment->first_position() >= settled && segment->tokens() < params.segment_tokens &&
        segment.use_count() > 1 && !segment->is_slow())
      kept += segment->tokens();
  plan.kept_bytes = static_cast<uint64_t>(kept) * sequence.shape().token_bytes();
  return plan;
}

// Follows seal_decoded() of pipeline/index.cpp: what is there at once, with what of earlier ones has stayed.
uint64_t decoded_sealing_bytes(const Sequence& sequence, const Policy& policy, const PolicyParams& params,
                               int64_t tokens, int workers) {
  const KvShape& shape = sequence.shape();
  const SegmentGrid grid(params);
  const auto shared = [&](const SegmentSpan& span) {
    const auto blocks =
        sequence.tail().subspan(static_cast<size_t>((span.first - sequence.sealed_end()) / kBlockTokens),
                                static_cast<size_t>(span.tokens / kBlockTokens));
    return std::any_of(blocks.begin(), blocks.end(), [](const BlockRef& block) { return !block.unique(); });
  };
  const int64_t slow_end =
      sequence.sealed_end() + static_cast<int64_t>(sequence.slow_blocks()) * kBlockTokens;
  bool begun = sequence.being_built();
  uint64_t stays = 0, most = 0;
  for (SegmentSpan span = grid.unit(sequence.sealed_end());; span = grid.unit(span.end())) {
    const bool due = span.end() + params.local_window + kBuildTokens <= tokens;
    const int64_t slow = std::max<int64_t>(slow_end - span.first, 0);
    if (!due) stays += static_cast<uint64_t>(slow) * shape.token_bytes();  // comes back
    if (span.end() > sequence.tokens()) return std::max(most, stays);
    const IndexSize index = index_size(shape, policy, params, span.tokens);
    const uint64_t index_bytes = most_index_bytes(shape, policy, params, span.tokens);
    const bool straight = due && slow;
    uint64_t making = 0;
    if (straight)
      making = straight_making_bytes(shape, index, span.tokens, workers);
    else if (!begun)
      making = making_bytes(shape, index, span.tokens) +
               building_bytes(shape, policy, params, span.tokens, workers);
    else if (due)
      making = index_bytes;
    most = std::max(most, stays + making);
    if (!due) return most;
    stays += index_bytes;
    if (!straight && !begun && shared(span))
      stays += static_cast<uint64_t>(span.tokens) * shape.token_bytes();
    begun = false;
  }
}

uint64_t looked_up_bytes(const KvShape& shape, const Policy& policy, const PolicyParams& params,
                         int64_t indexed_tokens) {
  return static_cast<uint64_t>(std::min(looked_up_tokens(policy, params, indexed_tokens), indexed_tokens)) *
         shape.indexed_token_bytes();
}

wi_memory_plan plan_memory(const Runtime& runtime, const Model& model, const SessionParams& params,
                           uint64_t tokens) {
  check(tokens <= INT32_MAX, WI_E_ARGUMENT, "tokens is ", tokens, ", must be at most ", INT32_MAX);
  const ModelConfig& config = model.config;
  const KvShape shape = kv_shape_of(model, params.kv, runtime);
  const int64_t chunk_tokens = prefill_chunk_tokens(config);
  const bool slow_tier = may_leave(runtime, shape);
  const SlowPlan if_slow = slow_tier ? slow_plan_of(runtime, shape, params) : SlowPlan();
  const SlowPlan* const slow = slow_tier ? &if_slow : nullptr;
  const KvPlan kv = plan_kv(shape, *params.policy, params.policy_params, chunk_tokens,
                            static_cast<int64_t>(tokens), if_slow, runtime.workers.threads());

  wi_memory_plan plan{};
  plan.weight_bytes = model.weight_bytes;
  plan.kv_bytes = kv.kv_bytes;
  plan.index_bytes = kv.index_bytes;
  plan.sealing_bytes = kv.sealing_bytes;
  const int64_t rows = std::min(chunk_tokens, static_cast<int64_t>(tokens));
  plan.scratch_bytes =
      runtime.device ? device_scratch_bytes(runtime, model, shape, params, rows, static_cast<int64_t>(tokens))
                     : scratch_bytes(model, rows, runtime.workers.threads()) +
                           clustering_scratch_bytes(shape, params, static_cast<int64_t>(tokens),
                                                    runtime.workers.threads());
  if (slow_tier && (params.kv_fast_share > 0 ||
                    !fits_budgets(kv, params.kv_budget_bytes, runtime.pool->budget(), nullptr)))
    plan.scratch_bytes +=
        past_scratch_bytes(model, shape, rows, static_cast<int64_t>(tokens)) +
        (runtime.buffer->file() ? lookup_scratch_bytes(shape, params, static_cast<int64_t>(tokens)) : 0);
  plan.total_bytes =
      plan.weight_bytes + plan.kv_bytes + plan.index_bytes + plan.sealing_bytes + plan.scratch_bytes;
  plan.fast_bytes = kv.fast_bytes;
  plan.max_tokens =
      most_tokens(shape, params, chunk_tokens, runtime.pool->budget(), slow, runtime.workers.threads());
  const uint64_t needed =
      slow_tier ? plan.weight_bytes + plan.fast_bytes + plan.scratch_bytes : plan.total_bytes;
  plan.fits =
      fits_budgets(kv, params.kv_budget_bytes, runtime.pool->budget(), slow) &&
      needed <= (runtime.device ? runtime.device->description.free_bytes : runtime.topology.memory_bytes);
  return plan;
}

TierPlans plan_tiers(const Runtime& runtime, const Model& model, const SessionParams& params,
                     uint64_t tokens) {
  const KvShape shape = kv_shape_of(model, params.kv, runtime);
  const SlowPlan slow = slow_plan_of(runtime, shape, params);
  const auto plan = [&](const SlowPlan& with) {
    return plan_kv(shape, *params.policy, params.policy_params, prefill_chunk_tokens(model.config),
                   static_cast<int64_t>(tokens), with, runtime.workers.threads());
  };
  const KvPlan least = plan(slow);
  check(least.slow_bytes <= slow.room, WI_E_BUDGET, "kv_fast_share is ", params.kv_fast_share, ", so that ",
        least.slow_bytes, " bytes may have to leave fast memory, the runtime's spill_bytes is ", slow.room);
  const uint64_t all = least.kv_bytes + least.index_bytes + least.sealing_bytes;
  const uint64_t segment =
      static_cast<uint64_t>(params.policy_params.segment_tokens) * shape.indexed_token_bytes();
  const auto with_fast = [&](uint64_t fast_bytes) {
    TierPlan tiers{fast_bytes, least.slow_bytes};
    if (all > fast_bytes)
      tiers.slow_bytes = std::max(tiers.slow_bytes, std::min(all - fast_bytes + segment, slow.room));
    return tiers;
  };
  const uint64_t whole = plan({}).fast_bytes;
  const bool holds_whole = whole <= runtime.pool->budget();
  return {with_fast(holds_whole ? std::max(whole, least.fast_bytes) : least.fast_bytes),
          with_fast(least.fast_bytes)};
}

TaskBytes plan_task(const Session& session, int64_t prompt_tokens, int64_t answer_tokens) {
  const SessionParams& params = session.params();
  const Sequence& sequence = session.sequence();
  const auto pending = static_cast<int64_t>(session.stats().tokens) - sequence.tokens();
  const TaskTokens task{.prompt = prompt_tokens ? pending + prompt_tokens : 0,
                        .answer = prompt_tokens ? answer_tokens : pending + answer_tokens,
                        .chunk = prefill_chunk_step(session.model().config),
                        .sparse_read = params.sparse_read_tokens};
  return bytes_of_task(sequence, *params.policy, params.policy_params, task,
                       session.runtime().workers.threads());
}

uint64_t slow_tier_room(const Runtime& runtime) {
  const SpillFile* const file = runtime.buffer->file().get();
  return file ? file->most() : runtime.buffer->pinned()->budget();
}

uint64_t slow_tier_used(const Runtime& runtime) {
  const SpillFile* const file = runtime.buffer->file().get();
  return file ? file->used() : runtime.buffer->pinned()->used();
}

// Follows seal_prompt() of pipeline/index.h: the segments that SegmentGrid has for so many tokens, in order.
KvPlan plan_kv(const KvShape& shape, const Policy& policy, const PolicyParams& params, int64_t chunk_tokens,
               int64_t tokens, const SlowPlan& slow, int workers) {
  const auto bytes_of = [&](int64_t count) { return static_cast<uint64_t>(count) * shape.token_bytes(); };
  if (tokens == 0) return {};
  const SegmentGrid grid(params);
  const int64_t sealed_end = grid.sealed_end(tokens);
  const uint64_t staying = shape.token_bytes() - shape.indexed_token_bytes();  // of a token that is sealed

  KvPlan plan;
  plan.kv_bytes = bytes_of(sealed_end + in_blocks(std::max<int64_t>(tokens - sealed_end, 0)));

  // While a segment is built, its tokens are in the tail too. It meets a tail of one chunk more than itself and the
  // window at most.
  uint64_t peak = 0;
  const auto build = [&](SegmentSpan span) {
    const int64_t tail = std::min(tokens - span.first, params.local_window + span.tokens + chunk_tokens);
    const IndexSize index = index_size(shape, policy, params, span.tokens);
    const uint64_t making = making_bytes(shape, index, span.tokens);
    peak = std::max(peak, bytes_of(span.first + in_blocks(tail)) + plan.index_bytes + making);
    // Of those before the last, one meets a whole chunk.
    int64_t longest_tail = params.local_window + span.tokens + chunk_tokens;
    if (slow.tail)
      longest_tail = std::min<int64_t>(
          longest_tail, params.local_window + params.decode_segment_tokens + kBlockTokens + chunk_tokens);
    const uint64_t least =
        slow.workers ? straight_making_bytes(shape, index, span.tokens, slow.workers) : making;
    plan.fast_bytes =
        std::max(plan.fast_bytes, bytes_of(kSinkTokens + in_blocks(std::min(tokens, longest_tail))) +
                                      plan.index_bytes + least +
                                      staying * static_cast<uint64_t>(span.first - kSinkTokens));
    plan.index_bytes += most_index_bytes(shape, policy, params, span.tokens);
  };
  // Of the whole segments, the last meets the most.
  const int64_t whole = (sealed_end - kSinkTokens) / params.segment_tokens;
  const int64_t whole_end = kSinkTokens + whole * params.segment_tokens;
  if (whole) {
    plan.index_bytes =
        static_cast<uint64_t>(whole - 1) * most_index_bytes(shape, policy, params, params.segment_tokens);
    build({whole_end - params.segment_tokens, params.segment_tokens});
  }
  for (SegmentSpan span = grid.longest(whole_end, sealed_end); span.tokens;
       span = grid.longest(span.end(), sealed_end))
    build(span);
  const uint64_t held = plan.kv_bytes + plan.index_bytes;
  peak = std::max({peak, most_while_reading(shape, policy, params, chunk_tokens - kSinkTokens, tokens),
                   most_while_writing(shape, policy, params, tokens, workers)});
  plan.sealing_bytes = less(peak, held);
  const uint64_t sealed =
      static_cast<uint64_t>(std::max<int64_t>(sealed_end - kSinkTokens, 0)) * shape.indexed_token_bytes();
  plan.fast_bytes = std::max(plan.fast_bytes, less(held, sealed));
  // While it is decoded.
  if (const SegmentSpan unit = grid.unit(kSinkTokens); slow.workers && unit.end() <= tokens) {
    const int64_t tail = std::min(tokens, decode_tail_tokens(params) + kBlockTokens);
    plan.fast_bytes =
        std::max(plan.fast_bytes,
                 bytes_of(kSinkTokens + in_blocks(tail)) + plan.index_bytes +
                     making_bytes(shape, index_size(shape, policy, params, unit.tokens), unit.tokens) +
                     building_bytes(shape, policy, params, unit.tokens, slow.workers));
  }
  // Segments leave whole, so that of the slow tier's room almost one may be left over.
  const uint64_t longest =
      std::min<uint64_t>(static_cast<uint64_t>(params.segment_tokens) * shape.indexed_token_bytes(), sealed);
  const uint64_t all = held + plan.sealing_bytes, leaving = less(slow.room, longest);
  if (all > leaving) plan.fast_bytes = std::max(plan.fast_bytes, all - leaving);
  if (slow.share > 0)
    plan.slow_bytes = std::min(
        sealed, sealed + longest -
                    static_cast<uint64_t>(static_cast<double>(slow.share) * static_cast<double>(sealed)));
  return plan;
}

namespace {

// Activations of one chunk, what attention keeps of its rows, its widest input once more for the products (in bf16, in
// one part or two, which is what f32 takes too; 16-bit integers have sums beside them; 8-bit ones are kept twice, with
// scales and sums), its logits, and what the products' panels and the attention tiles of each worker take.
uint64_t scratch_bytes(const Model& model, int64_t chunk_tokens, int threads) {
  const ModelConfig& config = model.config;
  const bool in_bytes = model.precision == Precision::int8;
  const uint64_t parts = in_bytes || model.precision == Precision::fast ? 1 : 2;
  const uint64_t worker_bytes = parts * 8 << 20, input_bytes = in_bytes ? 4 : 2 + parts;
  const uint64_t hidden = static_cast<uint64_t>(config.hidden), ffn = static_cast<uint64_t>(config.ffn);
  const uint64_t head_dim = static_cast<uint64_t>(config.head_dim);
  const uint64_t q_width = static_cast<uint64_t>(config.query_heads) * head_dim;
  const uint64_t kv_width = static_cast<uint64_t>(config.kv_heads) * head_dim;
  const uint64_t row_floats = 2 * (hidden + q_width + kv_width + ffn) + static_cast<uint64_t>(config.rotary) +
                              2 * static_cast<uint64_t>(config.query_heads);
  const uint64_t row_bytes = row_floats * sizeof(float) + std::max({hidden, q_width, ffn}) * input_bytes;
  const uint64_t rows = static_cast<uint64_t>(std::max<int64_t>(chunk_tokens, 1));
  return rows * row_bytes + static_cast<uint64_t>(config.vocab) * sizeof(float) +
         static_cast<uint64_t>(threads) * worker_bytes;
}

// What those have who make the longest segment of a prompt.
uint64_t clustering_scratch_bytes(const KvShape& shape, const SessionParams& params, int64_t tokens,
                                  int workers) {
  const PolicyParams& policy = params.policy_params;
  const int64_t sealed = SegmentGrid(policy).sealed_end(tokens) - kSinkTokens;
  if (sealed <= 0) return 0;
  const auto longest = static_cast<int32_t>(std::min<int64_t>(policy.segment_tokens, sealed));
  return building_bytes(shape, *params.policy, policy, longest, workers);
}

// The same on a device, and what is pinned for its queue: activations of one chunk and the logits of a row, the
// workspaces of products, lookups and indexing, lists that go along.
uint64_t device_scratch_bytes(const Runtime& runtime, const Model& model, const KvShape& shape,
                              const SessionParams& params, int64_t rows, int64_t tokens) {
  const ModelConfig& config = model.config;
  const auto number = [](int64_t count) { return static_cast<uint64_t>(count); };
  const auto with_headroom = [](uint64_t bytes) { return bytes + bytes / 4; };
  const int64_t q_width = int64_t{config.query_heads} * config.head_dim,
                kv_width = int64_t{config.kv_heads} * config.head_dim;
  const uint64_t row_floats = number(2 * (int64_t{config.hidden} + q_width + kv_width + config.ffn) +
                                     2 * int64_t{config.rotary} + config.query_heads + 2);
  constexpr uint64_t kAlignment = uint64_t{16} * 256;
  const uint64_t logits = number(config.vocab) * sizeof(float);

  const bool sparse = params.sparse_read_tokens > 0;
  const int64_t rows_looked_up = sparse ? std::min<int64_t>(rows, params.sparse_read_tokens) : 1;
  const auto lookups = static_cast<int32_t>(
      std::min<int64_t>(std::max<int64_t>(rows_looked_up * config.kv_heads, 1), kMostLookups));
  int64_t partitions = 0;  // of a lookup
  const SegmentGrid grid(params.policy_params);
  int64_t at = kSinkTokens;
  for (const int64_t end = grid.sealed_end(tokens); at < end;) {
    const SegmentSpan span = grid.longest(at, end);
    if (!span.tokens) break;
    partitions += params.policy->most_partitions(params.policy_params, span.tokens);
    at = span.end();
  }
  const auto most_partitions = static_cast<int32_t>(partitions);

  uint64_t work = 0;
  const auto meet = [&](const Matrix& weight, int64_t count, bool alike, int64_t vocab = 0) {
    const DeviceWork of{.rows = count,
                        .inputs = weight.cols,
                        .outputs = weight.rows,
                        .weights = weight.type,
                        .rows_alike = alike,
                        .vocab = vocab,
                        .lookups = lookups,
                        .group = config.group(),
                        .head_dim = config.head_dim,
                        .most_partitions = most_partitions};
    work = std::max(work, runtime.device->table.work_bytes(of));
  };
  for (const LayerWeights& layer : model.weights.layers)
    for (const Matrix* weight : {&layer.q, &layer.o, &layer.up, &layer.down}) meet(*weight, rows, false);
  meet(model.weights.output, 1, true, config.vocab);

  const uint64_t scores = number(config.group()) * sizeof(float);
  const uint64_t lists = number(std::min<int64_t>(lookups, sparse ? lookups : config.kv_heads)) *
                         number(partitions) * (2 * sizeof(PartitionRef) + 2 * sizeof(KvRun) + scores);
  // What goes along has its place here and there, in pieces of which each is twice as large as the one before; and so
  // has what comes back, which is little.
  constexpr uint64_t kLeastPiece = uint64_t{1} << 20;
  const int64_t runs = decode_tail_tokens(params.policy_params) / kBlockTokens + 3;
  const uint64_t all_lists = number(config.layers * rows_looked_up * config.kv_heads) *
                             (sizeof(Lookup) + number(runs) * sizeof(KvRun));
  const uint64_t staged = 4 * kLeastPiece + 4 * std::min<uint64_t>(all_lists, kMostStaged);
  const auto longest = static_cast<int32_t>(std::min<int64_t>(tokens, params.policy_params.segment_tokens));
  // Likewise of the queue that indexes.
  const uint64_t listed = count_indexed_planes(shape) * number(longest) * 2 * sizeof(KvRun);
  return number(rows) * row_floats * sizeof(float) + kAlignment + logits + with_headroom(logits) + work +
         with_headroom(lists) + staged + 4 * kLeastPiece + 4 * std::min<uint64_t>(listed, kMostListed) +
         (longest > 0 ? indexing_bytes(shape, *params.policy, params.policy_params, longest) : 0);
}

// Where segments are in the slow tier: what a chunk reads of them, and what its rows keep from part to part.
uint64_t past_scratch_bytes(const Model& model, const KvShape& shape, int64_t chunk_tokens, int64_t tokens) {
  return Past::most_bytes(shape, tokens) + static_cast<uint64_t>(chunk_tokens) *
                                               static_cast<uint64_t>(model.config.query_heads) * 2 *
                                               sizeof(float);
}

uint64_t most_tokens(const KvShape& shape, const SessionParams& params, int64_t chunk_tokens,
                     uint64_t pool_budget_bytes, const SlowPlan* slow, int workers) {
  int64_t fits = 0, too_many = INT32_MAX;
  while (fits + 1 < too_many) {
    const int64_t middle = fits + (too_many - fits) / 2;
    const KvPlan plan = plan_kv(shape, *params.policy, params.policy_params, chunk_tokens, middle,
                                slow ? *slow : SlowPlan(), workers);
    (fits_budgets(plan, params.kv_budget_bytes, pool_budget_bytes, slow) ? fits : too_many) = middle;
  }
  return static_cast<uint64_t>(fits);
}

// What a step keeps of one layer: every page that it looks up and that is read from the file without a frame to go to,
// which are all of them where a policy looks up whole segments, and what says where they lie.
uint64_t lookup_scratch_bytes(const KvShape& shape, const SessionParams& params, int64_t tokens) {
  const PolicyParams& policy = params.policy_params;
  const int64_t indexed = SegmentGrid(policy).sealed_end(tokens) - kSinkTokens;
  if (indexed <= 0) return 0;
  // What rows of a sparse read share is read once.
  const int64_t rows = std::max(params.sparse_read_tokens, 1);
  const int64_t looked_up =
      std::min(rows * looked_up_tokens(*params.policy, policy, indexed), in_frames(policy, indexed));
  const auto pages = static_cast<uint64_t>(shape.kv_heads * ((looked_up + kFrameTokens - 1) / kFrameTokens));
  const uint64_t page_bytes = 2 * kFrameTokens * shape.head_bytes();
  return pages * (page_bytes + 2 * (sizeof(KvRun) + sizeof(ReadRequest))) + SpillReader::kMostBuffer;
}

// The session's own budget counts what it holds; the pool also sees what is taken for a moment. slow: null where there
// is no slow tier.
bool fits_budgets(const KvPlan& plan, uint64_t session_budget_bytes, uint64_t pool_budget_bytes,
                  const SlowPlan* slow) {
  if (slow)
    return plan.slow_bytes <= slow->room && plan.fast_bytes <= pool_budget_bytes &&
           (session_budget_bytes == 0 || plan.fast_bytes <= session_budget_bytes);
  const uint64_t held = plan.kv_bytes + plan.index_bytes;
  return held + plan.sealing_bytes <= pool_budget_bytes &&
         (session_budget_bytes == 0 || held <= session_budget_bytes);
}

}  // namespace
}  // namespace wi
