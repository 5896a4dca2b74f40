// y = x · Wᵀ for a few rows, the products of a decode step: reads every weight once, as it is stored. The
// parts (q, k, v; gate, up) are cut into runs of outputs that all workers share, with one barrier.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul_decode.cpp"
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include "hwy/highway.h"
#include "kernels/cpu/activations.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

constexpr int kOutputs = 4;  // of a tile

// All rows against O outputs, R rows at a time from `row` on.
template <class Dot, int O, int R>
HWY_INLINE void MultiplyRows(const MatmulPart& part, int64_t output, const Activations& in, int64_t& row) {
  const size_t stride = row_bytes(part.weight.type, part.weight.cols);
  const uint8_t* weights =
      static_cast<const uint8_t*>(part.weight.data) + static_cast<size_t>(output) * stride;
  for (; row + R <= in.rows; row += R) {
    float sums[O * R];
    Dot::template Run<O, R>({weights, stride, row, sums}, in);
    for (int o = 0; o < O; o++)
      for (int r = 0; r < R; r++) {
        float* out = part.out + (row + r) * part.weight.rows + output + o;
        const float value = part.bias ? sums[o * R + r] + part.bias[output + o] : sums[o * R + r];
        *out = part.accumulate ? *out + value : value;
      }
  }
}

template <class Dot, int O>
HWY_INLINE void MultiplyTile(const MatmulPart& part, int64_t output, const Activations& in) {
  int64_t row = 0;
  if constexpr (Dot::kMaxRows == 8) MultiplyRows<Dot, O, 8>(part, output, in, row);
  MultiplyRows<Dot, O, 4>(part, output, in, row);
  MultiplyRows<Dot, O, 2>(part, output, in, row);
  MultiplyRows<Dot, O, 1>(part, output, in, row);
}

template <class Dot>
void MultiplyType(const MatmulPart& part, int64_t begin, int64_t end, const Activations& in) {
  int64_t output = begin;
  for (; output + kOutputs <= end; output += kOutputs) MultiplyTile<Dot, kOutputs>(part, output, in);
  for (; output < end; output++) MultiplyTile<Dot, 1>(part, output, in);
}

// Outputs [begin, end) of one part for all rows.
void MultiplyOutputs(const MatmulPart& part, int64_t begin, int64_t end, const Activations& in) {
  switch (part.weight.type) {
    case DType::f32:
      return MultiplyType<FloatDot<float>>(part, begin, end, in);
    case DType::f16:
      return MultiplyType<FloatDot<hwy::float16_t>>(part, begin, end, in);
    case DType::bf16:
      return MultiplyType<FloatDot<hwy::bfloat16_t>>(part, begin, end, in);
    case DType::q8_0:
      return MultiplyType<Dot<Q8_0>>(part, begin, end, in);
    case DType::q4_0:
      return MultiplyType<Dot<Q4_0>>(part, begin, end, in);
    case DType::q4_1:
      return MultiplyType<Dot<Q4_1>>(part, begin, end, in);
    case DType::q5_0:
      return MultiplyType<Dot<Q5_0>>(part, begin, end, in);
    case DType::q5_1:
      return MultiplyType<Dot<Q5_1>>(part, begin, end, in);
    case DType::q2_k:
      return MultiplyType<Dot<Q2K>>(part, begin, end, in);
    case DType::q3_k:
      return MultiplyType<Dot<Q3K>>(part, begin, end, in);
    case DType::q4_k:
      return MultiplyType<Dot<Q4K>>(part, begin, end, in);
    case DType::q5_k:
      return MultiplyType<Dot<Q5K>>(part, begin, end, in);
    case DType::q6_k:
      return MultiplyType<Dot<Q6K>>(part, begin, end, in);
  }
}

// As Activations::bytes has them: of 32 numbers the high bytes, then the low ones.
void SplitBytes(const int16_t* quants, int64_t groups, int8_t* bytes) {
  for (int64_t g = 0; g < groups; g++, quants += 32, bytes += 64)
    for (int i = 0; i < 32; i++) {
      const int32_t high = (quants[i] + 128) >> 8;
      bytes[i] = static_cast<int8_t>(high);
      bytes[32 + i] = static_cast<int8_t>(quants[i] - 256 * high);
    }
}

