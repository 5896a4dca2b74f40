#!/usr/bin/env bash
# Talks to the editor's server and checks what it answers: `test.sh BIN SOURCE WORK` with the folder of the programs,
# the source tree and a folder for scratch. Each test is a claim; the first broken one ends the run.
#   test.sh --record BIN SOURCE WORK   prints transcript.txt with the answers as they are now
set -uo pipefail
record=
[ "${1-}" != --record ] || { record=1; shift; }
bin=$1 source=$2 work=$3
model=$source/samples/model/needle-f16.gguf
transcript=$source/samples/editor/transcript.txt
export LC_ALL=C
editor=("$bin/editor" --model "$model" --precision f32 --kv f32 --max-tokens 8)
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1

the_recorded_conversation_goes_as_it_went() {
  converse >now.txt
  cmp "$transcript" now.txt || broken "$(diff "$transcript" now.txt | head -n 20)"
}

an_answer_does_not_depend_on_how_input_is_cut() {
  local status=0
  while IFS= read -r -d '' -n 700 piece || [ -n "$piece" ]; do
    printf '%s' "$piece"
    sleep 0.01
  done < <(sed -n '/"settled-4"/q; s/^> //p' "$transcript" | frame; ending) | "${editor[@]}" >pieces.out || status=$?
  [ $status = 0 ] || broken "exit status $status"
  unframe <pieces.out >pieces.txt
  sed -n '/"settled-4"/q; s/^< //p' "$transcript" >wanted.txt
  head -n "$(wc -l <wanted.txt)" pieces.txt | cmp wanted.txt || broken "$(diff wanted.txt pieces.txt)"
}

what_is_no_message_is_an_error_and_the_next_one_is_heard() {
  {
    printf 'who is there?\r\n\r\n'
    printf 'Content-Length: many\r\n\r\n'
    printf 'Content-Length: 99999999999999999999\r\n\r\n'
    printf 'Content-Type: application/json\r\n\r\n'
    printf 'Content-Length: 6\r\n\r\n{"id":'
    printf 'Content-Length: 4\r\n\r\n"\xff\xfe"'
    printf 'Content-Length: 0\r\n\r\n'
    printf 'Content-Length: 100000\r\n\r\n'; head -c 100000 /dev/zero | tr '\0' '['
    printf 'Content-Length: 40000000\r\n\r\n'; head -c 40000000 /dev/zero
    head -c 100000 /dev/zero | tr '\0' 'x'; printf '\r\n\r\n'
    printf '{"jsonrpc":"2.0","id":1,"method":"lost"}'
    printf '{"jsonrpc":"2.0","id":2,"method":"initialize","params":{}}' >initialize
    printf 'content-length:%d\nContent-Type: x\n\n' "$(wc -c <initialize)"; cat initialize
    ending
  } >broken.in
  "${editor[@]}" <broken.in >broken.out 2>stderr.txt || broken "exit status $?: $(cat stderr.txt)"
  unframe <broken.out >broken.txt
  local codes
  codes=$(sed -En 's/.*"error":\{"code":(-[0-9]+),.*"id":null.*/\1/p' broken.txt | tr '\n' ' ')
  [ "$codes" = "-32600 -32600 -32600 -32600 -32700 -32700 -32700 -32700 -32600 -32600 -32600 " ] || broken "$codes: $(cat broken.txt)"
  grep -q '^{"id":2,.*capabilities' broken.txt || broken "initialize was not heard: $(cat broken.txt)"
}

# The model reads such a file for a minute or more.
a_completion_that_waits_for_a_long_file_is_cancelled_at_once() {
  local text
  text=$(xz -dc "$source/samples/text/kjv.txt.xz" | sed 's/[\\"]/\\&/g; s/\t/\\t/g; s/\r/\\r/g' | awk '{ printf "%s\\n", $0 }')
  coproc "${editor[@]}" 2>stderr.txt
  local process=$COPROC_PID
  tell '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}'
  hear '"id":1,'
  tell '{"jsonrpc":"2.0","method":"textDocument/didOpen","params":{"textDocument":{"uri":"file:///long","text":"'"$text"'"}}}'
  tell '{"jsonrpc":"2.0","id":2,"method":"textDocument/completion","params":{"textDocument":{"uri":"file:///long"},"position":{"line":9000,"character":0}}}'
  sleep 2 # it has begun to read
  tell '{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":2}}'
  hear '"code":-32800,.*"id":2,'
  tell '{"jsonrpc":"2.0","id":3,"method":"textDocument/completion","params":{"textDocument":{"uri":"file:///long"},"position":{"line":9000,"character":0}}}'
  tell '{"jsonrpc":"2.0","method":"textDocument/didChange","params":{"textDocument":{"uri":"file:///long"},"contentChanges":[{"text":"The nickname of Titus"}]}}'
  hear '"code":-32801,.*"id":3,'
  tell '{"jsonrpc":"2.0","id":4,"method":"textDocument/completion","params":{"textDocument":{"uri":"file:///long"},"position":{"line":0,"character":21}}}'
  hear '"id":4,.*"label":'
  tell '{"jsonrpc":"2.0","id":5,"method":"shutdown"}'
  hear '"id":5,.*"result":null'
  tell '{"jsonrpc":"2.0","method":"exit"}'
  wait $process || broken "exit status $?: $(cat stderr.txt)"
}

