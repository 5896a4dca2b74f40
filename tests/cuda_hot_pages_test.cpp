// The cache of hot pages against a plain model of it: whatever is looked up, runs say what lies at home, hits and
// misses are those of the model, and what goes is what was unused for longest, by the 64 buckets.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "kernels/cuda/cuda.h"
#include "tests/support/device_memory.h"
#include "tests/support/kernel_test.h"

using namespace wi;
using namespace wi::test;

namespace {

int64_t draw(std::mt19937_64& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}

class Pinned {
 public:
  explicit Pinned(const std::vector<std::byte>& bytes) {
    void* data = nullptr;
    assert_cuda(cudaMallocHost(&data, bytes.size()));
    data_ = static_cast<std::byte*>(data);
    std::copy(bytes.begin(), bytes.end(), data_);
  }
  Pinned(const Pinned&) = delete;
  ~Pinned() { (void)cudaFreeHost(data_); }
  const std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

int bucket_of(uint64_t age) { return 63 - static_cast<int>(std::min<uint64_t>(age, 63)); }

// One KV head's segments, some of them in pinned memory, and a cache of frames for these.
struct Scene {
  struct Segment {
    std::vector<int32_t> offsets;
    std::vector<std::byte> bytes;  // keys, then values
    std::unique_ptr<Pinned> pinned;
    DeviceArray<std::byte> there;
    DeviceArray<int32_t> offsets_there, table;
    uint64_t first_page = 0;
    size_t slots = 0;
    int32_t partitions() const { return static_cast<int32_t>(offsets.size()) - 1; }
  };

  Scene(DeviceStream& on, std::mt19937_64& drawn, int32_t frames, int32_t most_misses)
      : stream(on),
        random(drawn),
        kv(random() % 2 ? DType::f16 : DType::f32),
        head_dim(8 * static_cast<int32_t>(draw(random, 1, 3))),
        row(row_bytes(kv, head_dim)) {
    uint64_t next_page = 1;
    std::vector<SegmentView> list;
    for (int64_t s = draw(random, 1, 4); s > 0; --s) {
      Segment& segment = *segments.emplace_back(std::make_unique<Segment>());
      const int64_t longest = random() % 2 ? 24 : 300;
      segment.offsets = {0};
      for (int64_t p = draw(random, 1, 60); p > 0; --p)
        segment.offsets.push_back(segment.offsets.back() + static_cast<int32_t>(draw(random, 1, longest)));
      segment.bytes.resize(2 * static_cast<size_t>(segment.offsets.back()) * row);
      for (std::byte& byte : segment.bytes) byte = static_cast<std::byte>(random());
      segment.slots = hot_page_slots(segment.offsets.back(), segment.partitions());
      segment.offsets_there = DeviceArray<int32_t>(stream, segment.offsets);
      const std::byte* keys = nullptr;
      if (s > 1 && random() % 4 == 0) {
        segment.there = DeviceArray<std::byte>(stream, segment.bytes);
        keys = segment.there;
      } else {
        segment.pinned = std::make_unique<Pinned>(segment.bytes);
        keys = segment.pinned->data();
        segment.first_page = next_page;
        next_page += segment.slots;
        segment.table = DeviceArray<int32_t>(stream, std::vector<int32_t>(segment.slots, -1));
      }
      SegmentView view;
      view.keys = keys;
      view.values = keys + segment.bytes.size() / 2;
      view.offsets = segment.offsets_there;
      view.tokens = segment.offsets.back();
      view.partitions = segment.partitions();
      view.first_page = segment.first_page;
      view.frames = segment.table;
      list.push_back(view);
    }
    views = DeviceArray<SegmentView>(stream, list);

    const auto count = static_cast<size_t>(frames);
    hot.frame_bytes = 2 * kHotPageTokens * row;
    const size_t apart = (hot.frame_bytes + 255) / 256 * 256;
    memory = DeviceArray<std::byte>(stream, count * apart);
    std::vector<std::byte*> at;
    for (size_t i = 0; i < count; ++i) at.push_back(memory + i * apart);
    addresses = DeviceArray<std::byte*>(stream, at);
    pages = DeviceArray<uint64_t>(stream, std::vector<uint64_t>(count));
    last_use = DeviceArray<uint64_t>(stream, std::vector<uint64_t>(count));
    order = DeviceArray<int32_t>(stream, count);
    misses = DeviceArray<HotPageMiss>(stream, static_cast<size_t>(most_misses));
    counts = DeviceArray<HotPageCounts>(stream, 1);
    hot.pages = pages;
    hot.last_use = last_use;
    hot.memory = addresses;
    hot.order = order;
    hot.misses = misses;
    hot.counts = counts;
    hot.frames = frames;
    hot.most_misses = most_misses;
    now.step = kHotPageBuckets;
    begin(stream);
  }

