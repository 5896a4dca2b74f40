// A plugin whose structs nobody may look at.
#include "kernels/device.h"

extern "C" __attribute__((visibility("default"))) const wi::DevicePlugin* wi_device_plugin() {
  static const wi::DevicePlugin plugin = {"0.0.0-other", nullptr};
  return &plugin;
}
