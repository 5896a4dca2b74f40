#!/usr/bin/env bash
# What there is to know about this library on a GPU, in under eight minutes: the tests of the kernels and whole
# sessions on the device, compute-sanitizer over them where it is installed, and the benchmark. What matters most
# comes first, each step has a limit of its own, none keeps the next from running, and all is written as it comes.
#
#   tests/gpu.sh --pack FOLDER [BUILD]   makes a folder of at most 50 MB that has all that has to be there on a machine
#                                        with a driver and nothing else, this script too. No GPU is needed.
#   ./gpu.sh                             in such a folder, or in a checkout that is built (in build, or $WI_BUILD)
#     --device cuda:N                    another device than cuda:0
#     --out FOLDER                       where results go (default: results, beside the programs)
#     --seconds N                        for all of it (default 470)
#     --only PATTERN                     of the steps those whose names are like this: what the time of one run is not
#                                        enough for, in another ('decode, longer*', '*check*'). What the device's memory
#                                        and the bus carry is measured in each
#     --quick                            small sizes, a step of each kind: whether the script itself works
#
# results.jsonl: a line for each step and each measurement. table.txt: the same to read. log.txt: all that was said.
# All of the steps take more than twice the time there is: those from the sanitizer's on are expected to be cut
# (docs/results/gpu.md has what each is expected to take).
# Status: 0 if nothing failed, 1 if something did, 3 if there is no device that can be used.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
device=cuda:0 out= seconds=470 quick= only='*'
export LC_ALL=C

main() {
  [ "${1-}" != --pack ] || {
    shift
    pack "$@"
    exit
  }
  read_arguments "$@"
  find_programs
  mkdir -p "$out" || exit 1
  : >"$out/results.jsonl"
  : >"$out/table.txt"
  : >"$out/log.txt"
  local said
  said=$("$bin/gpu_sample_test" "$device" 2>&1) || {
    say "tests/gpu.sh: ${said#skipped: }"
    record "{\"step\":\"device\",\"status\":\"failed\",\"said\":$(quoted "$said")}"
    exit 3
  }
  say "$said"
  say "$(nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.mem,power.limit --format=csv 2>&1)"
  record "{\"step\":\"device\",\"status\":\"passed\",\"said\":$(quoted "$said"),\"date\":\"$(now)\"}"
  began=$SECONDS
  trap cut_short TERM INT
  if [ -n "$quick" ]; then quick_steps; else all_steps; fi
  summary
  [ "$failed" = 0 ]
}

read_arguments() {
  while [ $# -gt 0 ]; do
    case $1 in
      --help | -h) sed -n '2,24s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
      --quick) quick=1; shift; continue ;;
      --device | --out | --seconds | --only) [ $# -gt 1 ] || fail "$1 needs a value" ;;
      *) fail "unknown option $1 (--help lists them)" ;;
    esac
    case $1 in
      --device) device=$2 ;;
      --out) out=$2 ;;
      --seconds) seconds=$2 ;;
      --only) only=$2 ;;
    esac
    shift 2
  done
}

find_programs() {
  if [ -d "$here/bin" ]; then # a pack
    bin=$here/bin model=$here/data/needle-f16.gguf text=$here/data/text.txt
    bench=$bin/wi_bench torch_bench=$bin/torch_bench.py
    out=${out:-$here/results}
    return
  fi
  local build=${WI_BUILD:-$here/../build}
  bin=$build/bin model=$here/../samples/model/needle-f16.gguf text=$here/../README.md
  bench=$bin/wi_bench torch_bench=$here/gpu/torch_bench.py
  out=${out:-$build/gpu-results}
  [ -x "$bin/gpu_test" ] && [ -x "$bin/gpu_sample_test" ] && [ -x "$bench" ] ||
    fail "there is no gpu_test, gpu_sample_test or wi_bench in $bin: build the checkout first, with a CUDA 13 toolkit"
}

# ---- what is run

kernel_tests=(twins attend_chunk attend wave matmul_dense matmul elementwise sampling step session index wave_index hot_pages hot_cache pinned)