a_client_that_goes_ends_the_server() {
  grep -v '"method":"exit"' "$transcript" | sed -n 's/^> //p' | grep -v '"method":"shutdown"' | frame >gone.in
  fails "gone without a shutdown" "${editor[@]}" <gone.in >/dev/null
  head -c 1000 gone.in >cut.in
  fails "gone without a shutdown" "${editor[@]}" <cut.in >/dev/null
  fails "does not read any more" "${editor[@]}" <gone.in >/dev/full
  "${editor[@]}" <gone.in 2>stderr.txt | true
  [ "${PIPESTATUS[0]}" = 1 ] || broken "exit status ${PIPESTATUS[0]} when nobody reads"
}

# One byte of the conversation is another one, 25 times.
no_byte_makes_it_crash_or_hang() {
  local seed=${WI_TEST_SEED:-20260214} bytes at try status
  echo "seed $seed (WI_TEST_SEED)"
  RANDOM=$((seed % 32768))
  sed -n 's/^> //p' "$transcript" | frame >whole.in
  bytes=$(wc -c <whole.in)
  for try in {1..25}; do
    at=$(((RANDOM * 32768 + RANDOM) % bytes)) status=0
    { head -c $at whole.in; printf "\\x$(printf %x $((RANDOM % 256)))"; tail -c +$((at + 2)) whole.in; } >other.in
    timeout 120 "${editor[@]}" <other.in >other.out 2>stderr.txt || status=$?
    [ $status -le 1 ] || broken "exit status $status with another byte at $at, try $try: $(cat stderr.txt)"
    unframe <other.out >other.txt
  done
}

every_failure_is_status_1_and_one_line() {
  fails "no-such-file.gguf" "${editor[@]}" --model no-such-file.gguf
  fails "--model FILE is missing .--help" "$bin/editor"
  fails "--max-tokens" "${editor[@]}" --max-tokens 0
  fails "--kv" "${editor[@]}" --kv f8
}

# The transcript with the server's lines as they are now: what is answered up to a settled request stands behind it.
converse() {
  sed -n 's/^> //p' "$transcript" | frame >talk.in
  "${editor[@]}" <talk.in >talk.out 2>stderr.txt || broken "exit status $?: $(cat stderr.txt)"
  unframe <talk.out >talk.txt
  awk 'NR == FNR { answers[++count] = $0; next }
    /^</ { next }
    { print }
    /^>.*"method":"editor\/settled"/ {
      match($0, /"id":"settled-[0-9]+"/)
      id = substr($0, RSTART, RLENGTH)
      while (told < count) { print "< " answers[++told]; if (index(answers[told], id)) break }
    }
    END { while (told < count) print "< " answers[++told] }' talk.txt "$transcript"
}

# A message a line, into what the protocol wants and back.
frame() {
  local message
  while IFS= read -r message; do printf 'Content-Length: %d\r\n\r\n%s' ${#message} "$message"; done
}
unframe() {
  local header empty
  while IFS= read -r header; do
    [[ $header =~ ^Content-Length:\ ([0-9]+)$'\r'$ ]] || broken "a header is $header"
    IFS= read -r empty
    [ "$empty" = $'\r' ] || broken "behind a header is $empty"
    head -c "${BASH_REMATCH[1]}"
    echo
  done
}
ending() {
  printf '%s\n' '{"jsonrpc":"2.0","id":"end","method":"shutdown"}' '{"jsonrpc":"2.0","method":"exit"}' | frame
}

# To and from the server that runs beside.
tell() { printf 'Content-Length: %d\r\n\r\n%s' ${#1} "$1" >&"${COPROC[1]}"; }
hear() {
  local header empty message
  IFS= read -r -t 300 header <&"${COPROC[0]}" && IFS= read -r -t 300 empty <&"${COPROC[0]}" || broken "no answer: $(cat stderr.txt)"
  [[ $header =~ ^Content-Length:\ ([0-9]+) ]] || broken "a header is $header"
  IFS= read -r -t 300 -N "${BASH_REMATCH[1]}" message <&"${COPROC[0]}"
  grep -qE -- "$1" <<<"$message" || broken "not $1 but $message"
}

# fails WORDS COMMAND...: the command ends with status 1 and one line on standard error that has the words.
fails() {
  local words=$1 status=0
  shift
  "$@" 2>stderr.txt || status=$?
  [ $status = 1 ] || broken "exit status $status, not 1, of: $*: $(cat stderr.txt)"
  [ "$(wc -l <stderr.txt)" = 1 ] || broken "$(wc -l <stderr.txt) lines on standard error, not 1: $(cat stderr.txt)"
  grep -qE -- "$words" stderr.txt || broken "the error does not say \"$words\": $(cat stderr.txt)"
}

broken() {
  echo "[  FAILED  ] ${FUNCNAME[1]}: $*" >&2
  exit 1
}

if [ "$record" ]; then
  converse
  exit
fi
claims=(the_recorded_conversation_goes_as_it_went
  an_answer_does_not_depend_on_how_input_is_cut
  what_is_no_message_is_an_error_and_the_next_one_is_heard
  a_completion_that_waits_for_a_long_file_is_cancelled_at_once
  a_client_that_goes_ends_the_server
  no_byte_makes_it_crash_or_hang
  every_failure_is_status_1_and_one_line)
for claim in "${claims[@]}"; do
  "$claim"
  echo "[       OK ] $claim"
done
echo "[  PASSED  ] ${#claims[@]} test(s)."
