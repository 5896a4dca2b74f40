// What this process may really use of the machine: cores, caches and NUMA nodes as Linux tells them, cut
// down to the process's CPU set and to its control groups' CPU quota and memory limit (containers). Not
// through hwloc, whose assertions end the process when an allocation is refused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace wi {

struct Topology {
  std::string cpu_name;       // the processor's own
  int cores = 1;              // physical cores with at least one allowed CPU
  int threads = 1;            // to run at once: cores, or the CPU quota rounded up if that is less
  std::vector<int> cpus;      // allowed CPUs by the system's number: one per core first, then their siblings
  int numa_nodes = 1;         // with at least one allowed CPU
  uint64_t memory_bytes = 0;  // the smaller of the machine's and the control groups' limit
  uint64_t l2_bytes = 0;      // per core; 0: unknown
  uint64_t l3_bytes = 0;      // per group of cores; 0: unknown
};

Topology read_topology();

// Name, cores, caches and NUMA nodes of topology.cpus, which are put in order, from root/sys and root/proc
// (root "" is this machine). Where those say nothing, every CPU counts as a core.
void read_processors(Topology& topology, const std::string& root);

// The NUMA node that a device on the PCI bus hangs on, "0000:3b:00.0"; -1: there is only one, or nobody knows.
int numa_node_of(std::string bus, const std::string& root = "");

// The tightest limits of a process's control groups and all their parents, versions 1 and 2.
struct CgroupLimits {
  uint64_t memory_bytes = UINT64_MAX;  // UINT64_MAX: none
  double cpus = 0;                     // CPU time per time; 0: no quota
};

// root: where the hierarchies are mounted, /sys/fs/cgroup; self: the text of /proc/self/cgroup.
CgroupLimits read_cgroup_limits(const std::string& root, const std::string& self);

}  // namespace wi
