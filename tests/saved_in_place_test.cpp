// A saved session that is loaded in place, so that its file is the slow tier, says what the session said that was
// saved: the same bits of every logit. What happens to the file meanwhile never changes a token.
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <thread>
#include <unistd.h>
#include <vector>

#include "src/kv_store.h"
#include "src/session.h"
#include "src/store/byte_stream.h"
#include "src/store/input_file.h"
#include "tests/support/fewer.h"
#include "tests/support/folder.h"
#include "tests/support/kernel_test.h"
#include "tests/support/random_model.h"
#include "tests/support/runtime.h"
#include "tests/support/session_bytes.h"

using namespace wi;
using test::SessionBytes;
using test::slurp;
using test::spill;

namespace {

constexpr int kPrompt = 2000;

test::ModelShape shape(std::vector<int32_t> windows = {}) {
  test::ModelShape shape;
  shape.name = "in place";
  shape.hidden = shape.ffn = test::emulated_or(64, 128);
  shape.head_dim = 32;
  shape.windows = std::move(windows);
  return shape;
}

std::shared_ptr<Runtime> make_runtime(const std::string& spill_folder, uint64_t spill_bytes = 0) {
  RuntimeParams params;
  params.threads = 2;
  params.kv_budget_bytes = uint64_t{256} << 20;
  params.spill_folder = spill_folder;
  params.spill_bytes = spill_bytes;
  params.slab_bytes = size_t{64} << 10;
  return test::create_runtime(params);
}

// A runtime with everything in memory, and one with a slow tier, which loads in place.
struct World {
  test::Folder folder;
  std::shared_ptr<Runtime> fast = make_runtime(""), slow = make_runtime(folder.path);
  std::shared_ptr<const Model> model = test::random_model(shape(), DType::f32, test::seed());
  std::string path = folder.file("saved");

  std::shared_ptr<Session> session(const char* policy, int tokens = kPrompt) const {
    SessionParams params;
    params.policy = find_policy(fast->backend, policy);
    params.policy_params.segment_tokens = 512;
    params.policy_params.decode_segment_tokens = 128;
    params.policy_params.budget = 0.1f;
    params.prefix_reuse = false;
    auto session = Session::create(fast, model, params);
    session->prefill(ids(tokens), {}, nullptr);
    return session;
  }
  std::shared_ptr<Session> load(const std::shared_ptr<Runtime>& runtime, float share = 0) const {
    const auto choose = [&](SessionParams saved) {
      saved.kv_fast_share = share;
      return saved;
    };
    return Session::load(runtime, model, path, choose, nullptr);
  }
  static std::vector<int32_t> ids(int count, uint64_t salt = 0) {
    std::mt19937_64 random(test::seed() + salt);
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 100);
    return ids;
  }
};

void add_logits(Session& session, std::vector<float>& all) {
  const std::span<const float> logits = session.logits(nullptr);
  all.insert(all.end(), logits.begin(), logits.end());
}
std::vector<float> step(Session& session, int32_t token) {
  std::vector<float> logits;
  session.accept(token, nullptr);
  add_logits(session, logits);
  return logits;
}

uint64_t segment_bytes(const Session& session) {
  uint64_t bytes = 0;
  for (const auto& segment : session.sequence().segments()) bytes += segment->kv_bytes();
  return bytes;
}

// Everything that a host does with a session, and all logits that come of it.
std::vector<float> life(Session& session) {
  std::vector<float> all;
  add_logits(session, all);
  for (int i = 0; i < 40; ++i) {
    session.accept(i * 7 % 100, nullptr);
    add_logits(session, all);
  }
  const auto fork = session.fork();
  Session* both[] = {&session, fork.get()};
  fork->accept(3, nullptr);
  session.accept(5, nullptr);
  for (int i = 0; i < 10; ++i) {
    Event events[2];
    Session::decode_batch(both, nullptr, events);
    add_logits(session, all);
    add_logits(*fork, all);
  }
  fork->truncate(kPrompt / 3);
  add_logits(*fork, all);
  PrefillParams chunks;
  chunks.chunk_tokens = 256;
  fork->prefill(World::ids(700, 1), chunks, nullptr);
  session.prefill(World::ids(300, 2), chunks, nullptr);
  for (int i = 0; i < 20; ++i) {
    for (Session* one : both) {
      one->accept(i, nullptr);
      add_logits(*one, all);
    }
  }
  return all;
}

