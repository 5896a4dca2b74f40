#include <stdexcept>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "tests/cuda_emulation/test_kernels.h"

namespace wi::cuda_test {

using cuda::launch;

__global__ void barrier_kernel(bool wrong, int* out) {
  __shared__ int numbers[64];
  numbers[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (!wrong) __syncthreads();
  out[threadIdx.x] = numbers[63 - threadIdx.x];
}

__global__ void late_write_kernel(bool wrong, int* out) {
  int* numbers = reinterpret_cast<int*>(cuda::block_memory());
  numbers[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = numbers[(threadIdx.x + 1) % 64];
  if (!wrong) __syncthreads();
  numbers[threadIdx.x] = 0;
}

__global__ void warp_barrier_kernel(bool wrong, int* out) {
  __shared__ int numbers[64];
  numbers[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (!wrong) __syncwarp();
  out[threadIdx.x] = numbers[threadIdx.x ^ 1];
}

// A warp's barrier is none for the other's lanes.
__global__ void narrow_barrier_kernel(bool wrong, int* out) {
  __shared__ int numbers[64];
  numbers[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (wrong)
    __syncwarp();
  else
    __syncthreads();
  out[threadIdx.x] = numbers[threadIdx.x ^ 32];
}

__global__ void unwritten_kernel(bool wrong, int* out) {
  int* numbers = reinterpret_cast<int*>(cuda::block_memory());
  if (!wrong || threadIdx.x != 5) numbers[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = numbers[threadIdx.x];
}

// Bytes of a word are each of their own writer.
__global__ void unwritten_byte_kernel(bool wrong, int* out) {
  unsigned char* bytes = reinterpret_cast<unsigned char*>(cuda::block_memory());
  if (!wrong || threadIdx.x != 5) bytes[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = reinterpret_cast<int*>(bytes)[threadIdx.x / 4];
}

__global__ void byte_in_word_kernel(bool wrong, int* out) {
  __shared__ int words[64];
  words[threadIdx.x] = 0;
  __syncthreads();
  reinterpret_cast<unsigned char*>(words)[threadIdx.x * 4 + threadIdx.x % 4] = 1;
  if (!wrong) __syncthreads();
  out[threadIdx.x] = words[63 - threadIdx.x];
}

__global__ void half_after_word_kernel(bool wrong, int* out) {
  __shared__ int words[64];
  words[threadIdx.x] = 0;
  __syncthreads();
  out[threadIdx.x] = words[threadIdx.x];
  if (!wrong) __syncthreads();
  reinterpret_cast<unsigned short*>(words)[127 - threadIdx.x] = 1;
}

// A word that is no number's own: of it two bytes of each of two.
__global__ void across_words_kernel(bool wrong, int* out) {
  std::byte* const bytes = cuda::block_memory() + threadIdx.x * 8;
  const uint32_t number = threadIdx.x;
  memcpy(bytes + 2, &number, 4);
  __syncthreads();
  uint32_t got;
  memcpy(&got, bytes + (wrong && threadIdx.x == 9 ? 3 : 2), 4);
  out[threadIdx.x] = static_cast<int>(got);
}

__global__ void atomic_kernel(bool wrong, int* out) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  if (wrong && threadIdx.x == 40)
    sum = sum + 1;
  else
    atomicAdd(&sum, 1);
  __syncthreads();
  out[threadIdx.x] = sum;
}

__global__ void bounds_kernel(bool wrong, int* out) { out[threadIdx.x + (wrong ? 1000 : 0)] = 0; }

__global__ void read_bounds_kernel(bool wrong, int* out) {
  const int number = out[wrong ? 1024 : 0];
  __syncthreads();
  if (threadIdx.x == 0) out[1] = number;
}

__global__ void shared_bounds_kernel(bool wrong, int* out) {
  int* numbers = reinterpret_cast<int*>(cuda::block_memory());
  numbers[threadIdx.x + (wrong ? 1 : 0)] = 0;
  __syncthreads();
  out[threadIdx.x] = 0;
}

__global__ void host_kernel(bool wrong, int* out, int* host) {
  if (wrong) *host = 1;
  out[threadIdx.x] = 0;
}

__global__ void missing_thread_kernel(bool wrong, int* out) {
  if (wrong && threadIdx.x == 7) return;
  __syncthreads();
  out[threadIdx.x] = 0;
}

__global__ void missing_lane_kernel(bool wrong, int* out) {
  if (wrong && threadIdx.x == 33) return;
  out[threadIdx.x] = __shfl_xor_sync(cuda::kAllLanes, 1, 1);
}

__global__ void parted_kernel(bool wrong, int* out) {
  if (wrong && threadIdx.x % 2)
    out[threadIdx.x] = __any_sync(cuda::kAllLanes, 1);
  else
    out[threadIdx.x] = __shfl_sync(cuda::kAllLanes, 1, 0);
}

__global__ void throwing_kernel(bool wrong, int* out) {
  if (wrong && threadIdx.x == 3) throw std::runtime_error("an error of its own");
  out[threadIdx.x] = 0;
}

const Mistake kMistakes[] = {
    {"barrier_kernel", "reads shared memory",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(barrier_kernel, 3, 64, 0, s, wrong, out);
     }},
    {"late_write_kernel", "in a race with",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(late_write_kernel, 3, 64, 256, s, wrong, out);
     }},
    {"warp_barrier_kernel", "reads shared memory",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(warp_barrier_kernel, 3, 64, 0, s, wrong, out);
     }},
    {"narrow_barrier_kernel", "reads shared memory",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(narrow_barrier_kernel, 3, 64, 0, s, wrong, out);
     }},
    {"unwritten_kernel", "that nobody has written",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(unwritten_kernel, 3, 64, 256, s, wrong, out);
     }},
    {"unwritten_byte_kernel", "that nobody has written",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(unwritten_byte_kernel, 3, 64, 64, s, wrong, out);
     }},
    {"byte_in_word_kernel", "in a race with",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(byte_in_word_kernel, 3, 64, 0, s, wrong, out);
     }},
    {"half_after_word_kernel", "in a race with",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(half_after_word_kernel, 3, 64, 0, s, wrong, out);
     }},
    {"across_words_kernel", "that nobody has written",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(across_words_kernel, 3, 64, 512, s, wrong, out);
     }},
    {"atomic_kernel", "in a race with a write",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(atomic_kernel, 3, 64, 0, s, wrong, out);
     }},
    {"bounds_kernel", "writes device memory out of bounds",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(bounds_kernel, 3, 64, 0, s, wrong, out);
     }},
    {"read_bounds_kernel", "reads device memory out of bounds",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(read_bounds_kernel, 3, 64, 0, s, wrong, out);
     }},
    {"shared_bounds_kernel", "writes shared memory out of bounds",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(shared_bounds_kernel, 3, 64, 256, s, wrong, out);
     }},
    {"host_kernel", "writes host memory",
     [](cudaStream_t s, bool wrong, int* out, int* host) {
       return launch(host_kernel, 3, 64, 0, s, wrong, out, host);
     }},
    {"missing_thread_kernel", "waits at __syncthreads for ever: thread (7, 0, 0) has returned",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(missing_thread_kernel, 3, 64, 0, s, wrong, out);
     }},
    {"missing_lane_kernel", "waits at __shfl_xor_sync for ever",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(missing_lane_kernel, 3, 64, 0, s, wrong, out);
     }},
    {"parted_kernel", "other lanes of its warp at",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(parted_kernel, 3, 64, 0, s, wrong, out);
     }},
    {"throwing_kernel", "throws: an error of its own",
     [](cudaStream_t s, bool wrong, int* out, int*) {
       return launch(throwing_kernel, 3, 64, 0, s, wrong, out);
     }},
};
const int kMistakeCount = sizeof(kMistakes) / sizeof(kMistakes[0]);

