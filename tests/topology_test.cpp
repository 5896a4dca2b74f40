// Topology: processors, the process's CPU set and control groups, on this machine and on recorded
// hierarchies.
#include "src/memory/topology.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <set>
#include <thread>

#include "tests/test.h"

using namespace wi;

namespace {

// A control group hierarchy in a folder of its own, removed at the end.
class Hierarchy {
 public:
  Hierarchy() {
    std::string name = (std::filesystem::temp_directory_path() / "wi_cgroup_XXXXXX").string();
    assert_non_null(mkdtemp(name.data()));
    root_ = name;
  }
  ~Hierarchy() { std::filesystem::remove_all(root_); }
  void write(const char* path, const char* text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::string root() const { return root_.string(); }
  CgroupLimits limits(const char* self) const { return read_cgroup_limits(root_.string(), self); }

 private:
  std::filesystem::path root_;
};

void no_groups_mean_no_limits(void**) {
  Hierarchy groups;
  for (const char* self :
       {"", "0::/\n", "0::/a/b\n", "nonsense\n", "4:memory\n", "4:memory:relative\n", "::\n"}) {
    CgroupLimits limits = groups.limits(self);
    assert_true(limits.memory_bytes == UINT64_MAX);
    assert_true(limits.cpus == 0);
  }
}

void version_2_takes_the_tightest_of_a_group_and_its_parents(void**) {
  Hierarchy groups;
  groups.write("slice/memory.max", "2000000\n");
  groups.write("slice/cpu.max", "150000 100000\n");
  groups.write("slice/job/memory.max", "max\n");
  groups.write("slice/job/cpu.max", "400000 100000\n");
  CgroupLimits limits = groups.limits("0::/slice/job\n");
  assert_int_equal(limits.memory_bytes, 2000000);
  assert_true(std::fabs(limits.cpus - 1.5) < 1e-9);
  groups.write("slice/job/memory.max", "1000000\n");
  assert_int_equal(groups.limits("0::/slice/job\n").memory_bytes, 1000000);
}

void version_2_without_a_quota_has_none(void**) {
  Hierarchy groups;
  groups.write("cpu.max", "max 100000\n");
  groups.write("memory.max", "max\n");
  CgroupLimits limits = groups.limits("0::/\n");
  assert_true(limits.cpus == 0);
  assert_true(limits.memory_bytes == UINT64_MAX);
}

void version_1_reads_each_controller_in_its_own_hierarchy(void**) {
  Hierarchy groups;
  groups.write("memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
  groups.write("memory/docker/memory.limit_in_bytes", "3000000\n");
  groups.write("cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "250000\n");
  groups.write("cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
  CgroupLimits limits = groups.limits("4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n");
  assert_int_equal(limits.memory_bytes, 3000000);
  assert_true(std::fabs(limits.cpus - 2.5) < 1e-9);
}

void version_1_without_limits_has_none(void**) {
  Hierarchy groups;
  groups.write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  groups.write("cpu/cpu.cfs_quota_us", "-1\n");
  groups.write("cpu/cpu.cfs_period_us", "100000\n");
  CgroupLimits limits = groups.limits("4:memory:/\n1:cpu:/\n");
  assert_true(limits.memory_bytes == UINT64_MAX);
  assert_true(limits.cpus == 0);
}

// A container sees the host's path in /proc/self/cgroup, but only its own group, as the mount's root.
void a_path_of_the_host_falls_back_to_the_mount(void**) {
  Hierarchy groups;
  groups.write("memory/memory.limit_in_bytes", "5000000\n");
  assert_int_equal(groups.limits("4:memory:/docker/0123\n").memory_bytes, 5000000);
  groups.write("memory.max", "4000000\n");
  assert_int_equal(groups.limits("0::/../../docker/0123\n").memory_bytes, 4000000);
}

void broken_files_are_no_limit(void**) {
  Hierarchy groups;
  groups.write("memory.max", "12abc\n");
  groups.write("cpu.max", "100000\n");
  CgroupLimits limits = groups.limits("0::/\n");
  assert_true(limits.memory_bytes == UINT64_MAX);
  assert_true(limits.cpus == 0);
  groups.write("cpu.max", "100000 0\n");
  assert_true(groups.limits("0::/\n").cpus == 0);
  groups.write("cpu.max", "nan nan\n");
  assert_true(groups.limits("0::/\n").cpus == 0);
}

// Two packages of two cores with two threads each, as Linux numbers them: siblings are four apart.
void processors_are_read_core_by_core(void**) {
  Hierarchy machine;
  machine.write("proc/cpuinfo",
                "processor\t: 0\nvendor_id\t: X\nmodel name\t: A Processor @ 3 GHz\nflags\t: a b\n");
  machine.write("sys/devices/system/node/online", "0-1\n");
  machine.write("sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
  machine.write("sys/devices/system/node/node1/cpulist", "2-3,6-7\n");
  for (int cpu = 0; cpu < 8; ++cpu) {
    const std::string folder = "sys/devices/system/cpu/cpu" + std::to_string(cpu);
    const std::string siblings = std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4) + "\n";
    // Half of the machine under the older name.
    machine.write(
        (folder + (cpu < 4 ? "/topology/core_cpus_list" : "/topology/thread_siblings_list")).c_str(),
        siblings.c_str());
  }
  const char* const caches[][3] = {
      {"1", "Data", "48K"}, {"1", "Instruction", "32K"}, {"2", "Unified", "2048K"}, {"3", "Unified", "33M"}};
  for (int index = 0; index < 4; ++index) {
    const std::string folder = "sys/devices/system/cpu/cpu1/cache/index" + std::to_string(index);
    machine.write((folder + "/level").c_str(), caches[index][0]);
    machine.write((folder + "/type").c_str(), caches[index][1]);
    machine.write((folder + "/size").c_str(), caches[index][2]);
  }
  Topology topology;
  topology.cpus = {1, 2, 4, 5, 6};  // what a process may use: 1 and 5 are one core, 2 and 6 another
  read_processors(topology, machine.root());
  assert_string_equal(topology.cpu_name.c_str(), "A Processor @ 3 GHz");
  assert_int_equal(topology.cores, 3);
  assert_int_equal(topology.numa_nodes, 2);
  assert_int_equal(topology.l2_bytes, 2 << 20);
  assert_int_equal(topology.l3_bytes, 33 << 20);
  assert_true(topology.cpus == (std::vector<int>{1, 2, 4, 5, 6}));
  topology.cpus = {1, 5, 6, 2};
  read_processors(topology, machine.root());
  assert_int_equal(topology.cores, 2);
  assert_true(topology.cpus == (std::vector<int>{1, 6, 5, 2}));
  topology.cpus = {0, 4};
  read_processors(topology, machine.root());
  assert_int_equal(topology.cores, 1);
  assert_int_equal(topology.numa_nodes, 1);
}

void a_device_on_the_bus_is_of_a_node(void**) {
  Hierarchy machine;
  machine.write("sys/devices/system/node/online", "0-1\n");
  machine.write("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
  machine.write("sys/bus/pci/devices/0000:5e:00.0/numa_node", "-1\n");
  assert_int_equal(numa_node_of("0000:3B:00.0", machine.root()), 1);
  for (const char* bus : {"0000:5E:00.0", "0000:AF:00.0", ""})
    assert_int_equal(numa_node_of(bus, machine.root()), -1);
  machine.write("sys/devices/system/node/online", "0\n");
  assert_int_equal(numa_node_of("0000:3B:00.0", machine.root()), -1);  // there is nothing to choose
}

void a_machine_that_tells_nothing_has_a_core_for_each_cpu(void**) {
  Hierarchy nothing;
  Topology topology;
  topology.cpus = {0, 3, 9};
  read_processors(topology, nothing.root());
  assert_string_equal(topology.cpu_name.c_str(), "unknown processor");
  assert_int_equal(topology.cores, 3);
  assert_int_equal(topology.numa_nodes, 1);
  assert_int_equal(topology.l2_bytes, 0);
  nothing.write("sys/devices/system/node/online", "0-99999999999\n");
  nothing.write("sys/devices/system/cpu/cpu0/topology/core_cpus_list", "0,-3\n");
  read_processors(topology, nothing.root());
  assert_int_equal(topology.cores, 3);
  assert_int_equal(topology.numa_nodes, 1);
}

void this_machine_reads_sensibly(void**) {
  Topology topology = read_topology();
  std::printf("%s: %d cores, %d threads, %zu CPUs, %d nodes, %.1f GB, L2 %llu, L3 %llu\n",
              topology.cpu_name.c_str(), topology.cores, topology.threads, topology.cpus.size(),
              topology.numa_nodes, static_cast<double>(topology.memory_bytes) / 1e9,
              static_cast<unsigned long long>(topology.l2_bytes),
              static_cast<unsigned long long>(topology.l3_bytes));
  assert_false(topology.cpu_name.empty());
  assert_true(topology.cores >= 1 && topology.cores <= static_cast<int>(topology.cpus.size()));
  assert_true(topology.threads >= 1 && topology.threads <= topology.cores);
  assert_true(topology.numa_nodes >= 1);
  assert_true(topology.memory_bytes > (uint64_t{64} << 20));
  std::set<int> distinct(topology.cpus.begin(), topology.cpus.end());
  assert_int_equal(distinct.size(), topology.cpus.size());
}

void a_narrowed_cpu_set_is_honoured(void**) {
  Topology whole = read_topology();
  int last = *std::max_element(whole.cpus.begin(), whole.cpus.end());
  Topology narrow;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(last), &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0) narrow = read_topology();
  }).join();
  assert_int_equal(narrow.cpus.size(), 1);
  assert_int_equal(narrow.cpus[0], last);
  assert_int_equal(narrow.cores, 1);
  assert_int_equal(narrow.threads, 1);
  assert_int_equal(narrow.numa_nodes, 1);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(no_groups_mean_no_limits),
      cmocka_unit_test(version_2_takes_the_tightest_of_a_group_and_its_parents),
      cmocka_unit_test(version_2_without_a_quota_has_none),
      cmocka_unit_test(version_1_reads_each_controller_in_its_own_hierarchy),
      cmocka_unit_test(version_1_without_limits_has_none),
      cmocka_unit_test(a_path_of_the_host_falls_back_to_the_mount),
      cmocka_unit_test(broken_files_are_no_limit),
      cmocka_unit_test(processors_are_read_core_by_core),
      cmocka_unit_test(a_device_on_the_bus_is_of_a_node),
      cmocka_unit_test(a_machine_that_tells_nothing_has_a_core_for_each_cpu),
      cmocka_unit_test(this_machine_reads_sensibly),
      cmocka_unit_test(a_narrowed_cpu_set_is_honoured),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
