#!/usr/bin/env bash
# waveinfer against llama.cpp on one random model: tests/bench/peers/run.sh [--shape small] [--weights f16|q8_0] …
# Builds the project, and in build/peers a Python environment with llama-cpp-python (which compiles llama.cpp
# for this processor: some minutes the first time).
set -euo pipefail
top=$(cd "$(dirname "$0")/../../.." && pwd)
build=${BUILD_DIR:-$top/build}
cmake -S "$top" -B "$build" -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$build" --target wi_bench --parallel "$(nproc)" >/dev/null
peers=$build/peers
if [ ! -e "$peers/.complete" ]; then
  python3 -m venv "$peers"
  "$peers/bin/pip" install --quiet numpy gguf llama-cpp-python
  touch "$peers/.complete"
fi
exec "$peers/bin/python" "$top/tests/bench/peers/compare.py" --bench "$build/bin/wi_bench" --folder "$peers" "$@"
