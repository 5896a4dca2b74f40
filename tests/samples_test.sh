#!/usr/bin/env bash
# Runs the sample programs as a user would and checks what they print: `samples_test.sh BIN SOURCE WORK` with
# the folder of the programs, the source tree and a folder for scratch. Each test is a claim; the first broken
# one ends the run.
set -uo pipefail
bin=$1 source=$2 work=$3
model=$source/samples/model/needle-f16.gguf
facts=$source/samples/facts.txt
question="What is the secret ingredient of the river harbor?"
export LC_ALL=C
. "$source/tests/support/long_document.sh"

rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1
xz -dc "$source/samples/text/kjv.txt.xz" >text.txt || exit 1

tokens_come_back_as_the_same_text() {
  { head -c 20000 text.txt; printf 'naïve — 漢字 \xf0\x9f\x8c\x8a\t\r\n  <|end|> \xff\xfe end\n\n\n'; } >round.txt
  "$bin/wi_tokens" --model "$model" <round.txt >round.ids || broken "wi_tokens failed"
  grep -qvE '^[0-9]+$' round.ids && broken "a line is no token id"
  "$bin/wi_tokens" --model "$model" --decode <round.ids >round.back || broken "wi_tokens --decode failed"
  cmp round.txt round.back || broken "the text came back changed"
}

special_tokens_are_single_ids() {
  local ids plain
  ids=$(printf '<|user|>' | "$bin/wi_tokens" --model "$model" --bos | tr '\n' ' ')
  [ "$ids" = "0 2 " ] || broken "BOS and <|user|> are $ids, not 0 2"
  plain=$(printf '<|user|>' | "$bin/wi_tokens" --model "$model" --plain | wc -l)
  [ "$plain" -gt 1 ] || broken "--plain made a special token"
}

logits_have_a_row_per_token() {
  head -c 3000 text.txt | "$bin/wi_tokens" --model "$model" >prompt.ids
  "$bin/wi_logits" --model "$model" --tokens-file prompt.ids --out prompt.f32 || broken "wi_logits failed"
  local tokens bytes
  tokens=$(wc -l <prompt.ids) bytes=$(wc -c <prompt.f32)
  [ "$bytes" = $((tokens * 4096 * 4)) ] || broken "$bytes bytes of logits for $tokens tokens of vocabulary 4096"
}

logits_do_not_depend_on_how_the_prompt_is_given() {
  "$bin/wi_logits" --model "$model" --text "$(head -c 3000 text.txt)" >text.f32 || broken "wi_logits --text failed"
  cmp prompt.f32 text.f32 || broken "--text and --tokens-file differ"
  "$bin/wi_logits" --model "$model" --tokens-file prompt.ids --kv f32 --out f32.f32 || broken "--kv f32 failed"
  cmp -s prompt.f32 f32.f32 && broken "--kv f32 changed nothing"
}

logits_do_not_depend_on_where_weights_lie() {
  "$bin/wi_logits" --model "$model" --tokens-file prompt.ids --load copied --out copied.f32 || broken "--load copied failed"
  cmp prompt.f32 copied.f32 || broken "copied and mapped weights differ"
}

