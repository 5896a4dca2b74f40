#include "kernels/cpu/byte_extension.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace wi::cpu {
namespace {

std::atomic<bool> is_allowed{true};

bool processor_has_it() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1) != 0;  // AVX-VNNI
#elif defined(__aarch64__)
  constexpr unsigned long kI8mm = 1ul << 13;  // HWCAP2_I8MM, which old headers lack
  return (getauxval(AT_HWCAP2) & kI8mm) != 0;
#else
  return false;
#endif
}

}  // namespace

bool has_byte_extension() {
  static const bool has = processor_has_it();
  return has && is_allowed.load(std::memory_order_relaxed);
}

void allow_byte_extension(bool allowed) { is_allowed = allowed; }

}  // namespace wi::cpu
