// In the place of the toolkit's header of this name: what kernels/cuda uses of the driver's functions, which it finds by
// name (cuda_runtime.h's cudaGetDriverEntryPointByVersion).
#pragma once

enum CUresult : int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709
};
enum CUstreamCaptureMode { CU_STREAM_CAPTURE_MODE_GLOBAL = 0, CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
using CUdevice = int;
using CUcontext = struct CUctx_st*;
