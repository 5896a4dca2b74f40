// wi_bench: decode (and prefill) speed of a model or a published shape over context, policy and batch. One
// JSON object per line; checks its results before it times. Options and fields only grow.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "src/devices.h"
#include "src/memory/topology.h"
#include "src/model/device_weights.h"
#include "src/session.h"
#include "tests/bench/device.h"
#include "tests/bench/serve.h"
#include "tests/bench/synthetic_cache.h"
#include "tests/support/kernels.h"
#include "tests/support/random_model.h"

namespace wi::bench {
namespace {

struct Options {
  std::string model, shape = "small", weights = "q8_0", device = "cpu", fill = "synthetic", kv = "f16", load,
                     precision = "fast", document, simd;
  std::vector<std::string> policies = {"full", "wave"};
  std::vector<int64_t> contexts = {1024};
  std::vector<int64_t> batches = {1};  // growing; kMostThatFit at the end
  int64_t steps = 20, repeats = 1;
  int64_t layers = 0;  // of a shape; 0: as it has them
  int64_t append = 0;  // of the context, read by a prefill of their own
  int32_t threads = 0;
  uint64_t seed = 1;
  bool check = true, turns = false, serve = false, read_ahead = true, graphs = true;
  float kv_fast = 0;          // > 0: that share of the cache in memory, the rest in a file in spill
  int64_t kv_budget = 0;      // > 0: that many bytes
  int64_t pinned_budget = 0;  // likewise, of a device's slow tier
  std::string spill = "/var/tmp", manager = "lru";
  std::string saved;  // a folder: save there, and load in place
  std::string command;
  ServeOptions serving;
};

constexpr int64_t kMostThatFit = 1024;

const char* const kUsage =
    "usage: wi_bench [--model FILE [--load mapped|copied] |\n"
    "                 --shape llama-1b|llama-8b|llama-8b-cache|qwen3-0.6b|small|tiny [--load made|copied]]\n"
    "                [--layers N] [--weights f32|f16|bf16|q8_0|q4_0|q4_k]\n"
    "                [--policy P[,P…]] [--device cpu|cuda:N] [--context N[,N…]] [--batch B[,B…]|max]\n"
    "                [--steps N] [--repeat R]\n"
    "                [--threads N]\n"
    "                [--fill prefill|synthetic] [--append N] [--document FILE] [--kv f16|bf16|f32]\n"
    "                [--precision fast|high|f32|int8] [--simd SSSE3|AVX2|AVX2_VNNI|AVX3|AVX3_DL] [--seed N]\n"
    "                [--no-check] [--turns] [--no-graphs]\n"
    "                [--kv-fast SHARE | --kv-budget MB  [--spill FOLDER] [--manager lru|bucketed] "
    "[--no-read-ahead]]\n"
    "                [--pinned-budget MB] [--saved FOLDER]\n"
    "                [--serve [--requests N] [--rate PER_SECOND] [--long TOKENS] [--mix FILE]]\n"
    "--device: where the model, keys and values are. With --fill synthetic they are made by the processor "
    "and "
    "go\n"
    "there, the same ones to each session of a batch; what the device has no room for or does not do is a "
    "line "
    "with\n"
    "\"refused\".\n"
    "--batch: sessions at once; max, alone or at the end of a list: as many as fit, of a policy that reads "
    "all\n"
    "of them into a device's own memory.\n"
    "--layers: of a shape, so many instead of all.\n"
    "--append: the context's last N tokens are a prefill of their own, with --fill synthetic the one whose "
    "time is\n"
    "given.\n"
    "--document: a text to read, of a --model, instead of random tokens.\n"
    "--load: of a shape, made as a file has weights, or on huge pages and with rows turned, as copied ones "
    "are.\n"
    "--simd: no better instruction set than this, for products in bf16 neither.\n"
    "--repeat: the same steps so many times, from forks; of each step the least time counts.\n"
    "--turns: with one policy and context, a measurement for each line of standard input, so that it can\n"
    "alternate with other programs: of decoding, the same tokens each time, or of another prefill.\n"
    "--kv-fast: so much of the sealed keys and values in memory, the rest in a file; checks that every token "
    "is\n"
    "the same as with all of them in memory, and gives that one's times too.\n"
    "--kv-budget: so many MB for keys, values, indexes and scratch, the rest in a file.\n"
    "With a device these two are of its memory, and the rest is in pinned memory: at most --pinned-budget, "
    "or\n"
    "what sessions leave of the host's while they are made.\n"
    "--no-graphs: a device's steps launch by launch, not each by one call.\n"
    "--no-read-ahead: a prompt reads its past from the file when it wants it, not while it attends.\n"
    "--saved: saves each session into the folder (the file goes afterwards), loads it in a runtime whose "
    "slow "
    "tier is\n"
    "there, in place, with the file in the page cache and without, and checks that the tokens decoded then "
    "are "
    "the\n"
    "same; --kv-fast is of the loaded session then.\n"
    "--serve: a mix of chat turns, documents and questions arrives at random, all at once;\n"
    "--mix writes it to a file, as JSON lines.\n"
    "Example: wi_bench --shape small --weights q8_0 --policy full,wave --context 1024,131072\n";

Options parse(int argc, char** argv);
void check_results(const std::shared_ptr<Runtime>& runtime, const std::shared_ptr<const Model>& model,
                   const Options& options);

// Sessions that hold the context.
struct Batch {
  std::vector<std::shared_ptr<Session>> sessions;
  std::shared_ptr<Session> made;                   // what those of a device are copies of
  uint64_t bytes_before = 0;                       // of the budget for keys and values, in use without them
  wi_session_stats filled{};                       // of the first
  uint64_t slow_wait_ns = 0, slow_read_bytes = 0;  // of the last one's prefill
};
// More sessions until there are so many, or as many as fit.
void grow(Batch& batch, int64_t count, const std::shared_ptr<Runtime>& runtime,
          const std::shared_ptr<const Model>& model, const Options& options, const std::string& policy,
          int64_t context);
Batch make_batch(const std::shared_ptr<Runtime>& runtime, const std::shared_ptr<const Model>& model,
                 const Options& options, const std::string& policy, int64_t context);
void measure_all(const std::shared_ptr<Runtime>& runtime, const std::shared_ptr<const Model>& model,
                 const Options& options, const std::string& policy, int64_t context);
void say_refused(const Options& options, const std::string& policy, int64_t context, int64_t batch,
                 const char* why);
// Decodes and prints a line. Returns the tokens of the timed steps.
std::vector<int32_t> measure(const Batch& batch, const Runtime& runtime, const Model& model,
                             const Options& options, const std::string& policy, int64_t context);
// What was decoded goes.
void take_back(const Batch& batch, int64_t context);
struct BeforeSteps {
  wi_session_stats stats{};  // of the first session
  ToldAtOnce told;
};
BeforeSteps time_steps(const std::vector<Session*>& together, std::vector<double>& step_ms,
                       std::vector<int32_t>* tokens = nullptr);
void take_turns(const std::shared_ptr<Runtime>& runtime, const std::shared_ptr<const Model>& model,
                const Options& options);
void save_and_load(const std::shared_ptr<Runtime>& runtime, const std::shared_ptr<const Model>& model,
                   const Options& options, const std::string& policy, int64_t context);

SessionParams session_params(const Runtime& runtime, const std::string& policy, const Options& options) {
  SessionParams params;
  params.policy = find_policy(runtime.backend, policy.c_str());
  check(params.policy != nullptr, WI_E_ARGUMENT, "policy is \"", policy,
        "\", which the backend does not have");
  params.kv = test::dtype_named(options.kv);
  params.prefix_reuse = false;
  params.kv_fast_share = options.kv_fast;
  return params;
}

Precision precision_named(const std::string& name) {
  if (name == "fast") return Precision::fast;
  if (name == "high") return Precision::high;
  if (name == "int8") return Precision::int8;
  check(name == "f32", WI_E_ARGUMENT, "--precision is \"", name, "\", must be fast, high, f32 or int8");
  return Precision::f32;
}

std::vector<int32_t> random_tokens(int64_t count, int32_t vocab, uint64_t seed) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    id = static_cast<int32_t>((seed >> 33) % static_cast<uint64_t>(vocab));
  }
  return ids;
}

