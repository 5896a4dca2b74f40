#!/usr/bin/env bash
# What the instructions of CUDA's hot kernels are, for each architecture: tensor cores where products are theirs, the
# dot products of bytes where codes are scored, and memory in pieces of 16 bytes, by copies that no register waits for
# where a kernel has tiles of it in shared memory. The compiler leaves any of that without a word: for an alignment that
# it cannot see, or a type of another name.
#
#   tests/cuda_disassembly_test.sh CUOBJDUMP LIBRARY    with the kernels
set -euo pipefail
cuobjdump=${1:?which cuobjdump?} library=${2:?which library?}
PATH=$(dirname "$cuobjdump"):$PATH # its nvdisasm is beside it

# Words of what follows; each of a kernel's instantiations has one of each at least.
load='LD(G|GSTS)?(\.[A-Z0-9]+)*\.128' store='ST(G)?(\.[A-Z0-9]+)*\.128' copy='LDGSTS(\.[A-Z0-9]+)*\.128'
hot_kernels=(
  "matmul_tensor_kernel HMMA LDSM $copy"
  "attend_chunk_tensor_kernel HMMA LDSM $copy"
  "wave_assign_kernel IMMA LDSM $copy"
  "attend_tensor_kernel HMMA $load"
  "matmul_decode_kernel HMMA $load"
  "matmul_decode_few_kernel HMMA $load"
  "matmul_decode_f32_kernel FFMA $load"
  "attend_kernel FFMA $copy"
  "wave_score_kernel IDP\.4A $load"
  "wave_estimate_kernel FFMA $load"
  "copy_misses_kernel $load $store"
  "gather_kernel $load $store"
  "append_kernel $load"
)

# check KERNEL-AND-WORDS...: of the disassembly on standard input.
check() {
  awk -v list="$(printf '%s\n' "$@")" '
    function close_function(   i) {
      if (!mine) return
      seen[mine]++
      for (i = 2; i <= words; i++)
        if (!found[i]) { printf "%s has no %s\n", name, word[i]; bad++ }
    }
    BEGIN { hot = split(list, kernel, "\n") }
    /Function :/ {
      close_function()
      name = $3
      mine = 0
      for (i = 1; i <= hot && !mine; i++) {
        words = split(kernel[i], word, " ")
        if (index(name, length(word[1]) word[1])) mine = i
      }
      for (i = 2; i <= words; i++) { found[i] = 0; expression[i] = "[ \t]" word[i] "[ .]" }
      next
    }
    mine { for (i = 2; i <= words; i++) if (!found[i] && $0 ~ expression[i]) found[i] = 1 }
    END {
      close_function()
      for (i = 1; i <= hot; i++) {
        if (!seen[i]) { printf "no disassembly of %s\n", kernel[i]; bad++ }
        kernels += seen[i]
      }
      printf "%d kernels, %d words missing\n", kernels, bad
      exit bad > 0
    }'
}

# It can fail.
good=$'Function : _Z8k_kernelI\n /*0010*/ LDG.E.128 R4, [R2] ;'
check "k_kernel $load" <<<"$good" >/dev/null
for wrong in '' "${good/k_kernel/l_kernel}" "${good/.128/.64}" "${good/LDG/LDS}"; do
  if check "k_kernel $load" <<<"$wrong" >/dev/null; then
    echo "tests/cuda_disassembly_test.sh finds nothing wrong with: $wrong" >&2
    exit 1
  fi
done

for architecture in sm_80 sm_90a; do
  echo "$architecture:"
  "$cuobjdump" -sass -arch "$architecture" "$library" | check "${hot_kernels[@]}"
done
