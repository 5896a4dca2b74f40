// Memory that runs out at any moment of saving and loading is an error like others: each allocation of a call
// fails once, alone and with all that follow it; the old file, the session and the pool are as before.
#include <cerrno>
#include <filesystem>
#include <new>

#include "src/session.h"
#include "tests/support/folder.h"
#include "tests/support/random_model.h"
#include "tests/support/runtime.h"
#include "tests/test.h"

namespace {

// Of this thread: allocations until one fails; negative: none will.
thread_local int64_t until_failure = -1;
thread_local bool go_on_failing = false, failed = false;

[[maybe_unused]] bool fails() {
  if (until_failure < 0) return false;
  if (until_failure > 0) return --until_failure, false;
  failed = true;
  if (!go_on_failing) until_failure = -1;
  errno = ENOMEM;
  return true;
}

}  // namespace

#ifndef WI_SANITIZED  // a sanitizer has malloc itself
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t bytes) { return fails() ? nullptr : __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return fails() ? nullptr : __libc_calloc(count, bytes); }
void* realloc(void* data, size_t bytes) { return fails() ? nullptr : __libc_realloc(data, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) {
  return fails() ? nullptr : __libc_memalign(alignment, bytes);
}
}
#endif

using namespace wi;
using test::runtime;

namespace {

std::shared_ptr<Session> filled() {
  SessionParams params;
  params.policy = find_policy(runtime()->backend, "wave");
  params.policy_params.segment_tokens = 256;
  params.policy_params.decode_segment_tokens = 64;
  params.prefix_reuse = false;
  auto session =
      Session::create(runtime(), test::random_model(test::shape_named("tiny"), DType::f32, 7), params);
  std::vector<int32_t> ids(700);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * i + 3 * i) % 100);
  session->prefill(ids, {}, nullptr);
  return session;
}

// With a slow tier: what it loads by path stays in the file.
const std::shared_ptr<Runtime>& in_place() {
  static const test::Folder folder;
  static const std::shared_ptr<Runtime> shared = [] {
    RuntimeParams params;
    params.threads = 2;
    params.spill_folder = folder.path;
    return Runtime::create(params);
  }();
  return shared;
}

std::shared_ptr<Session> load(const std::shared_ptr<Runtime>& on, const std::string& path,
                              const std::shared_ptr<const Model>& model) {
  return Session::load(
      on, model, path, [](const SessionParams& saved) { return saved; }, nullptr);
}

// Calls until no allocation is left to fail; returns how many there were.
template <class Call, class Check>
int64_t fail_each(bool with_all_that_follow, Call&& call, Check&& check) {
  for (int64_t n = 0;; ++n) {
    bool refused = false;
    go_on_failing = with_all_that_follow;
    failed = false;
    until_failure = n;
    try {
      call();
    } catch (const std::bad_alloc&) {
      refused = true;
    } catch (const Error& error) {
      refused = error.code() == WI_E_MEMORY || error.native_code() == ENOMEM;
    }
    until_failure = -1;
    check(refused);
    if (!failed) {
      assert_false(refused);
      return n;
    }
  }
}

void memory_may_run_out_while_saving(void**) {
#ifdef WI_SANITIZED
  skip();
#endif
  const test::Folder folder;
  const std::string path = folder.file("s");
  const auto from_memory = filled();
  from_memory->save(folder.file("other"), nullptr);
  const auto slow =
      load(in_place(), folder.file("other"), test::random_model(test::shape_named("tiny"), DType::f32, 7));
  assert_true(slow->stats().slow_bytes > 0);
  std::filesystem::remove(folder.file("other"));
  for (const bool all : {false, true})
    for (const auto& session : {from_memory, slow}) {
      test::spill(path, "old");
      const int64_t count = fail_each(
          all, [&] { session->save(path, nullptr); },
          [&](bool refused) {
            const std::string now = test::slurp(path);
            assert_true(refused ? now == "old" : now.size() == session->saved_bytes());
            assert_int_equal(folder.entries(), 1);
            if (!refused) test::spill(path, "old");
          });
      std::printf("  %lld allocations\n", static_cast<long long>(count));
      assert_true(count > 3);
    }
}

void memory_may_run_out_while_loading(void**) {
#ifdef WI_SANITIZED
  skip();
#endif
  const test::Folder folder;
  const std::string path = folder.file("s");
  auto session = filled();
  session->save(path, nullptr);
  const auto model = test::random_model(test::shape_named("tiny"), DType::f32, 7);
  for (const auto& on : {runtime(), in_place()}) {
    const uint64_t used = on->pool->used();
    for (bool all : {false, true}) {
      std::shared_ptr<Session> loaded;
      const int64_t count = fail_each(
          all, [&] { loaded = load(on, path, model); },
          [&](bool refused) {
            assert_true(refused == !loaded);
            if (loaded) {
              assert_true(loaded->tokens() == session->tokens());
              assert_int_equal(loaded->stats().slow_bytes > 0, on == in_place());
            }
            loaded.reset();
            assert_int_equal(on->pool->used(), used);
          });
      std::printf("  %lld allocations\n", static_cast<long long>(count));
      assert_true(count > 20);
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(memory_may_run_out_while_saving),
      cmocka_unit_test(memory_may_run_out_while_loading),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
