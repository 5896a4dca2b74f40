// Products of bytes that a processor may have beyond the instruction set that kernels are compiled for: VNNI without
// AVX-512 (Intel's for desks and laptops since Alder Lake), I8MM with NEON (ARM's since Neoverse V1). Highway 1.0 has no
// instruction set for either.
#pragma once

namespace wi::cpu {

bool has_byte_extension();
// For tests and benchmarks, which try both; nobody may be computing meanwhile.
void allow_byte_extension(bool allowed);

}  // namespace wi::cpu
