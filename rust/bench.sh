#!/usr/bin/env bash
# What a decode step costs through the crate over the same loop in C: `rust/bench.sh BUILD [--no-run]` with a CMake build
# folder of the project.
#   --no-run   only that both compile
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -ge 1 ] && [ "${2---no-run}" = --no-run ] || { echo "usage: rust/bench.sh BUILD [--no-run]" >&2; exit 1; }
build=$(cd "$1" && pwd)
export WAVEINFER_BUILD_DIR=$build CARGO_TARGET_DIR=$build/rust/target DECODE_STEP_C=$build/rust/decode_step.so

mkdir -p "$build/rust"
cc -std=gnu99 -O2 -Wall -Wextra -Werror -fPIC -shared -I "$top/include" -o "$DECODE_STEP_C" \
  "$top/rust/waveinfer/benches/decode_step.c" -L "$build/lib" -lwaveinfer -Wl,-rpath,"$build/lib"
cd "$top/rust"
cargo bench --locked --quiet --package waveinfer --bench decode_step ${2:+"$2"}
