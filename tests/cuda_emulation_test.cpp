// CUDA on the CPU finds what it is there to find: each kernel with a mistake is reported by name, block,
// thread and address, and the same kernel without it is not; streams run in every order that events allow.
#include <array>
#include <csignal>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "kernels/ops.h"
#include "tests/cuda_emulation/shadow.h"
#include "tests/cuda_emulation/test_kernels.h"
#include "tests/support/device_memory.h"
#include "tests/test.h"

using namespace wi;
using namespace wi::test;

namespace {

constexpr uint64_t kSeeds = 20;

std::vector<int> random_numbers(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int> numbers(count);
  for (int& number : numbers) number = static_cast<int>(random() % 201) - 100;
  return numbers;
}

void blocks_and_warps_work_together(void**) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    cuda_emulation::reset(test::seed() + seed);
    DeviceStream stream;
    const int threads = 32 * static_cast<int>(1 + seed % 32), blocks = 5;
    const std::vector<int> in = random_numbers(static_cast<size_t>(threads * blocks), seed);
    const DeviceArray<int> device(stream, in), sums(stream, blocks), largest(stream, std::vector<int>{-1000});
    const DeviceArray<int> count(stream, std::vector<int>{0});
    assert_cuda(cuda_test::block_sums(stream, device, sums, blocks, threads));
    const std::vector<int> got = sums.to_host();
    for (int b = 0; b < blocks; ++b) {
      int sum = 0;
      for (int i = 0; i < threads; ++i) sum += in[static_cast<size_t>(b * threads + i)];
      assert_int_equal(got[static_cast<size_t>(b)], sum);
    }
    const int whole = threads * blocks / 96;
    assert_cuda(cuda_test::count_and_largest(stream, device, count, largest, whole));
    assert_int_equal(count.to_host()[0], whole * 96);
    if (whole) assert_int_equal(largest.to_host()[0], *std::max_element(in.begin(), in.begin() + whole * 96));

    const DeviceArray<int> out(stream, static_cast<size_t>(8 * threads));
    assert_cuda(cuda_test::warp_operations(stream, device, out, threads));
    const std::vector<int> results = out.to_host();
    for (int i = 0; i < threads; ++i) {
      const int first = i / 32 * 32, lane = i % 32;
      const auto of = [&](int other) { return in[static_cast<size_t>(first + other)]; };
      unsigned votes = 0;
      int any = 0, most = of(0);
      for (int l = 0; l < 32; ++l) {
        votes |= static_cast<unsigned>(of(l) > 0) << l;
        any |= of(l) == 3;
        most = std::max(most, of(l));
      }
      const int expected[] = {static_cast<int>(votes),
                              any + 2,
                              of(lane >= 3 ? lane - 3 : lane),
                              of((i + 5) % 32),
                              of(lane ^ 9),
                              most,
                              of(lane % 8 + 2 < 8 ? lane + 2 : lane),
                              2 * of(lane ^ 1)};
      for (int r = 0; r < 8; ++r)
        assert_int_equal(results[static_cast<size_t>(r * threads + i)], expected[r]);
    }
  }
}

// The number after a word of a report: "thread (7, 0, 0)".
bool names_a_place(const std::string& report, const char* word) {
  const size_t at = report.find(word);
  return at != std::string::npos && report.find_first_of("0123456789", at) != std::string::npos;
}

void each_mistake_is_reported(void**) {
  if (!cuda_emulation::sees_accesses()) skip();  // another sanitizer has the accesses
  for (int i = 0; i < cuda_test::kMistakeCount; ++i) {
    const cuda_test::Mistake& mistake = cuda_test::kMistakes[i];
    for (const bool wrong : {false, true}) {
      for (uint64_t seed = 0; seed < kSeeds; ++seed) {
        cuda_emulation::reset(test::seed() + seed);
        cudaStream_t stream;
        assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        void* device = nullptr;
        assert_cuda(cudaMalloc(&device, 1000 * sizeof(int)));
        int host = 0;
        const cudaError_t launched = mistake.run(stream, wrong, static_cast<int*>(device), &host);
        const cudaError_t ended = cudaStreamSynchronize(stream);
        const std::string& report = cuda_emulation::report();
        if (!wrong) {
          if (!report.empty()) std::printf("%s: %s\n", mistake.name, report.c_str());
          assert_true(launched == cudaSuccess && ended == cudaSuccess && report.empty());
          continue;
        }
        assert_true(ended != cudaSuccess);
        const bool told = report.find(mistake.name) != std::string::npos &&
                          report.find(mistake.report) != std::string::npos &&
                          names_a_place(report, "block (") && names_a_place(report, "thread (");
        if (!told) std::printf("wanted %s: %s; got %s\n", mistake.name, mistake.report, report.c_str());
        assert_true(told);
        // It stays.
        assert_true(cudaDeviceSynchronize() == ended && cudaMalloc(&device, 1) == ended);
        assert_true(mistake.run(stream, false, static_cast<int*>(device), &host) == ended);
      }
    }
  }
}

