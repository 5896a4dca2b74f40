// Products of few rows with weights as they are stored: bound by reading the weights, each once for up to 32 rows.
// Tensor cores multiply, weights as their right operand, which lanes load from device memory into the registers
// where it is needed (operands.cuh), rows as their left one. There eight rows are sixteen: each f32 number is a sum
// of two of f16, after its part of a row was scaled by a power of two (of three of bf16 by weights in bf16), and
// each of the two has a row of its own, so that products are exact to 2^-21 of themselves or better. What 32
// inputs give is scaled and added in f32.
//
// Inputs are cut into eight slices, each summed by one warp, and the eight sums are added up as a tree. More rows
// are shared by more warps, so that rows are read and split up less often: of up to 8 rows a block has all slices
// of few outputs, of 32 two slices of four times as many, and the last of the blocks of an output adds up what
// they left. Which slice is whose changes no bit: the order of each sum depends on the inputs' count alone.
//
// Limits: a block reads its slices of all rows, 4 bytes a number, from L2: for 32 rows half as many bytes as those
// of weights in f16, twice as many as of those of 4 bits. Splitting rows up takes a third of the instructions of up
// to eight; of weights of 4 bits instructions take longer than reading.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/operands.cuh"

namespace wi::cuda {

constexpr int kProductThreads = 256;
constexpr int kProductWarps = kProductThreads / kWarp;
constexpr int kSlices = 8;       // of the inputs
constexpr int kMostRows = 32;    // of a launch
constexpr int kMostTiles = 256;  // of a launch whose blocks leave sums to each other

struct ProductArgs {
  const float* in;  // (rows, inputs)
  int rows, inputs;
  uint32_t first_tile;  // of each part
  MatmulPart parts[3];
  MatmulWorkspace workspace;
};

// A block's work: kSlices / kSplits slices of kOutputs outputs, a warp that of kTiles_ times 8 outputs of one.
template <DType kType, int kRows_, int kTiles_>
struct ProductShape {
  static constexpr int kRows = kRows_, kTiles = kTiles_;
  static constexpr int kSplits = kRows / 8, kOwn = kSlices / kSplits;
  static constexpr int kOutputs = kProductWarps / kOwn * kTiles * 8;
  // Up to eight rows have two blocks to a multiprocessor (128 registers a thread). More have one, and where registers
  // are left, weights of two steps on their way.
  static constexpr int kBlocks = kRows > 8 ? 1 : 2;
  static constexpr int kAhead = kRows == 16 && !OperandOf<kType>::kQuantised ? 2 : 1;
  static constexpr int kPairs = kType == DType::bf16 ? 2 : 1;  // of numbers that an f32 number is a sum of
  // A step's rows as left operands: of each slice, half, eight rows, pair and sixteen inputs a vector a lane. Behind
  // them the scales of each slice and row, and of each half the sums of its inputs. Twice, by turns.
  static constexpr int kScalesAt = kOwn * 2 * (kRows / 8) * kPairs * 2 * kWarp * 16;
  static constexpr int kBufferBytes = kScalesAt + 3 * kOwn * kRows * 4;
  // Sums of each slice and row, apart so that a warp's are in different banks.
  static constexpr int kSumStride = kOutputs + 8;
  static constexpr int kSumBytes = kOwn * kRows * kSumStride * 4;
  static constexpr size_t kShared = 2 * kBufferBytes > kSumBytes ? 2 * kBufferBytes : kSumBytes;
  static_assert(kOwn * kRows * 4 == kProductThreads && kShared <= kLeastShared);
  static_assert(kBlocks * (kShared + 1024) <= 164 << 10);