void a_session_in_place_says_what_the_saved_one_says(void**) {
  for (const char* policy : {"wave", "full", "blocks", "streaming"}) {
    World world;
    const auto session = world.session(policy);
    session->save(world.path, nullptr);
    const std::vector<float> wanted = life(*session);
    for (const float share : {0.0f, 0.02f, 0.3f}) {
      const auto loaded = world.load(world.slow, share);
      assert_int_equal(loaded->stats().slow_bytes, segment_bytes(*loaded));
      assert_true(loaded->stats().slow_bytes > 0);
      assert_true(loaded->sequence().bytes() < loaded->stats().slow_bytes);
      const std::vector<float> got = life(*loaded);
      assert_int_equal(got.size(), wanted.size());
      assert_memory_equal(got.data(), wanted.data(), got.size() * sizeof(float));
    }
    assert_true(world.slow->buffer->stats().file.requests > 0);
    assert_true(world.slow->buffer->stats().admissions > 0);
  }
}

// What the checksums are of, and everything else, is the same wherever a segment lies when it is saved.
void a_session_in_place_saves_the_same_bytes(void**) {
  for (const char* policy : {"wave", "full"}) {
    World world;
    const auto session = world.session(policy);
    session->save(world.path, nullptr);
    const std::string bytes = slurp(world.path), other = world.folder.file("other");
    const auto loaded = world.load(world.slow);
    loaded->save(other, nullptr);
    assert_true(slurp(other) == bytes);
    assert_int_equal(loaded->saved_bytes(), bytes.size());
    loaded->save(world.path, nullptr);  // what it reads is replaced
    assert_true(slurp(world.path) == bytes);
    const auto again = world.load(world.slow), in_memory = world.load(world.fast);
    for (int i = 0; i < 20; ++i) {
      const std::vector<float> wanted = step(*in_memory, i);
      assert_true(step(*again, i) == wanted && step(*loaded, i) == wanted);
    }
  }
}

// Of a session in the spill file too.
void a_spilled_session_saves_what_one_in_memory_saves(void**) {
  World world;
  const auto session = world.session("wave");
  session->save(world.path, nullptr);
  const std::string bytes = slurp(world.path);
  struct Memory final : ByteSource {
    const std::string& of;
    explicit Memory(const std::string& bytes) : of(bytes) {}
    uint64_t bytes() const override { return of.size(); }
    void read(uint64_t offset, void* to, size_t count) override {
      std::memcpy(to, of.data() + offset, count);
    }
  } memory(bytes);
  const auto as_saved = [](const SessionParams& saved) { return saved; };
  const auto loaded = Session::load(world.slow, world.model, memory, as_saved, nullptr);
  assert_int_equal(loaded->stats().slow_bytes, 0);  // not by path: in memory
  for (const auto& segment : loaded->sequence().segments()) segment->demote(*world.slow->buffer);
  assert_int_equal(world.slow->buffer->stats().slow_bytes > 0, 1);
  loaded->save(world.path, nullptr);
  assert_true(slurp(world.path) == bytes);
}

// ---- what happens to the file ----

wi_status status_of(const std::function<void()>& call, const std::string& words) {
  try {
    call();
  } catch (const Error& error) {
    if (!std::strstr(error.what(), words.c_str())) print_message("  %s\n", error.what());
    assert_non_null(std::strstr(error.what(), words.c_str()));
    return error.code();
  }
  return WI_OK;
}