// A byte with all of its readers.
struct PlainByte {
  bool atomic = false;
  std::optional<cuda_emulation::Moment> writer;
  std::vector<cuda_emulation::Moment> readers;

  std::string access(cuda_emulation::Access how, const cuda_emulation::Moment& now) {
    const bool reads = how == cuda_emulation::Access::read, adds = how == cuda_emulation::Access::atomic;
    if (!writer && reads) return "reads shared memory that nobody has written";
    if (!writer && adds) return "adds to shared memory that nobody has written";
    if (writer && !writer->before(now) && !(adds && atomic))
      return (reads ? "reads" : "writes") + std::string(" shared memory in a race with a write");
    if (reads) return readers.push_back(now), "";
    for (const auto& reader : readers)
      if (!reader.before(now)) return "writes shared memory in a race with a read";
    *this = {adds, now, {}};
    return "";
  }
};

// However accesses cut words up, and of however many readers.
void a_shadow_finds_what_all_accesses_to_each_byte_tell(void**) {
  constexpr size_t kBytes = 24;
  cuda_emulation::Shadow shadow(kBytes);
  std::vector<PlainByte> plain(kBytes);
  std::mt19937_64 random(test::seed());
  std::map<std::string, int> found;
  uint64_t epoch = 1;
  uint32_t warp_epochs[2] = {};
  shadow.begin_block(epoch);
  for (int i = 0; i < 200'000; ++i) {
    if (random() % 3 == 0) ++warp_epochs[random() % 2];
    if (random() % 4 == 0) ++epoch, warp_epochs[0] = warp_epochs[1] = 0;
    const uint32_t thread = random() % 4 + random() % 2 * 32;
    const auto now = cuda_emulation::Moment::of(epoch, warp_epochs[thread / 32], thread);
    const size_t size = size_t{1} << random() % 5;
    size_t at = random() % (kBytes - size + 1);
    if (random() % 4) at = at / size * size;
    const auto how = static_cast<cuda_emulation::Access>(std::max<uint64_t>(random() % 8, 5) - 5);
    const cuda_emulation::Conflict conflict = shadow.access(at, size, how, now);
    std::string wanted;
    for (size_t byte = at; byte < at + size && wanted.empty(); ++byte) wanted = plain[byte].access(how, now);
    assert_string_equal(conflict.what ? conflict.what : "", wanted.c_str());
    if (wanted.empty()) continue;
    ++found[wanted];
    epoch = random() % 100 ? epoch + 1 : 1;  // or from the first again
    shadow.begin_block(epoch);
    plain.assign(kBytes, {});
    warp_epochs[0] = warp_epochs[1] = 0;
    if (random() % 4 == 0) continue;
    const auto first = cuda_emulation::Moment::of(epoch, 0, 0);
    shadow.access(0, kBytes, cuda_emulation::Access::write, first);
    for (PlainByte& byte : plain) byte.access(cuda_emulation::Access::write, first);
  }
  assert_int_equal(found.size(), 5);
}

// Without the shadow's help: some order of threads gives another result.
void a_missed_barrier_shows_in_results(void**) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    cuda_emulation::reset(test::seed() + seed);
    DeviceStream stream;
    const DeviceArray<int> in(stream, 64), out(stream, 64);
    assert_cuda(cuda_test::neighbours_without_barrier(stream, in, out, 64));
    const std::vector<int> got = out.to_host();
    for (int i = 0; i < 64; ++i) wrong += got[static_cast<size_t>(i)] != (i + 1) % 64;
  }
  assert_true(wrong > 0);
}