  // Where a buffer has a slice's operands.
  __device__ __forceinline__ static int operand_at(int own, int half, int eight) {
    return (((own * 2 + half) * (kRows / 8) + eight) * kPairs * 2 * kWarp + lane_of()) * 16;
  }
};

struct StepsOfSlice {
  __device__ StepsOfSlice(int inputs, int slice) {
    const int steps = (inputs + kStepInputs - 1) / kStepInputs;
    first = slice * steps / kSlices;
    count = (slice + 1) * steps / kSlices - first;
  }
  int first, count;
};

// A thread's share of the rows: of one slice's step and one row what one lane of each half needs.
template <DType kType, class Shape>
struct RowShare {
  __device__ RowShare(const ProductArgs& args)
      : own(static_cast<int>(threadIdx.x) / (4 * Shape::kRows)),
        row(static_cast<int>(threadIdx.x) / 4 % Shape::kRows),
        steps(args.inputs, static_cast<int>(blockIdx.z) * Shape::kOwn + own) {}

  // Zeros beyond the last row and input.
  __device__ __forceinline__ void load(const ProductArgs& args, int step) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        const int column = (steps.first + step) * kStepInputs + half * 32 + operand_column<kType>(i);
        const bool there = row < args.rows && step < steps.count && column < args.inputs;
        const float4 four =
            there ? *reinterpret_cast<const float4*>(args.in + int64_t{row} * args.inputs + column)
                  : make_float4(0, 0, 0, 0);
        in[half][i] = four.x;
        in[half][i + 1] = four.y;
        in[half][i + 2] = four.z;
        in[half][i + 3] = four.w;
      }
  }

  __device__ __forceinline__ void split(std::byte* buffer) {
    float* const scales = reinterpret_cast<float*>(buffer + Shape::kScalesAt) + own * Shape::kRows + row;
    if constexpr (OperandOf<kType>::kMinimums) store_sums(scales + Shape::kOwn * Shape::kRows);
    if constexpr (OperandOf<kType>::kNumbers == DType::f16) scale(scales);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      std::byte* const to = buffer + Shape::operand_at(own, half, row / 8);
#pragma unroll
      for (int pair = 0; pair < Shape::kPairs; pair++) {
        const uint4 first = next_term(in[half]);
        const uint4 second = pair == 0 ? next_term(in[half]) : make_uint4(0, 0, 0, 0);
        uint4* const at = reinterpret_cast<uint4*>(to + pair * 2 * kWarp * 16);
        at[0] = make_uint4(first.x, second.x, first.y, second.y);
        at[kWarp] = make_uint4(first.z, second.z, first.w, second.w);
      }
    }
  }

 private:
  __device__ __forceinline__ void store_sums(float* to) const {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 8; i++) sum += in[half][i];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      if (lane_of() % 4 == 0) to[half * Shape::kOwn * Shape::kRows] = sum;
    }
  }

  // By a power of two, so that the largest of a row's step is in [2^14, 2^15), and all that is lost of the others
  // is below 2^-40 of it. Its inverse is stored.
  __device__ __forceinline__ void scale(float* inverse) {
    float most = 0;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(in[half][i]));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
    const unsigned exponent = max(__float_as_uint(most) >> 23, 15u);
    const float by = __uint_as_float((268 - exponent) << 23);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int i = 0; i < 8; i++) in[half][i] = __fmul_rn(in[half][i], by);
    if (lane_of() % 4 == 0) *inverse = __uint_as_float((exponent - 14) << 23);
  }

  // Eight numbers rounded, and what that left of them.
  __device__ __forceinline__ static uint4 next_term(float (&numbers)[8]) {
    constexpr DType kNumbers = OperandOf<kType>::kNumbers;
    const uint4 words = pack_eight<kNumbers>(numbers);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      union {
        unsigned word;
        Kv<kNumbers> pair[2];
      } rounded;
      rounded.word = i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
      numbers[2 * i] -= to_float(rounded.pair[0]);
      numbers[2 * i + 1] -= to_float(rounded.pair[1]);
    }
    return words;
  }

  int own, row;
  StepsOfSlice steps;
  float in[2][8];
};

// A warp's sums, of its outputs over its slice for all rows: a lane has of each eight rows by eight outputs those of
// row lane / 4 and outputs 2 · (lane % 4) and the next.
template <DType kType, class Shape>
struct WarpProducts {
  using Of = OperandOf<kType>;
  static constexpr int kEights = Shape::kRows / 8;

