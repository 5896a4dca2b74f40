#!/bin/sh
# The header as Windows compilers are shown it: every function comes from the DLL, goes into it where the
# library is built, and is plain where it is linked statically; elsewhere none of that.
# usage: header_windows_test.sh SOURCE_DIR C_COMPILER
set -eu
source=$1 compiler=$2
fail() {
  echo "header_windows_test: $*" >&2
  exit 1
}
functions=$(grep -c '^WI_API ' "$source/include/waveinfer.h")

# expect WORDS COUNT OPTION...: the functions of the preprocessed header that are marked so
expect() {
  words=$1 count=$2
  shift 2
  found=$("$compiler" -E -P -x c "$@" "$source/include/waveinfer.h" | grep -oF "$words" | wc -l)
  [ "$found" -eq "$count" ] || fail "$found functions are $words with $*, not $count"
}
[ "$functions" -gt 0 ] || fail "the header has no functions"
expect '__declspec(dllimport)' "$functions" -D_WIN32
expect '__declspec(dllexport)' "$functions" -D_WIN32 -DWI_BUILD
expect '__declspec' 0 -D_WIN32 -DWI_STATIC
expect '__declspec' 0 -DWI_BUILD
expect 'visibility("default")' "$functions" -DWI_BUILD
expect 'visibility("default")' 0 -D_WIN32

# And compiled for there, where a compiler for there is.
if command -v clang-14 >/dev/null; then
  echo '#include "waveinfer.h"' | clang-14 --target=x86_64-pc-windows-msvc -ffreestanding -fsyntax-only -Wall -Wextra \
    -pedantic -std=c99 -I"$source/include" -x c - || fail "clang does not compile it for Windows"
fi
echo "header: $functions functions are the DLL's on Windows"
