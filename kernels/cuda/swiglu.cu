// SwiGLU's element-wise half: out = silu(gate) * up, with silu(x) = x / (1 + e^-x).
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace wi::cuda {

// Below -87 e^-x leaves f32; silu there is 0 to f32's precision of any sum it enters.
__device__ __forceinline__ float silu_times(float gate, float up) {
  return gate / (1 + expf(fminf(-gate, 87.0f))) * up;
}

template <bool kVector>
__global__ void __launch_bounds__(256) swiglu_kernel(SwigluArgs args) {
  in_turn();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if constexpr (kVector) {
    if (i >= args.count / 4) return;
    const float4 gate = reinterpret_cast<const float4*>(args.gate)[i];
    const float4 up = reinterpret_cast<const float4*>(args.up)[i];
    reinterpret_cast<float4*>(args.out)[i] = make_float4(silu_times(gate.x, up.x), silu_times(gate.y, up.y),
                                                         silu_times(gate.z, up.z), silu_times(gate.w, up.w));
  } else {
    if (i < args.count) args.out[i] = silu_times(args.gate[i], args.up[i]);
  }
}

cudaError_t swiglu(cudaStream_t stream, const SwigluArgs& args) {
  const auto at_16 = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  const bool vector = args.count % 4 == 0 && at_16(args.gate) && at_16(args.up) && at_16(args.out);
  const int64_t threads = vector ? args.count / 4 : args.count;
  return launch(vector ? swiglu_kernel<true> : swiglu_kernel<false>,
                static_cast<unsigned>((threads + 255) / 256), 256, 0, stream, args);
}

}  // namespace wi::cuda