  // With `now`.
  void begin(DeviceStream& stream) {
    now_there = DeviceArray<HotPageStep>(stream, std::vector<HotPageStep>{now});
    hot.now = now_there;
  }

  // What the device has in frames that its tables lead to: page -> step of last use.
  std::map<uint64_t, uint64_t> held() const {
    const std::vector<uint64_t> in = pages.to_host(), used = last_use.to_host();
    std::map<uint64_t, uint64_t> found;
    for (const auto& segment : segments) {
      if (!segment->first_page) continue;
      const std::vector<int32_t> table = segment->table.to_host();
      for (size_t slot = 0; slot < table.size(); ++slot) {
        const uint64_t page = segment->first_page + slot;
        const auto frame = static_cast<size_t>(table[slot]);
        if (table[slot] >= 0 && frame < in.size() && in[frame] == page) found[page] = used[frame];
      }
    }
    return found;
  }

  // Numbers of a partition's pages; none: they may not be in frames.
  std::vector<uint64_t> pages_of(const PartitionRef& ref) const {
    const Segment& segment = *segments[static_cast<size_t>(ref.segment)];
    const int32_t begin = segment.offsets[static_cast<size_t>(ref.partition)],
                  end = segment.offsets[static_cast<size_t>(ref.partition) + 1];
    std::vector<uint64_t> found(static_cast<size_t>((end - begin + 7) / 8));
    if (!segment.first_page || found.size() > 32) return {};
    std::iota(found.begin(), found.end(),
              segment.first_page + static_cast<uint64_t>(begin / 8 + ref.partition));
    return found;
  }

  // Some partitions, each once, around a place that moves.
  std::vector<PartitionRef> wanted(int64_t around) const {
    std::vector<PartitionRef> list;
    for (size_t s = 0; s < segments.size(); ++s)
      for (int32_t p = 0; p < segments[s]->partitions(); ++p)
        if (random() % 8 == 0 || ((p + around) % 16 < 3 && random() % 4))
          list.push_back({static_cast<int32_t>(s), p});
    std::shuffle(list.begin(), list.end(), random);
    return list;
  }

  std::vector<std::byte> at_home(const std::vector<PartitionRef>& list, bool values) const {
    std::vector<std::byte> bytes;
    for (const PartitionRef& ref : list) {
      const Segment& segment = *segments[static_cast<size_t>(ref.segment)];
      const std::byte* const from = segment.bytes.data() + (values ? segment.bytes.size() / 2 : 0);
      bytes.insert(bytes.end(),
                   from + static_cast<size_t>(segment.offsets[static_cast<size_t>(ref.partition)]) * row,
                   from + static_cast<size_t>(segment.offsets[static_cast<size_t>(ref.partition) + 1]) * row);
    }
    return bytes;
  }

  std::vector<std::byte> in_runs(const std::vector<KvRun>& runs, bool values) {
    size_t all = 0, at = 0;
    for (const KvRun& run : runs) all += static_cast<size_t>(run.tokens) * row;
    std::vector<std::byte> bytes(all);
    for (const KvRun& run : runs) {
      const size_t size = static_cast<size_t>(run.tokens) * row;
      assert_cuda(cudaMemcpyAsync(bytes.data() + at, values ? run.values : run.keys, size, cudaMemcpyDefault,
                                  stream));
      at += size;
    }
    stream.finish();
    return bytes;
  }

  DeviceStream& stream;
  std::mt19937_64& random;
  const DType kv;
  const int32_t head_dim;
  const size_t row;
  std::vector<std::unique_ptr<Segment>> segments;
  DeviceArray<SegmentView> views;
  DeviceArray<std::byte> memory;
  DeviceArray<std::byte*> addresses;
  DeviceArray<uint64_t> pages, last_use;
  DeviceArray<int32_t> order;
  DeviceArray<HotPageMiss> misses;
  DeviceArray<HotPageCounts> counts;
  DeviceArray<HotPageStep> now_there;
  HotPageStep now;
  HotPages hot;
};

// What a pass should leave: hits used, misses admitted as far as there are frames that this step has not used.
struct Model {
  std::map<uint64_t, uint64_t> held;  // page -> step of last use
  size_t frames = 0, most_misses = 0;

