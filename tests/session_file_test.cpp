// Saved sessions: what is saved comes back and computes on identically, to the bit; what is damaged, cut,
// forged or somebody else's is refused with a reason, before anything is made of it.
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "src/kv_store.h"
#include "src/session.h"
#include "src/store/byte_stream.h"
#include "tests/support/folder.h"
#include "tests/support/random_model.h"
#include "tests/support/runtime.h"
#include "tests/support/session_bytes.h"
#include "tests/test.h"

using namespace wi;
using test::Folder;
using test::runtime;
using test::SessionBytes;
using test::slurp;
using test::spill;

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

// A host's memory.
struct Memory final : ByteSink, ByteSource {
  std::string bytes_;
  Memory() = default;
  explicit Memory(std::string bytes) : bytes_(std::move(bytes)) {}
  void write(const void* data, size_t bytes) override {
    bytes_.append(static_cast<const char*>(data), bytes);
  }
  uint64_t bytes() const override { return bytes_.size(); }
  void read(uint64_t offset, void* to, size_t bytes) override {
    std::memcpy(to, bytes_.data() + offset, bytes);
  }
};

SessionParams as_saved(const SessionParams& saved) { return saved; }

std::string saved(Session& session) {
  Memory memory;
  session.save(memory, nullptr);
  return memory.bytes_;
}

std::shared_ptr<Session> load(std::string bytes, const Session::Choice& choose = as_saved,
                              const std::shared_ptr<const Model>& of = model()) {
  Memory memory(std::move(bytes));
  return Session::load(runtime(), of, memory, choose, nullptr);
}
std::shared_ptr<Session> load_as(std::string bytes, const SessionParams& params) {
  return load(std::move(bytes), [&](const SessionParams&) { return params; });
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

std::vector<float> numbers(size_t count, uint64_t salt) {
  uint64_t state = test::seed() + salt;
  std::vector<float> out(count);
  for (float& one : out) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    one = static_cast<float>(static_cast<int32_t>(state >> 40) - (1 << 23)) * 0x1p-22f;
  }
  return out;
}

// Logits now and after each of the next tokens, and the tokens, are the same bits.
void assert_same_future(Session& a, Session& b, int tokens) {
  for (int i = 0; i < tokens; ++i) {
    const std::span<const float> left = a.logits(nullptr), right = b.logits(nullptr);
    assert_memory_equal(left.data(), right.data(), left.size_bytes());
    assert_int_equal(a.decode(nullptr).token, b.decode(nullptr).token);
  }
}

void a_loaded_session_goes_on_as_the_saved_one(void**) {
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
      auto loaded = Session::load(runtime(), model(), folder.file("s"), as_saved, nullptr);
      assert_true(loaded->tokens() == session->tokens());
      assert_int_equal(loaded->stats().segments, session->stats().segments);
      if (tokens) assert_same_future(*loaded, *session, 50);
    }
  }
  assert_int_equal(folder.entries(), 1);  // no temporary file is left behind
}

// Another answer to a saved prompt starts from the same bits, whatever was decoded before the save.
void a_truncate_to_the_prompt_is_exact_after_a_load(void**) {
  for (size_t tokens : {size_t{3}, size_t{300}, size_t{900}}) {
    for (int decoded : {0, 1, 10, 500}) {
      auto session = filled(tokens);
      const std::span<const float> first = session->logits(nullptr);
      const std::vector<float> wanted(first.begin(), first.end());
      const int32_t segments = session->stats().segments;
      decode_tokens(*session, decoded);
      auto loaded = load(saved(*session));
      decode_tokens(*loaded, 5);
      auto again = load(saved(*loaded));
      for (const auto& one : {loaded, again, again->fork()}) {
        one->truncate(static_cast<int64_t>(tokens));
        const std::span<const float> got = one->logits(nullptr);
        assert_memory_equal(got.data(), wanted.data(), got.size_bytes());
        assert_int_equal(one->stats().segments, segments);
      }
      session->truncate(static_cast<int64_t>(tokens));
      assert_same_future(*loaded, *session, 20);
    }
  }
}

// Files of before have no such section, and libraries of before pass over it.
void the_prompts_logits_may_be_missing(void**) {
  auto session = filled(300);
  decode_tokens(*session, 10);
  SessionBytes parts(saved(*session));
  assert_string_equal(parts.sections.back().tag.c_str(), "PRMT");
  assert_int_equal(parts.sections.back().flags, 1);
  parts.sections.pop_back();
  auto loaded = load(parts.bytes());
  assert_same_future(*loaded, *session, 5);
  loaded->truncate(300);
  assert_int_equal(loaded->tokens().size(), 300);
  loaded->logits(nullptr);
}

void all_policies_and_kv_types_come_back(void**) {
  for (const char* policy : {"full", "streaming", "blocks", "wave"})
    for (DType kv : {DType::f32, DType::bf16, DType::f16}) {
      SessionParams params = wave();
      params.policy = find_policy(runtime()->backend, policy);
      params.kv = kv;
      auto session = filled(700, params);
      auto loaded = load(saved(*session));
      assert_same_future(*loaded, *session, 50);
    }
}

void the_length_is_known_beforehand(void**) {
  Folder folder;
  for (size_t tokens : {size_t{0}, size_t{3}, size_t{900}}) {
    auto session = filled(tokens);
    const std::string bytes = saved(*session);
    assert_int_equal(session->saved_bytes(), bytes.size());
    session->save(folder.file("s"), nullptr);
    assert_true(slurp(folder.file("s")) == bytes);
    assert_true(SessionBytes(bytes).bytes() == bytes);  // the tests' reading of the format
  }
}