  __device__ WarpProducts(const ProductArgs& args, const MatmulPart& part, int64_t first_output)
      : own(warp_of() % Shape::kOwn),
        output(warp_of() / Shape::kOwn * Shape::kTiles * 8),
        inputs(args.inputs),
        steps(args.inputs, static_cast<int>(blockIdx.z) * Shape::kOwn + own) {
    const auto stride = static_cast<int64_t>(row_bytes(kType, inputs));
#pragma unroll
    for (int i = 0; i < Shape::kTiles; i++)  // outputs beyond the last are that one again: nobody stores them
      rows[i] = static_cast<const std::byte*>(part.weight.data) +
                min(first_output + output + i * 8 + lane_of() / 4, part.weight.rows - 1) * stride;
  }

  // kPlace: of a step among those on their way, step % kAhead. Beyond the slice's last step that one again, which is
  // at hand.
  template <int kPlace>
  __device__ __forceinline__ void load(int step, int half) {
    const int own_step = steps.first + max(min(step, steps.count - 1), 0);
#pragma unroll
    for (int i = 0; i < Shape::kTiles; i++) weights[kPlace][i].load(rows[i], own_step, half, inputs);
  }

  // A later step's weights are on their way as soon as those in their place are unpacked, or, where they are the
  // operand themselves, multiplied. Steps beyond the slice's last add zeros.
  template <int kPlace>
  __device__ __forceinline__ void multiply(const std::byte* buffer, int step) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      unsigned pairs[Shape::kTiles][4];
      Factors factors[Shape::kTiles];
#pragma unroll
      for (int tile = 0; tile < Shape::kTiles; tile++) {
        weights[kPlace][tile].unpack(steps.first + step, half, pairs[tile]);
        factors[tile].load(weights[kPlace][tile], steps.first + step, half);
      }
      if constexpr (Of::kQuantised) load<kPlace>(step + Shape::kAhead, half);
#pragma unroll
      for (int eight = 0; eight < kEights; eight++) multiply_eight(buffer, half, eight, pairs, factors);
      if constexpr (!Of::kQuantised) load<kPlace>(step + Shape::kAhead, half);
    }
  }

 private:
  // Of the two outputs whose sums a lane has: what the lanes that loaded their weights know.
  struct Factors {
    __device__ __forceinline__ void load(const LaneWeights<kType>& weights, int step, int half) {
      if constexpr (Of::kQuantised) {
        constexpr int kScales = Of::kScaleEach16 ? 2 : 1;
#pragma unroll
        for (int sixteen = 0; sixteen < kScales; sixteen++)
          of_own_outputs(weights.scale(step, half, sixteen), scales[sixteen]);
      }
      if constexpr (Of::kMinimums) of_own_outputs(weights.minimum(step, half), minimums);
    }
    __device__ __forceinline__ static void of_own_outputs(float loaded, float (&out)[2]) {
#pragma unroll
      for (int i = 0; i < 2; i++) out[i] = __shfl_sync(kAllLanes, loaded, (lane_of() % 4 * 2 + i) * 4);
    }

    float scales[2][2], minimums[2];
  };

  __device__ __forceinline__ void multiply_eight(const std::byte* buffer, int half, int eight,
                                                 const unsigned (&pairs)[Shape::kTiles][4],
                                                 const Factors (&factors)[Shape::kTiles]) {
    const uint4* const from = reinterpret_cast<const uint4*>(buffer + Shape::operand_at(own, half, eight));
    unsigned left[Shape::kPairs][2][4];
#pragma unroll
    for (int i = 0; i < Shape::kPairs * 2; i++) {
      const uint4 words = from[i * kWarp];
      left[i / 2][i % 2][0] = words.x;
      left[i / 2][i % 2][1] = words.y;
      left[i / 2][i % 2][2] = words.z;
      left[i / 2][i % 2][3] = words.w;
    }
    const float* const of_row = reinterpret_cast<const float*>(buffer + Shape::kScalesAt) +
                                own * Shape::kRows + eight * 8 + lane_of() / 4;
    float inverse = 1, in_sum = 0;
    if constexpr (Of::kNumbers == DType::f16) inverse = *of_row;
    if constexpr (Of::kMinimums) in_sum = of_row[(1 + half) * Shape::kOwn * Shape::kRows];
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; tile++) {
      float part[4] = {};
#pragma unroll
      for (int sixteen = 0; sixteen < 2; sixteen++) {
#pragma unroll
        for (int pair = 0; pair < Shape::kPairs; pair++)
          multiply_add<Of::kNumbers>(part, left[pair][sixteen], pairs[tile][2 * sixteen],
                                     pairs[tile][2 * sixteen + 1]);
        if (!Of::kScaleEach16 && sixteen == 0) continue;
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float& sum = sums[tile][eight][i];
          float both = part[i] + part[i + 2];
          if constexpr (Of::kQuantised) both *= factors[tile].scales[Of::kScaleEach16 ? sixteen : 0][i];
          sum = fmaf(both, inverse, sum);
          if constexpr (Of::kMinimums) sum = fmaf(factors[tile].minimums[i], in_sum, sum);
          part[i] = part[i + 2] = 0;
        }
      }
    }
  }

 public:
  __device__ __forceinline__ void store(float* to) const {
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; tile++)
#pragma unroll
      for (int eight = 0; eight < kEights; eight++)
        *reinterpret_cast<float2*>(to + (own * Shape::kRows + eight * 8 + lane_of() / 4) * Shape::kSumStride +
                                   output + tile * 8 + lane_of() % 4 * 2) =
            make_float2(sums[tile][eight][0], sums[tile][eight][1]);
  }

  int own, output, inputs;  // the slice of the block's, the first output of the block's
  StepsOfSlice steps;
  const std::byte* rows[Shape::kTiles];
  LaneWeights<kType> weights[Shape::kAhead][Shape::kTiles];
  float sums[Shape::kTiles][kEights][2] = {};
};

