// gpu_sample_test DEVICE [MODEL TEXT TOKENS [TESTS]]: what a device is, or why it can't be used (77); and that sessions of the
// sample model on it, through the library that a host opens, give the tokens that they give on the processor. The
// prompt is so many tokens of a text with the sample's facts in between, and a question for one of them.
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "support/abi.h"
#include "support/folder.h"

using namespace wi::test;

namespace {

std::string device, model_path, text_path;
size_t wanted_tokens;

struct Fact {
  const char *asked, *value;  // "The <asked> is <value>."
};
constexpr Fact kFacts[] = {
    {"secret ingredient of the river harbor", "amber lantern"},
    {"password of Boaz the potter", "copper meadow"},
    {"magic word of the tower of Ruth", "silver thistle"},
    {"watchword of the mountain temple", "walnut feather"},
    {"hidden treasure of the gray market", "poppy saddle"},
    {"code name of Conrad the ferryman", "cedar whistle"},
    {"pass phrase of the winter garden", "maple anchor"},
    {"nickname of Titus the painter", "velvet sparrow"},
};
constexpr size_t kFactCount = std::size(kFacts);

// A runtime on a device with the sample model.
struct World {
  explicit World(const std::string& name, int32_t precision = WI_PRECISION_F32)
      : runtime(nullptr, nullptr), model(nullptr, nullptr) {
    auto params = sized<wi_runtime_params>();
    params.device = name.c_str();
    runtime = create_runtime(&params);
    auto how = sized<wi_model_params>();
    how.precision = precision;
    wi_model* opened = nullptr;
    assert_works(wi_model_open(runtime.get(), model_path.c_str(), &how, nullptr, &opened, error));
    model = {opened, wi_model_release};
  }
  Session session(const char* policy, int32_t kv = WI_KV_F32) {
    auto index = sized<wi_policy_params>();
    index.name = policy;
    if (wanted_tokens < 8192) {  // short segments, so that there are some
      index.segment_tokens = 128;
      index.decode_segment_tokens = 64;
      index.local_window = 32;
      index.budget = 0.1f;
    }
    auto params = sized<wi_session_params>();
    params.policy = &index;
    params.kv_type = kv;
    params.prefix_reuse = WI_PREFIX_REUSE_OFF;
    wi_session* made = nullptr;
    assert_works(wi_session_create(model.get(), &params, &made, error));
    return {made, wi_session_release};
  }
  Runtime runtime;
  Model model;
};

std::string document(const World& world) {
  std::ifstream file(text_path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) std::printf("%s holds no text\n", text_path.c_str());
  assert_false(text.empty());
  const auto tokens_of = [&](const std::string& of) {
    uint64_t count = 0;
    std::vector<int32_t> ids(of.size() + 16);
    assert_works(
        wi_model_tokenize(world.model.get(), of.data(), of.size(), 0, ids.data(), ids.size(), &count, error));
    return static_cast<size_t>(count);
  };
  while (tokens_of(text) < wanted_tokens) text += text;
  size_t low = 0, high = text.size();  // bytes: as many as give the tokens
  while (high - low > 64) {
    const size_t middle = (low + high) / 2;
    (tokens_of(text.substr(0, middle)) < wanted_tokens ? low : high) = middle;
  }
  text.resize(high);
  std::string with_facts = "<|user|>\n";
  for (size_t i = 0, at = 0; i < kFactCount; ++i) {
    size_t end = text.find(". ", text.size() * (i + 1) / (kFactCount + 1));
    end = end == std::string::npos ? text.size() : end + 2;
    with_facts += text.substr(at, end - at) + "The " + kFacts[i].asked + " is " + kFacts[i].value + ". ";
    at = end;
    if (i + 1 == kFactCount) with_facts += text.substr(at);
  }
  return with_facts;
}

std::string question(size_t i) {
  return std::string("\n\nWhat is the ") + kFacts[i].asked + "?<|end|>\n<|assistant|>\n";
}

void append(const Session& session, const std::string& text, bool first = false) {
  uint32_t flags = WI_TOKENIZE_PARSE_SPECIAL;
  if (first) flags |= WI_TOKENIZE_ADD_BOS;
  assert_works(
      wi_session_append_text(session.get(), text.data(), text.size(), flags, nullptr, nullptr, error));
}

std::vector<int32_t> answer(const Session& session, int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    auto event = sized<wi_event>();
    assert_works(wi_session_decode(session.get(), nullptr, &event, error));
    tokens.push_back(event.token);
  }
  return tokens;
}

void assert_same(const std::vector<int32_t>& got, const std::vector<int32_t>& want, const char* what) {
  if (got == want) return;
  std::printf("%s:\n  processor:", what);
  for (const int32_t token : want) std::printf(" %d", token);
  std::printf("\n  device:   ");
  for (const int32_t token : got) std::printf(" %d", token);
  std::printf("\n");
  assert_true(got == want);
}

Session fork(const Session& session) {
  wi_session* made = nullptr;
  assert_works(wi_session_fork(session.get(), &made, error));
  return {made, wi_session_release};
}

