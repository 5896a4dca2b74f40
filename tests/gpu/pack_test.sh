#!/usr/bin/env bash
# tests/gpu.sh --pack makes a folder that has all that it needs and is small, and the script in it does what it
# says, with the plugin in it whose kernels run on the CPU. Each test is a claim; the first broken one ends the
# run.
#
#   tests/gpu/pack_test.sh SOURCE BUILD WORK
set -uo pipefail
source=$1 build=$2 work=$3
export CUDA_VISIBLE_DEVICES= # what is tested here needs no device, and leaves one that is there alone

rm -rf "$work" && mkdir -p "$work" || exit 1

# --pack itself refuses to make one that is too large or lacks a library; here its word is checked.
a_pack_is_small_and_needs_nothing_beside_it() {
  "$source/tests/gpu.sh" --pack "$work/made" "$build" >"$work/said" 2>&1 || broken "$(cat "$work/said")"
  [ "$(du -sb "$work/made" | cut -f 1)" -le 50000000 ] || broken "$(du -sb "$work/made")"
  mv "$work/made" "$work/pack" # wherever it is
  local file
  for file in "$work"/pack/bin/* "$work"/pack/lib/*; do
    [ "${file##*.}" != py ] || continue
    env -i /usr/bin/env ldd "$file" | grep 'not found' && broken "$file lacks a library"
    env -i /usr/bin/env ldd "$file" | grep -vE "=> $work/pack/|libc\.|libm\.|libdl\.|librt\.|libpthread\.|ld-linux|linux-vdso|statically linked" &&
      broken "$file is linked with what is not in the pack"
  done
  return 0
}

a_folder_that_is_not_empty_is_left_alone() {
  "$source/tests/gpu.sh" --pack "$work/pack" "$build" >/dev/null 2>&1 && broken "it was packed over"
  [ -x "$work/pack/gpu.sh" ] || broken "it is gone"
}

without_a_device_it_says_why_and_fails() {
  run --out "$work/none"
  [ "$status" = 3 ] || broken "status $status: $(cat "$work/said")"
  grep -q 'cuda:0 cannot be used: ' "$work/said" || broken "$(cat "$work/said")"
  grep -q '"status":"failed","said":".*cuda:0 cannot be used' "$work/none/results.jsonl" || broken "$(cat "$work/none/results.jsonl")"
  run --device cuda:7
  [ "$status" = 3 ] && grep -q 'no device cuda:7' "$work/said" || broken "status $status: $(cat "$work/said")"
}

steps_run_in_order_and_none_stops_the_next() {
  cp "$build/plugins/emulated/libwaveinfer_cuda.so" "$work/pack/lib/" || broken "there is no emulated plugin"
  run --quick --out "$work/quick"
  [ "$status" = 0 ] || broken "status $status: $(cat "$work/said")"
  local names
  names=$(sed -n 's/^{"step":"\([^"]*\)","status":"\([^"]*\)".*/\1: \2/p' "$work/quick/results.jsonl" | grep -v 'sanitizer\|memcheck')
  [ "$names" = "device: passed
bandwidth: skipped
sessions, few tokens: passed
kernels: twins: skipped
kernels: elementwise: skipped
kernels, alone: skipped
decode, few tokens: passed
decode in host memory: passed
decode, as many as fit: passed
reading, few tokens: passed
what no host has room for: passed
what is refused: passed
what takes too long: out of time
what is stopped within a line: out of time" ] || broken "$names"
}

results_are_lines_of_json_and_a_table() {
  python3 - "$work/quick/results.jsonl" <<'END' || broken "$(cat "$work/quick/results.jsonl")"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
measured = [line for line in lines if "tokens_per_second" in line]
few, in_host_memory, largest, read = measured[:8], measured[8:10], measured[10:14], measured[14:]
assert [(line["context"], line["policy"], line["batch"]) for line in few] == [
    (context, policy, batch) for context in (300, 600) for policy in ("full", "wave") for batch in (1, 2)], measured
assert [(line["context"], line["policy"], line["batch"]) for line in in_host_memory] == 2 * [(3000, "wave", 1)], measured
assert [line["slow_bytes"] > 0 for line in in_host_memory] == [False, True], measured
assert in_host_memory[-1]["slow_tier"] == "pinned", measured
# Of full as many as the device has room for; of wave more.
assert [(line["context"], line["policy"], line["batch"] > 1) for line in largest] == [
    (2000, policy, more) for policy in ("full", "wave") for more in (False, True)], measured
assert [line["slow_bytes"] > 0 for line in largest] == [False, False, False, True], measured
assert largest[3]["batch"] > largest[1]["batch"], measured
assert [(line["context"], line["policy"], line["layers"], line["fill"]) for line in read] == [
    (300, policy, 1, "prefill") for policy in ("full", "wave")], measured
for line in few:
    assert 0 < line["host_ms"] < line["ms_per_token_max"] and line["weight_bytes_read"] > 0, line
    assert line["policy"] == "wave" or line["retrieved_bytes_per_token"] <= line["kv_bytes_read_per_token"], line
for line in measured:
    assert line["device"] == "cuda:0" and line["device_name"] == "Emulated" and line["date"] and line["command"], line
refused = [(line["policy"], line["refused"]) for line in lines if "refused" in line]
assert [policy for policy, _ in refused] == ["full", "wave", "streaming"], refused
assert all(" is made in the host's memory: " in why for _, why in refused[:2]), refused
END
  grep -qE '^ +600 tokens: full [0-9.]+ tokens/s .*, wave / full [0-9.]+$' "$work/quick/table.txt" || broken "$(cat "$work/quick/table.txt")"
  grep -qE '^ +300 tokens read: full [0-9]+ tokens/s, wave [0-9]+ tokens/s, which takes -?[0-9.]+ % longer$' "$work/quick/table.txt" || broken "$(cat "$work/quick/table.txt")"
  cmp -s "$work/said" "$work/quick/table.txt" || broken "what is printed is not the table"
}

time_for_all_of_it_is_kept() {
  local before=$SECONDS
  run --quick --out "$work/short" --seconds 6
  [ $((SECONDS - before)) -le 15 ] || broken "$((SECONDS - before)) s"
  grep -q '"status":"not run","said":"no time left"' "$work/short/results.jsonl" || broken "$(cat "$work/short/results.jsonl")"
}

# run OPTION...: with nothing of this shell's.
run() {
  (cd / && exec env -i PATH=/usr/bin:/bin CUDA_VISIBLE_DEVICES= "$work/pack/gpu.sh" "$@") >"$work/said" 2>&1
  status=$?
}

broken() {
  printf '[  FAILED  ] %s: %s\n' "$claim" "$*"
  exit 1
}

claims=(a_pack_is_small_and_needs_nothing_beside_it a_folder_that_is_not_empty_is_left_alone
  without_a_device_it_says_why_and_fails steps_run_in_order_and_none_stops_the_next
  results_are_lines_of_json_and_a_table time_for_all_of_it_is_kept)
for claim in "${claims[@]}"; do
  "$claim"
  echo "[       OK ] $claim"
done
echo "[  PASSED  ] ${#claims[@]} tests."
