# Sourced by the scripts that test the samples of a language: what long_document does in all of them beside its answers.

# tells_progress_and_statistics FILE: its standard error.
tells_progress_and_statistics() {
  local line
  for line in 'reading: 100 %' \
    '[0-9]+ tokens read in [0-9]+\.[0-9] s, [0-9]+ segments, [0-9]+\.[0-9] MB of KV cache, [0-9]+\.[0-9] MB of it index'; do
    has_line "$line" "$1" || { echo "long_document: no line \"$line\" in: $(cat "$1")" >&2; return 1; }
  done
}

# ctrl_c_ends_reading_and_answering MODEL TEXT WORK COMMAND...: the command, a long_document, ends with status 1 and one
# line that says why. TEXT is the whole of kjv.txt, which takes long to read; WORK is for scratch.
ctrl_c_ends_reading_and_answering() {
  local model=$1 text=$2 work=$3 i questions=()
  shift 3
  ctrl_c_ends "$work" 'reading: .*' "$@" "$model" "$text" "Who was Adam?" || return 1
  # Questions that are almost as long as an argument may be: when the short document is read, answers are far away.
  head -c 2000 "$text" >"$work/short.txt"
  for i in {1..8}; do questions+=("$(head -c $((i * 200000)) "$text" | tail -c 100000)"); done
  ctrl_c_ends "$work" 'reading: 100 %' "$@" "$model" "$work/short.txt" "${questions[@]}"
}

# ctrl_c_ends WORK LINE COMMAND...: it comes when standard error has the line. A shell has what it runs beside itself
# ignore it, which env undoes.
ctrl_c_ends() {
  local told=$1/interrupted.txt line=$2 status=0 process
  shift 2
  : >"$told" # before the program is there: what one before told would be taken for its own
  env --default-signal=INT "$@" </dev/null >/dev/null 2>"$told" &
  process=$!
  until has_line "$line" "$told"; do
    kill -0 $process 2>/dev/null || break
    sleep 0.1
  done
  kill -INT $process 2>/dev/null || true
  wait $process || status=$?
  if [ $status != 1 ] || ! tail -n 1 "$told" | grep -E '^long_document: .*([Cc]ancelled|CANCELLED|interrupted)' >/dev/null ||
    grep -q 'tokens read in' "$told"; then
    echo "Ctrl-C after \"$line\": status $status of $1: $(tail -c 1000 "$told")" >&2
    return 1
  fi
}

# Progress is written over itself.
has_line() { tr '\r' '\n' <"$2" | grep -xE "$1" >/dev/null; }
