// The blocks policy (Quest: pages of consecutive tokens, ranked by what their keys can score at most), an
// opponent to measure the others against. A page's index is the least and the greatest key of each dimension;
// no key in it scores above Σ max(q · least, q · greatest). Retrieves the best pages until the budget is
// reached, by the bounds' softmax summed over the query heads of the group, and estimates nothing.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/policy/blocks.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/attend-inl.h"
#include "kernels/policy.h"

#ifndef WI_CPU_POLICY_BLOCKS
#define WI_CPU_POLICY_BLOCKS
namespace wi::cpu {
struct BlocksHeader {
  uint32_t magic;
  uint32_t version;
  int32_t tokens;
  int32_t head_dim;
  int32_t kv;            // DType
  int32_t reserved[11];  // to 64 bytes
};
// Behind the header: (pages, {least, greatest}, head_dim) KV dtype, which holds them exactly.
}  // namespace wi::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace {

// Bounds of one page for a block of heads: the sum over dimensions, still lane by lane.
template <DType kKv, int kHeads>
HWY_INLINE void bound_page(Floats d, const float* HWY_RESTRICT query, const std::byte* page, size_t head_dim,
                           Vector (&sums)[kHeads]) {
  const size_t stride = padded_dim(head_dim);
  const std::byte* greatest = page + row_bytes(kKv, static_cast<int64_t>(head_dim));
  const auto add = [&](size_t i, Vector low, Vector high) HWY_ATTR {
    for (int h = 0; h < kHeads; h++) {
      const Vector q = hn::LoadU(d, query + h * stride + i);
      sums[h] = hn::Add(sums[h], hn::Max(hn::Mul(q, low), hn::Mul(q, high)));
    }
  };
  for (int h = 0; h < kHeads; h++) sums[h] = hn::Zero(d);
  size_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) add(i, load_kv<kKv>(d, page, i), load_kv<kKv>(d, greatest, i));
#if HWY_TARGET != HWY_SCALAR
  if (i < head_dim) add(i, load_half_kv<kKv>(d, page, i), load_half_kv<kKv>(d, greatest, i));
#endif
}

// Fills lookup.scores with the bounds of all pages.
void bound_one(const LookupArgs& args, const Lookup& lookup, float* query) {
  const Floats d;
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  const size_t count = static_cast<size_t>(lookup.partition_count);
  const size_t page_bytes = 2 * row_bytes(args.kv, args.head_dim);
  pack_query(lookup.query, args.group, head_dim, args.scale, query);
  for (int first = 0; first < args.group; first += kBlockHeads) {
    with_type_and_width(args.kv, block_width(args.group, first), [&]<DType kKv, int kHeads>() HWY_ATTR {
      float* scores = lookup.scores + first * count;
      for (int32_t s = 0; s < lookup.segment_count; s++) {
        const std::byte* page =
            static_cast<const std::byte*>(lookup.segments[s].index) + sizeof(BlocksHeader);
        for (int32_t p = 0; p < lookup.segments[s].partitions; p++, page += page_bytes, scores++) {
          Vector sums[kHeads];
          bound_page<kKv, kHeads>(d, query + first * padded_dim(head_dim), page, head_dim, sums);
          for (int h = 0; h < HWY_MIN(kHeads, args.group - first); h++)
            scores[h * count] = hn::GetLane(hn::SumOfLanes(d, sums[h]));
        }
      }
    });
  }
}

// rank = Σ over the group of softmax(scores); a score that is no number counts as none.
void rank_one(const LookupArgs& args, const Lookup& lookup, float* weights, float* rank) {
  const Floats d;
  const size_t count = static_cast<size_t>(lookup.partition_count);
  const size_t padded = (count + kLanes - 1) / kLanes * kLanes;
  std::memset(rank, 0, padded * sizeof(float));
  for (int h = 0; h < args.group; h++) {
    const float* scores = lookup.scores + h * count;
    float highest = kLowest;
    for (size_t i = 0; i < count; i++) highest = HWY_MAX(highest, scores[i]);
    for (size_t i = 0; i < padded; i++) weights[i] = i < count ? scores[i] - highest : -INFINITY;
    Vector sum = hn::Zero(d);
    for (size_t i = 0; i < padded; i += kLanes) {
      const Vector below = hn::LoadU(d, weights + i);
      const Vector weight = hn::IfThenElseZero(hn::Le(below, hn::Zero(d)), exp(d, below));
      sum = hn::Add(sum, weight);
      hn::StoreU(weight, d, weights + i);
    }
    const float all = hn::GetLane(hn::SumOfLanes(d, sum));
    const Vector share = hn::Set(d, all > 0 ? 1 / all : 0);
    for (size_t i = 0; i < padded; i += kLanes)
      hn::StoreU(hn::MulAdd(hn::LoadU(d, weights + i), share, hn::LoadU(d, rank + i)), d, rank + i);
  }
}

size_t query_floats_of(const LookupArgs& args) {
  return static_cast<size_t>(head_blocks(args.group)) * kBlockHeads * padded_dim(args.head_dim);
}

}  // namespace
}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <numeric>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/policy/pages.h"

