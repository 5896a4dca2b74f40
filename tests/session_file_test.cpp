// Session files: what is saved comes back and computes on identically; what is damaged, cut, or somebody
// else's is refused with a reason, and an existing file survives every failed save.
#include <csignal>
#include <cstddef>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "src/session.h"
#include "tests/support/random_model.h"
#include "tests/support/runtime.h"
#include "tests/test.h"

using namespace wi;
using test::runtime;

namespace {

std::shared_ptr<const Model> model(uint64_t seed = 7) {
  return test::random_model(test::shape_named("tiny"), DType::f32, seed);
}

SessionParams wave() {
  SessionParams params;
  params.policy = find_policy(runtime()->backend, "wave");
  params.policy_params.segment_tokens = 256;
  params.policy_params.decode_segment_tokens = 64;
  params.prefix_reuse = false;
  return params;
}

std::vector<int32_t> prompt(size_t count) {
  std::vector<int32_t> ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>((i * i + 3 * i) % 100);
  return ids;
}

struct Folder {
  std::string path;
  Folder() {
    char name[] = "/tmp/wi-session-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const char* name) const { return path + "/" + name; }
  size_t entries() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path)) ++count;
    return count;
  }
};

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}
void spill(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::vector<int32_t> decode_tokens(Session& session, int count) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(session.decode(nullptr).token);
  return ids;
}

std::shared_ptr<Session> filled(size_t tokens, const SessionParams& params = wave()) {
  auto session = Session::create(runtime(), model(), params);
  session->prefill(prompt(tokens), {}, nullptr);
  return session;
}

void loaded_session_goes_on_as_the_saved_one(void**) {
  Folder folder;
  for (size_t tokens : {size_t{0}, size_t{1}, size_t{4}, size_t{5}, size_t{68}, size_t{300}, size_t{900}}) {
    for (int decoded : {0, 3}) {
      if (tokens == 0 && decoded) continue;
      SessionParams params = wave();
      params.sampling.temperature = 0.8f;
      params.sampling.seed = 11;
      auto session = filled(tokens, params);
      decode_tokens(*session, decoded);
      session->save(folder.file("s"), nullptr);
      auto loaded = Session::load(runtime(), model(), folder.file("s"), wave());
      assert_true(loaded->tokens() == session->tokens());
      assert_int_equal(loaded->stats().segments, session->stats().segments);
      if (tokens) assert_true(decode_tokens(*loaded, 40) == decode_tokens(*session, 40));
    }
  }
  assert_int_equal(folder.entries(), 1);  // no temporary file is left behind
}

void other_policies_and_kv_types_come_back_too(void**) {
  Folder folder;
  for (const char* policy : {"full", "streaming", "blocks"})
    for (DType kv : {DType::f32, DType::bf16}) {
      SessionParams params = wave();
      params.policy = find_policy(runtime()->backend, policy);
      params.kv = kv;
      auto session = filled(700, params);
      session->save(folder.file("s"), nullptr);
      auto loaded = Session::load(runtime(), model(), folder.file("s"), params);
      assert_true(decode_tokens(*loaded, 10) == decode_tokens(*session, 10));
    }
}

void loading_keeps_to_the_budget(void**) {
  Folder folder;
  filled(900)->save(folder.file("s"), nullptr);
  SessionParams params = wave();
  params.kv_budget_bytes = 20000;
  assert_error(WI_E_BUDGET, "kv_budget_bytes", Session::load(runtime(), model(), folder.file("s"), params));
}

void another_models_or_policys_file_is_refused(void**) {
  Folder folder;
  const std::string path = folder.file("s");
  filled(700)->save(path, nullptr);
  assert_error(WI_E_MISMATCH, "model_fingerprint", Session::load(runtime(), model(8), path, wave()));
  SessionParams params = wave();
  params.policy = find_policy(runtime()->backend, "full");
  assert_error(WI_E_MISMATCH, "policy \"wave\"", Session::load(runtime(), model(), path, params));
  params = wave();
  params.kv = DType::f32;
  assert_error(WI_E_MISMATCH, "kv_type is 1", Session::load(runtime(), model(), path, params));
  params = wave();
  params.policy_params.tokens_per_centroid = 8;
  assert_error(WI_E_MISMATCH, "tokens_per_centroid is 16 in the file, this session has 8",
               Session::load(runtime(), model(), path, params));
  assert_error(WI_E_IO, "No such file", Session::load(runtime(), model(), folder.file("absent"), wave()));
  assert_error(WI_E_IO, "is not a file", Session::load(runtime(), model(), folder.path, wave()));
}

// One damage a row; offsets are those of the Header in session_file.cpp, in order of its fields.
struct Damage {
  const char* name;
  std::function<void(std::string&)> apply;
  wi_status status;
  const char* words;
};

