#!/usr/bin/env bash
# waveinfer, llama.cpp (flash attention on and off) and transformers on the same weights in the same run, taking turns:
# prefill, decode over depth, memory. Writes docs/results/peers.md, .jsonl and plots.
#
#   tests/bench/peers/run.sh [--shape small] [--weights f16,q8_0] [--rounds 5] [--budget 25] [--only WORD]... [--fresh]
#   tests/bench/peers/run.sh --quick     a tiny model, one round, results under build/: whether it works
#
# A run that was broken off goes on where it stopped. Time it on a machine that does nothing else.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
. "$top/samples/setup.sh"
. "$top/tests/support/python.sh"
build=${BUILD_DIR:-$top/build}

set_up "${build_packages[@]}" python3-venv python3-dev
configure "$build"
cmake --build "$build" --target wi_bench attention_bench -j "$(nproc)" >/dev/null
python_environment peers "${peer_packages[@]}"
[ $# = 0 ] || arguments=$(printf "%q " "$@")
RUN_ARGUMENTS=${arguments-} exec "$python" "$top/tests/bench/peers/compare.py" --bin "$build/bin" --folder "$build/peers-models" "$@"
