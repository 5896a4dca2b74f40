#include "tests/bench/device.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "src/error.h"
#include "src/stats.h"
#include "src/store/byte_stream.h"

namespace wi::bench {
namespace {

// Bytes from one thread to another, in order. Whoever leaves first says so; the other one's next call throws.
class Pipe final : public ByteSink, public ByteSource {
 public:
  explicit Pipe(uint64_t bytes) : bytes_(bytes), room_(size_t{16} << 20) {}

  void write(const void* data, size_t bytes) override {
    for (const auto* from = static_cast<const std::byte*>(data); bytes > 0;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return written_ - read_ < room_.size() || closed_; });
      check(!closed_, WI_E_IO, "nobody reads any more");
      const size_t at = written_ % room_.size();
      const size_t count = std::min({bytes, room_.size() - at, room_.size() - (written_ - read_)});
      lock.unlock();  // nobody else touches what is free
      std::memcpy(room_.data() + at, from, count);
      lock.lock();
      written_ += count;
      changed_.notify_all();
      from += count;
      bytes -= count;
    }
  }

  uint64_t bytes() const override { return bytes_; }
  void read(uint64_t offset, void* to, size_t bytes) override {
    check(offset >= read_, WI_E_INTERNAL, "a session is read from ", offset, " on after ", read_, " bytes");
    take(nullptr, offset - read_);
    take(static_cast<std::byte*>(to), bytes);
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  void take(std::byte* to, uint64_t bytes) {
    while (bytes > 0) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return written_ > read_ || closed_; });
      check(written_ > read_, WI_E_IO, "nobody writes any more");
      const size_t at = read_ % room_.size();
      const size_t count =
          static_cast<size_t>(std::min<uint64_t>({bytes, room_.size() - at, written_ - read_}));
      lock.unlock();
      if (to) std::memcpy(to, room_.data() + at, count), to += count;
      lock.lock();
      read_ += count;
      changed_.notify_all();
      bytes -= count;
    }
  }

  const uint64_t bytes_;
  std::vector<std::byte> room_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t written_ = 0, read_ = 0;
  bool closed_ = false;
};

// Of a queue that is in a step which it tells the device of in one call.
thread_local const DeviceQueue* in_one_call = nullptr;
std::atomic<uint64_t> steps_told{0}, told_ns{0};
const DeviceTable* watched_table = nullptr;

void begin_step(DeviceQueue* queue) {
  in_one_call = queue;
  watched_table->begin_step(queue);
}
// What no graph holds comes: the rest of the step goes as it comes.
template <auto kOperation>
void goes_on_without(DeviceQueue* queue) {
  in_one_call = nullptr;
  (watched_table->*kOperation)(queue);
}
bool finish(DeviceQueue* queue, DeviceError* error) {
  if (std::exchange(in_one_call, nullptr) != queue) return watched_table->finish(queue, error);
  uint64_t ns = 0;
  bool done = false;
  {
    StageTimer timer(ns);
    done = watched_table->finish(queue, error);
  }
  told_ns += ns;
  ++steps_told;
  return done;
}

}  // namespace

const Backend* watched(const Backend* backend, bool graphs) {
  static DeviceTable table;
  static Backend other;
  if (!backend) return nullptr;
  watched_table = backend->device;
  table = *backend->device;
  table.begin_step = graphs ? begin_step : [](DeviceQueue*) {};
  table.order_hot_pages = [](DeviceQueue* queue, const HotPages& pages) {
    in_one_call = nullptr;
    watched_table->order_hot_pages(queue, pages);
  };
  table.fetch_after = goes_on_without<&DeviceTable::fetch_after>;
  table.await_fetched = goes_on_without<&DeviceTable::await_fetched>;
  table.finish = finish;
  other = *backend;
  other.device = &table;
  return &other;
}

ToldAtOnce told_at_once() { return {steps_told, told_ns}; }

uint64_t step_weight_bytes(const Model& model) {
  const auto bytes = [](const Matrix& matrix) {
    return row_bytes(matrix.type, matrix.cols) * static_cast<size_t>(matrix.rows);
  };
  uint64_t sum = bytes(model.weights.output);
  for (const LayerWeights& layer : model.weights.layers)
    for (const Matrix& matrix : {layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down})
      sum += bytes(matrix);
  return sum;
}

std::shared_ptr<Session> copy_to(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                                 Session& from, float fast_share) {
  Pipe pipe(from.saved_bytes());
  std::exception_ptr failed;
  std::thread writer([&] {
    try {
      from.save(pipe, nullptr);
    } catch (...) {
      failed = std::current_exception();
    }
    pipe.close();
  });
  std::shared_ptr<Session> copy;
  std::exception_ptr refused;
  try {
    copy = Session::load(
        std::move(runtime), std::move(model), pipe,
        [fast_share](SessionParams saved) {
          saved.kv_fast_share = fast_share;
          return saved;
        },
        nullptr);
  } catch (...) {
    refused = std::current_exception();
  }
  pipe.close();
  writer.join();
  if (refused) std::rethrow_exception(refused);
  return copy;  // whole: so is what was written
}

uint64_t device_bytes_taken(const Runtime& runtime) {
  DeviceDescription now;
  runtime.device->table.describe(runtime.device->index, true, &now);
  return now.memory_bytes - std::min(now.memory_bytes, now.free_bytes);
}

std::string driver_version() {
  // NVML comes with every driver; it is asked without its header.
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return {};
  const auto start = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto ask = reinterpret_cast<int (*)(char*, unsigned)>(dlsym(library, "nvmlSystemGetDriverVersion"));
  char version[96] = {};
  if (!start || !ask || start() != 0 || ask(version, sizeof version - 1) != 0) return {};
  return version;
}

}  // namespace wi::bench