template <class T>
std::function<void(std::string&)> set(size_t offset, T value) {
  return [=](std::string& bytes) { std::memcpy(bytes.data() + offset, &value, sizeof value); };
}
std::function<void(std::string&)> cut(size_t bytes_left) {
  return [=](std::string& bytes) { bytes.resize(bytes_left); };
}
// Cuts, and mends file_bytes so that the cut is met further inside.
std::function<void(std::string&)> cut_quietly(size_t bytes_left) {
  return [=](std::string& bytes) {
    bytes.resize(bytes_left);
    const uint64_t size = bytes_left;
    std::memcpy(bytes.data() + 16, &size, sizeof size);
  };
}

void damaged_files_are_refused_with_a_reason(void**) {
  Folder folder;
  const std::string path = folder.file("s");
  filled(700)->save(path, nullptr);
  const std::string good = slurp(path);
  constexpr size_t kBody = 144;  // after the header
  const size_t tokens_at = kBody + 4, logits_at = tokens_at + 700 * 4, sampler_at = logits_at + 400;
  const size_t sink_at = sampler_at + 40, segment_at = sink_at + 4 * 2 * 2 * 2 * 16 * 2;
  const Damage table[] = {
      {"empty file", cut(0), WI_E_FORMAT, "header at byte 0 needs 144 bytes, the file ends at 0"},
      {"cut in the header", cut(100), WI_E_FORMAT, "header at byte 0"},
      {"wrong magic", set<char>(0, 'X'), WI_E_FORMAT, "this is not a session file"},
      {"newline conversion", [](std::string& b) { b.erase(6, 1); }, WI_E_FORMAT,
       "this is not a session file"},
      {"version 0", set<uint32_t>(8, 0), WI_E_UNSUPPORTED, "version at byte 8 is 0"},
      {"a later version", set<uint32_t>(8, 2), WI_E_UNSUPPORTED,
       "version at byte 8 is 2, this library reads 1"},
      {"header length", set<uint32_t>(12, 8), WI_E_FORMAT, "header_bytes"},
      {"cut by a byte", [](std::string& b) { b.pop_back(); }, WI_E_FORMAT, "it was cut or grew"},
      {"a byte more", [](std::string& b) { b += 'x'; }, WI_E_FORMAT, "it was cut or grew"},
      {"layers", set<int32_t>(32, 3), WI_E_MISMATCH, "layers is 3 in the file"},
      {"kv_heads", set<int32_t>(36, -1), WI_E_MISMATCH, "kv_heads is -1 in the file"},
      {"head_dim", set<int32_t>(40, 1 << 30), WI_E_MISMATCH, "head_dim"},
      {"segment_tokens", set<int32_t>(48, 512), WI_E_MISMATCH, "segment_tokens is 512"},
      {"policy length", set<int32_t>(68, 65), WI_E_FORMAT, "policy_bytes"},
      {"negative policy length", set<int32_t>(68, -1), WI_E_FORMAT, "policy_bytes"},
      {"negative tokens", set<int64_t>(72, -1), WI_E_FORMAT, "tokens"},
      {"too many tokens", set<int64_t>(72, int64_t{1} << 40), WI_E_FORMAT, "tokens"},
      {"computed beyond tokens", set<int64_t>(80, 701), WI_E_FORMAT, "computed_tokens"},
      {"computed far below tokens", set<int64_t>(80, 600), WI_E_FORMAT, "computed_tokens"},
      {"sealed_end negative", set<int64_t>(88, -4), WI_E_FORMAT, "sealed_end"},
      {"sealed_end beyond the tokens", set<int64_t>(88, 5000), WI_E_FORMAT, "sealed_end"},
      {"exact_end beyond the tokens", set<int64_t>(96, 701), WI_E_FORMAT, "exact_end"},
      {"segment count", set<uint64_t>(104, UINT64_MAX), WI_E_FORMAT, "segments"},
      {"no segments", set<uint64_t>(104, 0), WI_E_FORMAT, "sealed_end"},
      {"tail blocks", set<uint64_t>(112, 99), WI_E_FORMAT, "tail_blocks"},
      {"logits of another vocabulary", set<uint64_t>(120, 101), WI_E_FORMAT, "logits"},
      {"no logits and nothing pending", set<uint64_t>(120, 0), WI_E_FORMAT, "logits"},
      {"sampler length", set<uint64_t>(128, uint64_t{1} << 40), WI_E_FORMAT, "sampler_bytes"},
      {"pending text length", set<uint64_t>(136, UINT64_MAX), WI_E_FORMAT, "pending_bytes"},
      {"another policy's name", set<char>(kBody, 'c'), WI_E_MISMATCH, "policy \"cave\""},
      {"a token beyond the vocabulary", set<int32_t>(tokens_at + 40, 100), WI_E_FORMAT, "token 10 is 100"},
      {"a negative token", set<int32_t>(tokens_at, -1), WI_E_FORMAT, "token 0 is -1"},
      {"another token", set<int32_t>(tokens_at, 55), WI_E_FORMAT, "checksum"},
      {"another logit", set<float>(logits_at, 1e30f), WI_E_FORMAT, "checksum"},
      {"a bit in the sink", [=](std::string& b) { b[sink_at + 9] ^= 1; }, WI_E_FORMAT, "checksum"},
      {"segment elsewhere", set<int64_t>(segment_at, 5), WI_E_FORMAT, "first_position"},
      {"segment without tokens", set<int64_t>(segment_at + 8, 0), WI_E_FORMAT, "segment tokens"},
      {"segment of odd length", set<int64_t>(segment_at + 8, 65), WI_E_FORMAT, "segment tokens"},
      {"segment longer than the file", set<int64_t>(segment_at + 8, int64_t{1} << 23), WI_E_FORMAT,
       "does not fit"},
      {"index longer than the file", set<uint64_t>(segment_at + 16, UINT64_MAX - 7), WI_E_FORMAT,
       "does not fit"},
      {"index table offset", set<uint64_t>(segment_at + 24, 1), WI_E_FORMAT, "index table"},
      {"index table length", set<uint64_t>(segment_at + 32, UINT64_MAX), WI_E_FORMAT, "index table"},
      {"no partitions", set<int64_t>(segment_at + 40, 0), WI_E_FORMAT, "partitions"},
      {"more partitions than tokens", set<int64_t>(segment_at + 40, 257), WI_E_FORMAT, "partitions"},
      {"partitions that the index denies", set<int64_t>(segment_at + 40, 1), WI_E_FORMAT,
       "of layer 0, head 0 is damaged"},
      {"cut within the tokens", cut_quietly(tokens_at + 100), WI_E_FORMAT, "tokens at byte"},
      {"cut within a segment", cut_quietly(segment_at + 300), WI_E_FORMAT, "does not fit"},
      {"cut before the checksum", cut_quietly(good.size() - 8), WI_E_FORMAT, "checksum"},
      {"another checksum", [](std::string& b) { b.back() = static_cast<char>(b.back() ^ 1); }, WI_E_FORMAT,
       "checksum"},
  };
  const uint64_t used = runtime()->pool->used();
  for (const Damage& damage : table) {
    std::string bytes = good;
    damage.apply(bytes);
    spill(path, bytes);
    std::printf("  %s\n", damage.name);
    assert_error(damage.status, damage.words, Session::load(runtime(), model(), path, wave()));
    assert_int_equal(runtime()->pool->used(), used);  // nothing is kept of a file that was refused
  }
  spill(path, good);
  assert_int_equal(Session::load(runtime(), model(), path, wave())->stats().tokens, 700);
}

