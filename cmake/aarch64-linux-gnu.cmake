# Debian's cross compiler for 64-bit ARM, with that architecture's packages in a folder of their own, and what runs
# them on another processor:
#   cmake -S . -B build-arm64 -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake \
#     -DWI_SYSROOT="$(tests/arm64_packages.sh build-arm64-packages)"
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES WI_SYSROOT)
set(CMAKE_FIND_ROOT_PATH ${WI_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${WI_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${WI_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${WI_SYSROOT}/usr/share/pkgconfig)
# Libraries that are linked by name, and what they need of each other.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-L${WI_SYSROOT}/usr/lib/aarch64-linux-gnu -Wl,-rpath-link,${WI_SYSROOT}/usr/lib/aarch64-linux-gnu")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${CMAKE_EXE_LINKER_FLAGS_INIT}")

find_program(WI_QEMU NAMES qemu-aarch64-static qemu-aarch64)
if(WI_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${WI_QEMU};-cpu;max;-L;/usr/aarch64-linux-gnu;-E;LD_LIBRARY_PATH=${WI_SYSROOT}/usr/lib/aarch64-linux-gnu)
endif()
