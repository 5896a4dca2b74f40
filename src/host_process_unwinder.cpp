#include <execinfo.h>

#include "src/error.h"
#include "src/host_process.h"

namespace wi {

void load_unwinder() {
  void* frame = nullptr;
  check(backtrace(&frame, 1) == 1, WI_E_MEMORY, "the C library had no memory to load its unwinder");
}

}  // namespace wi
