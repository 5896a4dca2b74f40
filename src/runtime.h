// What sessions share: the backend, its workers, the memory pool with its budget, the log, and the table of
// segments that prefix reuse looks in. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "src/error.h"
#include "src/memory/host_pool.h"
#include "src/memory/topology.h"
#include "src/memory/workers.h"
#include "src/store/prefix_table.h"

namespace wi {

class Workspace;

struct RuntimeParams {
  int32_t threads = 0;
  uint64_t kv_budget_bytes = 0;  // 0: 80 % of the memory limit
  bool huge_pages = true;
  bool bind_threads = true;  // where there is more than one NUMA node
  int32_t log_level = WI_LOG_WARNING;
  wi_log_callback log = nullptr;
  void* log_user = nullptr;
};

class Runtime : public std::enable_shared_from_this<Runtime> {
 public:
  static std::shared_ptr<Runtime> create(const RuntimeParams& params);
  ~Runtime();

  const Backend& backend;
  const Topology topology;
  Workers workers;
  const std::shared_ptr<HostPool> pool;
  const std::shared_ptr<HostPool> weights_pool;  // copies of models' weights, at most the process's memory
  PrefixTable prefixes;
  std::atomic<int32_t> sessions{0};

  void log(int32_t level, const std::string& message) const;

  // A step's buffers, taken from and given back to the runtime, so that they are warm for the next step.
  struct WorkspaceReturn {
    Runtime* runtime;
    void operator()(Workspace* workspace) const;
  };
  std::unique_ptr<Workspace, WorkspaceReturn> workspace();
  uint64_t scratch_bytes() const;

 private:
  explicit Runtime(const RuntimeParams& params, Topology topology);
  RuntimeParams params_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
  std::atomic<uint64_t> workspace_bytes_{0};
};

}  // namespace wi
