// Weights, keys and values of any type as bf16, the operands of dense products in prefill.
#pragma once

#include "kernels/types.h"

namespace wi::cpu {

// Rounds to nearest even. count: whole blocks of the type. out: bf16 bit patterns.
void unpack_bf16(const void* in, DType type, uint16_t* out, int64_t count);

}  // namespace wi::cpu
