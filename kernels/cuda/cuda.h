// The CUDA backend's operations, one source file each, named as the CPU's (kernels/cpu/cpu.h). Arguments are
// those of kernels/ops.h with every pointer into device memory, those inside of lists too: what changes from
// step to step is data there, so that a captured step can be replayed. Nothing allocates or waits; what is
// returned is whether the launch was taken.
#pragma once

#include <cuda_runtime.h>

#include "kernels/hot_pages.h"
#include "kernels/ops.h"

namespace wi::cuda {

// Weights of these types are read as they are; the rest are refused with cudaErrorInvalidValue.
constexpr bool reads_weights(DType type) {
  switch (type) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::q8_0:
    case DType::q4_0:
    case DType::q4_k:
    case DType::q5_k:
    case DType::q6_k:
      return true;
    default:
      return false;
  }
}

// Shared memory that every operation gets along with, and so what a device must give a block: compute capability
// 8.6, 8.9 and 12 give 99 KiB, 8.0 and 8.7 163, 9.0 and 10 227. What has a use for more is told how much there is.
constexpr size_t kLeastShared = size_t{99} << 10;
// That a multiprocessor of compute capability 9.0 has for the blocks that kernels claim, and what of it a block takes
// beside its own: everywhere a multiprocessor has as much more than it gives a block.
constexpr size_t kSharedOfProcessor = size_t{228} << 10, kSharedOfBlock = size_t{1} << 10;

[[nodiscard]] cudaError_t embed(cudaStream_t stream, const EmbedArgs& args);
[[nodiscard]] cudaError_t rms_norm(cudaStream_t stream, const RmsNormArgs& args);
[[nodiscard]] cudaError_t rope(cudaStream_t stream, const RopeArgs& args);
[[nodiscard]] cudaError_t swiglu(cudaStream_t stream, const SwigluArgs& args);
[[nodiscard]] cudaError_t append(cudaStream_t stream, const AppendArgs& args);
// The same of few runs of few rows each, in the host's memory: they go along with the launch.
constexpr int64_t kFewRuns = 32;
[[nodiscard]] cudaError_t append_few(cudaStream_t stream, const AppendArgs& args);
// The same of runs of few rows each, however many.
[[nodiscard]] cudaError_t append_short(cudaStream_t stream, const AppendArgs& args);
// The same after rope: of each row a run.
[[nodiscard]] cudaError_t rotate_append(cudaStream_t stream, const RotateAppendArgs& args);

// What the blocks of an output leave each other where many rows are shared by more of them. matmul_workspace()
// says how large each is; `arrived` is zero before the first call, and after each.
struct MatmulWorkspace {
  float* partials;     // matmul_workspace().floats
  uint32_t* arrived;   // matmul_workspace().counts
  int32_t processors;  // of the device; changes no bit
};
struct MatmulWorkspaceSize {
  size_t floats, counts;
};
MatmulWorkspaceSize matmul_workspace(const MatmulArgs& args);

// Products of few rows, bound by reading the weights. Each row's results are the same bits whatever the
// other rows are and however many. Inputs: a multiple of 8.
[[nodiscard]] cudaError_t matmul_decode(cudaStream_t stream, const MatmulArgs& args,
                                        const MatmulWorkspace& workspace);
// The part of it for up to eight rows and weights of one type, narrower than f32.
[[nodiscard]] cudaError_t matmul_decode_few(cudaStream_t stream, const MatmulArgs& args, int32_t processors);
// The part of it for weights in f32, all of args.
[[nodiscard]] cudaError_t matmul_decode_f32(cudaStream_t stream, const MatmulArgs& args);

// What matmul() needs beside its arguments.
struct DenseWorkspace {
  std::byte* memory;    // matmul_workspace_bytes(), 256-byte aligned
  size_t shared_bytes;  // that a block may have, at least kLeastShared; changes no bit
};
size_t matmul_workspace_bytes(const MatmulArgs& args);

// Products of any number of rows, by tensor cores under Precision::fast and int8 where weights are narrower than f32:
// with f32 sums, rows rounded to f16 (scaled) for weights in f16, rows and weights to bf16 for all others; else in f32.
// Each row's results are the same bits whatever the other rows are and however many, but not those of matmul_decode.
// Inputs: a multiple of 8.
[[nodiscard]] cudaError_t matmul(cudaStream_t stream, const MatmulArgs& args,
                                 const DenseWorkspace& workspace);
