#!/usr/bin/env bash
# The Python package's checks in one command: installs it into a fresh environment under BUILD, formats, lints
# and type-checks it, runs its tests, and compares its samples with the C programs.
#   python/test.sh BUILD [--transformers]    a CMake build folder of this project, with libwaveinfer.so and the C samples
#   --transformers   also: a model of transformers with this store as its cache; loads PyTorch, some gigabytes
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$top/samples/setup.sh"
. "$top/tests/support/help.sh"
. "$top/tests/support/long_document.sh"
[ $# -ge 1 ] && [ "${2---transformers}" = --transformers ] ||
  { echo "usage: python/test.sh BUILD [--transformers]" >&2; exit 1; }
build=$(cd "$1" && pwd)
work=$build/python
library=$build/lib/libwaveinfer.so
model=$top/samples/model/needle-f16.gguf

main() {
  set_up python3 python3-venv xz-utils
  install_package
  check_source
  export WAVEINFER_LIBRARY=$library
  (cd bench && python -c "import overhead; overhead.build_c()") # the half in C, which nothing here runs
  pytest -q -p no:cacheprovider --junit-xml "$work/tests.xml"
  compare_samples
  wheel_carries_the_library
  source_distribution_makes_a_wheel
  no_wheel_is_made_that_finds_no_library
  [ $# = 1 ] || transformers_writes_the_same_tokens
  local tests
  tests=$(python -c 'import sys, xml.etree.ElementTree as t
print(sum(not list(case) for case in t.parse(sys.argv[1]).iter("testcase")))' "$work/tests.xml")
  echo "Python: $((tests + checks)) tests passed"
}

# Nothing is written into the checkout, nor into the folders where pip and others keep what they have loaded.
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CACHE_DIR=$work/pip
export RUFF_CACHE_DIR=$work/ruff MYPY_CACHE_DIR=$work/mypy
checks=0

install_package() {
  unset WAVEINFER_LIBRARY PYTHONPATH
  rm -rf "$work/environment"
  mkdir -p "$work"
  python3 -m venv "$work/environment"
  . "$work/environment/bin/activate"
  # Without a library: the tests are of the one in BUILD.
  WAVEINFER_LIBRARY='' pip install -q "$top/python[test]"
}

check_source() {
  cd "$top/python"
  ruff format --check -q .
  ruff check -q .
  mypy src tests examples bench
}

# same_output STATUS SAMPLE ARGUMENT...: exit status, no traceback, standard output byte for byte; both have the
# same standard input.
same_output() {
  local status=$1 sample=$2 of_c=0 of_python=0
  shift 2
  cat >"$work/input"
  "$build/bin/sample_$sample" "$@" <"$work/input" >"$work/c.out" 2>"$work/c.err" || of_c=$?
  python "examples/$sample.py" "$@" <"$work/input" >"$work/python.out" 2>"$work/python.err" || of_python=$?
  if [ "$of_c $of_python" != "$status $status" ] || grep -q '^Traceback' "$work/python.err"; then
    echo "sample $sample: status $of_c, in Python $of_python" >&2
    cat "$work/c.err" "$work/python.err" >&2
    return 1
  fi
  cmp "$work/c.out" "$work/python.out"
  checks=$((checks + 1))
}

compare_samples() {
  local asked="What is the password of Boaz the potter?" sample
  for sample in chat errors long_document save_load; do
    tells_how_it_is_used $sample python examples/$sample.py
    checks=$((checks + 1))
  done
  xz -dc "$top/samples/text/kjv.txt.xz" >"$work/text.txt"
  tail -c 30000 "$work/text.txt" >"$work/document.txt"
  echo "The password of Boaz the potter is copper meadow." >>"$work/document.txt"
  same_output 0 errors "$model" </dev/null
  same_output 1 errors "$work/missing" </dev/null
  same_output 0 save_load "$model" "In the beginning" "$work/saved.session" </dev/null
  same_output 0 long_document "$model" "$work/document.txt" "$asked" "Who are you?" </dev/null
  tells_progress_and_statistics "$work/python.err"
  ctrl_c_ends_reading_and_answering "$model" "$work/text.txt" "$work" python examples/long_document.py
  checks=$((checks + 1))
  same_output 0 chat "$model" < <(printf '%s\n' "$asked" "Grüße, 世界" "")
  # What is no UTF-8: arguments, a document, a turn.
  same_output 1 errors "$work/missing"$'\xff' </dev/null
  same_output 0 save_load "$model" $'In the \xff\xfe beginning' "$work/saved"$'\xff' </dev/null
  printf 'The \xff password\xc3 of Boaz.\n' >"$work/document"$'\xff'
  same_output 0 long_document "$model" "$work/document"$'\xff' $'What \xe4 password?' </dev/null
  same_output 1 long_document "$model" "$work/missing"$'\xff' "$asked" </dev/null
  same_output 1 chat "$work/missing"$'\xff' </dev/null
  same_output 0 chat "$model" < <(printf 'Gr\xfc\xdfe\n\xff')
}

transformers_writes_the_same_tokens() {
  [ -e "$work/transformers/bin/python" ] || python3 -m venv "$work/transformers"
  WAVEINFER_LIBRARY='' "$work/transformers/bin/pip" install -q "$top/python" torch==2.15.0 transformers==5.23.0
  "$work/transformers/bin/python" "$top/python/examples/transformers_cache.py" >"$work/transformers.out"
  grep '^full: .* the same tokens as its own: yes$' "$work/transformers.out"
  checks=$((checks + 1))
}

# From a checkout whose build folder has a bundled library, and with one that is named.
wheel_carries_the_library() {
  local checkout=$work/checkout bundled=$build/bundled/lib
  rm -rf "$work/wheels" "$checkout"
  mkdir -p "$checkout/build/bundled"
  cp -r "$top/python" "$top/include" "$top/LICENSE" "$checkout"
  if [ -e "$bundled/libwaveinfer.so" ]; then
    ln -s "$bundled" "$checkout/build/bundled/lib"
    (unset WAVEINFER_LIBRARY && pip wheel -q --no-deps -w "$work/wheels" "$checkout/python")
    install_wheel
    cmp "$bundled/LICENSES" "$work/unpacked/waveinfer/LICENSES"
    runs_with_what_it_carries '^(libc|libm|libpthread|libdl|libgcc_s|libmimalloc|libwaveinfer)\b'
  fi
  WAVEINFER_LIBRARY=$library pip wheel -q --no-deps -w "$work/wheels" "$checkout/python"
  install_wheel
  cmp "$library" "$work/unpacked/waveinfer/libwaveinfer.so"
  cmp "$top/LICENSE" "$work/unpacked/waveinfer/LICENSE"
  LD_LIBRARY_PATH=$build/lib runs_with_what_it_carries .
  checks=$((checks + 1))
}

# Where nothing of the checkout is but what is in it.
source_distribution_makes_a_wheel() {
  local folder=$work/sdist
  rm -rf "$folder"
  pip install -q 'hatchling>=1.26'
  (cd "$work/checkout/python" && python -m hatchling build -t sdist -d "$folder" >/dev/null)
  WAVEINFER_LIBRARY=$library pip wheel -q --no-deps -w "$work/wheels" "$folder"/waveinfer-*.tar.gz
  install_wheel
  cmp "$top/LICENSE" "$work/unpacked/waveinfer/LICENSE"
  checks=$((checks + 1))
}

# Unless the system's loader knows a library; an installed one would answer for the one that is missing here.
no_wheel_is_made_that_finds_no_library() {
  local checkout=$work/checkout
  rm -rf "$checkout/build" "$work/wheels"
  if ! /sbin/ldconfig -p | grep 'libwaveinfer\.so\.2 ' >/dev/null; then
    (unset WAVEINFER_LIBRARY && refuses_a_wheel '^ *cmake -S \. -B build -DBUILD_TESTING=OFF && cmake --build build ')
    mkdir -p "$checkout/build/lib" # where no bundled library could be made
    ln -s "$library" "$checkout/build/lib/libwaveinfer.so"
    (unset WAVEINFER_LIBRARY && refuses_a_wheel "^ *WAVEINFER_LIBRARY=$checkout/build/lib/libwaveinfer.so ")
    echo "WAVEINFER_BUNDLED:BOOL=ON" >"$checkout/build/CMakeCache.txt" # where that is the bundled one
    (unset WAVEINFER_LIBRARY && pip wheel -q --no-deps -w "$work/wheels" "$checkout/python")
    install_wheel
    cmp "$library" "$work/unpacked/waveinfer/libwaveinfer.so"
    rm -r "$checkout/build"
  fi
  WAVEINFER_LIBRARY=build/lib.so refuses_a_wheel "WAVEINFER_LIBRARY is build/lib.so: .* the whole path is needed"
  WAVEINFER_LIBRARY=$work/missing refuses_a_wheel "WAVEINFER_LIBRARY is $work/missing, where there is no file"
  (unset WAVEINFER_LIBRARY && LD_LIBRARY_PATH=$build/lib pip wheel -q --no-deps -w "$work/wheels" "$checkout/python")
  WAVEINFER_LIBRARY='' pip wheel -q --no-deps -w "$work/wheels/none" "$checkout/python"
  cmp "$work"/wheels/waveinfer-*-py3-none-any.whl "$work"/wheels/none/waveinfer-*-py3-none-any.whl
  rm -r "$work/wheels"
  checks=$((checks + 1))
}

# refuses_a_wheel PATTERN: no wheel of the checkout is made, and a line says why.
refuses_a_wheel() {
  if pip wheel -q --no-deps -w "$work/wheels" "$work/checkout/python" 2>"$work/refused.log"; then
    echo "a wheel was made that finds no library: $1" >&2
    return 1
  fi
  grep -q "$1" "$work/refused.log" || { cat "$work/refused.log" >&2; return 1; }
}

install_wheel() {
  rm -rf "$work/unpacked"
  pip install -q --no-deps --target "$work/unpacked" "$work"/wheels/waveinfer-*-py3-none-linux_*.whl
  rm -r "$work/wheels"
}

# runs_with_what_it_carries LIBRARIES: what the import adds to the process is those alone.
runs_with_what_it_carries() {
  (
    cd "$work" && unset WAVEINFER_LIBRARY
    PYTHONPATH=$work/unpacked python -c '
import re, sys, asyncio, logging, _cffi_backend, numpy
def loaded():
    return {line.split()[5] for line in open("/proc/self/maps") if ".so" in line}
before = loaded()
import waveinfer
with waveinfer.Runtime() as runtime:
    assert runtime.device_info().name == "cpu"
added = loaded() - before
assert any(path.endswith("/unpacked/waveinfer/libwaveinfer.so") for path in added), added
native = [path for path in added if "/lib-dynload/" not in path] # not the modules that Python itself has
others = [path for path in native if not re.match(sys.argv[1], path.rsplit("/", 1)[-1])]
assert not others, others' "$1"
  )
}

main "$@"
