// Scores every centroid in integers: 8-bit codes times 16-bit queries, summed in 32 bits, so that all
// instruction sets agree to the bit on what enters a rank. Where the processor multiplies groups of four
// bytes (AVX-512 VNNI), a query's number is two bytes, and a vector holds 64 products instead of 16.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/policy/wave_score.cpp"
// clang-format off: it must come before all others.
#include "kernels/cpu/byte_products.h"
// clang-format on
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/attend-inl.h"
#include "kernels/cpu/byte_products-inl.h"
#include "kernels/cpu/policy/wave_score.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace {

// One query head. Its numbers, as integers of `step`, are in (quads, heads of the block, 4): 16 bits, or the
// high bytes and then the low bytes of all heads.
struct Head {
  float step;
  int32_t bias;  // 128 · Σ numbers: codes are stored with 128 added
};
struct Query {
  const float* floats;     // (group, padded_dim) scaled
  const Head* heads;       // (group)
  const int16_t* numbers;  // (blocks of heads, quads, heads of the block, 4)
};

constexpr size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }
constexpr size_t quads_of(size_t head_dim) { return (head_dim + kWaveQuad - 1) / kWaveQuad; }

// Bytes of the three arrays, one after the other.
struct QueryBytes {
  QueryBytes(int32_t group, int32_t head_dim) {
    const size_t rows = static_cast<size_t>(group), dim = static_cast<size_t>(head_dim);
    floats = rounded(rows * padded_dim(dim) * sizeof(float));
    heads = rounded(rows * sizeof(Head));
    all = floats + heads + rounded(rows * quads_of(dim) * kWaveQuad * sizeof(int16_t));
  }
  size_t floats, heads, all;
};

Query query_at(const std::byte* base, int32_t group, int32_t head_dim) {
  const QueryBytes bytes(group, head_dim);
  return {reinterpret_cast<const float*>(base), reinterpret_cast<const Head*>(base + bytes.floats),
          reinterpret_cast<const int16_t*>(base + bytes.floats + bytes.heads)};
}

size_t query_bytes(int32_t group, int32_t head_dim) { return QueryBytes(group, head_dim).all; }

// The largest integer with which head_dim products of codes up to 255 stay below 2^31, and whose bytes are
// both within -128 … 127.
int32_t largest_number(size_t head_dim) {
  const int64_t most = int64_t{std::numeric_limits<int32_t>::max()} / (255 * static_cast<int64_t>(head_dim));
  return static_cast<int32_t>(HWY_MIN(most, int64_t{127 * 256 + 127}));
}

void pack(const float* from, int32_t group, int32_t head_dim, float scale, std::byte* out) {
  const size_t dim = static_cast<size_t>(head_dim);
  const size_t stride = padded_dim(dim), quads = quads_of(dim);
  const Query query = query_at(out, group, head_dim);
  std::memset(out, 0, query_bytes(group, head_dim));
  float* floats = const_cast<float*>(query.floats);
  Head* heads = const_cast<Head*>(query.heads);
  int16_t* block = const_cast<int16_t*>(query.numbers);
  for (int32_t first = 0; first < group; first += kBlockHeads) {
    const size_t width = static_cast<size_t>(HWY_MIN(kBlockHeads, group - first));
    for (size_t h = 0; h < width; h++) {
      const size_t head = static_cast<size_t>(first) + h;
      float largest = 0;
      for (size_t i = 0; i < dim; i++) {
        floats[head * stride + i] = from[head * dim + i] * scale;
        largest = HWY_MAX(largest, std::abs(floats[head * stride + i]));
      }
      heads[head].step = largest / static_cast<float>(largest_number(dim));
      // Of infinities and what is too small to divide by, no number is kept; NaN reaches the scores through
      // the centre.
      if (!(heads[head].step > 1e-30f) || !std::isfinite(heads[head].step)) continue;
      for (size_t i = 0; i < dim; i++) {
        const float exact = floats[head * stride + i] / heads[head].step;
        const int32_t number = exact == exact ? static_cast<int32_t>(std::lrint(exact)) : 0;
        heads[head].bias += 128 * number;
        int16_t* quad = block + i / kWaveQuad * width * kWaveQuad;
        if (kByteProducts) {
          int8_t* high = reinterpret_cast<int8_t*>(quad) + h * kWaveQuad + i % kWaveQuad;
          const int32_t high_byte = (number + 128) >> 8;
          high[0] = static_cast<int8_t>(high_byte);
          high[width * kWaveQuad] = static_cast<int8_t>(number - high_byte * 256);
        } else {
          quad[h * kWaveQuad + i % kWaveQuad] = static_cast<int16_t>(number);
        }
      }
    }
    block += quads * width * kWaveQuad;
  }
}

constexpr size_t kAheadBytes = 8192;  // of codes: scored in the time that memory takes to answer

