#!/usr/bin/env bash
# What the compiler says of each CUDA kernel, for each architecture: none has memory of its own (arrays that
# are not in registers, spilled registers), for that is device memory and what a kernel is bound by; and none is
# a trap, which the compiler makes, without a word, of code that can't be on a device (what reads a variable of
# the host's, say): that takes 4 to 8 registers.
# Kernels that matter most are there, with registers for as many blocks to a multiprocessor as they claim (their
# shared memory is held to it where they are declared).
#
#   tests/cuda_resources_test.sh FOLDER    where cmake/keep_resource_report.sh left its reports
set -euo pipefail
mapfile -t reports < <(find "${1:?which folder?}" -name '*.resources' | sort)

# Registers of a thread: 65,536 over threads and blocks.
hot_kernels=(matmul_tensor_kernel:255 matmul_f32_kernel:255 attend_chunk_tensor_kernel:255 matmul_decode_kernel:255
  matmul_decode_few_kernel:128 matmul_decode_f32_kernel:255 attend_kernel:255 attend_tensor_kernel:255
  wave_assign_kernel:128 wave_score_kernel:128 wave_select_kernel:64 wave_estimate_kernel:255 copy_misses_kernel:64
  logit_weights_kernel:255 sample_kernel:64)

check() {
  awk '
    /Compiling entry function/ { split($0, part, "\047"); kernel = part[2] " (" part[4] ")"; kernels++ }
    /bytes stack frame/ {
      checked++
      if ($1 || $5 || $9) { printf "%s: %s\n", kernel, $0; bad++ }
    }
    /Used [0-9]+ registers/ {
      used++
      sub(/.*Used /, "")
      if ($1 <= 8) { printf "%s: %d registers: is it more than a trap?\n", kernel, $1; bad++ }
    }
    END {
      if (!kernels || kernels != checked || kernels != used) { print "reports of " checked + 0 " and " used + 0 " of " kernels " kernels"; bad++ }
      printf "%d kernels, %d with memory of their own or without a report\n", kernels, bad
      exit bad > 0
    }' "$@"
}

# It can fail.
named="Compiling entry function 'k' for 'sm_80'"
fits='0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads'
uses='ptxas info : Used 40 registers, used 0 barriers'
for wrong in '' "$named" "$named"$'\n'"$fits" "$named"$'\n'"$uses" "$named"$'\n'"8${fits#0}"$'\n'"$uses" \
  "$named"$'\n'"${fits/0 bytes spill loads/4 bytes spill loads}"$'\n'"$uses" \
  "$named"$'\n'"$fits"$'\n'"${uses/40/8}"; do
  if check <<<"$wrong" >/dev/null; then
    echo "tests/cuda_resources_test.sh finds nothing wrong with: $wrong" >&2
    exit 1
  fi
done
check "${reports[@]}"
for hot in "${hot_kernels[@]}"; do
  for architecture in sm_80 sm_90a; do
    cat "${reports[@]}" | awk -v name="${hot%:*}" -v most="${hot#*:}" -v architecture="$architecture" '
      /Compiling entry function/ { split($0, part, "\047"); mine = part[4] == architecture && index(part[2], length(name) name) }
      mine && /Used [0-9]+ registers/ {
        found = 1
        sub(/.*Used /, "")
        if ($1 > most) { printf "%s (%s): %d registers, at most %d fit its blocks\n", name, architecture, $1, most; bad = 1 }
      }
      END {
        if (!found) print "no report of " name " for " architecture
        exit bad || !found
      }'
  done
done
