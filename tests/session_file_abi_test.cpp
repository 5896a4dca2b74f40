// Saving and loading as a host sees it: what a load leaves at zero is as it was saved, memory and callbacks
// do what files do, and a host's failing callback is an error with its number.
#include <algorithm>
#include <fcntl.h>
#include <functional>
#include <sys/stat.h>
#include <unistd.h>

#include "support/abi.h"
#include "support/fewer.h"
#include "support/folder.h"

using namespace wi::test;

namespace {

struct World {
  Runtime runtime = create_runtime();
  Model model = open_sample_model(runtime.get());
};
World* world = nullptr;

// With segments of 512, and without any.
constexpr uint64_t kSealed = few_or(700, 2000), kUnsealed = few_or(200, 1000);

// A host's buffer, which may fail and which minds the order.
struct Memory {
  std::string bytes;
  uint64_t next = 0;        // read so far
  int64_t fail_after = -1;  // calls
  int32_t (*also)(void* of) = nullptr;
  void* of = nullptr;

  static int32_t write(void* user, const void* from, uint64_t count) {
    auto& self = *static_cast<Memory*>(user);
    if (self.fail_after-- == 0) return 77;
    self.bytes.append(static_cast<const char*>(from), count);
    return self.also ? self.also(self.of) : 0;
  }
  static int32_t read(void* user, uint64_t offset, void* to, uint64_t count) {
    auto& self = *static_cast<Memory*>(user);
    if (self.fail_after-- == 0) return -5;
    if (count == 0 || offset != self.next || count > self.bytes.size() - offset) return 1;
    std::memcpy(to, self.bytes.data() + offset, count);
    self.next = offset + count;
    return 0;
  }
  wi_writer writer() {
    auto out = sized<wi_writer>();
    out.write = write;
    out.user = this;
    return out;
  }
  wi_reader reader() {
    next = 0;
    auto in = sized<wi_reader>();
    in.bytes = bytes.size();
    in.read = read;
    in.user = this;
    return in;
  }
};

Session read_session(uint64_t tokens, const wi_session_params* params) {
  Session session = create_session(world->model.get(), params);
  std::vector<int32_t> ids(tokens);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * i + 7 * i) % 250);
  assert_works(wi_session_prefill(session.get(), ids.data(), ids.size(), nullptr, nullptr, error));
  return session;
}

std::string saved(wi_session* session) {
  Memory memory;
  const wi_writer writer = memory.writer();
  assert_works(wi_session_save_to(session, &writer, nullptr, error));
  return memory.bytes;
}

Session load(const std::string& bytes, const wi_session_params* params = nullptr) {
  Memory memory{bytes};
  const wi_reader reader = memory.reader();
  wi_session* session = nullptr;
  assert_works(wi_session_load_from(world->model.get(), &reader, params, nullptr, &session, error));
  assert_int_equal(memory.next, bytes.size());
  return {session, wi_session_release};
}

std::vector<int32_t> decode(wi_session* session, int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    auto event = sized<wi_event>();
    assert_works(wi_session_decode(session, nullptr, &event, error));
    tokens.push_back(event.token);
  }
  return tokens;
}

wi_session_stats stats_of(wi_session* session) {
  auto stats = sized<wi_session_stats>();
  assert_works(wi_session_get_stats(session, &stats, error));
  return stats;
}

// A session that differs from the defaults in everything.
struct Unusual {
  wi_policy_params policy = sized<wi_policy_params>();
  wi_sampling_params sampling = sized<wi_sampling_params>();
  wi_session_params session = sized<wi_session_params>();
  Unusual() {
    policy.segment_tokens = 512;
    policy.decode_segment_tokens = 128;
    policy.tokens_per_centroid = 8;
    policy.kmeans_iterations = 5;
    policy.local_window = 96;
    policy.budget = 0.05f;
    policy.estimation = 0.1f;
    policy.repeats = -1;
    sampling.temperature = 0.9f;
    sampling.top_k = 40;
    sampling.seed = 5;
    session.kv_type = WI_KV_BF16;
    session.policy = &policy;
    session.sampling = &sampling;
    session.kv_budget_bytes = 64 << 20;
    session.sparse_read_tokens = 16;
    session.prefix_reuse = WI_PREFIX_REUSE_OFF;
  }
  Unusual(const Unusual&) = delete;
};