std::vector<int32_t> document_tokens(const Model& model, const std::string& path, int64_t count) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  check(file && model.tokenizer, WI_E_ARGUMENT, "--document wants a file and a --model with a tokenizer");
  std::vector<int32_t> ids = model.tokenizer->encode(text, true, false);
  check(static_cast<int64_t>(ids.size()) >= count, WI_E_ARGUMENT, path, " has ", ids.size(), " tokens");
  ids.resize(static_cast<size_t>(count));
  return ids;
}

SpillStats slow_reads(const Runtime& runtime) {
  return runtime.buffer ? runtime.buffer->stats().file : SpillStats{};
}

test::ModelShape shape_of(const Options& options) {
  test::ModelShape shape = test::shape_named(options.shape);
  if (options.layers) shape.layers = static_cast<int32_t>(options.layers);
  return shape;
}

// Of the host's memory, what a session of so many tokens takes while it is made there: keys, values, an index, and room
// for making it.
uint64_t made_bytes(int64_t tokens, int64_t layers, int64_t kv_heads, int64_t head_dim, DType kv) {
  constexpr uint64_t kScratch = uint64_t{2} << 30;
  const uint64_t keys_and_values =
      static_cast<uint64_t>(tokens * layers * kv_heads) * 2 * row_bytes(kv, head_dim);
  return keys_and_values + keys_and_values / 8 + kScratch;
}