// Tokens that were cut off, and whatever memory had been used for before, stay out of the file.
void a_file_holds_nothing_but_the_session(void**) {
  const auto cut = [](int32_t secret, size_t kept) {
    auto session = filled(kept);
    session->prefill(std::vector<int32_t>(40, secret), {}, nullptr);
    session->truncate(static_cast<int64_t>(kept));
    return saved(*session);
  };
  for (size_t kept : {size_t{2}, size_t{300}, size_t{333}}) assert_true(cut(17, kept) == cut(71, kept));
}

void loading_keeps_to_the_budget(void**) {
  const std::string bytes = saved(*filled(900));
  SessionParams params = wave();
  params.kv_budget_bytes = 20000;
  const uint64_t used = runtime()->pool->used();
  assert_error(WI_E_BUDGET, "kv_budget_bytes", load_as(bytes, params));
  assert_int_equal(runtime()->pool->used(), used);
}

// Nothing is counted twice on the way.
void a_session_within_its_budget_loads_within_it(void**) {
  const auto session = filled(900);
  SessionParams params = wave();
  params.kv_budget_bytes = session->sequence().bytes();
  const auto loaded = load_as(saved(*session), params);
  assert_int_equal(loaded->sequence().bytes(), params.kv_budget_bytes);
}

void a_bias_of_any_length_comes_back(void**) {
  SessionParams params = wave();
  for (int32_t i = 0; i < 150'000; ++i)
    params.sampling.logit_bias.push_back({i % 100, 0.001f * static_cast<float>(i % 7)});
  const auto session = filled(30, params);
  const auto loaded = load(saved(*session));
  assert_same_future(*session, *loaded, 3);
}

void another_models_or_policys_file_is_refused(void**) {
  Folder folder;
  const std::string bytes = saved(*filled(700));
  assert_error(WI_E_MISMATCH, "another model", load(bytes, as_saved, model(8)));
  SessionParams params = wave();
  params.policy = find_policy(runtime()->backend, "full");
  assert_error(WI_E_MISMATCH, "saved with policy \"wave\", asked for is \"full\"", load_as(bytes, params));
  params = wave();
  params.kv = DType::f32;
  assert_error(WI_E_MISMATCH, "kv_type is f16 in the file, asked for is f32", load_as(bytes, params));
  params = wave();
  params.policy_params.tokens_per_centroid = 8;
  assert_error(WI_E_MISMATCH, "tokens_per_centroid is 16 in the file, asked for is 8",
               load_as(bytes, params));
  const auto open = [&](const std::string& path) {
    Session::load(runtime(), model(), path, as_saved, nullptr);
  };
  assert_error(WI_E_IO, "No such file", open(folder.file("absent")));
  assert_error(WI_E_IO, "is not a regular file", open(folder.path));
}

// What the loader asks for where it may.
void what_does_not_shape_the_index_is_the_loaders_choice(void**) {
  auto session = filled(900);
  const std::string bytes = saved(*session);
  SessionParams params = wave();
  params.policy_params.budget = 1;
  params.policy_params.estimation = 0;
  params.policy_params.local_window = 128;
  auto loaded = load_as(bytes, params);
  auto forked = session->fork_as(params, nullptr);
  assert_same_future(*loaded, *forked, 20);
}

// ---- damage ----

// What is wrong with the bytes of a file, or, behind right checksums, with a section's.
struct Damage {
  const char* name;
  std::function<void(std::string&)> apply;
  wi_status status;
  const char* words;
};

template <class T>
std::function<void(std::string&)> set(size_t offset, T value) {
  return [=](std::string& bytes) { SessionBytes::put(bytes, offset, value); };
}
std::function<void(std::string&)> forge(const char* tag, const std::function<void(std::string&)>& change) {
  return [=](std::string& bytes) {
    SessionBytes parts(bytes);
    change(parts.section(tag).payload);
    bytes = parts.bytes();
  };
}
template <class T>
std::function<void(std::string&)> forge(const char* tag, size_t offset, T value) {
  return forge(tag, set(offset, value));
}
std::function<void(std::string&)> rearrange(const std::function<void(SessionBytes&)>& change) {
  return [=](std::string& bytes) {
    SessionBytes parts(bytes);
    change(parts);
    bytes = parts.bytes();
  };
}
SessionBytes::Section extra(const char* tag, uint32_t flags) {
  return {tag, flags, "what a later version adds"};
}

// A section's own length, with a right checksum, and the file's as it is.
void claim_length(std::string& bytes, const char* tag, uint64_t length) {
  const size_t at = bytes.find(tag);
  SessionBytes::put(bytes, at + 8, length);
  SessionBytes::put(bytes, at + 16, static_cast<uint64_t>(XXH3_64bits_withSeed(bytes.data() + at, 16, at)));
}

void damaged_files_are_refused_with_a_reason(void**) {
  const std::string good = saved(*filled(700));
  constexpr float kNaN = __builtin_nanf("");
  const auto shorter = [](std::string& b) { b.pop_back(); };
  const auto longer = [](std::string& b) { b += '\1'; };
  // Of the first plane, of four; SEGM has two numbers and each plane's count of partitions before it.
  constexpr size_t kCounts = 16, kFirstEnd = kCounts + 4 * 4;
  const auto more_partitions = [](std::string& b) {
    SessionBytes::put(b, kCounts, SessionBytes::number<int32_t>(b, kCounts) + 1);
  };
  const auto other_ends = [](std::string& b) {
    const auto end = SessionBytes::number<int32_t>(b, kFirstEnd),
               next = SessionBytes::number<int32_t>(b, kFirstEnd + 4);
    SessionBytes::put(b, kFirstEnd, next - end > 1 ? end + 1 : end - 1);
  };
  const Damage table[] = {
      {"empty file", [](std::string& b) { b.clear(); }, WI_E_FORMAT, "preamble at byte 0 needs 12 bytes"},
      {"cut in the preamble", [](std::string& b) { b.resize(20); }, WI_E_FORMAT, "preamble at byte 12"},
      {"wrong magic", set<char>(0, 'X'), WI_E_FORMAT, "this is not a session file"},
      {"newline conversion", [](std::string& b) { b.erase(6, 1); }, WI_E_FORMAT,
       "this is not a session file"},
      {"the first version", set<uint32_t>(8, 1), WI_E_FORMAT,
       "version at byte 8 is 1, this library reads 2 to 3"},
      {"a later version", set<uint32_t>(8, 4), WI_E_FORMAT,
       "version at byte 8 is 4, this library reads 2 to 3"},
      {"the version before, in name", rearrange([](SessionBytes& b) { b.version = 2; }), WI_E_FORMAT,
       "does not fit"},
      {"another kind", set<uint32_t>(12, 2), WI_E_FORMAT, "checksum at byte 24"},
      {"another length", set<uint64_t>(16, 50), WI_E_FORMAT, "checksum at byte 24"},
      {"a KV store", rearrange([](SessionBytes& b) { b.kind = 2; }), WI_E_FORMAT,
       "this is a KV store, not a session"},
      {"an unknown kind", rearrange([](SessionBytes& b) { b.kind = 3; }), WI_E_FORMAT, "something unknown"},
      {"cut by a byte", shorter, WI_E_FORMAT, "it was cut or grew"},
      {"a byte more", longer, WI_E_FORMAT, "it was cut or grew"},
      {"a section's length", set<uint64_t>(40, UINT64_MAX), WI_E_FORMAT, "checksum at byte 48"},
      {"a section too few", rearrange([](SessionBytes& b) { b.sections.resize(b.sections.size() - 2); }),
       WI_E_FORMAT, "section \"TAIL\" is missing"},
      {"a section too many", rearrange([](SessionBytes& b) { b.sections.push_back(b.section("SINK")); }),
       WI_E_FORMAT, "section \"SINK\" at byte"},
      {"sections out of order",
       rearrange([](SessionBytes& b) { std::swap(b.section("STAT"), b.section("TOKN")); }), WI_E_FORMAT,
       "section \"TOKN\" at byte"},
      {"an unknown section",
       rearrange([](SessionBytes& b) { b.sections.insert(b.sections.begin() + 2, extra("NEW1", 0)); }),
       WI_E_UNSUPPORTED, "section \"NEW1\" at byte"},
      {"an unknown section at the end",
       rearrange([](SessionBytes& b) { b.sections.push_back(extra("NEW2", 0)); }), WI_E_UNSUPPORTED,
       "section \"NEW2\" at byte"},
      {"fields of a later version", forge("OPTS", longer), WI_E_UNSUPPORTED,
       "1 bytes more than this library"},
      {"a field too few", forge("OPTS", shorter), WI_E_FORMAT, "prefix_reuse in section \"OPTS\""},
      {"no vocabulary", forge<int32_t>("MODL", 16, 0), WI_E_FORMAT, "vocab"},
      {"other weights", forge<uint64_t>("MODL", 8, 1), WI_E_MISMATCH, "another model"},
      {"layers", forge<int32_t>("SHAP", 0, 3), WI_E_MISMATCH, "another model"},
      {"no heads", forge<int32_t>("SHAP", 4, -1), WI_E_FORMAT, "kv_heads"},
      {"head_dim", forge<int32_t>("SHAP", 8, 1 << 30), WI_E_FORMAT, "head_dim"},
      {"head_dim between steps", forge<int32_t>("SHAP", 8, 12), WI_E_FORMAT, "head_dim"},
      {"kv_type", forge<int32_t>("SHAP", 12, 3), WI_E_FORMAT, "kv_type"},
      {"query_heads", forge<int32_t>("SHAP", 16, 0), WI_E_FORMAT, "query_heads"},
      {"policy's length", forge<uint32_t>("POLI", 0, 65), WI_E_FORMAT, "policy"},
      {"an unknown policy", forge<char>("POLI", 4, 'c'), WI_E_UNSUPPORTED, "policy \"cave\""},
      {"segment_tokens", forge<int32_t>("POLI", 12, 100), WI_E_FORMAT, "the file's segment_tokens is 100"},
      {"tokens_per_centroid", forge<int32_t>("POLI", 20, 0), WI_E_FORMAT, "tokens_per_centroid"},
      {"local_window", forge<int32_t>("POLI", 32, -1), WI_E_FORMAT, "local_window"},
      {"budget", forge<float>("POLI", 36, kNaN), WI_E_FORMAT, "the file's budget is nan"},
      {"repeats", forge<int32_t>("POLI", 56, 9), WI_E_FORMAT, "repeats"},
      {"sparse_read_tokens", forge<int32_t>("OPTS", 8, -1), WI_E_FORMAT, "sparse_read_tokens"},
      {"prefix_reuse", forge<int32_t>("OPTS", 12, 2), WI_E_FORMAT, "prefix_reuse"},
      {"sampler's version", forge<uint32_t>("SMPL", 0, 99), WI_E_UNSUPPORTED, "sampler is of version 99"},
      {"temperature", forge<float>("SMPL", 4, kNaN), WI_E_FORMAT, "the file's temperature is nan"},
      {"no penalty", forge<float>("SMPL", 16, 0), WI_E_FORMAT, "repetition_penalty"},
      {"negative window", forge<int32_t>("SMPL", 24, -1), WI_E_FORMAT, "repetition_window"},
      {"half a sampler", forge("SMPL", [](std::string& b) { b.resize(20); }), WI_E_FORMAT, "sampler ends"},
      {"a sampler and more", forge("SMPL", longer), WI_E_FORMAT, "1 bytes too many"},
      {"pending text", forge<uint32_t>("TEXT", 0, UINT32_MAX), WI_E_FORMAT, "pending text"},
      {"negative tokens", forge<int64_t>("STAT", 0, -1), WI_E_FORMAT, "tokens"},
      {"too many tokens", forge<int64_t>("STAT", 0, int64_t{1} << 40), WI_E_FORMAT, "tokens"},
      {"computed beyond tokens", forge<int64_t>("STAT", 8, 701), WI_E_FORMAT, "computed_tokens"},
      {"computed far below tokens", forge<int64_t>("STAT", 8, 600), WI_E_FORMAT, "computed_tokens"},
      {"sealed_end negative", forge<int64_t>("STAT", 16, -4), WI_E_FORMAT, "sealed_end"},
      {"sealed_end beyond the tokens", forge<int64_t>("STAT", 16, 5000), WI_E_FORMAT, "sealed_end"},
      {"exact_end beyond the tokens", forge<int64_t>("STAT", 24, 701), WI_E_FORMAT, "exact_end"},
      {"segment count", forge<uint32_t>("STAT", 32, UINT32_MAX), WI_E_FORMAT,
       "stands where \"SEGM\" should be"},
      {"no segments", forge<uint32_t>("STAT", 32, 0), WI_E_FORMAT, "sealed_end"},
      {"settled_end within a segment", forge<int64_t>("STAT", 36, 5), WI_E_FORMAT, "where no segment ends"},
      {"settled_end beyond what is sealed", forge<int64_t>("STAT", 36, 5000), WI_E_FORMAT, "settled_end"},
      {"a token beyond the vocabulary", forge<int32_t>("TOKN", 40, 100), WI_E_FORMAT, "token 10 is 100"},
      {"a negative token", forge<int32_t>("TOKN", 0, -1), WI_E_FORMAT, "token 0 is -1"},
      {"a token too few", forge("TOKN", [](std::string& b) { b.resize(b.size() - 4); }), WI_E_FORMAT,
       "for 700 numbers"},
      {"logits of another vocabulary", forge("LOGT", [](std::string& b) { b += b.substr(0, 4); }),
       WI_E_FORMAT, "for 100 numbers"},
      {"no logits and nothing pending", forge("LOGT", [](std::string& b) { b.clear(); }), WI_E_FORMAT,
       "for 100 numbers"},
      {"half a sink", forge("SINK", [](std::string& b) { b.resize(b.size() / 2); }), WI_E_FORMAT, "sink"},
      {"segment elsewhere", forge<int64_t>("SEGM", 0, 5), WI_E_FORMAT, "first_position"},
      {"segment without tokens", forge<int64_t>("SEGM", 8, 0), WI_E_FORMAT, "segment tokens"},
      {"segment of odd length", forge<int64_t>("SEGM", 8, 65), WI_E_FORMAT, "segment tokens"},
      {"segment beyond its pages", forge<int64_t>("SEGM", 8, 320), WI_E_FORMAT, "does not fit"},
      {"segment beyond the sequence", forge<int64_t>("SEGM", 8, int64_t{1} << 23), WI_E_FORMAT,
       "segment tokens"},
      {"a position twice",
       forge("SEGM", [](std::string& b) { b.replace(b.size() - 4, 4, b.substr(b.size() - 8, 4)); }),
       WI_E_FORMAT, "there twice"},
      {"a place beyond the segment", forge("SEGM", [](std::string& b) { b.back() = 1; }), WI_E_FORMAT,
       "outside the segment"},
      {"a negative place", forge("SEGM", [](std::string& b) { b.back() = '\xff'; }), WI_E_FORMAT,
       "outside the segment"},
      {"no partitions of a plane", forge<int32_t>("SEGM", 16, 0), WI_E_FORMAT, "partitions"},
      {"partitions beyond the tokens", forge<int32_t>("SEGM", 16, 257), WI_E_FORMAT, "partitions"},
      {"a partition too many", forge("SEGM", more_partitions), WI_E_FORMAT, "does not fit"},
      {"partitions that do not grow", forge<int32_t>("SEGM", kFirstEnd, 0), WI_E_FORMAT, "do not grow"},
      {"partitions that end elsewhere", forge("SEGM", other_ends), WI_E_FORMAT,
       "do not match their checksums"},
      {"pages with checksums of their own", rearrange([](SessionBytes& b) { b.section("PAGE").flags = 0; }),
       WI_E_FORMAT, "section \"PAGE\""},
      {"an index without", rearrange([](SessionBytes& b) { b.section("INDX").flags = 2; }), WI_E_FORMAT,
       "section \"INDX\""},
      {"a page too few", forge("PAGE", shorter), WI_E_FORMAT, "pages"},
      {"a changed page", forge("PAGE", [](std::string& b) { b[5000] = static_cast<char>(b[5000] ^ 1); }),
       WI_E_FORMAT, "do not match their checksums"},
      {"a checksum too few", forge("SUMS", [](std::string& b) { b.resize(b.size() - 4); }), WI_E_FORMAT,
       "checksums"},
      {"another checksum", forge<uint32_t>("SUMS", 0, 0), WI_E_FORMAT, "do not match their checksums"},
      {"pages up to the end of all numbers",
       [](std::string& b) { claim_length(b, "PAGE", UINT64_MAX - 100); }, WI_E_FORMAT, "the file ends at"},
      {"index table offset", forge<uint64_t>("INDX", 0, 1), WI_E_FORMAT, "index table"},
      {"index table length", forge<uint64_t>("INDX", 8, UINT64_MAX), WI_E_FORMAT, "index table"},
      {"no partitions", forge<int32_t>("INDX", 16, 0), WI_E_FORMAT, "partitions"},
      {"more partitions than tokens", forge<int32_t>("INDX", 16, 257), WI_E_FORMAT, "partitions"},
      {"partitions that the order denies", forge<int32_t>("INDX", 16, 1), WI_E_FORMAT, "partitions"},
      {"an index of other things", forge<uint32_t>("INDX", 80, 0), WI_E_FORMAT, "head 0 is damaged"},
      {"no index", forge("INDX", [](std::string& b) { b.resize(30); }), WI_E_FORMAT, "index table"},
      {"a prompt behind the end",
       forge("PRMT", [](std::string& b) { SessionBytes::put(b, 0, int64_t{400}); }), WI_E_FORMAT,
       "prompt_end"},
      {"a prompt of nothing", forge("PRMT", [](std::string& b) { SessionBytes::put(b, 0, int64_t{0}); }),
       WI_E_FORMAT, "prompt_end"},
      {"a prompt sealed behind its end",
       forge("PRMT", [](std::string& b) { SessionBytes::put(b, 8, int64_t{1} << 40); }), WI_E_FORMAT,
       "prompt_sealed_end"},
      {"half a prompt", forge("PRMT", [](std::string& b) { b.resize(12); }), WI_E_FORMAT,
       "prompt_sealed_end"},
      {"a prompt's logits of another vocabulary", forge("PRMT", [](std::string& b) { b += "four"; }),
       WI_E_FORMAT, "prompt logits"},
      {"half a tail", forge("TAIL", [](std::string& b) { b.resize(b.size() / 2); }), WI_E_FORMAT, "tail"},
  };
  const uint64_t used = runtime()->pool->used();
  for (const Damage& damage : table) {
    std::string bytes = good;
    damage.apply(bytes);
    std::printf("  %s\n", damage.name);
    assert_error(damage.status, damage.words, load(bytes));
    assert_int_equal(runtime()->pool->used(), used);  // nothing is kept of a file that was refused
  }
  assert_int_equal(load(good)->stats().tokens, 700);
}

void a_file_s_growth_is_checked(void**) {
  const auto session = filled(700);
  session->truncate(600);
  session->decode(nullptr);
  const std::string good = saved(*session);
  const Damage table[] = {
      {"growth behind the end", forge("GROW", [](std::string& b) { SessionBytes::put(b, 0, int64_t{800}); }),
       WI_E_FORMAT, "grows_from"},
      {"growth before the begin", forge("GROW", [](std::string& b) { SessionBytes::put(b, 0, int64_t{-1}); }),
       WI_E_FORMAT, "grows_from"},
      {"growth sealed behind it",
       forge("GROW", [](std::string& b) { SessionBytes::put(b, 8, int64_t{601}); }), WI_E_FORMAT,
       "grows_from_sealed_end"},
      {"half a growth", forge("GROW", [](std::string& b) { b.resize(12); }), WI_E_FORMAT,
       "grows_from_sealed_end"},
  };
  for (const Damage& damage : table) {
    std::string bytes = good;
    damage.apply(bytes);
    assert_error(damage.status, damage.words, load(bytes));
  }
  assert_true(decode_tokens(*load(good), 20) == decode_tokens(*session, 20));
}

void every_flipped_byte_is_noticed(void**) {
  const std::string good = saved(*filled(400));
  uint64_t state = test::seed();
  for (int i = 0; i < 1000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::string bytes = good;
    const size_t at = i < 700 ? static_cast<size_t>(i) : static_cast<size_t>((state >> 20) % good.size());
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (state >> 61)));
    wi_status status = WI_OK;
    try {
      load(bytes);
    } catch (const Error& error) {
      status = error.code();
    }
    if (status != WI_E_FORMAT) std::printf("byte %zu: status %d\n", at, status);
    assert_int_equal(status, WI_E_FORMAT);
  }
}

