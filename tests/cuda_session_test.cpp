// Whole sessions on the CUDA backend, its kernels run on the CPU: the same tokens as on the CPU's own backend,
// whatever a session's life is, and a status for whatever a device refuses.
#include <algorithm>
#include <cuda_runtime.h>
#include <filesystem>
#include <functional>
#include <vector>

#include "kernels/cuda/queue.h"
#include "src/decode.h"
#include "src/memory_plan.h"
#include "src/pipeline/attention.h"
#include "src/sampling/logprob.h"
#include "src/workspace.h"
#include "tests/support/device_world.h"
#include "tests/support/fewer.h"
#include "tests/support/folder.h"

using namespace wi;
using namespace wi::test;

namespace {

void sessions_answer_as_on_the_cpu(void**) {
  const Shape shapes[] = {{"full", DType::bf16, DType::f16, 2},
                          {"wave", DType::f16, DType::f16, 2},
                          {"wave", DType::q8_0, DType::bf16, 1},
                          {"wave", DType::q4_0, DType::f32, 4}};
  for (const Shape& shape : shapes) {
    cuda_emulation::reset(test::seed());
    World cpu(cpu_backend(), shape), device(cuda_backend(), shape);
    const auto expected = cpu.session(), found = device.session();
    expected->prefill(prompt(300), {}, nullptr);
    found->prefill(prompt(300), {}, nullptr);
    assert_alike(logits_of(*expected), logits_of(*found), shape.kv, shape.weights);
    for (int i = 0; i < 8; ++i) {  // the same token to both, whatever rounding would choose
      const int32_t token = expected->decode(nullptr).token;
      found->accept(token, nullptr);
      assert_alike(logits_of(*expected), logits_of(*found), shape.kv, shape.weights);
    }
    const StepStats &e = expected->totals().stages, &f = found->totals().stages;
    assert_int_equal(e.kv_bytes_read, f.kv_bytes_read);
    assert_int_equal(e.retrieved_tokens, f.retrieved_tokens);
    assert_int_equal(e.estimated_clusters, f.estimated_clusters);
    assert_int_equal(e.index_bytes_read, f.index_bytes_read);
  }
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

// Compute capability 8.6, 8.9 and 12 give a block 99 KiB where 9.0 gives 227: the same bits, of the largest heads too.
void a_device_with_little_shared_memory_gives_the_same_bits(void**) {
  for (const DType kv : {DType::f16, DType::f32}) {
    std::vector<float> wanted;
    for (const size_t kib : {227, 99}) {
      cuda_emulation::reset(test::seed());
      cuda_emulation::limit_shared(kib << 10);
      World device(cuda_backend(), {.kv = kv, .head_dim = 256});
      const auto session = device.session();
      session->prefill(prompt(200), {}, nullptr);
      answer(*session, 3);
      if (wanted.empty()) wanted = logits_of(*session);
      assert_true(logits_of(*session) == wanted);
    }
  }
}

// Segments that are made while decoding, out of a device's keys, a share with each step.
void long_answers_are_sealed_as_on_the_cpu(void**) {
  const Shape shape{"wave", DType::f32, DType::f32, 1};
  World cpu(cpu_backend(), shape), device(cuda_backend(), shape);
  const auto expected = cpu.session(), found = device.session();
  expected->prefill(prompt(40), {}, nullptr);
  found->prefill(prompt(40), {}, nullptr);
  const std::vector<int32_t> tokens = answer(*expected, 490);  // a unit, what must come behind it, and some
  for (const int32_t token : tokens) found->accept(token, nullptr);
  assert_true(expected->stats().segments > 0);
  assert_int_equal(expected->stats().segments, found->stats().segments);
  assert_alike(logits_of(*expected), logits_of(*found), shape.kv);
}

void forks_batches_and_truncation_are_as_on_the_cpu(void**) {
  const auto life = [](World& world) {
    std::vector<std::vector<float>> logits;
    const auto session = world.session();
    session->prefill(prompt(200), {}, nullptr);
    const auto fork = session->fork(), other = world.session();
    other->prefill(prompt(90, 1), {}, nullptr);
    fork->prefill(prompt(7, 2), {}, nullptr);
    Session* const all[] = {session.get(), fork.get(), other.get()};
    Event events[3];
    for (int i = 0; i < 4; ++i) Session::decode_batch(all, nullptr, events);
    for (Session* one : all) logits.push_back(logits_of(*one));
    session->truncate(150);
    logits.push_back(logits_of(*session));
    session->prefill(prompt(30, 3), {}, nullptr);
    logits.push_back(logits_of(*session));
    fork->truncate(207);
    logits.push_back(logits_of(*fork));
    return logits;
  };
  World cpu(cpu_backend()), device(cuda_backend());
  const auto expected = life(cpu), found = life(device);
  assert_int_equal(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) assert_alike(expected[i], found[i], DType::f16);
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

void a_session_of_a_batch_has_the_logits_that_it_has_alone(void**) {
  World device(cuda_backend());
  const auto alone = device.session(), together = device.session(), other = device.session();
  alone->prefill(prompt(150), {}, nullptr);
  together->prefill(prompt(150), {}, nullptr);
  other->prefill(prompt(60, 1), {}, nullptr);
  Session* const pair[] = {other.get(), together.get()};
  Event events[2];
  for (int i = 0; i < 3; ++i) {
    Session::decode_batch(pair, nullptr, events);
    assert_int_equal(alone->decode(nullptr).token, events[1].token);
    Session::decode_batch(pair, nullptr, events);
    assert_int_equal(alone->decode(nullptr).token, events[1].token);
    assert_true(logits_of(*alone) == logits_of(*together));
  }
}

SamplingParams drawing(float temperature) {
  SamplingParams params;
  params.temperature = temperature;
  params.seed = seed() + 5;
  return params;
}

// Forks have the logits that steps pick from: the CPU's sampler, with a state of its own, picks the same. Alone and in a
// batch, whether it is the device that does or, for settings it knows nothing of, the host.
void tokens_are_the_cpu_samplers_from_the_devices_logits(void**) {
  World device(cuda_backend());
  std::vector<SamplingParams> settings = {{},         drawing(1), drawing(0.7f), drawing(2), drawing(1),
                                          drawing(1), {}};
  settings[2].top_k = 20, settings[2].top_p = 0.8f;
  settings[3].top_p = 0.9f;
  settings[4].min_p = 0.1f, settings[4].top_logprobs = 3;
  settings[5].repetition_penalty = 1.5f;
  settings[6].logit_bias = {{3, 20}};
  std::vector<std::shared_ptr<Session>> each;
  std::vector<Session*> all;
  std::vector<Sampler> samplers;
  for (const SamplingParams& params : settings) {
    device.session_params.sampling = params;
    each.push_back(device.session());
    each.back()->prefill(prompt(70, each.size()), {}, nullptr);
    all.push_back(each.back().get());
    samplers.emplace_back(params);
  }
  std::vector<Event> events(all.size());
  SamplerScratch scratch;
  for (int step = 0; step < few_or(3, 8); ++step) {
    std::vector<Sampler::Choice> wanted;
    std::vector<float> logprobs;
    for (size_t i = 0; i < all.size(); ++i) {
      const std::vector<float> logits = logits_of(*each[i]->fork());
      scratch.recent = all[i]->tokens();
      if (scratch.recent.size() > 64) scratch.recent.erase(scratch.recent.begin(), scratch.recent.end() - 64);
      wanted.push_back(samplers[i].sample(logits, scratch));
      device.runtime->workers.run(nullptr, [&](const Stream& stream) {
        const double sum =
            cpu_backend().log_sum_exp(stream, logits.data(), static_cast<int64_t>(logits.size()));
        logprobs.push_back(log_probability(logits[static_cast<size_t>(wanted[i].token)], sum));
      });
    }
    if (step % 2)
      Session::decode_batch(all, nullptr, events.data());
    else
      for (size_t i = 0; i < all.size(); ++i) events[i] = all[i]->decode(nullptr);
    for (size_t i = 0; i < all.size(); ++i) {
      assert_int_equal(events[i].token, wanted[i].token);
      assert_true(std::abs(events[i].logprob - logprobs[i]) <= 2e-6f);  // sums in f32 on one side
      samplers[i].set_state(wanted[i].state);
    }
    assert_int_equal(events[4].top.size(), 3);
    assert_true(events[4].top[0].logprob >= events[4].logprob);
  }
  assert_string_equal(cuda_emulation::report().c_str(), "");
}

int asked = 0;  // to pick

// What is said here is what is taken: of a step that ends in a token, and of no other.
void steps_take_the_token_that_the_device_picks(void**) {
  Backend says_seven = cuda_backend();
  says_seven.sample = [](const Stream&, const SampleArgs& args) {
    ++asked;
    for (int64_t row = 0; row < args.rows; ++row) args.out[row] = {7, 2, kBestWeight};
  };
  asked = 0;
  World device(says_seven);
  const auto session = device.session();
  session->prefill(prompt(20), {}, nullptr);
  session->decode(nullptr);  // of the prompt's logits, which the host has
  assert_int_equal(asked, 0);
  const Event event = session->decode(nullptr);
  assert_int_equal(event.token, 7);
  assert_int_equal(asked, 1);
  const auto fork = session->fork();
  const std::vector<float> logits = logits_of(*fork);
  assert_int_equal(asked, 1);
  const Event accepted = session->accept(3, nullptr);
  assert_int_equal(accepted.token, 3);
  assert_int_equal(asked, 2);
  assert_true(accepted.logprob == log_probability(logits[3], 2));
}

// Whichever launch of the step is refused: then the token is drawn that would have been.
void a_step_that_fails_leaves_the_random_numbers_where_they_were(void**) {
  cuda_emulation::allow_capture(false);  // each launch by itself
  World device(cuda_backend());
  device.session_params.sampling = drawing(3);
  const auto session = device.session();
  session->prefill(prompt(20), {}, nullptr);
  session->decode(nullptr);
  const std::vector<int32_t> wanted = answer(*session->fork(), 4);
  int refused = 0;
  for (int64_t nth = 0;; nth += few_or(7, 1)) {
    const auto fork = session->fork();
    cuda_emulation::refuse_launch(nth);
    const wi_status status = status_of([&] { fork->decode(nullptr); });
    cuda_emulation::refuse_launch(-1);
    if (status == WI_OK) break;
    assert_int_equal(status, WI_E_MEMORY);
    ++refused;
    assert_true(answer(*fork, 4) == wanted);
  }
  assert_true(refused >= few_or(4, 20));
}

void what_picking_takes_is_in_the_plan(void**) {
  DeviceWork work{.rows = 3, .inputs = 64, .outputs = 64, .rows_alike = true};
  const uint64_t without = cuda::work_bytes(work);
  work.vocab = 260'000;
  assert_in_range(cuda::work_bytes(work), without + 1, UINT64_MAX);
  assert_in_range(cuda::work_bytes(work), cuda::sample_workspace(3, 260'000), UINT64_MAX);
}

void sessions_move_between_devices_by_file(void**) {
  const test::Folder folder;
  const std::string path = folder.path + "/session";
  World cpu(cpu_backend()), device(cuda_backend());
  const auto as_saved = [](const SessionParams& saved) { return saved; };
  const auto goes_on_at = [&](World& from, World& to) {
    const auto session = from.session();
    session->prefill(prompt(250), {}, nullptr);
    session->save(path, nullptr);
    SessionParams params;
    const auto loaded = Session::load(to.runtime, to.model, path, as_saved, nullptr);
    assert_int_equal(loaded->stats().segments, session->stats().segments);
    const int32_t next = session->decode(nullptr).token;
    loaded->accept(next, nullptr);
    assert_alike(logits_of(*session), logits_of(*loaded), DType::f16);
  };
  goes_on_at(device, cpu);
  goes_on_at(cpu, device);
  goes_on_at(device, device);
}

// What comes between while a device computes a chunk.
struct Interruption final : Breaks {
  explicit Interruption(std::function<void()> what_in) : what(std::move(what_in)) {}
  bool due() override { return true; }
  void take() override { ++times, what(); }
  const std::function<void()> what;
  int times = 0;
};

// A device that is ahead of whoever asks.
const Backend& quick_backend() {
  static DeviceTable table = *cuda::backend().device;
  table.passed = [](DeviceQueue*, int32_t) { return true; };
  static Backend quick = cuda::backend();
  quick.device = &table;
  static const BackendOnDevice both(quick);
  return both.backend;
}

// A chunk was silence until the device had done all of it.
void a_device_lets_others_in_while_it_reads_a_chunk(void**) {
  const struct {
    const Backend& backend;
    float fast_share;  // the past in one piece, and in parts
  } cases[] = {{cuda_backend(), 0}, {cuda_backend(), 0.3f}, {quick_backend(), 0}};
  for (const auto& [backend, fast_share] : cases) {
    World device(backend, {.fast_share = fast_share, .layers = 4});
    const auto reads = [&](Session& session, Breaks* breaks) {
      session.prefill(prompt(150), {}, nullptr);
      leave_the_device(device, session);
      PrefillParams params;
      params.breaks = breaks;
      session.prefill(prompt(20, 1), params, nullptr);  // nothing of it is sealed
      return logits_of(session);
    };
    const auto alone = device.session(), interrupted = device.session(), writes = device.session(),
               writes_alone = device.session();
    writes->prefill(prompt(90, 2), {}, nullptr);
    writes_alone->prefill(prompt(90, 2), {}, nullptr);
    std::vector<int32_t> written;
    Interruption others([&] {
      if (written.size() < 5) written.push_back(writes->decode(nullptr).token);
    });
    assert_true(reads(*interrupted, &others) == reads(*alone, nullptr));
    assert_true(!written.empty());
    assert_true(written == answer(*writes_alone, static_cast<int>(written.size())));
  }
}

void a_chunk_that_is_given_up_on_a_device_leaves_the_session_as_it_was(void**) {
  for (const Backend* backend : {&cuda_backend(), &quick_backend()}) {
    World device(*backend, {.layers = 6});
    const auto session = device.session(), expected = device.session();
    for (Session* each : {session.get(), expected.get()}) each->prefill(prompt(60), {}, nullptr);
    Interruption enough([&] {
      if (enough.times == 3) throw_error(WI_E_CANCELLED, "enough");
    });
    PrefillParams params;
    params.breaks = &enough;
    assert_int_equal(status_of([&] { session->prefill(prompt(50, 1), params, nullptr); }), WI_E_CANCELLED);
    assert_int_equal(enough.times, 3);
    assert_true(logits_of(*session) == logits_of(*expected));
    for (Session* each : {session.get(), expected.get()}) each->prefill(prompt(50, 1), {}, nullptr);
    assert_true(logits_of(*session) == logits_of(*expected));
  }
}

// What a device still writes of logits when a chunk is given up has a place until then. Of the pending token nobody
// wants them, so that they go by room that the call has for them.
void logits_that_come_after_a_call_is_cancelled_reach_no_freed_memory(void**) {
  constexpr size_t kTokens = 700, kVocab = 100, kAll = (kTokens + 1) * kVocab * sizeof(float);
  static CancelToken cancel;
  static DeviceTable table = *cuda::backend().device;
  table.download = [](DeviceQueue* queue, void* to, const void* from, size_t bytes) {
    cuda::backend().device->download(queue, to, from, bytes);
    if (bytes == kAll) cancel.flag = true;
  };
  static Backend late = cuda::backend();
  late.device = &table;
  static const BackendOnDevice both(late);
  World device(both.backend, {.policy = "full"});
  assert_int_equal(device.model->config.vocab, kVocab);
  const auto session = device.session();
  session->prefill(prompt(20), {}, nullptr);
  session->decode(nullptr);
  std::vector<float> logits(kTokens * kVocab);
  PrefillParams params;
  params.logits = logits;
  params.chunk_tokens = 1024;
  assert_int_equal(status_of([&] { session->prefill(prompt(kTokens, 1), params, &cancel); }), WI_E_CANCELLED);
  assert_true(cancel.flag);
  assert_int_equal(session->stats().tokens, 21);
}

// No budget of the host's is to blame.
void weights_beyond_a_device_are_memory_that_it_has_not(void**) {
  const Backend& backend = cuda_backend();
  const auto small = HostPool::create(1000, false);
  const auto model = random_model(shape_named("tiny"), DType::f16, 7, Precision::f32);
  assert_int_equal(
      status_of([&] { move_weights(*std::const_pointer_cast<Model>(model), *backend.device, *small, {}); }),
      WI_E_MEMORY);
  assert_int_equal(small->used(), 0);
}

// Each allocation on the device or of pinned memory refused, from one on: a status, and the session as it was.
void refused_memory_is_a_status_and_the_next_call_works(void**) {
  World device(cuda_backend());
  const auto session = device.session();
  int refused = 0;
  for (int64_t nth = 0;; ++nth) {
    cuda_emulation::fail_allocations_from(nth);
    const wi_status status = status_of([&] {
      session->prefill(prompt(150, 5), {}, nullptr);
      session->decode(nullptr);
      session->decode(nullptr);
    });
    cuda_emulation::fail_allocations_from(-1);
    if (status == WI_OK) break;
    assert_int_equal(status, WI_E_MEMORY);
    ++refused;
    session->truncate(0);
  }
  assert_true(refused > 3);
  const auto again = World(cuda_backend()).session();
  again->prefill(prompt(150, 5), {}, nullptr);
  session->truncate(150);
  assert_true(answer(*session, 3) == answer(*again, 3));
}

// Of the device's memory and of pinned memory, where a step opens no block and seals nothing.
void warm_steps_allocate_nothing(void**) {
  for (const Shape& shape : {Shape{.policy = "full"}, Shape{.policy = "wave", .fast_share = 0.3f}}) {
    World device(cuda_backend(), shape);
    const auto session = device.session();
    session->prefill(prompt(150), {}, nullptr);
    const auto fork = session->fork();
    Session* const both[] = {session.get(), fork.get()};
    Event events[2];
    for (int step = 0; step < 16; ++step) {
      if (step == 4) cuda_emulation::fail_allocations_from(0);
      Session::decode_batch(both, nullptr, events);
    }
    cuda_emulation::fail_allocations_from(-1);
  }
}

// However many rows a step has: a launch takes 65,535 lookups at most.
void lookups_of_many_rows_come_in_passes(void**) {
  World device(cuda_backend());
  const auto session = device.session();
  session->prefill(prompt(20), {}, nullptr);
  Sequence sequence = session->sequence();
  Row row;
  row.sequence = &sequence;
  row.position = sequence.tokens() - 1;
  row.policy = device.session_params.policy;
  row.params = &device.session_params.policy_params;
  const std::vector<Row> rows(40'000, row);
  Queue queue(device.runtime->device);
  float numbers[1] = {};
  Attention attention;
  attention.begin(rows, 2, nullptr, &queue);
  attention.open(0, numbers, numbers, numbers);
  int64_t lookups = 0;
  while (attention.next_pass()) {
    assert_true(attention.args().count <= 65535);
    lookups += attention.args().count;
  }
  assert_int_equal(lookups, int64_t{sequence.shape().kv_heads} * 40'000);

  // Lists of more layers take no more room: they are let go of on the way. The newest piece of room is twice as large
  // as the one before, and stays.
  const size_t layer_bytes = static_cast<size_t>(lookups) * (sizeof(Lookup) + 4 * sizeof(KvRun));
  const int layers = static_cast<int>(8 * kMostStaged / layer_bytes);
  assert_true(layers > 8);
  for (int i = 1; i < layers; ++i) {
    float other[2] = {};  // other activations: the layer is laid out anew
    attention.open(0, other + i % 2, numbers, numbers);
    while (attention.next_pass()) {
    }
  }
  queue.finish();
  assert_in_range(queue.bytes().host, 1, 4 * kMostStaged);
}

// A step of many rows that follow each other, over a tail with room for so many blocks: the last row's logits.
std::vector<float> logits_after_a_step(int32_t layers, size_t row_count, int32_t blocks) {
  cuda_emulation::reset(test::seed());
  World device(cuda_backend(), {.policy = "full", .kv_heads = 4, .layers = layers});
  const auto session = device.session();
  session->prefill(prompt(4), {}, nullptr);
  Sequence sequence = session->sequence();
  sequence.reserve(int64_t{kBlockTokens} * blocks);
  std::vector<float> logits(static_cast<size_t>(device.model->config.vocab));
  std::vector<StepStats> stats(row_count);
  std::vector<Row> rows(row_count);
  for (size_t i = 0; i < row_count; ++i) {
    rows[i].sequence = &sequence;
    rows[i].position = 4 + static_cast<int64_t>(i);
    rows[i].token = static_cast<int32_t>(i % 50);
    rows[i].policy = device.session_params.policy;
    rows[i].params = &device.session_params.policy_params;
    rows[i].stats = &stats[i];
  }
  rows.back().logits = logits.data();
  device.runtime->workers.run(nullptr, [&](const Stream& stream) {
    auto work = device.runtime->workspace();
    StepStats times;
    decode_step({device.runtime->backend, stream, *device.model, *work, nullptr}, rows, times);
  });
  assert_string_equal(cuda_emulation::report().c_str(), "");
  return logits;
}

// The queue is finished on the way, for lists take more than is staged at once: keys and values of the layers after
// that go where they belong all the same.
void lists_of_any_length_change_no_bit_of_a_step(void**) {
  constexpr int32_t kLayers = 12, kBlocks = 1500;
  constexpr size_t kRows = 24;
  assert_true(kLayers * kRows * 4 * kBlocks * sizeof(KvRun) > kMostStaged);
  assert_true(logits_after_a_step(kLayers, kRows, kBlocks) == logits_after_a_step(kLayers, kRows, 1));
}

// Unless the host says how much keys and values may take, they have what weights and scratch leave.
void weights_and_scratch_are_taken_off_the_default_budget(void**) {
  World device(cuda_backend(), {.budget_bytes = 0});
  const uint64_t free = device.runtime->device->description.free_bytes,
                 most = free - std::min(free / 5, uint64_t{4} << 30),
                 weights = device.runtime->device_weights_pool->used();
  assert_true(weights > 0);
  assert_int_equal(device.runtime->pool->budget(), most - weights);
  const wi_memory_plan plan = plan_memory(*device.runtime, *device.model, device.session_params, 1000);
  assert_true(plan.fits);
  const auto session = device.session();
  for (const size_t tokens : {20, 300}) {
    session->prefill(prompt(tokens, tokens), {}, nullptr);
    const uint64_t scratch = device.runtime->workspace()->device_bytes();
    assert_in_range(scratch, 1 << 20, most / 10);
    assert_true(device.runtime->scratch_bytes() > scratch);
    assert_int_equal(device.runtime->pool->budget(), most - weights - scratch);
  }

  World with_budget(cuda_backend());
  with_budget.session()->prefill(prompt(20), {}, nullptr);
  assert_int_equal(with_budget.runtime->pool->budget(), Shape().budget_bytes);
}

void a_small_device_is_left_a_fifth_by_the_default_budget(void**) {
  cuda_emulation::Machine small;
  small.free_bytes = size_t{10} << 30;
  cuda_emulation::set_machine(small);
  World device(cuda_backend(), {.budget_bytes = 0});
  assert_int_equal(device.runtime->pool->budget() + device.runtime->device_weights_pool->used(),
                   uint64_t{8} << 30);
}

// A prompt in one call, one that is read sparsely, and tokens that are written.
void a_plan_has_the_scratch_of_a_device(void**) {
  for (const int32_t sparse : {0, 64}) {
    cuda_emulation::reset(test::seed());
    World device(cuda_backend());
    device.session_params.sparse_read_tokens = sparse;
    const auto session = device.session();
    session->prefill(prompt(150), {}, nullptr);
    answer(*session, 2);
    if (sparse) session->prefill(prompt(64, 1), {}, nullptr);
    const uint64_t planned =
        plan_memory(*device.runtime, *device.model, device.session_params, 300).scratch_bytes;
    const uint64_t taken = device.runtime->scratch_bytes();
    std::printf("scratch: planned %llu, taken %llu bytes\n", static_cast<unsigned long long>(planned),
                static_cast<unsigned long long>(taken));
    assert_in_range(taken, planned / (sparse ? 16 : 4), planned);
  }
}

// The host's own work may do this to it: a reset, or a server that devices are shared by.
void a_context_that_is_gone_is_a_device_that_is_lost(void**) {
  for (const cudaError_t error :
       {cudaErrorContextIsDestroyed, cudaErrorDeviceUninitialized, cudaErrorMpsRpcFailure}) {
    DeviceError found;
    assert_false(cuda::report(error, "asking", &found));
    assert_int_equal(found.fault, DeviceFault::lost);
  }
}

void a_fault_of_any_kernel_loses_the_device_and_not_the_process(void**) {
  // Of two tokens' steps and what follows each: every other launch of a step, and some of the next one's.
  for (int64_t nth = 0; nth < 120; nth += nth == 0 ? 1 : nth < 60 ? few_or(16, 2) : 17) {
    cuda_emulation::reset(test::seed());
    World device(cuda_backend()), cpu(cpu_backend());
    const auto session = device.session(), beside = cpu.session();
    session->prefill(prompt(60), {}, nullptr);
    beside->prefill(prompt(60), {}, nullptr);
    const auto fork = session->fork();
    Session* const both[] = {session.get(), fork.get()};
    Event events[2];
    cuda_emulation::fail_launch(nth);
    assert_int_equal(status_of([&] { answer(*session, 6); }), WI_E_DEVICE_LOST);
    assert_int_equal(status_of([&] { session->decode(nullptr); }), WI_E_DEVICE_LOST);
    // What wants memory first is no different: a lost device has no lack of it.
    assert_int_equal(status_of([&] { session->prefill(prompt(200), {}, nullptr); }), WI_E_DEVICE_LOST);
    assert_int_equal(status_of([&] { Session::decode_batch(both, nullptr, events); }), WI_E_DEVICE_LOST);
    assert_int_equal(status_of([&] { device.session()->prefill(prompt(5), {}, nullptr); }), WI_E_DEVICE_LOST);
    assert_int_equal(status_of([&] { World(cuda_backend()).session(); }), WI_E_DEVICE);
    answer(*beside, 2);  // other runtimes live on
    if (!cuda_emulation::kForgetsFaults) break;
  }
}

void what_a_device_does_not_do_is_refused_by_name(void**) {
  World device(cuda_backend());
  assert_null(find_policy(device.runtime->backend, "blocks"));
  RuntimeParams params;
  params.backend = &cuda_backend();
  params.spill_folder = "/tmp";
  assert_int_equal(status_of([&] { Runtime::create(params); }), WI_E_UNSUPPORTED);
}

void devices_that_cannot_be_used_say_why(void**) {
  struct Case {
    cuda_emulation::Machine machine;
    const char* words;
  };
  const Case cases[] = {
      {{.devices = 0, .driver = 0}, "no NVIDIA driver"},
      {{.devices = 1, .driver = 12040}, "up to 12.4, and 13.0 is needed"},
      {{.devices = 0}, "shows 0 devices"},
      {{.devices = 1, .major = 7, .minor = 5}, "capability is 7.5, and 8.0 is the least"},
      {{.shared_bytes = 64 << 10}, "has 65536 bytes of shared memory, and 101376 are the least"}};
  for (const Case& one : cases) {
    cuda_emulation::reset(test::seed());
    cuda_emulation::set_machine(one.machine);
    assert_int_equal(cuda_backend().device->count(), 1);
    DeviceDescription description;
    cuda_backend().device->describe(0, false, &description);
    assert_non_null(std::strstr(description.reason, one.words));
    assert_int_equal(status_of([] { World device(cuda_backend()); }), WI_E_DEVICE);
  }
  cuda_emulation::reset(test::seed());
  DeviceDescription description;
  cuda_backend().device->describe(0, false, &description);
  assert_string_equal(description.reason, "");
  assert_string_equal(description.product, "Emulated");
  assert_string_equal(description.target, "sm_90");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test_setup(sessions_answer_as_on_the_cpu, reset),
      cmocka_unit_test_setup(a_device_with_little_shared_memory_gives_the_same_bits, reset),
      cmocka_unit_test_setup(long_answers_are_sealed_as_on_the_cpu, reset),
      cmocka_unit_test_setup(forks_batches_and_truncation_are_as_on_the_cpu, reset),
      cmocka_unit_test_setup(a_session_of_a_batch_has_the_logits_that_it_has_alone, reset),
      cmocka_unit_test_setup(tokens_are_the_cpu_samplers_from_the_devices_logits, reset),
      cmocka_unit_test_setup(steps_take_the_token_that_the_device_picks, reset),
      cmocka_unit_test_setup(a_step_that_fails_leaves_the_random_numbers_where_they_were, reset),
      cmocka_unit_test_setup(what_picking_takes_is_in_the_plan, reset),
      cmocka_unit_test_setup(sessions_move_between_devices_by_file, reset),
      cmocka_unit_test_setup(a_device_lets_others_in_while_it_reads_a_chunk, reset),
      cmocka_unit_test_setup(a_chunk_that_is_given_up_on_a_device_leaves_the_session_as_it_was, reset),
      cmocka_unit_test_setup(logits_that_come_after_a_call_is_cancelled_reach_no_freed_memory, reset),
      cmocka_unit_test_setup(weights_beyond_a_device_are_memory_that_it_has_not, reset),
      cmocka_unit_test_setup(refused_memory_is_a_status_and_the_next_call_works, reset),
      cmocka_unit_test_setup(warm_steps_allocate_nothing, reset),
      cmocka_unit_test_setup(lookups_of_many_rows_come_in_passes, reset),
      cmocka_unit_test_setup(lists_of_any_length_change_no_bit_of_a_step, reset),
      cmocka_unit_test_setup(weights_and_scratch_are_taken_off_the_default_budget, reset),
      cmocka_unit_test_setup(a_small_device_is_left_a_fifth_by_the_default_budget, reset),
      cmocka_unit_test_setup(a_plan_has_the_scratch_of_a_device, reset),
      cmocka_unit_test_setup(what_a_device_does_not_do_is_refused_by_name, reset),
      cmocka_unit_test_setup(devices_that_cannot_be_used_say_why, reset),
      cmocka_unit_test_setup(a_context_that_is_gone_is_a_device_that_is_lost, reset),
      cmocka_unit_test_setup(a_fault_of_any_kernel_loses_the_device_and_not_the_process, reset),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
