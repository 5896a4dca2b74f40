// What the tests and benchmarks of attention and policies share: a Stream over plain threads, one KV head's
// cache with sealed segments, a lookup with all its lists, the decode step's sequence over it, keys drawn
// from different distributions, and attention in f64 to compare with.
#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/policy/wave.h"
#include "kernels/policy.h"
#include "tests/support/kernels.h"

namespace wi::test {

// Memory at a multiple of 64 bytes, zeroed.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t bytes = 0) : memory_(bytes + 64) {}
  std::byte* data() {
    return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) / 64 * 64);
  }
  const std::byte* data() const { return const_cast<AlignedBytes*>(this)->data(); }
  size_t size() const { return memory_.size() - 64; }

 private:
  std::vector<std::byte> memory_;
};

// A Stream over threads that live for one operation; one worker runs in the caller.
class ThreadStream {
 public:
  explicit ThreadStream(int workers) : scratch_(static_cast<size_t>(workers)) {
    stream_.self = this;
    stream_.workers = workers;
    stream_.parallel = parallel;
    stream_.worker_scratch = [](void* self, int worker, size_t bytes) {
      return grown(static_cast<ThreadStream*>(self)->scratch_[static_cast<size_t>(worker)], bytes);
    };
    stream_.shared_scratch = [](void* self, size_t bytes) {
      return grown(static_cast<ThreadStream*>(self)->shared_, bytes);
    };
  }
  const Stream& operator*() const { return stream_; }

 private:
  static std::byte* grown(AlignedBytes& memory, size_t bytes) {
    if (memory.size() < bytes) memory = AlignedBytes(bytes);
    return memory.data();
  }
  static void parallel(const Stream& stream, int64_t tasks, Stream::Body body, void* context) {
    std::atomic<int64_t> next{0};
    const auto work = [&](int worker) {
      for (int64_t task; (task = next++) < tasks;) body(context, task, worker);
    };
    std::vector<std::thread> threads;
    for (int i = 1; i < stream.workers && i < tasks; i++) threads.emplace_back(work, i);
    work(0);
    for (std::thread& thread : threads) thread.join();
  }

  Stream stream_;
  std::vector<AlignedBytes> scratch_;
  AlignedBytes shared_;
};

inline AlignedBytes to_kv(const std::vector<float>& in, DType kv) {
  AlignedBytes out(row_bytes(kv, static_cast<int64_t>(in.size())));
  cpu::to_kv(in.data(), kv, out.data(), static_cast<int64_t>(in.size()));
  return out;
}
// As the type rounds it.
inline std::vector<float> rounded(const std::vector<float>& in, DType kv) {
  std::vector<float> out(in.size());
  const AlignedBytes bytes = to_kv(in, kv);
  cpu::from_kv(bytes.data(), kv, out.data(), static_cast<int64_t>(in.size()));
  return out;
}

// Keys or values (tokens, head_dim) of one head.
enum class Keys { clustered, uniform, adversarial };

// clustered: a mixture of uneven size with a slow drift, as keys after RoPE are. uniform: normal in every
// direction, nothing to find. adversarial: all in one direction but for a small part, with lone needles.
inline std::vector<float> draw(Keys kind, int32_t tokens, int32_t head_dim, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  const size_t dim = static_cast<size_t>(head_dim);
  std::vector<float> out(static_cast<size_t>(tokens) * dim);
  const int32_t topics = 24 + tokens / 64;
  std::vector<float> means(static_cast<size_t>(topics) * dim), common(dim);
  for (float& x : means) x = normal(random);
  for (float& x : common) x = 2 * normal(random);
  std::uniform_real_distribution<float> unit(0, 1);
  int32_t topic = 0;
  for (int32_t t = 0; t < tokens; t++) {
    float* row = out.data() + static_cast<size_t>(t) * dim;
    // Heavy hitters: low numbers come far more often. Neighbours often share a topic.
    if (unit(random) < 0.4f)
      topic = static_cast<int32_t>(std::pow(unit(random), 2.0f) * static_cast<float>(topics - 1));
    const bool needle = unit(random) < 0.002f;
    for (size_t i = 0; i < dim; i++) {
      if (kind == Keys::uniform) row[i] = normal(random);
      if (kind == Keys::clustered) {
        row[i] = common[i] + 1.5f * means[static_cast<size_t>(topic) * dim + i] + 0.5f * normal(random);
      }
      if (kind == Keys::adversarial)
        row[i] = needle ? 3 * normal(random) : common[i] + 0.05f * normal(random);
    }
  }
  return out;
}

