// Products of bytes that a processor may have beyond what it is called by: VNNI with AVX2 alone (Intel's for desks since
// Alder Lake), I8MM with NEON (ARM's since Neoverse V1). Highway 1.0 has no instruction set for either.
#pragma once

namespace wi::cpu {

bool has_byte_extension();
// Tests and benchmarks try both. Before others compute.
void allow_byte_extension(bool allowed);

}  // namespace wi::cpu
