#!/usr/bin/env bash
# Plays the game and checks what it says: `test.sh BIN SOURCE WORK [in_time]` with the folder of the programs, the
# source tree and a folder for scratch; with in_time, where nothing slows the program down but other programs, its
# times too. Each test is a claim; the first broken one ends the run.
set -uo pipefail
bin=$1 source=$2 work=$3 in_time=${4-}
model=$source/samples/model/needle-f16.gguf
export LC_ALL=C

rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1
xz -dc "$source/samples/text/kjv.txt.xz" >text.txt || exit 1
"$bin/wi_plant" --model "$model" --text text.txt --facts "$source/samples/facts.txt" --tokens 8192 --skip 3606700 \
  --out lore.txt || exit 1
game=("$bin/game_loop" --model "$model" --document lore.txt)
questions=("What is the secret ingredient of the river harbor?" "What is the password of Boaz the potter?"
  "What is the hidden treasure of the gray market?" "What is the nickname of Titus the painter?")
answers=("amber lantern" "copper meadow" "poppy saddle" "velvet sparrow")

the_character_answers_from_what_it_has_read() {
  play
  local i
  for i in "${!questions[@]}"; do
    grep -A 1 -Fx "${questions[i]}" game.out | grep "^  The .* is ${answers[i]}\.\$" >/dev/null || broken "it said $(cat game.out)"
  done
}

# A machine may be busy with more than it has cores for: one game of thirty has to go as it should, with no frame
# missed for whatever reason, and no spike in its picture.
no_frame_is_missed() {
  tail -n 1 game.out | grep -E "^frames [0-9]+, in the library's calls p50 $ms, p99 $ms, max $ms, missed [0-9]+, for the calls [0-9]+\$" >/dev/null ||
    broken "the last line is $(tail -n 1 game.out)"
  [ "$in_time" = in_time ] || return 0
  local try
  for ((try = 1; try <= 30; ++try)); do
    tail -n 1 game.out
    goes_as_it_should && return
    [ $try = 30 ] || play
  done
  broken "calls took more than 2 ms of a frame, a frame was missed, or the picture has a spike"
}
ms='[0-9]+\.[0-9]+ ms'

goes_as_it_should() {
  tail -n 1 game.out | awk '{ gsub(",", ""); exit !($14 <= 2 && $17 == 0 && $NF == 0) }' || return
  ! grep -q 'class="over"' game.svg
}

the_program_has_no_call_that_waits() {
  nm --undefined-only "$bin/game_loop" >calls.txt || broken "nm failed"
  grep -q wi_task_poll calls.txt || broken "it does not poll: $(cat calls.txt)"
  grep -E 'wi_(session_(prefill|append_text|decode|accept|logits|save.*|load.*)|batch_decode|task_wait)$' calls.txt &&
    broken "it has calls that wait"
}

the_picture_has_every_frame() {
  local frames points element='<(rect|path|circle|polyline)( [a-z-]+="[^"<>&]*")+/>' text='<text( [a-z-]+="[^"<>&]*")+>[^<>&]*</text>'
  frames=$(tail -n 1 game.out | sed -E 's/^frames ([0-9]+),.*/\1/')
  head -n 1 game.svg | grep -E '^<svg xmlns="http://www.w3.org/2000/svg"( [a-zA-Z-]+="[^"<>&]*")+>$' >/dev/null || broken "it begins with $(head -n 1 game.svg)"
  [ "$(tail -n 1 game.svg)" = "</svg>" ] || broken "it ends with $(tail -n 1 game.svg)"
  sed '1d;$d' game.svg | grep -vE "^($element|$text)\$" && broken "a line is no element"
  for points in $(sed -n 's/^<polyline.* points="\(.*\)"\/>$/\1/p' game.svg | awk '{ print NF }'); do
    [ "$points" = "$frames" ] || broken "a line has $points points, of $frames frames"
  done
  [ "$(grep -c '^<polyline' game.svg)" = 2 ] || broken "there are not two lines"
}

