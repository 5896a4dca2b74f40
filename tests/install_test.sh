#!/bin/sh
# The library as a stranger gets it: installed into an empty prefix, out of the .tar.gz and out of the .deb. Each tree
# lies at another place than it was made for, and a C program is built against it from there, with pkg-config
# and with find_package, and run at once, without a word about where the library is. And its sources as a part of another
# project.
# usage: install_test.sh BUILD_DIR CMAKE CPACK C_COMPILER
set -eu
build=$1
cmake=$2
cpack=$3
compiler=$4
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
source=$(cached CMAKE_HOME_DIRECTORY)
cpp_compiler=$(cached CMAKE_CXX_COMPILER)
# The build's own generator: the default one may not be there.
generator=$(cached CMAKE_GENERATOR)
unset LD_LIBRARY_PATH PKG_CONFIG_PATH

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "install_test: $*" >&2
  exit 1
}
# run WHAT COMMAND...: says nothing where it works
run() {
  what=$1
  shift
  "$@" >"$folder/log" 2>&1 || {
    cat "$folder/log" >&2
    fail "$what"
  }
}

main() {
  run "cmake --install" "$cmake" --install "$build" --prefix "$folder/first place"
  mv "$folder/first place" "$folder/moved" # whatever still points there breaks
  checked=
  run_path=$(sed -n 's/^WAVEINFER_PC_RPATH:BOOL=ON$/yes/p' "$build/CMakeCache.txt") # that waveinfer.pc gives a program
  check_tree "a prefix" "$folder/moved"
  # What Go's documentation says to type; where there is nothing to install by it, that must be said.
  if "$cmake" --install "$build" --prefix "$folder/bundled" --component bundled >"$folder/log" 2>&1; then
    check_tree "the bundled library" "$folder/bundled"
    [ -e "$folder/bundled/lib/libwaveinfer.a" ] || fail "the bundled library's prefix has no libwaveinfer.a"
  else
    grep 'bundled library, for\|component waveinfer' "$folder/log" >/dev/null || fail "$(cat "$folder/log")"
  fi

  run "cpack" "$cpack" --config "$build/CPackConfig.cmake" -G TGZ -B "$folder/packages"
  mkdir "$folder/unpacked"
  tar -xzf "$folder"/packages/*.tar.gz -C "$folder/unpacked" --strip-components 1
  check_tree "the .tar.gz" "$folder/unpacked"

  if command -v dpkg-deb >/dev/null; then
    run "cpack" "$cpack" --config "$build/CPackConfig.cmake" -G DEB -B "$folder/packages"
    dpkg-deb -x "$folder"/packages/*.deb "$folder/from deb"
    check_tree "the .deb" "$folder/from deb/usr"
    dpkg-deb -f "$folder"/packages/*.deb Depends | grep libc6 >/dev/null || fail "the .deb does not depend on the C library"
    checked="$checked and the .deb"
  fi
  builds_without_what_has_no_licence
  is_a_part_of_another_project
  echo "waveinfer $version: in a prefix, the .tar.gz$checked, found by pkg-config and by find_package, run where it lies; and by add_subdirectory"
}

# check_tree NAME ROOT
check_tree() {
  name=$1 root=$2
  if grep -rlIF -e "$build" -e "first place" "$root"; then fail "$name: these files know where they were built"; fi
  for file in lib/libwaveinfer.so lib/libwaveinfer.so.2 lib/pkgconfig/waveinfer.pc \
    lib/cmake/waveinfer/waveinferConfig.cmake include/waveinfer.h share/doc/waveinfer/LICENSE; do
    [ -e "$root/$file" ] || fail "$name: $file is missing in $(find "$root" -type f)"
  done
  library=$root/lib/libwaveinfer.so
  if readelf -d "$library" | grep -E 'R(UN)?PATH'; then fail "$name: the library has a run path"; fi
  if readelf -d "$library" | grep 'NEEDED.*mimalloc'; then fail "$name: the library links mimalloc, which replaces the host's malloc"; fi
  if [ -e "$root/lib/libwaveinfer.a" ]; then
    [ -s "$root/share/doc/waveinfer/LICENSES" ] || fail "$name: the licences of what is inside are missing"
  fi

  version=$(PKG_CONFIG_PATH=$root/lib/pkgconfig pkg-config --modversion waveinfer)
  write_hello
  # As the shell of a user would split them, blanks in paths kept.
  flags=$(PKG_CONFIG_PATH=$root/lib/pkgconfig pkg-config --cflags --libs waveinfer)
  eval "set -- $flags"
  run "$name: a program by pkg-config" "$compiler" -std=c99 -Wall -Wextra -pedantic -Werror "$folder/hello/hello.c" "$@" -o "$folder/hello/hello"
  if readelf -d "$folder/hello/hello" | grep -E 'R(UN)?PATH' >/dev/null; then found=yes; else found=; fi
  [ "$found" = "$run_path" ] || fail "$name: waveinfer.pc gives a run path: '$found', expected '$run_path'"
  if [ "$run_path" ]; then
    says_its_version "$folder/hello/hello"
  else
    says_its_version env LD_LIBRARY_PATH="$root/lib" "$folder/hello/hello"
  fi

  run "$name: a project with find_package" "$cmake" -S "$folder/hello" -B "$folder/hello/build" -G "$generator" \
    -DCMAKE_C_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$root"
  run "$name: a project with find_package" "$cmake" --build "$folder/hello/build"
  says_its_version "$folder/hello/build/hello"
  if [ -e "$root/lib/libwaveinfer.a" ]; then
    says_its_version "$folder/hello/build/hello_static"
    if readelf -d "$folder/hello/build/hello_static" | grep waveinfer; then fail "$name: waveinfer::static is not"; fi
  fi

  for program in "$root"/bin/*; do
    [ -e "$program" ] || continue # built without them
    said=$("$program" --version)
    [ "$said" = "${program##*/} $version" ] || fail "$name: $program says '$said'"
    page=$root/share/man/man1/${program##*/}.1
    for heading in NAME SYNOPSIS OPTIONS; do
      grep -qx ".SH $heading" "$page" || fail "$name: $page has no $heading"
    done
    [ "$("$program" --help | grep -c '^  --')" = "$(grep -c '^\.TP$' "$page")" ] || fail "$name: $page has not all options"
  done
}