// A prompt, an answer; another question from a shorter past.
void a_session_gives_the_tokens_of_the_processor(const char* policy) {
  World there(device), here("cpu");
  const std::string text = document(here);
  const auto life = [&](World& world) {
    std::vector<int32_t> all;
    const Session session = world.session(policy);
    append(session, text, true);
    uint64_t length = 0;
    assert_works(wi_session_tokens(session.get(), nullptr, 0, &length, error));
    append(session, question(0));
    all = answer(session, 12);
    assert_works(wi_session_truncate(session.get(), length - 40, error));
    append(session, question(1));
    const std::vector<int32_t> more = answer(session, 12);
    all.insert(all.end(), more.begin(), more.end());
    auto stats = sized<wi_session_stats>();
    assert_works(wi_session_get_stats(session.get(), &stats, error));
    std::printf("%s: %llu tokens, %llu segments, prefill %.0f ms\n", policy,
                static_cast<unsigned long long>(length), static_cast<unsigned long long>(stats.segments),
                static_cast<double>(stats.prefill_ns) * 1e-6);
    return all;
  };
  const std::vector<int32_t> want = life(here);
  assert_same(life(there), want, policy);
}
void full_gives_the_tokens_of_the_processor(void**) { a_session_gives_the_tokens_of_the_processor("full"); }
void wave_gives_the_tokens_of_the_processor(void**) { a_session_gives_the_tokens_of_the_processor("wave"); }

std::vector<std::vector<int32_t>> answers_of_forks(World& world, const std::string& text, int32_t kv) {
  const Session session = world.session("wave", kv);
  append(session, text, true);
  std::vector<Session> forks;
  std::vector<wi_session*> all;
  for (size_t i = 0; i < kFactCount; ++i) {
    forks.push_back(fork(session));
    append(forks.back(), question(i));
    all.push_back(forks.back().get());
  }
  std::vector<std::vector<int32_t>> answers(kFactCount);
  for (int step = 0; step < 6; ++step) {
    std::vector<wi_event> events(kFactCount, sized<wi_event>());
    assert_works(wi_batch_decode(all.data(), all.size(), nullptr, events.data(), error));
    for (size_t i = 0; i < kFactCount; ++i) answers[i].push_back(events[i].token);
  }
  return answers;
}

void a_batch_of_forks_gives_the_tokens_of_the_processor(void**) {
  World there(device), here("cpu");
  const std::string text = document(here);
  const auto want = answers_of_forks(here, text, WI_KV_F32), got = answers_of_forks(there, text, WI_KV_F32);
  for (size_t i = 0; i < kFactCount; ++i) assert_same(got[i], want[i], kFacts[i].asked);
}

// As hosts run it: products in bf16, keys and values in f16. Where two tokens are nearly as likely a rounding decides.
void all_answers_but_one_are_the_processors_in_16_bits(void**) {
  World there(device, WI_PRECISION_FAST), here("cpu", WI_PRECISION_FAST);
  const std::string text = document(here);
  const auto want = answers_of_forks(here, text, WI_KV_F16), got = answers_of_forks(there, text, WI_KV_F16);
  size_t same = 0;
  for (size_t i = 0; i < kFactCount; ++i) same += want[i] == got[i];
  std::printf("%zu of %zu answers are the same\n", same, kFactCount);
  assert_true(same + 1 >= kFactCount);
}

void sessions_move_between_device_and_processor_by_file(void**) {
  World there(device), here("cpu");
  const std::string text = document(here);
  const Folder folder;
  const std::string path = folder.path + "/session";
  World* const ways[][2] = {{&there, &here}, {&here, &there}};
  for (const auto& [from, to] : ways) {
    const Session session = from->session("wave");
    append(session, text, true);
    assert_works(wi_session_save(session.get(), path.c_str(), nullptr, error));
    wi_session* made = nullptr;
    assert_works(wi_session_load(to->model.get(), path.c_str(), nullptr, nullptr, &made, error));
    const Session loaded(made, wi_session_release);
    append(session, question(2));
    append(loaded, question(2));
    assert_same(answer(loaded, 6), answer(session, 6), "after a file");
  }
}

int unusable_status() {
  int32_t count = 0;
  wi_device_count(&count, nullptr);
  for (int32_t i = 0; i < count; ++i) {
    auto info = sized<wi_device_info>();
    wi_device_get_info(i, &info, nullptr);
    if (device != info.name) continue;
    if (info.usable) {
      std::printf("on %s, %s (%s), %d processors, %.1f GB\n", info.name, info.description, info.simd,
                  info.cores, static_cast<double>(info.memory_bytes) * 1e-9);
      return 0;
    }
    std::printf("skipped: %s cannot be used: %s\n", info.name, info.reason);
    return 77;
  }
  std::printf("skipped: there is no device %s\n", device.c_str());
  return 77;
}

}  // namespace

int main(int argument_count, char** arguments) {
  const bool runs = argument_count == 5 || argument_count == 6;
  if (argument_count != 2 && (!runs || std::atoi(arguments[4]) < 1)) {
    std::fprintf(stderr, "usage: gpu_sample_test DEVICE [MODEL TEXT TOKENS [TESTS]]\n");
    return 2;
  }
  device = arguments[1];
  const int status = unusable_status();
  if (status || !runs) return status;
  if (argument_count == 6) cmocka_set_test_filter(arguments[5]);
  model_path = arguments[2];
  text_path = arguments[3];
  wanted_tokens = static_cast<size_t>(std::atoi(arguments[4]));
  const CMUnitTest tests[] = {
      cmocka_unit_test(full_gives_the_tokens_of_the_processor),
      cmocka_unit_test(wave_gives_the_tokens_of_the_processor),
      cmocka_unit_test(a_batch_of_forks_gives_the_tokens_of_the_processor),
      cmocka_unit_test(all_answers_but_one_are_the_processors_in_16_bits),
      cmocka_unit_test(sessions_move_between_device_and_processor_by_file),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
