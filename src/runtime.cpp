#include "src/runtime.h"

#include <algorithm>

#include "src/host_call.h"
#include "src/workspace.h"

namespace wi {
namespace {

WaveBufferParams buffer_params(const RuntimeParams& params, std::shared_ptr<const OwnThreads> own_threads) {
  WaveBufferParams buffer;
  buffer.folder = params.spill_folder;
  if (params.spill_bytes) buffer.most_bytes = params.spill_bytes;
  buffer.manager = params.buffer_manager;
  buffer.slab_bytes = params.slab_bytes;
  buffer.file.own_threads = std::move(own_threads);
  buffer.file.ahead = params.read_ahead;
  return buffer;
}

// A device gives memory in pieces of 2 MB: that is the smallest of its slabs, and the largest of the host's.
constexpr size_t kDeviceSlabs = 16;

// Of a device's sessions the slow tier is memory of the host's.
std::shared_ptr<WaveBuffer> open_buffer(const RuntimeParams& params, const Topology& topology,
                                        const std::shared_ptr<HostPool>& pool, const KvPools& kv_pools,
                                        const std::shared_ptr<const Device>& device,
                                        const std::shared_ptr<const OwnThreads>& own_threads) {
  WaveBufferParams buffer = buffer_params(params, own_threads);
  const uint64_t most = params.spill_bytes ? params.spill_bytes : topology.memory_bytes / 10 * 8;
  if (device) {
    buffer.pinned = HostPool::create(
        std::make_shared<MemoryBudget>(most),
        std::make_shared<PinnedMemory>(device, PinnedParams{.node = numa_node_of(device->description.bus),
                                                            .most_bytes = most,
                                                            .own_threads = own_threads}));
    buffer.device = kv_pools.pages;
    buffer.slab_bytes *= kDeviceSlabs;
  } else if (params.spill_folder.empty()) {
    return nullptr;
  }
  return WaveBuffer::open(pool, buffer);
}

// What is left free on a device is for what nobody counts: modules, graphs, and what else the process does with it. That
// grows with neither the device nor the model, and keys and values that do not fit are read over the bus in each step.
constexpr uint64_t kMostLeftFree = uint64_t{4} << 30;

uint64_t default_budget_bytes(const Topology& topology, const Device* device) {
  if (!device) return topology.memory_bytes / 10 * 8;
  const uint64_t free = device->description.free_bytes;
  return free - std::min(free / 5, kMostLeftFree);
}

std::shared_ptr<const Device> open_device(const RuntimeParams& params) {
  if (!params.backend || !params.backend->device) return nullptr;
  check(params.spill_folder.empty(), WI_E_UNSUPPORTED,
        "spill_folder is given: the slow tier of a device's sessions is pinned host memory, not a file");
  return std::make_shared<const Device>(*params.backend->device, params.device);
}

// What keys and values are kept in, if not host memory.
std::shared_ptr<Memory> kv_memory(const RuntimeParams& params, const std::shared_ptr<const Device>& device) {
  if (params.kv_memory || !device) return params.kv_memory;
  return std::make_shared<DeviceMemory>(device);
}

// Of a device the budget is of its memory: what the host keeps of an index, to save it and to cut it, is not in it.
KvPools make_kv_pools(const RuntimeParams& params, const Topology& topology,
                      const std::shared_ptr<HostPool>& pool, const std::shared_ptr<const Device>& device) {
  std::shared_ptr<Memory> memory = kv_memory(params, device);
  return {memory ? HostPool::create(pool->shared_budget(), std::move(memory)) : pool,
          device ? HostPool::create(topology.memory_bytes, params.huge_pages) : pool};
}

// Weights come after the runtime: of what was free then, keys and values have what is left.
std::shared_ptr<HostPool> make_device_weights_pool(const RuntimeParams& params, const HostPool& kv_pool,
                                                   const std::shared_ptr<const Device>& device) {
  if (!device) return nullptr;
  return HostPool::create(
      std::make_shared<MemoryBudget>(device->description.memory_bytes,
                                     params.kv_budget_bytes ? nullptr : kv_pool.shared_budget()),
      std::make_shared<DeviceMemory>(device));
}

}  // namespace

std::shared_ptr<Runtime> Runtime::create(const RuntimeParams& params) {
  check(params.threads >= 0 && params.threads <= 1024, WI_E_ARGUMENT, "threads is ", params.threads,
        ", must be in [0, 1024]");
  return std::shared_ptr<Runtime>(new Runtime(params, read_topology()));
}

Runtime::Runtime(const RuntimeParams& params, Topology topology_in)
    : log_user_{nullptr, params.log_user},
      params_(params),
      backend(params.backend ? *params.backend : cpu_backend()),
      device(open_device(params)),
      topology(std::move(topology_in)),
      own_threads(std::make_shared<const OwnThreads>(
          params.nice, [this](const std::string& warning) { log(WI_LOG_WARNING, warning); })),
      workers(params.threads,
              params.bind_threads && topology.numa_nodes > 1,  // one node has nothing to gain
              own_threads),
      pool(HostPool::create(
          params.kv_budget_bytes ? params.kv_budget_bytes : default_budget_bytes(topology, device.get()),
          params.huge_pages)),
      kv_pools(make_kv_pools(params, topology, pool, device)),
      weights_pool(HostPool::create(topology.memory_bytes, params.huge_pages)),
      device_weights_pool(make_device_weights_pool(params, *pool, device)),
      residency(pool),
      buffer(open_buffer(params, topology, pool, kv_pools, device, own_threads)),
      most_idle_(static_cast<size_t>(std::max(2, workers.threads()))) {
  idle_.reserve(most_idle_);  // so that giving one back cannot fail
  if (const Workers::Refusal refused = workers.refused(); refused.threads > 0)
    log(WI_LOG_WARNING,
        concat("the system refused ", refused.threads, " of ", workers.threads() + refused.threads - 1,
               " threads (", error_text(refused.error), "); working with ", workers.threads()));
  if (device) device->tell([this](const std::string& message) { log(WI_LOG_WARNING, message); });
  log(WI_LOG_INFO,
      concat("waveinfer on ", device ? device->description.product : topology.cpu_name.c_str(), ": ",
             workers.threads(), " threads, ", backend.simd(), ", KV budget ", pool->budget() >> 20, " MiB"));
}

Runtime::~Runtime() {
  if (device) device->tell(nullptr);  // others may keep the device longer
}

void Runtime::log(int32_t level, const std::string& message) const {
  if (!params_.log || level > params_.log_level) return;
  const HostCall host;
  params_.log(params_.log_user, level, message.c_str());
}

std::unique_ptr<Workspace, Runtime::WorkspaceReturn> Runtime::workspace() {
  std::lock_guard lock(mutex_);
  std::unique_ptr<Workspace> workspace;
  if (idle_.empty()) {
    workspace = std::make_unique<Workspace>(device);
  } else {
    workspace = std::move(idle_.back());
    idle_.pop_back();
  }
  return {workspace.release(), WorkspaceReturn{this}};
}

// Of a burst of callers those go that are more than the threads.
void Runtime::WorkspaceReturn::operator()(Workspace* returned) const {
  std::unique_ptr<Workspace> workspace(returned);
  const uint64_t counted = workspace->counted_bytes, counted_on_device = workspace->counted_device_bytes;
  const auto count = [&](uint64_t bytes, uint64_t on_device) {
    runtime->workspace_bytes_ += bytes - counted;
    // Where the budget is what the device has left, that is less.
    if (!runtime->params_.kv_budget_bytes)
      runtime->pool->shared_budget()->tell_elsewhere(counted_on_device, on_device);
  };
  {
    std::lock_guard lock(runtime->mutex_);
    if (runtime->idle_.size() < runtime->most_idle_) {
      workspace->counted_bytes = workspace->bytes();
      workspace->counted_device_bytes = workspace->device_bytes();
      count(workspace->counted_bytes, workspace->counted_device_bytes);
      return runtime->idle_.push_back(std::move(workspace));
    }
  }
  workspace.reset();
  count(0, 0);
}

Runtime::Service& Runtime::service(const std::function<std::unique_ptr<Service>()>& make) {
  std::lock_guard lock(mutex_);
  if (!service_) service_ = make();
  return *service_;
}

uint64_t Runtime::scratch_bytes() const { return workspace_bytes_ + workers.scratch_bytes(); }

}  // namespace wi
