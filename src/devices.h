// The devices that a process can choose from: the host's own processor, always the first, and those of a backend
// that lives in a library of its own, which is opened when somebody asks and stays. Thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/ops.h"

namespace wi {

// Of the plugin: at least one, which says why there is none if there is none.
int32_t plugin_device_count();
// Also what describe() of its table says; policies that its sessions may use.
struct PluginDevice {
  DeviceDescription description;
  int32_t policies = 0;
};
PluginDevice describe_plugin_device(int32_t index);

// "cpu", "cuda" (the first) or "cuda:N". Throws WI_E_UNSUPPORTED for a name that is none of these, WI_E_DEVICE with
// the reason if there is no plugin or it has no such device.
struct DeviceChoice {
  const Backend* backend = nullptr;  // null: the host's own processor
  int32_t index = 0;
};
DeviceChoice find_device(std::string_view name);

}  // namespace wi