  void check_pass(const std::set<uint64_t>& looked_up, uint64_t step,
                  const std::map<uint64_t, uint64_t>& now) {
    std::set<uint64_t> missing;
    for (const uint64_t page : looked_up) {
      if (held.count(page))
        held[page] = step;
      else
        missing.insert(page);
    }
    size_t used = 0;
    for (const auto& [page, last] : held) used += last == step;
    const size_t free = frames - held.size(),
                 admitted = std::min({missing.size(), most_misses, frames - used});
    const size_t evicted = admitted > free ? admitted - free : 0;

    size_t came = 0, went = 0;
    int highest_gone = -1, lowest_kept = 64;
    for (const auto& [page, last] : now) {
      if (!held.count(page)) {
        assert_true(missing.count(page) && last == step);
        ++came;
      } else {
        assert_int_equal(last, held[page]);
      }
    }
    for (const auto& [page, last] : held) {
      const bool kept = now.count(page) > 0;
      if (last == step) {
        assert_true(kept);
        continue;
      }
      went += !kept;
      if (kept)
        lowest_kept = std::min(lowest_kept, bucket_of(step - last));
      else
        highest_gone = std::max(highest_gone, bucket_of(step - last));
    }
    assert_int_equal(came, admitted);
    // Frames without a page have an age too: that of all that nobody used for long.
    assert_true(went >= evicted && went <= admitted);
    if (went > evicted) assert_int_equal(highest_gone, 0);
    assert_true(highest_gone <= lowest_kept);
    held = now;
  }
};

void follows_the_plain_model(void**) {
  for (uint64_t shape = 0; shape < 24; ++shape) {
    std::mt19937_64 random(seed() * 1000 + shape);
    cuda_emulation::reset(random());
    DeviceStream stream;
    const auto frames = static_cast<int32_t>(draw(random, 1, shape % 3 ? 60 : 400));
    Scene scene(stream, random, frames,
                static_cast<int32_t>(random() % 3 ? frames : draw(random, 1, frames)));
    Model model{{}, static_cast<size_t>(frames), static_cast<size_t>(scene.hot.most_misses)};
    uint64_t hits = 0;
    for (int step = 0; step < 12; ++step) {
      scene.now.step += random() % 4 ? 1 : static_cast<uint64_t>(draw(random, 2, 40));
      scene.now.passes += std::exchange(scene.hot.pass, 0);
      scene.begin(stream);
      assert_cuda(cuda::order_hot_pages(stream, scene.hot));
      for (int64_t pass = draw(random, 1, 3); pass > 0; --pass) {
        ++scene.hot.pass;
        std::vector<std::vector<PartitionRef>> lists;
        std::set<uint64_t> looked_up;
        std::vector<int64_t> missing;
        for (int64_t l = draw(random, 1, 3); l > 0; --l) {
          lists.push_back(scene.wanted(step / 2));
          int64_t count = 0;
          for (const PartitionRef& ref : lists.back()) {
            if (!scene.segments[static_cast<size_t>(ref.segment)]->first_page) continue;
            const std::vector<uint64_t> own = scene.pages_of(ref);
            looked_up.insert(own.begin(), own.end());
            const bool all =
                std::all_of(own.begin(), own.end(), [&](uint64_t page) { return model.held.count(page); });
            count += own.empty() || !all;
            hits += !own.empty() && all;
          }
          missing.push_back(count);
        }
        std::vector<DeviceArray<PartitionRef>> retrieved;
        std::vector<DeviceArray<KvRun>> runs;
        DeviceArray<LookupCounters> counters(stream, std::vector<LookupCounters>(lists.size()));
        std::vector<Lookup> lookups(lists.size());
        for (size_t i = 0; i < lists.size(); ++i) {
          retrieved.emplace_back(stream, lists[i]);
          Lookup& lookup = lookups[i];
          lookup.segments = scene.views;
          lookup.retrieved = retrieved.back();
          lookup.retrieved_count = static_cast<int32_t>(lists[i].size());
          // Whatever room there is beyond a run each.
          lookup.run_room =
              lookup.retrieved_count + static_cast<int32_t>(random() % 2 ? 3000 : random() % 40);
          runs.emplace_back(stream, static_cast<size_t>(lookup.run_room));
          lookup.runs = runs.back();
          lookup.counters = counters + i;
        }
        DeviceArray<Lookup> there(stream, lookups);
        LookupArgs args{};
        args.lookups = there;
        args.count = static_cast<int32_t>(lookups.size());
        args.group = 1;
        args.head_dim = scene.head_dim;
        args.kv = scene.kv;
        assert_cuda(cuda::retrieve_hot(stream, args, scene.hot));

        const std::vector<LookupCounters> counted = counters.to_host();
        const std::vector<Lookup> after = there.to_host();
        for (size_t i = 0; i < lists.size(); ++i) {
          assert_int_equal(counted[i].misses, missing[i]);
          assert_true(after[i].run_count <= after[i].run_room);
          std::vector<KvRun> own = runs[i].to_host();
          own.resize(static_cast<size_t>(after[i].run_count));
          for (const bool values : {false, true})
            assert_true(scene.in_runs(own, values) == scene.at_home(lists[i], values));
        }
        model.check_pass(looked_up, scene.now.step, scene.held());
        assert_true(cuda_emulation::report().empty());
      }
    }
    assert_true(hits > 0 || frames < 40);
  }
}

void frames_are_ordered_by_bucket(void**) {
  std::mt19937_64 random(seed());
  for (const int32_t frames : {1, 2, 255, 256, 2048, 2049, 5000}) {
    cuda_emulation::reset(random());
    DeviceStream stream;
    Scene scene(stream, random, frames, 1);
    const auto count = static_cast<size_t>(frames);
    std::vector<uint64_t> used(count), in(count);
    scene.now.step = 1000;
    for (size_t i = 0; i < count; ++i) {
      used[i] = random() % 3 ? 1000 - static_cast<uint64_t>(draw(random, 1, 80)) : 0;
      in[i] = 1 + i;
    }
    scene.last_use = DeviceArray<uint64_t>(stream, used);
    scene.pages = DeviceArray<uint64_t>(stream, in);
    // Two segments that are no more: what was in their frames is forgotten, and these go first.
    const std::vector<HotPageRange> gone = {{3, 5}, {100, 300}};
    DeviceArray<HotPageRange> gone_there(stream, gone);
    scene.hot.last_use = scene.last_use;
    scene.hot.pages = scene.pages;
    scene.now.gone = gone_there;
    scene.now.gone_count = 2;
    scene.begin(stream);
    assert_cuda(cuda::order_hot_pages(stream, scene.hot));
    for (size_t i = 0; i < count; ++i) {
      if (!(in[i] >= 3 && in[i] < 5) && !(in[i] >= 100 && in[i] < 300)) continue;
      in[i] = 0;
      used[i] = 0;
    }
    assert_true(scene.pages.to_host() == in);
    assert_true(scene.last_use.to_host() == used);
    const std::vector<int32_t> order = scene.order.to_host();
    std::vector<bool> seen(count);
    int last = -1;
    for (const int32_t frame : order) {
      assert_true(frame >= 0 && frame < frames && !seen[static_cast<size_t>(frame)]);
      seen[static_cast<size_t>(frame)] = true;
      const int bucket = bucket_of(1000 - used[static_cast<size_t>(frame)]);
      assert_true(bucket >= last);
      last = bucket;
    }
    assert_true(cuda_emulation::report().empty());
  }
}

void other_caches_are_refused(void**) {
  std::mt19937_64 random(seed());
  cuda_emulation::reset(seed());
  DeviceStream stream;
  Scene scene(stream, random, 4, 4);
  HotPages hot = scene.hot;
  hot.frames = 0;
  assert_true(cuda::order_hot_pages(stream, hot) == cudaErrorInvalidValue);
  LookupArgs args{};
  args.head_dim = scene.head_dim + 8;  // pages of another size
  args.kv = scene.kv;
  assert_true(cuda::retrieve_hot(stream, args, scene.hot) == cudaErrorInvalidValue);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(follows_the_plain_model),
      cmocka_unit_test(frames_are_ordered_by_bucket),
      cmocka_unit_test(other_caches_are_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
