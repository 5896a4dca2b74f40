#!/bin/sh
# Holds the functions and structs of include/waveinfer.h against tests/abi/waveinfer-2.abi.xml by libabigail's
# abidiff: what an older program relies on must be as it was. What is only added is no failure but must be
# recorded, so that it cannot go again. Enumerated values are held by tests/abi/waveinfer-2.abi.txt.
#
# What is described is a library made of the header alone: an optimised libwaveinfer.so has no debug information, and
# one that has some tells of all the C++ behind the header as well. Programs are compiled with the header; what they
# take from the library itself, its symbols and their versions, is held against the header's here. That its functions
# are those of the header is seen by the compiler, which reads both.
# usage: abidiff_test.sh SOURCE_DIR C_COMPILER LIBRARY|--record
set -eu
source=$1 compiler=$2 library=$3
baseline=$source/tests/abi/waveinfer-2.abi.xml

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "abidiff_test: $*" >&2
  exit 1
}

# A library of the header's declarations alone, each with an empty body: its debug information is the ABI.
"$compiler" -E -P -x c -std=c99 "$source/include/waveinfer.h" |
  tr '\n' ' ' | sed 's/__attribute__((visibility("default")))/\n&/g' |
  sed '/^__attribute__/ s/;/ { __builtin_unreachable(); }/' >"$folder/waveinfer.c"
cp "$source/src/waveinfer.map" "$folder"
(cd "$folder" && "$compiler" -std=c99 -g -O0 -fPIC -shared -nostdlib -Wl,--version-script=waveinfer.map \
  -Wl,-soname,libwaveinfer.so.2 waveinfer.c -o libwaveinfer.so)
functions=$(nm -D --defined-only "$folder/libwaveinfer.so" | grep -c ' T wi_')
[ "$functions" = "$(grep -c '^ *wi_[a-z_]*;$' "$source/src/waveinfer.map")" ] || fail "$functions functions are not all of them"
describe() {
  abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed "$folder/libwaveinfer.so" |
    sed "s|$folder/||g"
}

if [ "$library" = --record ]; then
  describe >"$baseline"
  echo "recorded $functions functions in $baseline"
  exit
fi
describe >"$folder/now.xml"

symbols() { nm -D --defined-only --with-symbol-versions "$1" | sed 's/^[0-9a-f]* //' | sort; }
symbols "$folder/libwaveinfer.so" >"$folder/declared"
symbols "$library" >"$folder/exported"
diff "$folder/declared" "$folder/exported" >&2 || fail "$library exports (>) other symbols than the header declares (<)"

status=0
abidiff --no-added-syms "$baseline" "$folder/now.xml" >"$folder/report" || status=$?
if [ $status != 0 ]; then
  cat "$folder/report" >&2
  fail "the ABI is no longer what older programs rely on"
fi
abidiff "$baseline" "$folder/now.xml" >"$folder/report" || {
  cat "$folder/report" >&2
  fail "functions were added; abidiff_test.sh SOURCE_DIR C_COMPILER --record records them"
}

# That a change would be seen at all.
sed 's/int64_t native_code;/int32_t native_code;/' "$folder/waveinfer.c" >"$folder/changed.c"
cmp -s "$folder/waveinfer.c" "$folder/changed.c" && fail "there is no field to change"
(cd "$folder" && "$compiler" -std=c99 -g -O0 -fPIC -shared -nostdlib -Wl,--version-script=waveinfer.map \
  -Wl,-soname,libwaveinfer.so.2 changed.c -o libwaveinfer.so)
describe >"$folder/now.xml"
if abidiff "$baseline" "$folder/now.xml" >"$folder/report"; then fail "a field of another size goes unseen"; fi
echo "abidiff: $functions functions and their structs are as recorded"