// Where a device's sessions are made by the host what they leave of its memory is what may be pinned: a machine that runs
// out of memory says nothing any more. 0: as usual.
uint64_t pinned_budget(const Options& options) {
  if (options.pinned_budget) return static_cast<uint64_t>(options.pinned_budget);
  if (options.fill != "synthetic" || !options.model.empty()) return 0;
  const test::ModelShape shape = shape_of(options);
  const uint64_t memory = read_topology().memory_bytes / 10 * 9;
  uint64_t most = 0;
  for (const int64_t context : options.contexts) {
    const uint64_t bytes =
        made_bytes(context, shape.layers, shape.kv_heads, shape.head_dim, test::dtype_named(options.kv));
    if (bytes <= memory) most = std::max(most, bytes);  // or it is refused
  }
  return std::max(memory - most, uint64_t{64} << 20);
}

// Reads nothing of the model's weights.
std::shared_ptr<Session> made_by_the_host(const std::shared_ptr<const Model>& model, const SessionParams& as,
                                          const std::vector<int32_t>& ids, uint64_t seed) {
  static const std::shared_ptr<Runtime> host = [] {
    RuntimeParams params;
    params.kv_budget_bytes = uint64_t{1} << 50;  // what the machine has, which may grow
    return Runtime::create(params);
  }();
  SessionParams params = as;
  params.policy = find_policy(host->backend, as.policy->name);
  params.kv_fast_share = 0;  // all is there
  auto session = Session::create(host, model, params);
  session->append_computed(ids, synthetic_cache(model->config, seed), nullptr);
  return session;
}

// A session with a context. before: what had been read of a file before the prefill that is timed; made: what a
// device's is a copy of, kept for the next one.
std::shared_ptr<Session> filled(const std::shared_ptr<Runtime>& runtime,
                                const std::shared_ptr<const Model>& its_model, const SessionParams& params,
                                const Options& options, int64_t context, uint64_t seed,
                                SpillStats* read_before = nullptr, std::shared_ptr<Session>* made = nullptr) {
  const Model& model = *its_model;
  SpillStats before = slow_reads(*runtime);
  const std::vector<int32_t> ids = options.document.empty()
                                       ? random_tokens(context, model.config.vocab, seed)
                                       : document_tokens(model, options.document, context);
  const auto first = static_cast<size_t>(std::max<int64_t>(context - options.append, 0));
  const std::span<const int32_t> past(ids.data(), first), more(ids.data() + first, ids.size() - first);
  std::shared_ptr<Session> session;
  if (options.fill == "synthetic" && runtime->device) {
    std::shared_ptr<Session> own, &source = made ? *made : own;
    const uint64_t bytes = made_bytes(context, model.config.layers, model.config.kv_heads,
                                      model.config.head_dim, params.kv),
                   memory = runtime->topology.memory_bytes / 10 * 9;
    check(source || bytes <= memory, WI_E_MEMORY, "a session of ", context, " tokens in ", options.kv,
          " is made in the host's memory: ", bytes, " bytes, of which there are ", memory);
    if (!source) source = made_by_the_host(its_model, params, {past.begin(), past.end()}, seed);
    session = copy_to(runtime, its_model, *source, params.kv_fast_share);
  } else {
    session = Session::create(runtime, its_model, params);
    if (options.fill == "synthetic")
      session->append_computed(past, synthetic_cache(model.config, seed), nullptr);
    else
      session->prefill(past, {}, nullptr);
  }
  if (options.fill == "synthetic" && !more.empty()) session->logits(nullptr);
  if (options.fill == "synthetic") before = slow_reads(*runtime);
  if (!more.empty()) session->prefill(more, {}, nullptr);
  if (read_before) *read_before = before;
  return session;
}

// As JSON has it.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + '"';
}

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc{};
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
  return text;
}

// Not getrusage's ru_maxrss: across fork and exec that starts from the parent's.
uint64_t peak_rss_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  return 0;
}

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(std::ceil(share * static_cast<double>(values.size()))) - 1];
}

int run(const Options& options);

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (options.simd.empty()) return run(options);
  bool found = false;
  test::for_each_simd([&](const char* name) {
    if (options.simd != name) return;
    found = true;
    run(options);
  });
  check(found, WI_E_ARGUMENT, "--simd is \"", options.simd, "\", which this processor does not have");
  return 0;
}

