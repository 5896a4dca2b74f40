#!/usr/bin/env bash
# What the compiler says of each CUDA kernel, for each architecture: none has memory of its own (arrays that
# are not in registers, spilled registers), for that is device memory and what a kernel is bound by.
#
#   tests/cuda_resources_test.sh FOLDER    where cmake/keep_resource_report.sh left its reports
set -euo pipefail
mapfile -t reports < <(find "${1:?which folder?}" -name '*.resources' | sort)

check() {
  awk '
    /Compiling entry function/ { split($0, part, "\047"); kernel = part[2] " (" part[4] ")"; kernels++ }
    /bytes stack frame/ {
      checked++
      if ($1 || $5 || $9) { printf "%s: %s\n", kernel, $0; bad++ }
    }
    END {
      if (!kernels || kernels != checked) { print "no report for " kernels - checked " of " kernels " kernels"; bad++ }
      printf "%d kernels, %d with memory of their own or without a report\n", kernels, bad
      exit bad > 0
    }' "$@"
}

# It can fail.
for wrong in '' "Compiling entry function 'k' for 'sm_80'
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" "Compiling entry function 'k' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads" "Compiling entry function 'k' for 'sm_80'"; do
  if check <<<"$wrong" >/dev/null; then
    echo "tests/cuda_resources_test.sh finds nothing wrong with: $wrong" >&2
    exit 1
  fi
done
check "${reports[@]}"