// Two pieces of a file that changed places are both whole.
void pieces_in_each_others_places_are_noticed(void**) {
  SessionParams params = wave();
  params.kv = DType::f32;
  auto session = Session::create(runtime(), model(), params);
  std::vector<int32_t> ids = prompt(9000);
  session->prefill(ids, {}, nullptr);
  // 9,000 tokens of 512 bytes: the tail's section would be one piece, so make its segments the long ones.
  params.policy_params.segment_tokens = 8192;
  session = session->fork_as(params, nullptr);
  const std::string good = saved(*session);
  const size_t piece = SessionBytes::kPiece + 8, at = good.find("SEGM") + 24;
  assert_true(at + 2 * piece < good.size());
  std::string bytes = good;
  std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                   bytes.begin() + static_cast<std::ptrdiff_t>(at + piece),
                   bytes.begin() + static_cast<std::ptrdiff_t>(at + piece));
  assert_error(WI_E_FORMAT, "section \"SEGM\" is damaged", load(bytes));
  assert_same_future(*load(good), *session, 3);
}

// ---- other versions ----

void what_later_versions_add_is_passed_over_if_it_may_be(void**) {
  auto session = filled(700);
  SessionBytes parts(saved(*session));
  parts.sections.insert(parts.sections.begin(), extra("OPT1", 1));
  parts.sections.insert(parts.sections.begin() + 8, extra("OPT2", 1));
  parts.sections.push_back(extra("OPT3", 1));
  parts.section("OPT2").payload.assign(3000000, 'x');
  for (const char* tag : {"MODL", "SHAP", "POLI", "OPTS", "STAT"})
    parts.section(tag).payload.append(12, '\0');
  assert_same_future(*load(parts.bytes()), *session, 50);
  std::string damaged = parts.bytes();
  damaged[damaged.find("xxxx") + 2000000] = 'y';
  assert_error(WI_E_FORMAT, "section \"OPT2\" is damaged", load(damaged));
}

