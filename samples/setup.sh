# Sourced by samples/run.sh, tests/run.sh and .ci/run: installs what is missing to build, with the system's
# package manager (Debian 12, Ubuntu 24.04 and their kin). Asks for nothing, says what it does, and does
# nothing and takes no time where all is there.

build_packages=(g++ cmake ninja-build make pkg-config libhwy-dev libmimalloc-dev libpcre2-dev libutf8proc-dev
  libxxhash-dev liburing-dev nlohmann-json3-dev libcmocka-dev libboost-context-dev xz-utils)
# One fixed version on every system, so that the same source is formatted and judged the same everywhere.
clang_packages=(clang-14 libclang-rt-14-dev)
packaging_packages=(dpkg-dev file abigail-tools) # what makes a .deb, and holds the ABI against its baseline
cuda_packages=(python3-pip) # which loads a CUDA toolkit where there is none
arm64_packages=(g++-aarch64-linux-gnu qemu-user-static) # a cross compiler, and what runs its programs
lint_packages=(clang-format-14 python3-pip git)

# set_up PACKAGE...: installs those that are missing.
set_up() {
  command -v dpkg-query >/dev/null || {
    echo "set-up: no dpkg here; this system's own names for these packages are needed: $*" >&2
    return 0 # they may well be there: CMake names what is not
  }
  local package missing=()
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || {
      echo "set-up: packages are missing and installing them needs root; please run:" >&2
      echo "  sudo apt-get update && sudo apt-get install ${missing[*]}" >&2
      return 1
    }
    as_root=(sudo -n)
  fi
  echo "set-up: installing ${missing[*]}"
  exec 9<"${BASH_SOURCE[0]}"
  flock 9 # two scripts may be at it: the package manager would refuse the second
  local log
  log=$(mktemp)
  if "${as_root[@]}" apt-get update -q >"$log" 2>&1 &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
      "${missing[@]}" >>"$log" 2>&1; then
    rm -f "$log"
    exec 9<&-
    return 0
  fi
  tail -n 20 "$log" >&2
  echo "set-up: the package manager failed; its whole output is in $log" >&2
  return 1
}

# configure DIRECTORY [OPTION...]: runs CMake there; without options, only if no earlier run succeeded, or one without
# the tests, as README.md has it for who embeds the library.
configure() {
  local directory=$1 log=$1/configure.log
  shift
  if [ $# = 0 ] && { [ -e "$directory/build.ninja" ] || [ -e "$directory/Makefile" ]; } &&
    ! grep -qs '^BUILD_TESTING:BOOL=OFF' "$directory/CMakeCache.txt"; then
    return 0
  fi
  echo "set-up: configuring ${directory#"$top"/}"
  mkdir -p "$directory"
  CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja} cmake -S "$top" -B "$directory" -DBUILD_TESTING=ON "$@" >"$log" 2>&1 || {
    cat "$log" >&2
    return 1
  }
}