void what_is_not_given_is_as_saved(void**) {
  const Unusual unusual;
  Session session = read_session(kSealed, &unusual.session);
  decode(session.get(), 3);
  const std::string bytes = saved(session.get());
  const auto empty = sized<wi_session_params>();
  const auto no_policy_field = sized<wi_policy_params>();
  auto with_policy = sized<wi_session_params>();
  with_policy.policy = &no_policy_field;
  for (const wi_session_params* params :
       {static_cast<const wi_session_params*>(nullptr), &empty,
        static_cast<const wi_session_params*>(&with_policy), &unusual.session}) {
    Session loaded = load(bytes, params);
    // Saved again it is the same to the byte: every parameter came back, not only those that show at once. A
    // sampling that is given starts from its seed.
    if (params != &unusual.session) assert_true(saved(loaded.get()) == bytes);
  }
  Session loaded = load(bytes), original = fork(session.get());
  assert_true(decode(loaded.get(), 50) == decode(original.get(), 50));
  // 10 tokens, a short read through the policy: the reads are counted as decode steps' are.
  const int32_t more[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const uint64_t before = stats_of(loaded.get()).tokens;
  assert_works(wi_session_prefill(loaded.get(), more, 10, nullptr, nullptr, error));
  assert_int_equal(stats_of(loaded.get()).tokens, before + 10);
}

// The way to another policy of what is loaded: its keys and values stay what they are.
void a_fork_as_of_another_policy_has_the_sessions_kv_type(void**) {
  const Unusual unusual;
  const Session loaded = load(saved(read_session(kSealed, &unusual.session).get()));
  auto policy = sized<wi_policy_params>();
  policy.name = "full";
  auto params = sized<wi_session_params>();
  params.policy = &policy;
  wi_session* fork = nullptr;
  assert_works(wi_session_fork_as(loaded.get(), &params, nullptr, &fork, error));
  const Session full(fork, wi_session_release);
  assert_int_equal(decode(full.get(), 3).size(), 3);
  params.kv_type = WI_KV_F32;
  assert_fails(WI_E_ARGUMENT, "kv_type is f32, the session has bf16",
               wi_session_fork_as(loaded.get(), &params, nullptr, &fork, error));
}

// Each given field alone, against what was saved: it applies, or it is a mismatch by name.
void what_is_given_applies_or_must_match(void**) {
  const Unusual unusual;
  Session session = read_session(kSealed, &unusual.session);
  const std::string bytes = saved(session.get());
  const auto with = [&](const std::function<void(wi_session_params&, wi_policy_params&)>& change,
                        wi_error* error, Session* out = nullptr) {
    auto params = sized<wi_session_params>();
    auto policy = sized<wi_policy_params>();
    params.policy = &policy;
    change(params, policy);
    Memory memory{bytes};
    const wi_reader reader = memory.reader();
    wi_session* loaded = nullptr;
    const wi_status status =
        wi_session_load_from(world->model.get(), &reader, &params, nullptr, &loaded, error);
    if (out)
      *out = Session{loaded, wi_session_release};
    else
      wi_session_release(loaded);
    return status;
  };
  assert_fails(WI_E_MISMATCH, "segment_tokens is 512 in the file, asked for is 1024",
               with([](auto&, auto& p) { p.segment_tokens = 1024; }, error));
  assert_fails(WI_E_MISMATCH, "decode_segment_tokens is 128",
               with([](auto&, auto& p) { p.decode_segment_tokens = 64; }, error));
  assert_fails(WI_E_MISMATCH, "tokens_per_centroid is 8",
               with([](auto&, auto& p) { p.tokens_per_centroid = 16; }, error));
  assert_fails(WI_E_MISMATCH, "kmeans_iterations is 5",
               with([](auto&, auto& p) { p.kmeans_iterations = 10; }, error));
  assert_fails(WI_E_MISMATCH, "policy \"wave\"", with([](auto&, auto& p) { p.name = "full"; }, error));
  assert_fails(WI_E_MISMATCH, "kv_type is bf16", with([](auto& s, auto&) { s.kv_type = WI_KV_F32; }, error));
  assert_fails(WI_E_BUDGET, "kv_budget_bytes",
               with([](auto& s, auto&) { s.kv_budget_bytes = 100000; }, error));
  assert_fails(WI_E_ARGUMENT, "budget is 2", with([](auto&, auto& p) { p.budget = 2; }, error));
  assert_fails(WI_E_ARGUMENT, "prefix_reuse is 3", with([](auto& s, auto&) { s.prefix_reuse = 3; }, error));
  assert_works(with([](auto&, auto& p) { p.segment_tokens = 512; }, error));
  assert_works(with([](auto& s, auto&) { s.kv_type = WI_KV_BF16; }, error));

  // What applies makes the file that is saved next another one, and "none" can be said.
  const std::function<void(wi_session_params&, wi_policy_params&)> free_choices[] = {
      [](auto&, auto& p) { p.budget = 0.5f; },
      [](auto&, auto& p) { p.estimation = -1; },
      [](auto&, auto& p) { p.local_window = -1; },
      [](auto&, auto& p) { p.target_mass = 0.9f; },
      [](auto&, auto& p) { p.repeats = 4; },
      [](auto& s, auto&) { s.kv_budget_bytes = UINT64_MAX; },
      [](auto& s, auto&) { s.sparse_read_tokens = -1; },
      [](auto& s, auto&) { s.prefix_reuse = WI_PREFIX_REUSE_ON; },
  };
  for (const auto& change : free_choices) {
    Session loaded{nullptr, wi_session_release};
    assert_works(with(change, error, &loaded));
    const std::string again = saved(loaded.get());
    assert_int_equal(again.size(), bytes.size());
    assert_true(again != bytes);
    assert_true(saved(load(again).get()) == again);
  }
  // A target mass can be taken away again, a budget brings bounds of its own.
  Session massive{nullptr, wi_session_release};
  assert_works(with([](auto&, auto& p) { p.target_mass = 0.9f; }, error, &massive));
  auto policy = sized<wi_policy_params>();
  policy.target_mass = -1;
  auto params = sized<wi_session_params>();
  params.policy = &policy;
  assert_true(saved(load(saved(massive.get()), &params).get()) == bytes);
  policy.target_mass = 0;
  policy.budget = 0.9f;  // above the saved ceiling
  load(bytes, &params);
}

void buffers_hold_what_files_hold(void**) {
  const Folder folder;
  const std::string path = folder.file("s");
  Session session = read_session(kUnsealed, nullptr);
  assert_works(wi_session_save(session.get(), path.c_str(), nullptr, error));
  const std::string bytes = saved(session.get());
  assert_true(slurp(path) == bytes);
  uint64_t size = 0;
  assert_works(wi_session_saved_bytes(session.get(), &size, error));
  assert_int_equal(size, bytes.size());
  wi_session* loaded = nullptr;
  assert_works(wi_session_load(world->model.get(), path.c_str(), nullptr, nullptr, &loaded, error));
  Session from_file{loaded, wi_session_release}, from_memory = load(bytes);
  const std::vector<int32_t> expected = decode(session.get(), 50);
  assert_true(decode(from_file.get(), 50) == expected && decode(from_memory.get(), 50) == expected);
}

void a_failing_callback_is_an_error_with_its_number(void**) {
  Session session = read_session(kUnsealed, nullptr);
  const std::string bytes = saved(session.get());
  for (int64_t calls : {0, 1, 5}) {
    Memory memory{bytes};
    memory.fail_after = calls;
    const wi_writer writer = memory.writer();
    const wi_reader reader = memory.reader();
    auto error = sized<wi_error>();
    assert_int_equal(wi_session_save_to(session.get(), &writer, nullptr, &error), WI_E_IO);
    assert_int_equal(error.native_code, 77);
    memory.fail_after = calls;
    wi_session* loaded = nullptr;
    assert_int_equal(wi_session_load_from(world->model.get(), &reader, nullptr, nullptr, &loaded, &error),
                     WI_E_IO);
    assert_int_equal(error.native_code, -5);
    assert_null(loaded);
  }
  // The session is in use while it is saved.
  Memory memory;
  memory.of = session.get();
  memory.also = [](void* of) -> int32_t {
    auto event = sized<wi_event>();
    return wi_session_decode(static_cast<wi_session*>(of), nullptr, &event, nullptr) == WI_E_BUSY ? 0 : 1;
  };
  wi_writer writer = memory.writer();
  assert_works(wi_session_save_to(session.get(), &writer, nullptr, error));
  wi_session* loaded = nullptr;
  wi_reader reader = memory.reader();
  uint64_t size = 0;
  writer.reserved = reader.reserved = 1;
  assert_fails(WI_E_ARGUMENT, "wi_writer.reserved",
               wi_session_save_to(session.get(), &writer, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "wi_reader.reserved",
               wi_session_load_from(world->model.get(), &reader, nullptr, nullptr, &loaded, error));
  writer = sized<wi_writer>(), reader = sized<wi_reader>();
  assert_fails(WI_E_ARGUMENT, "write is NULL", wi_session_save_to(session.get(), &writer, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "read is NULL",
               wi_session_load_from(world->model.get(), &reader, nullptr, nullptr, &loaded, error));
  assert_fails(WI_E_ARGUMENT, "writer is NULL", wi_session_save_to(session.get(), nullptr, nullptr, error));
  assert_fails(WI_E_ARGUMENT, "reader is NULL",
               wi_session_load_from(world->model.get(), nullptr, nullptr, nullptr, &loaded, error));
  assert_fails(WI_E_ARGUMENT, "bytes_out is NULL", wi_session_saved_bytes(session.get(), nullptr, error));
  assert_fails(WI_E_ARGUMENT, "session is NULL", wi_session_saved_bytes(nullptr, &size, error));
}

// As what the system has against it; a host's bytes have none.
void what_is_wrong_with_a_file_is_said_with_its_path(void**) {
  const Folder folder;
  const std::string path = folder.file("s");
  Session session = read_session(100, nullptr);
  assert_works(wi_session_save(session.get(), path.c_str(), nullptr, error));
  const std::string bytes = slurp(path);
  const auto refused = [&](const std::string& content, wi_status status, const std::string& message,
                           const wi_session_params* params = nullptr) {
    std::ofstream(path, std::ios::binary) << content;
    wi_session* loaded = nullptr;
    assert_fails(status, message.c_str(),
                 wi_session_load(world->model.get(), path.c_str(), params, nullptr, &loaded, error));
  };
  std::string damaged = bytes;
  damaged[40] ^= 1;
  refused("nonsense and more of it", WI_E_FORMAT, path + ": magic at byte 0: this is not a session file");
  refused(damaged, WI_E_FORMAT, path + ": checksum at byte ");
  refused(bytes.substr(0, bytes.size() - 1), WI_E_FORMAT, path + ": file_bytes at byte 16");
  // Whatever words the path has in common with what is said.
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path);
  wi_session* none = nullptr;
  for (const char* name : {"s", "checksum", "byte"}) {
    std::ofstream(name, std::ios::binary) << damaged;
    assert_fails(WI_E_FORMAT, (std::string(name) + ": checksum at byte ").c_str(),
                 wi_session_load(world->model.get(), name, nullptr, nullptr, &none, error));
  }
  std::filesystem::current_path(before);
  auto policy = sized<wi_policy_params>();
  policy.name = "full";
  auto params = sized<wi_session_params>();
  params.policy = &policy;
  refused(bytes, WI_E_MISMATCH, path + ": the file was saved with policy \"wave\"", &params);

  policy.name = "nonsense";  // which is not the file's fault
  auto of_caller = sized<wi_error>();
  wi_session* loaded = nullptr;
  assert_int_equal(wi_session_load(world->model.get(), path.c_str(), &params, nullptr, &loaded, &of_caller),
                   WI_E_UNSUPPORTED);
  assert_true(std::string(of_caller.message).find(path) == std::string::npos);
  wi_kv* kv = nullptr;
  assert_fails(WI_E_FORMAT, (path + ": kind at byte 12").c_str(),
               wi_kv_load(world->runtime.get(), path.c_str(), nullptr, nullptr, &kv, error));
}

// Opening such a thing, or reading it, would wait for somebody at its other end.
void a_fifo_in_place_of_a_file_is_refused_at_once(void**) {
  const Folder folder;
  const std::string fifo = folder.file("fifo");
  assert_int_equal(mkfifo(fifo.c_str(), 0600), 0);
  Session session = read_session(100, nullptr);
  wi_session* loaded = nullptr;
  assert_fails(WI_E_IO, "not a regular file",
               wi_session_load(world->model.get(), fifo.c_str(), nullptr, nullptr, &loaded, error));
  assert_fails(WI_E_IO, "not a regular file", wi_session_save(session.get(), fifo.c_str(), nullptr, error));
  wi_kv* kv = nullptr;
  assert_fails(WI_E_IO, "not a regular file",
               wi_kv_load(world->runtime.get(), fifo.c_str(), nullptr, nullptr, &kv, error));
}

void a_fired_token_ends_saving_and_loading(void**) {
  const Folder folder;
  const std::string path = folder.file("s");
  Session session = read_session(100, nullptr);
  assert_works(wi_session_save(session.get(), path.c_str(), nullptr, error));
  const std::string before = slurp(path);
  decode(session.get(), 2);
  Cancel cancel = create_cancel();
  wi_cancel_trigger(cancel.get());
  wi_session* loaded = nullptr;
  assert_fails(WI_E_CANCELLED, "", wi_session_save(session.get(), path.c_str(), cancel.get(), error));
  assert_fails(WI_E_CANCELLED, "",
               wi_session_load(world->model.get(), path.c_str(), nullptr, cancel.get(), &loaded, error));
  assert_true(slurp(path) == before);

  // Of callbacks too: none is called, as nothing is begun.
  Memory empty, full{before};
  const wi_writer writer = empty.writer();
  const wi_reader reader = full.reader();
  assert_fails(WI_E_CANCELLED, "", wi_session_save_to(session.get(), &writer, cancel.get(), error));
  assert_fails(WI_E_CANCELLED, "",
               wi_session_load_from(world->model.get(), &reader, nullptr, cancel.get(), &loaded, error));
  assert_true(empty.bytes.empty() && full.next == 0 && loaded == nullptr);
  wi_cancel_reset(cancel.get());
  assert_works(wi_session_save_to(session.get(), &writer, cancel.get(), error));
  assert_works(wi_session_load_from(world->model.get(), &reader, nullptr, cancel.get(), &loaded, error));
  wi_session_release(loaded);
}

// One that fires while a callback is at work ends the call behind it.
void a_token_that_fires_in_a_callback_ends_the_call(void**) {
  Session session = read_session(kSealed, nullptr);
  const std::string bytes = saved(session.get());
  const Cancel cancel = create_cancel();
  Memory part;
  part.of = cancel.get();
  part.also = [](void* of) -> int32_t {
    wi_cancel_trigger(static_cast<wi_cancel*>(of));
    return 0;
  };
  const wi_writer writer = part.writer();
  assert_fails(WI_E_CANCELLED, "", wi_session_save_to(session.get(), &writer, cancel.get(), error));
  assert_true(part.bytes.size() < bytes.size());
  assert_true(saved(session.get()) == bytes);

  struct Firing {
    Memory memory;
    wi_cancel* cancel;
  } firing{{bytes}, cancel.get()};
  wi_reader reader = firing.memory.reader();
  reader.user = &firing;
  reader.read = [](void* user, uint64_t offset, void* to, uint64_t count) {
    auto& self = *static_cast<Firing*>(user);
    wi_cancel_trigger(self.cancel);
    return Memory::read(&self.memory, offset, to, count);
  };
  wi_cancel_reset(cancel.get());
  wi_session* loaded = nullptr;
  assert_fails(WI_E_CANCELLED, "",
               wi_session_load_from(world->model.get(), &reader, nullptr, cancel.get(), &loaded, error));
  assert_true(loaded == nullptr && firing.memory.next < bytes.size());
}

// ---- KV stores ----

std::vector<float> attended(wi_kv* kv) {
  std::vector<float> queries(4 * 16), out(4 * 16 + 4);
  for (size_t i = 0; i < queries.size(); ++i) queries[i] = static_cast<float>(i % 7) - 3;
  assert_works(wi_kv_attend(kv, 0, 1, queries.data(), nullptr, out.data(), out.data() + 64, error));
  return out;
}

void a_store_comes_back_too(void**) {
  const Folder folder;
  const std::string path = folder.file("kv");
  auto policy = sized<wi_policy_params>();
  policy.segment_tokens = policy.decode_segment_tokens = 64;
  auto params = sized<wi_kv_params>();
  params.layers = 1;
  params.query_heads = 4;
  params.kv_heads = 2;
  params.head_dim = 16;
  params.kv_type = WI_KV_F32;
  params.policy = &policy;
  params.kv_budget_bytes = 8 << 20;
  wi_kv* made = nullptr;
  assert_works(wi_kv_create(world->runtime.get(), &params, &made, error));
  Kv kv{made, wi_kv_release};
  std::vector<float> rows(1000 * 32);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>((i * i + i / 32) % 17) / 8 - 1;
  assert_works(wi_kv_append(kv.get(), 0, 1000, rows.data(), rows.data(), error));
  assert_works(wi_kv_seal(kv.get(), error));

  Memory memory;
  const wi_writer writer = memory.writer();
  assert_works(wi_kv_save(kv.get(), path.c_str(), nullptr, error));
  assert_works(wi_kv_save_to(kv.get(), &writer, nullptr, error));
  uint64_t size = 0;
  assert_works(wi_kv_saved_bytes(kv.get(), &size, error));
  assert_true(size == memory.bytes.size() && slurp(path) == memory.bytes);

  const std::vector<float> expected = attended(kv.get());
  for (const wi_kv_params* given :
       {static_cast<const wi_kv_params*>(nullptr), static_cast<const wi_kv_params*>(&params)}) {
    wi_kv *file = nullptr, *buffer = nullptr;
    const wi_reader reader = memory.reader();
    assert_works(wi_kv_load(world->runtime.get(), path.c_str(), given, nullptr, &file, error));
    assert_works(wi_kv_load_from(world->runtime.get(), &reader, given, nullptr, &buffer, error));
    assert_true(attended(file) == expected && attended(buffer) == expected);
    wi_kv_release(file), wi_kv_release(buffer);
  }
  // A fired token ends each of the four before it does anything.
  const Cancel cancel = create_cancel();
  wi_cancel_trigger(cancel.get());
  wi_kv* none = nullptr;
  Memory empty;
  const wi_writer unused = empty.writer();
  const wi_reader reader = memory.reader();
  const std::string unmade = folder.file("unmade");
  assert_fails(WI_E_CANCELLED, "", wi_kv_save(kv.get(), path.c_str(), cancel.get(), error));
  assert_fails(WI_E_CANCELLED, "", wi_kv_save(kv.get(), unmade.c_str(), cancel.get(), error));
  assert_fails(WI_E_CANCELLED, "", wi_kv_save_to(kv.get(), &unused, cancel.get(), error));
  assert_fails(WI_E_CANCELLED, "",
               wi_kv_load(world->runtime.get(), path.c_str(), nullptr, cancel.get(), &none, error));
  assert_fails(WI_E_CANCELLED, "",
               wi_kv_load_from(world->runtime.get(), &reader, nullptr, cancel.get(), &none, error));
  assert_true(empty.bytes.empty() && memory.next == 0 && none == nullptr);
  assert_true(slurp(path) == memory.bytes && access(unmade.c_str(), F_OK) != 0);
  assert_true(attended(kv.get()) == expected);

  params.head_dim = 32;
  wi_kv* other = nullptr;
  assert_fails(WI_E_MISMATCH, "head_dim is 16 in the file, asked for is 32",
               wi_kv_load(world->runtime.get(), path.c_str(), &params, nullptr, &other, error));
  wi_session* session = nullptr;
  assert_fails(WI_E_FORMAT, "this is a KV store",
               wi_session_load(world->model.get(), path.c_str(), nullptr, nullptr, &session, error));
}

}  // namespace

int main() {
  World own;
  world = &own;
  const CMUnitTest tests[] = {
      cmocka_unit_test(what_is_not_given_is_as_saved),
      cmocka_unit_test(a_fork_as_of_another_policy_has_the_sessions_kv_type),
      cmocka_unit_test(what_is_given_applies_or_must_match),
      cmocka_unit_test(buffers_hold_what_files_hold),
      cmocka_unit_test(a_failing_callback_is_an_error_with_its_number),
      cmocka_unit_test(what_is_wrong_with_a_file_is_said_with_its_path),
      cmocka_unit_test(a_fifo_in_place_of_a_file_is_refused_at_once),
      cmocka_unit_test(a_fired_token_ends_saving_and_loading),
      cmocka_unit_test(a_token_that_fires_in_a_callback_ends_the_call),
      cmocka_unit_test(a_store_comes_back_too),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