// The part of it by tensor cores, of weights of one type.
[[nodiscard]] cudaError_t matmul_tensor(cudaStream_t stream, const MatmulArgs& args,
                                        const DenseWorkspace& workspace);

// What attend and estimate need beside their arguments: partial results of a lookup's chunks, and how many of
// them there are. attend_workspace() says how large each is; `arrived` is zero before the first call, and
// after each.
struct AttendWorkspace {
  float* partials;    // attend_workspace().floats
  uint32_t* arrived;  // attend_workspace().counts
  int32_t blocks;  // for a lookup's chunks, 1 to 256: the chunks of the longest that is usual; changes no bit
  size_t shared_bytes;  // that a block may have, at least kLeastShared; changes no bit
};
struct AttendWorkspaceSize {
  size_t floats, counts;
};
constexpr int32_t kMostChunks = 256;  // of a lookup
constexpr int32_t kLeastChunk = 128;  // tokens
constexpr int32_t kUsualChunk = 512;  // that a block is busy with for long enough to have begun
constexpr int32_t kChunkStep = 64;    // a chunk is a multiple of it
// Of each chunk of a lookup with so many tokens: more of them only when each is long.
template <class Count>
constexpr Count chunk_tokens(Count tokens) {
  const auto step_of = [tokens](Count chunks) {
    return ((tokens + chunks - 1) / chunks + kChunkStep - 1) / kChunkStep * kChunkStep;
  };
  const Count few = step_of(32), least = few < kLeastChunk ? Count{kLeastChunk} : few;
  const Count many = step_of(kMostChunks), most = many < kUsualChunk ? Count{kUsualChunk} : many;
  return least < most ? least : most;
}
constexpr int64_t partial_floats(int32_t group, int32_t head_dim) {  // whole vectors of 16 bytes
  return (int64_t{group} * (head_dim + 2) + 2 + 3) / 4 * 4;
}
AttendWorkspaceSize attend_workspace(int32_t lookups, int32_t group, int32_t head_dim);
// AttendWorkspace::blocks with which all blocks together fill a device in rounds that are as full as can be.
// shared_bytes: as an AttendWorkspace's.
int32_t attend_blocks(const LookupArgs& args, int32_t processors, size_t shared_bytes);

// Pieces of device memory, each to its place behind `to`; all of it in multiples of 16 bytes. The list is in device
// memory too.
struct GatheredPiece {
  const void* from;
  uint64_t bytes, at;
};
[[nodiscard]] cudaError_t gather(cudaStream_t stream, const GatheredPiece* pieces, uint32_t count,
                                 std::byte* to);

// What lookups retrieve, as runs where it is at home, after select.
[[nodiscard]] cudaError_t retrieve(cudaStream_t stream, const LookupArgs& args);

// The same with a cache of what is at home in pinned memory, which is brought there. `hot`: in the order that
// order_hot_pages() made for this step.
[[nodiscard]] cudaError_t retrieve_hot(cudaStream_t stream, const LookupArgs& args, const HotPages& hot);
[[nodiscard]] cudaError_t order_hot_pages(cudaStream_t stream, const HotPages& hot);

// Exact attention of args.count lookups over their steady zone and runs. head_dim: a multiple of 8 up to 256.
[[nodiscard]] cudaError_t attend(cudaStream_t stream, const LookupArgs& args,
                                 const AttendWorkspace& workspace);

// Causal attention of a chunk. The lists of runs and their counts are in device memory. By tensor cores in the
// KV type under Precision::fast and int8, where that is narrower than f32; else in f32. head_dim: a multiple of
// 8 up to 256; a part of a chunk's keys has a state and no window. shared_bytes: as an AttendWorkspace's.
[[nodiscard]] cudaError_t attend_chunk(cudaStream_t stream, const AttendChunkArgs& args, size_t shared_bytes);

// The next token of each row, and what its log-probability is made of. `out` is in device memory too; workspace:
// sample_workspace() bytes, 16-byte aligned.
size_t sample_workspace(int64_t rows, int64_t vocab);
[[nodiscard]] cudaError_t sample(cudaStream_t stream, const SampleArgs& args, std::byte* workspace);

}  // namespace wi::cuda
