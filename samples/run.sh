#!/usr/bin/env bash
# The main job in one command: sets up, builds, reads a long real text with eight planted facts, and asks for
# them: once with full attention, once with the wave index.
#
#   samples/run.sh                                the bundled text and model, 32,768 tokens
#   samples/run.sh --tokens 131072                more of it
#   samples/run.sh --model FILE --document FILE --question TEXT [--question TEXT...]
#   samples/run.sh --policy full                  one policy alone (default: full,wave)
#
# Every other option goes to wi_ask as it is (build/bin/wi_ask --help).
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$top/samples/setup.sh"

bundled=$top/samples
work=$top/build/samples-data
model=$bundled/model/needle-f16.gguf
document=
tokens=
policy=full,wave
questions=()
others=()

main() {
  read_arguments "$@"
  set_up "${build_packages[@]}"
  configure "$top/build"
  cmake --build "$top/build" --target samples

  if [ -z "$document" ]; then
    tokens=${tokens:-32768}
    prepare_document
  fi
  [ -z "$tokens" ] || others+=(--tokens "$tokens")
  echo
  "$top/build/bin/wi_ask" --model "$model" --document "$document" --policy "$policy" \
    "${questions[@]}" ${others[@]+"${others[@]}"}
}

read_arguments() {
  while [ $# -gt 0 ]; do
    case $1 in
      --help) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
      --tokens | --model | --document | --policy | --question)
        [ $# -gt 1 ] || fail "$1 needs a value"
        case $1 in
          --tokens) tokens=$2 ;;
          --model) model=$2 ;;
          --document) document=$2 ;;
          --policy) policy=$2 ;;
          --question) questions+=(--question "$2") ;;
        esac
        shift 2 ;;
      *) others+=("$1"); shift ;;
    esac
  done
  [ -z "$document" ] || [ ${#questions[@]} -gt 0 ] || fail "--document needs at least one --question"
}

# The first tokens of the bundled text with the facts of facts.txt in between, and the questions for them.
prepare_document() {
  local text=$work/kjv.txt attribute entity value
  mkdir -p "$work"
  if [ ! -e "$text" ]; then
    xz -dc "$bundled/text/kjv.txt.xz" >"$text.part"
    mv "$text.part" "$text"
  fi
  # The sample model never saw the text from here (John 1) on; longer documents start at the beginning.
  local skip=3606700
  [ "$tokens" -le 150000 ] 2>/dev/null || skip=0
  document=$work/document.txt
  "$top/build/bin/wi_plant" --model "$model" --text "$text" --facts "$bundled/facts.txt" \
    --tokens "$tokens" --skip "$skip" --out "$document"
  [ ${#questions[@]} -eq 0 ] || return 0
  while IFS='|' read -r attribute entity value; do
    case $attribute in '#'* | '') continue ;; esac
    questions+=(--question "What is the ${attribute% } of $(trim "$entity")?" --expect "$(trim "$value")")
  done <"$bundled/facts.txt"
}

trim() {
  local text=${1# }
  printf '%s' "${text% }"
}

fail() {
  echo "samples/run.sh: $*" >&2
  exit 1
}

main "$@"