# The numbers behind a step are the seconds that it may take. Reading is of a model with four of its 32 layers, and two at
# 480K: each costs the same, under both policies, and all of them more than there is time for.
all_steps() {
  local test tool
  step "bandwidth" 20 test_log env WI_COPIES=1 "$bin/gpu_test" kernel_bench
  step "sessions, 2K tokens" 60 test_log "$bin/gpu_sample_test" "$device" "$model" "$text" 2048
  for test in "${kernel_tests[@]}"; do
    step "kernels: $test" 40 test_log "$bin/gpu_test" "cuda_${test}_test"
  done
  step "decode, 120K" 210 bench_log "${llama[@]}" --context 122880 --batch 1,max --steps 10 --no-check
  step "decode, 128K in host memory" 60 bench_log "${llama[@]}" --policy wave --context 131072 --steps 20 --kv-budget 4000 --no-check
  reading 122880 4 30
  step "decode, 8K, batches" 60 bench_log "${llama[@]}" --context 8192 --batch 1,8,32 --steps 10
  step "kernels, alone" 75 test_log "$bin/gpu_test" kernel_bench
  reading 245760 4 50
  reading 491520 2 75
  step "decode, 8K, launch by launch" 40 bench_log "${llama[@]}" --context 8192 --batch 1 --steps 10 --no-graphs --no-check
  step "prefill, 8K" 40 bench_log "${llama[@]}" --fill prefill --context 8192 --steps 3 --no-check
  for test in twins attend_chunk wave attend matmul_dense; do
    sanitize memcheck "$test" 20
  done
  if command -v python3 >/dev/null; then
    step "kernels, PyTorch's" 40 test_log python3 "$torch_bench"
  else
    skip_step "kernels, PyTorch's" "there is no python3"
  fi
  step "decode, longer: 240K" 240 bench_log "${llama[@]}" --context 245760 --batch 1,max --steps 10 --no-check
  # A million tokens' keys and values are more than such a machine's memory has room to make, which wi_bench says: for
  # those of eight layers it has.
  step "decode, longer: 1M" 60 bench_log "${llama[@]}" --context 1048576 --steps 10 --no-check
  step "decode, longer: 480K" 240 bench_log "${llama[@]}" --context 491520 --batch 1,max --steps 10 --no-check
  step "decode, longer: 1M, 8 layers" 240 bench_log "${llama[@]}" --layers 8 --context 1048576 --batch 1,max --steps 10 --no-check
  for tool in racecheck synccheck; do
    for test in attend_chunk wave attend matmul_dense; do
      sanitize "$tool" "$test" 20
    done
  done
  step "sessions, 16K tokens" 60 test_log "$bin/gpu_sample_test" "$device" "$model" "$text" 16384
}
llama=(--shape llama-8b --weights f16)

# reading TOKENS LAYERS LIMIT: a prompt, by both policies.
reading() {
  step "reading, $(($1 / 1024))K, $2 layers" "$3" bench_log "${llama[@]}" --layers "$2" --fill prefill --context "$1" --steps 1 --no-check
}

# As above, with little to do.
quick_steps() {
  local test
  step "bandwidth" 60 test_log env WI_QUICK=1 WI_COPIES=1 "$bin/gpu_test" kernel_bench
  step "sessions, few tokens" 120 test_log "$bin/gpu_sample_test" "$device" "$model" "$text" 20 'wave_*'
  for test in twins elementwise; do
    step "kernels: $test" 60 test_log "$bin/gpu_test" "cuda_${test}_test"
  done
  step "kernels, alone" 60 test_log env WI_QUICK=1 "$bin/gpu_test" kernel_bench
  step "decode, few tokens" 120 bench_log --shape tiny --weights f16 --no-check --context 300,600 --batch 1,2 --steps 2
  step "decode in host memory" 120 bench_log --shape tiny --weights f16 --no-check --policy wave --context 3000 --steps 2 --kv-fast 0.05
  step "decode, as many as fit" 120 bench_log --shape tiny --weights f16 --no-check --context 2000 --batch 1,max --steps 1 --kv-budget 3 --pinned-budget 1
  step "reading, few tokens" 120 bench_log --shape tiny --layers 1 --weights f16 --no-check --fill prefill --context 300 --steps 1
  step "what no host has room for" 60 bench_log --shape llama-8b-cache --weights f16 --kv f32 --no-check --context 16777216 --batch 1,max
  sanitize memcheck twins 60
  step "what is refused" 60 bench_log --shape tiny --weights f16 --policy streaming --context 300
  step "what takes too long" 2 bench_log --shape llama-1b --weights f16 --context 300
  step "what is stopped within a line" 1 test_log bash -c 'printf "{\"kernel\":\"half"; exec sleep 30'
}