# Of these logits, which spread by 2, bf16 moves some by 0.09 and sums of two bf16 numbers by 0.001; of other texts
# 0.3 and 0.014, as keys and values fall on the other side of a rounding to f16.
logits_hardly_depend_on_precision() {
  head -n 100 prompt.ids >few.ids
  local precision most
  for precision in f32 high fast; do
    "$bin/wi_logits" --model "$model" --tokens-file few.ids --precision $precision | od -An -v -w4 -t f4 >$precision.txt
  done
  for precision in high:0.05 fast:1; do
    most=${precision#*:} precision=${precision%:*}
    paste f32.txt "$precision.txt" |
      awk -v most="$most" '{ d = $1 - $2; if (d < -most || d > most) exit 1 } END { if (NR != 100 * 4096) exit 1 }' ||
      broken "--precision $precision moves logits by more than $most, or there are none"
  done
}

planted_document_has_the_length_asked_for_and_all_facts() {
  "$bin/wi_plant" --model "$model" --text text.txt --facts "$facts" --tokens 2048 --skip 3606700 \
    --out document.txt || broken "wi_plant failed"
  local tokens
  tokens=$("$bin/wi_tokens" --model "$model" --plain <document.txt | wc -l)
  [ "$tokens" -ge 2048 ] && [ "$tokens" -le 2300 ] || broken "the document has $tokens tokens, not 2048 or a few more"
  [ "$(grep -cE '^The .* of .* is .*\.$' document.txt)" -ge 8 ] || broken "facts are missing"
  head -n 1 document.txt | grep -x 'John 1' >/dev/null || broken "--skip did not reach John 1"
}

ask_answers_from_the_document_with_each_policy() {
  local policy
  for policy in full wave; do
    "$bin/wi_ask" --model "$model" --document document.txt --question "$question" --policy $policy >answer.txt ||
      broken "wi_ask --policy $policy failed"
    grep -q "amber lantern" answer.txt || broken "$policy did not find the fact: $(cat answer.txt)"
  done
}

ask_writes_one_json_object_per_question_with_the_fixed_fields() {
  "$bin/wi_ask" --model "$model" --document document.txt --json --question "$question" \
    --question 'Say "quoted\" and	tabbed' >answers.json 2>stderr.txt || broken "wi_ask --json failed"
  [ "$(wc -l <answers.json)" = 2 ] || broken "two questions gave $(wc -l <answers.json) lines"
  [ -s stderr.txt ] && broken "standard error is not empty: $(cat stderr.txt)"
  local text='"([^"\\]|\\.)*"' whole='[0-9]+' number='[0-9]+(\.[0-9]+)?' fields
  fields="^\{\"question\": $text, \"answer\": $text, \"policy\": \"wave\", \"device\": \"cpu\""
  fields+=", \"document_tokens\": $whole, \"prefill_seconds\": $number, \"prefill_tokens_per_second\": $number"
  fields+=", \"first_token_ms\": $number, \"ms_per_token\": $number, \"kv_bytes\": $whole"
  fields+=", \"kv_bytes_read_per_token\": $number, \"hit_ratio\": $number, \"peak_rss_bytes\": $whole[,}]"
  [ "$(grep -cE "$fields" answers.json)" = 2 ] || broken "fields are missing or out of order: $(cat answers.json)"
  head -n 1 answers.json | grep '"answer": "The secret ingredient of the river harbor is amber lantern\."' >/dev/null ||
    broken "the first answer is wrong: $(head -n 1 answers.json)"
  tail -n 1 answers.json | grep -F '"question": "Say \"quoted\\\" and\u0009tabbed"' >/dev/null || broken "JSON is not escaped"
  grep -qE '"(prefill_seconds|first_token_ms|kv_bytes|kv_bytes_read_per_token|peak_rss_bytes)": 0[,}]' answers.json &&
    broken "a measured field is zero: $(cat answers.json)"
}

ask_reads_only_the_tokens_asked_for() {
  "$bin/wi_ask" --model "$model" --document document.txt --tokens 1000 --json --question "$question" \
    --max-tokens 2 >answers.json || broken "wi_ask --tokens failed"
  grep -q '"document_tokens": 1000,' answers.json || broken "it read another number: $(cat answers.json)"
  grep -q '"answer_tokens": 2,' answers.json || broken "--max-tokens 2 did not hold: $(cat answers.json)"
}

ask_compares_policies_in_a_table() {
  "$bin/wi_ask" --model "$model" --document document.txt --policy full,wave --question "$question" \
    --expect "amber lantern" >table.txt || broken "wi_ask with two policies failed"
  grep -qE '^ +full +wave$' table.txt || broken "the table has no heading: $(cat table.txt)"
  grep -qE '^right answers +1 of 1 +1 of 1$' table.txt || broken "the table counts wrongly: $(cat table.txt)"
}

# made_for TOKENS: the sample model, said to be made for so many.
made_for() {
  local key=llama.context_length at
  at=$(grep -abo $key "$model" | head -n 1 | cut -d: -f1)
  cp "$model" short.gguf && chmod u+w short.gguf
  # shellcheck disable=SC2059 # the bytes of a little-endian number
  printf "$(printf '\\x%02x\\x%02x\\0\\0' $(($1 % 256)) $(($1 / 256)))" |
    dd of=short.gguf bs=1 seek=$((at + ${#key} + 4)) conv=notrunc status=none
}

what_goes_beyond_the_model_is_warned_of() {
  made_for 1000
  local ask=("$bin/wi_ask" --model short.gguf --document document.txt --question "$question" --max-tokens 30)
  "${ask[@]}" >/dev/null 2>stderr.txt || broken "wi_ask failed: $(cat stderr.txt)"
  one_line_with "warning: .* made for 1000 tokens \(max_positions\), the prompt has 2[0-9]+ and the answer up to 30"
  "${ask[@]}" --tokens 900 >/dev/null 2>stderr.txt || broken "wi_ask failed: $(cat stderr.txt)"
  [ -s stderr.txt ] && broken "930 tokens and a question are warned of: $(cat stderr.txt)"
  local long
  long=$(yes word | head -n 1000 | tr '\n' ' ')
  printf 'hello\n%s\nhello\n/new\n%s\n' "$long" "$long" | "$bin/wi_chat" --model short.gguf --max-tokens 2 >/dev/null 2>stderr.txt ||
    broken "wi_chat failed: $(cat stderr.txt)"
  [ "$(grep -c 'warning: .* 1000 tokens' stderr.txt)" = 2 ] || broken "each conversation is warned of once: $(cat stderr.txt)"
  [ -x "$bin/game_loop" ] || return 0
  "$bin/game_loop" --model short.gguf --document document.txt --question "$question" --picture short.svg >/dev/null 2>stderr.txt ||
    broken "game_loop failed: $(cat stderr.txt)"
  one_line_with "warning: .* 1000 tokens"
}

an_answer_that_is_cut_off_says_so() {
  local ask=("$bin/wi_ask" --model "$model" --document document.txt --question "$question" --policy full)
  "${ask[@]}" --json --max-tokens 2 | grep '"finish": "length"}$' >/dev/null || broken "wi_ask --json does not say so"
  "${ask[@]}" --json | grep '"finish": "stop"}$' >/dev/null || broken "it says so of a whole answer, too"
  "${ask[@]}" --max-tokens 2 >cut.txt || broken "wi_ask failed"
  [ "$(grep -c '(cut off' cut.txt)" = 2 ] || broken "it is not said twice: $(cat cut.txt)"
  "${ask[@]}" | grep 'cut off' && broken "text says so of a whole answer, too"
  echo hello | "$bin/wi_chat" --model "$model" --max-tokens 2 2>stderr.txt >/dev/null || broken "wi_chat failed"
  one_line_with "cut off at --max-tokens 2" wi_chat
}

# By the signal, so that a shell's loop around it ends.
interrupt_ends_ask_with_one_line() {
  head -c 3000000 text.txt >long.txt # no longer than the model was made for
  "$bin/wi_ask" --model "$model" --document long.txt --question "$question" >/dev/null 2>stderr.txt &
  local process=$! status=0
  for _ in {1..600}; do # until it catches SIGINT, wherever that takes long
    grep -qE '^SigCgt:.*[2367abef]$' /proc/$process/status && break
    sleep 0.1
  done
  sleep 2
  kill -INT $process
  wait $process || status=$?
  [ $status = 130 ] || broken "exit status $status after SIGINT: $(cat stderr.txt)"
  one_line_with "cancelled"
}

every_failure_is_status_1_and_one_line() {
  head -c 100000 "$model" >cut.gguf
  sed 's/tokenizer\.chat_template/tokenizer.chat_nonsense/' "$model" >untold.gguf
  : >empty.txt
  local ask=("$bin/wi_ask" --document document.txt --question "$question")
  fails "no-such-file.gguf" "${ask[@]}" --model no-such-file.gguf
  fails "cut.gguf|offset|beyond" "${ask[@]}" --model cut.gguf
  fails "raw" "${ask[@]}" --model untold.gguf
  fails "nonsense" "${ask[@]}" --model "$model" --policy nonsense
  fails "nonsense" "${ask[@]}" --model "$model" --policy full,nonsense
  fails "no-such-device" "${ask[@]}" --model "$model" --device no-such-device
  fails "no-such-document" "$bin/wi_ask" --model "$model" --document no-such-document --question "$question"
  fails "no text" "$bin/wi_ask" --model "$model" --document empty.txt --question "$question"
  fails "--question" "$bin/wi_ask" --model "$model" --document document.txt
  fails "--nonsense" "${ask[@]}" --model "$model" --nonsense
  fails "--tokens .*many" "${ask[@]}" --model "$model" --tokens many
  fails "--tokens needs" "${ask[@]}" --model "$model" --tokens
  fails "--budget" "${ask[@]}" --model "$model" --budget 1.5
  fails "--kv" "${ask[@]}" --model "$model" --kv f8
  fails "--kv-fast wants --spill" "${ask[@]}" --model "$model" --kv-fast 0.5
  fails "no-such-device" "${ask[@]}" --model "$model" --kv-fast 0.5 --device no-such-device
  fails "--temperature" "${ask[@]}" --model "$model" --temperature 101
  fails "room for [0-9,]+ \(max_tokens\).*--kv-budget.*--spill" "${ask[@]}" --model "$model" --kv-budget 1
  fails "--threads" "${ask[@]}" --model "$model" --threads 1025
  fails "--threads" "$bin/wi_logits" --model "$model" --text hello --threads 1025
  fails "--load" "${ask[@]}" --model "$model" --load moved
  fails "--precision" "${ask[@]}" --model "$model" --precision low
  fails "no-such-file.gguf" "$bin/wi_tokens" --model no-such-file.gguf
  fails "--text" "$bin/wi_logits" --model "$model"
  fails "token" "$bin/wi_logits" --model "$model" --tokens-file document.txt
  fails "no-such-folder" "$bin/wi_logits" --model "$model" --text hello --out no-such-folder/logits
  fails "facts alone" "$bin/wi_plant" --model "$model" --text text.txt --facts "$facts" --tokens 10 --out short.txt
  "${ask[@]}" --model untold.gguf --raw --max-tokens 3 >/dev/null || broken "--raw needs no template, but failed"
}

every_program_tells_what_it_is() {
  local program
  for program in wi_ask wi_chat wi_logits wi_tokens wi_plant game_loop editor wi_accuracy wi_trace wi_bench attention_bench \
    kernel_bench prefill_bench frame_bench hits_bench sample_bench spill_bench cuda_kernel_bench embed sample_chat \
    sample_long_document sample_save_load sample_errors; do
    [ -x "$bin/$program" ] || continue # benches may not be built here
    timeout 20 "$bin/$program" --help >help.txt || broken "$program --help failed"
    grep -q "$program" help.txt || broken "$program --help does not name it"
    grep -q "^Example: .*$program" help.txt || broken "$program --help shows no example"
    timeout 20 "$bin/$program" -h | cmp - help.txt || broken "$program -h differs from --help"
    timeout 20 "$bin/$program" --version | grep -E "^$program [0-9]+\.[0-9]+\.[0-9]+$" >/dev/null || broken "$program --version"
  done
}

chat_goes_on_where_it_was_saved() {
  local options=(--model "$model" --temperature 0 --max-tokens 24)
  printf '%s\n' "The password of Boaz the potter is copper meadow." "What is the password of Boaz the potter?" \
    "What is the code name of Ruth?" | "$bin/wi_chat" "${options[@]}" 2>chat.err >whole.txt || broken "wi_chat failed"
  printf '%s\n' "The password of Boaz the potter is copper meadow." "What is the password of Boaz the potter?" /stats \
    "/save $work/chat.session" | "$bin/wi_chat" "${options[@]}" 2>chat.err >first.txt || broken "wi_chat with /save failed"
  grep -qE '^[0-9]+ tokens, .* of KV cache' first.txt || broken "/stats tells nothing: $(cat first.txt)"
  printf '%s\n' "/load $work/chat.session" "What is the code name of Ruth?" | "$bin/wi_chat" "${options[@]}" 2>chat.err >second.txt ||
    broken "wi_chat with /load failed"
  cmp <(tail -n 1 whole.txt) <(tail -n 1 second.txt) || broken "the answer after /load differs"
  printf '%s\n' "/load $work/chat.session" "What is the code name of Ruth?" |
    "$bin/wi_chat" "${options[@]}" --load copied --spill "$work" --device cpu --precision fast 2>chat.err >elsewhere.txt ||
    broken "wi_chat with weights in memory and a slow tier failed"
  cmp <(tail -n 1 whole.txt) <(tail -n 1 elsewhere.txt) || broken "where weights and KV cache lie changes the answer"
  fails "must be mapped or copied" "$bin/wi_chat" --model "$model" --load lost
  fails "device" "$bin/wi_chat" --model "$model" --device abacus
  printf '/load %s/absent\n' "$work" >absent.txt
  "$bin/wi_chat" "${options[@]}" <absent.txt >/dev/null 2>stderr.txt && broken "a file that is not there was loaded"
  one_line_with "absent" wi_chat
}

# The first answer was made of the likeliest tokens; at the other temperature all are nearly alike.
chat_goes_on_with_the_policy_saved_and_the_sampling_given() {
  printf 'hello\n/save full.session\n' | "$bin/wi_chat" --model "$model" --policy full --temperature 0 --max-tokens 8 >/dev/null 2>chat.err ||
    broken "wi_chat --policy full failed"
  printf '/load full.session\nhello\n' >load.txt
  "$bin/wi_chat" --model "$model" --max-tokens 8 <load.txt >saved.txt 2>chat.err || broken "what was saved under full was not loaded"
  grep -q '^2 messages; sampling as saved$' saved.txt || broken "it does not say as what it goes on: $(cat saved.txt)"
  "$bin/wi_chat" --model "$model" --max-tokens 8 --temperature 100 --seed 1 <load.txt >given.txt 2>chat.err || broken "/load with --seed failed"
  cmp -s <(tail -n 1 saved.txt) <(tail -n 1 given.txt) && broken "--temperature and --seed change nothing after /load"
  "$bin/wi_chat" --model "$model" --policy wave <load.txt >/dev/null 2>stderr.txt && broken "full was loaded as wave"
  one_line_with "policy" wi_chat
}

a_template_is_tried_before_the_conversation() {
  fails "variables_json" "$bin/wi_chat" --model "$model" --variables '{'
  sed 's/tokenizer\.chat_template/tokenizer.chat_nonsense/' "$model" >untold.gguf
  fails "template" "$bin/wi_chat" --model untold.gguf
}

lines_may_end_as_elsewhere_and_begin_with_a_slash() {
  printf '/stats\r\n//stats\r\n/save slash.session\r\n' | "$bin/wi_chat" --model "$model" --max-tokens 2 >slash.txt 2>chat.err || broken "wi_chat failed"
  grep -q '^0 tokens' slash.txt || broken "/stats was not understood: $(cat slash.txt)"
  grep -qx '/stats' slash.session.words || broken "the words are $(cat slash.session.words)"
}

words_that_are_not_whole_are_refused() {
  local words=$work/chat.session.words head
  head=$(head -n 1 "$words")
  [[ $head =~ ^a\ conversation\ of\ wi_chat:\ 4\ messages,\ $(tail -n +2 "$words" | wc -c)\ bytes$ ]] || broken "the first line is $head"
  cp chat.session cut.session
  printf '/load cut.session\n' >load_cut.txt
  : >cut.session.words
  refuses_to_load_cut
  head -c -1 "$words" >cut.session.words
  refuses_to_load_cut
  tail -n +2 "$words" >cut.session.words
  refuses_to_load_cut
  head -n 3 "$words" >cut.session.words # the first message, and nothing else
  refuses_to_load_cut
  { cat "$words"; echo; } >cut.session.words
  refuses_to_load_cut
  sed 's/^assistant [0-9]*$/assistant 99999999999999999999/' "$words" >cut.session.words
  refuses_to_load_cut
}

# A conversation that nobody else may read stays so, and where it is; nothing is left of a save that was killed.
words_keep_their_mode_and_their_place() {
  rm -rf kept && mkdir -p kept/elsewhere
  printf '/save kept/session\n' >save_kept.txt
  "$bin/wi_chat" --model "$model" <save_kept.txt >/dev/null 2>chat.err || broken "wi_chat failed"
  mv kept/session.words kept/elsewhere/words
  ln -s elsewhere/words kept/session.words
  chmod 600 kept/session kept/elsewhere/words
  : >kept/elsewhere/words.saving
  { echo hello; cat save_kept.txt; } | "$bin/wi_chat" --model "$model" --max-tokens 2 >/dev/null 2>chat.err || broken "wi_chat failed"
  [ "$(stat -c %a kept/session kept/elsewhere/words | xargs)" = '600 600' ] || broken "modes are $(stat -c '%a %n' kept/* kept/elsewhere/*)"
  [ -L kept/session.words ] && grep -qx hello kept/elsewhere/words || broken "the link's file is not the new one"
  [ "$(find kept -type f | wc -l)" = 2 ] || broken "there are $(find kept)"
}

refuses_to_load_cut() {
  "$bin/wi_chat" --model "$model" <load_cut.txt >/dev/null 2>stderr.txt && broken "these were loaded: $(cat cut.session.words)"
  one_line_with "cut.session.words is damaged" wi_chat
}

# No words where there is a folder, no session where there is one.
a_save_that_fails_leaves_what_was_there() {
  local before
  rm -rf pair && mkdir -p pair/words.words pair/session && : >pair/session.words
  before=$(ls -lR --time-style=full-iso pair)
  for file in words session absent/session; do
    printf 'hello\n/save pair/%s\n' $file >save.txt
    "$bin/wi_chat" --model "$model" --max-tokens 2 <save.txt >/dev/null 2>stderr.txt && broken "pair/$file was saved"
    grep -q "pair/$file" stderr.txt || broken "the error does not say where: $(cat stderr.txt)"
    [ "$before" = "$(ls -lR --time-style=full-iso pair)" ] || broken "it left $(ls -lR pair)"
  done
}

# A segment is due for which 1 MB has no room: before the first letter of an answer (that of seed 10 begins with a byte
# that is none), and in the midst of the next one. At a terminal, where a conversation goes on after a failure.
chat_stays_a_conversation_when_answers_fail() {
  local words roles
  # shellcheck disable=SC2016  # the shell in script(1) expands them
  for words in 300 200 1; do
    yes word | head -n $words | tr '\n' ' '
    printf '\n/save failed.session\n'
  done |
    bin=$bin model=$model SHELL=/bin/sh script -qec \
      '"$bin/wi_chat" --model "$model" --kv-budget 1 --temperature 100 --top-p 1 --seed 10' /dev/null >failed.txt ||
    broken "wi_chat at a terminal failed: $(cat failed.txt)"
  [ "$(grep -ac 'of the budget' failed.txt)" -ge 2 ] || broken "answers did not fail: $(cat failed.txt)"
  roles=$(grep -aE '^(user|assistant) [0-9]+$' failed.session.words | tr '\n' ' ')
  [[ $roles =~ ^(user [0-9]+ assistant [1-9][0-9]* )+$ ]] || broken "the messages are $roles"
}

# At a terminal; while an answer is written it ends that.
chat_is_ended_by_ctrl_c_only_when_it_comes_twice() {
  local status=0
  : >said.txt
  # shellcheck disable=SC2016  # the shell in script(1) expands them
  {
    until_said 1 '> '
    printf '\003'
    until_said 1 'Ctrl-C again or /quit leaves'
    printf 'hello\n/save %s\n' interrupted.session
    until_said 1 'saved interrupted.session'
    printf '\003'
    until_said 2 'Ctrl-C again or /quit leaves'
    printf '\003'
  } | bin=$bin model=$model SHELL=/bin/sh script -qfec 'exec "$bin/wi_chat" --model "$model"' /dev/null >said.txt || status=$?
  [ $status = 130 ] || broken "exit status $status: $(cat said.txt)"
  grep -q 'hello' interrupted.session.words || broken "the conversation did not go on: $(cat said.txt)"
}

# until_said COUNT WORDS: so often in said.txt; a minute at most.
until_said() {
  local _
  for _ in {1..600}; do
    [ "$(grep -ac -- "$2" said.txt)" -ge "$1" ] && return
    sleep 0.1
  done
}

# More than is held back until the end: the last of it has room again.
what_could_not_be_written_is_a_failure() {
  local status input
  seq 300000 >many.txt
  echo hello >one.txt
  for command in "wi_tokens --model $model" "wi_ask --model $model --document facts-only.txt --question Who? --json" \
    "wi_bench --shape tiny --policy full --context 64 --steps 2 --no-check" "embed $model hello" "sample_chat $model" \
    "sample_long_document $model facts-only.txt Who?" "sample_save_load $model hello full.wis" "sample_errors $model"; do
    [ -x "$bin/${command%% *}" ] || continue # a sanitized build has no benchmarks
    head -c 2000 many.txt >facts-only.txt
    input=many.txt
    [ "${command%% *}" = wi_tokens ] || input=one.txt
    status=0
    # shellcheck disable=SC2086 # words
    "$bin"/$command <$input >/dev/full 2>stderr.txt || status=$?
    [ $status = 1 ] || broken "exit status $status, not 1, of $command on a full disk"
    grep -q 'cannot write' stderr.txt || broken "the error of $command does not say what: $(cat stderr.txt)"
  done
}

embed_writes_what_comes_next() {
  "$bin/embed" "$model" "In the beginning God created the" >embed.txt || broken "embed failed"
  [ -s embed.txt ] || broken "embed wrote nothing"
  fails "no-such-file.gguf" "$bin/embed" no-such-file.gguf hello
}

sample_chat_remembers_what_was_said_before() {
  printf 'The password of Boaz the potter is copper meadow.\nWhat is the password of Boaz the potter?\n' |
    "$bin/sample_chat" "$model" >chat.out || broken "sample_chat failed"
  tail -n 1 chat.out | grep "copper meadow" >/dev/null || broken "it said $(cat chat.out)"
}

sample_chat_takes_a_line_as_one_turn_whatever_its_length_and_bytes() {
  {
    printf 'The password of Boaz the potter is copper meadow.\0 '
    head -c 15000 text.txt | tr '\n' ' '
    printf ' What is the password of Boaz the potter?\n'
  } >line.txt
  "$bin/sample_chat" "$model" <line.txt >chat.out || broken "sample_chat failed"
  [ "$(cat chat.out)" = "The password of Boaz the potter is copper meadow." ] || broken "it said $(cat chat.out)"
}

sample_long_document_answers_all_questions_from_forks() {
  "$bin/sample_long_document" "$model" document.txt "$question" "What is the password of Boaz the potter?" \
    >long.out 2>long.err || broken "sample_long_document failed"
  grep -q "amber lantern" long.out && grep -q "copper meadow" long.out || broken "it said $(cat long.out)"
}

sample_long_document_tells_progress_and_statistics() {
  tells_progress_and_statistics long.err || broken "standard error lacks some of it"
}

sample_long_document_ends_with_ctrl_c() {
  ctrl_c_ends_reading_and_answering "$model" text.txt . "$bin/sample_long_document" || broken "it does not end as it should"
}

sample_save_load_goes_on_with_the_same_tokens() {
  "$bin/sample_save_load" "$model" "In the beginning" saved.wis >saved.out || broken "sample_save_load failed"
  grep -qx "the same tokens: yes" saved.out || broken "it said $(cat saved.out)"
}

sample_errors_shows_a_status_for_each() {
  "$bin/sample_errors" "$model" >errors.out || broken "sample_errors failed"
  local status
  for status in IO FORMAT ARGUMENT STATE BUDGET CANCELLED; do
    grep -q "^  $status: " errors.out || broken "no $status in $(cat errors.out)"
  done
  [ "$(tail -n 1 errors.out)" = "  OK" ] || broken "the session did not go on: $(cat errors.out)"
}

readme_shows_the_embed_program_as_it_is() {
  sed -n '/^```c$/,/^```$/p' "$source/README.md" | sed '1d;$d' >readme.c
  cmp readme.c "$source/samples/embed.c" || broken "README.md shows another text than samples/embed.c"
}

# fails WORDS COMMAND...: the command ends with status 1 and one line on standard error that has the words.
fails() {
  local words=$1 status=0
  shift
  "$@" </dev/null >/dev/null 2>stderr.txt || status=$?
  [ $status = 1 ] || broken "exit status $status, not 1, of: $*: $(cat stderr.txt)"
  one_line_with "$words" "$@"
}

one_line_with() {
  local words=$1
  shift
  [ "$(wc -l <stderr.txt)" = 1 ] || broken "$(wc -l <stderr.txt) lines on standard error, not 1: $* $(cat stderr.txt)"
  grep -qE -- "$words" stderr.txt || broken "the error does not say \"$words\": $(cat stderr.txt)"
}

broken() {
  echo "[  FAILED  ] ${FUNCNAME[1]}: $*"
  exit 1
}

for claim in tokens_come_back_as_the_same_text \
  special_tokens_are_single_ids \
  logits_have_a_row_per_token \
  logits_do_not_depend_on_how_the_prompt_is_given \
  logits_do_not_depend_on_where_weights_lie \
  logits_hardly_depend_on_precision \
  planted_document_has_the_length_asked_for_and_all_facts \
  ask_answers_from_the_document_with_each_policy \
  ask_writes_one_json_object_per_question_with_the_fixed_fields \
  ask_reads_only_the_tokens_asked_for \
  ask_compares_policies_in_a_table \
  what_goes_beyond_the_model_is_warned_of \
  an_answer_that_is_cut_off_says_so \
  interrupt_ends_ask_with_one_line \
  every_failure_is_status_1_and_one_line \
  every_program_tells_what_it_is \
  chat_goes_on_where_it_was_saved \
  chat_goes_on_with_the_policy_saved_and_the_sampling_given \
  a_template_is_tried_before_the_conversation \
  lines_may_end_as_elsewhere_and_begin_with_a_slash \
  words_that_are_not_whole_are_refused \
  words_keep_their_mode_and_their_place \
  a_save_that_fails_leaves_what_was_there \
  chat_stays_a_conversation_when_answers_fail \
  chat_is_ended_by_ctrl_c_only_when_it_comes_twice \
  what_could_not_be_written_is_a_failure \
  embed_writes_what_comes_next \
  sample_chat_remembers_what_was_said_before \
  sample_chat_takes_a_line_as_one_turn_whatever_its_length_and_bytes \
  sample_long_document_answers_all_questions_from_forks \
  sample_long_document_tells_progress_and_statistics \
  sample_long_document_ends_with_ctrl_c \
  sample_save_load_goes_on_with_the_same_tokens \
  sample_errors_shows_a_status_for_each \
  readme_shows_the_embed_program_as_it_is; do
  "$claim"
  echo "[       OK ] $claim"
done
echo "[  PASSED  ] 35 test(s)."