void device_memory_is_closed_to_the_host(void**) {
  cuda_emulation::reset(test::seed());
  DeviceStream stream;
  const DeviceArray<int> data(stream, std::vector<int>{7});
  std::fflush(nullptr);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    std::signal(SIGSEGV, [](int) { _exit(42); });
    const volatile int number = *data.data();
    (void)number;
    _exit(0);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 42);
  assert_int_equal(data.to_host()[0], 7);
}

void streams_run_in_any_order_but_that_of_events(void**) {
  std::set<int> with, without, seen_late;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    for (const bool waits : {false, true}) {
      cuda_emulation::reset(test::seed() + seed);
      DeviceStream a, b;
      const DeviceArray<int> number(a, std::vector<int>{1});
      cudaEvent_t event;
      assert_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      assert_cuda(cuda_test::times_three_plus(a, number, 1));
      assert_cuda(cudaEventRecord(event, a));
      if (waits) assert_cuda(cudaStreamWaitEvent(b, event));
      assert_cuda(cuda_test::times_three_plus(b, number, 2));
      a.finish();
      b.finish();
      (waits ? with : without).insert(number.to_host()[0]);
    }
    // A copy from the host reads what is there when it runs.
    cuda_emulation::reset(test::seed() + seed);
    DeviceStream stream;
    const DeviceArray<int> number(stream, std::vector<int>{0});
    int host = 1;
    assert_cuda(cudaMemcpyAsync(number, &host, sizeof host, cudaMemcpyHostToDevice, stream));
    host = 2;
    seen_late.insert(number.to_host()[0]);
  }
  assert_true(with == std::set<int>{14});
  assert_true((without == std::set<int>{14, 16}));
  assert_true((seen_late == std::set<int>{1, 2}));
}

void a_wait_for_what_is_recorded_later_is_none(void**) {
  cuda_emulation::reset(test::seed());
  DeviceStream stream;
  cudaEvent_t event;
  assert_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  assert_cuda(cudaStreamWaitEvent(stream, event));
  assert_cuda(cudaEventRecord(event, stream));
  stream.finish();
  assert_cuda(cudaEventSynchronize(event));
  assert_cuda(cudaEventQuery(event));
}

void launches_take_their_arguments_at_once(void**) {
  cuda_emulation::reset(test::seed());
  DeviceStream stream;
  const DeviceArray<int> number(stream, std::vector<int>{0});
  int argument = 5;
  assert_cuda(cuda_test::times_three_plus(stream, number, argument));
  argument = 9;
  assert_cuda(cuda_test::times_three_plus(stream, number, argument));
  assert_int_equal(number.to_host()[0], 24);
}

void wrong_launches_are_refused(void**) {
  cuda_emulation::reset(test::seed());
  DeviceStream stream;
  const DeviceArray<int> data(stream, 64);
  assert_true(cuda_test::block_sums(stream, data, data, 1, 48) == cudaErrorInvalidConfiguration);
  assert_true(cuda_test::block_sums(stream, data, data, 1, 1056) == cudaErrorInvalidConfiguration);
  assert_true(cuda_test::block_sums(nullptr, data, data, 1, 64) == cudaErrorInvalidResourceHandle);
  assert_cuda(cuda_test::block_sums(stream, data, data, 0, 64));  // nothing to do
  assert_true(cudaGetLastError() != cudaSuccess);
  assert_cuda(cudaGetLastError());
}

// Another thread may ask for less between this one's asking and its launch.
void a_launch_takes_no_shared_memory_from_others(void**) {
  cuda_emulation::reset(test::seed());
  DeviceStream stream;
  const DeviceArray<int> out(stream, 1);
  constexpr size_t kMore = 76032, kLess = 57024;
  assert_true(cuda_test::write_one(stream, out, kMore, false) == cudaErrorInvalidValue);  // nobody has asked
  (void)cudaGetLastError();
  assert_cuda(cuda_test::write_one(stream, out, kMore, true));
  assert_cuda(cuda_test::write_one(stream, out, kLess, true));
  assert_cuda(cuda_test::write_one(stream, out, kMore, false));
  assert_int_equal(out.to_host()[0], 1);
}