// Where the pages of the segments lie in the file: offset and bytes.
std::vector<std::pair<size_t, size_t>> pages_of(const std::string& bytes) {
  std::vector<std::pair<size_t, size_t>> found;
  for (size_t at = bytes.find("PAGE"); at != std::string::npos; at = bytes.find("PAGE", at + 1)) {
    if (SessionBytes::number<uint32_t>(bytes, at + 4) != 2) continue;
    found.emplace_back(SessionBytes::round_up(at + 24), SessionBytes::number<uint64_t>(bytes, at + 8));
  }
  return found;
}

void flip(const std::string& path, size_t at) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  char byte = 0;
  assert_true(pread(file, &byte, 1, static_cast<off_t>(at)) == 1);
  byte = static_cast<char>(byte ^ (1 << (at % 8)));
  assert_true(pwrite(file, &byte, 1, static_cast<off_t>(at)) == 1);
  close(file);
}

// The full policy reads all of it at every step; every way of reading meets it.
void a_flipped_bit_in_any_page_is_refused_when_it_is_read(void**) {
  World world;
  const auto session = world.session("full");
  session->save(world.path, nullptr);
  const auto pages = pages_of(slurp(world.path));
  assert_int_equal(pages.size(), session->stats().segments);
  std::mt19937_64 random(test::seed());
  for (int i = 0; i < 60; ++i) {
    const auto& [offset, bytes] = pages[random() % pages.size()];
    const size_t at = offset + random() % bytes;
    const auto loaded = world.load(world.slow, 0.01f);
    const auto fork = loaded->fork(), untouched = world.load(world.fast);
    flip(world.path, at);
    const std::function<void()> ways[] = {
        [&] { step(*loaded, 1); },
        [&] { fork->prefill(World::ids(300), {}, nullptr); },
        [&] { fork->save(world.folder.file("other"), nullptr); },
    };
    for (const auto& way : ways) assert_int_equal(status_of(way, world.path), WI_E_FORMAT);
    assert_int_equal(status_of([&] { world.load(world.fast); }, "damaged"), WI_E_FORMAT);
    flip(world.path, at);
    assert_int_equal(fork->stats().tokens, kPrompt);
    const std::vector<float> wanted = step(*untouched, 1);
    std::vector<float> pending;
    add_logits(*loaded, pending);  // the token was accepted; its keys and values come now
    assert_true(pending == wanted && step(*fork, 1) == wanted);
  }
}

// wave reads some of it: what it does not read changes nothing, what it reads is refused.
void damage_never_changes_a_token(void**) {
  World world;
  const auto expected = world.session("wave");
  expected->save(world.path, nullptr);
  const auto pages = pages_of(slurp(world.path));
  const auto loaded = world.load(world.slow, 0.05f);
  std::mt19937_64 random(test::seed());
  int refused = 0, passed = 0;
  for (int i = 0; i < 150; ++i) {
    std::vector<size_t> places;
    for (int n = 0; n < 20; ++n) {
      const auto& [offset, bytes] = pages[random() % pages.size()];
      places.push_back(offset + random() % bytes);
      flip(world.path, places.back());
    }
    loaded->accept(i % 100, nullptr);
    std::vector<float> got;
    const wi_status status = status_of([&] { add_logits(*loaded, got); }, world.path);
    for (size_t at : places) flip(world.path, at);
    if (status != WI_OK) {
      assert_int_equal(status, WI_E_FORMAT);
      add_logits(*loaded, got);
    }
    (status == WI_OK ? passed : refused) += 1;
    assert_true(got == step(*expected, i % 100));
  }
  print_message("  %d steps refused, %d not\n", refused, passed);
  assert_true(refused > 0);
}