// Written (by --write-seeds) when version 2 was the library's own.
void files_of_the_version_before_load_as_before(void**) {
  const std::string folder = WI_TEST_DATA "/fixtures/sessions/";
  const std::string bytes = slurp(folder + "session-2");
  assert_int_equal(SessionBytes::number<uint32_t>(bytes, 8), 2);
  auto loaded = load(bytes);
  assert_true(loaded->tokens() == prompt(150));
  assert_int_equal(loaded->stats().segments, 2);
  const std::string now = saved(*loaded);
  assert_int_equal(SessionBytes::number<uint32_t>(now, 8), 3);
  auto again = load(now);
  assert_true(saved(*again) == now);
  assert_same_future(*again, *loaded, 200);
  std::string damaged = bytes;
  damaged[damaged.find("SEGM") + 5000] ^= 1;
  assert_error(WI_E_FORMAT, "section \"SEGM\" is damaged", load(damaged));

  const auto same = [](const KvStoreParams& params) { return params; };
  Memory store(slurp(folder + "kv-2")), rewritten;
  auto kv = KvStore::load(runtime(), store, same, nullptr);
  assert_int_equal(kv->stats().tokens, 150);
  kv->save(rewritten, nullptr);
  auto kv_again = KvStore::load(runtime(), rewritten, same, nullptr);
  const std::vector<float> queries = numbers(4 * 8, 5);
  std::vector<float> left(queries.size()), right(queries.size());
  kv->attend(0, 1, queries.data(), nullptr, left.data(), nullptr);
  kv_again->attend(0, 1, queries.data(), nullptr, right.data(), nullptr);
  assert_true(left == right);
}

