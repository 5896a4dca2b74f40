// Weights, keys, values and activations of any type as the bf16 operands of dense products in prefill. bf16
// keeps 8 significant bits of a number. For 16 it is the sum of two parts, x = x1 + x2 with x1 = bf16(x) and
// x2 = bf16(x - x1), and a·b the sum of three terms, a1·b1 + a2·b1 + a1·b2, the smallest left out; of two
// where b2 = 0. Where inputs are few, that is one product over three times as many: [a1 a2 a1] · [b1 b1 b2].
// (Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
// Computations", 2019.)
#pragma once

#include "kernels/types.h"

namespace wi::cpu {

// How many terms make a product of this precision here when the right operand is stored as `type`: 1; 2 or 3;
// 0 where products are in f32.
int bf16_terms(Precision precision, DType type);

// x1 at `first` and, unless it is null, x2 at `second`, each rounded to nearest even. count: whole blocks of
// the type. Out: bf16 bit patterns.
void unpack_parts(const void* in, DType type, int64_t count, uint16_t* first, uint16_t* second);

// A left operand of one product: [x1], [x1 x2] or [x1 x2 x1], `count` numbers each, one after the other.
void unpack_left(const float* in, int64_t count, int terms, uint16_t* out);

// A right operand: x1, x1 and x2 at out, out + apart and out + 2 · apart, as many as there are terms.
void unpack_right(const void* in, DType type, int64_t count, int terms, int64_t apart, uint16_t* out);

}  // namespace wi::cpu
