#!/usr/bin/env bash
# How a decode step grows: with the context from 1K to 1M tokens, with the batch, with threads; and how long the first
# token takes from a cold and a warm page cache. Writes docs/results/growth.md, .jsonl and plots.
#
#   tests/bench/growth/run.sh [--shape small] [--weights q8_0] [--most 1048576] [--only context|batch|threads|start]... [--fresh]
#   tests/bench/growth/run.sh --quick     a tiny model up to 16K tokens, results under build/: whether it works
#
# A run that was broken off goes on where it stopped. Time it on a machine that does nothing else.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
. "$top/samples/setup.sh"
. "$top/tests/support/python.sh"
build=${BUILD_DIR:-$top/build}

set_up "${build_packages[@]}" python3-venv
configure "$build"
cmake --build "$build" --target wi_bench attention_bench embed -j "$(nproc)" >/dev/null
python_environment growth numpy gguf matplotlib
[ $# = 0 ] || arguments=$(printf "%q " "$@")
RUN_ARGUMENTS=${arguments-} exec "$python" "$top/tests/bench/growth/growth.py" --bin "$build/bin" --folder "$build/peers-models" "$@"
