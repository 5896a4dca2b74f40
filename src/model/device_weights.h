// A model's weights in the memory of a device.
#pragma once

#include "kernels/device.h"
#include "src/files/watch.h"
#include "src/memory/host_pool.h"
#include "src/model/model.h"

namespace wi {

// Copies every matrix and vector into one buffer of the pool's and points the model at it; the files and what
// of them lay in the host's memory are let go. For a model that nobody else has yet. progress: bytes copied,
// bytes in all; may throw. WI_E_UNSUPPORTED for a type of weights that the device's kernels do not read, by
// name; WI_E_MEMORY if the device has no room. A failure leaves the model as it was.
void move_weights(Model& model, const DeviceTable& device, HostPool& pool, const Progress& progress);

}  // namespace wi