void a_file_that_is_cut_is_a_status_and_costs_no_token(void**) {
  World world;
  const auto expected = world.session("full");
  expected->save(world.path, nullptr);
  const std::string bytes = slurp(world.path);
  const auto pages = pages_of(bytes);
  for (const size_t end : {size_t{0}, size_t{5000}, pages.back().first + pages.back().second / 2 + 1}) {
    const auto loaded = world.load(world.slow, 0.01f), fork = expected->fork();
    assert_int_equal(truncate(world.path.c_str(), static_cast<off_t>(end)), 0);
    loaded->accept(1, nullptr);
    assert_int_equal(status_of([&] { loaded->logits(nullptr); }, world.path), WI_E_IO);
    assert_int_equal(status_of([&] { loaded->prefill(World::ids(300), {}, nullptr); }, world.path), WI_E_IO);
    // What is behind a cut is not read for it.
    const bool needed = end < pages.back().first;
    if (needed) assert_int_equal(status_of([&] { loaded->truncate(600); }, world.path), WI_E_IO);
    if (!needed) loaded->fork()->truncate(600);
    assert_int_equal(loaded->tokens().size(), kPrompt + 1);
    const int file = open(world.path.c_str(), O_WRONLY | O_CLOEXEC);  // the same file
    assert_int_equal(pwrite(file, bytes.data(), bytes.size(), 0), bytes.size());
    close(file);
    std::vector<float> got;
    add_logits(*loaded, got);
    assert_true(got == step(*fork, 1));
  }
}

size_t descriptors_of(const std::string& path) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    count += std::filesystem::read_symlink(entry.path(), ignored).string().starts_with(path);
  }
  return count;
}

// The session goes on with the file that it was loaded from, and nobody keeps that longer than it is needed.
void a_file_that_is_replaced_or_removed_stays_until_it_is_not_needed(void**) {
  World world;
  const auto first = world.session("wave"), second = world.session("full", 1500);
  first->save(world.path, nullptr);
  auto loaded = world.load(world.slow, 0.05f);
  assert_int_equal(descriptors_of(world.path), 1);
  second->save(world.path, nullptr);
  auto other = world.load(world.slow, 0.05f);
  assert_int_equal(descriptors_of(world.path), 2);
  std::filesystem::remove(world.path);
  auto fork = loaded->fork();
  for (int i = 0; i < 30; ++i) {
    assert_true(step(*loaded, i) == step(*first, i));
    assert_true(step(*other, i) == step(*second, i));
  }
  loaded.reset();
  other.reset();
  assert_int_equal(descriptors_of(world.path), 1);
  step(*fork, 1);
  fork->truncate(4);  // keeps no segment
  assert_int_equal(descriptors_of(world.path), 0);
  step(*fork, 1);
}

// However many are loaded, and whichever of them goes first: another file under the name is another one.
void sessions_of_a_file_share_a_descriptor(void**) {
  World world;
  world.session("wave")->save(world.path, nullptr);
  std::vector<std::shared_ptr<Session>> loaded;
  for (int i = 0; i < 5; ++i) loaded.push_back(world.load(world.slow, 0.05f));
  assert_int_equal(descriptors_of(world.path), 1);
  loaded.erase(loaded.begin());
  loaded.push_back(world.load(world.slow, 0.05f));
  assert_int_equal(descriptors_of(world.path), 1);
  world.session("wave")->save(world.path, nullptr);  // replaces it
  loaded.push_back(world.load(world.slow, 0.05f));
  assert_int_equal(descriptors_of(world.path), 2);
  const std::vector<float> expected = step(*loaded[0], 1);
  for (size_t i = 1; i < loaded.size(); ++i) assert_true(step(*loaded[i], 1) == expected);
  loaded.clear();
  assert_int_equal(descriptors_of(world.path), 0);
}

