#!/usr/bin/env bash
# Prints the folder of Debian's packages for 64-bit ARM that the library is built with, for Debian's cross compiler:
# loaded and unpacked into the given folder (once; 20 MB to load, 180 MB on the disk). Nothing is installed for anybody
# else, and this system's own list of architectures stays as it is.
#
#   tests/arm64_packages.sh FOLDER
set -euo pipefail
folder=$(realpath -m "${1:?tests/arm64_packages.sh: which folder are the packages to be unpacked in?}")
packages=(libhwy-dev libmimalloc-dev libpcre2-dev libutf8proc-dev libxxhash-dev liburing-dev nlohmann-json3-dev
  libcmocka-dev libboost-context-dev)
of_the_compiler='^(libc6|libc-|libcrypt|linux-libc|rpcsvc|libnsl|libtirpc|gcc-|cpp-|libgcc|libstdc|lib.san|libgomp|libatomic|libitm)'

main() {
  if [ "$(cat "$folder/packages" 2>/dev/null)" != "${packages[*]}" ]; then unpack_packages >&2; fi
  echo "$folder/root"
}

# The package manager with a state of its own, in which nothing is installed and there is no other architecture.
unpack_packages() {
  echo "set-up: Debian's packages for 64-bit ARM (in $folder)"
  rm -rf "$folder"
  mkdir -p "$folder"/{state/lists/partial,cache/archives/partial,log,root,dpkg/info,dpkg/updates}
  : >"$folder/status"
  : >"$folder/dpkg/status"
  local own=(-q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$folder/state" -o Dir::Log="$folder/log"
    -o Dir::State::status="$folder/status" -o Dir::Cache="$folder/cache" -o APT::Sandbox::User=root -o Debug::NoLocking=1)
  { apt-get "${own[@]}" update &&
    apt-get "${own[@]}" install -y --no-install-recommends --download-only "${packages[@]}"; } >"$folder/log/apt" 2>&1 || {
    tail -n 20 "$folder/log/apt"
    echo "set-up: the packages could not be had (above)"
    return 1
  }
  local archive archives=()
  for archive in "$folder"/cache/archives/*.deb; do
    [[ ${archive##*/} =~ $of_the_compiler ]] || archives+=("$archive")
  done
  # With a list of them beside them, which says what licence a file is under.
  dpkg --admindir="$folder/dpkg" --instdir="$folder/root" --force-architecture,depends,not-root --no-triggers --unpack "${archives[@]}" >"$folder/log/dpkg" 2>&1 || {
    tail -n 20 "$folder/log/dpkg"
    return 1
  }
  rm -rf "$folder/cache" "$folder/state"
  echo "${packages[*]}" >"$folder/packages"
}

main