void an_index_of_another_version_is_built_anew(void**) {
  for (const char* name : {"wave", "blocks"}) {
    SessionParams params = wave();
    params.policy = find_policy(runtime()->backend, name);
    auto session = filled(900, params);
    SessionBytes parts(saved(*session));
    const uint32_t version = params.policy->index_version;
    assert_int_equal(SessionBytes::number<uint32_t>(parts.section("POLI").payload, 4 + std::strlen(name)),
                     version);
    for (uint32_t other : {version - 1, version + 1}) {
      SessionBytes::put(parts.section("POLI").payload, 4 + std::strlen(name), other);
      for (size_t i = 0; i < static_cast<size_t>(session->stats().segments); ++i)
        parts.section("INDX", i).payload = "bytes that mean nothing here";
      auto loaded = load(parts.bytes());
      assert_int_equal(loaded->stats().segments, session->stats().segments);
      assert_int_equal(loaded->stats().index_bytes, session->stats().index_bytes);
      auto original = session->fork();
      assert_same_future(*loaded, *original, 50);
      assert_true(saved(*load(parts.bytes())) == saved(*session));  // and is this version's from now on
    }
  }
  CancelToken cancel;
  auto session = filled(900);
  SessionBytes parts(saved(*session));
  SessionBytes::put(parts.section("POLI").payload, 8, uint32_t{1});
  Memory memory(parts.bytes());
  const auto fire = [&](const SessionParams& saved) {
    cancel.flag = true;
    return saved;
  };
  assert_error(WI_E_CANCELLED, "cancelled", Session::load(runtime(), model(), memory, fire, &cancel));
}