using Ints = hn::Rebind<int32_t, Floats>;
using IntVector = hn::Vec<Ints>;

// Sums of kLanes clusters from the one numbered `column`, to scores.
template <class SumOf>
HWY_INLINE void store_scores(const WaveIndex& index, size_t column, const Head& head, float centre,
                             const SumOf& sum, float* scores) {
  const Floats d;
  const size_t count = static_cast<size_t>(index.clusters);
  if (column >= count) return;
  const Vector number = hn::ConvertTo(d, hn::Sub(sum, hn::Set(Ints(), head.bias)));
  const Vector unit = hn::Mul(hn::LoadU(d, index.scales + column), hn::Set(d, head.step));
  const Vector score = hn::MulAdd(number, unit, hn::Set(d, centre));
  if (HWY_LIKELY(count - column >= kLanes)) return hn::StoreU(score, d, scores + column);
  HWY_ALIGN float lookups[kLanes];
  hn::Store(score, d, lookups);
  std::memcpy(scores + column, lookups, (count - column) * sizeof(float));
}

#if HWY_TARGET == HWY_AVX3_DL

// Scores of a tile with kHeads query heads. ahead: as many bytes of codes to ask for.
template <int kHeads>
HWY_INLINE void score_tile(const int16_t* numbers, const Head* heads, const float* centre, size_t quads,
                           const WaveIndex& index, size_t first, const uint8_t* ahead, float* scores,
                           size_t plane) {
  const hn::ScalableTag<uint8_t> d8;
  IntVector high[kHeads], low[kHeads];
  HWY_UNROLL(16)
  for (int h = 0; h < kHeads; h++) high[h] = low[h] = hn::Zero(Ints());
  const uint8_t* codes = index.codes + first * quads * kWaveQuad;
  const int32_t* words = reinterpret_cast<const int32_t*>(numbers);
  for (size_t quad = 0; quad < quads; quad++, words += 2 * kHeads) {
    const auto c = hn::Load(d8, codes + quad * kWaveTile * kWaveQuad);
    prefetch_line(ahead + quad * kWaveTile * kWaveQuad);
    HWY_UNROLL(16)
    for (int h = 0; h < kHeads; h++) {
      add_byte_products(c, words[h], high[h]);
      add_byte_products(c, words[kHeads + h], low[h]);
    }
  }
  HWY_UNROLL(16)
  for (int h = 0; h < kHeads; h++) {
    const IntVector sum = hn::Add(hn::ShiftLeft<8>(high[h]), low[h]);
    store_scores(index, first, heads[h], centre[h], sum, scores + h * plane);
  }
}

#elif HWY_TARGET == HWY_SCALAR

template <int kHeads>
HWY_INLINE void score_tile(const int16_t* numbers, const Head* heads, const float* centre, size_t quads,
                           const WaveIndex& index, size_t first, const uint8_t*, float* scores,
                           size_t plane) {
  const uint8_t* codes = index.codes + first * quads * kWaveQuad;
  for (int h = 0; h < kHeads; h++)
    for (size_t c = 0; c < kWaveTile; c++) {
      int32_t sum = 0;
      for (size_t i = 0; i < quads * kWaveQuad; i++) {
        const size_t quad = i / kWaveQuad, in_quad = i % kWaveQuad;
        sum += codes[(quad * kWaveTile + c) * kWaveQuad + in_quad] *
               numbers[(quad * kHeads + h) * kWaveQuad + in_quad];
      }
      store_scores(index, first + c, heads[h], centre[h], hn::Set(Ints(), sum), scores + h * plane);
    }
}

#else

