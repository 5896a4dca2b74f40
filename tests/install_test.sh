#!/bin/sh
# Installs the library, moves the tree, and builds a C program against it as a stranger would: once with
# pkg-config, once with find_package. usage: install_test.sh BUILD_DIR CMAKE C_COMPILER
set -eu
build=$1
cmake=$2
compiler=$3

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "install_test: $*" >&2
  exit 1
}

"$cmake" --install "$build" --prefix "$folder/first place" --component waveinfer >"$folder/log" || {
  cat "$folder/log"
  fail "cmake --install"
}
# The old place is gone: whatever still points there breaks.
root="$folder/moved"
mv "$folder/first place" "$root"
grep -rlIF -e "$build" -e "first place" "$root" && fail "these files know where they were built"
config=$(find "$root" -name waveinferConfig.cmake)
pc=$(find "$root" -name waveinfer.pc)
library=$(find "$root" -name 'libwaveinfer.so')
for file in "$config" "$pc" "$library" "$root/include/waveinfer.h"; do
  [ -e "$file" ] || fail "a file is missing in $(find "$root" -type f)"
done
if readelf -d "$library" | grep -E 'R(UN)?PATH'; then fail "the library has a run path"; fi
if readelf -d "$library" | grep 'NEEDED.*mimalloc'; then fail "the library links mimalloc, which replaces the host's malloc"; fi

cat >"$folder/hello.c" <<'EOF'
#include <stdio.h>
#include <waveinfer.h>
int main(void) {
  wi_error error = {0};
  wi_runtime* runtime = NULL;
  error.struct_size = sizeof error;
  if (wi_runtime_create(NULL, &runtime, &error) != WI_OK) return fprintf(stderr, "%s\n", error.message), 1;
  wi_runtime_release(runtime);
  return printf("%s\n", wi_version()) < 0;
}
EOF
export LD_LIBRARY_PATH="${library%/*}"

PKG_CONFIG_PATH="${pc%/*}"
export PKG_CONFIG_PATH
version=$(pkg-config --modversion waveinfer)
# shellcheck disable=SC2046  # flags are words
"$compiler" -std=c99 -Wall -Wextra -pedantic -Werror "$folder/hello.c" $(pkg-config --cflags --libs waveinfer) \
  -o "$folder/hello"
said=$("$folder/hello")
[ "$said" = "$version" ] || fail "pkg-config says $version, the program says $said"

mkdir "$folder/project"
cp "$folder/hello.c" "$folder/project"
cat >"$folder/project/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.24)
project(hello C)
find_package(waveinfer $version REQUIRED)
add_executable(hello hello.c)
target_link_libraries(hello PRIVATE waveinfer::waveinfer)
EOF
# The build's own generator: the default one may not be there.
generator=$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$build/CMakeCache.txt")
{
  "$cmake" -S "$folder/project" -B "$folder/project/build" -G "$generator" -DCMAKE_C_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$root" &&
    "$cmake" --build "$folder/project/build"
} >"$folder/log" 2>&1 || {
  cat "$folder/log"
  fail "a project with find_package(waveinfer $version)"
}
said=$("$folder/project/build/hello")
[ "$said" = "$version" ] || fail "the package says $version, the program says $said"
echo "waveinfer $version: installed, moved, found by pkg-config and by find_package"
