// The CUDA backend as the rest of the library sees it, and its table of devices.
#pragma once

#include "kernels/ops.h"

namespace wi::cuda {

const Backend& backend();
extern const DeviceTable device_table;

}  // namespace wi::cuda