// One KV head's sealed segments under a policy. Not copied: views point into it.
struct Cache {
  Cache(const Policy& the_policy, const PolicyParams& the_params, DType kv_type, int32_t dim)
      : policy(the_policy), params(the_params), kv(kv_type), head_dim(dim) {}
  Cache(const Cache&) = delete;

  // keys, values (tokens, head_dim) in order of position; handed to index in pieces of `piece` tokens.
  void seal(const std::vector<float>& in_keys, const std::vector<float>& in_values, int32_t piece = 1 << 30) {
    add(in_keys, in_values, piece, nullptr);
  }

  // The first tokens of another cache's only segment, cut off there.
  void cut(const Cache& whole, int32_t tokens) {
    const auto numbers = static_cast<std::ptrdiff_t>(tokens) * head_dim;
    add({whole.keys.begin(), whole.keys.begin() + numbers},
        {whole.values.begin(), whole.values.begin() + numbers}, 1 << 30, &whole.views[0],
        whole.segments[0]->index_bytes);
  }

  void add(const std::vector<float>& in_keys, const std::vector<float>& in_values, int32_t piece,
           const SegmentView* whole, size_t whole_bytes = 0) {
    const int32_t tokens = static_cast<int32_t>(in_keys.size() / static_cast<size_t>(head_dim));
    const AlignedBytes key_bytes = to_kv(in_keys, kv), value_bytes = to_kv(in_values, kv);
    std::vector<KvRun> runs;
    for (int32_t at = 0; at < tokens; at += std::min(piece, tokens - at)) {
      runs.push_back({key_bytes.data() + row_bytes(kv, int64_t{at} * head_dim),
                      value_bytes.data() + row_bytes(kv, int64_t{at} * head_dim),
                      std::min(piece, tokens - at)});
    }
    auto segment = std::make_unique<Segment>();
    segment->keys = AlignedBytes(key_bytes.size());
    segment->values = AlignedBytes(value_bytes.size());
    segment->places.resize(static_cast<size_t>(tokens));
    segment->index =
        AlignedBytes(whole_bytes ? whole_bytes : policy.index_capacity(params, tokens, head_dim, kv));
    const IndexArgs args = {.runs = runs.data(),
                            .run_count = static_cast<int32_t>(runs.size()),
                            .tokens = tokens,
                            .head_dim = head_dim,
                            .kv = kv,
                            .params = &params,
                            .keys = segment->keys.data(),
                            .values = segment->values.data(),
                            .places = segment->places.data(),
                            .index = segment->index.data()};
    const IndexResult result = whole       ? policy.cut(*stream, 0, args, *whole)
                               : in_pieces ? index_in_pieces(args)
                                           : policy.index(*stream, 0, args);
    segment->index_bytes = result.index_bytes;
    segment->offsets = {0, tokens};
    if (policy.partition_offsets) {
      segment->offsets.resize(static_cast<size_t>(result.partitions) + 1);
      policy.partition_offsets(segment->index.data(), result.partitions, tokens, segment->offsets.data());
    }
    views.push_back({.keys = segment->keys.data(),
                     .values = segment->values.data(),
                     .offsets = segment->offsets.data(),
                     .places = segment->places.data(),
                     .index = segment->index.data(),
                     .tokens = tokens,
                     .partitions = result.partitions});
    partitions += result.partitions;
    indexed_tokens += tokens;
    keys.insert(keys.end(), in_keys.begin(), in_keys.end());
    values.insert(values.end(), in_values.begin(), in_values.end());
    segments.push_back(std::move(segment));
  }