int run(const Options& given) {
  Options options = given;
  RuntimeParams params;
  const DeviceChoice device = find_device(options.device);
  params.backend = watched(device.backend, options.graphs);
  params.device = device.index;
  params.threads = options.threads;
  params.kv_budget_bytes = static_cast<uint64_t>(options.kv_budget);
  if (device.backend) params.spill_bytes = pinned_budget(options);
  // A device's slow tier is pinned memory, which it has anyhow.
  if ((options.kv_fast > 0 || options.kv_budget > 0) && options.saved.empty() && !device.backend) {
    params.spill_folder = options.spill;
    params.buffer_manager = options.manager == "lru" ? BufferManager::lru : BufferManager::bucketed;
    params.read_ahead = options.read_ahead;
  }
  const auto runtime = Runtime::create(params);
  if (runtime->device)
    std::erase_if(options.policies, [&](const std::string& policy) {
      if (find_policy(runtime->backend, policy.c_str())) return false;
      say_refused(options, policy, options.contexts.front(), options.batches.front(),
                  "the device has no policy of this name");
      return true;
    });
  if (options.policies.empty()) return 0;
  const auto model =
      options.model.empty()
          ? test::random_model(shape_of(options), test::dtype_named(options.weights), options.seed,
                               precision_named(options.precision), options.load == "copied")
          : Model::open(options.model, {}, precision_named(options.precision),
                        options.load == "copied" ? runtime->weights_pool.get() : nullptr);
  if (runtime->device) {
    model->weights_hash(
        runtime->workers);  // what is copied to a device is told by it; here it is read sooner
    move_weights(*std::const_pointer_cast<Model>(model), runtime->device->table,
                 *runtime->device_weights_pool, {});
  }
  if (options.check) check_results(runtime, model, options);
  if (options.serve) {
    ServeOptions serving = options.serving;
    serving.seed = options.seed;
    serve(runtime, model, session_params(*runtime, options.policies.back(), options), serving);
    return 0;
  }
  if (options.turns) {
    take_turns(runtime, model, options);
    return 0;
  }
  for (int64_t context : options.contexts) {
    for (const std::string& policy : options.policies) {
      if (!options.saved.empty()) {
        save_and_load(runtime, model, options, policy, context);
        continue;
      }
      measure_all(runtime, model, options, policy, context);
    }
  }
  return 0;
}

// With its whole budget and no estimation a policy is full attention: the same weights, the same cache, the
// same logits. f16 keys and values and blocked sums leave about 1e-3 of the logits' own size.
void check_results(const std::shared_ptr<Runtime>& runtime, const std::shared_ptr<const Model>& model,
                   const Options& options) {
  constexpr int64_t kTokens = 1500;
  const auto logits_with = [&](const std::string& policy) {
    SessionParams params = session_params(*runtime, policy, options);
    params.policy_params.segment_tokens = 1024;
    params.policy_params.budget = 1;
    params.policy_params.estimation = 0;
    const auto session = filled(runtime, model, params, options, kTokens, options.seed);
    const auto view = session->logits(nullptr);
    return std::vector<float>(view.begin(), view.end());
  };
  const std::vector<float> expected = logits_with("full");
  double size = 0;
  for (float value : expected) size = std::max(size, std::abs(double{value}));
  check(size > 0 && std::isfinite(size), WI_E_INTERNAL, "the logits are not finite");
  for (const std::string& policy : options.policies) {
    const std::vector<float> got = logits_with(policy);
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i)
      worst = std::max(worst, std::abs(double{got[i]} - double{expected[i]}));
    check(worst <= 5e-3 * size, WI_E_INTERNAL, policy, " with its whole budget differs from full by ", worst,
          " of ", size);
  }
}

void take_turns(const std::shared_ptr<Runtime>& runtime, const std::shared_ptr<const Model>& model,
                const Options& options) {
  check(options.policies.size() == 1 && options.contexts.size() == 1, WI_E_ARGUMENT,
        "--turns wants one policy and one context");
  const std::string& policy = options.policies[0];
  const int64_t context = options.contexts[0];
  const bool reads_anew = options.fill == "prefill";
  Batch batch;
  if (!reads_anew) batch = make_batch(runtime, model, options, policy, context);
  std::cout << "{\"ready\":true}" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    if (reads_anew) {
      batch = {};  // first: the memory of one is enough
      batch = make_batch(runtime, model, options, policy, context);
    }
    measure(batch, *runtime, *model, options, policy, context);
    take_back(batch, context);
  }
}

template <class Do>
double time_ms(Do&& body) {
  uint64_t ns = 0;
  {
    StageTimer timer(ns);
    body();
  }
  return static_cast<double>(ns) * 1e-6;
}

// What the page cache has of a file goes.
void forget(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check(file >= 0 && fsync(file) == 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0, WI_E_IO,
        "cannot forget ", path);
  close(file);
}

