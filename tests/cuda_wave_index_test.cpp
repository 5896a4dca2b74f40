// The wave index by the CUDA kernels: the same bytes as the CPU's, for every distribution of keys, shape and parameter;
// as are the keys, the values and the places that go with it.
#include "kernels/cuda/policy/wave_build.h"
#include "tests/lookups.h"
#include "tests/support/device_memory.h"
#include "tests/support/kernel_test.h"

using namespace wi;
using namespace wi::test;

namespace {

#if defined(WI_SANITIZED) || defined(WI_EMULATED)
constexpr uint64_t kShapes = 12;
#else
constexpr uint64_t kShapes = 36;
#endif

// Several planes of one shape, each with keys and values of its own.
struct Planes {
  Planes(const PolicyParams& params, DType kv, int32_t head_dim)
      : cache(cpu::wave_policy, params, kv, head_dim) {}
  void add(const std::vector<float>& keys, const std::vector<float>& values) {
    cache.seal(keys, values);
    for (const auto* rows : {&keys, &values}) in.push_back(to_kv(*rows, cache.kv));
  }
  Cache cache;
  std::vector<AlignedBytes> in;  // (planes, {keys, values})
};

void assert_same_bytes(const char* what, uint64_t shape, size_t plane, const void* got, const void* want,
                       size_t bytes) {
  const auto *a = static_cast<const std::byte*>(got), *b = static_cast<const std::byte*>(want);
  for (size_t i = 0; i < bytes; ++i)
    if (a[i] != b[i])
      fail_because("shape %llu, plane %zu: %s differ from the CPU's at byte %zu of %zu",
                   static_cast<unsigned long long>(shape), plane, what, i, bytes);
}

void check(uint64_t shape, const Planes& planes) {
  const Cache& cache = planes.cache;
  const size_t count = cache.segments.size();
  const int32_t tokens = cache.views[0].tokens;
  DeviceStream stream;
  cuda::WaveIndexArgs args = cuda::wave_index_args(cache.params, tokens, cache.head_dim, cache.kv);
  args.count = static_cast<int32_t>(count);
  const size_t rows = planes.in[0].size(), each = args.layout.bytes, room = cache.segments[0]->index.size();
  const DeviceArray<std::byte> workspace(stream, count * each);
  args.workspace = workspace;
  std::vector<DeviceArray<std::byte>> keys, values, indexes;
  std::vector<DeviceArray<int32_t>> places;
  std::vector<cuda::WavePlane> list;
  for (size_t i = 0; i < count; ++i) {
    for (size_t half = 0; half < 2; ++half)
      assert_cuda(cudaMemcpyAsync(workspace.data() + i * each + half * rows, planes.in[2 * i + half].data(),
                                  rows, cudaMemcpyHostToDevice, stream));
    keys.emplace_back(stream, rows);
    values.emplace_back(stream, rows);
    places.emplace_back(stream, static_cast<size_t>(tokens));
    indexes.emplace_back(stream, std::vector<std::byte>(room));
    list.push_back({keys[i].data(), values[i].data(), places[i].data(), indexes[i].data()});
  }
  const DeviceArray<cuda::WavePlane> there(stream, list);
  const DeviceArray<IndexResult> results(stream, count);
  args.planes = there;
  args.results = results;
  assert_cuda(cuda::wave_index(stream, args));
  const std::vector<IndexResult> got = results.to_host();
  assert_string_equal(cuda_emulation::report().c_str(), "");
  for (size_t i = 0; i < count; ++i) {
    const Cache::Segment& want = *cache.segments[i];
    if (got[i].partitions != cache.views[i].partitions || got[i].index_bytes != want.index_bytes)
      fail_because("shape %llu, plane %zu: %d clusters in %zu bytes, the CPU's are %d in %zu",
                   static_cast<unsigned long long>(shape), i, got[i].partitions, got[i].index_bytes,
                   cache.views[i].partitions, want.index_bytes);
    assert_same_bytes("places", shape, i, places[i].to_host().data(), want.places.data(),
                      want.places.size() * 4);
    assert_same_bytes("keys", shape, i, keys[i].to_host().data(), want.keys.data(), rows);
    assert_same_bytes("values", shape, i, values[i].to_host().data(), want.values.data(), rows);
    assert_same_bytes("indexes", shape, i, indexes[i].to_host().data(), want.index.data(), room);
  }
}

void indexes_have_the_cpus_bytes(void**) {
  constexpr int32_t kDims[] = {64, 128, 8, 96, 256, 40, 200};
  constexpr DType kTypes[] = {DType::f16, DType::bf16, DType::f32};
  for (uint64_t shape = 0; shape < kShapes; ++shape) {
    std::mt19937_64 random(seed() * 91 + shape);
    cuda_emulation::reset(random());
    PolicyParams params;
    params.kmeans_iterations = 1 + static_cast<int32_t>(random() % 5);
    if (shape % 3 == 1) params.tokens_per_centroid = 1 + static_cast<int32_t>(random() % 40);
    if (shape % 4 == 2) params.max_cluster_tokens = 1 + static_cast<int32_t>(random() % 12);
    const int32_t dim = kDims[shape % 7];
    const int32_t tokens = shape % 9 == 8
                               ? 1 + static_cast<int32_t>(random() % 3)
                               : 16 + static_cast<int32_t>(random() % (shape % 5 == 0 ? 1400 : 400));
    Planes planes(params, kTypes[random() % 3], dim);
    for (uint64_t plane = 0; plane <= random() % 3; ++plane)
      planes.add(draw(static_cast<Keys>((shape + plane) % 3), tokens, dim, random),
                 draw(Keys::uniform, tokens, dim, random));
    check(shape, planes);
  }
}

// Keys that are all one, and so a cluster of all tokens; that differ in a few numbers; that are not finite.
void keys_that_tell_nothing_apart_have_the_cpus_bytes(void**) {
  constexpr int32_t kDim = 64, kTokens = 300;
  std::mt19937_64 random(seed());
  for (const DType kv : {DType::f16, DType::f32}) {
    cuda_emulation::reset(random());
    PolicyParams params;
    params.kmeans_iterations = 3;
    params.max_cluster_tokens = 7;
    Planes planes(params, kv, kDim);
    const std::vector<float> values = draw(Keys::uniform, kTokens, kDim, random);
    std::vector<float> keys(size_t{kTokens} * kDim, 1.5f);
    planes.add(keys, values);
    for (size_t t = 0; t < kTokens; t += 3) keys[t * kDim + t % 5] = static_cast<float>(t % 4);
    planes.add(keys, values);
    keys = draw(Keys::clustered, kTokens, kDim, random);
    for (size_t i = 0; i < 40; ++i) {
      constexpr float kOdd[] = {INFINITY, -INFINITY, NAN, 65504.0f, -65504.0f, 0.0f};
      keys[random() % keys.size()] = kOdd[i % 6];
    }
    planes.add(keys, values);
    check(1000, planes);
  }
}

void shapes_that_kernels_do_not_take_are_refused(void**) {
  DeviceStream stream;
  for (const int32_t dim : {4, 20, 264}) {
    cuda::WaveIndexArgs args = cuda::wave_index_args(PolicyParams(), 100, dim, DType::f16);
    args.count = 1;
    assert_int_equal(cuda::wave_index(stream, args), cudaErrorInvalidValue);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(indexes_have_the_cpus_bytes),
                              cmocka_unit_test(keys_that_tell_nothing_apart_have_the_cpus_bytes),
                              cmocka_unit_test(shapes_that_kernels_do_not_take_are_refused)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
