// The CUDA backend as the rest of the library sees it, and its table of devices.
#pragma once

#include "kernels/ops.h"

namespace wi::cuda {

const Backend& backend();
uint64_t work_bytes(const DeviceWork& work);  // as DeviceTable has it
extern const DeviceTable device_table;

}  // namespace wi::cuda