// Both read one file, and each has frames of its own.
void runtimes_share_a_file(void**) {
  World world;
  const auto expected = world.session("wave");
  expected->save(world.path, nullptr);
  std::vector<float> wanted;
  for (int i = 0; i < 60; ++i) {
    const std::vector<float> logits = step(*expected, i);
    wanted.insert(wanted.end(), logits.begin(), logits.end());
  }
  std::vector<std::thread> threads;
  std::vector<std::vector<float>> got(4);
  const std::shared_ptr<Runtime> runtimes[] = {world.slow, make_runtime(world.folder.path)};
  for (size_t n = 0; n < got.size(); ++n)
    threads.emplace_back([&, n] {
      const auto loaded = world.load(runtimes[n % 2], 0.1f);
      for (int i = 0; i < 60; ++i) {
        const std::vector<float> logits = step(*loaded, i);
        got[n].insert(got[n].end(), logits.begin(), logits.end());
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& logits : got) assert_true(logits == wanted);
}

// ---- what it counts as ----

// No byte of the spill file is taken; a session that grows spills only what is new.
void an_opened_file_is_not_of_the_spill_files_budget(void**) {
  World world;
  const auto session = world.session("wave");
  session->save(world.path, nullptr);
  const auto runtime = make_runtime(world.folder.path, 4096);
  const auto loaded = world.load(runtime, 0.1f);
  assert_int_equal(runtime->buffer->stats().slow_bytes, 0);
  const wi_session_stats stats = loaded->stats();
  assert_int_equal(stats.slow_bytes, segment_bytes(*session));
  uint64_t checksums = 0;
  for (const auto& segment : loaded->sequence().segments()) checksums += segment->slow()->checksum_bytes();
  assert_true(checksums > 0);
  assert_int_equal(stats.index_bytes, session->stats().index_bytes + checksums);
  assert_true(step(*loaded, 1) == step(*session, 1));
  PrefillParams chunks;
  chunks.chunk_tokens = 256;
  assert_int_equal(status_of([&] { loaded->prefill(World::ids(1500), chunks, nullptr); }, "spill file"),
                   WI_E_BUDGET);
}

void budgets_hold_while_loading_in_place(void**) {
  World world;
  const auto session = world.session("wave");
  session->save(world.path, nullptr);
  const uint64_t needed = world.load(world.slow)->sequence().bytes();
  const auto with = [&](uint64_t budget) {
    return Session::load(
        world.slow, world.model, world.path,
        [&](SessionParams saved) {
          saved.kv_budget_bytes = budget;
          return saved;
        },
        nullptr);
  };
  assert_true(with(needed)->stats().tokens == kPrompt);
  const uint64_t used = world.slow->pool->used();
  for (uint64_t budget : {needed - 1, needed / 2, needed / 20})
    assert_int_equal(status_of([&] { with(budget); }, "kv_budget_bytes"), WI_E_BUDGET);
  assert_int_equal(world.slow->pool->used(), used);
}

void models_with_windows_are_read_into_memory(void**) {
  World world;
  world.model = test::random_model(shape({100, 0}), DType::f32, test::seed());
  const auto session = world.session("wave");
  session->save(world.path, nullptr);
  const auto loaded = world.load(world.slow);
  assert_int_equal(loaded->stats().slow_bytes, 0);
  for (int i = 0; i < 10; ++i) assert_true(step(*loaded, i) == step(*session, i));
}

// ---- KV stores ----

std::vector<float> numbers(size_t count, uint64_t salt) {
  std::mt19937_64 random(test::seed() + salt);
  std::vector<float> numbers(count);
  for (float& one : numbers) one = static_cast<float>(random() % 1000) * 0.002f - 1;
  return numbers;
}

void a_store_in_place_attends_as_the_saved_one(void**) {
  constexpr size_t kHeads = 2, kDim = 32;
  const World world;
  const auto fill = [](KvStore& store, int64_t tokens, uint64_t salt) {
    const size_t count = static_cast<size_t>(tokens) * kHeads * kDim;
    for (int32_t layer = 0; layer < 2; ++layer)
      store.append(layer, tokens, numbers(count, salt + static_cast<uint64_t>(layer)).data(),
                   numbers(count, salt + 10).data());
    store.seal();
  };
  const auto attended = [](KvStore& store) {
    std::vector<float> all, out(3 * 2 * kHeads * kDim);
    for (uint64_t i = 0; i < 30; ++i) {
      store.attend(static_cast<int32_t>(i % 2), 3, numbers(out.size(), i).data(), nullptr, out.data(),
                   nullptr);
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  };
  for (const char* policy : {"wave", "full", "blocks"}) {
    KvStoreParams params;
    params.shape = {2, kHeads, kDim, DType::f16};
    params.query_heads = 2 * kHeads;
    params.policy = find_policy(world.fast->backend, policy);
    params.policy_params.segment_tokens = 512;
    params.policy_params.decode_segment_tokens = 128;
    auto store = std::make_shared<KvStore>(world.fast, params);
    fill(*store, 2000, 1);
    store->save(world.path, nullptr);
    const auto same = [](const KvStoreParams& saved) { return saved; };
    const auto loaded = KvStore::load(world.slow, world.path, same, nullptr);
    assert_true(loaded->stats().slow_bytes > 0);
    assert_true(attended(*loaded) == attended(*store));
    assert_true(attended(*loaded->fork()) == attended(*store));
    for (KvStore* one : {store.get(), loaded.get()}) {
      one->truncate(1100);
      fill(*one, 700, 20);
    }
    assert_true(attended(*loaded) == attended(*store));
    const std::string other = world.folder.file("other");
    store->save(world.path + "2", nullptr);
    loaded->save(other, nullptr);
    assert_true(slurp(other) == slurp(world.path + "2"));
  }
  assert_true(world.slow->buffer->stats().admissions > 0);
}

// ---- other files ----

// The new index is built from the keys in the file.
void an_index_of_another_version_is_built_anew_from_the_file(void**) {
  World world;
  const auto session = world.session("wave");
  session->save(world.path, nullptr);
  SessionBytes parts(slurp(world.path));
  SessionBytes::put(parts.section("POLI").payload, 8, uint32_t{1});
  for (int32_t i = 0; i < session->stats().segments; ++i)
    parts.section("INDX", static_cast<size_t>(i)).payload = "bytes that mean nothing here";
  spill(world.path, parts.bytes());
  const auto loaded = world.load(world.slow);
  assert_int_equal(loaded->stats().slow_bytes, 0);
  for (int i = 0; i < 10; ++i) assert_true(step(*loaded, i) == step(*session, i));
}

// Pages are not looked at: what the index says of them is.
void partitions_that_are_not_the_indexs_are_refused(void**) {
  World world;
  world.session("wave")->save(world.path, nullptr);
  SessionBytes parts(slurp(world.path));
  std::string& segment = parts.section("SEGM").payload;
  const size_t at = 16 + 4 * size_t{2} * 2;  // behind each plane's count
  const auto end = SessionBytes::number<int32_t>(segment, at),
             next = SessionBytes::number<int32_t>(segment, at + 4);
  SessionBytes::put(segment, at, next - end > 1 ? end + 1 : end - 1);
  spill(world.path, parts.bytes());
  assert_int_equal(status_of([&] { world.load(world.slow); }, "are not those of its index"), WI_E_FORMAT);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_session_in_place_says_what_the_saved_one_says),
      cmocka_unit_test(a_session_in_place_saves_the_same_bytes),
      cmocka_unit_test(a_spilled_session_saves_what_one_in_memory_saves),
      cmocka_unit_test(a_flipped_bit_in_any_page_is_refused_when_it_is_read),
      cmocka_unit_test(damage_never_changes_a_token),
      cmocka_unit_test(a_file_that_is_cut_is_a_status_and_costs_no_token),
      cmocka_unit_test(a_file_that_is_replaced_or_removed_stays_until_it_is_not_needed),
      cmocka_unit_test(sessions_of_a_file_share_a_descriptor),
      cmocka_unit_test(runtimes_share_a_file),
      cmocka_unit_test(an_opened_file_is_not_of_the_spill_files_budget),
      cmocka_unit_test(budgets_hold_while_loading_in_place),
      cmocka_unit_test(models_with_windows_are_read_into_memory),
      cmocka_unit_test(a_store_in_place_attends_as_the_saved_one),
      cmocka_unit_test(an_index_of_another_version_is_built_anew_from_the_file),
      cmocka_unit_test(partitions_that_are_not_the_indexs_are_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
