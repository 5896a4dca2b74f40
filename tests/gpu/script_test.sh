#!/usr/bin/env bash
# What tests/gpu.sh makes of the lines that programs print: the programs are stand-ins that print lines as wi_bench,
# kernel_bench and torch_bench.py do, with numbers of nobody's. Each test is a claim; the first broken one ends the run.
#
#   tests/gpu/script_test.sh SOURCE WORK
set -uo pipefail
source=$1 work=$2
rm -rf "$work" && mkdir -p "$work/pack/bin" "$work/pack/data" || exit 1
cp "$source/tests/gpu.sh" "$work/pack/"

program() {
  cat >"$work/pack/bin/$1"
  chmod +x "$work/pack/bin/$1"
}

program gpu_sample_test <<'END'
#!/bin/sh
echo 'cuda:0: a recorded device'
[ $# = 1 ] || echo '[  PASSED  ] 3 test(s).'
END

program gpu_test <<'END'
#!/bin/sh
[ "$1" = kernel_bench ] || { echo '[  PASSED  ] 2 test(s).'; exit; }
echo '{"kernel":"copy in device memory","shape":"4096 MB","us":2000.00,"gb_per_s":4000.0,"of_copy":1.000,"date":"-"}'
echo '{"kernel":"copy from pinned memory","shape":"512 MB","us":9900.00,"gb_per_s":50.0,"of_copy":0.013,"date":"-"}'
[ -z "$WI_COPIES" ] || exit 0
echo '{"kernel":"wave_estimate","shape":"122880 tokens","us":13.74,"gb_per_s":900.0,"of_copy":0.225,"date":"-"}'
echo '{"kernel":"attend_chunk","shape":"1024 rows after 0","us":80.88,"tflops":120.00,"date":"-"}'
END

# Of decoding: batch 1 and the largest, of each policy. What is read in a step is easy to divide: by the device's memory
# (15 GB of weights and 17 of keys and values in full) in 8 ms; of wave 12 sessions with 30 MB each by the bus in 7.2.
program wi_bench <<'END'
#!/usr/bin/env bash
command=$* layers=32 fill=synthetic context=8192 policies='full wave' batches=1
while [ $# -gt 0 ]; do
  case $1 in
    --layers) layers=$2 ;;
    --fill) fill=$2 ;;
    --context) context=$2 ;;
    --policy) policies=$2 ;;
    --batch) batches=${2//,/ } ;;
  esac
  shift
done
[ "$context" != 131072 ] || [ -z "${WI_HANGS-}" ] || { echo '{"policy":"wave","half'; echo $$ >"$WI_HANGS"; exec sleep 60; }
for policy in $policies; do
  for batch in $batches; do
    if [ "$context" = 1048576 ] && [ "$layers" = 32 ]; then
      echo "{\"policy\":\"$policy\",\"device\":\"cuda:0\",\"context\":$context,\"batch\":$batch,\"refused\":\"a session of $context tokens is made in the host's memory\"}"
      continue
    fi
    speed=100 read=17000000000 hits=1 retrieved=0 prefill=0
    if [ "$policy" = wave ]; then read=730000000 hits=0.9 retrieved=300000000; fi
    if [ "$batch" = max ]; then batch=6 speed=200; [ "$policy" = full ] || batch=12 speed=1000; fi
    if [ "$fill" = prefill ]; then prefill=1050; [ "$policy" = full ] || prefill=1000; fi
    echo "{\"policy\":\"$policy\",\"device\":\"cuda:0\",\"shape\":\"llama-8b\",\"weights\":\"f16\",\"context\":$context,\"batch\":$batch,\"tokens_per_second\":$speed,\"ms_per_token_p50\":10,\"ms_per_token_p99\":11,\"prefill_tokens_per_second\":$prefill,\"index_build_ms\":5,\"kv_bytes_read_per_token\":$read,\"hit_ratio\":$hits,\"retrieved_bytes_per_token\":$retrieved,\"layers\":$layers,\"weight_bytes_read\":15000000000,\"peak_device_bytes\":1000000000,\"fill\":\"$fill\",\"host_ms\":0.25,\"date\":\"-\",\"command\":\"$command\"}"
  done
done
END

cat >"$work/pack/bin/torch_bench.py" <<'END'
print('{"kernel":"attention (PyTorch)","shape":"1024 rows after 0","us":40,"tflops":200.0,"date":"-"}')
END

each_row_that_is_asked_for_is_in_the_table() {
  run --out "$work/all"
  [ "$status" = 0 ] || broken "status $status: $(cat "$work/said")"
  local context policy
  for context in 122880 245760 491520; do
    said "^ +$context tokens: full 200\.0 tokens/s \(batch 6\), wave 1000\.0 tokens/s \(batch 12\), wave / full 5\.00$" || broken "$context"
    for policy in full wave; do said "^ +$policy +$context tokens, batch +1: " || broken "$policy, $context"; done
  done
  said '^ +8192 tokens: full 100\.0 .* wave / full 1\.00$' || broken "8K"
  said '^ +1048576 tokens, 8 layers: full 200\.0 .* wave / full 5\.00$' || broken "1M of 8 layers"
  said "^ +full +1048576 tokens, batch +1: refused: a session of 1048576 tokens is made in the host's memory\$" || broken "1M"
  said '^ +wave_estimate .* 900\.0 GB/s \(0\.23 of a copy\)$' || broken "a kernel's limit"
  said '^ +full +245760 tokens, .*, outside of the device 0\.25 ms \(0\.025 of a step, asked: 0\.050\)$' || broken "the host's share"
  said "^attention, 1024 rows after 0: 120\.0 of PyTorch's 200\.0 Tflop/s \(0\.60, asked: 0\.60\)\$" || broken "attention"
}

what_is_asked_for_with_a_number_comes_first() {
  local names pair
  names=$(steps_of "$work/all")
  for pair in 'bandwidth;decode, 120K' 'decode, 120K;decode, longer: 240K' 'decode, 128K in host memory;decode, longer: 240K' \
    'decode, 8K, batches;decode, longer: 240K' 'kernels, alone;decode, longer: 240K' 'reading, 480K, 2 layers;decode, longer: 240K' \
    'decode, longer: 240K;decode, longer: 480K'; do
    [ "$(place "$names" "${pair%;*}")" -lt "$(place "$names" "${pair#*;}")" ] || broken "$pair in $names"
  done
}

the_share_of_the_envelope_is_what_its_formula_says() {
  python3 - "$work/all/results.jsonl" <<'END' || broken "$(grep envelope "$work/all/results.jsonl" | head -4)"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
found = {(line["context"], line["layers"], line["envelope"], line["batch"]): line for line in lines if "envelope" in line}
measured = [line for line in lines if "tokens_per_second" in line and line["fill"] == "synthetic"]
assert measured and {(m["context"], m["layers"], m["policy"], m["batch"]) for m in measured} == set(found), found
for line in measured:
    of = found[line["context"], line["layers"], line["policy"], line["batch"]]
    missed = line["retrieved_bytes_per_token"] * (1 - line["hit_ratio"])
    seconds = max((line["weight_bytes_read"] + line["batch"] * (line["kv_bytes_read_per_token"] - missed)) / 4000e9,
                  line["batch"] * missed / 50e9)
    share = line["tokens_per_second"] / (line["batch"] / seconds)
    assert abs(of["share"] - share) <= 1e-3, (of, share)  # of three digits
assert found[245760, 32, "full", 1]["device_ms"] == 8 and found[245760, 32, "wave", 12]["bus_ms"] == 7.2, found
END
  said '^ +0\.80 of the envelope \(asked: 0\.80\): 125\.0 tokens/s, by the device 8\.00 ms, by the bus 0\.00 ms at 1\.000 hits$' || broken "full"
  said '^ +0\.60 of the envelope \(asked: 0\.80\): 1666\.7 tokens/s, by the device 5\.85 ms, by the bus 7\.20 ms at 0\.900 hits$' || broken "wave"
}

how_much_longer_reading_takes_stands_beside_what_is_asked() {
  said '^ +122880 tokens read, 4 layers: full 1050 tokens/s, wave 1000 tokens/s, which takes 5\.0 % longer \(asked: at most 7 %\)$' || broken 120K
  said '^ +245760 tokens read, 4 layers: .* 5\.0 % longer \(asked: at most 4 %\)$' || broken 240K
  said '^ +491520 tokens read, 2 layers: .* 5\.0 % longer \(asked: at most 2 %\)$' || broken 480K
}

steps_that_are_named_are_run_alone() {
  run --out "$work/some" --only 'decode, longer: [24]*K'
  [ "$status" = 0 ] || broken "status $status"
  [ "$(steps_of "$work/some")" = "device
bandwidth
decode, longer: 240K
decode, longer: 480K" ] || broken "$(steps_of "$work/some")"
  grep -q '"envelope":"wave"' "$work/some/results.jsonl" || broken "no share of the envelope"
}

lines_without_what_an_envelope_needs_have_none() {
  grep '"policy"' "$source/docs/results/gpu.jsonl" | head -3 >"$work/recorded"
  cp -r "$work/pack" "$work/before"
  printf '#!/bin/sh\ncat "%s"\n' "$work/recorded" >"$work/before/bin/wi_bench"
  (cd / && exec "$work/before/gpu.sh" --only 'decode, 120K' --out "$work/old") >"$work/said" 2>&1 || broken "$(cat "$work/said")"
  said '^ +122880 tokens: full 181\.6 tokens/s \(batch 6\), wave 133\.7 tokens/s \(batch 1\), wave / full 0\.74$' || broken "$(cat "$work/said")"
  ! said 'of the envelope|outside of the device' || broken "$(cat "$work/said")"
}

a_run_that_is_ended_says_what_there_is_and_leaves_no_program() {
  WI_HANGS=$work/hangs "$work/pack/gpu.sh" --out "$work/cut" >"$work/said" 2>&1 &
  local script=$! tries
  for ((tries = 0; tries < 300; tries++)); do [ ! -s "$work/hangs" ] || break && sleep 0.1; done
  [ -s "$work/hangs" ] || broken "it never came so far: $(cat "$work/said")"
  kill "$script"
  wait "$script"
  status=$?
  [ "$status" = 1 ] || broken "status $status"
  said '^cut short after [0-9]+ s$' && said '^ +122880 tokens: full 200\.0 .* wave / full 5\.00$' || broken "$(cat "$work/said")"
  grep -q '"status":"cut short"' "$work/cut/results.jsonl" || broken "$(cat "$work/cut/results.jsonl")"
  python3 -c 'import json, sys; [json.loads(line) for line in open(sys.argv[1])]' "$work/cut/results.jsonl" || broken "half a line"
  for ((tries = 0; tries < 100; tries++)); do kill -0 "$(cat "$work/hangs")" 2>/dev/null || return 0 && sleep 0.1; done
  broken "what it ran goes on"
}

steps_of() { sed -n 's/^{"step":"\([^"]*\)".*/\1/p' "$1/results.jsonl"; }
place() { grep -nxF "$2" <<<"$1" | cut -d : -f 1; }
said() { grep -qE "$1" "$work/said"; }

run() {
  (cd / && exec env -i PATH=/usr/bin:/bin "$work/pack/gpu.sh" "$@") >"$work/said" 2>&1
  status=$?
}

broken() {
  printf '[  FAILED  ] %s: %s\n' "$claim" "$*"
  exit 1
}

claims=(each_row_that_is_asked_for_is_in_the_table what_is_asked_for_with_a_number_comes_first
  the_share_of_the_envelope_is_what_its_formula_says how_much_longer_reading_takes_stands_beside_what_is_asked
  steps_that_are_named_are_run_alone lines_without_what_an_envelope_needs_have_none
  a_run_that_is_ended_says_what_there_is_and_leaves_no_program)
for claim in "${claims[@]}"; do
  "$claim"
  echo "[       OK ] $claim"
done
echo "[  PASSED  ] ${#claims[@]} tests."
