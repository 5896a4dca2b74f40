// What sessions share: the backend, its workers, the memory pool with its budget, the log, and the table of
// segments that prefix reuse looks in. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "src/buffer/wave_buffer.h"
#include "src/error.h"
#include "src/memory/device.h"
#include "src/memory/host_pool.h"
#include "src/memory/own_threads.h"
#include "src/memory/pinned_memory.h"
#include "src/memory/topology.h"
#include "src/memory/workers.h"
#include "src/residency.h"
#include "src/store/kv_pools.h"
#include "src/store/prefix_table.h"

namespace wi {

class Workspace;

struct RuntimeParams {
  int32_t threads = 0;
  uint64_t kv_budget_bytes = 0;  // 0: 80 % of the memory limit; of a device, as waveinfer.h says
  bool huge_pages = true;
  bool bind_threads = true;  // where there is more than one NUMA node
  int32_t nice = 0;          // added to the nice value that the runtime's threads inherit
  int32_t log_level = WI_LOG_WARNING;
  wi_log_callback log = nullptr;
  void* log_user = nullptr;
  int32_t task_wait_ms = 50;
  wi_release_callback log_release = nullptr;
  std::string spill_folder = {};  // of the slow tier's file; empty: there is no slow tier
  uint64_t spill_bytes = 0;       // of that file at most; 0: as the disk has room
  BufferManager buffer_manager = BufferManager::lru;
  // Of the library's own, not of its hosts' (null: the CPU's, host memory):
  const Backend* backend = nullptr;
  int32_t device = 0;                           // of a backend that has devices
  size_t slab_bytes = kSlabBytes;               // of the wave buffer's frames
  bool read_ahead = true;                       // of a spilled past, while a prompt's chunk attends
  std::shared_ptr<Memory> kv_memory = nullptr;  // of keys and values; what the backend's kernels read
};

class Runtime {
  // The first member, and so the last to go: nothing can log any more.
  struct LogUser {
    wi_release_callback release = nullptr;
    void* user = nullptr;
    ~LogUser() {
      if (release) release(user);
    }
  } log_user_;
  const RuntimeParams params_;  // the next: what is made and what goes may log

 public:
  static std::shared_ptr<Runtime> create(const RuntimeParams& params);
  ~Runtime();

  const Backend& backend;
  const std::shared_ptr<const Device> device;  // null: the host's own processor
  const Topology topology;
  const std::shared_ptr<const OwnThreads> own_threads;  // it logs to this runtime
  Workers workers;
  const std::shared_ptr<HostPool> pool;
  const KvPools kv_pools;  // of keys and values with pool's budget, and, but for devices, pool
  const std::shared_ptr<HostPool> weights_pool;  // copies of models' weights, at most the process's memory
  const std::shared_ptr<HostPool> device_weights_pool;  // likewise of a device's; null: there is none
  Residency residency;                                  // outlives what the buffer's thread does for it
  const std::shared_ptr<WaveBuffer> buffer;             // null: there is no slow tier
  PrefixTable prefixes;
  std::atomic<int32_t> sessions{0};

  void log(int32_t level, const std::string& message) const;
  // From now on log_release is called at the end. Not before: of a creation that fails the host keeps it.
  void own_log_user() { log_user_.release = params_.log_release; }

  // A step's buffers, taken from and given back to the runtime, so that they are warm for the next step. As many wait
  // as there are threads, and two at least.
  struct WorkspaceReturn {
    Runtime* runtime;
    void operator()(Workspace* workspace) const;
  };
  std::unique_ptr<Workspace, WorkspaceReturn> workspace();
  uint64_t scratch_bytes() const;

  // What works for sessions beside their hosts' calls (src/engine): made when first asked for, gone with the
  // runtime.
  struct Service {
    virtual ~Service() = default;
  };
  Service& service(const std::function<std::unique_ptr<Service>()>& make);
  uint64_t task_wait_ns() const { return static_cast<uint64_t>(params_.task_wait_ms) * 1'000'000; }

 private:
  explicit Runtime(const RuntimeParams& params, Topology topology);
  mutable std::mutex mutex_;
  const size_t most_idle_;
  std::vector<std::unique_ptr<Workspace>> idle_;
  std::atomic<uint64_t> workspace_bytes_{0};
  std::unique_ptr<Service> service_;  // last: it uses the rest
};

}  // namespace wi