// ---- memory ----

// Each claims far more than it has: a section of 8 GiB, tokens, pages. None gets it.
void a_small_file_gets_little_memory(void**) {
#ifdef WI_SANITIZED
  skip();  // a sanitizer's own memory does not fit the limit
#endif
  const std::string good = saved(*filled(700));
  struct rlimit limit {
  }, small{};
  getrlimit(RLIMIT_AS, &limit);
  small = limit;
  const std::string pages = slurp("/proc/self/statm");
  small.rlim_cur = std::strtoull(pages.c_str(), nullptr, 10) * 4096 + (uint64_t{64} << 20);
  const auto claim = [&](const char* tag, const std::function<void(SessionBytes&)>& change) {
    SessionBytes parts(good);
    change(parts);
    std::string bytes = parts.bytes();
    claim_length(bytes, tag, uint64_t{1} << 33);
    return bytes;
  };
  const auto stat = [](size_t offset, int64_t value) {
    return [=](SessionBytes& b) { SessionBytes::put(b.section("STAT").payload, offset, value); };
  };
  std::vector<std::string> files;
  for (const char* tag :
       {"MODL", "SMPL", "TEXT", "TOKN", "LOGT", "SINK", "SEGM", "INDX", "PAGE", "SUMS", "TAIL"})
    files.push_back(claim(tag, [](SessionBytes&) {}));
  files.push_back(claim("TOKN", [&](SessionBytes& b) {
    stat(0, int64_t{1} << 30)(b);
    stat(8, int64_t{1} << 30)(b);
  }));
  SessionBytes many(good);
  stat(0, int64_t{1} << 30)(many);
  stat(8, int64_t{1} << 30)(many);
  files.push_back(many.bytes());
  stat(16, int64_t{1} << 29)(many);
  SessionBytes::put(many.section("SEGM").payload, 8, int64_t{1} << 23);
  files.push_back(many.bytes());

  setrlimit(RLIMIT_AS, &small);
  for (const std::string& bytes : files) assert_error(WI_E_FORMAT, "", load(bytes));
  setrlimit(RLIMIT_AS, &limit);
}

