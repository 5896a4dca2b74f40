// The CUDA backend's row of operations. Each puts the lists that it was given (lookups, runs) into the queue's
// room with addresses of the device's, launches, and asks for what the host wants back. Nothing waits.
#include <algorithm>
#include <cstring>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/policy/full.h"
#include "kernels/cuda/policy/wave.h"
#include "kernels/cuda/policy/wave_build.h"
#include "kernels/cuda/queue.h"

namespace wi::cuda {

// Arrays of a launch one after the other in a piece of room: the host writes them, the device has them.
class Lists {
 public:
  explicit Lists(DeviceQueue::Room room) : room_(room) {}
  template <class T>
  static constexpr size_t bytes(size_t count) {
    return (count * sizeof(T) + 63) & ~size_t{63};
  }
  template <class T>
  struct List {
    T* host;
    T* device;
    size_t offset;  // in the room
  };
  template <class T>
  List<T> next(size_t count) {
    const List<T> list = {reinterpret_cast<T*>(room_.host + used_),
                          reinterpret_cast<T*>(room_.device + used_), used_};
    used_ += bytes<T>(count);
    return list;
  }

 private:
  DeviceQueue::Room room_;
  size_t used_ = 0;
};

// What went wrong before makes what would follow wrong, too: nothing more is launched.
template <class Launch>
static void enqueue(const Stream& stream, Launch&& launch) {
  DeviceQueue& queue = *stream.queue;
  const Asking asking(queue);
  if (!queue.failed()) queue.note(launch(queue));
}

static void embed(const Stream& stream, const EmbedArgs& args) {
  enqueue(stream, [&](DeviceQueue& queue) { return embed(queue.stream, args); });
}
static void rms_norm(const Stream& stream, const RmsNormArgs& args) {
  enqueue(stream, [&](DeviceQueue& queue) { return rms_norm(queue.stream, args); });
}
// Rows beyond those for which reading the weights takes longer than the products.
static bool is_dense(const MatmulArgs& args) { return !args.rows_alike && args.rows > 32; }
static void matmul(const Stream& stream, const MatmulArgs& args) {
  enqueue(stream, [&](DeviceQueue& queue) {
    if (is_dense(args)) {
      const DenseWorkspace workspace = {queue.partials(matmul_workspace_bytes(args)), queue.shared_bytes()};
      return queue.failed() ? cudaSuccess : matmul(queue.stream, args, workspace);
    }
    const MatmulWorkspaceSize size = matmul_workspace(args);
    const MatmulWorkspace workspace = {reinterpret_cast<float*>(queue.partials(size.floats * sizeof(float))),
                                       queue.arrived(size.counts), queue.processors()};
    return queue.failed() ? cudaSuccess : matmul_decode(queue.stream, args, workspace);
  });
}
static void rope(const Stream& stream, const RopeArgs& args) {
  enqueue(stream, [&](DeviceQueue& queue) { return rope(queue.stream, args); });
}
static void swiglu(const Stream& stream, const SwigluArgs& args) {
  enqueue(stream, [&](DeviceQueue& queue) { return swiglu(queue.stream, args); });
}

// The same with what a device writes, and, of a step's runs, what it reads.
static AppendArgs appended_there(DeviceQueue& queue, const AppendArgs& args) {
  const auto count = static_cast<size_t>(args.run_count);
  AppendArgs there = args;
  there.largest = reinterpret_cast<uint32_t*>(queue.left(count * sizeof(uint32_t), args.largest, count,
                                                         [](const std::byte* from, void* to, size_t numbers) {
                                                           std::memcpy(to, from, numbers * sizeof(uint32_t));
                                                         }));
  if (args.runs_there) there.runs = args.runs_there;
  there.runs_there = nullptr;
  return there;
}

static void rotate_append(const Stream& stream, const RotateAppendArgs& args) {
  enqueue(stream, [&](DeviceQueue& queue) {
    const RotateAppendArgs there = {args.queries, args.keys, appended_there(queue, args.append)};
    return queue.failed() ? cudaSuccess : rotate_append(queue.stream, there);
  });
}

static void append(const Stream& stream, const AppendArgs& args) {
  DeviceQueue& queue = *stream.queue;
  const Asking asking(queue);
  const auto count = static_cast<size_t>(args.run_count);
  AppendArgs there = appended_there(queue, args);
  if (args.runs_there) {
    if (!queue.failed()) queue.note(append_short(queue.stream, there));
    return;
  }
  constexpr int64_t kFewRows = 4;
  if (args.run_count <= kFewRuns &&
      std::all_of(args.runs, args.runs + count, [](const AppendRun& run) { return run.rows <= kFewRows; })) {
    if (!queue.failed()) queue.note(append_few(queue.stream, there));
    return;
  }
  const DeviceQueue::Room room = queue.room(Lists::bytes<AppendRun>(count));
  if (!room) return;
  std::memcpy(room.host, args.runs, count * sizeof(AppendRun));
  queue.send(room, count * sizeof(AppendRun));
  there.runs = reinterpret_cast<const AppendRun*>(room.device);
  if (!queue.failed()) queue.note(append(queue.stream, there));
}

static AttendWorkspace attend_workspace_of(DeviceQueue& queue, const LookupArgs& args) {
  const AttendWorkspaceSize size = attend_workspace(args.count, args.group, args.head_dim);
  return {reinterpret_cast<float*>(queue.partials(size.floats * sizeof(float))), queue.arrived(size.counts),
          attend_blocks(args, queue.processors(), queue.shared_bytes()), queue.shared_bytes()};
}

// Where nothing is sealed, or a window hides it; or where what is read is known without looking.
static bool nothing_to_select(const LookupArgs& args) {
  return args.all_segments || args.most_partitions == 0;
}

static void retrieve(const Stream& stream, const LookupArgs& args) {
  if (nothing_to_select(args)) return;
  enqueue(stream, [&](DeviceQueue& queue) {
    return args.hot ? retrieve_hot(queue.stream, args, *args.hot) : retrieve(queue.stream, args);
  });
}

static void attend(const Stream& stream, const LookupArgs& args) {
  enqueue(stream, [&](DeviceQueue& queue) {
    const AttendWorkspace workspace = attend_workspace_of(queue, args);
    return queue.failed() ? cudaSuccess : attend(queue.stream, args, workspace);
  });
}

static void select_everything(const Stream& stream, const LookupArgs& args) {
  if (nothing_to_select(args)) return;
  enqueue(stream, [&](DeviceQueue& queue) { return full_select(queue.stream, args); });
}

// What select knows of the clusters is what estimate goes by.
static WaveSelectWorkspace select_workspace_of(DeviceQueue& queue, const LookupArgs& args) {
  return {queue.clusters(wave_select_workspace(args.count, args.group, args.most_partitions)),
          args.most_partitions, args.most_segments};
}

static void select_clusters(const Stream& stream, const LookupArgs& args) {
  if (nothing_to_select(args)) return;
  enqueue(stream, [&](DeviceQueue& queue) {
    const WaveSelectWorkspace workspace = select_workspace_of(queue, args);
    if (queue.failed()) return cudaSuccess;
    const cudaError_t error = wave_score(queue.stream, args, workspace);
    return error == cudaSuccess ? wave_select(queue.stream, args, workspace) : error;
  });
}

static void estimate_clusters(const Stream& stream, const LookupArgs& args) {
  if (nothing_to_select(args)) return;
  enqueue(stream, [&](DeviceQueue& queue) {
    const WaveSelectWorkspace clusters = select_workspace_of(queue, args);
    const AttendWorkspace workspace = attend_workspace_of(queue, args);
    return queue.failed() ? cudaSuccess : wave_estimate(queue.stream, args, clusters, workspace);
  });
}

static size_t index_workspace(const PolicyParams& params, int32_t tokens, int32_t head_dim, DType kv) {
  return wave_index_args(params, tokens, head_dim, kv).layout.bytes;
}

// Keys and values come to the workspace from wherever their runs are, then all planes are indexed together.
static void index_planes(const Stream& stream, const IndexArgs* planes, int32_t count, void* workspace,
                         IndexResult* results) {
  DeviceQueue& queue = *stream.queue;
  const Asking asking(queue);
  const IndexArgs& shape = planes[0];
  WaveIndexArgs args = wave_index_args(*shape.params, shape.tokens, shape.head_dim, shape.kv);
  const size_t each = args.layout.bytes, row = row_bytes(shape.kv, shape.head_dim),
               half = row * static_cast<size_t>(shape.tokens), number = static_cast<size_t>(count);
  const size_t capacity = wave_header(args.most_clusters, shape.tokens, shape.head_dim, shape.kv).bytes;
  size_t runs = 0;
  for (int32_t i = 0; i < count; i++) runs += static_cast<size_t>(planes[i].run_count);
  const DeviceQueue::Room room =
      queue.room(Lists::bytes<GatheredPiece>(2 * runs) + Lists::bytes<WavePlane>(number) +
                 Lists::bytes<IndexResult>(number));
  if (!room) return;
  Lists lists(room);
  const auto pieces = lists.next<GatheredPiece>(2 * runs);
  const auto list = lists.next<WavePlane>(number);
  const auto there = lists.next<IndexResult>(number);
  size_t piece = 0;
  for (int32_t i = 0; i < count; i++) {
    uint64_t at = static_cast<uint64_t>(i) * each;
    for (int32_t r = 0; r < planes[i].run_count; r++) {
      const KvRun& run = planes[i].runs[r];
      const uint64_t bytes = row * static_cast<uint64_t>(run.tokens);
      pieces.host[piece++] = {run.keys, bytes, at};
      pieces.host[piece++] = {run.values, bytes, at + half};
      at += bytes;
    }
    list.host[i] = {planes[i].keys, planes[i].values, planes[i].places,
                    static_cast<std::byte*>(planes[i].index)};
    if (!queue.failed()) queue.note(clear(planes[i].index, capacity, queue.stream));
  }
  queue.send(room, there.offset);
  args.planes = list.device;
  args.results = there.device;
  args.workspace = static_cast<std::byte*>(workspace);
  args.count = count;
  if (!queue.failed())
    queue.note(gather(queue.stream, pieces.device, static_cast<uint32_t>(2 * runs), args.workspace));
  if (!queue.failed()) queue.note(wave_index(queue.stream, args));
  queue.bring_back(
      room, there.offset, number * sizeof(IndexResult),
      {room.host + there.offset, results, number, [](const std::byte* from, void* to, size_t numbers) {
         std::memcpy(to, from, numbers * sizeof(IndexResult));
       }});
}

static size_t no_workspace(const PolicyParams&, int32_t, int32_t, DType) { return 0; }

// Every plane is one partition: its tokens in their order.
static void lay_out_planes(const Stream& stream, const IndexArgs* planes, int32_t count, void*,
                           IndexResult* results) {
  DeviceQueue& queue = *stream.queue;
  const Asking asking(queue);
  const size_t row = row_bytes(planes[0].kv, planes[0].head_dim), number = static_cast<size_t>(count);
  size_t runs = 0;
  for (size_t i = 0; i < number; i++) runs += static_cast<size_t>(planes[i].run_count);
  const DeviceQueue::Room room = queue.room(Lists::bytes<FullRun>(runs) + Lists::bytes<int32_t*>(number));
  if (!room) return;
  Lists lists(room);
  const auto list = lists.next<FullRun>(runs);
  const auto places = lists.next<int32_t*>(number);
  size_t next = 0;
  for (size_t i = 0; i < number; i++) {
    auto *keys = static_cast<std::byte*>(planes[i].keys), *values = static_cast<std::byte*>(planes[i].values);
    for (int32_t r = 0; r < planes[i].run_count; r++) {
      const KvRun& run = planes[i].runs[r];
      const uint64_t bytes = row * static_cast<uint64_t>(run.tokens);
      list.host[next++] = {run.keys, run.values, keys, values, bytes};
      keys += bytes;
      values += bytes;
    }
    places.host[i] = planes[i].places;
    results[i] = {.partitions = planes[i].tokens > 0 ? 1 : 0, .index_bytes = 0};
  }
  queue.send(room, places.offset + number * sizeof(int32_t*));
  if (!queue.failed())
    queue.note(full_index(queue.stream, list.device, static_cast<uint32_t>(runs), places.device,
                          static_cast<uint32_t>(number), planes[0].tokens));
}

static void attend_chunk(const Stream& stream, const AttendChunkArgs& args) {
  DeviceQueue& queue = *stream.queue;
  const Asking asking(queue);
  const auto heads = static_cast<size_t>(args.kv_heads);
  size_t run_count = 0;
  for (size_t head = 0; head < heads; head++) run_count += static_cast<size_t>(args.run_count[head]);
  const size_t bytes =
      Lists::bytes<KvRun>(run_count) + Lists::bytes<const KvRun*>(heads) + Lists::bytes<int32_t>(heads);
  const DeviceQueue::Room room = queue.room(bytes);
  if (!room) return;
  Lists lists(room);
  const auto runs = lists.next<KvRun>(run_count);
  const auto of_head = lists.next<const KvRun*>(heads);
  const auto counts = lists.next<int32_t>(heads);
  size_t next_run = 0;
  for (size_t head = 0; head < heads; head++) {
    std::copy_n(args.runs[head], args.run_count[head], runs.host + next_run);
    of_head.host[head] = runs.device + next_run;
    counts.host[head] = args.run_count[head];
    next_run += static_cast<size_t>(args.run_count[head]);
  }
  queue.send(room, bytes);
  AttendChunkArgs there = args;
  there.runs = of_head.device;
  there.run_count = counts.device;
  if (!queue.failed()) queue.note(attend_chunk(queue.stream, there, queue.shared_bytes()));
}

static void sample(const Stream& stream, const SampleArgs& args) {
  enqueue(stream, [&](DeviceQueue& queue) {
    const auto count = static_cast<size_t>(args.rows);
    SampleArgs there = args;
    there.out = reinterpret_cast<SampledRow*>(queue.left(count * sizeof(SampledRow), args.out, count,
                                                         [](const std::byte* from, void* to, size_t rows) {
                                                           std::memcpy(to, from, rows * sizeof(SampledRow));
                                                         }));
    std::byte* const workspace = queue.partials(sample_workspace(args.rows, args.vocab));
    return queue.failed() ? cudaSuccess : sample(queue.stream, there, workspace);
  });
}

uint64_t work_bytes(const DeviceWork& work) {
  MatmulArgs product{};
  product.rows = work.rows;
  product.part_count = 1;
  product.parts[0].weight = {nullptr, work.weights, work.outputs, work.inputs};
  product.rows_alike = work.rows_alike;
  size_t partials = is_dense(product) ? matmul_workspace_bytes(product)
                                      : matmul_workspace(product).floats * sizeof(float),
         counts = is_dense(product) ? 0 : matmul_workspace(product).counts, clusters = 0;
  if (work.vocab > 0) partials = std::max(partials, sample_workspace(work.rows, work.vocab));
  if (work.lookups > 0) {
    const AttendWorkspaceSize size = attend_workspace(work.lookups, work.group, work.head_dim);
    partials = std::max(partials, size.floats * sizeof(float));
    counts = std::max(counts, size.counts);
    if (work.most_partitions > 0)
      clusters = wave_select_workspace(work.lookups, work.group, work.most_partitions);
  }
  return DeviceQueue::kept_bytes(partials) + DeviceQueue::kept_bytes(counts * sizeof(uint32_t)) +
         DeviceQueue::kept_bytes(clusters);
}

static const char* simd() { return "cuda"; }

// Of a policy only what looks things up is the device's, and what makes an index of what is there already.
using LookupFunction = void (*)(const Stream&, const LookupArgs&);
static constexpr Policy policy(const char* name, LookupFunction select) {
  Policy row{};
  row.name = name;
  row.select = select;
  return row;
}
static constexpr Policy wave_policy() {
  Policy row = policy("wave", select_clusters);
  row.estimate = estimate_clusters;
  row.index_planes = index_planes;
  row.index_workspace = index_workspace;
  return row;
}
static constexpr Policy full_policy() {
  Policy row = policy("full", select_everything);
  row.selects_all = true;
  row.index_planes = lay_out_planes;
  row.index_workspace = no_workspace;
  return row;
}
static constexpr Policy policies[] = {full_policy(), wave_policy()};

static const Backend table = {
    .name = "cuda",
    .embed = embed,
    .rms_norm = rms_norm,
    .matmul = matmul,
    .rope = rope,
    .swiglu = swiglu,
    .append = append,
    .rotate_append = rotate_append,
    .retrieve = retrieve,
    .attend = attend,
    .attend_chunk = attend_chunk,
    .sample = sample,
    .log_sum_exp = nullptr,
    .dequantize = nullptr,
    .simd = simd,
    .policies = policies,
    .policy_count = sizeof(policies) / sizeof(policies[0]),
    .device = &device_table,
};

const Backend& backend() { return table; }

}  // namespace wi::cuda
