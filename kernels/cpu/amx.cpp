#include "kernels/cpu/amx.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace wi::cpu {
namespace {

std::atomic<bool> is_allowed{true};

struct Has {
  bool bf16 = false, bytes = false;
};

Has find() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  constexpr unsigned kOsXsave = 1u << 27, kBf16 = 1u << 22, kTiles = 1u << 24, kBytes = 1u << 25;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kOsXsave)) return {};
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTiles)) return {};
  constexpr unsigned kTileState = 3u << 17;  // what the system saves between threads
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & kTileState) != kTileState) return {};
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, which old headers lack
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return {};
  return {(d & kBf16) != 0, (d & kBytes) != 0};
#else
  return {};
#endif
}

const Has& here() {
  static const Has has = find();
  return has;
}

}  // namespace

bool has_amx_bf16() { return here().bf16 && is_allowed.load(std::memory_order_relaxed); }
bool has_amx_bytes() { return here().bytes && is_allowed.load(std::memory_order_relaxed); }
void allow_amx(bool allowed) { is_allowed = allowed; }

}  // namespace wi::cpu
