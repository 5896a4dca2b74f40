#!/usr/bin/env bash
# All tests in one command: sets up, builds, runs them.
#
#   tests/run.sh          every test, optimised build; without a CUDA 13 toolkit, it loads one, and where it can't, it
#                         says so and leaves the CUDA backend out; then the tests of the bindings and of samples in
#                         other languages, each with its language's own tools, which it installs where they are missing
#   tests/run.sh --all    also: each allocation of each call refused once, every test under ASan and UBSan, every fuzz
#                         target for a few seconds, the concurrent tests under TSan, and the library and the samples
#                         built for 64-bit ARM; fails without a CUDA toolkit, and without cuobjdump in it or in the path
#   tests/run.sh --devices  whole sessions on an emulated device, under ASan and UBSan
#   tests/run.sh --arm64  a build for 64-bit ARM by Debian's cross compiler, and its tests on an emulated processor, of
#                         which each instruction takes many: 82 minutes on two cores
#
# What tests ask of their environment: WI_TEST_SEED, which each of them prints, for the same random numbers again;
# WI_TEST_ALL=1: every allocation and every call of the system is refused once, where a few by chance are
# (refused_memory_abi_test, refused_life_abi_test, tier_memory_test, tier_faults_test, read_ahead_test, spill_file_test);
# WI_TEST_SECONDS: that tier_faults_test lets sessions evict each other, 2 or under TSan 60, and lives_abi_test lets
# them live, 5; WI_TEST_MEMORY=guarded: keys and values are in memory that only kernels and copies can read, as in all
# tests with the label guarded (support/runtime.h).
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$top/samples/setup.sh"
jobs=$(nproc)
languages=(python rust java samples/service go samples/ffi)

main() {
  local all=
  case ${1-} in
    '') ;;
    --all) all=1 ;;
    --devices) check_devices; return ;;
    --arm64) test_arm64; return ;;
    *) echo "tests/run.sh: unknown option $1; there are --all, --devices and --arm64" >&2; exit 1 ;;
  esac
  set_up "${build_packages[@]}" "${packaging_packages[@]}" "${cuda_packages[@]}" ${all:+"${clang_packages[@]}"}

  # The CUDA backend is compiled, with or without a device to run it.
  local toolkit cuda=()
  if toolkit=$("$top/tests/cuda_toolkit.sh" "$top/build-cuda-toolkit"); then
    cuda=(-DWAVEINFER_CUDA=ON -DCUDAToolkit_ROOT="$toolkit")
    # The instructions that are looked at; not a third time, as PTX for processors to come.
    [ -z "$all" ] || cuda+=("-DCMAKE_CUDA_ARCHITECTURES=80-real;90a-real")
    if [ -n "$all" ] && ! PATH=$toolkit/bin:$PATH command -v cuobjdump >/dev/null; then
      echo "tests/run.sh: no cuobjdump in $toolkit/bin or the path, which cuda_disassembly_test needs" >&2
      exit 1
    fi
  elif [ -z "$all" ]; then
    echo "tests/run.sh: goes on without the CUDA backend" >&2
    cuda=(-DWAVEINFER_CUDA=OFF)
    summary+=("CUDA backend: not built, for its toolkit could not be had")
  else
    exit 1
  fi
  configure "$top/build" "${cuda[@]}"
  build_and_test "C and C++" "$top/build" -j "$jobs"
  [ -z "$all" ] || refuse_each_allocation
  test_languages "$top/build"
  [ -z "$all" ] || check_with_sanitizers
  [ -z "$all" ] || build_for_arm64 waveinfer samples
  echo
  printf '%s\n' "${summary[@]}"
}

summary=()
targets=() # what build_and_test builds; empty: everything

