#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_cores.cuh"
#include "tests/cuda_emulation/twins.h"

namespace wi::cuda_test {

using namespace cuda;

constexpr int kSide = 16, kNumbers = kSide * kSide;
constexpr int kRowBytes = padded_row(kSide * 2);

template <DType kType>
__device__ float number_of(uint16_t bits) {
  union {
    uint16_t bits;
    Kv<kType> number;
  } both;
  both.bits = bits;
  return to_float(both.number);
}

// A matrix of 16 x 16 to the block's memory, row by row, or column by column.
__device__ void place(std::byte* to, const uint16_t* from, bool by_column) {
  for (int i = lane_of(); i < kNumbers; i += kWarp) {
    const int row = i / kSide, column = i % kSide;
    const int at = by_column ? column * kRowBytes + row * 2 : row * kRowBytes + column * 2;
    *reinterpret_cast<uint16_t*>(to + at) = from[i];
  }
}

// A product of 16 x 16 by 16 x 16: two of 16 x 8.
template <DType kType>
__device__ void multiply(const std::byte* left, const std::byte* right, bool transposed, const float* before,
                         float* out) {
  unsigned a[4], b[4];
  load_matrices(left_row(left, kRowBytes), a);
  if (transposed)
    load_matrices_transposed(right_transposed_row(right, kRowBytes), b);
  else
    load_matrices(right_row(right, kRowBytes), b);
  for (int half = 0; half < 2; half++) {
    float sums[4];
    const auto place_of = [&](int part) {
      return (lane_of() / 4 + part / 2 * 8) * kSide + half * 8 + lane_of() % 4 * 2 + part % 2;
    };
    for (int part = 0; part < 4; part++) sums[part] = before[place_of(part)];
    multiply_add<kType>(sums, a, b[half * 2], b[half * 2 + 1]);
    for (int part = 0; part < 4; part++) out[place_of(part)] = sums[part];
  }
}

template <DType kType>
__global__ void __launch_bounds__(kWarp) products_kernel(ProductTwins twins) {
  in_turn();
  std::byte* const left = block_memory();
  std::byte* const by_column = left + kSide * kRowBytes;
  std::byte* const by_row = by_column + kSide * kRowBytes;
  const size_t first = size_t{blockIdx.x} * kNumbers;
  place(left, twins.left + first, false);
  place(by_column, twins.right + first, true);
  place(by_row, twins.right + first, false);
  __syncthreads();
  multiply<kType>(left, by_column, false, twins.before + first, twins.out + first);
  multiply<kType>(left, by_row, true, twins.before + first, twins.transposed + first);
  for (int i = lane_of(); i < kNumbers; i += kWarp) {
    const int row = i / kSide, column = i % kSide;
    float sum = twins.before[first + i];
    for (int input = 0; input < kSide; input++)
      sum += number_of<kType>(twins.left[first + row * kSide + input]) *
             number_of<kType>(twins.right[first + input * kSide + column]);
    twins.plain[first + i] = sum;
  }
}

cudaError_t products(cudaStream_t stream, const ProductTwins& twins) {
  const auto kernel = twins.type == DType::f16 ? products_kernel<DType::f16> : products_kernel<DType::bf16>;
  return launch(kernel, twins.count, kWarp, 3 * kSide * kRowBytes, stream, twins);
}

__global__ void __launch_bounds__(kWarp) byte_products_kernel(ByteProductTwins twins) {
  in_turn();
  constexpr int kInputs = 32, kStride = padded_row(kInputs);
  std::byte *const left = block_memory(), *const right = left + kSide * kStride;
  const size_t first = size_t{blockIdx.x} * kSide * kInputs, sums_first = size_t{blockIdx.x} * kNumbers;
  for (int i = lane_of(); i < kSide * kInputs; i += kWarp) {
    const int at = i / kInputs * kStride + i % kInputs;
    *reinterpret_cast<int8_t*>(left + at) = twins.left[first + i];
    *reinterpret_cast<int8_t*>(right + at) = twins.right[first + i];
  }
  __syncthreads();
  unsigned a[4], b[4];
  load_matrices(left_row(left, kStride), a);
  load_matrices(right_row(right, kStride), b);
  for (int half = 0; half < 2; half++) {
    int sums[4];
    const auto place_of = [&](int part) {
      return sums_first + (lane_of() / 4 + part / 2 * 8) * kSide + half * 8 + lane_of() % 4 * 2 + part % 2;
    };
    for (int part = 0; part < 4; part++) sums[part] = twins.before[place_of(part)];
    multiply_add_bytes(sums, a, b[half * 2], b[half * 2 + 1]);
    for (int part = 0; part < 4; part++) twins.out[place_of(part)] = sums[part];
  }
  for (int i = lane_of(); i < kNumbers; i += kWarp) {
    int32_t sum = twins.before[sums_first + i];
    for (int input = 0; input < kInputs; input++)
      sum +=
          twins.left[first + i / kSide * kInputs + input] * twins.right[first + i % kSide * kInputs + input];
    twins.plain[sums_first + i] = sum;
  }
}

cudaError_t products(cudaStream_t stream, const ByteProductTwins& twins) {
  return launch(byte_products_kernel, twins.count, kWarp, 2 * kSide * padded_row(32), stream, twins);
}

__global__ void __launch_bounds__(kWarp) matrices_kernel(MatrixTwins twins) {
  in_turn();
  constexpr int kRows = 4 * 8, kBytes = padded_row(16);
  std::byte* const memory = block_memory();
  const uint16_t* const own = twins.matrices + size_t{blockIdx.x} * kRows * 8;
  for (int i = lane_of(); i < kRows * 8; i += kWarp)
    *reinterpret_cast<uint16_t*>(memory + i / 8 * kBytes + i % 8 * 2) = own[i];
  __syncthreads();
  unsigned loaded[4], transposed[4];
  load_matrices(memory + lane_of() * kBytes, loaded);
  load_matrices_transposed(memory + lane_of() * kBytes, transposed);
  const size_t first = (size_t{blockIdx.x} * kWarp + static_cast<size_t>(lane_of())) * 4;
  const int row = lane_of() / 4, column = lane_of() % 4 * 2;
  for (int m = 0; m < 4; m++) {
    const uint16_t* const matrix = own + m * 64;
    twins.loaded[first + m] = loaded[m];
    twins.transposed[first + m] = transposed[m];
    twins.loaded_plainly[first + m] = matrix[row * 8 + column] | unsigned{matrix[row * 8 + column + 1]} << 16;
    twins.transposed_plainly[first + m] = matrix[column * 8 + row] | unsigned{matrix[(column + 1) * 8 + row]}
                                                                         << 16;
  }
}

cudaError_t matrices(cudaStream_t stream, const MatrixTwins& twins) {
  return launch(matrices_kernel, twins.count, kWarp, 32 * padded_row(16), stream, twins);
}

template <DType kType>
__global__ void __launch_bounds__(256)
    pairs_kernel(const float* in, uint32_t* packed, uint32_t* plain, int count) {
  in_turn();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  packed[i] = pack_pair<kType>(in[2 * i], in[2 * i + 1]);
  union {
    Kv<kType> number;
    uint16_t bits;
  } low, high;
  low.number = from_float<Kv<kType>>(in[2 * i]);
  high.number = from_float<Kv<kType>>(in[2 * i + 1]);
  plain[i] = low.bits | unsigned{high.bits} << 16;
}

cudaError_t pairs(cudaStream_t stream, DType type, const float* in, uint32_t* packed, uint32_t* plain,
                  int count) {
  const auto kernel = type == DType::f16 ? pairs_kernel<DType::f16> : pairs_kernel<DType::bf16>;
  return launch(kernel, (count + 255) / 256, 256, 0, stream, in, packed, plain, count);
}

__global__ void __launch_bounds__(256)
    bytes_kernel(const uint32_t* codes, const int32_t* numbers, const int32_t* before, int32_t* out,
                 int32_t* plain, int count) {
  in_turn();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  out[i] = dot_bytes(codes[i], numbers[i], before[i]);
  int32_t sum = before[i];
  for (int shift = 0; shift < 32; shift += 8)
    sum += static_cast<int32_t>(codes[i] >> shift & 255) * static_cast<int8_t>(numbers[i] >> shift & 255);
  plain[i] = sum;
}

cudaError_t byte_products(cudaStream_t stream, const uint32_t* codes, const int32_t* numbers,
                          const int32_t* before, int32_t* out, int32_t* plain, int count) {
  return launch(bytes_kernel, (count + 255) / 256, 256, 0, stream, codes, numbers, before, out, plain, count);
}

__global__ void __launch_bounds__(256) loads_kernel(const uint4* in, uint4* out, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const auto by = [&]<class T>(int which, const T* from) {
    T* const to = reinterpret_cast<T*>(out + int64_t{which} * count + i);
    for (size_t n = 0; n < sizeof(uint4) / sizeof(T); n++) to[n] = load_line(from + n);
  };
  by(0, in + i);
  by(1, reinterpret_cast<const uint2*>(in + i));
  by(2, reinterpret_cast<const unsigned*>(in + i));
  by(3, reinterpret_cast<const unsigned short*>(in + i));
}

cudaError_t loads(cudaStream_t stream, const uint4* in, uint4* out, int count) {
  return launch(loads_kernel, (count + 255) / 256, 256, 0, stream, in, out, count);
}

// A thread's number comes by its neighbour's copy, and two groups are on their way at a time.
__global__ void __launch_bounds__(256) copies_kernel(const uint4* in, uint4* out, int count) {
  in_turn();
  constexpr int kEach = 256, kRounds = 4;
  uint4* const memory = reinterpret_cast<uint4*>(block_memory());
  const int first = static_cast<int>(blockIdx.x) * kEach * kRounds, thread = static_cast<int>(threadIdx.x);
  const auto start = [&](int round) {
    const int at = first + round * kEach + thread;
    if (round < kRounds && at < count) copy_16_ahead(memory + round % 2 * kEach + thread, in + at);
    commit_copies();
  };
  start(0);
  for (int round = 0; round < kRounds; round++) {
    start(round + 1);
    wait_for_copies<1>();
    __syncthreads();
    const int other = thread ^ 1, at = first + round * kEach + other;
    if (at < count) out[at] = memory[round % 2 * kEach + other];
    __syncthreads();
  }
}

cudaError_t copies(cudaStream_t stream, const uint4* in, uint4* out, int count) {
  return launch(copies_kernel, (count + 1023) / 1024, 256, 2 * 256 * sizeof(uint4), stream, in, out, count);
}

}  // namespace wi::cuda_test