  IndexResult index_in_pieces(const IndexArgs& args) {
    AlignedBytes state(policy.pieces->state_bytes(args));
    std::memset(state.data(), 0x5a, state.size());
    IndexResult result;
    for (int32_t piece = 0; piece < policy.pieces->count(args); piece++) {
      const auto begin = std::chrono::steady_clock::now();
      result = policy.pieces->run(args, state.data(), piece);
      piece_ms.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    }
    return result;
  }

  struct Segment {
    AlignedBytes keys, values, index;
    std::vector<int32_t> offsets, places;
    size_t index_bytes = 0;
  };
  const Policy& policy;
  PolicyParams params;
  DType kv;
  int32_t head_dim;
  std::vector<float> keys, values;  // in order of position, not rounded
  std::vector<std::unique_ptr<Segment>> segments;
  std::vector<SegmentView> views;
  int32_t partitions = 0;
  int64_t indexed_tokens = 0;
  ThreadStream stream{1};
  bool in_pieces = false;
  std::vector<double> piece_ms;  // of all that were made so
};

// A lookup over a cache with room for everything that the operations write.
struct TestLookup {
  TestLookup(const Cache& cache, const std::vector<float>& the_query) : query(the_query) {
    const size_t n = static_cast<size_t>(cache.partitions);
    const size_t group = query.size() / static_cast<size_t>(cache.head_dim);
    retrieved.resize(n);
    estimated.resize(n);
    runs.resize(n);
    scores.resize(n * group);
    out.resize(query.size());
    lse.resize(group);
    lookup.query = query.data();
    lookup.segments = cache.views.data();
    lookup.segment_count = static_cast<int32_t>(cache.views.size());
    lookup.partition_count = cache.partitions;
    lookup.indexed_tokens = cache.indexed_tokens;
    lookup.zones = zones_of(cache.params, cache.indexed_tokens, cache.partitions);
    lookup.retrieved = retrieved.data();
    lookup.estimated = estimated.data();
    lookup.scores = scores.data();
    lookup.runs = runs.data();
    lookup.out = out.data();
    lookup.lse = lse.data();
    lookup.counters = &counters;
  }
  TestLookup(const TestLookup&) = delete;

  std::vector<float> query, scores, out, lse;
  std::vector<PartitionRef> retrieved, estimated;
  std::vector<KvRun> runs;
  LookupCounters counters;
  Lookup lookup;
};

inline LookupArgs lookup_args(const Cache& cache, Lookup* lookups, int32_t count, int32_t group) {
  return {.lookups = lookups,
          .count = count,
          .group = group,
          .head_dim = cache.head_dim,
          .kv = cache.kv,
          .scale = 1 / std::sqrt(static_cast<float>(cache.head_dim))};
}

// Which of a segment's tokens lies at each place of the stored order. Throws if two are at one.
inline std::vector<int32_t> tokens_by_place(const SegmentView& segment) {
  std::vector<int32_t> tokens(static_cast<size_t>(segment.tokens), -1);
  for (int32_t i = 0; i < segment.tokens; i++) {
    int32_t& token = tokens.at(static_cast<size_t>(segment.places[i]));
    if (token >= 0) throw std::logic_error("two tokens at one place");
    token = i;
  }
  return tokens;
}

