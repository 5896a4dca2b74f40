#include "src/memory/mimalloc.h"

#include <cstdlib>
#include <dlfcn.h>

namespace wi {
namespace {

constexpr int kVersion = 200, kNextVersion = 300;  // as mi_version() counts them: 2.0.9 is 209

Mimalloc c_library() {
  return {[](size_t bytes, size_t alignment) -> void* {
            void* data = nullptr;
            return posix_memalign(&data, alignment, bytes) == 0 ? data : nullptr;
          },
          [](void* data) { std::free(data); }};
}

template <class Function>
bool resolve(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

const Mimalloc& mimalloc() noexcept {
#ifdef WI_SANITIZED
  static const Mimalloc table = c_library();
#else
  static const Mimalloc table = load_mimalloc(WI_MIMALLOC_SONAME);
#endif
  return table;
}

Mimalloc load_mimalloc(const char* soname) noexcept {
  Mimalloc table;
  int (*version)() = nullptr;
  void* const library = dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  const bool found = library && resolve(library, "mi_version", version) &&
                     resolve(library, "mi_malloc_aligned", table.malloc_aligned) &&
                     resolve(library, "mi_free", table.free);
  if (found && version() >= kVersion && version() < kNextVersion) return table;
  dlerror();  // what failed here is not for the host to find
  return c_library();
}

}  // namespace wi
