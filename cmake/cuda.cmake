# The CUDA backend, where a CUDA 13 toolkit is found: its kernels for compute capability 8.0 and 9.0a, and as
# PTX of 9.0 for what comes after. CUDACXX or CUDAToolkit_ROOT name a toolkit.
option(WAVEINFER_CUDA "Build the CUDA backend where a CUDA 13 toolkit is found" ON)
set(WI_CUDA OFF)
if(NOT WAVEINFER_CUDA OR WAVEINFER_SANITIZE)
  return()
endif()

if(DEFINED ENV{CUDACXX} AND NOT CUDAToolkit_ROOT)
  get_filename_component(bin "$ENV{CUDACXX}" DIRECTORY)
  get_filename_component(CUDAToolkit_ROOT "${bin}" DIRECTORY)
endif()
find_package(CUDAToolkit 13 QUIET)
if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
  message(STATUS "CUDA backend: not built, for no CUDA 13 toolkit is found (CUDACXX names its nvcc)")
  return()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 90-virtual)
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 doesn't know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(WI_CUDA ON)
message(STATUS "CUDA backend: built with ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}")

file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
list(REMOVE_ITEM sources ${PROJECT_SOURCE_DIR}/kernels/cuda/plugin.cu)
add_library(wi_cuda STATIC ${sources})
target_include_directories(wi_cuda PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(wi_cuda PUBLIC CUDA::cudart_static)
# -Xptxas -v: what each kernel takes, kept beside its object for tests/cuda_resources_test.sh.
# Kernels of every type and size are alike: packed as well as can be they are a sixth as large.
target_compile_options(wi_cuda PRIVATE --expt-relaxed-constexpr --extended-lambda -Xptxas -v --compress-mode=size)
set_target_properties(wi_cuda PROPERTIES CUDA_VISIBILITY_PRESET hidden CUDA_COMPILER_LAUNCHER
  "${PROJECT_SOURCE_DIR}/cmake/keep_resource_report.sh" POSITION_INDEPENDENT_CODE ON)

# Opened at run time: nothing links it, and it needs nothing that a machine with a driver lacks.
add_library(waveinfer_cuda MODULE ${PROJECT_SOURCE_DIR}/kernels/cuda/plugin.cu)
target_link_libraries(waveinfer_cuda PRIVATE wi_cuda)
target_compile_definitions(waveinfer_cuda PRIVATE WI_BACKEND_BUILD="${WI_BACKEND_BUILD}")
target_link_options(waveinfer_cuda PRIVATE -static-libstdc++ -static-libgcc
  "LINKER:--exclude-libs,ALL" "LINKER:--no-undefined" "LINKER:-z,nodelete")