namespace wi::cpu {
namespace {

HWY_EXPORT(bound_one);
HWY_EXPORT(rank_one);
HWY_EXPORT(query_floats_of);

constexpr uint32_t kMagic = 0x534b4c42;  // "BLKS"
constexpr uint32_t kVersion = 1;

BlocksHeader header_of(int32_t tokens, int32_t head_dim, DType kv) {
  BlocksHeader header = {};
  header.magic = kMagic;
  header.version = kVersion;
  header.tokens = tokens;
  header.head_dim = head_dim;
  header.kv = static_cast<int32_t>(kv);
  return header;
}

size_t index_bytes_for(int32_t tokens, int32_t head_dim, DType kv) {
  return sizeof(BlocksHeader) + static_cast<size_t>(page_count(tokens)) * 2 * row_bytes(kv, head_dim);
}

size_t index_capacity(const PolicyParams&, int32_t tokens, int32_t head_dim, DType kv) {
  return index_bytes_for(tokens, head_dim, kv);
}

IndexResult index(const Stream& stream, int worker, const IndexArgs& args) {
  if (args.tokens == 0) return {};
  keep_order(args);
  const int32_t dim = args.head_dim;
  const size_t row = row_bytes(args.kv, dim);
  float* least = stream.worker_array<float>(worker, static_cast<size_t>(dim) * 3);
  float* greatest = least + dim;
  float* key = greatest + dim;
  const BlocksHeader header = header_of(args.tokens, dim, args.kv);
  std::memcpy(args.index, &header, sizeof header);
  std::byte* page = static_cast<std::byte*>(args.index) + sizeof header;
  const std::byte* keys = static_cast<const std::byte*>(args.keys);
  for (int32_t first = 0; first < args.tokens; first += kPageTokens, page += 2 * row) {
    const int32_t end = std::min(args.tokens, first + kPageTokens);
    std::fill_n(least, dim, INFINITY);
    std::fill_n(greatest, dim, -INFINITY);
    for (int32_t t = first; t < end; t++) {
      from_kv(keys + static_cast<size_t>(t) * row, args.kv, key, dim);
      for (int32_t i = 0; i < dim; i++) {
        least[i] = std::min(least[i], key[i]);
        greatest[i] = std::max(greatest[i], key[i]);
      }
    }
    to_kv(least, args.kv, page, dim);
    to_kv(greatest, args.kv, page + row, dim);
  }
  return {.partitions = page_count(args.tokens), .index_bytes = index_bytes_for(args.tokens, dim, args.kv)};
}

void select_one(const Stream& stream, int worker, const LookupArgs& args, Lookup& lookup) {
  lookup.retrieved_count = lookup.estimated_count = 0;
  if (lookup.partition_count == 0) return;
  const size_t pages = static_cast<size_t>(lookup.partition_count);
  const size_t padded = (pages + 31) / 16 * 16;
  const size_t query_floats = (HWY_DYNAMIC_DISPATCH(query_floats_of)(args) + 15) / 16 * 16;
  float* query = stream.worker_array<float>(worker, query_floats + 3 * padded + 2 * pages);
  float* rank = query + query_floats;
  float* weights = rank + padded;
  int32_t* order = reinterpret_cast<int32_t*>(weights + padded);
  PartitionRef* refs = reinterpret_cast<PartitionRef*>(weights + 2 * padded);
  HWY_DYNAMIC_DISPATCH(bound_one)(args, lookup, query);
  HWY_DYNAMIC_DISPATCH(rank_one)(args, lookup, weights, rank);
  int32_t at = 0;
  for (int32_t s = 0; s < lookup.segment_count; s++)
    for (int32_t p = 0; p < lookup.segments[s].partitions; p++) refs[at++] = {.segment = s, .partition = p};

  // Only a segment's last page may be short, so that this many pages surely hold the budget.
  const int64_t budget = lookup.zones.budget;
  const int64_t enough =
      std::min<int64_t>(at, (budget + kPageTokens - 1) / kPageTokens + lookup.segment_count);
  std::iota(order, order + at, 0);
  std::partial_sort(order, order + enough, order + at,
                    [&](int32_t a, int32_t b) { return rank[a] != rank[b] ? rank[a] > rank[b] : a < b; });
  int64_t tokens = 0;
  for (int64_t i = 0; i < enough && tokens < budget; i++) {
    const PartitionRef ref = refs[order[i]];
    lookup.retrieved[lookup.retrieved_count++] = ref;
    tokens += page_tokens(lookup.segments[ref.segment], ref.partition);
  }
  count_zones(lookup, tokens,
              int64_t{lookup.partition_count} * 2 * static_cast<int64_t>(row_bytes(args.kv, args.head_dim)));
}

void select(const Stream& stream, const LookupArgs& args) {
  stream.each(args.count,
              [&](int64_t task, int worker) { select_one(stream, worker, args, args.lookups[task]); });
}

bool index_valid(const void* index, size_t bytes, int32_t partitions, int32_t tokens, int32_t head_dim,
                 DType kv) {
  BlocksHeader header;
  if (!index || bytes < sizeof header || partitions != page_count(tokens)) return false;
  std::memcpy(&header, index, sizeof header);
  const BlocksHeader expected = header_of(tokens, head_dim, kv);
  return !std::memcmp(&header, &expected, sizeof header) && bytes >= index_bytes_for(tokens, head_dim, kv);
}

}  // namespace

constinit const Policy blocks_policy = {
    .name = "blocks",
    .index_version = kVersion,
    .most_partitions = most_pages,
    .index_capacity = index_capacity,
    .index = index,
    .cut = nullptr,
    .partition_offsets = page_offsets,
    .select = select,
    .estimate = nullptr,
    .index_valid = index_valid,
    .description =
        "Reads the pages of 16 consecutive tokens whose keys may score highest by their bounds (Quest)",
};

}  // namespace wi::cpu

#endif  // HWY_ONCE
