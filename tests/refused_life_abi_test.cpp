// Memory that the system refuses at any moment of a host's whole life: the library's first calls in a process
// and in a thread are part of it, where what is made once is made. Each life is a process's, begins with
// wi_runtime_create and ends with the last release. It ends in a status, never in a signal; where nothing is
// refused, or what was is asked for again, its tokens are those of an undisturbed life.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sys/resource.h>
#include <thread>

#include "support/refusal_world.h"

namespace {

using namespace wi::test;

struct Life {
  const char* name;
  std::string path;
  int32_t precision, threads;
  bool two_tiers = false;  // what is sealed leaves memory
};
const Life kInF32 = {"life at f32", kFixtures + "llama.gguf", WI_PRECISION_F32, 2};
// With products in bf16 where the processor has them.
const Life kFast = {"life at fast precision", kFixtures + "llama-bf16.gguf", WI_PRECISION_FAST, 2};

const Life kInTwoTiers = {"life in two tiers", kFixtures + "llama.gguf", WI_PRECISION_F32, 2, true};

const std::vector<int32_t> kPrompt = [] {
  std::vector<int32_t> ids(300);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 251) + 5;
  return ids;
}();

// What a life comes to, kept where nothing is allocated for it.
struct Tokens {
  std::array<int32_t, 6> ids{};
  size_t count = 0;
  bool all() const { return count == ids.size(); }
};

// Whether what was refused may be asked for again: a life in which memory stays refused is over at the first.
enum class After { again, over };

// False: the life is over.
bool call(After after, const Call& body) {
  auto error = sized<wi_error>();
  const wi_status status = body(&error);
  if (status == WI_OK) return true;
  const bool was_armed = armed.exchange(false);
  if (error.code != status || !is_refusal(error))
    give_up("%s (native %lld): %s", wi_status_name(status), static_cast<long long>(error.native_code),
            error.message);
  if (after == After::again) must(body);
  armed = was_armed;
  return after == After::again;
}

// On a thread of its own, which is made while nothing is refused.
template <class Body>
bool on_new_thread(const Body& body) {
  const bool was_armed = armed.exchange(false);
  bool lives_on = false;
  try {
    std::thread([&] {
      armed = was_armed;
      lives_on = body();
      armed = false;
    }).join();
  } catch (const std::exception&) {  // the host's own affair
  }
  armed = was_armed;
  return lives_on;
}

Tokens live(const Life& life, After after) {
  Tokens tokens;
  auto runtime_params = sized<wi_runtime_params>();
  runtime_params.threads = life.threads;
  auto model_params = sized<wi_model_params>();
  model_params.precision = life.precision;
  wi_session_params session_params = World::session_params();
  if (life.two_tiers) {
    static const std::string folder = std::filesystem::temp_directory_path();
    runtime_params.spill_folder = folder.c_str();
    session_params.kv_fast_share = 0.05f;
  }
  wi_runtime* runtime = nullptr;
  wi_model* model = nullptr;
  wi_session *session = nullptr, *copy = nullptr;
  armed = true;
  const auto make_session = [&] {
    return call(after,
                [&](wi_error* error) { return wi_runtime_create(&runtime_params, &runtime, error); }) &&
           call(after,
                [&](wi_error* error) {
                  return wi_model_open(runtime, life.path.c_str(), &model_params, nullptr, &model, error);
                }) &&
           call(after,
                [&](wi_error* error) { return wi_session_create(model, &session_params, &session, error); });
  };
  const auto prefill = [&](wi_session* to) {
    return call(after, [&](wi_error* error) {
      return wi_session_prefill(to, kPrompt.data(), kPrompt.size(), nullptr, nullptr, error);
    });
  };
  const auto decode = [&](wi_session* from) {
    auto event = sized<wi_event>();
    if (!call(after, [&](wi_error* error) { return wi_session_decode(from, nullptr, &event, error); }))
      return false;
    tokens.ids.at(tokens.count++) = event.token;
    return true;
  };
  const bool all_done =
      make_session() && prefill(session) && decode(session) && decode(session) &&
      call(after, [&](wi_error* error) { return wi_session_fork(session, &copy, error); }) &&
      on_new_thread([&] { return prefill(copy) && decode(copy) && decode(copy); }) &&
      call(after, [&](wi_error* error) { return wi_session_truncate(copy, 333, error); }) && decode(copy) &&
      decode(session);
  require(all_done == tokens.all() && (all_done || after == After::over));
  for (wi_session* ended : {copy, session}) wi_session_release(ended);
  wi_model_release(model);
  wi_runtime_release(runtime);
  armed = false;
  return tokens;
}