// Positions of what a lookup retrieved, of segments that follow each other from 0 on. Throws if one is there
// twice.
inline std::set<int32_t> retrieved_positions(const Lookup& lookup) {
  std::set<int32_t> positions;
  std::vector<int32_t> first;
  std::vector<std::vector<int32_t>> by_place;
  for (int32_t s = 0, at = 0; s < lookup.segment_count; at += lookup.segments[s++].tokens) {
    first.push_back(at);
    by_place.push_back(tokens_by_place(lookup.segments[s]));
  }
  for (int32_t i = 0; i < lookup.retrieved_count; i++) {
    const auto s = static_cast<size_t>(lookup.retrieved[i].segment);
    const int32_t* offsets = lookup.segments[s].offsets + lookup.retrieved[i].partition;
    for (int32_t place = offsets[0]; place < offsets[1]; place++)
      if (!positions.insert(first[s] + by_place[s].at(static_cast<size_t>(place))).second)
        throw std::logic_error("a token was retrieved twice");
  }
  return positions;
}

// The pipeline's retrieve, for a cache whose pages are all in the fast tier.
inline void retrieve(const LookupArgs& args) {
  for (int32_t i = 0; i < args.count; i++) {
    Lookup& lookup = args.lookups[i];
    lookup.run_count = lookup.retrieved_count;
    for (int32_t r = 0; r < lookup.retrieved_count; r++) {
      const PartitionRef& ref = lookup.retrieved[r];
      lookup.runs[r] = lookup.segments[ref.segment].run(ref.partition, row_bytes(args.kv, args.head_dim));
    }
  }
}

// Counters tell of this once.
inline void select_lookups(const Stream& stream, const Policy& policy, const LookupArgs& args) {
  for (int32_t i = 0; i < args.count; i++) *args.lookups[i].counters = {};
  policy.select(stream, args);
}

inline void decode_lookups(const Stream& stream, const Policy& policy, const LookupArgs& args) {
  select_lookups(stream, policy, args);
  retrieve(args);
  cpu::attend(stream, args);
  if (policy.estimate) policy.estimate(stream, args);
}

// How far a wave cluster's log mass a token lies above its centroid's score, by definition (wave_mass-inl.h).
inline double mass_above_centroid(double query_length, double spread, int head_dim) {
  const double deviation = query_length * spread * std::sqrt(double(cpu::kWaveAlong)) / head_dim;
  const double before = std::min(deviation, double(cpu::kWaveFreezing));
  return before * (deviation - before / 2);
}

// Attention of one query head in f64 over keys, values (tokens, head_dim).
struct Reference {
  std::vector<double> out;
  double lse = -INFINITY;
  std::vector<double> weights;  // (tokens)
};
inline Reference reference_attention(const float* query, const std::vector<float>& keys,
                                     const std::vector<float>& values, int32_t head_dim) {
  const size_t dim = static_cast<size_t>(head_dim);
  const size_t tokens = keys.size() / dim;
  Reference result{std::vector<double>(dim), -INFINITY, std::vector<double>(tokens)};
  double max = -INFINITY, sum = 0;
  for (size_t t = 0; t < tokens; t++) {
    double score = 0;
    for (size_t i = 0; i < dim; i++) score += double(query[i]) * double(keys[t * dim + i]);
    result.weights[t] = score / std::sqrt(double(head_dim));
    max = std::max(max, result.weights[t]);
  }
  for (double& weight : result.weights) sum += weight = std::exp(weight - max);
  for (size_t t = 0; t < tokens; t++) {
    result.weights[t] /= sum;
    for (size_t i = 0; i < dim; i++) result.out[i] += result.weights[t] * double(values[t * dim + i]);
  }
  if (tokens > 0) result.lse = max + std::log(sum);
  return result;
}

// |a - b| / |b|
template <class A, class B>
double relative_error(const A* a, const B* b, size_t count) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < count; i++) {
    difference += (double(a[i]) - double(b[i])) * (double(a[i]) - double(b[i]));
    size += double(b[i]) * double(b[i]);
  }
  return size > 0 ? std::sqrt(difference / size) : std::sqrt(difference);
}

}  // namespace wi::test