# build_and_test NAME DIRECTORY [CTEST-OPTION...]: builds everything there and runs the tests.
build_and_test() {
  local name=$1 directory=$2
  shift 2
  echo "== $name: build"
  configure "$directory"
  cmake --build "$directory" -j "$jobs" ${targets[@]+--target "${targets[@]}"}
  echo "== $name: tests"
  local log=$directory/Testing/Temporary/LastTest.log
  ctest --test-dir "$directory" --output-on-failure "$@"
  summary+=("$name: $(grep -c '^Test Passed\.' "$log") programs, $(awk '
    /^\[  PASSED  \] [0-9]+ test/ { passed += $4 } END { print passed + 0 }' "$log") tests passed")
}

# Of single calls, which takes half a minute; what else heeds WI_TEST_ALL takes much longer.
refuse_each_allocation() {
  echo "== each allocation refused"
  WI_TEST_ALL=1 "$top/build/bin/refused_memory_abi_test"
  summary+=("each allocation of each call: refused once alone and once with all that follow")
}

# Each one's own test.sh, two at a time, as they load as much as they compute; the longest first. What loads or builds much
# more is left to options of theirs: rust/test.sh --all, samples/service/test.sh --browser and --load,
# python/test.sh --transformers.
test_languages() {
  local build=$1 language failed=
  echo "== other languages: ${languages[*]}"
  # shellcheck disable=SC2016
  printf '%s\n' "${languages[@]}" | xargs -P 2 -I {} env --default-signal=INT bash -c \
    'rm -f "$2/${0#*/}.passed"; "$1/$0/test.sh" "$2" >"$2/${0#*/}.log" 2>&1 && touch "$2/${0#*/}.passed"' {} "$top" "$build" || :
  for language in "${languages[@]}"; do
    if [ -e "$build/${language#*/}.passed" ]; then
      summary+=("$(tail -n 1 "$build/${language#*/}.log")")
    else
      echo "== $language/test.sh failed:" >&2
      tail -n 60 "$build/${language#*/}.log" >&2
      failed=1
    fi
  done
  [ -z "$failed" ]
}

# With clang: for a kernel's templates gcc takes several times as long. One fixed version, so its warnings can be errors.
sanitized=(-DCMAKE_BUILD_TYPE=RelWithDebInfo -DWAVEINFER_WERROR=ON
  -DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14)

# assert_in_time() claims nothing here; what CUDA's kernels touch, the emulation sees better without.
check_with_sanitizers() {
  configure "$top/build-asan" "${sanitized[@]}" -DWAVEINFER_SANITIZE=address,undefined -DWAVEINFER_FUZZ=ON
  build_and_test "ASan + UBSan, fuzz targets" "$top/build-asan" -j "$jobs" -LE 'emulated_(kernels|devices)'

  configure "$top/build-tsan" "${sanitized[@]}" -DWAVEINFER_SANITIZE=thread
  build_and_test_label concurrent "TSan" "$top/build-tsan"
}

check_devices() {
  set_up "${build_packages[@]}" "${clang_packages[@]}"
  configure "$top/build-asan" "${sanitized[@]}" -DWAVEINFER_SANITIZE=address,undefined -DWAVEINFER_FUZZ=ON
  build_and_test_label emulated_devices "ASan + UBSan, emulated devices" "$top/build-asan"
  printf '\n%s\n' "${summary[@]}"
}

# build_and_test_label LABEL NAME DIRECTORY: no more than the tests with that label.
build_and_test_label() {
  mapfile -t targets < <(ctest --test-dir "$3" -N -L "$1" | sed -n 's/^ *Test *#[0-9]*: //p')
  build_and_test "$2" "$3" -j "$jobs" -L "$1" --no-tests=error
  targets=()
}

# ---- 64-bit ARM

build_for_arm64() { # TARGET...: those, to see that they can be built; none: everything, to be run
  echo "== 64-bit ARM: build"
  set_up "${arm64_packages[@]}"
  local packages
  packages=$("$top/tests/arm64_packages.sh" "$top/build-arm64-packages")
  configure "$top/build-arm64" -DCMAKE_TOOLCHAIN_FILE="$top/cmake/aarch64-linux-gnu.cmake" -DWI_SYSROOT="$packages" \
    -DCMAKE_CXX_FLAGS_RELEASE="$([ $# = 0 ] && echo -O3 || echo -O1) -DNDEBUG"
  cmake --build "$top/build-arm64" -j "$jobs" ${@+--target "$@"}
  summary+=("64-bit ARM: built")
}

# Where a test's claim is about this system (threads that cannot be made, memory that is refused by an interposer), what
# answers is the emulator, and it is left out; so are CUDA's kernels, which are no processor's, and a third of the time.
test_arm64() {
  set_up "${build_packages[@]}"
  build_for_arm64
  echo "== 64-bit ARM: tests"
  ctest --test-dir "$top/build-arm64" --output-on-failure -j "$jobs" -LE 'not_emulated|emulated_kernels'
  summary+=("64-bit ARM: $(grep -c '^Test Passed\.' "$top/build-arm64/Testing/Temporary/LastTest.log") programs passed")
  printf '\n%s\n' "${summary[@]}"
}

main "$@"
