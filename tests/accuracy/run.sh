#!/usr/bin/env bash
# What the sparse policies cost in accuracy, in one command: sets up, builds, makes the tasks, asks under every
# policy and budget, traces where attention is lost, and writes JSON lines, a table and plots to docs/results/.
#
#   tests/accuracy/run.sh                        the bundled model, 4K to 128K tokens
#   tests/accuracy/run.sh --long                 also 256K
#   tests/accuracy/run.sh --quick                the smallest run, about a minute, to build/accuracy/
#   tests/accuracy/run.sh --model FILE           your own model, in its own chat template
#   tests/accuracy/run.sh --policies LIST        e.g. "wave wave:estimation=-1 blocks"
#   tests/accuracy/run.sh --sizes LIST           tokens, documents of each kind, more of those that ask little, more
#                                                with a single fact, e.g. 4096:2,16384:2:4,131072:1:5:9
#
# Every other option goes to wi_accuracy as it is (build/bin/wi_accuracy --help).
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$top/samples/setup.sh"

work=$top/build/accuracy
results=$top/docs/results
model=$top/samples/model/needle-f16.gguf
answers=one # the bundled model answers single questions only
# Where the text begins that the bundled model has never seen (John 1); nothing to another model.
from=3606700
policies="wave wave:estimation=-1 wave:repeats=-1 wave:target_mass=0.95 streaming blocks"
# Tokens, documents of each kind, and how many more of the kinds in which a task has a question or four: in a mean
# over tasks each of those counts as much as fifty of a list. Then how many more with a single fact: of six of those
# questions, each would be worth 1.7 points of that mean.
sizes=(4096:2 16384:2:8 32768:2:12 65536:1:5 131072:1:5:9)
traces=("list-50 16384" "multikey-64 65536")
others=()

main() {
  local command="tests/accuracy/run.sh${*:+ $*}"
  read_arguments "$@"
  set_up "${build_packages[@]}" python3-venv
  configure "$top/build"
  cmake --build "$top/build" --target wi_accuracy wi_trace
  make_environment
  mkdir -p "$work" "$results"
  [ -e "$work/text.txt" ] || { xz -dc "$top/samples/text/kjv.txt.xz" >"$work/text.part" && mv "$work/text.part" "$work/text.txt"; }

  local started=$SECONDS common=(--model "$model" --text "$work/text.txt" --from "$from" --policies "$policies")
  local size trace
  : >"$work/answers.jsonl"
  : >"$work/trace.jsonl"
  for size in "${sizes[@]}"; do
    local tokens documents more single
    IFS=: read -r tokens documents more single <<<"$size"
    ask --lengths "$tokens" --seeds "$documents"
    [ -z "$more" ] || ask --lengths "$tokens" --documents single,few --first-seed $((documents + 1)) --seeds "$more"
    [ -z "$single" ] || ask --lengths "$tokens" --documents single --first-seed $((documents + more + 1)) --seeds "$single"
  done
  for trace in "${traces[@]}"; do
    "$top/build/bin/wi_trace" "${common[@]}" --document "${trace% *}" --length "${trace#* }" --questions 6 --steps 6 \
      --out "$work/part.jsonl" >"$work/trace-${trace% *}-${trace#* }.txt"
    cat "$work/part.jsonl" >>"$work/trace.jsonl"
  done
  "$work/venv/bin/python" "$top/tests/accuracy/report.py" --answers "$work/answers.jsonl" --trace "$work/trace.jsonl" \
    --model "$(basename "$model")" --command "$command" --seconds $((SECONDS - started)) --out "$results"
}

ask() {
  "$top/build/bin/wi_accuracy" "${common[@]}" --answers "$answers" --out "$work/part.jsonl" ${others[@]+"${others[@]}"} "$@"
  cat "$work/part.jsonl" >>"$work/answers.jsonl"
}

read_arguments() {
  while [ $# -gt 0 ]; do
    case $1 in
      --help) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
      --long) sizes+=(262144:1); shift ;;
      --quick) sizes=(4096:1) traces=("few 4096") results=$work; others+=(--documents few,list-5,list-20); shift ;;
      --model | --policies | --sizes)
        [ $# -gt 1 ] || { echo "tests/accuracy/run.sh: $1 needs a value" >&2; exit 1; }
        case $1 in
          --model) model=$2 answers=all from=0 others+=(--max-tokens 64) ;;
          --policies) policies=$2 ;;
          --sizes) IFS=, read -ra sizes <<<"$2" ;;
        esac
        shift 2 ;;
      *) others+=("$1"); shift ;;
    esac
  done
}

# Only the plots need Python.
make_environment() {
  [ ! -e "$work/venv/.complete" ] || return 0
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet matplotlib
  touch "$work/venv/.complete"
}

main "$@"
