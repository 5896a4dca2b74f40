#include "src/memory/topology.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <hwloc.h>
#include <iterator>
#include <memory>
#include <optional>
#include <sched.h>
#include <sstream>
#include <unistd.h>

#include "src/error.h"

namespace wi {
namespace {

std::vector<int> allowed_cpus();
void read_hwloc(Topology& topology);
std::string read_text(const std::string& path);

}  // namespace

Topology read_topology() {
  Topology topology;
  topology.cpus = allowed_cpus();
  topology.memory_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  read_hwloc(topology);

  CgroupLimits limits = read_cgroup_limits("/sys/fs/cgroup", read_text("/proc/self/cgroup"));
  topology.memory_bytes = std::min(topology.memory_bytes, limits.memory_bytes);
  topology.threads = topology.cores;
  if (limits.cpus > 0 && limits.cpus < topology.cores)
    topology.threads = std::max(1, static_cast<int>(std::ceil(limits.cpus)));
  return topology;
}

namespace {

// The mask of the calling thread, which is the process's unless the host bound this thread. The kernel
// wants a set as large as its own; a machine may have more CPUs than a fixed cpu_set_t.
std::vector<int> allowed_cpus() {
  for (int capacity = CPU_SETSIZE; capacity <= 1 << 20; capacity *= 4) {
    size_t bytes = CPU_ALLOC_SIZE(capacity);
    std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(capacity),
                                                         [](cpu_set_t* s) { CPU_FREE(s); });
    check(set != nullptr, WI_E_MEMORY, "no memory for a set of ", capacity, " CPUs");
    if (sched_getaffinity(0, bytes, set.get()) != 0) {
      if (errno == EINVAL) continue;
      throw_errno(WI_E_IO, "sched_getaffinity", errno);
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < capacity; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set.get())) cpus.push_back(cpu);
    return cpus;
  }
  fail(WI_E_IO, "sched_getaffinity: the kernel's CPU set is too large");
}

uint64_t cache_bytes(hwloc_topology_t hwloc, hwloc_obj_type_t type) {
  hwloc_obj_t cache = hwloc_get_obj_by_type(hwloc, type, 0);
  return cache && cache->attr ? cache->attr->cache.size : 0;
}

std::string processor_name(hwloc_topology_t hwloc) {
  hwloc_obj_t package = hwloc_get_obj_by_type(hwloc, HWLOC_OBJ_PACKAGE, 0);
  for (hwloc_obj_t object : {package, hwloc_get_root_obj(hwloc)})
    if (const char* name = object ? hwloc_obj_get_info_by_name(object, "CPUModel") : nullptr) return name;
  return "unknown processor";
}

// Puts one CPU of each core first, so that a bound pool of few threads does not share cores.
void order_by_core(hwloc_topology_t hwloc, Topology& topology) {
  std::vector<std::pair<int, int>> ranked;  // how many CPUs of the same core came before, CPU
  std::vector<hwloc_obj_t> cores;
  for (int cpu : topology.cpus) {
    hwloc_obj_t unit = hwloc_get_pu_obj_by_os_index(hwloc, static_cast<unsigned>(cpu));
    hwloc_obj_t core = unit ? hwloc_get_ancestor_obj_by_type(hwloc, HWLOC_OBJ_CORE, unit) : nullptr;
    if (!core) core = unit;  // a CPU that hwloc cannot place (unit is null too) counts as a core of its own
    ranked.emplace_back(core ? static_cast<int>(std::count(cores.begin(), cores.end(), core)) : 0, cpu);
    cores.push_back(core);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](auto& a, auto& b) { return a.first < b.first; });
  topology.cores =
      static_cast<int>(std::count_if(ranked.begin(), ranked.end(), [](auto& r) { return r.first == 0; }));
  std::transform(ranked.begin(), ranked.end(), topology.cpus.begin(), [](auto& r) { return r.second; });
}

int nodes_with(hwloc_topology_t hwloc, const std::vector<int>& cpus) {
  int nodes = 0;
  for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, node));)
    nodes += std::any_of(cpus.begin(), cpus.end(), [&](int cpu) {
      return hwloc_bitmap_isset(node->cpuset, static_cast<unsigned>(cpu));
    });
  return std::max(nodes, 1);
}

// Where hwloc cannot read the machine, every allowed CPU counts as a core.
void read_hwloc(Topology& topology) {
  topology.cores = std::max<int>(1, static_cast<int>(topology.cpus.size()));
  topology.cpu_name = "unknown processor";
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return;
  std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)> hwloc(raw, hwloc_topology_destroy);
  if (hwloc_topology_load(raw) != 0) return;
  topology.cpu_name = processor_name(raw);
  topology.l2_bytes = cache_bytes(raw, HWLOC_OBJ_L2CACHE);
  topology.l3_bytes = cache_bytes(raw, HWLOC_OBJ_L3CACHE);
  topology.numa_nodes = nodes_with(raw, topology.cpus);
  order_by_core(raw, topology);
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// ---- Control groups ----

// The first number of a file of one or two words; "max", "-1" and an absent file are no number.
std::optional<double> read_number(const std::string& path, int word = 0) {
  std::istringstream words(read_text(path));
  std::string text;
  for (int i = 0; i <= word; ++i)
    if (!(words >> text)) return {};
  char* end = nullptr;
  double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !(number >= 0)) return {};
  return number;
}

void lower_memory(CgroupLimits& limits, std::optional<double> bytes) {
  // Version 1 writes "no limit" as the largest multiple of a page.
  if (bytes && *bytes < 0x1p62)
    limits.memory_bytes = std::min(limits.memory_bytes, static_cast<uint64_t>(*bytes));
}

void lower_cpus(CgroupLimits& limits, std::optional<double> quota, std::optional<double> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return;
  double cpus = *quota / *period;
  if (limits.cpus == 0 || cpus < limits.cpus) limits.cpus = cpus;
}

void read_group(CgroupLimits& limits, const std::string& folder) {
  lower_memory(limits, read_number(folder + "/memory.max"));  // version 2
  lower_cpus(limits, read_number(folder + "/cpu.max"), read_number(folder + "/cpu.max", 1));
  lower_memory(limits, read_number(folder + "/memory.limit_in_bytes"));  // version 1
  lower_cpus(limits, read_number(folder + "/cpu.cfs_quota_us"), read_number(folder + "/cpu.cfs_period_us"));
}

// A group and all above it. Inside a container the path may be the host's and not exist here: then the
// container's own group is the mount's root, which is always read.
void read_groups(CgroupLimits& limits, const std::string& mount, std::string path) {
  if (path.find("/..") != std::string::npos) path.clear();  // outside this name space
  while (!path.empty() && path != "/") {
    read_group(limits, mount + path);
    path.erase(path.find_last_of('/'));
  }
  read_group(limits, mount);
}

}  // namespace

CgroupLimits read_cgroup_limits(const std::string& root, const std::string& self) {
  CgroupLimits limits;
  std::istringstream lines(self);
  for (std::string line; std::getline(lines, line);) {  // "4:memory:/a/b", "0::/a/b"
    size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (!path.starts_with('/')) continue;
    if (controllers.empty()) {
      read_groups(limits, root, path);
      read_groups(limits, root + "/unified", path);
    } else {
      std::istringstream names(controllers);
      read_groups(limits, concat(root, "/", controllers), path);  // mounted together: "cpu,cpuacct"
      for (std::string name; std::getline(names, name, ',');)
        if ((name == "memory" || name == "cpu") && name != controllers)
          read_groups(limits, concat(root, "/", name), path);
    }
  }
  return limits;
}

}  // namespace wi
