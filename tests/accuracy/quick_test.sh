#!/usr/bin/env bash
# The accuracy harness at its smallest, so that it cannot rot: `quick_test.sh BIN SOURCE WORK` with the folder of
# the programs, the source tree and a folder for scratch. Each test is a claim; the first broken one ends the run.
set -uo pipefail
bin=$1 source=$2 work=$3
export LC_ALL=C

rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1
xz -dc "$source/samples/text/kjv.txt.xz" >text.txt || exit 1
common=(--model "$source/samples/model/needle-f16.gguf" --text text.txt --from 3606700)

every_policy_answers_every_question() {
  "$bin/wi_accuracy" "${common[@]}" --lengths 4096 --documents few,list-5 --budgets 0.018,1 \
    --policies "wave streaming blocks" --questions 4 --out few.jsonl 2>table.txt || broken "wi_accuracy failed"
  # 4 + 4 + 1 questions of few, 5 of list-5; full once, three policies at two budgets each.
  [ "$(wc -l <few.jsonl)" = $((14 * 7)) ] || broken "$(wc -l <few.jsonl) lines for 14 questions"
  grep -qE '^wave 1\.8 % ' table.txt || broken "the table has no wave: $(cat table.txt)"
}

full_attention_knows_the_answers() {
  local right
  right=$(grep '"policy":"full"' few.jsonl | grep -c '"right":true')
  [ "$right" -ge 12 ] || broken "full got $right of 14 right"
}

whole_budgets_answer_as_full_attention() {
  local same
  same=$(grep -v '"policy":"full"' few.jsonl | grep '"budget":1.0' | grep -c '"first_difference":-1')
  # Sums run in another order; a near tie may fall the other way once.
  [ "$same" -ge $((14 * 3 - 1)) ] || broken "only $same of 42 answers at 100 % are full attention's"
}

wave_keeps_what_a_window_loses() {
  local wave streaming
  wave=$(grep '"policy":"wave"' few.jsonl | grep '"budget":0.018' | grep -c '"right":true')
  streaming=$(grep '"policy":"streaming"' few.jsonl | grep '"budget":0.018' | grep -c '"right":true')
  [ "$wave" -ge 11 ] && [ "$wave" -gt "$streaming" ] || broken "wave $wave, streaming $streaming of 14 at 1.8 %"
}

the_same_seed_makes_the_same_documents() {
  "$bin/wi_accuracy" "${common[@]}" --lengths 4096 --documents few,list-5 --budgets 0.018 --policies wave \
    --questions 4 --out again.jsonl 2>/dev/null || broken "wi_accuracy failed"
  local questions='s/.*"question":("[^"]*").*"expected":(\[[^]]*\]).*/\1 \2/'
  [ "$(sed -E "$questions" few.jsonl | sort -u)" = "$(sed -E "$questions" again.jsonl | sort -u)" ] ||
    broken "the questions differ"
}

trace_names_the_stage_that_loses() {
  "$bin/wi_trace" "${common[@]}" --length 4096 --document few --questions 2 --steps 4 --budgets 0.018,1 \
    --policies "wave blocks" --out trace.jsonl --dump tensors >trace.txt || broken "wi_trace failed"
  # 2 questions of 4 steps, 4 layers with 4 heads, and one line of divergence; two policies, two budgets.
  [ "$(wc -l <trace.jsonl)" = $((2 * 4 * (16 + 1) * 4)) ] || broken "$(wc -l <trace.jsonl) lines"
  [ "$(stat -c %s tensors/q.f32)" = $((2 * 4 * 4 * 4 * 64 * 4)) ] || broken "the queries have another size"
  # With all tokens retrieved nothing is lost anywhere, to the rounding of f32.
  grep -E '^(wave|blocks) 100 % +all +all +1\.0000 +1\.0000 +-?0\.0000 +-?0\.0000 +-?0\.0000 +0\.000' trace.txt |
    wc -l | grep -x 2 >/dev/null || broken "a whole budget loses something: $(grep all trace.txt)"
}

mistakes_are_told_in_one_line() {
  fails "nonsense" "$bin/wi_accuracy" "${common[@]}" --policies nonsense
  fails "nonsense" "$bin/wi_accuracy" "${common[@]}" --documents nonsense
  fails "no parameter \"nonsense\"" "$bin/wi_accuracy" "${common[@]}" --policies wave:nonsense=1
  fails "do not fit" "$bin/wi_trace" "${common[@]}" --document multikey-512 --length 4096
}

# fails WORDS COMMAND...: the command ends with status 1 and a line on standard error that has the words.
fails() {
  local words=$1 status=0
  shift
  "$@" </dev/null >/dev/null 2>stderr.txt || status=$?
  [ $status = 1 ] || broken "exit status $status, not 1, of: $*: $(cat stderr.txt)"
  grep -qF -- "$words" stderr.txt || broken "the error does not say \"$words\": $(cat stderr.txt)"
}

broken() {
  echo "[  FAILED  ] ${FUNCNAME[1]}: $*"
  exit 1
}

for claim in every_policy_answers_every_question \
  full_attention_knows_the_answers \
  whole_budgets_answer_as_full_attention \
  wave_keeps_what_a_window_loses \
  the_same_seed_makes_the_same_documents \
  trace_names_the_stage_that_loses \
  mistakes_are_told_in_one_line; do
  "$claim"
  echo "[       OK ] $claim"
done
echo "[  PASSED  ] 7 test(s)."
