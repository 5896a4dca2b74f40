#!/usr/bin/env bash
# Many requests at once: wi_bench --serve and llama.cpp's own server get the same mix, one after the other. Writes
# docs/results/serve.md and .jsonl. llama.cpp's server is compiled from the sources that PyPI's llama-cpp-python
# brings: twenty minutes on two cores, the first time.
#
#   tests/bench/peers/serve.sh [--shape small] [--weights q8_0] [--requests 32] [--rate 1] [--long 4096] [--fresh]
#   tests/bench/peers/serve.sh --quick     a tiny model, few requests, results under build/: whether it works
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
. "$top/samples/setup.sh"
. "$top/tests/support/python.sh"
build=${BUILD_DIR:-$top/build}
llama=$build/llama.cpp

make_llama_server() {
  [ ! -x "$llama/build/bin/llama-server" ] || return 0
  mkdir -p "$llama"
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: -d "$llama" llama-cpp-python
  tar -xzf "$llama"/llama_cpp_python-*.tar.gz -C "$llama"
  cmake -S "$llama"/llama_cpp_python-*/vendor/llama.cpp -B "$llama/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF >"$llama/configure.log"
  cmake --build "$llama/build" --target llama-server -j "$(nproc)" >"$llama/build.log"
}

set_up "${build_packages[@]}" python3-venv
configure "$build"
cmake --build "$build" --target wi_bench -j "$(nproc)" >/dev/null
python_environment serve numpy gguf
[ -n "${LLAMA_SERVER-}" ] || make_llama_server
[ $# = 0 ] || arguments=$(printf "%q " "$@")
RUN_ARGUMENTS=${arguments-} exec "$python" "$top/tests/bench/peers/serve.py" --bin "$build/bin" \
  --llama-server "${LLAMA_SERVER-$llama/build/bin/llama-server}" --folder "$build/peers-models" "$@"