// Row `row` of the input as 16-bit integers. Infinity or NaN among 256 columns makes their scale NaN, so
// that it shows in the output as it would in f32.
void QuantizeRow(const Activations& in, int64_t row) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<int32_t, decltype(d)> d32;
  const hn::Rebind<int16_t, decltype(d)> d16;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  const float* values = in.values + row * in.cols;
  int16_t* quants = in.quants + row * in.groups * 32;
  int8_t* bytes = in.bytes + row * in.groups * 64;
  float* scales = in.scales + row * in.groups;
  float* sums32 = in.sums32 + row * in.groups;
  float* sums16 = in.sums16 + row * in.groups * 2;
  const int64_t groups = in.cols / 32;
  for (int64_t first = 0; first < groups; first += 8) {
    const int64_t last = HWY_MIN(first + 8, groups);
    auto peak = hn::Zero(d), poison = hn::Zero(d);
    for (int64_t i = first * 32; i < last * 32; i += kLanes) {
      const auto v = hn::LoadU(d, values + i);
      peak = hn::Max(peak, hn::Abs(v));
      poison = hn::MulAdd(v, hn::Zero(d), poison);
    }
    const float largest = hn::GetLane(hn::MaxOfLanes(d, peak));
    const bool is_zero = largest < 1e-30f;  // its inverse would not be finite
    const float scale = (is_zero ? 0 : largest / kLargestQuant) + hn::GetLane(hn::SumOfLanes(d, poison));
    const auto inverse = hn::Set(d, is_zero ? 0 : kLargestQuant / largest);
    for (int64_t i = first * 32; i < last * 32; i += 16) {
      auto sum = hn::Zero(d32);
      for (int64_t j = i; j < i + 16; j += kLanes) {
        const auto q = hn::DemoteTo(d16, hn::NearestInt(hn::Mul(hn::LoadU(d, values + j), inverse)));
        hn::Store(q, d16, quants + j);
        sum = hn::Add(sum, hn::PromoteTo(d32, q));
      }
      sums16[i / 16] = static_cast<float>(hn::GetLane(hn::SumOfLanes(d32, sum))) * scale;
    }
    if constexpr (kPairsOfBytes) SplitBytes(quants + first * 32, last - first, bytes + first * 64);
    for (int64_t g = first; g < last; g++) {
      scales[g] = scale;
      sums32[g] = sums16[2 * g] + sums16[2 * g + 1];
    }
  }
  for (int64_t g = groups; g < in.groups; g++) scales[g] = sums32[g] = 0;
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

namespace wi::cpu {

HWY_EXPORT(MultiplyOutputs);
HWY_EXPORT(QuantizeRow);

namespace {

// A task reads about this much: long enough to hide its start, short enough to even out the workers.
constexpr int64_t kTaskBytes = 512 << 10;
constexpr int64_t kWholeTiles = 4;  // outputs of a tile

Activations prepare(const Stream& stream, const MatmulArgs& args) {
  Activations in{.values = args.in, .rows = args.rows, .cols = args.parts[0].weight.cols};
  bool quantised = false;
  for (int32_t p = 0; p < args.part_count; p++)
    quantised |= format_of(args.parts[p].weight.type).elements > 1;
  if (!quantised) return in;
  in.place(stream.shared_array<std::byte>(Activations::bytes_for(in.rows, in.cols)));
  if (in.rows * in.cols <= 32768) {  // shorter than a barrier
    for (int64_t row = 0; row < in.rows; row++) HWY_DYNAMIC_DISPATCH(QuantizeRow)(in, row);
  } else {
    stream.each(in.rows, [&](int64_t row, int) { HWY_DYNAMIC_DISPATCH(QuantizeRow)(in, row); });
  }
  return in;
}

}  // namespace

void matmul_decode(const Stream& stream, const MatmulArgs& args) {
  const Activations in = prepare(stream, args);
  int64_t step[3], tasks_before[4] = {};
  for (int32_t p = 0; p < args.part_count; p++) {
    const Matrix& weight = args.parts[p].weight;
    const int64_t bytes = static_cast<int64_t>(row_bytes(weight.type, weight.cols));
    step[p] = std::max<int64_t>(kTaskBytes / std::max<int64_t>(bytes, 1) / kWholeTiles, 1) * kWholeTiles;
    tasks_before[p + 1] = tasks_before[p] + (weight.rows + step[p] - 1) / step[p];
  }
  stream.each(tasks_before[args.part_count], [&](int64_t task, int) {
    int32_t p = 0;
    while (task >= tasks_before[p + 1]) p++;
    const MatmulPart& part = args.parts[p];
    const int64_t begin = (task - tasks_before[p]) * step[p];
    const int64_t end = std::min(begin + step[p], part.weight.rows);
    HWY_DYNAMIC_DISPATCH(MultiplyOutputs)(part, begin, end, in);
  });
}

}  // namespace wi::cpu
#endif