// Of kCount numbers, two by two.
template <int kCount, class Get>
__device__ __forceinline__ float tree_sum(Get&& get) {
  float sums[kCount];
#pragma unroll
  for (int i = 0; i < kCount; i++) sums[i] = get(i);
#pragma unroll
  for (int apart = 1; apart < kCount; apart *= 2)
#pragma unroll
    for (int i = 0; i < kCount; i += 2 * apart) sums[i] += sums[i + apart];
  return sums[0];
}

// Whether the block is the last of those of its outputs, which then sees what the others left.
__device__ __forceinline__ bool last_of(uint32_t* arrived, int count, int* scratch) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    *scratch = atomicAdd(arrived, 1u) == static_cast<uint32_t>(count) - 1;
    if (*scratch) *arrived = 0;
  }
  __syncthreads();
  __threadfence();
  return *scratch != 0;
}

template <class Shape>
__device__ __forceinline__ void add_up(const ProductArgs& args, const MatmulPart& part, int64_t first_output,
                                       const float* sums, int* scratch) {
  constexpr int kOutputs = Shape::kOutputs;
  const int numbers = args.rows * kOutputs;
  const auto for_each = [&](auto&& use) {
    for (int at = static_cast<int>(threadIdx.x); at < numbers; at += kProductThreads) use(at);
  };
  const auto of_block = [&](int at) {
    return tree_sum<Shape::kOwn>([&](int own) {
      return sums[(own * Shape::kRows + at / kOutputs) * Shape::kSumStride + at % kOutputs];
    });
  };
  const auto store = [&](int at, float sum) {
    const int64_t output = first_output + at % kOutputs;
    if (output >= part.weight.rows) return;
    float* const out = part.out + int64_t{at / kOutputs} * part.weight.rows + output;
    const float with_bias = part.bias ? sum + part.bias[output] : sum;
    *out = part.accumulate ? *out + with_bias : with_bias;
  };
  if constexpr (Shape::kSplits == 1) {
    for_each([&](int at) { store(at, of_block(at)); });
  } else {
    constexpr int kLeft = Shape::kRows * kOutputs;
    const unsigned tile = blockIdx.y * gridDim.x + blockIdx.x;
    float* const left = args.workspace.partials + size_t{tile} * Shape::kSplits * kLeft;
    for_each([&](int at) { left[blockIdx.z * kLeft + at] = of_block(at); });
    if (!last_of(args.workspace.arrived + tile, Shape::kSplits, scratch)) return;
    for_each([&](int at) {
      store(at, tree_sum<Shape::kSplits>([&](int split) { return __ldcg(left + split * kLeft + at); }));
    });
  }
}