// Before others' keys and values leave the fast tier for it.
void no_room_is_made_for_pages_that_are_not_there(void**) {
  SessionBytes parts(saved(*filled(700)));
  for (SessionBytes::Section& section : parts.sections)
    if (section.tag == "PAGE" || section.tag == "TAIL") section.payload.clear();
  assert_error(WI_E_FORMAT, "whose pages have", load(parts.bytes()));
}

// ---- ends that come early ----

// Fires when so many bytes have passed.
struct Cancelling final : ByteSink, ByteSource {
  Memory& memory;
  CancelToken cancel;
  uint64_t left;
  Cancelling(Memory& of, uint64_t bytes) : memory(of), left(bytes) {}
  void pass(size_t bytes) {
    left -= std::min<uint64_t>(left, bytes);
    cancel.flag = left == 0;
  }
  void write(const void* data, size_t bytes) override { memory.write(data, bytes), pass(bytes); }
  uint64_t bytes() const override { return memory.bytes(); }
  void read(uint64_t offset, void* to, size_t bytes) override { memory.read(offset, to, bytes), pass(bytes); }
};

void saving_and_loading_end_soon_after_a_cancel(void**) {
  auto session = filled(900);
  const std::string bytes = saved(*session);
  for (double share : {0.0, 0.01, 0.5, 0.9}) {
    const auto count = static_cast<uint64_t>(share * static_cast<double>(bytes.size()));
    Memory to, from(bytes);
    Cancelling writing(to, count), reading(from, count);
    writing.cancel.flag = reading.cancel.flag = count == 0;
    assert_error(WI_E_CANCELLED, "cancelled", session->save(writing, &writing.cancel));
    assert_true(to.bytes_.size() < count + SessionBytes::kPiece + 64);
    assert_error(WI_E_CANCELLED, "cancelled",
                 Session::load(runtime(), model(), reading, as_saved, &reading.cancel));
  }
}

