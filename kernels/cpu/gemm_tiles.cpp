// The processor's tiles. In assembly, because compilers' intrinsics for them do not say that they read and write
// memory, and would ask for functions that only these processors may run.
#include "kernels/cpu/gemm_tiles-inl.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace wi::cpu {
namespace {

struct Amx {
  static void shape(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
  // Until then every switch of threads would carry the tiles' eight kilobytes along.
  static void release() { asm volatile("tilerelease"); }

  template <int kTile>
  static void clear() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  // Rows of 64 bytes, so far apart.
  template <int kTile>
  static void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kSum, int kLeft, int kRight>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
  }
};

bool has_instructions() {
  unsigned a, b, c, d;
  constexpr unsigned kOsXsave = 1u << 27, kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kOsXsave)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kAmxBf16) || !(d & kAmxTile)) return false;
  constexpr unsigned kTileState = 3u << 17;  // what the system saves between threads
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState;
}

bool ask_system() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, which old headers lack
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool GemmTiles::supported() {
  static const bool answer = has_instructions() && ask_system();
  return answer;
}

void GemmTiles::run(const uint16_t* a, const uint16_t* b, float* c) const {
  multiply_tiles<Amx>(*this, a, b, c);
}

}  // namespace wi::cpu

#else

namespace wi::cpu {

bool GemmTiles::supported() { return false; }
void GemmTiles::run(const uint16_t*, const uint16_t*, float*) const { assert(!"supported()"); }

}  // namespace wi::cpu
#endif