test_log() { "$@"; }
bench_log() { "$bench" --device "$device" "$@"; }
export -f test_log bench_log

# sanitize TOOL TEST LIMIT
sanitize() {
  local tool
  tool=$(find_sanitizer) || {
    [ -z "${no_sanitizer-}" ] || return 0
    no_sanitizer=1
    skip_step "compute-sanitizer" "it is not installed"
    return 0
  }
  step "$1: $2" "$3" test_log "$tool" --tool "$1" --error-exitcode 9 --print-limit 5 "$bin/gpu_test" "cuda_$2_test"
}

find_sanitizer() {
  command -v compute-sanitizer && return
  local at
  for at in /usr/local/cuda/bin /usr/local/cuda/compute-sanitizer /usr/local/cuda-13*/bin /opt/nvidia/*/bin; do
    [ -x "$at/compute-sanitizer" ] && echo "$at/compute-sanitizer" && return
  done
  return 1
}

# ---- a step

failed=0 steps=0 running=

# Whoever ends it early has what there is.
cut_short() {
  trap '' TERM INT
  [ -z "$running" ] || kill "$running"
  say "cut short after $((SECONDS - began)) s"
  record "{\"step\":\"all\",\"status\":\"cut short\",\"date\":\"$(now)\"}"
  summary
  exit 1
}

# step NAME LIMIT COMMAND...: its lines of JSON go to the results as they come.
step() {
  local name=$1 limit=$2 left=$((seconds - (SECONDS - began)))
  shift 2
  # shellcheck disable=SC2053
  [[ $name == $only || $name == bandwidth ]] || return 0
  if [ "$left" -lt 5 ]; then
    skip_step "$name" "no time left"
    return
  fi
  [ "$limit" -le "$left" ] || limit=$left
  local start=${EPOCHREALTIME/./} line status=passed detail= first= passed=0 lines=0 rc
  printf '\n== %s\n' "$name" >>"$out/log.txt"
  exec 3< <(
    export bench device
    timeout -k 3 "$limit" bash -c '"$@"' - "$@" 2>&1 &
    trap "kill $!; exit" TERM # the program goes with it
    wait "$!"
    printf '\nexit status %s\n' "$?"
  )
  running=$!
  while IFS= read -r -u 3 line; do
    printf '%s\n' "$line" >>"$out/log.txt"
    case $line in
      '{'*'}') # whole: the last line of a step that was stopped may be a part of one
        record "$line"
        measured "$line"
        envelope "$line"
        lines=$((lines + 1)) ;;
      'exit status '*) rc=${line##* } ;;
      '[  PASSED  ] '*) passed=${line#'[  PASSED  ] '} passed=${passed%% *} ;;
      *skipped:* | *refused* | *cannot* | 'wi_bench: '* | *'ERROR SUMMARY'* | *'[  FAILED  ]'* | *'] Error: '* | *': error: Failure'* | '========= '*[Rr]ace* | '========= Invalid'*)
        first=${first:-$line} ;;
    esac
  done
  exec 3<&-
  running=
  case ${rc:-1} in
    0) ;;
    77) status=skipped ;;
    124 | 137) status="out of time" ;;
    *) status=failed failed=$((failed + 1)) ;;
  esac
  case $status in
    passed) if [ "$passed" != 0 ]; then detail="$passed tests passed"; else detail="$lines measurements"; fi ;;
    "out of time") detail="stopped after $limit s; $lines measurements${first:+; $first}" ;;
    *) detail=$first ;;
  esac
  local ms=$(((${EPOCHREALTIME/./} - start) / 1000))
  row "$name" "$status" "$ms" "$detail"
  record "{\"step\":$(quoted "$name"),\"status\":\"$status\",\"ms\":$ms,\"limit_s\":$limit,\"exit\":${rc:-1},\"tests_passed\":$passed,\"measurements\":$lines,\"said\":$(quoted "$first"),\"date\":\"$(now)\",\"command\":$(quoted "${*##*/}")}"
}