interrupt_ends_the_game_and_its_threads_stood_back() {
  head -c 3000000 text.txt >long.txt # no longer than the model was made for
  "${game[@]}" --document long.txt --question "${questions[0]}" --picture ended.svg >ended.out 2>stderr.txt &
  local process=$! status=0 thread nice stood_back=0
  for _ in {1..600}; do # until it catches SIGINT, wherever that takes long, and its engine runs
    grep -qsE '^SigCgt:.*[2367abef]$' /proc/$process/status && grep -qsx wi-engine /proc/$process/task/*/comm && break
    sleep 0.1
  done
  sleep 0.5
  for thread in /proc/$process/task/*; do
    nice=$(sed 's/.*) //' "$thread/stat" | cut -d ' ' -f 17)
    case $(cat "$thread/comm") in
      game_loop) ;;
      wi-*) [ "$nice" -gt "$(nice)" ] && stood_back=$((stood_back + 1)) || broken "$(cat "$thread/comm") is at nice $nice" ;;
    esac
  done
  [ $stood_back -gt 0 ] || broken "the library has no threads: $(cat /proc/$process/task/*/comm)"
  kill -INT $process
  wait $process || status=$?
  [ $status = 1 ] || broken "exit status $status after SIGINT"
  one_line_with "interrupted"
  tail -n 1 ended.out | grep '^frames [0-9]' >/dev/null || broken "no figures after SIGINT: $(cat ended.out)"
}

every_failure_is_status_1_and_one_line() {
  sed 's/tokenizer\.chat_template/tokenizer.chat_nonsense/' "$model" >untold.gguf
  local asked=(--question "${questions[0]}")
  fails "no-such-file.gguf" "${game[@]}" "${asked[@]}" --model no-such-file.gguf
  fails "template" "${game[@]}" "${asked[@]}" --model untold.gguf
  fails "no-such-lore" "${game[@]}" "${asked[@]}" --document no-such-lore
  fails "no-such-folder" "${game[@]}" "${asked[@]}" --picture no-such-folder/game.svg
  fails "No space left" "${game[@]}" "${asked[@]}" --picture /dev/full
  fails "--question TEXT is missing .--help" "${game[@]}"
  fails "--model FILE is missing .--help" "$bin/game_loop"
  echo picture >kept.svg
  fails "no-such-file.gguf" "${game[@]}" "${asked[@]}" --model no-such-file.gguf --picture kept.svg
  grep -qx picture kept.svg || broken "the picture of another game is gone"
  fails "no-such-file.gguf" "${game[@]}" "${asked[@]}" --model no-such-file.gguf --picture never.svg
  [ ! -e never.svg ] || broken "a game that never began left an empty picture"
  fails "--nice" "${game[@]}" "${asked[@]}" --nice 20
}

play() {
  local asked=() question
  for question in "${questions[@]}"; do asked+=(--question "$question"); done
  "${game[@]}" "${asked[@]}" --picture game.svg >game.out || broken "game_loop failed: $(cat game.out)"
}

# fails WORDS COMMAND...: the command ends with status 1 and one line on standard error that has the words.
fails() {
  local words=$1 status=0
  shift
  "$@" </dev/null >/dev/null 2>stderr.txt || status=$?
  [ $status = 1 ] || broken "exit status $status, not 1, of: $*: $(cat stderr.txt)"
  one_line_with "$words"
}

one_line_with() {
  [ "$(wc -l <stderr.txt)" = 1 ] || broken "$(wc -l <stderr.txt) lines on standard error, not 1: $(cat stderr.txt)"
  grep -qE -- "$1" stderr.txt || broken "the error does not say \"$1\": $(cat stderr.txt)"
}

broken() {
  echo "[  FAILED  ] ${FUNCNAME[1]}: $*"
  exit 1
}

claims=(the_character_answers_from_what_it_has_read
  no_frame_is_missed
  the_program_has_no_call_that_waits
  the_picture_has_every_frame
  interrupt_ends_the_game_and_its_threads_stood_back
  every_failure_is_status_1_and_one_line)
for claim in "${claims[@]}"; do
  "$claim"
  echo "[       OK ] $claim"
done
echo "[  PASSED  ] ${#claims[@]} test(s)."
