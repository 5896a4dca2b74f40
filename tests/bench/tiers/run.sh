#!/usr/bin/env bash
# A KV cache larger than the memory it may use: hit ratio and time over the share that is in memory, both managers, beside
# Belady's optimum on the same traces; an 8B model's cache four times its budget; a million tokens. Writes
# docs/results/tiers.md, .jsonl and a plot.
#
#   tests/bench/tiers/run.sh --document TEXT [--spill FOLDER] [--only disk|hits|sizes|long|budget|million]... [--fresh]
#   tests/bench/tiers/run.sh --document TEXT --quick     8K tokens, results under build/: whether it works
#
# TEXT: what the sample model reads, 131,072 of its tokens or more; samples/text/kjv.txt.xz, unpacked, is one. budget and
# million write 17 and 34 GB to --spill (default: /var/tmp), a file without a name. A run that was broken off goes on where
# it stopped. Time it on a machine that does nothing else.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
. "$top/samples/setup.sh"
. "$top/tests/support/python.sh"
build=${BUILD_DIR:-$top/build}

set_up "${build_packages[@]}" python3-venv
configure "$build"
cmake --build "$build" --target wi_bench hits_bench spill_bench -j "$(nproc)" >/dev/null
python_environment growth numpy gguf matplotlib
[ $# = 0 ] || arguments=$(printf "%q " "$@")
RUN_ARGUMENTS=${arguments-} exec "$python" "$top/tests/bench/tiers/tiers.py" --bin "$build/bin" --folder "$build/tiers" "$@"