void save_and_load(const std::shared_ptr<Runtime>& runtime, const std::shared_ptr<const Model>& model,
                   const Options& options, const std::string& policy, int64_t context) {
  struct Removed {
    std::string path;
    ~Removed() { std::remove(path.c_str()); }
  } const file{options.saved + "/wi_bench-" + std::to_string(getpid()) + ".session"};
  Options in_memory = options;
  in_memory.kv_fast = 0;
  Batch batch = make_batch(runtime, model, in_memory, policy, context);
  const double save_ms = time_ms([&] { batch.sessions[0]->save(file.path, nullptr); });
  const double again_ms = time_ms([&] { batch.sessions[0]->save(file.path, nullptr); });
  std::vector<int32_t> expected, got;
  std::vector<double> step_ms(static_cast<size_t>(options.steps), std::numeric_limits<double>::infinity());
  time_steps({batch.sessions[0].get()}, step_ms, &expected);
  const double memory_ms = percentile(step_ms, 0.5);
  batch = {};

  RuntimeParams params;
  params.threads = options.threads;
  params.spill_folder = options.saved;
  params.buffer_manager = options.manager == "lru" ? BufferManager::lru : BufferManager::bucketed;
  const auto slow = Runtime::create(params);
  const auto choose = [&](SessionParams saved) {
    saved.kv_fast_share = options.kv_fast;
    return saved;
  };
  const auto load = [&] { return Session::load(slow, model, file.path, choose, nullptr); };
  load();  // the model's hash, and the threads' scratch
  std::vector<double> warm_ms, cold_ms;
  std::shared_ptr<Session> loaded;
  for (int i = 0; i < 3; ++i) {
    loaded.reset();
    warm_ms.push_back(time_ms([&] { loaded = load(); }));
  }
  for (int i = 0; i < 3; ++i) {
    loaded.reset();
    forget(file.path);
    cold_ms.push_back(time_ms([&] { loaded = load(); }));
  }
  const wi_session_stats stats = loaded->stats();
  check(stats.slow_bytes > 0 || stats.segments == 0, WI_E_INTERNAL, "the session was not loaded in place");
  step_ms.assign(step_ms.size(), std::numeric_limits<double>::infinity());
  time_steps({loaded.get()}, step_ms, &got);
  check(got == expected, WI_E_INTERNAL, policy, " at ", context, " tokens: other tokens after loading");
  std::cout << "{\"policy\":\"" << policy << "\",\"shape\":\""
            << (options.model.empty() ? options.shape : model->config.name) << "\",\"context\":" << context
            << ",\"threads\":" << slow->workers.threads() << ",\"file_bytes\":" << loaded->saved_bytes()
            << ",\"slow_bytes\":" << stats.slow_bytes << ",\"index_bytes\":" << stats.index_bytes
            << ",\"save_ms\":" << save_ms << ",\"save_again_ms\":" << again_ms
            << ",\"load_ms\":" << percentile(cold_ms, 0.5)
            << ",\"load_cached_ms\":" << percentile(warm_ms, 0.5)
            << ",\"ms_per_token_p50\":" << percentile(step_ms, 0.5)
            << ",\"ms_per_token_p50_in_memory\":" << memory_ms << ",\"peak_rss_bytes\":" << peak_rss_bytes()
            << "}" << std::endl;
}

Batch make_batch(const std::shared_ptr<Runtime>& runtime, const std::shared_ptr<const Model>& model,
                 const Options& options, const std::string& policy, int64_t context) {
  Batch batch;
  grow(batch, options.batches.front(), runtime, model, options, policy, context);
  return batch;
}

bool is_full(const Error& error) { return error.code() == WI_E_BUDGET || error.code() == WI_E_MEMORY; }

// In a device's own memory, if it is as large as those that are there are on average: what reads all of itself over the bus
// in every step is no use to be had of a larger batch.
bool has_room_for_another(const Batch& batch, const Runtime& runtime) {
  if (!runtime.device || batch.sessions.empty()) return true;
  const uint64_t used = runtime.pool->used(), own = used - std::min(used, batch.bytes_before);
  return used + own / batch.sessions.size() <= runtime.pool->budget();
}

void grow(Batch& batch, int64_t count, const std::shared_ptr<Runtime>& runtime,
          const std::shared_ptr<const Model>& model, const Options& options, const std::string& policy,
          int64_t context) {
  const SessionParams params = session_params(*runtime, policy, options);
  SpillStats before;
  if (batch.sessions.empty()) batch.bytes_before = runtime->pool->used();
  while (static_cast<int64_t>(batch.sessions.size()) < count) {
    if (count == kMostThatFit && params.policy->selects_all && !has_room_for_another(batch, *runtime)) break;
    const uint64_t seed = options.seed + batch.sessions.size();
    try {
      batch.sessions.push_back(filled(runtime, model, params, options, context, seed, &before, &batch.made));
    } catch (const Error& error) {
      if (count != kMostThatFit || !is_full(error) || batch.sessions.empty()) throw;
      break;
    }
    const SpillStats after = slow_reads(*runtime);
    batch.slow_wait_ns = after.wait_ns - before.wait_ns;
    batch.slow_read_bytes = after.read_bytes - before.read_bytes;
    if (batch.sessions.size() == 1) batch.filled = batch.sessions[0]->stats();
  }
}

// What a device does not do is no reason not to ask it for the rest.
void say_refused(const Options& options, const std::string& policy, int64_t context, int64_t batch,
                 const char* why) {
  std::cout << "{\"policy\":\"" << policy << "\",\"device\":\"" << options.device
            << "\",\"context\":" << context << ",\"batch\":" << batch << ",\"refused\":" << quoted(why) << "}"
            << std::endl;
}

void take_back(const Batch& batch, int64_t context) {
  for (const auto& session : batch.sessions) session->truncate(context);
}

// Steps want room, too: one session less for each time that there is none, as long as there are more than `had`.
std::vector<int32_t> measure_those_that_fit(Batch& batch, size_t had, const Runtime& runtime,
                                            const Model& model, const Options& options,
                                            const std::string& policy, int64_t context) {
  for (bool again = false; batch.sessions.size() > had; again = true) {
    try {
      if (again) take_back(batch, context);
      return measure(batch, runtime, model, options, policy, context);
    } catch (const Error& error) {
      if (!is_full(error) || batch.sessions.size() < 2) throw;
    }
    batch.sessions.pop_back();
  }
  return {};  // of as many as that the times are known
}