skip_step() {
  # shellcheck disable=SC2053
  [[ $1 == $only ]] || return 0
  row "$1" "not run" 0 "$2"
  record "{\"step\":$(quoted "$1"),\"status\":\"not run\",\"said\":$(quoted "$2")}"
}

row() { say "$(printf '%-30s %-11s %7d.%d s  %s' "$1" "$2" $(($3 / 1000)) $(($3 / 100 % 10)) "${4:0:150}")"; }

# Of a line of JSON, for awk.
fields='
  function field(name,   at, rest) {
    at = index($0, "\"" name "\":")
    if (!at) return ""
    rest = substr($0, at + length(name) + 3)
    if (substr(rest, 1, 1) == "\"") { rest = substr(rest, 2); sub(/".*/, "", rest) } else sub(/[,}].*/, "", rest)
    return rest
  }
  function layers_said() { return field("shape") == "llama-8b" && field("layers") != "" && field("layers") != 32 ? ", " field("layers") " layers" : "" }'

# A measurement, of wi_bench's or of a kernel's, as a line to read.
measured() {
  say "$(printf '%s\n' "$1" | awk "$fields"'
  {
    said = field("refused")
    if (field("kernel") != "") {
      printf "    %-24s %-44s ", field("kernel"), field("shape")
      if (said != "") { print "refused: " said; exit }
      printf "%11.1f us", field("us")
      if (field("gb_per_s") != "") printf " %8.1f GB/s (%.2f of a copy)", field("gb_per_s"), field("of_copy")
      if (field("tflops") != "") printf " %7.1f Tflop/s", field("tflops")
      exit
    }
    printf "    %-6s %8d tokens, batch %4s%s: ", field("policy"), field("context"), field("batch") == 1024 ? "max" : field("batch"), layers_said()
    if (said != "") { print "refused: " said; exit }
    printf "%9.1f tokens/s, step %8.2f ms (p99 %.2f), prefill %.0f tokens/s, index %.0f ms, device %.1f GB", field("tokens_per_second"),
      field("ms_per_token_p50"), field("ms_per_token_p99"), field("prefill_tokens_per_second"), field("index_build_ms"), field("peak_device_bytes") * 1e-9
    if (field("host_ms") != "") printf ", outside of the device %.2f ms (%.3f of a step, asked: 0.050)", field("host_ms"), field("host_ms") * field("tokens_per_second") / (field("batch") * 1000)
  }')"
}

# What a decode step could be at most, after SPIN (section 3.1, Equations 1 to 3), and the share of that which it is. Of a
# step's bytes those of the weights, of the index (Eq. 1) and of the keys and values attended to (Eq. 2) are read from the
# device's memory, but for the keys and values that missed its cache, which come over the bus. Each way takes its bytes over
# the bandwidth that a copy was measured to have (Eq. 3), both go on at the same time, and the slower one is the limit:
#
#   device_s = (weights + batch * (read - missed)) / HBM bandwidth       missed = retrieved * (1 - hit ratio)
#   bus_s    = batch * missed / bus bandwidth
#   tokens/s <= batch / max(device_s, bus_s) = min(HBM bandwidth * ..., bus bandwidth * ...)
#
# The hits are those that there were. The paper's envelope has Belady's, which nobody has who does not know the future
# (docs/results/tiers.md): by them the share would be smaller, where the bus is the limit.
envelope() {
  local line
  case $1 in
    *'"kernel":"copy in device memory"'*) hbm=$(printf '%s\n' "$1" | awk "$fields"'{ print field("gb_per_s") }') ;;
    *'"kernel":"copy from pinned memory"'*) bus=$(printf '%s\n' "$1" | awk "$fields"'{ print field("gb_per_s") }') ;;
  esac
  line=$(printf '%s\n' "$1" | awk -v hbm="$hbm" -v bus="$bus" "$fields"'
    {
      if (field("weight_bytes_read") == "" || field("fill") != "synthetic" || !(hbm > 0) || !(bus > 0)) exit
      batch = field("batch") + 0
      missed = field("retrieved_bytes_per_token") * (1 - field("hit_ratio"))
      device = (field("weight_bytes_read") + batch * (field("kv_bytes_read_per_token") - missed)) / (hbm * 1e9)
      over_bus = batch * missed / (bus * 1e9)
      limit = batch / (device > over_bus ? device : over_bus)
      printf "{\"envelope\":\"%s\",\"shape\":\"%s\",\"layers\":%d,\"context\":%d,\"batch\":%d,\"hbm_gb_per_s\":%s,\"bus_gb_per_s\":%s,\"hit_ratio\":%s,\"device_ms\":%.3f,\"bus_ms\":%.3f,\"limit_tokens_per_second\":%.1f,\"reached_tokens_per_second\":%.1f,\"share\":%.3f}\n",
        field("policy"), field("shape"), field("layers"), field("context"), batch, hbm, bus, field("hit_ratio"), device * 1e3, over_bus * 1e3, limit, field("tokens_per_second"), field("tokens_per_second") / limit
    }')
  [ -n "$line" ] || return 0
  record "$line"
  say "$(printf '%s\n' "$line" | awk "$fields"'
    { printf "           %.2f of the envelope (asked: 0.80): %.1f tokens/s, by the device %.2f ms, by the bus %.2f ms at %.3f hits", field("share"), field("limit_tokens_per_second"), field("device_ms"), field("bus_ms"), field("hit_ratio") }')"
}
hbm='' bus=''

# The best batch of each policy at each context, side by side; then reading, of which `wave` may take so much longer; then
# attention beside PyTorch's. Whatever there is of it.
summary() {
  say ""
  say "$(awk "$fields"'
    field("tokens_per_second") != "" && field("fill") == "synthetic" {
      context = field("context") " " field("layers"); policy = field("policy"); speed = field("tokens_per_second") + 0
      if (!(context in seen)) { seen[context] = layers_said(); order[++contexts] = context; tokens[context] = field("context") }
      if (speed > best[policy, context]) { best[policy, context] = speed; batch[policy, context] = field("batch") }
    }
    field("tokens_per_second") != "" && field("fill") == "prefill" {
      context = field("context") " " field("layers")
      if (!(context in read)) { read[context] = layers_said(); readings[++reads] = context; tokens[context] = field("context") }
      reading[field("policy"), context] = field("prefill_tokens_per_second") + 0
    }
    field("kernel") == "attend_chunk" && field("tflops") != "" { own[field("shape")] = field("tflops") }
    field("kernel") == "attention (PyTorch)" && field("tflops") != "" { shapes[++shape_count] = field("shape"); torch[field("shape")] = field("tflops") }
    END {
      for (i = 1; i <= contexts; i++) {
        c = order[i]
        printf "%8d tokens%s: full %.1f tokens/s (batch %d), wave %.1f tokens/s (batch %d)", tokens[c], seen[c], best["full", c], batch["full", c], best["wave", c], batch["wave", c]
        if (best["full", c] > 0) printf ", wave / full %.2f", best["wave", c] / best["full", c]
        print ""
      }
      most[122880] = 7; most[245760] = 4; most[491520] = 2
      for (i = 1; i <= reads; i++) {
        c = readings[i]; full = reading["full", c]; wave = reading["wave", c]
        printf "%8d tokens read%s: full %.0f tokens/s, wave %.0f tokens/s", tokens[c], read[c], full, wave
        if (full > 0 && wave > 0) printf ", which takes %.1f %% longer", (full / wave - 1) * 100
        if (tokens[c] in most) printf " (asked: at most %d %%)", most[tokens[c]]
        print ""
      }
      for (i = 1; i <= shape_count; i++) {
        s = shapes[i]
        if (s in own) printf "attention, %s: %.1f of PyTorch\047s %.1f Tflop/s (%.2f, asked: 0.60)\n", s, own[s], torch[s], own[s] / torch[s]
      }
    }' "$out/results.jsonl")"
  say "$steps steps, $failed failed, $((SECONDS - began)) s; results in $out"
}

say() { printf '%s\n' "$1" | tee -a "$out/table.txt"; }
record() {
  printf '%s\n' "$1" >>"$out/results.jsonl"
  case $1 in '{"step"'*) steps=$((steps + 1)) ;; esac
}
now() { date -u +%Y-%m-%dT%H:%M:%SZ; }
quoted() {
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  printf '"%s"' "${text//[$'\x01'-$'\x1f']/ }"
}
fail() {
  echo "tests/gpu.sh: $*" >&2
  exit 1
}