__global__ void block_sums_kernel(const int* in, int* out) {
  __shared__ int sums[32];
  const int number = in[blockIdx.x * blockDim.x + threadIdx.x];
  const int of_warp = __reduce_add_sync(cuda::kAllLanes, number);
  if (cuda::lane_of() == 0) sums[cuda::warp_of()] = of_warp;
  __syncthreads();
  if (cuda::warp_of() != 0) return;
  int sum = cuda::lane_of() < static_cast<int>(blockDim.x) / 32 ? sums[cuda::lane_of()] : 0;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(cuda::kAllLanes, sum, step);
  if (cuda::lane_of() == 0) out[blockIdx.x] = sum;
}
cudaError_t block_sums(cudaStream_t stream, const int* in, int* out, int blocks, int threads) {
  return launch(block_sums_kernel, blocks, threads, 0, stream, in, out);
}

__global__ void warp_operations_kernel(const int* in, int* out) {
  const unsigned all = cuda::kAllLanes;
  const int i = static_cast<int>(threadIdx.x), count = static_cast<int>(blockDim.x);
  const int number = in[i];
  const int results[] = {static_cast<int>(__ballot_sync(all, number > 0)),
                         __any_sync(all, number == 3) + 2 * __all_sync(all, number >= -100),
                         __shfl_up_sync(all, number, 3),
                         __shfl_sync(all, number, i + 5),
                         __shfl_xor_sync(all, number, 9),
                         __reduce_max_sync(all, number),
                         __shfl_down_sync(all, number, 2, 8),
                         static_cast<int>(__shfl_xor_sync(all, static_cast<double>(number) * 2, 1))};
  for (int r = 0; r < 8; r++) out[r * count + i] = results[r];
}
cudaError_t warp_operations(cudaStream_t stream, const int* in, int* out, int threads) {
  return launch(warp_operations_kernel, 1, threads, 0, stream, in, out);
}

