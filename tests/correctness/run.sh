#!/usr/bin/env bash
# This library against llama.cpp, transformers and the tokenizer libraries, in one command: builds, then compares
# the distributions of models that llama.cpp quantised, the logits of models with sliding windows, of folders with random
# config.json files and of GGUF files with random keys, the ids of hard strings, also of folders with random tokenizer files, and rendered conversations.
#
#   tests/correctness/run.sh [models|windows|configs|gguf|tokenizers|folders|chat]... [--seed N] [--record]
#
# --record: what is printed also goes to docs/results/correctness.md.
# The chat templates are those of the source package of llama-cpp-python, which is fetched for them.
# What these programs answer to fixed questions is also in tests/fixtures, so that CTest holds it without them.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$top/samples/setup.sh"
. "$top/tests/support/python.sh"
build=${BUILD_DIR:-$top/build}

parts=() options=() record= command="tests/correctness/run.sh $*"
while [ $# -gt 0 ]; do
  case $1 in
    models | windows | configs | gguf | tokenizers | folders | chat) parts+=("$1") ;;
    --seed) options+=(--seed "${2:?--seed needs a number}"); shift ;;
    --record) record=$top/docs/results/correctness.md ;;
    *) echo "tests/correctness/run.sh: unknown argument $1; known: models, windows, configs, gguf, tokenizers, folders, chat, --seed N, --record" >&2; exit 1 ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=(models windows configs gguf tokenizers folders chat)

set_up "${build_packages[@]}" python3-venv python3-dev
configure "$build"
cmake --build "$build" --target waveinfer -j "$(nproc)" >/dev/null
python_environment peers "${peer_packages[@]}"
library=$build/lib/libwaveinfer.so # and no other one that lies about in there, as the bundled one does
[ -e "$library" ] || { echo "tests/correctness/run.sh: there is no $library: is $build a build folder of one configuration?" >&2; exit 1; }

compare() {
  local part failed=0
  for part in "${parts[@]}"; do
    "$python" "$top/tests/correctness/check_$part.py" --library "$library" "${options[@]}" || failed=1
  done
  return $failed
}

if [ -z "$record" ]; then
  compare
  exit
fi
mkdir -p "$(dirname "$record")"
machine=$("$python" -c "import sys; sys.path.append('$top/tests/bench'); import results; print(results.machine_line(results.machine()))")
compare | tee "$build/correctness.log"
{
  printf '# The same answers as llama.cpp, transformers and the tokenizer libraries\n\n    %s\n\nOn %s.\n\n```\n' "$command" "$machine"
  cat "$build/correctness.log"
  printf '```\n'
} >"$record"