// Whatever single byte is wrong, a load either refuses or (never here: the checksum covers all) works.
void every_flipped_byte_is_noticed(void**) {
  Folder folder;
  const std::string path = folder.file("s");
  filled(400)->save(path, nullptr);
  const std::string good = slurp(path);
  uint64_t state = test::seed();
  for (int i = 0; i < 300; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::string bytes = good;
    const size_t at = i < 200 ? static_cast<size_t>(i) : static_cast<size_t>((state >> 20) % good.size());
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (state >> 61)));
    spill(path, bytes);
    bool refused = false;
    try {
      Session::load(runtime(), model(), path, wave());
    } catch (const Error& error) {
      refused =
          error.code() == WI_E_FORMAT || error.code() == WI_E_MISMATCH || error.code() == WI_E_UNSUPPORTED;
    }
    if (!refused) std::printf("byte %zu\n", at);
    assert_true(refused);
  }
}

void failed_save_leaves_the_old_file(void**) {
  Folder folder;
  const std::string path = folder.file("s");
  auto session = filled(300);
  session->save(path, nullptr);
  const std::string before = slurp(path);
  decode_tokens(*session, 5);

  CancelToken cancel;
  cancel.flag = true;
  assert_error(WI_E_CANCELLED, "cancelled", session->save(path, &cancel));
  assert_error(WI_E_IO, "cannot create a file beside", session->save(folder.file("no/such/folder"), nullptr));
  // A full disk, played by the limit on a file's length.
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit limit {
  }, small{};
  getrlimit(RLIMIT_FSIZE, &limit);
  small = limit;
  small.rlim_cur = 1000;
  setrlimit(RLIMIT_FSIZE, &small);
  assert_error(WI_E_IO, "cannot write", session->save(path, nullptr));
  setrlimit(RLIMIT_FSIZE, &limit);

  assert_true(slurp(path) == before);
  assert_int_equal(folder.entries(), 1);
  session->save(path, nullptr);
  assert_true(slurp(path) != before);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(loaded_session_goes_on_as_the_saved_one),
      cmocka_unit_test(other_policies_and_kv_types_come_back_too),
      cmocka_unit_test(loading_keeps_to_the_budget),
      cmocka_unit_test(another_models_or_policys_file_is_refused),
      cmocka_unit_test(damaged_files_are_refused_with_a_reason),
      cmocka_unit_test(every_flipped_byte_is_noticed),
      cmocka_unit_test(failed_save_leaves_the_old_file),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
