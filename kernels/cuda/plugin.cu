// What libwaveinfer_cuda.so exports.
#include "kernels/cuda/backend.h"

static const wi::DevicePlugin plugin = {WI_BACKEND_BUILD, &wi::cuda::backend()};

extern "C" __attribute__((visibility("default"))) const wi::DevicePlugin* wi_device_plugin() {
  return &plugin;
}