// A block's weights to L2 while kernels before it still run, which use little of the memory's bandwidth as a rule: they
// are nobody's output. Of more rows than eight a block has but a part of each, and begins later.
template <DType kType, class Shape>
__device__ __forceinline__ void fetch_weights_ahead(const ProductArgs& args) {
  if constexpr (Shape::kSplits > 1) return;
  constexpr int64_t kMost = 128 << 10;
  const MatmulPart& part = args.parts[blockIdx.y];
  const int64_t first = (int64_t{args.first_tile} + blockIdx.x) * Shape::kOutputs;
  const auto stride = static_cast<int64_t>(row_bytes(kType, args.inputs));
  const int64_t bytes = min(min(part.weight.rows - first, int64_t{Shape::kOutputs}) * stride, kMost);
  const std::byte* const from = static_cast<const std::byte*>(part.weight.data) + first * stride;
  for (int64_t at = int64_t{threadIdx.x} * 128; at < bytes; at += kProductThreads * 128)
    fetch_ahead(from + at);
}

template <DType kType, int kRows, int kTiles>
__global__ void __launch_bounds__(kProductThreads, ProductShape<kType, kRows, kTiles>::kBlocks)
    matmul_decode_kernel(ProductArgs args) {
  fetch_weights_ahead<kType, ProductShape<kType, kRows, kTiles>>(args);
  in_turn();
  using Shape = ProductShape<kType, kRows, kTiles>;
  __shared__ int scratch;
  std::byte* const memory = block_memory();
  const MatmulPart& part = args.parts[blockIdx.y];
  const int64_t first_output = (int64_t{args.first_tile} + blockIdx.x) * Shape::kOutputs;
  if (first_output >= part.weight.rows) return;

  WarpProducts<kType, Shape> products(args, part, first_output);
  RowShare<kType, Shape> share(args);
  share.load(args, 0);
  products.template load<0>(0, 0);
  products.template load<0>(0, 1);
  if constexpr (Shape::kAhead == 2) {
    products.template load<1>(1, 0);
    products.template load<1>(1, 1);
  }
  const auto multiply_step = [&]<int kPlace>(int step) {
    std::byte* const buffer = memory + step % 2 * Shape::kBufferBytes;
    share.split(buffer);
    share.load(args, step + 1);
    if constexpr (Shape::kOwn == kProductWarps)
      __syncwarp();  // a warp's rows are its own
    else
      __syncthreads();
    products.template multiply<kPlace>(buffer, step);
  };
  const int steps =
      ((args.inputs + kStepInputs - 1) / kStepInputs + kSlices - 1) / kSlices;  // of the longest slice
#pragma unroll 1
  for (int step = 0; step < steps; step += Shape::kAhead) {
    multiply_step.template operator()<0>(step);
    if constexpr (Shape::kAhead == 2)
      if (step + 1 < steps) multiply_step.template operator()<1>(step + 1);
  }
  __syncthreads();
  float* const sums = reinterpret_cast<float*>(memory);
  products.store(sums);
  __syncthreads();
  add_up<Shape>(args, part, first_output, sums, &scratch);
}

constexpr int64_t tiles_of(int64_t outputs, int each) { return (outputs + each - 1) / each; }

template <DType kType, int kRows, int kTiles>
cudaError_t multiply(cudaStream_t stream, ProductArgs args, int parts) {
  using Shape = ProductShape<kType, kRows, kTiles>;
  int64_t most = 0;
  for (int p = 0; p < parts; p++) most = args.parts[p].weight.rows > most ? args.parts[p].weight.rows : most;
  const int64_t tiles = tiles_of(most, Shape::kOutputs),
                at_once = Shape::kSplits == 1 ? tiles : kMostTiles * (kMostRows / kRows) / parts;
  cudaError_t error = cudaSuccess;
  for (int64_t first = 0; first < tiles && error == cudaSuccess; first += at_once) {
    args.first_tile = static_cast<uint32_t>(first);
    const dim3 grid(static_cast<unsigned>(tiles - first < at_once ? tiles - first : at_once),
                    static_cast<unsigned>(parts), Shape::kSplits);
    error = launch(matmul_decode_kernel<kType, kRows, kTiles>, grid, kProductThreads, Shape::kShared, stream,
                   args);
  }
  return error;
}

