#include "src/memory/topology.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <fcntl.h>
#include <memory>
#include <optional>
#include <sched.h>
#include <string_view>
#include <system_error>
#include <unistd.h>

#include "src/error.h"

namespace wi {
namespace {

constexpr int kMostCpus = 1 << 20;

std::vector<int> allowed_cpus();
std::string read_text(const std::string& path);

}  // namespace

Topology read_topology() {
  Topology topology;
  topology.cpus = allowed_cpus();
  topology.memory_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  read_processors(topology, "");

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
  for (int capacity = CPU_SETSIZE; capacity <= kMostCpus; capacity *= 4) {
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

// Not through a stream: those swallow a refused allocation, and read through the host's locale. Files of the
// kernel have no length to ask for. What cannot be read is empty.
std::string read_text(const std::string& path) {
  constexpr size_t kMostBytes = size_t{16} << 20;
  std::string text;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return text;
  struct Close {
    int file;
    ~Close() { close(file); }
  } close_it{file};
  for (ssize_t got = 0; text.size() < kMostBytes;) {
    char piece[4096];
    do got = read(file, piece, sizeof piece);
    while (got < 0 && errno == EINTR);
    if (got <= 0) break;
    text.append(piece, static_cast<size_t>(got));
  }
  return text;
}

// Cuts the first piece off a text: what stands before the separator.
std::string_view cut(std::string_view& text, char separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view piece = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return piece;
}

std::string_view without_spaces(std::string_view text) {
  constexpr const char* kSpaces = " \t\n";
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

template <class Number>
std::optional<Number> to_number(std::string_view text) {
  Number number{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || problem != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

// ---- Processors ----

// "0-3,8,10-11"
std::vector<int> read_cpu_list(const std::string& path) {
  std::vector<int> cpus;
  const std::string text = read_text(path);
  for (std::string_view left = without_spaces(text); !left.empty();) {
    std::string_view range = cut(left, ',');
    const auto first = to_number<int>(cut(range, '-'));
    const auto last = range.empty() ? first : to_number<int>(range);
    if (!first || !last || *first < 0 || *last > kMostCpus) return {};
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

// "Model name: ..." as x86 has it in /proc/cpuinfo; other processors have other keys, or none.
std::string processor_name(const std::string& root) {
  const std::string text = read_text(root + "/proc/cpuinfo");
  for (std::string_view left = text; !left.empty();) {
    std::string_view value = cut(left, '\n');
    const std::string_view key = without_spaces(cut(value, ':'));
    if ((key == "model name" || key == "Model" || key == "cpu model") && !without_spaces(value).empty())
      return std::string(without_spaces(value));
  }
  return "unknown processor";
}

// "512K", "32M", or plain bytes.
uint64_t read_size(const std::string& path) {
  const std::string text = read_text(path);
  std::string_view digits = without_spaces(text);
  uint64_t unit = 1;
  if (!digits.empty() && (digits.back() == 'K' || digits.back() == 'M')) {
    unit = digits.back() == 'K' ? 1 << 10 : 1 << 20;
    digits.remove_suffix(1);
  }
  return to_number<uint64_t>(digits).value_or(0) * unit;
}

void read_caches(Topology& topology, const std::string& cpu_folder) {
  for (int index = 0; index < 16; ++index) {
    const std::string folder = concat(cpu_folder, "/cache/index", index);
    const std::string level = read_text(folder + "/level"), type = read_text(folder + "/type");
    if (level.empty()) return;
    if (without_spaces(type) == "Instruction") continue;
    if (without_spaces(level) == "2") topology.l2_bytes = read_size(folder + "/size");
    if (without_spaces(level) == "3") topology.l3_bytes = read_size(folder + "/size");
  }
}

// Puts one CPU of each core first, so that a bound pool of few threads does not share cores.
void order_by_core(Topology& topology, const std::string& system) {
  std::vector<std::pair<int, int>> ranked;  // how many CPUs of the same core came before, CPU
  std::vector<int> seen;                    // CPUs whose turn was
  for (int cpu : topology.cpus) {
    const std::string folder = concat(system, "/cpu/cpu", cpu, "/topology/");
    std::vector<int> core = read_cpu_list(folder + "core_cpus_list");
    if (core.empty()) core = read_cpu_list(folder + "thread_siblings_list");  // its name before Linux 5.3
    const auto before = std::count_if(core.begin(), core.end(), [&](int other) {
      return std::find(seen.begin(), seen.end(), other) != seen.end();
    });
    ranked.emplace_back(static_cast<int>(before), cpu);
    seen.push_back(cpu);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](auto& a, auto& b) { return a.first < b.first; });
  topology.cores =
      static_cast<int>(std::count_if(ranked.begin(), ranked.end(), [](auto& r) { return r.first == 0; }));
  std::transform(ranked.begin(), ranked.end(), topology.cpus.begin(), [](auto& r) { return r.second; });
}

int nodes_with(const std::vector<int>& cpus, const std::string& system) {
  int nodes = 0;
  for (int node : read_cpu_list(system + "/node/online")) {
    const std::vector<int> of_node = read_cpu_list(concat(system, "/node/node", node, "/cpulist"));
    nodes += std::any_of(of_node.begin(), of_node.end(),
                         [&](int cpu) { return std::find(cpus.begin(), cpus.end(), cpu) != cpus.end(); });
  }
  return std::max(nodes, 1);
}

}  // namespace

void read_processors(Topology& topology, const std::string& root) {
  const std::string system = root + "/sys/devices/system";
  topology.cpu_name = processor_name(root);
  topology.cores = std::max<int>(1, static_cast<int>(topology.cpus.size()));
  if (topology.cpus.empty()) return;
  topology.numa_nodes = nodes_with(topology.cpus, system);
  read_caches(topology, concat(system, "/cpu/cpu", topology.cpus.front()));
  order_by_core(topology, system);
}

int numa_node_of(std::string bus, const std::string& root) {
  if (bus.empty() || read_cpu_list(root + "/sys/devices/system/node/online").size() < 2) return -1;
  std::transform(bus.begin(), bus.end(), bus.begin(),
                 [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c; });
  const std::string node = read_text(concat(root, "/sys/bus/pci/devices/", bus, "/numa_node"));
  return to_number<int>(without_spaces(node)).value_or(-1);
}

namespace {

// ---- Control groups ----

// The first number of a file of one or two words; "max", "-1" and an absent file are no number.
std::optional<double> read_number(const std::string& path, int word = 0) {
  const std::string text = read_text(path);
  std::string_view left = without_spaces(text);
  for (; word > 0; --word) cut(left, ' ');
  const auto number = to_number<double>(cut(left, ' '));
  return number && *number >= 0 ? number : std::nullopt;
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
  for (std::string_view lines = self; !lines.empty();) {  // "4:memory:/a/b", "0::/a/b"
    std::string_view line = cut(lines, '\n');
    cut(line, ':');
    std::string_view controllers = cut(line, ':');
    const std::string path(line);
    if (!path.starts_with('/')) continue;
    if (controllers.empty()) {
      read_groups(limits, root, path);
      read_groups(limits, root + "/unified", path);
      continue;
    }
    read_groups(limits, concat(root, "/", controllers), path);  // mounted together: "cpu,cpuacct"
    for (std::string_view left = controllers; !left.empty();) {
      const std::string_view name = cut(left, ',');
      if ((name == "memory" || name == "cpu") && name != controllers)
        read_groups(limits, concat(root, "/", name), path);
    }
  }
  return limits;
}

}  // namespace wi
