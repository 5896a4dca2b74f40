// What -fsanitize=thread has the compiler call before each access: its own runtime is not linked, these are.
#include "tests/cuda_emulation/accesses.h"

#include "tests/cuda_emulation/emulation.h"

namespace cuda_emulation {
namespace {
bool instrumented = false;
}
bool sees_accesses() { return instrumented; }
}  // namespace cuda_emulation

using cuda_emulation::Access;
using cuda_emulation::access;

extern "C" {
void __tsan_init() { cuda_emulation::instrumented = true; }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* address, unsigned long bytes) { access(address, bytes, Access::read); }
void __tsan_write_range(void* address, unsigned long bytes) { access(address, bytes, Access::write); }
#define WI_ACCESS(bytes)                                                                       \
  void __tsan_read##bytes(void* address) { access(address, bytes, Access::read); }             \
  void __tsan_write##bytes(void* address) { access(address, bytes, Access::write); }           \
  void __tsan_unaligned_read##bytes(void* address) { access(address, bytes, Access::read); }   \
  void __tsan_unaligned_write##bytes(void* address) { access(address, bytes, Access::write); } \
  void __tsan_read_write##bytes(void* address) { access(address, bytes, Access::write); }      \
  void __tsan_unaligned_read_write##bytes(void* address) { access(address, bytes, Access::write); }
WI_ACCESS(1)
WI_ACCESS(2)
WI_ACCESS(4)
WI_ACCESS(8)
WI_ACCESS(16)
#undef WI_ACCESS
}
