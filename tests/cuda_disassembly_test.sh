#!/usr/bin/env bash
# What the instructions of CUDA's hot kernels are, for each architecture: tensor cores where products are theirs, the
# dot products of bytes where codes are scored, and memory in pieces of 16 bytes, by copies that no register waits for
# where a kernel has tiles of it in shared memory. The compiler leaves any of that without a word: for an alignment that
# it cannot see, or a type of another name. And that each kernel waits for its turn, where those of a stream are launched
# ahead (kernels/cuda/launch.h), before it reads or writes what another may be at: on an emulated device none is ahead.
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
  "logit_weights_kernel DMUL DADD"
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

# Passes the disassembly on: of kernels that begin with in_turn() (kernels/cuda/device.cuh), before which there may be
# constants, shared memory and prefetches. One that ends before it is none either: the next would take what is before
# them both for done.
check_turns() {
  awk '
    function close_function() {
      if (name && !waits) { printf "%s does not wait for its turn\n", name >"/dev/stderr"; bad++ }
    }
    { print }
    /Function :/ { close_function(); name = $3; waits = 0; kernels++; next }
    waits || !/^[ \t]*\/\*[0-9a-f]+\*\/.*;/ { next }
    {
      opcode = $2 ~ /^@/ ? $3 : $2
      sub(/\..*/, "", opcode)
    }
    opcode == "ACQBULK" { waits = 1 }
    opcode ~ /^(LD|LDG|LDGSTS|LDGMC|ST|STG|ATOM|ATOMG|RED|REDG|REDAS|EXIT|RET|CALL|(UBLK|UTMA).*)$/ {
      printf "%s: %s before its turn\n", name, $0 >"/dev/stderr"
      bad++
      waits = 1 # as it should have by now
    }
    END {
      close_function()
      printf "%d kernels, %d before their turn\n", kernels, bad >"/dev/stderr"
      exit (bad > 0 || !kernels)
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

good=$'Function : k\n /*0010*/ LDC.64 R2, c[0x0][0x210] ;\n /*0020*/ @P0 CCTL.E.PF2 [R2] ;\n /*0030*/ ACQBULK ;'
good+=$'\n /*0040*/ @P0 LDG.E.128 R4, [R2] ;\n /*0050*/ EXIT ;'
check_turns <<<"$good" >/dev/null 2>&1
for wrong in '' "${good/ACQBULK/NOP}" "$good"$'\n'"${good/ACQBULK/PREEXIT}" "${good/CCTL/LDG}" "${good/@P0 CCTL/ST}" \
  "${good/CCTL.E.PF2/ATOMG.E.ADD}" "${good/@P0 CCTL/LDGSTS}" "${good/@P0 CCTL.E.PF2/EXIT}"; do
  if check_turns <<<"$wrong" >/dev/null 2>&1; then
    echo "tests/cuda_disassembly_test.sh finds each at its turn in: $wrong" >&2
    exit 1
  fi
done

disassembly() { "$cuobjdump" -sass -arch "$1" "$library"; }
echo sm_80:
disassembly sm_80 | check "${hot_kernels[@]}"
echo sm_90a:
disassembly sm_90a | check_turns | check "${hot_kernels[@]}"
