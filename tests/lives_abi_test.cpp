// Sessions that live as hosts let them: they read, write, are forked, cut, saved, loaded, put into batches, given to
// tasks, cancelled and refused memory, by two threads, under a budget that holds a part of them. Each writes the
// tokens, with the very log-probabilities, and ends with the logits, bit for bit, of one that nobody disturbs: made of
// the calls that mattered, one after the other, by one thread with all memory it wants.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <thread>

#include "support/abi.h"
#include "support/folder.h"
#include "support/patience.h"

namespace {

using namespace wi::test;
using Clock = std::chrono::steady_clock;
using Task = std::unique_ptr<wi_task, decltype(&wi_task_release)>;

#ifdef WI_EMULATED
constexpr size_t kMostTokens = 1200;
constexpr unsigned kSeconds = 60;
#else
constexpr size_t kMostTokens = 5000;
constexpr unsigned kSeconds = 5;
#endif
constexpr size_t kThreads = 2, kMostSessions = 5;

// CMocka's assertions are for the main thread alone: what fails in another is thrown.
void check_that(bool holds, const char* what, int line) {
  if (!holds) throw std::runtime_error("line " + std::to_string(line) + ": " + what);
}
#define CHECK_THAT(...) check_that(__VA_ARGS__, #__VA_ARGS__, __LINE__)
template <class Work>
void check_works(Work&& work, int line) {
  auto error = sized<wi_error>();
  const wi_status status = work(&error);
  check_that(status == WI_OK, error.message, line);
}
#define CHECK_WORKS(...) check_works([&](wi_error* error) { return __VA_ARGS__; }, __LINE__)

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  size_t below(size_t end) { return engine_() % end; }
  size_t between(size_t least, size_t most) { return least + below(most - least + 1); }
  bool one_in(size_t count) { return below(count) == 0; }

 private:
  std::mt19937_64 engine_;
};