void measure_all(const std::shared_ptr<Runtime>& runtime, const std::shared_ptr<const Model>& model,
                 const Options& options, const std::string& policy, int64_t context) {
  Options in_memory = options;  // or, with a budget, as far as that goes
  in_memory.kv_fast = 0;
  Batch batch;
  std::vector<int32_t> expected;
  for (const int64_t count : options.batches) {
    const size_t had = batch.sessions.size();
    try {
      take_back(batch, context);
      grow(batch, count, runtime, model, in_memory, policy, context);
      if (had && batch.sessions.size() == had) continue;  // no more fit
      expected = count == kMostThatFit
                     ? measure_those_that_fit(batch, had, *runtime, *model, in_memory, policy, context)
                     : measure(batch, *runtime, *model, in_memory, policy, context);
    } catch (const Error& error) {
      const bool may =
          error.code() == WI_E_BUDGET || error.code() == WI_E_MEMORY || error.code() == WI_E_UNSUPPORTED;
      if (!runtime->device || !may) throw;
      say_refused(options, policy, context, count, error.what());
      return;
    }
  }
  if (options.kv_fast == 0) return;
  batch = {};
  check(measure(make_batch(runtime, model, options, policy, context), *runtime, *model, options, policy,
                context) == expected,
        WI_E_INTERNAL, policy, " at ", context, " tokens: other tokens than with everything in memory");
}

// Decodes, and keeps each step's time where it is less than the one noted. Returns what was counted before the first of
// them.
BeforeSteps time_steps(const std::vector<Session*>& together, std::vector<double>& step_ms,
                       std::vector<int32_t>* tokens) {
  std::vector<Event> events(together.size());
  constexpr int kWarmUp = 3;
  for (int i = 0; i < kWarmUp; ++i) Session::decode_batch(together, nullptr, events.data());
  const BeforeSteps before{together[0]->stats(), told_at_once()};
  for (double& ms : step_ms) {
    uint64_t ns = 0;
    {
      StageTimer timer(ns);
      Session::decode_batch(together, nullptr, events.data());
    }
    ms = std::min(ms, static_cast<double>(ns) * 1e-6);
    for (const Event& event : events)
      if (tokens) tokens->push_back(event.token);
  }
  return before;
}