__global__ void count_kernel(const int* in, int* count, int* largest) {
  __shared__ int here;
  if (threadIdx.x == 0) here = 0;
  __syncthreads();
  atomicAdd(&here, 1);
  atomicMax(largest, in[blockIdx.x * blockDim.x + threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(count, here);
}
cudaError_t count_and_largest(cudaStream_t stream, const int* in, int* count, int* largest, int blocks) {
  return launch(count_kernel, blocks, 96, 0, stream, in, count, largest);
}

__global__ void write_one_kernel(int* out) {
  if (threadIdx.x == 0) *out = 1;
}

cudaError_t write_one(cudaStream_t stream, int* out, size_t shared_bytes, bool asks) {
  if (asks) return launch(write_one_kernel, 1, 32, shared_bytes, stream, out);
  cudaLaunchConfig_t config = {};
  config.gridDim = 1;
  config.blockDim = 32;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, write_one_kernel, out);
}

__global__ void times_three_kernel(int* out, int number) {
  if (threadIdx.x == 0) *out = *out * 3 + number;
}
cudaError_t times_three_plus(cudaStream_t stream, int* out, int number) {
  return launch(times_three_kernel, 1, 32, 0, stream, out, number);
}

__global__ void neighbours_kernel(int* in, int* out) {
  in[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = in[(threadIdx.x + 1) % blockDim.x];
}
cudaError_t neighbours_without_barrier(cudaStream_t stream, int* in, int* out, int threads) {
  return launch(neighbours_kernel, 1, threads, 0, stream, in, out);
}

__global__ void convert_floats_kernel(const float* in, uint16_t* half, uint16_t* brain, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  half[i] = __half_as_ushort(__float2half_rn(in[i]));
  brain[i] = __bfloat16_as_ushort(__float2bfloat16_rn(in[i]));
}
cudaError_t convert_floats(cudaStream_t stream, const float* in, uint16_t* half, uint16_t* brain, int count) {
  return launch(convert_floats_kernel, (count + 255) / 256, 256, 0, stream, in, half, brain, count);
}

__global__ void convert_bits_kernel(float* half, float* brain) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  half[i] = __half2float(__ushort_as_half(static_cast<unsigned short>(i)));
  brain[i] = __bfloat162float(__ushort_as_bfloat16(static_cast<unsigned short>(i)));
}
cudaError_t convert_bits(cudaStream_t stream, float* half, float* brain) {
  return launch(convert_bits_kernel, 256, 256, 0, stream, half, brain);
}

}  // namespace wi::cuda_test
