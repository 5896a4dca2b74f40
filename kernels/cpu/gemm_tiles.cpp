#include "kernels/cpu/gemm_tiles-inl.h"

namespace wi::cpu {

void GemmTiles::run([[maybe_unused]] const uint16_t* a, [[maybe_unused]] const uint16_t* b,
                    [[maybe_unused]] float* c) const {
#if defined(__x86_64__)
  multiply_tiles<Amx>(*this, a, b, c);
#else
  assert(!"has_amx_bf16()");
#endif
}

}  // namespace wi::cpu
