#!/usr/bin/env bash
# The samples in languages that need no binding, only an FFI: `samples/ffi/test.sh BUILD` with a build folder of the
# project, which has lib/libwaveinfer.so and bin/sample_long_document. LuaJIT and Node are Debian's where there are none;
# koffi, Node's FFI, is loaded from its registry into BUILD/ffi.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
. "$top/samples/setup.sh"
. "$top/tests/support/long_document.sh"

koffi_version=2.16.3
model=$top/samples/model/needle-f16.gguf
questions=("What is the password of Boaz the potter?" "What is the magic word of the tower of Ruth?" "Où est 漢字?")
passed=0

main() {
  [ $# = 1 ] && [ -e "$1/lib/libwaveinfer.so" ] || { echo "usage: samples/ffi/test.sh BUILD, a folder with lib/libwaveinfer.so" >&2; exit 1; }
  build=$(cd "$1" && pwd)
  work=$build/ffi
  mkdir -p "$work"

  set_up luajit xz-utils ca-certificates
  command -v node >/dev/null && command -v npm >/dev/null || set_up nodejs npm
  npm install --silent --no-audit --no-fund --no-save --cache "$work/npm" --prefix "$work" "koffi@$koffi_version"
  export WAVEINFER_LIBRARY=$build/lib/libwaveinfer.so NODE_PATH=$work/node_modules
  make_documents

  for language in "luajit lua" "node js"; do
    run=${language% *} suffix=${language#* }
    for claim in declarations_are_those_of_the_manifest \
      long_document_prints_what_the_one_in_c_prints \
      a_failure_is_status_1_and_the_words_of_the_one_in_c \
      ctrl_c_ends_it; do
      echo "$run: $claim"
      "$claim"
      passed=$((passed + 1))
    done
  done
  echo "ffi: $passed tests passed"
}

# Two facts in a long text, with bytes that are no UTF-8; and a text that takes minutes to read.
make_documents() {
  xz -dc "$top/samples/text/kjv.txt.xz" >"$work/text.txt"
  {
    head -c 12000 "$work/text.txt"
    printf '\nThe password of Boaz the potter is copper meadow.\nna\xefve \xff\xfe, na\xc3\xafve \xe2\x80\x94 \xe6\xbc\xa2\xe5\xad\x97\n'
    printf 'The magic word of the tower of Ruth is silver thistle.\n'
    tail -c 12000 "$work/text.txt"
  } >"$work/document.txt"
  "$build/bin/sample_long_document" "$model" "$work/document.txt" "${questions[@]}" >"$work/c.out" 2>"$work/c.err"
  grep -q "copper meadow" "$work/c.out"
}

declarations_are_those_of_the_manifest() {
  "$run" "$here/abi_test.$suffix" "$top/tests/abi/waveinfer-2.abi.txt"
}

long_document_prints_what_the_one_in_c_prints() {
  sample "$model" "$work/document.txt" "${questions[@]}" || { cat "$work/sample.err" >&2; exit 1; }
  cmp "$work/c.out" "$work/sample.out"
  tells_progress_and_statistics "$work/sample.err"
}

a_failure_is_status_1_and_the_words_of_the_one_in_c() {
  local status=0 c_status=0
  "$build/bin/sample_long_document" "$work/absent.gguf" "$work/document.txt" "${questions[0]}" 2>"$work/c.err" || c_status=$?
  sample "$work/absent.gguf" "$work/document.txt" "${questions[0]}" || status=$?
  [ $status = 1 ] && [ $c_status = 1 ]
  cmp "$work/c.err" "$work/sample.err"
  status=0
  sample "$model" "$work/absent.txt" "${questions[0]}" || status=$?
  [ $status = 1 ] && grep -q '^long_document: .*absent.txt' "$work/sample.err"
}

ctrl_c_ends_it() {
  ctrl_c_ends_reading_and_answering "$model" "$work/text.txt" "$work" "$run" "$here/long_document.$suffix"
}

sample() {
  "$run" "$here/long_document.$suffix" "$@" >"$work/sample.out" 2>"$work/sample.err"
}

main "$@"