void check_tokens(const Tokens& got, const Tokens& wanted) {
  require(std::equal(got.ids.begin(), got.ids.begin() + got.count, wanted.ids.begin()));
}

template <class Body>
void in_child(const Body& body) {
  const std::string problem = run_in_child(body);
  if (!problem.empty()) fail_with(problem);
}

// Of an undisturbed life, which another process lives.
Tokens tokens_of(const Life& life) {
  std::snprintf(shared->where, sizeof shared->where, "%s, undisturbed", life.name);
  in_child([&] {
    choose(kNone, false);
    const Tokens tokens = live(life, After::over);
    require(tokens.all());
    shared->tokens = tokens.ids;
    shared->requests = requests;
  });
  return {shared->tokens, shared->tokens.size()};
}

// each, by_chance: chosen_numbers() has them.
void sweep_refusals(const Life& life, bool heap, int64_t each = 100, int64_t by_chance = 300) {
  heap_too = heap;
  const Tokens wanted = tokens_of(life);
  const int64_t count = shared->requests;
  assert_true(count > 0);
  for (const bool all : {false, true}) {
    for (const int64_t number : chosen_numbers(count, each, by_chance)) {
      std::snprintf(shared->where, sizeof shared->where, "%s, %s %lld refused%s", life.name,
                    heap ? "allocation" : "mapping", static_cast<long long>(number),
                    all ? " and all that follow" : "");
      in_child([&] {
        choose(number, all);
        check_tokens(live(life, all ? After::over : After::again), wanted);
      });
    }
  }
  std::printf("  %s: %lld %s\n", life.name, static_cast<long long>(count), heap ? "allocations" : "mappings");
}

void each_mapping_of_a_life_may_be_refused(void**) {
  skip_without_malloc();
  sweep_refusals(kInF32, false);
  sweep_refusals(kFast, false);
  sweep_refusals(kInTwoTiers, false);
}

void each_allocation_of_a_life_may_be_refused(void**) {
  skip_without_malloc();
  sweep_refusals(kInF32, true);
  sweep_refusals(kFast, true);
  sweep_refusals(kInTwoTiers, true, 20, 80);
}

rlim_t address_space() {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

// The system ends a process whose stack cannot grow: of the calling thread it has grown beforehand.
[[gnu::noinline]] void touch_stack() {
  volatile char room[1 << 20];
  for (size_t i = 0; i < sizeof room; i += 1024) room[i] = 0;
}

// Of the system itself: what the C library and the dynamic linker take is refused, too.
void sweep_limits(const Life& life, int limits = 300) {
  const Tokens wanted = tokens_of(life);
  // Each size as likely as twice as much, up to where threads have room for stacks and heaps.
  std::uniform_real_distribution<double> exponent(std::log2(4e3), std::log2(500e6));
  int lived = 0;
  for (int i = 0; i < limits; ++i) {
    const auto more = static_cast<rlim_t>(std::exp2(exponent(random_numbers)));
    std::snprintf(shared->where, sizeof shared->where, "%s, in %llu bytes", life.name,
                  static_cast<unsigned long long>(more));
    in_child([&] {
      shared->requests = 0;
      choose(kNone, false);
      touch_stack();
      rlimit limit{};
      getrlimit(RLIMIT_AS, &limit);
      limit.rlim_cur = std::min(limit.rlim_max, address_space() + more);
      require(setrlimit(RLIMIT_AS, &limit) == 0);
      const Tokens got = live(life, After::over);
      check_tokens(got, wanted);
      shared->requests = got.all();
    });
    lived += shared->requests == 1;
  }
  std::printf("  %s: %d of %d had room enough\n", life.name, lived, limits);
  assert_true(lived > 0 && lived < limits);
}

void a_life_may_have_any_bytes_of_address_space(void**) {
#ifdef WI_EMULATED
  skip();  // an emulator takes no limit of address space
#endif
  skip_without_malloc();
  sweep_limits(kInF32);
  sweep_limits(kFast);
  sweep_limits(kInTwoTiers, 100);
}

}  // namespace

int main() {
  shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const CMUnitTest tests[] = {
      cmocka_unit_test(each_mapping_of_a_life_may_be_refused),
      cmocka_unit_test(each_allocation_of_a_life_may_be_refused),
      cmocka_unit_test(a_life_may_have_any_bytes_of_address_space),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