// A quad of codes of a few clusters is promoted to 16 bits and multiplied in pairs.
template <int kHeads>
HWY_INLINE void score_tile(const int16_t* numbers, const Head* heads, const float* centre, size_t quads,
                           const WaveIndex& index, size_t first, const uint8_t* ahead, float* scores,
                           size_t plane) {
  const Ints d32;
  const hn::RepartitionToNarrow<Ints> d16;
  const hn::Repartition<int64_t, Ints> d64;
  const hn::Rebind<uint8_t, decltype(d16)> d8;
  const uint8_t* codes = index.codes + first * quads * kWaveQuad;
  for (size_t column = 0; column < kWaveTile; column += kLanes) {
    // Two vectors, each with the pairs of half the clusters.
    IntVector even[2 * kHeads], odd[2 * kHeads];
    HWY_UNROLL(16)
    for (int i = 0; i < 2 * kHeads; i++) even[i] = odd[i] = hn::Zero(d32);
    for (size_t quad = 0; quad < quads; quad++) {
      const uint8_t* at = codes + (quad * kWaveTile + column) * kWaveQuad;
      const auto c0 = hn::PromoteTo(d16, hn::LoadU(d8, at));
      const auto c1 = hn::PromoteTo(d16, hn::LoadU(d8, at + 2 * kLanes));
      if (column == 0) prefetch_line(ahead + quad * kWaveTile * kWaveQuad);
      HWY_UNROLL(16)
      for (int h = 0; h < kHeads; h++) {
        int64_t four;
        std::memcpy(&four, numbers + (quad * kHeads + static_cast<size_t>(h)) * kWaveQuad, sizeof(four));
        const auto q = hn::BitCast(d16, hn::Set(d64, four));
        even[2 * h] = hn::ReorderWidenMulAccumulate(d32, c0, q, even[2 * h], odd[2 * h]);
        even[2 * h + 1] = hn::ReorderWidenMulAccumulate(d32, c1, q, even[2 * h + 1], odd[2 * h + 1]);
      }
    }
    HWY_UNROLL(16)
    for (int h = 0; h < kHeads; h++) {
      const IntVector lower = hn::RearrangeToOddPlusEven(even[2 * h], odd[2 * h]);
      const IntVector upper = hn::RearrangeToOddPlusEven(even[2 * h + 1], odd[2 * h + 1]);
      const IntVector sum = hn::Add(hn::ConcatEven(d32, upper, lower), hn::ConcatOdd(d32, upper, lower));
      store_scores(index, first + column, heads[h], centre[h], sum, scores + h * plane);
    }
  }
}

#endif

template <int kHeads>
void score_block(const Query& query, const int16_t* numbers, size_t first_head, size_t head_dim,
                 const WaveIndex& index, const uint8_t* next_codes, float* scores, size_t plane) {
  float centre[kHeads] = {};
  for (size_t h = 0; h < kHeads; h++)
    for (size_t i = 0; i < head_dim; i++)
      centre[h] += query.floats[(first_head + h) * padded_dim(head_dim) + i] * index.centre[i];
  const size_t quads = quads_of(head_dim);
  const size_t count = static_cast<size_t>(index.clusters);
  const size_t end = (count + kWaveTile - 1) / kWaveTile * kWaveTile * quads * kWaveQuad;
  for (size_t first = 0; first < count; first += kWaveTile) {
    // Hardware gives up at the end of each small page and knows nothing of the next segment.
    const size_t soon = first * quads * kWaveQuad + kAheadBytes;
    const uint8_t* ahead = soon < end ? index.codes + soon : next_codes + (soon - end);
    score_tile<kHeads>(numbers, query.heads + first_head, centre, quads, index, first, ahead, scores, plane);
  }
}

void score_segment(const std::byte* packed, int32_t group, int32_t head_dim, const WaveIndex& index,
                   const WaveIndex& next, float* scores, size_t plane) {
  const size_t dim = static_cast<size_t>(head_dim);
  const Query query = query_at(packed, group, head_dim);
  const size_t next_bytes = static_cast<size_t>(next.clusters) * sizeof(float);
  prefetch_row(reinterpret_cast<const std::byte*>(next.scales), next_bytes);
  prefetch_row(reinterpret_cast<const std::byte*>(next.sizes), next_bytes);
  prefetch_row(reinterpret_cast<const std::byte*>(next.extents), next_bytes);
  const int16_t* numbers = query.numbers;
  for (int32_t first = 0; first < group; first += kBlockHeads) {
    const size_t head = static_cast<size_t>(first);
    const int32_t width = HWY_MIN(kBlockHeads, group - first);
    float* plane_of = scores + head * plane;
    if constexpr (kBlockHeads == 4) {
      if (width == 4) score_block<4>(query, numbers, head, dim, index, next.codes, plane_of, plane);
      if (width == 3) score_block<3>(query, numbers, head, dim, index, next.codes, plane_of, plane);
      if (width == 2) score_block<2>(query, numbers, head, dim, index, next.codes, plane_of, plane);
    }
    if (width == 1) score_block<1>(query, numbers, head, dim, index, next.codes, plane_of, plane);
    numbers += quads_of(dim) * static_cast<size_t>(width) * kWaveQuad;
  }
}

}  // namespace
}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace wi::cpu {

HWY_EXPORT(query_bytes);
HWY_EXPORT(pack);
HWY_EXPORT(score_segment);

size_t score_query_bytes(int32_t group, int32_t head_dim) {
  return HWY_DYNAMIC_DISPATCH(query_bytes)(group, head_dim);
}
void pack_score_query(const float* query, int32_t group, int32_t head_dim, float scale, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(pack)(query, group, head_dim, scale, out);
}
void score_centroids(const std::byte* query, int32_t group, int32_t head_dim, const WaveIndex& index,
                     const WaveIndex& next, float* scores, size_t plane) {
  HWY_DYNAMIC_DISPATCH(score_segment)(query, group, head_dim, index, next, scores, plane);
}

}  // namespace wi::cpu

#endif  // HWY_ONCE
