// Every access to memory that a kernel makes comes by here.
#pragma once

#include <cstddef>

#include "tests/cuda_emulation/shadow.h"

namespace cuda_emulation {
void access(const void* address, size_t bytes, Access how);
}