// Fired while a call goes on, perhaps.
class LateCancel {
 public:
  LateCancel(Random& random, size_t one_in) : cancel_(create_cancel()) {
    if (random.one_in(one_in))
      thread_ = std::thread([this, after = std::chrono::microseconds(random.below(20'000))] {
        std::this_thread::sleep_for(after);
        wi_cancel_trigger(cancel_.get());
      });
  }
  ~LateCancel() {
    if (thread_.joinable()) thread_.join();
  }
  LateCancel(const LateCancel&) = delete;
  LateCancel& operator=(const LateCancel&) = delete;
  operator wi_cancel*() const { return cancel_.get(); }

 private:
  Cancel cancel_;
  std::thread thread_;
};

// The sample model; slides: as if every other layer looked at the last 200 tokens only.
struct ModelFile {
  explicit ModelFile(bool slides) : bytes(slurp(WI_SOURCE_DIR "/samples/model/needle-f16.gguf")) {
    if (!slides) return;
    std::string fields = field("llama.attention.sliding_window", 9) + raw(uint32_t{5}) + raw(uint64_t{4});
    for (const int32_t window : {0, 200, 0, 200}) fields += raw(window);
    fields += field("general.padding", 8);
    const size_t room = 31 - (fields.size() + 8 + 31) % 32;  // so that tensors stay aligned
    fields += raw(uint64_t{room}) + std::string(room, ' ');
    uint64_t count = 0;
    std::memcpy(&count, &bytes[kFieldCount], sizeof count);
    bytes.replace(kFieldCount, sizeof count, raw(count + 2));
    bytes.insert(kFieldCount + sizeof count, fields);
  }
  Model open(wi_runtime* runtime) const {
    wi_model* model = nullptr;
    assert_works(wi_model_open_memory(runtime, bytes.data(), bytes.size(), nullptr, nullptr, &model, error));
    return {model, wi_model_release};
  }

 private:
  static constexpr size_t kFieldCount = 16;  // behind "GGUF", the version and the number of tensors
  template <class T>
  static std::string raw(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
  static std::string field(const std::string& key, uint32_t type) {
    return raw(uint64_t{key.size()}) + key + raw(type);
  }

  std::string bytes;
};

wi_sampling_params sampling_of(uint64_t seed) {  // 0: greedy
  auto sampling = sized<wi_sampling_params>();
  sampling.seed = seed;
  if (!seed) return sampling;
  sampling.temperature = seed % 2 ? 0.7f : 1.3f;
  sampling.top_k = seed % 3 ? 0 : 40;
  sampling.top_p = seed % 5 ? 0 : 0.9f;
  sampling.repetition_penalty = seed % 4 ? 0 : 1.2f;
  return sampling;
}

// What a session is made with, or a fork that reads otherwise. The second line is where keys and values lie, and
// whether they were computed for this session: that changes no bit.
struct Shape {
  bool full = false;
  int32_t kv = WI_KV_F16;
  float budget = 0;
  float fast_share = 0;
  uint64_t most_bytes = 0;
  int32_t reuse = WI_PREFIX_REUSE_OFF;

  template <class Use>
  void use(Use&& use_params) const {
    auto policy = sized<wi_policy_params>();
    policy.name = full ? "full" : "wave";
    policy.segment_tokens = 512;
    policy.decode_segment_tokens = 64;
    policy.local_window = 64;
    policy.budget = budget;
    auto params = sized<wi_session_params>();
    params.policy = &policy;
    params.kv_type = kv;
    params.kv_fast_share = fast_share;
    params.kv_budget_bytes = most_bytes;
    params.prefix_reuse = reuse;
    use_params(&params);
  }
  Shape undisturbed() const { return {full, kv, budget}; }
};

struct Call {
  enum Kind { read, write, accept, cut, fork, fork_as, sample, look } kind;
  std::vector<int32_t> tokens = {};  // read; the one that was written or accepted
  float logprob = 0;                 // of the one that was written
  uint64_t number = 0;               // tokens that a cut leaves; sampling's seed
  Shape shape = {};                  // of fork_as
};

struct Life {
  Session session{nullptr, wi_session_release};
  Shape shape;
  std::vector<Call> calls = {{Call::fork_as}};  // the ones that mattered; the first is how it was made
  std::string told = {};                        // all of them, for whoever has to find a failure
  wi_session* get() const { return session.get(); }
};

std::vector<int32_t> tokens_of(wi_session* session) {
  uint64_t count = 0;
  CHECK_WORKS(wi_session_tokens(session, nullptr, 0, &count, error));
  std::vector<int32_t> tokens(count);
  CHECK_WORKS(wi_session_tokens(session, tokens.data(), count, &count, error));
  return tokens;
}

class Undisturbed {
 public:
  explicit Undisturbed(const ModelFile& file) : runtime_(one_thread()), model_(file.open(runtime_.get())) {
    auto info = sized<wi_model_info>();
    assert_works(wi_model_get_info(model_.get(), &info, error));
    vocab_ = static_cast<size_t>(info.vocab);
  }

  // False: there was no memory for the life's logits.
  bool compare(Life& life) const {
    std::vector<float> logits(vocab_);
    auto error = sized<wi_error>();
    uint64_t count = 0;
    if (!tokens_of(life.get()).empty() &&
        wi_session_logits(life.get(), nullptr, logits.data(), vocab_, &count, &error) != WI_OK) {
      check_that(error.code == WI_E_BUDGET, error.message, __LINE__);
      return false;
    }
    life.calls.push_back({Call::look});
    try {
      go_through(life, logits);
    } catch (const std::exception& failure) {
      throw std::runtime_error(failure.what() + life.told);
    }
    return true;
  }

 private:
  static Runtime one_thread() {
    auto params = sized<wi_runtime_params>();
    params.threads = 1;
    return create_runtime(&params);
  }

  void go_through(const Life& life, const std::vector<float>& logits) const {
    Session session{nullptr, wi_session_release};
    for (const Call& call : life.calls) make(call, session);
    const std::vector<int32_t> tokens = tokens_of(life.get());
    CHECK_THAT(tokens == tokens_of(session.get()));
    if (tokens.empty()) return;
    const std::vector<float> wanted = logits_of(session.get());
    CHECK_THAT(std::memcmp(logits.data(), wanted.data(), vocab_ * sizeof(float)) == 0);
  }

  void make(const Call& call, Session& session) const {
    auto event = sized<wi_event>();
    wi_session* made = nullptr;
    switch (call.kind) {
      case Call::read:
        CHECK_WORKS(wi_session_prefill(session.get(), call.tokens.data(), call.tokens.size(), nullptr,
                                       nullptr, error));
        break;
      case Call::write:
        CHECK_WORKS(wi_session_decode(session.get(), nullptr, &event, error));
        CHECK_THAT(event.token == call.tokens[0]);
        CHECK_THAT(event.logprob == call.logprob);
        break;
      case Call::accept:
        CHECK_WORKS(wi_session_accept(session.get(), call.tokens[0], nullptr, &event, error));
        break;
      case Call::cut:
        CHECK_WORKS(wi_session_truncate(session.get(), call.number, error));
        break;
      case Call::fork:
        CHECK_WORKS(wi_session_fork(session.get(), &made, error));
        session.reset(made);
        break;
      case Call::fork_as:
        call.shape.undisturbed().use([&](const wi_session_params* params) {
          if (session)
            CHECK_WORKS(wi_session_fork_as(session.get(), params, nullptr, &made, error));
          else
            CHECK_WORKS(wi_session_create(model_.get(), params, &made, error));
        });
        session.reset(made);
        break;
      case Call::sample: {
        const wi_sampling_params sampling = sampling_of(call.number);
        CHECK_WORKS(wi_session_set_sampling(session.get(), &sampling, error));
        break;
      }
      case Call::look:  // which computes the last token by itself, if nothing has computed it yet
        if (!tokens_of(session.get()).empty()) logits_of(session.get());
    }
  }

  std::vector<float> logits_of(wi_session* session) const {
    std::vector<float> logits(vocab_);
    uint64_t count = 0;
    CHECK_WORKS(wi_session_logits(session, nullptr, logits.data(), vocab_, &count, error));
    return logits;
  }

  const Runtime runtime_;
  const Model model_;
  size_t vocab_ = 0;
};

// One thread's sessions.
class Lives {
 public:
  Lives(wi_model* model, const Undisturbed& undisturbed, const std::string& path, uint64_t seed)
      : model_(model), undisturbed_(undisturbed), path_(path), random_(seed) {}

  void live(Clock::time_point end) {
    while (Clock::now() < end) {
      ++steps_;
      step();
    }
    while (!lives_.empty()) end_one(lives_.back());
  }

  void print() const {
    std::printf(
        "%zu steps, %zu calls refused memory, %zu cancelled, %zu sessions loaded, compared %zu times\n",
        steps_, refused_, cancelled_, loaded_, compared_);
  }

 private:
  void step() {
    if (lives_.empty() || (lives_.size() < kMostSessions && random_.one_in(12))) return begin();
    Life& life = lives_[random_.below(lives_.size())];
    const size_t tokens = tokens_of(life.get()).size();
    if (tokens > kMostTokens) return cut(life, random_.below(kMostTokens));
    switch (random_.below(21)) {
      case 0:
      case 1:
      case 2:
        return read(life, random_.between(1, 60));
      case 3:
      case 4:
        return read(life, random_.between(100, kMostTokens * 3 / 10));
      case 5:
      case 6:
      case 7:
        return write(life, random_.between(1, 90));
      case 8:
      case 9:
        return write_together(random_.between(1, 60));
      case 10:
        return accept(life);
      case 11:
        return cut(life, random_.below(tokens + 1));
      case 12:
      case 13:
        return split(life);
      case 14:
        return split_as(life);
      case 15:
        return save_and_load(life);
      case 16:
      case 17:
        return give_to_tasks();
      case 18:
        return sample(life);
      case 19:
        return compare(life);
      default:
        return end_one(life);
    }
  }

  Shape some_shape(int32_t kv) {
    constexpr uint64_t kBudget = 3 << 20;
    return {random_.one_in(4),
            kv,
            random_.one_in(3) ? 0.2f : 0,
            random_.one_in(3) ? 0.3f : 0,
            random_.one_in(6) ? kBudget : 0,
            random_.one_in(2) ? WI_PREFIX_REUSE_AUTO : WI_PREFIX_REUSE_OFF};
  }

  // One prompt of three begins as others do.
  std::vector<int32_t> some_tokens(size_t count) {
    Random alike(1);
    Random& from = random_.one_in(3) ? alike : random_;
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(from.below(1000)) + 1;
    return tokens;
  }

  void begin() {
    constexpr int32_t kTypes[] = {WI_KV_F16, WI_KV_F16, WI_KV_BF16, WI_KV_F32};
    Life life;
    life.shape = some_shape(kTypes[random_.below(4)]);
    life.calls[0].shape = life.shape;
    wi_session* made = nullptr;
    life.shape.use([&](const auto* params) { CHECK_WORKS(wi_session_create(model_, params, &made, error)); });
    life.session.reset(made);
    lives_.push_back(std::move(life));
  }

  // False: the call was refused memory or cancelled, and changed nothing.
  template <class Work>
  bool done(Life& life, const std::string& what, Work&& work) {
    life.told += " | " + what;
    const std::vector<int32_t> before = tokens_of(life.get());
    auto error = sized<wi_error>();
    const wi_status status = work(&error);
    if (status == WI_OK) return true;
    life.told += std::string(" (") + wi_status_name(status) + ")";
    check_that(status == WI_E_BUDGET || status == WI_E_CANCELLED, error.message, __LINE__);
    ++(status == WI_E_BUDGET ? refused_ : cancelled_);
    CHECK_THAT(tokens_of(life.get()) == before);
    return false;
  }

  void read(Life& life, size_t count) {
    Call call{Call::read, some_tokens(count)};
    size_t asked = random_.one_in(4) ? random_.below(4) : SIZE_MAX;
    auto params = sized<wi_prefill_params>();
    params.progress = [](void* user, uint64_t, uint64_t) -> int32_t {
      return (*static_cast<size_t*>(user))-- == 0;
    };
    params.progress_user = &asked;
    if (done(life, "read " + std::to_string(count), [&](wi_error* error) {
          return wi_session_prefill(life.get(), call.tokens.data(), count, &params, nullptr, error);
        }))
      life.calls.push_back(std::move(call));
  }

  void write(Life& life, size_t count) {
    if (tokens_of(life.get()).empty()) return;
    auto event = sized<wi_event>();
    for (; count > 0; --count) {
      const LateCancel cancel(random_, 100);
      if (!done(life, "write",
                [&](wi_error* error) { return wi_session_decode(life.get(), cancel, &event, error); }))
        return;
      life.calls.push_back({Call::write, {event.token}, event.logprob});
    }
  }

  // Those that have a token, in any order.
  std::vector<Life*> some_lives() {
    std::vector<Life*> chosen;
    for (Life& life : lives_)
      if (!tokens_of(life.get()).empty() && !random_.one_in(3)) chosen.push_back(&life);
    for (size_t i = chosen.size(); i > 1; --i) std::swap(chosen[i - 1], chosen[random_.below(i)]);
    return chosen;
  }

  void write_together(size_t count) {
    const std::vector<Life*> chosen = some_lives();
    if (chosen.empty()) return;
    std::vector<wi_session*> sessions;
    for (const Life* life : chosen) sessions.push_back(life->get());
    std::vector<wi_event> events(chosen.size(), sized<wi_event>());
    for (; count > 0; --count) {
      const LateCancel cancel(random_, 100);
      std::vector<size_t> before;
      for (wi_session* session : sessions) before.push_back(tokens_of(session).size());
      const bool all = done(*chosen[0], "write, of " + std::to_string(chosen.size()), [&](wi_error* error) {
        return wi_batch_decode(sessions.data(), sessions.size(), cancel, events.data(), error);
      });
      for (size_t i = 0; i < sessions.size(); ++i)
        CHECK_THAT(tokens_of(sessions[i]).size() == before[i] + (all ? 1 : 0));
      if (!all) return;
      for (size_t i = 0; i < chosen.size(); ++i)
        chosen[i]->calls.push_back({Call::write, {events[i].token}, events[i].logprob});
    }
  }

  void accept(Life& life) {
    if (tokens_of(life.get()).empty()) return;
    Call call{Call::accept, some_tokens(1)};
    auto event = sized<wi_event>();
    if (done(life, "accept", [&](wi_error* error) {
          return wi_session_accept(life.get(), call.tokens[0], nullptr, &event, error);
        }))
      life.calls.push_back(std::move(call));
  }

  void cut(Life& life, size_t left) {
    if (done(life, "cut to " + std::to_string(left),
             [&](wi_error* error) { return wi_session_truncate(life.get(), left, error); }))
      life.calls.push_back({Call::cut, {}, 0, left});
  }

  // Both go on, or the fork alone.
  void add_fork(Life& life, wi_session* made, Call call, const char* told) {
    Life copy{Session(made, wi_session_release), life.shape, life.calls, life.told + told};
    if (call.kind == Call::fork_as) copy.shape = call.shape;
    copy.calls.push_back(std::move(call));
    if (lives_.size() < kMostSessions)
      lives_.push_back(std::move(copy));
    else
      life = std::move(copy);
  }

  void split(Life& life) {
    wi_session* made = nullptr;
    CHECK_WORKS(wi_session_fork(life.get(), &made, error));
    add_fork(life, made, {Call::fork}, " | fork of that");
  }

  void split_as(Life& life) {
    Call call{Call::fork_as};
    call.shape = some_shape(life.shape.kv);
    const LateCancel cancel(random_, 10);
    wi_session* made = nullptr;
    bool works = false;
    call.shape.use([&](const wi_session_params* params) {
      works = done(life, "fork as another", [&](wi_error* error) {
        return wi_session_fork_as(life.get(), params, cancel, &made, error);
      });
    });
    if (works) add_fork(life, made, std::move(call), " | that");
  }

  void save_and_load(Life& life) {
    wi_session* loaded = nullptr;
    std::string bytes;
    const bool to_file = random_.one_in(2);
    if (!done(life, "save", [&](wi_error* error) {
          const LateCancel cancel(random_, 10);
          if (to_file) return wi_session_save(life.get(), path_.c_str(), cancel, error);
          auto writer = sized<wi_writer>();
          writer.write = [](void* user, const void* from, uint64_t count) -> int32_t {
            static_cast<std::string*>(user)->append(static_cast<const char*>(from), count);
            return 0;
          };
          writer.user = &bytes;
          return wi_session_save_to(life.get(), &writer, cancel, error);
        }))
      return;
    if (!done(life, to_file ? "load the file" : "load", [&](wi_error* error) {
          const LateCancel cancel(random_, 10);
          if (to_file) return wi_session_load(model_, path_.c_str(), nullptr, cancel, &loaded, error);
          auto reader = sized<wi_reader>();
          reader.bytes = bytes.size();
          reader.read = [](void* user, uint64_t offset, void* to, uint64_t count) -> int32_t {
            static_cast<const std::string*>(user)->copy(static_cast<char*>(to), count, offset);
            return 0;
          };
          reader.user = &bytes;
          return wi_session_load_from(model_, &reader, nullptr, cancel, &loaded, error);
        }))
      return;
    ++loaded_;
    life.session.reset(loaded);
  }

  void sample(Life& life) {
    const uint64_t seed = random_.below(12);
    const wi_sampling_params sampling = sampling_of(seed);
    CHECK_WORKS(wi_session_set_sampling(life.get(), &sampling, error));
    life.calls.push_back({Call::sample, {}, 0, seed});
  }

  // Some at once; of those that are cancelled on the way, what they have read and written by then.
  void give_to_tasks() {
    struct Given {
      Life* life;
      std::vector<int32_t> before, prompt;
      Task task;
    };
    std::vector<Given> given;
    for (Life* life : some_lives()) {
      std::vector<int32_t> prompt = some_tokens(random_.one_in(2) ? 0 : random_.between(1, kMostTokens / 4));
      auto params = sized<wi_task_params>();
      params.tokens = prompt.data();
      params.token_count = prompt.size();
      params.max_tokens = random_.between(1, 60);
      wi_task* task = nullptr;
      std::vector<int32_t> before = tokens_of(life->get());
      CHECK_WORKS(wi_task_submit(life->get(), &params, &task, error));
      given.push_back({life, std::move(before), std::move(prompt), Task(task, wi_task_release)});
    }
    for (const Given& each : given) {
      if (!random_.one_in(4)) continue;
      std::this_thread::sleep_for(std::chrono::milliseconds(random_.below(40)));
      wi_task_cancel(each.task.get());
    }
    for (Given& each : given) end_task(each.task.get(), *each.life, each.before, std::move(each.prompt));
  }

  void end_task(wi_task* task, Life& life, const std::vector<int32_t>& before, std::vector<int32_t> prompt) {
    auto info = sized<wi_task_info>();
    std::vector<wi_event> events(16, sized<wi_event>());
    std::vector<Call> written;
    const auto start = Clock::now();
    for (int32_t last = WI_EVENT_TOKEN; last == WI_EVENT_TOKEN;) {
      int32_t ready = 0;
      CHECK_WORKS(wi_task_wait(task, 1'000'000'000, &ready, error));
      if (!ready) {
        CHECK_WORKS(wi_task_get_info(task, &info, error));
        const auto waited = Clock::now() - start;
        CHECK_THAT(waited < std::chrono::seconds(patience(120)));
        // What has the memory that it waits for may be sessions of this thread.
        if (info.state == WI_TASK_QUEUED && waited > std::chrono::seconds(2)) wi_task_cancel(task);
      }
      uint64_t count = 0;
      CHECK_WORKS(wi_task_poll(task, events.data(), events.size(), &count, error));
      for (uint64_t i = 0; i < count; ++i) {
        last = events[i].kind;
        if (events[i].token >= 0) written.push_back({Call::write, {events[i].token}, events[i].logprob});
      }
    }
    CHECK_WORKS(wi_task_get_info(task, &info, error));
    check_that(info.state != WI_TASK_FAILED || info.status == WI_E_BUDGET, info.message, __LINE__);
    refused_ += info.state == WI_TASK_FAILED;
    cancelled_ += info.state == WI_TASK_CANCELLED;
    const std::vector<int32_t> now = tokens_of(life.get());
    CHECK_THAT(now.size() >= before.size() && std::equal(before.begin(), before.end(), now.begin()));
    const std::vector<int32_t> added(now.begin() + static_cast<ptrdiff_t>(before.size()), now.end());
    prompt.resize(std::min(prompt.size(), added.size()));
    CHECK_THAT(std::equal(prompt.begin(), prompt.end(), added.begin()));
    const size_t read = prompt.size();
    life.told += " | task: " + std::to_string(read) + " read, " + std::to_string(written.size()) + " written";
    if (read) life.calls.push_back({Call::read, std::move(prompt)});
    CHECK_THAT(written.size() == added.size() - read);
    for (size_t i = 0; i < written.size(); ++i) CHECK_THAT(written[i].tokens[0] == added[read + i]);
    std::move(written.begin(), written.end(), std::back_inserter(life.calls));
  }

  void compare(Life& life) { ++(undisturbed_.compare(life) ? compared_ : refused_); }

  void end_one(Life& life) {
    compare(life);
    if (&life != &lives_.back()) std::swap(life, lives_.back());
    lives_.pop_back();
  }

  wi_model* const model_;
  const Undisturbed& undisturbed_;
  const std::string path_;
  Random random_;
  std::vector<Life> lives_;
  size_t steps_ = 0, refused_ = 0, cancelled_ = 0, loaded_ = 0, compared_ = 0;
};

uint64_t asked_for(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

void lives_are_those_of_undisturbed_sessions(void**) {
  const uint64_t seed = asked_for("WI_TEST_SEED", 20261127), seconds = asked_for("WI_TEST_SECONDS", kSeconds);
  constexpr struct { uint64_t fast, slow; } kMiB[] = {{24, 64}, {12, 512}, {48, 16}};
  const auto [fast, slow] = kMiB[seed % 3];
  std::printf("seed %llu (WI_TEST_SEED), for %llu s (WI_TEST_SECONDS), %llu MiB fast, %llu slow\n",
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(seconds),
              static_cast<unsigned long long>(fast), static_cast<unsigned long long>(slow));
  const ModelFile file(seed % 2);
  const Undisturbed undisturbed(file);
  const Folder folder;
  auto params = sized<wi_runtime_params>();
  params.threads = 2;
  params.spill_folder = folder.path.c_str();
  params.kv_budget_bytes = fast << 20;
  params.spill_bytes = slow << 20;
  params.task_wait_ms = 5;
  const Runtime runtime = create_runtime(&params);
  const Model model = file.open(runtime.get());

  const auto end = Clock::now() + std::chrono::seconds(seconds);
  std::vector<std::unique_ptr<Lives>> lives;
  for (size_t i = 0; i < kThreads; ++i)
    lives.push_back(std::make_unique<Lives>(model.get(), undisturbed, folder.path + "/" + std::to_string(i),
                                            seed * kThreads + i));
  std::vector<std::string> failures(kThreads);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      try {
        lives[i]->live(end);
      } catch (const std::exception& error) {
        failures[i] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& each : lives) each->print();
  for (const std::string& failure : failures) assert_string_equal(failure.c_str(), "");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(lives_are_those_of_undisturbed_sessions)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