void a_failed_save_leaves_the_old_file(void**) {
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

// ---- KV stores ----

constexpr int32_t kLayers = 2, kKvHeads = 2, kGroup = 2, kDim = 32;

KvStoreParams store_params(const char* policy, DType kv) {
  KvStoreParams params;
  params.shape = {kLayers, kKvHeads, kDim, kv};
  params.query_heads = kKvHeads * kGroup;
  params.policy = find_policy(runtime()->backend, policy);
  params.policy_params.segment_tokens = 256;
  params.policy_params.decode_segment_tokens = 64;
  return params;
}

void fill(KvStore& store, int64_t tokens, uint64_t salt) {
  const size_t width = size_t{kKvHeads} * kDim;
  for (int32_t layer = 0; layer < kLayers; ++layer)
    store.append(layer, tokens, numbers(static_cast<size_t>(tokens) * width, salt + 2 * layer).data(),
                 numbers(static_cast<size_t>(tokens) * width, salt + 2 * layer + 1).data());
}

std::vector<float> attended(KvStore& store, int32_t layer) {
  const size_t width = size_t{kKvHeads} * kGroup * kDim;
  std::vector<float> out(3 * width + 3 * size_t{kKvHeads} * kGroup);
  store.attend(layer, 3, numbers(3 * width, 99).data(), nullptr, out.data(), out.data() + 3 * width);
  return out;
}

void a_loaded_store_attends_as_the_saved_one(void**) {
  Folder folder;
  const auto same = [](const KvStoreParams& saved) { return saved; };
  for (const char* policy : {"full", "wave", "blocks"})
    for (DType kv : {DType::f32, DType::f16})
      for (int64_t tokens : {0, 3, 70, 900}) {
        auto store = std::make_shared<KvStore>(runtime(), store_params(policy, kv));
        if (tokens) fill(*store, tokens, 1);
        store->seal();
        store->save(folder.file("kv"), nullptr);
        assert_int_equal(slurp(folder.file("kv")).size(), store->saved_bytes());
        auto loaded = KvStore::load(runtime(), folder.file("kv"), same, nullptr);
        assert_int_equal(loaded->stats().tokens, tokens);
        assert_int_equal(loaded->stats().segments, store->stats().segments);
        for (int64_t more : {0, 300}) {
          for (KvStore* one : {store.get(), loaded.get()}) {
            if (more) fill(*one, more, 50);
            one->seal();
          }
          if (tokens + more == 0) continue;
          for (int32_t layer = 0; layer < kLayers; ++layer) {
            const std::vector<float> left = attended(*store, layer), right = attended(*loaded, layer);
            assert_memory_equal(left.data(), right.data(), left.size() * sizeof(float));
          }
        }
      }
}

// The file alone says what an empty store is: it is not an argument that is wrong.
void a_shape_that_no_store_has_is_the_files_fault(void**) {
  KvStore store(runtime(), store_params("wave", DType::f16));
  Memory memory;
  store.save(memory, nullptr);
  forge<int32_t>("SHAP", 8, 12)(memory.bytes_);
  assert_error(WI_E_FORMAT, "head_dim",
               KvStore::load(
                   runtime(), memory, [](const KvStoreParams& saved) { return saved; }, nullptr));
}

void stores_and_sessions_are_told_apart(void**) {
  const auto same = [](const KvStoreParams& saved) { return saved; };
  KvStore store(runtime(), store_params("wave", DType::f16));
  fill(store, 500, 1);
  store.seal();
  Memory memory, session(saved(*filled(10)));
  store.save(memory, nullptr);
  assert_error(WI_E_FORMAT, "this is a KV store, not a session", load(memory.bytes_));
  assert_error(WI_E_FORMAT, "this is a session, not a KV store",
               KvStore::load(runtime(), session, same, nullptr));
  const auto with = [&](const std::function<void(KvStoreParams&)>& change) {
    KvStore::load(
        runtime(), memory,
        [&](KvStoreParams params) {
          change(params);
          return params;
        },
        nullptr);
  };
  assert_error(WI_E_MISMATCH, "layers is 2 in the file, asked for is 3",
               with([](auto& p) { p.shape.layers = 3; }));
  assert_error(WI_E_MISMATCH, "query_heads is 4", with([](auto& p) { p.query_heads = 8; }));
  assert_error(WI_E_MISMATCH, "kv_type is f16", with([](auto& p) { p.shape.dtype = DType::f32; }));
  assert_error(WI_E_MISMATCH, "policy \"wave\"",
               with([](auto& p) { p.policy = find_policy(runtime()->backend, "full"); }));
  assert_error(WI_E_BUDGET, "kv_budget_bytes", with([](auto& p) { p.kv_budget_bytes = 5000; }));

  SessionBytes parts(memory.bytes_);
  SessionBytes::put(parts.section("POLI").payload, 8, uint32_t{1});  // of the index
  Memory older(parts.bytes());
  auto loaded = KvStore::load(runtime(), older, same, nullptr);
  assert_true(attended(*loaded, 1) == attended(store, 1));

  store.append(0, 1, numbers(kKvHeads * kDim, 1).data(), numbers(kKvHeads * kDim, 2).data());
  assert_error(WI_E_STATE, "append to every layer first", store.save(memory, nullptr));
  assert_error(WI_E_STATE, "append to every layer first", store.saved_bytes());
}

// Small sessions and stores for tests/fuzz/corpus/session.
int write_seeds(const std::string& folder) {
  for (size_t tokens : {0, 1, 3, 80, 150}) {
    SessionParams params = wave();
    params.policy_params.segment_tokens = params.policy_params.decode_segment_tokens = 64;
    params.policy_params.local_window = 8;
    spill(folder + "/tokens-" + std::to_string(tokens), saved(*filled(tokens, params)));
  }
  KvStoreParams params = store_params("wave", DType::f16);
  params.policy_params.segment_tokens = 64;
  params.shape.layers = 1;
  params.shape.head_dim = 8;
  KvStore store(runtime(), params);
  const std::vector<float> rows = numbers(150 * 16, 3);
  store.append(0, 150, rows.data(), rows.data());
  store.seal();
  store.save(folder + "/kv-150", nullptr);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--write-seeds") return write_seeds(argv[2]);
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_loaded_session_goes_on_as_the_saved_one),
      cmocka_unit_test(a_truncate_to_the_prompt_is_exact_after_a_load),
      cmocka_unit_test(the_prompts_logits_may_be_missing),
      cmocka_unit_test(all_policies_and_kv_types_come_back),
      cmocka_unit_test(the_length_is_known_beforehand),
      cmocka_unit_test(a_file_holds_nothing_but_the_session),
      cmocka_unit_test(loading_keeps_to_the_budget),
      cmocka_unit_test(a_session_within_its_budget_loads_within_it),
      cmocka_unit_test(a_bias_of_any_length_comes_back),
      cmocka_unit_test(another_models_or_policys_file_is_refused),
      cmocka_unit_test(what_does_not_shape_the_index_is_the_loaders_choice),
      cmocka_unit_test(damaged_files_are_refused_with_a_reason),
      cmocka_unit_test(a_file_s_growth_is_checked),
      cmocka_unit_test(every_flipped_byte_is_noticed),
      cmocka_unit_test(pieces_in_each_others_places_are_noticed),
      cmocka_unit_test(what_later_versions_add_is_passed_over_if_it_may_be),
      cmocka_unit_test(files_of_the_version_before_load_as_before),
      cmocka_unit_test(an_index_of_another_version_is_built_anew),
      cmocka_unit_test(a_small_file_gets_little_memory),
      cmocka_unit_test(no_room_is_made_for_pages_that_are_not_there),
      cmocka_unit_test(saving_and_loading_end_soon_after_a_cancel),
      cmocka_unit_test(a_failed_save_leaves_the_old_file),
      cmocka_unit_test(a_loaded_store_attends_as_the_saved_one),
      cmocka_unit_test(a_shape_that_no_store_has_is_the_files_fault),
      cmocka_unit_test(stores_and_sessions_are_told_apart),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
