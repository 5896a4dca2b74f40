#include "src/devices.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <memory>
#include <string>
#include <unistd.h>

#include "src/c_locale.h"
#include "src/error.h"

namespace wi {
namespace {

constexpr char kLibrary[] = "libwaveinfer_cuda.so";

struct Plugin {
  std::unique_ptr<const BackendOnDevice> on_device;  // null, and why
  std::string reason;
};

// The file that this code is in. A library that was opened by a relative path, and a program that was started by one
// and has the library inside, are still called by it when the process has gone to another folder: then the system's
// list of mappings knows better. Empty: nobody says.
std::string own_file() {
  const auto* const here = reinterpret_cast<const void*>(&find_device);
  Dl_info own;
  if (!dladdr(here, &own) || !own.dli_fname) return {};
  std::string file = own.dli_fname;
  if (file.starts_with('/')) return file;
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"), &std::fclose);
  char* line = nullptr;
  size_t room = 0;
  while (maps && getline(&line, &room, maps.get()) > 0) {  // "from-to perms offset device inode   /path"
    unsigned long from = 0, to = 0;
    const auto at = reinterpret_cast<unsigned long>(here);
    if (std::sscanf(line, "%lx-%lx", &from, &to) != 2 || at < from || at >= to) continue;
    if (const char* const path = std::strchr(line, '/')) file.assign(path, std::strcspn(path, "\n"));
    break;
  }
  std::free(line);
  return file;
}

// Beside this library, where an installation has it, or else wherever the system looks for libraries. If it is
// nowhere, `words` says why of the one that is there, should it be one that does not load.
void* open_library(std::string& words) {
  constexpr int kHow = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  const auto open = [&words](const char* path) {
    const CLocale locale;
    void* const library = dlopen(path, kHow);
    const char* const said = dlerror();  // which is not for the host to find
    if (!library && words.empty()) words = said ? said : path;
    return library;
  };
  const std::string own = own_file();
  const std::string beside = concat(std::string_view(own).substr(0, own.rfind('/') + 1), kLibrary);
  if (beside != kLibrary && access(beside.c_str(), F_OK) == 0)
    if (void* const library = open(beside.c_str())) return library;
  return open(kLibrary);
}

Plugin open_plugin() {
  Plugin plugin;
  std::string words;
  void* const library = open_library(words);
  if (!library) {
    plugin.reason = concat(kLibrary, " cannot be opened: ", words);
    return plugin;
  }
  const auto ask = reinterpret_cast<DevicePluginFunction>(dlsym(library, kDevicePlugin));
  const DevicePlugin* const given = ask ? ask() : nullptr;
  if (!given || std::strcmp(given->build, WI_BACKEND_BUILD) != 0)
    plugin.reason = concat(kLibrary, " is of another build (", given ? given->build : "unknown",
                           ") than this library (", WI_BACKEND_BUILD, ")");
  else
    plugin.on_device = std::make_unique<const BackendOnDevice>(*given->backend);
  return plugin;
}

// Never destroyed: threads and handles of a host's may outlive whatever goes at exit().
const Plugin& plugin() {
  static const Plugin& opened = *new Plugin(open_plugin());
  return opened;
}

const Backend* plugin_backend() { return plugin().on_device ? &plugin().on_device->backend : nullptr; }

}  // namespace

int32_t plugin_device_count() {
  const Backend* const backend = plugin_backend();
  return backend ? backend->device->count() : 1;
}

PluginDevice describe_plugin_device(int32_t index) {
  PluginDevice device;
  if (const Backend* const backend = plugin_backend()) {
    backend->device->describe(index, false, &device.description);
    device.policies = backend->policy_count;
    return device;
  }
  std::snprintf(device.description.name, sizeof device.description.name, "cuda:%d", static_cast<int>(index));
  std::snprintf(device.description.reason, sizeof device.description.reason, "%s", plugin().reason.c_str());
  return device;
}

DeviceChoice find_device(std::string_view name) {
  if (name == "cpu") return {};
  constexpr std::string_view kCuda = "cuda";
  int32_t index = 0;
  bool known = name.starts_with(kCuda);
  if (known && name != kCuda) {
    const std::string_view number = name.substr(kCuda.size());
    const char* const end = number.data() + number.size();
    known = number.size() > 1 && number[0] == ':';
    if (known) {
      const auto [stop, error] = std::from_chars(number.data() + 1, end, index);
      known = error == std::errc() && stop == end && index >= 0;
    }
  }
  check(known, WI_E_UNSUPPORTED, "device is \"", name, "\", must be \"cpu\", \"cuda\" or \"cuda:N\"");
  const Backend* const backend = plugin_backend();
  check(backend != nullptr, WI_E_DEVICE, "device \"", name, "\" cannot be used: ", plugin().reason);
  const int32_t count = backend->device->count();
  check(index < count, WI_E_DEVICE, "device is \"", name, "\", and there ", count == 1 ? "is" : "are", " ",
        count);
  return {backend, index};
}

}  // namespace wi