write_hello() {
  rm -rf "$folder/hello"
  mkdir "$folder/hello"
  cat >"$folder/hello/hello.c" <<'END'
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
END
  cat >"$folder/hello/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.24)
project(hello C)
find_package(waveinfer $version REQUIRED)
add_executable(hello hello.c)
target_link_libraries(hello PRIVATE waveinfer::waveinfer)
if(TARGET waveinfer::static)
  add_executable(hello_static hello.c)
  target_link_libraries(hello_static PRIVATE waveinfer::static)
endif()
END
}

# A static library that no package has, as in /usr/local: there is then no bundled library, and everything else.
builds_without_what_has_no_licence() {
  library=$(cached WI_STATIC_XXHASH)
  [ -f "$library" ] || return 0
  cp "$library" "$folder"
  run "a library of no package" "$cmake" -S "$source" -B "$folder/unpackaged" -G "$generator" \
    -DCMAKE_C_COMPILER="$compiler" -DCMAKE_CXX_COMPILER="$cpp_compiler" -DWAVEINFER_CUDA=OFF -DWAVEINFER_SAMPLES=OFF \
    -DBUILD_TESTING=OFF -DWI_STATIC_XXHASH="$folder/${library##*/}"
  grep "Bundled library: not built.*${library##*/}" "$folder/log" >/dev/null ||
    fail "a library of no package: $(cat "$folder/log")"
}

# Configured, and of the library the few files of its lowest part built: all of them once more would take minutes, and
# what they are compiled with is the same for all.
is_a_part_of_another_project() {
  mkdir "$folder/host"
  cp "$folder/hello/hello.c" "$folder/host"
  cat >"$folder/host/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.24)
project(host C)
set(CMAKE_C_STANDARD 11)
add_subdirectory([==[$source]==] waveinfer)
add_executable(hello hello.c)
target_link_libraries(hello PRIVATE waveinfer::waveinfer)
get_directory_property(own BUILDSYSTEM_TARGETS)
get_directory_property(folders DIRECTORY [==[$source]==] SUBDIRECTORIES)
file(GENERATE OUTPUT \${CMAKE_BINARY_DIR}/seen CONTENT "targets '\${own}', folders of the library's '\${folders}'
the program \$<TARGET_FILE:hello>, type of build '\${CMAKE_BUILD_TYPE}', standard \${CMAKE_C_STANDARD}
the header in \$<TARGET_PROPERTY:waveinfer::waveinfer,INTERFACE_INCLUDE_DIRECTORIES>
")
END
  run "a part of another project" "$cmake" -S "$folder/host" -B "$folder/host/build" -G "$generator" \
    -DCMAKE_C_COMPILER="$compiler" -DCMAKE_CXX_COMPILER="$cpp_compiler" -DWAVEINFER_CUDA=OFF -DBUILD_TESTING=ON \
    -DCMAKE_BUILD_TYPE=
  cat >"$folder/expected" <<END
targets 'hello', folders of the library's ''
the program $folder/host/build/hello, type of build '', standard 11
the header in $source/include
END
  diff "$folder/expected" "$folder/host/build/seen" >&2 || fail "a part of another project is seen there otherwise than expected"
  run "a part of another project" "$cmake" --build "$folder/host/build" --target wi_base
}

says_its_version() {
  said=$("$@") || fail "$name: $* does not run"
  [ "$said" = "$version" ] || fail "$name: the package says $version, $* says $said"
}

main
