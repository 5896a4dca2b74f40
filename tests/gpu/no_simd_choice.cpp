// A pack's benchmark links no libhwy, of which this is all that it would need.
#include <cstdio>
#include <cstdlib>

#include "hwy/targets.h"

namespace hwy {

void SetSupportedTargetsForTest(int64_t) {
  std::fprintf(stderr, "wi_bench: --simd: not in a pack (tests/gpu.sh)\n");
  std::exit(1);
}

}  // namespace hwy