# ---- packing

# pack FOLDER [BUILD]
pack() {
  set -e
  local folder=${1:?--pack: into which folder?} build=${2:-${WI_BUILD:-$here/../build}}
  local most=$((50 * 1000 * 1000)) program
  [ ! -e "$folder" ] || [ -z "$(ls -A "$folder")" ] || fail "$folder is not empty"
  local library=$build/bundled/lib/libwaveinfer.so.2
  [ -e "$library" ] || library=$build/lib/libwaveinfer.so.2
  mkdir -p "$folder/bin" "$folder/lib" "$folder/data"
  for program in gpu_test gpu_sample_test wi_bench_pack; do
    [ -x "$build/bin/$program" ] || fail "$build has no $program: build it first, with a CUDA 13 toolkit"
    cp "$build/bin/$program" "$folder/bin/${program%_pack}"
  done
  cp "$here/gpu/torch_bench.py" "$folder/bin/"
  cp -L "$library" "$build/lib/libwaveinfer_cuda.so" "$folder/lib/"
  pack_libraries "$folder"
  find "$folder/bin" "$folder/lib" -type f ! -name '*.py' -exec strip {} +
  cp "$here/gpu.sh" "$folder/"
  cp "$here/../samples/model/needle-f16.gguf" "$folder/data/"
  # What the sample's documents are made from: the sample model never saw the text from John 1 on.
  { xz -dc "$here/../samples/text/kjv.txt.xz" || true; } 2>/dev/null | # which is not read to its end
    { head -c 3606700 >/dev/null; head -c 200000; } >"$folder/data/text.txt"
  [ -s "$folder/data/text.txt" ] || fail "the sample's text could not be unpacked (xz)"

  check_pack "$folder"
  local bytes
  bytes=$(find "$folder" -type f -printf '%s\n' | awk '{ sum += $1 } END { printf "%d", sum }')
  [ "$bytes" -le "$most" ] || fail "$folder has $bytes bytes, at most $most may it have"
  echo "$folder: $(find "$folder" -type f | wc -l) files, $bytes bytes"
}

# Of the C library, which every machine has; the driver's are opened at run time.
of_the_system='^(ld-linux.*|libc|libm|libdl|librt|libpthread|linux-vdso)\.so'

pack_libraries() {
  local file
  for file in "$1"/bin/* "$1"/lib/*; do [ "${file##*.}" = py ] || ldd "$file"; done |
    awk '$2 == "=>" { print $1, $3 }' | sort -u | while read -r name path; do
    [[ $name =~ $of_the_system ]] || [ -e "$1/lib/$name" ] || cp -L "$path" "$1/lib/$name"
  done
}

# Nothing that is needed lies outside the folder.
check_pack() {
  local folder file missing
  folder=$(cd "$1" && pwd)
  for file in "$folder"/bin/* "$folder"/lib/*; do
    [ "${file##*.}" != py ] || continue
    missing=$(env -i /usr/bin/env ldd "$file" | awk -v own="$folder/" -v system_names="$of_the_system" '
      $1 !~ system_names && $1 !~ /^\/lib/ && $1 != "statically" && index($3, own) != 1 { print $1 " (" $3 ")" }')
    [ -z "$missing" ] || fail "$file needs what is not in the folder: $missing"
  done
}

main "$@"