void allocations_fail_when_asked_to(void**) {
  cuda_emulation::reset(test::seed());
  cuda_emulation::fail_allocations_from(1);
  void* data = nullptr;
  assert_cuda(cudaMalloc(&data, 8));
  void* other = nullptr;
  assert_true(cudaMalloc(&other, 8) == cudaErrorMemoryAllocation && !other);
  assert_true(cudaMallocHost(&other, 8) == cudaErrorMemoryAllocation && !other);
  assert_cuda(cudaFree(data));
  assert_true(cudaFree(data) == cudaErrorInvalidValue);
}

void a_graph_that_holds_a_copy_is_reported(void**) {
  cuda_emulation::reset(test::seed());
  DeviceStream stream;
  const DeviceArray<int> data(stream, 4);
  stream.finish();
  assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  assert_cuda(cudaMemsetAsync(data, 0, sizeof(int), stream));
  assert_string_equal(cuda_emulation::report().c_str(),
                      "a graph holds a copy, of memory that may be freed before it is");
}

void half_types_round_as_the_cpu_does(void**) {
  cuda_emulation::reset(test::seed());
  DeviceStream stream;
  const DeviceArray<float> half(stream, 65536), brain(stream, 65536);
  assert_cuda(cuda_test::convert_bits(stream, half, brain));
  const std::vector<float> halves = half.to_host(), brains = brain.to_host();
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> expected(bits.size());
  const auto same = [](float a, float b) { return a == b || (a != a && b != b); };
  cpu_backend().dequantize(bits.data(), DType::f16, expected.data(), 65536);
  for (size_t i = 0; i < bits.size(); ++i) assert_true(same(halves[i], expected[i]));
  cpu_backend().dequantize(bits.data(), DType::bf16, expected.data(), 65536);
  for (size_t i = 0; i < bits.size(); ++i) assert_true(same(brains[i], expected[i]));

  // Back, from every number and from between.
  std::mt19937_64 random(test::seed());
  std::vector<float> numbers = halves;
  for (int i = 0; i < 100000; ++i) numbers.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  for (size_t i = 0; i + 1 < 0x7C00; ++i) numbers.push_back((halves[i] + halves[i + 1]) / 2);  // ties
  const int count = static_cast<int>(numbers.size());
  const DeviceArray<float> in(stream, numbers);
  const DeviceArray<uint16_t> out_half(stream, numbers.size()), out_brain(stream, numbers.size());
  assert_cuda(cuda_test::convert_floats(stream, in, out_half, out_brain, count));
  const std::vector<uint16_t> got_half = out_half.to_host(), got_brain = out_brain.to_host();
  for (const DType kv : {DType::f16, DType::bf16}) {
    std::vector<uint16_t> written(numbers.size() * 2);
    const auto nan = [](float number) { return number != number; };
    AppendRun run;
    uint32_t largest = 0;
    run.rows = 1;
    run.keys = reinterpret_cast<std::byte*>(written.data());
    run.values = run.keys + numbers.size() * 2;
    run.kv = kv;
    Stream host;
    host.parallel = [](const Stream&, int64_t tasks, Stream::Body body, void* context) {
      for (int64_t i = 0; i < tasks; ++i) body(context, i, 0);
    };
    cpu_backend().append(host, {numbers.data(), numbers.data(), count, 1, count, &run, 1, &largest});
    for (size_t i = 0; i < numbers.size(); ++i)
      if (!nan(numbers[i])) assert_int_equal((kv == DType::f16 ? got_half : got_brain)[i], written[i]);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(blocks_and_warps_work_together),
      cmocka_unit_test(each_mistake_is_reported),
      cmocka_unit_test(a_shadow_finds_what_all_accesses_to_each_byte_tell),
      cmocka_unit_test(a_missed_barrier_shows_in_results),
      cmocka_unit_test(device_memory_is_closed_to_the_host),
      cmocka_unit_test(streams_run_in_any_order_but_that_of_events),
      cmocka_unit_test(a_wait_for_what_is_recorded_later_is_none),
      cmocka_unit_test(launches_take_their_arguments_at_once),
      cmocka_unit_test(wrong_launches_are_refused),
      cmocka_unit_test(a_launch_takes_no_shared_memory_from_others),
      cmocka_unit_test(allocations_fail_when_asked_to),
      cmocka_unit_test(a_graph_that_holds_a_copy_is_reported),
      cmocka_unit_test(half_types_round_as_the_cpu_does),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
