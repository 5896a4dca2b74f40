#include "src/host_process.h"

namespace wi {

void load_unwinder() {}

}  // namespace wi
