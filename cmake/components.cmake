# What a library with a backend in it has to have been built with: these headers, and this version.
file(GLOB WI_INTERFACE CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*.h)
set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${WI_INTERFACE})
set(WI_BACKEND_BUILD "")
foreach(header ${WI_INTERFACE})
  file(SHA256 ${header} hash)
  string(APPEND WI_BACKEND_BUILD ${hash})
endforeach()
string(SHA256 WI_BACKEND_BUILD "${WI_BACKEND_BUILD}")
string(SUBSTRING ${WI_BACKEND_BUILD} 0 12 WI_BACKEND_BUILD)
set(WI_BACKEND_BUILD "${PROJECT_VERSION}-${WI_BACKEND_BUILD}")

set(WI_COMMON_HEADERS <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstring> <filesystem> <fstream> <functional>
  <map> <memory> <mutex> <optional> <random> <set> <span> <string> <string_view> <thread> <unordered_map> <vector>)

# One static library per folder; a folder links only what stands below it.
function(wi_component name folder)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  if(name STREQUAL wi_core)
    list(FILTER sources EXCLUDE REGEX "/src/(capi|error|host_process|text_hash)\\.cpp$")
  endif()
  if(name STREQUAL wi_kernels)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cpu/*.cpp)
    list(FILTER sources EXCLUDE REGEX /kernels/cpu/bundled/)
  endif()
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PUBLIC ${ARGN})
  set_property(GLOBAL APPEND PROPERTY WI_COMPONENTS ${name})
  # Half of what a source takes to compile are these. Not everywhere, so that one that forgets to ask for them is found.
  if(WAVEINFER_SANITIZE AND NOT name STREQUAL wi_kernels)
    target_precompile_headers(${name} PRIVATE ${WI_COMMON_HEADERS})
  endif()
endfunction()

add_library(wi_base STATIC ${PROJECT_SOURCE_DIR}/src/error.cpp ${PROJECT_SOURCE_DIR}/src/host_process.cpp
  ${PROJECT_SOURCE_DIR}/src/text_hash.cpp)
target_include_directories(wi_base PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(wi_base PUBLIC PkgConfig::XXHASH)

wi_component(wi_kernels kernels/cpu PkgConfig::HWY)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  # SSSE3 (every x86-64 processor since 2011), AVX2 and AVX-512; each target more is a recompilation. The
  # baseline is named because old Highway would take plain scalar code for it; bits 4 and 6 are the AVX-512
  # variants for Sapphire Rapids and Zen 4 of newer ones. AVX-512 with VNNI is for the source that asks for it.
  set(WI_BASELINE_TARGETS HWY_BASELINE_TARGETS=HWY_SSSE3)
  set(WI_DISABLED_TARGETS "HWY_SSE4|(1LL<<4)|(1LL<<6)")
else()
  set(WI_BASELINE_TARGETS)
  # NEON: how long a vector is must be known when kernels are compiled.
  set(WI_DISABLED_TARGETS "HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128")
  # Highway asks for this of its functions one by one, and a compiler's own constructors would lack it. No kernel uses
  # it: it is not needed to run.
  # What is fused is said by MulAdd: where the compiler may choose, too, an index has other bits than one that a device
  # makes of the same keys.
  target_compile_options(wi_kernels PRIVATE -march=armv8-a+crypto -ffp-contract=off)
endif()
# Whatever a host builds itself with (RelWithDebInfo says -O2): there the loops over rows are loops still, and products take
# up to 1.8 times as long.
if(NOT WAVEINFER_SANITIZE)
  target_compile_options(wi_kernels PRIVATE $<$<NOT:$<CONFIG:Debug,Release>>:-O3>)
endif()
# The same bits on every processor: AVX2 and AVX-512 could fuse what SSSE3 cannot.
set_source_files_properties(kernels/cpu/token_weights.cpp PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
if(WAVEINFER_SANITIZE)
  # Instrumented SIMD templates take a compiler minutes a target, and each runs the same source: two will do, so that
  # every machine runs the same. Races know nothing of instruction sets.
  string(APPEND WI_DISABLED_TARGETS "|HWY_AVX3|HWY_AVX3_DL")
  if(WAVEINFER_SANITIZE STREQUAL "thread")
    string(APPEND WI_DISABLED_TARGETS "|HWY_AVX2")
    # One thread's work, most of what prompts take; what it reads and writes is said as a whole (operands_seen.h).
    set_source_files_properties(kernels/cpu/gemm_f32.cpp kernels/cpu/softmax_tile.cpp PROPERTIES
      COMPILE_OPTIONS "-fno-sanitize=thread;-O2")
  endif()
  # What is checked at every access besides the access itself makes a compiler take minutes for a kernel's templates.
  set(WI_UNCHECKED_IN_KERNELS -fno-sanitize=null,object-size,alignment,pointer-overflow)
  target_compile_options(wi_kernels PRIVATE ${WI_UNCHECKED_IN_KERNELS})
endif()
target_compile_definitions(wi_kernels PUBLIC ${WI_BASELINE_TARGETS}
  "HWY_DISABLED_TARGETS=(${WI_DISABLED_TARGETS}|HWY_AVX3_DL)" "WI_DISABLED_BUT_VNNI=(${WI_DISABLED_TARGETS})")
wi_component(wi_memory src/memory wi_base Threads::Threads ${CMAKE_DL_LIBS})
# mimalloc is opened at run time and never linked: the packaged library exports malloc and operator new
# and would become the host program's (src/memory/mimalloc.h). Only its name is taken from the package.
get_target_property(mimalloc_configurations mimalloc IMPORTED_CONFIGURATIONS)
foreach(configuration ${mimalloc_configurations})
  get_target_property(mimalloc_soname mimalloc IMPORTED_SONAME_${configuration})
  if(mimalloc_soname)
    set(WI_MIMALLOC_SONAME ${mimalloc_soname})
    get_target_property(WI_MIMALLOC_FILE mimalloc IMPORTED_LOCATION_${configuration})
  endif()
endforeach()
if(NOT WI_MIMALLOC_SONAME)
  message(FATAL_ERROR "The mimalloc package names no shared library")
endif()
target_compile_definitions(wi_memory PRIVATE WI_MIMALLOC_SONAME="${WI_MIMALLOC_SONAME}")
wi_component(wi_templates src/chat wi_base nlohmann_json::nlohmann_json)
wi_component(wi_files src/files wi_base wi_kernels nlohmann_json::nlohmann_json)
wi_component(wi_tokenizer src/tokenizer wi_files wi_base PkgConfig::PCRE2 PkgConfig::UTF8PROC nlohmann_json::nlohmann_json)
wi_component(wi_sampling src/sampling wi_base wi_kernels)
wi_component(wi_model src/model wi_tokenizer wi_files wi_templates wi_kernels wi_memory wi_base PkgConfig::XXHASH nlohmann_json::nlohmann_json)
wi_component(wi_buffer src/buffer wi_base wi_memory wi_kernels PkgConfig::XXHASH)
# Without it reads of the slow tier are a few threads'.
if(URING_FOUND)
  target_link_libraries(wi_buffer PUBLIC PkgConfig::URING)
  target_compile_definitions(wi_buffer PUBLIC WI_URING=1)
endif()
wi_component(wi_store src/store wi_base wi_buffer wi_memory wi_kernels PkgConfig::XXHASH)
wi_component(wi_pipeline src/pipeline wi_base wi_store wi_buffer wi_memory wi_kernels)
wi_component(wi_core src wi_pipeline wi_model wi_sampling wi_store wi_buffer wi_memory wi_kernels wi_base)

set_source_files_properties(${PROJECT_SOURCE_DIR}/src/devices.cpp PROPERTIES COMPILE_DEFINITIONS WI_BACKEND_BUILD="${WI_BACKEND_BUILD}")

wi_component(wi_engine src/engine wi_core)

# The C interface, for every kind of libwaveinfer.
add_library(wi_capi OBJECT ${PROJECT_SOURCE_DIR}/src/capi.cpp)
target_link_libraries(wi_capi PRIVATE wi_engine)
target_compile_definitions(wi_capi PRIVATE WI_BUILD)

# libwaveinfer.so out of the C interface and what the caller links: only the header's functions leave it.
function(wi_shared_library name)
  add_library(${name} SHARED $<TARGET_OBJECTS:wi_capi>)
  set_target_properties(${name} PROPERTIES OUTPUT_NAME waveinfer LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION} SOVERSION 2 LINK_DEPENDS ${PROJECT_SOURCE_DIR}/src/waveinfer.map)
  target_include_directories(${name} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  # now: what a call needs of other libraries is looked up when this one is loaded, not by the frame that makes it first.
  target_link_options(${name} PRIVATE "LINKER:--version-script=${PROJECT_SOURCE_DIR}/src/waveinfer.map"
    "LINKER:--exclude-libs,ALL" "LINKER:-z,nodelete" "LINKER:-z,relro" "LINKER:-z,now")
  # clang leaves what its sanitizers call to the program.
  if(NOT (WAVEINFER_SANITIZE AND CMAKE_CXX_COMPILER_ID MATCHES "Clang"))
    target_link_options(${name} PRIVATE "LINKER:--no-undefined")
  endif()
endfunction()

wi_shared_library(waveinfer)
if(NOT WAVEINFER_BUNDLED)
  target_link_libraries(waveinfer PRIVATE wi_engine)
endif()