template <DType kType>
cudaError_t multiply_rows(cudaStream_t stream, const ProductArgs& args, int parts) {
  if constexpr (kType == DType::f32) {
    return cudaErrorInvalidValue;
  } else {
    constexpr int64_t kWide =
        12288;  // outputs: 32 a block fill a device's multiprocessors two or three times
    int64_t outputs = 0;
    for (int p = 0; p < parts; p++) outputs += args.parts[p].weight.rows;
    if (args.rows > 16) return multiply<kType, 32, 4>(stream, args, parts);
    if (args.rows > 8) return multiply<kType, 16, 4>(stream, args, parts);
    if constexpr (!OperandOf<kType>::kQuantised) {  // whose take more registers
      if (outputs >= kWide) return multiply<kType, 8, 4>(stream, args, parts);
    }
    return multiply<kType, 8, 2>(stream, args, parts);
  }
}

// Weights of one type.
static cudaError_t multiply_alike(cudaStream_t stream, const MatmulArgs& args,
                                  const MatmulWorkspace& workspace) {
  const int64_t inputs = args.parts[0].weight.cols;
  for (int64_t row = 0; row < args.rows; row += kMostRows) {
    const int64_t rows = args.rows - row < kMostRows ? args.rows - row : kMostRows;
    ProductArgs some = {
        args.in + row * inputs, static_cast<int>(rows), static_cast<int>(inputs), 0, {}, workspace};
    for (int p = 0; p < args.part_count; p++) {
      some.parts[p] = args.parts[p];
      some.parts[p].out += row * args.parts[p].weight.rows;
    }
    const cudaError_t error = with_weights(args.parts[0].weight.type, [&]<DType kType>() {
      return multiply_rows<kType>(stream, some, args.part_count);
    });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Most that a launch leaves: of kMostRows by the outputs of a block.
constexpr int64_t kLeftOfTile =
    int64_t{kMostRows / 8} * kMostRows * ProductShape<DType::f16, kMostRows, 4>::kOutputs;

MatmulWorkspaceSize matmul_workspace(const MatmulArgs& args) {
  if (args.rows <= 8) return {0, 0};
  using Least = ProductShape<DType::f16, 16, 4>;  // leaves less, but of more tiles
  using Most = ProductShape<DType::f16, kMostRows, 4>;
  int64_t most = 0;
  for (int p = 0; p < args.part_count; p++)
    most = args.parts[p].weight.rows > most ? args.parts[p].weight.rows : most;
  const auto at_most = [&](int outputs, int64_t limit) {
    const int64_t tiles = args.part_count * tiles_of(most, outputs);
    return static_cast<size_t>(tiles < limit ? tiles : limit);
  };
  return {at_most(Most::kOutputs, kMostTiles) * static_cast<size_t>(kLeftOfTile),
          at_most(Least::kOutputs, kMostTiles * (kMostRows / Least::kRows))};
}

cudaError_t matmul_decode(cudaStream_t stream, const MatmulArgs& args, const MatmulWorkspace& workspace) {
  for (int p = 0; p < args.part_count; p++)
    if (args.parts[p].weight.cols % 8 || !reads_weights(args.parts[p].weight.type))
      return cudaErrorInvalidValue;
  for (int p = 0; p < args.part_count;) {
    // Neighbours of one type go together.
    const DType type = args.parts[p].weight.type;
    MatmulArgs some = {args.in, args.rows, {}, 0};
    for (; p < args.part_count && args.parts[p].weight.type == type; p++)
      some.parts[some.part_count++] = args.parts[p];
    const cudaError_t error =
        type == DType::f32 ? matmul_decode_f32(stream, some) : multiply_alike(stream, some, workspace);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace wi::cuda
