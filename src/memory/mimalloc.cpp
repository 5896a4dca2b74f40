#include "src/memory/mimalloc.h"

#include <cerrno>
#include <cstdlib>
#include <dlfcn.h>

#include "src/error.h"

namespace wi {
namespace {

#ifdef WI_SANITIZED
Mimalloc watched_allocator() {
  return {[](size_t bytes, size_t alignment) -> void* {
            void* data = nullptr;
            return posix_memalign(&data, alignment, bytes) == 0 ? data : nullptr;
          },
          [](void* data) { std::free(data); }};
}
#endif

template <class Function>
void resolve(void* library, const char* soname, const char* name, Function& function) {
  void* symbol = dlsym(library, name);
  check(symbol != nullptr, WI_E_UNSUPPORTED, soname, " has no ", name, ": too old for this library");
  function = reinterpret_cast<Function>(symbol);
}

}  // namespace

const Mimalloc& mimalloc() {
#ifdef WI_SANITIZED
  static const Mimalloc table = watched_allocator();
#else
  static const Mimalloc table = load_mimalloc(WI_MIMALLOC_SONAME);
#endif
  return table;
}

Mimalloc load_mimalloc(const char* soname) {
  errno = 0;  // dlopen itself tells its reasons in words only, but refused memory leaves its mark here
  void* library = dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    const wi_status status = errno == ENOMEM ? WI_E_MEMORY : WI_E_UNSUPPORTED;
    const char* reason = dlerror();
    fail(status, "cannot open ", soname, " (the mimalloc package): ", reason ? reason : "unknown reason");
  }
  Mimalloc table;
  resolve(library, soname, "mi_malloc_aligned", table.malloc_aligned);
  resolve(library, soname, "mi_free", table.free);
  return table;
}

}  // namespace wi
