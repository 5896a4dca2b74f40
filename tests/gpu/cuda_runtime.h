// The toolkit's header, and with it what the emulation's (tests/cuda_emulation/cuda_runtime.h) has beside: tests
// are compiled against one or the other.
#pragma once

#include_next <cuda_runtime.h>

#include "tests/gpu/emulation.h"
