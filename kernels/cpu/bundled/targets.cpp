// The two functions of Highway's own library that dispatch at run time calls, so that a bundled libwaveinfer
// needs no libhwy: which instruction sets this processor and its system have, and where the choice is kept.
// Of the targets only those that this library compiles (cmake/components.cmake) are told apart.
#include "hwy/targets.h"

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

namespace hwy {

int64_t SupportedTargets() {
  static const int64_t targets = [] {
    int64_t found = HWY_STATIC_TARGET;
#if HWY_ARCH_X86
    __builtin_cpu_init();
    const auto all = [](auto... has) { return (... && (has != 0)); };
    // What not every compiler has a name for.
    unsigned a, b, c, d;
    const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    const bool lzcnt = __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & bit_LZCNT);
    const bool vaes = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & bit_VAES);

    const bool avx2 = all(__builtin_cpu_supports("avx2"), __builtin_cpu_supports("fma"),
                          __builtin_cpu_supports("bmi"), __builtin_cpu_supports("bmi2"), f16c, lzcnt);
    const bool avx3 = avx2 && all(__builtin_cpu_supports("avx512f"), __builtin_cpu_supports("avx512vl"),
                                  __builtin_cpu_supports("avx512dq"), __builtin_cpu_supports("avx512bw"),
                                  __builtin_cpu_supports("avx512cd"));
    const bool avx3_dl =
        avx3 && vaes &&
        all(__builtin_cpu_supports("avx512vnni"), __builtin_cpu_supports("avx512vbmi"),
            __builtin_cpu_supports("avx512vbmi2"), __builtin_cpu_supports("avx512ifma"),
            __builtin_cpu_supports("avx512bitalg"), __builtin_cpu_supports("avx512vpopcntdq"),
            __builtin_cpu_supports("vpclmulqdq"), __builtin_cpu_supports("gfni"));
    if (__builtin_cpu_supports("ssse3")) found |= HWY_SSSE3;
    if (avx2) found |= HWY_AVX2;
    if (avx3) found |= HWY_AVX3;
    if (avx3_dl) found |= HWY_AVX3_DL;
#endif
    return found;
  }();
  return targets;
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
