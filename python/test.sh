#!/usr/bin/env bash
# The Python package's checks in one command: installs it into a fresh environment under BUILD, formats, lints
# and type-checks it, runs its tests, and compares its samples with the C programs.
#   python/test.sh BUILD    a CMake build folder of this project, with libwaveinfer.so and the C samples
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$top/samples/setup.sh"
[ $# = 1 ] || { echo "usage: python/test.sh BUILD" >&2; exit 1; }
build=$(cd "$1" && pwd)
work=$build/python
library=$build/lib/libwaveinfer.so
model=$top/samples/model/needle-f16.gguf

main() {
  set_up python3 python3-venv xz-utils
  install_package
  check_source
  export WAVEINFER_LIBRARY=$library
  pytest -q -p no:cacheprovider --junit-xml "$work/tests.xml"
  compare_samples
  wheel_carries_the_library
  local tests
  tests=$(python -c 'import sys, xml.etree.ElementTree as t
print(sum(not list(case) for case in t.parse(sys.argv[1]).iter("testcase")))' "$work/tests.xml")
  echo "Python: $((tests + checks)) tests passed"
}

# Nothing is written into the checkout.
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 RUFF_CACHE_DIR=$work/ruff MYPY_CACHE_DIR=$work/mypy
checks=0

install_package() {
  unset WAVEINFER_LIBRARY PYTHONPATH
  rm -rf "$work/environment"
  mkdir -p "$work"
  python3 -m venv "$work/environment"
  . "$work/environment/bin/activate"
  pip install -q "$top/python[test]"
}

check_source() {
  cd "$top/python"
  ruff format --check -q .
  ruff check -q .
  mypy src tests examples bench
}

# same_output SAMPLE ARGUMENT...: standard output, byte for byte, and what standard input is for both.
same_output() {
  local sample=$1
  shift
  cat >"$work/input"
  "$build/bin/sample_$sample" "$@" <"$work/input" >"$work/c.out" 2>"$work/c.err"
  python "examples/$sample.py" "$@" <"$work/input" >"$work/python.out" 2>"$work/python.err" || {
    cat "$work/python.err" >&2
    return 1
  }
  cmp "$work/c.out" "$work/python.out"
  checks=$((checks + 1))
}

compare_samples() {
  local asked="What is the password of Boaz the potter?"
  xz -dc "$top/samples/text/kjv.txt.xz" | tail -c 30000 >"$work/document.txt"
  echo "The password of Boaz the potter is copper meadow." >>"$work/document.txt"
  same_output errors "$model" </dev/null
  same_output save_load "$model" "In the beginning" "$work/saved.session" </dev/null
  same_output long_document "$model" "$work/document.txt" "$asked" "Who are you?" </dev/null
  same_output chat "$model" < <(printf '%s\n' "$asked" "Grüße, 世界" "")
}

wheel_carries_the_library() {
  rm -rf "$work/wheels" "$work/bundled"
  WAVEINFER_LIBRARY=$library pip wheel -q --no-deps -w "$work/wheels" "$top/python"
  pip install -q --no-deps --target "$work/bundled" "$work"/wheels/waveinfer-*-py3-none-linux_*.whl
  (
    cd "$work" && unset WAVEINFER_LIBRARY
    LD_LIBRARY_PATH=$build/lib PYTHONPATH=$work/bundled python -c '
import waveinfer
with waveinfer.Runtime() as runtime:
    assert runtime.device_info().name == "cpu"
maps = open("/proc/self/maps").read()
assert "/bundled/waveinfer/libwaveinfer.so" in maps, maps'
  )
  checks=$((checks + 1))
}

main