std::vector<int32_t> measure(const Batch& batch, const Runtime& runtime, const Model& model,
                             const Options& options, const std::string& policy, int64_t context) {
  const auto& sessions = batch.sessions;
  const wi_session_stats& filled = batch.filled;
  std::vector<Session*> together;
  for (const auto& session : sessions) together.push_back(session.get());
  std::vector<double> step_ms(static_cast<size_t>(options.steps), std::numeric_limits<double>::infinity());
  for (int64_t i = 1; i < options.repeats; ++i) {
    std::vector<std::shared_ptr<Session>> forks;
    std::vector<Session*> forked;
    for (Session* session : together) forked.push_back(forks.emplace_back(session->fork()).get());
    time_steps(forked, step_ms);
  }
  std::vector<int32_t> tokens;
  const WaveBufferStats slow_before = runtime.buffer ? runtime.buffer->stats() : WaveBufferStats{};
  const auto [before, told_before] = time_steps(together, step_ms, &tokens);
  const ToldAtOnce told = told_at_once();
  const WaveBufferStats slow_after = runtime.buffer ? runtime.buffer->stats() : WaveBufferStats{};
  const wi_session_stats after = sessions[0]->stats();
  const double steps = static_cast<double>(options.steps);
  const auto per_step_ms = [&](uint64_t from, uint64_t to) {
    return static_cast<double>(to - from) * 1e-6 / steps;
  };
  const double select = per_step_ms(before.select_ns, after.select_ns),
               retrieve = per_step_ms(before.retrieve_ns, after.retrieve_ns);
  const double attend = per_step_ms(before.attend_ns, after.attend_ns),
               estimate = per_step_ms(before.estimate_ns, after.estimate_ns);
  double total_ms = 0;
  for (double ms : step_ms) total_ms += ms;
  const uint64_t looked_up =
      after.buffer_hits - before.buffer_hits + after.buffer_misses - before.buffer_misses;

  std::ostringstream line;
  line << "{\"policy\":\"" << policy << "\",\"device\":\"" << options.device << "\",\"shape\":\""
       << (options.model.empty() ? options.shape : model.config.name) << "\",\"weights\":\""
       << model.weight_type << "\",\"context\":" << context << ",\"batch\":" << sessions.size()
       << ",\"threads\":" << runtime.workers.threads()
       << ",\"tokens_per_second\":" << static_cast<double>(sessions.size()) * steps / (total_ms * 1e-3)
       << ",\"ms_per_token_p50\":" << percentile(step_ms, 0.5)
       << ",\"ms_per_token_p99\":" << percentile(step_ms, 0.99)
       << ",\"ms_per_token_max\":" << percentile(step_ms, 1)
       << ",\"attention_ms\":" << select + retrieve + attend + estimate
       << ",\"weights_ms\":" << per_step_ms(before.weights_ns, after.weights_ns)
       << ",\"select_ms\":" << select << ",\"retrieve_ms\":" << retrieve << ",\"estimate_ms\":" << estimate
       << ",\"prefill_tokens_per_second\":"
       << (filled.prefill_ns
               ? static_cast<double>(filled.prefill_tokens) / (static_cast<double>(filled.prefill_ns) * 1e-9)
               : 0.0)
       << ",\"index_build_ms\":" << static_cast<double>(filled.index_ns) * 1e-6
       << ",\"kv_bytes\":" << filled.kv_bytes << ",\"kv_bytes_read_per_token\":"
       << (after.kv_bytes_read - before.kv_bytes_read) / static_cast<uint64_t>(options.steps)
       << ",\"index_bytes\":" << filled.index_bytes << ",\"hit_ratio\":"
       << (looked_up
               ? static_cast<double>(after.buffer_hits - before.buffer_hits) / static_cast<double>(looked_up)
               : 1.0)
       << ",\"retrieved_bytes_per_token\":"
       << static_cast<double>(after.retrieved_tokens - before.retrieved_tokens) * 2 *
              static_cast<double>(row_bytes(sessions[0]->sequence().shape().dtype,
                                            sessions[0]->sequence().shape().head_dim)) /
              steps
       << ",\"layers\":" << model.config.layers << ",\"weight_bytes_read\":" << step_weight_bytes(model)
       << ",\"peak_rss_bytes\":" << peak_rss_bytes()
       << ",\"peak_device_bytes\":" << (runtime.device ? device_bytes_taken(runtime) : 0)
       << ",\"attend_ms\":" << attend << ",\"prefill_ms\":" << static_cast<double>(filled.prefill_ns) * 1e-6
       << ",\"kv\":\"" << options.kv << "\",\"fill\":\"" << options.fill << "\",\"load\":\"" << options.load
       << "\",\"precision\":\"" << options.precision << "\",\"simd\":\"" << runtime.backend.simd() << "\"";
  // Outside of the device, of steps that it was told of in one call each: of others it does one part while it is told of
  // the next.
  if (options.repeats == 1 && told.steps - told_before.steps == static_cast<uint64_t>(options.steps))
    line << ",\"host_ms\":" << (total_ms - static_cast<double>(told.ns - told_before.ns) * 1e-6) / steps;
  if (runtime.device)
    line << ",\"device_name\":" << quoted(runtime.device->description.product) << ",\"device_target\":\""
         << runtime.device->description.target << "\",\"driver\":" << quoted(driver_version());
  line << ",\"date\":\"" << now() << "\",\"command\":" << quoted(options.command);
  if (runtime.buffer) {
    const auto per_step = [&](uint64_t from, uint64_t to) { return static_cast<double>(to - from) / steps; };
    const auto& file = runtime.buffer->file();  // null: pinned memory
    line << ",\"kv_fast\":" << options.kv_fast << ",\"kv_budget_bytes\":" << options.kv_budget
         << ",\"kv_peak_bytes\":" << runtime.pool->peak() << ",\"manager\":\"" << options.manager
         << "\",\"slow_tier\":\"" << (file ? "file" : "pinned")
         << "\",\"direct\":" << (file && file->direct()) << ",\"slow_bytes\":" << after.slow_bytes
         << ",\"frame_bytes\":" << slow_after.frame_bytes
         << ",\"misses_per_token\":" << per_step(before.buffer_misses, after.buffer_misses)
         << ",\"refusals_per_token\":" << per_step(slow_before.refusals, slow_after.refusals)
         << ",\"slow_reads_per_token\":" << per_step(slow_before.file.reads, slow_after.file.reads)
         << ",\"slow_read_ms\":" << per_step(slow_before.file.wait_ns, slow_after.file.wait_ns) * 1e-6
         << ",\"append\":" << options.append << ",\"read_ahead\":" << options.read_ahead
         << ",\"prefill_slow_wait_ms\":" << static_cast<double>(batch.slow_wait_ns) * 1e-6
         << ",\"prefill_slow_read_bytes\":" << batch.slow_read_bytes;
  }
  std::cout << line.str() << "}" << std::endl;
  return tokens;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

int64_t number(const std::string& name, const std::string& text, int64_t low, int64_t high) {
  char* end = nullptr;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  check(!text.empty() && *end == 0 && value >= low && value <= high, WI_E_ARGUMENT, name, " is \"", text,
        "\", must be a number in [", low, ", ", high, "]");
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 0; i < argc; ++i) {  // where this machine has its files is nobody else's
    const std::filesystem::path word(argv[i]);
    options.command += (i ? " " : "") + (i == 0 || word.is_absolute() ? word.filename() : word).string();
  }
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      std::cout << kUsage;
      std::exit(0);
    }
    if (name == "--version") {
      std::cout << "wi_bench " << WI_VERSION << "\n";
      std::exit(0);
    }
    if (name == "--serve") {
      options.serve = true;
      continue;
    }
    if (name == "--no-graphs") {
      options.graphs = false;
      continue;
    }
    if (name == "--no-check") {
      options.check = false;
      continue;
    }
    if (name == "--no-read-ahead") {
      options.read_ahead = false;
      continue;
    }
    if (name == "--turns") {
      options.turns = true;
      continue;
    }
    check(i + 1 < argc, WI_E_ARGUMENT, name, " needs a value");
    const std::string value = argv[++i];
    if (name == "--model")
      options.model = value;
    else if (name == "--load")
      options.load = value;
    else if (name == "--precision")
      options.precision = value;
    else if (name == "--simd")
      options.simd = value;
    else if (name == "--shape")
      options.shape = value;
    else if (name == "--weights")
      options.weights = value;
    else if (name == "--policy")
      options.policies = split(value);
    else if (name == "--device")
      options.device = value;
    else if (name == "--batch") {
      options.batches.clear();
      for (const std::string& part : split(value)) {
        const int64_t batch = part == "max" ? kMostThatFit : number(name, part, 1, kMostThatFit - 1);
        check(options.batches.empty() || batch > options.batches.back(), WI_E_ARGUMENT, "--batch is \"",
              value, "\", must grow from one to the next");
        options.batches.push_back(batch);
      }
    } else if (name == "--steps")
      options.steps = number(name, value, 1, 1000000);
    else if (name == "--append")
      options.append = number(name, value, 1, int64_t{1} << 24);
    else if (name == "--repeat")
      options.repeats = number(name, value, 1, 1000);
    else if (name == "--threads")
      options.threads = static_cast<int32_t>(number(name, value, 0, 1024));
    else if (name == "--fill")
      options.fill = value;
    else if (name == "--requests")
      options.serving.requests = number(name, value, 1, 1000000);
    else if (name == "--rate")
      options.serving.per_second = static_cast<double>(number(name, value, 1, 1000000));
    else if (name == "--mix")
      options.serving.mix = value;
    else if (name == "--long")
      options.serving.long_tokens = number(name, value, 64, int64_t{1} << 24);
    else if (name == "--kv-fast") {
      char* end = nullptr;
      options.kv_fast = std::strtof(value.c_str(), &end);
      check(*end == 0 && options.kv_fast > 0 && options.kv_fast <= 1, WI_E_ARGUMENT, "--kv-fast is \"", value,
            "\", must be in (0, 1]");
    } else if (name == "--document")
      options.document = value;
    else if (name == "--kv-budget")
      options.kv_budget = number(name, value, 1, INT64_MAX >> 20) << 20;
    else if (name == "--pinned-budget")
      options.pinned_budget = number(name, value, 1, INT64_MAX >> 20) << 20;
    else if (name == "--layers")
      options.layers = number(name, value, 1, 1024);
    else if (name == "--spill")
      options.spill = value;
    else if (name == "--saved")
      options.saved = value;
    else if (name == "--manager") {
      options.manager = value;
      check(value == "lru" || value == "bucketed", WI_E_ARGUMENT, "--manager is \"", value,
            "\", must be lru or bucketed");
    } else if (name == "--kv")
      options.kv = value;
    else if (name == "--seed")
      options.seed = static_cast<uint64_t>(number(name, value, 0, INT64_MAX));
    else if (name == "--context") {
      options.contexts.clear();
      for (const std::string& part : split(value))
        options.contexts.push_back(number(name, part, 2, int64_t{1} << 24));
    } else {
      fail(WI_E_ARGUMENT, "unknown option ", name);
    }
  }
  check(options.kv_fast == 0 || options.kv_budget == 0, WI_E_ARGUMENT,
        "--kv-fast and --kv-budget exclude each other");
  check(options.layers == 0 || options.model.empty(), WI_E_ARGUMENT,
        "--layers: a --model has the layers that it has");
  check(options.device == "cpu" || options.saved.empty(), WI_E_UNSUPPORTED,
        "--saved: sessions of a device are not loaded in place");
  check(options.kv_fast == 0 || options.batches.size() == 1, WI_E_ARGUMENT, "--kv-fast wants one --batch");
  check(options.fill == "synthetic" || options.fill == "prefill", WI_E_ARGUMENT, "--fill is \"", options.fill,
        "\", must be prefill or synthetic");
  if (options.load.empty())
    options.load = options.model.empty() ? "made" : "mapped";
  else
    check(options.load == (options.model.empty() ? "made" : "mapped") || options.load == "copied",
          WI_E_ARGUMENT, "--load is \"", options.load,
          "\", must be mapped or copied of a --model, made or copied of a --shape");
  return options;
}

}  // namespace
}  // namespace wi::bench

int main(int argc, char** argv) {
  try {
    const int status = wi::bench::main(argc, argv);
    wi::check(bool(std::cout.flush()), WI_E_IO, "cannot write to standard output");
    return status;
  } catch (const std::exception& error) {
    std::cerr << "wi_bench: " << error.what() << "\n";
    return 1;
  }
}
