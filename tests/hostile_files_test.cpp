// Model files made to cost: each is refused within some processor time and memory, or, where it is nothing
// but slow, can be cancelled. Every case runs in a process of its own, so that what it takes can be measured
// and what hangs can be ended. Bounds are generous, the machine may be shared; what they are there to catch
// took tens of seconds or gigabytes.
#include <cerrno>
#include <csignal>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "src/model/model.h"
#include "support/cancel_time.h"
#include "support/colliding_texts.h"
#include "support/model_files.h"
#include "support/patience.h"
#include "test.h"
#include "tests/support/fewer.h"

using namespace wi;
using namespace wi::test;

namespace {

constexpr double kMostSeconds = 10;
#ifdef WI_SANITIZED
constexpr uint64_t kMostMemory = uint64_t{64} << 30;  // of the sanitizer's own
#else
constexpr uint64_t kMostMemory = uint64_t{1} << 30;
#endif

// Opens the path in a child, which must refuse it with the status and the words (WI_OK: open it), and measures the child.
void assert_refused(wi_status status, const char* words, const std::string& path,
                    uint64_t most_memory = kMostMemory) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  assert_true(child >= 0);
  if (child == 0) {
    ::alarm(patience(300));  // wall time: one that waits for ever
    try {
      Model::open(path);
      if (status == WI_OK) ::_exit(0);
      std::printf("opened\n");
    } catch (const Error& error) {
      if (error.code() == status && std::strstr(error.what(), words)) ::_exit(0);
      std::printf("status %d: %s\n", error.code(), error.what());
    }
    std::fflush(stdout);
    ::_exit(1);
  }
  int ended = 0;
  rusage usage{};
  assert_true(::wait4(child, &ended, 0, &usage) == child);
  const double seconds = static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  const uint64_t memory = static_cast<uint64_t>(usage.ru_maxrss) << 10;
  std::printf("%.2f s, %llu MiB: %s\n", seconds, static_cast<unsigned long long>(memory >> 20), words);
  assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
  assert_in_time(seconds <= kMostSeconds);
  assert_true(memory <= most_memory);
}

std::string repeated(const char* text, size_t bytes) {
  const size_t length = std::strlen(text);
  std::string out;
  out.reserve(bytes + length);
  while (out.size() < bytes) out += text;
  return out;
}

// {"x":[{},{},…,{}]}
std::string empty_objects(size_t bytes) { return "{\"x\":[" + repeated("{},", bytes) + "{}]}"; }

std::string with_header(const std::string& text) { return little_endian<uint64_t>(text.size()) + text; }

// Took 41 s for 800 KB: every element made the parser look at all before it.
void a_header_of_many_values_is_refused_in_linear_time(void**) {
  TempFolder folder;
  tiny_directory().write(folder);
  folder.write("model.safetensors", with_header(empty_objects(800000)));
  assert_refused(WI_E_FORMAT, "tensor 'x' (byte 8) is array, must be an object", folder.path(),
                 kMostMemory / 4);
  folder.write("model.safetensors", with_header(empty_objects(16 << 20)));
  assert_refused(WI_E_FORMAT, "takes more than 64 MiB of memory once it is read", folder.path(),
                 kMostMemory / 2);
}

// Took 38 bytes of memory for each of the text.
void json_is_bounded_in_memory(void**) {
  TempFolder folder;
  tiny_directory().write(folder);
  folder.write("tokenizer.json", empty_objects(60 << 20));
  assert_refused(WI_E_FORMAT, "tokenizer.json: the JSON takes more than 512 MiB of memory once it is read",
                 folder.path());
  tiny_directory().write(folder);
  for (const char* name : {"config.json", "tokenizer_config.json", "generation_config.json"}) {
    tiny_directory().write(folder);
    folder.write(name, empty_objects(15 << 20));
    assert_refused(
        WI_E_FORMAT,
        (std::string(name) + ": the JSON takes more than 128 MiB of memory once it is read").c_str(),
        folder.path(), kMostMemory / 2);
    tiny_directory().write(folder);
    folder.write(name, empty_objects(17 << 20));
    const std::string words = std::string(name) + ": the file has 178";
    assert_refused(WI_E_FORMAT, words.c_str(), folder.path(), kMostMemory / 4);
  }
}

void a_gguf_of_many_small_things_is_refused(void**) {
  TempFolder folder;
  GgufBuilder keys = tiny_gguf();
  for (int i = 0; i < 70000; ++i)
    keys.fields.push_back({"k" + std::to_string(i), static_cast<uint32_t>(GgufType::u8), "x"});
  assert_refused(WI_E_FORMAT, "the metadata count is 70018, at most 65536 is allowed",
                 folder.write("keys.gguf", keys.bytes()), kMostMemory / 4);
  GgufBuilder strings = tiny_gguf();
  strings.array("tokenizer.ggml.merges", GgufType::string, 5000000, std::string(size_t{8} * 5000000, '\0'));
  assert_refused(WI_E_FORMAT, "has 5000000 elements, at most 4194304 strings are allowed in all",
                 folder.write("strings.gguf", strings.bytes()), kMostMemory / 2);
}

// A number for each byte, before they were counted; and a second copy of what nobody asks for.
void a_gguf_of_long_arrays_is_refused(void**) {
  TempFolder folder;
  GgufBuilder kinds = tiny_gguf();
  kinds.array("tokenizer.ggml.token_type", GgufType::u8, 150 << 20, std::string(150 << 20, '\1'));
  assert_refused(WI_E_FORMAT, "'tokenizer.ggml.token_type' (byte ", folder.write("kinds.gguf", kinds.bytes()),
                 kMostMemory / 2);
  GgufBuilder unknown = tiny_gguf();
  unknown.fields.clear();
  unknown.tensors.clear();
  unknown.array("general.unknown", GgufType::u8, 1 << 30, "");
  const std::string path = folder.write("unknown.gguf", unknown.bytes());
  assert_int_equal(::truncate(path.c_str(), (1 << 30) + 4096), 0);
  assert_refused(WI_E_FORMAT, "the metadata up to key 'general.unknown' has more than 268435456 bytes", path,
                 kMostMemory / 4);
}

// The parser reads it in one go, without asking the host.
void a_json_text_of_one_piece_is_refused(void**) {
  TempFolder folder;
  for (const auto& [begin, fill, end] :
       {std::make_tuple("{\"x\":\"", "a", "\"}"), std::make_tuple("{\"x\":\"", "\\n", "\"}"),
        std::make_tuple("{\"x\":", " ", "1}"), std::make_tuple("{\"x\":", "1", "}")}) {
    tiny_directory().write(folder);
    folder.write("tokenizer.json", begin + repeated(fill, 20 << 20) + end);
    assert_refused(WI_E_FORMAT, "tokenizer.json: the JSON has more than 8388608 bytes in one piece at byte ",
                   folder.path(), kMostMemory / 4);
  }
}

// Opening a FIFO for reading waits for somebody who writes.
void what_is_no_regular_file_is_refused(void**) {
  TempFolder folder;
  const std::string fifo = folder / "model.gguf";
  assert_int_equal(::mkfifo(fifo.c_str(), 0600), 0);
  assert_refused(WI_E_IO, "model.gguf: it is no regular file", fifo);
  assert_refused(WI_E_IO, "/dev/zero: it is no regular file", "/dev/zero");

  for (const std::string name :
       {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
        "chat_template.jinja", "model.safetensors", "model.safetensors.index.json"}) {
    TempFolder model;
    tiny_directory().write(model);
    ::unlink((model / name).c_str());
    if (name == "model.safetensors.index.json") ::unlink((model / "model.safetensors").c_str());
    assert_int_equal(::mkfifo((model / name).c_str(), 0600), 0);
    assert_refused(WI_E_IO, (name + ": it is no regular file").c_str(), model.path());
  }

  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = folder / "socket";
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str());
  assert_int_equal(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  assert_refused(WI_E_IO, "cannot open ", path);
  ::close(listener);
}

// While a text is parsed no weight is looked at, and the host is asked all the same.
void a_long_text_is_parsed_under_the_hosts_eyes(void**) {
  TempFolder folder;
  DirectoryBuilder files = tiny_directory();
  files.tokenizer["ignored"] = nlohmann::json::array();
  files.write(folder);
  std::string text = files.tokenizer.dump();
  text.replace(text.find("\"ignored\":[]"), 12,
               "\"ignored\":[" + repeated("\"abcdefghijklmnop\",", 24 << 20) + "0]");
  folder.write("tokenizer.json", text);

  int asked = 0;
  const auto model = Model::open(folder.path(), [&](uint64_t done, uint64_t total) {
    asked += total == 0;
    assert_true(done <= total);
  });
  std::printf("asked %d times before there were weights\n", asked);
  assert_true(asked >= 2);
  const auto stop = [&](uint64_t, uint64_t total) {
    assert_int_equal(total, 0);
    throw_error(WI_E_CANCELLED, "enough");
  };
  assert_error(WI_E_CANCELLED, "enough", Model::open(folder.path(), stop));
}

// 28 steps that each double a text took 20 s and 5 GB for one byte; 300,000 that each put one before it, time
// quadratic in their number.
void a_normalizer_that_makes_much_of_little_is_refused(void**) {
  const nlohmann::json doubles = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const nlohmann::json prepends = {{"type", "Prepend"}, {"prepend", "a"}};
  TempFolder folder;
  const auto refused = [&](const char* words, const std::function<void(nlohmann::json&)>& change) {
    DirectoryBuilder files = tiny_directory();
    change(files.tokenizer);
    files.write(folder);
    assert_refused(WI_E_UNSUPPORTED, words, folder.path(), kMostMemory / 2);
  };
  const auto sequence = [](const nlohmann::json& step, size_t count) {
    return nlohmann::json{{"type", "Sequence"}, {"normalizers", std::vector<nlohmann::json>(count, step)}};
  };
  refused("tokenizer: the file's normalizer makes a text of", [&](nlohmann::json& j) {
    j["normalizer"] = sequence(doubles, 40);
    j["added_tokens"].push_back({{"id", j["model"]["vocab"]["a"]}, {"content", "a"}, {"normalized", true}});
  });
  refused("normalizer has more than 64 steps",
          [&](nlohmann::json& j) { j["normalizer"] = sequence(prepends, 300000); });
  const std::string longer(65, 'x');
  refused("content has 65 bytes", [&](nlohmann::json& j) {
    j["normalizer"] = doubles;
    j["normalizer"]["content"] = longer;
  });
  refused("pattern has 65 bytes", [&](nlohmann::json& j) {
    j["normalizer"] = doubles;
    j["normalizer"]["pattern"]["String"] = longer;
  });
  refused("prepend has 65 bytes", [&](nlohmann::json& j) {
    j["normalizer"] = {{"type", "Prepend"}, {"prepend", longer}};
  });
  refused("replacement has 65 bytes", [&](nlohmann::json& j) {
    j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", longer}, {"prepend_scheme", "always"}};
  });
}

// Every mark of a token that is all marks was replaced by moving what is behind it.
void a_token_of_many_bytes_is_refused(void**) {
  TempFolder folder;
  DirectoryBuilder files = tiny_directory();
  files.tokenizer["model"]["vocab"][repeated("\u2581", 3 << 20)] = 260;
  files.tokenizer["model"]["vocab"].erase("the");
  files.tokenizer["model"]["merges"] = {"t h"};
  files.tokenizer["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  files.write(folder);
  assert_refused(WI_E_UNSUPPORTED, "bytes, at most 65536 are supported", folder.path(), kMostMemory / 2);
}

// Each of the one was looked for among all of the other.
void many_names_of_many_added_tokens_take_linear_time(void**) {
  TempFolder folder;
  DirectoryBuilder files = tiny_directory();
  nlohmann::json added = nlohmann::json::object(), named = nlohmann::json::array();
  for (int i = 0; i < 200000; ++i) {
    added["a" + std::to_string(i)] = 261 + i;
    named.push_back("b" + std::to_string(i));
  }
  files.tokenizer_config["additional_special_tokens"] = named;
  files.write(folder);
  folder.write("added_tokens.json", added.dump());
  assert_refused(WI_OK, "opened: all of them lie beyond the embedding", folder.path());
}

double milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

struct Opening {
  double silence_ms;  // the longest time between two questions to the host, of the thread
  int asked;
};

// Opens the path, unless its weights do not fit.
Opening listen(const std::string& path) {
  std::chrono::nanoseconds last = time_worked(CLOCK_THREAD_CPUTIME_ID), longest{};
  int asked = 0;
  const auto ask = [&](uint64_t, uint64_t) {
    const std::chrono::nanoseconds now = time_worked(CLOCK_THREAD_CPUTIME_ID);
    longest = std::max(longest, now - std::exchange(last, now));
    ++asked;
  };
  try {
    Model::open(path, ask);
  } catch (const Error& error) {
    assert_non_null(std::strstr(error.what(), "shape"));
  }
  ask(0, 0);
  return {milliseconds(longest), asked};
}

// A file with a SentencePiece vocabulary.
std::string of_pieces(const std::vector<std::string>& tokens, const std::vector<float>& scores) {
  GgufBuilder file = tiny_gguf();
  std::vector<int32_t> kinds(tokens.size(), 1);
  kinds[0] = 2;
  file.text("tokenizer.ggml.model", "llama");
  file.texts("tokenizer.ggml.tokens", tokens);
  file.numbers("tokenizer.ggml.scores", GgufType::f32, scores);
  file.numbers("tokenizer.ggml.token_type", GgufType::i32, kinds);
  return file.bytes();
}

// Each of them fell on all others in the tables that they are looked up in.
void a_vocabulary_made_to_collide_is_read_in_linear_time(void**) {
#if defined(WI_SANITIZED) || defined(WI_EMULATED)
  constexpr size_t kTokens = 2'000;
#else
  constexpr size_t kTokens = 50'000;
#endif
  std::vector<std::string> tokens = tiny_tokens();
  for (std::string& text : colliding_texts(kTokens, test::seed())) tokens.push_back(std::move(text));
  TempFolder folder;
  const std::string path =
      folder.write("collide.gguf", of_pieces(tokens, std::vector<float>(tokens.size(), 1)));
  const std::chrono::nanoseconds start = time_worked(CLOCK_THREAD_CPUTIME_ID);
  listen(path);
  const double took = milliseconds(time_worked(CLOCK_THREAD_CPUTIME_ID) - start);
  std::printf("%zu tokens in %.0f ms\n", kTokens, took);
  assert_in_time(took < 2000);  // some 50
}

// From the host's answer to this question, which is that it wants no more, to the call's end: all that was made goes. 0
// where it is not asked so often: that is a matter of time.
double milliseconds_to_end(const std::string& path, int question) {
  std::chrono::nanoseconds answered{};
  int asked = 0;
  const auto stop = [&](uint64_t, uint64_t) {
    if (++asked < question) return;
    answered = time_worked(CLOCK_THREAD_CPUTIME_ID);
    throw_error(WI_E_CANCELLED, "enough");
  };
  try {
    Model::open(path, stop);
  } catch (const Error& error) {
    if (error.code() == WI_E_CANCELLED) return milliseconds(time_worked(CLOCK_THREAD_CPUTIME_ID) - answered);
    assert_non_null(std::strstr(error.what(), "shape"));
  }
  assert_true(asked < question);
  return 0;
}

// A vocabulary of two million tokens was silence for three seconds.
void a_large_tokenizer_is_made_under_the_hosts_eyes(void**) {
#if defined(WI_SANITIZED) || defined(WI_EMULATED)
  constexpr int kTokens = 30'000;
#else
  constexpr int kTokens = 600'000;
#endif
  TempFolder folder;
  const auto listened_to = [&](const char* what, const std::string& path) {
    Opening whole{};
    const double silence_ms = least_of_tries(kProgressMs, [&] {
      whole = listen(path);
      return whole.silence_ms;
    });
    double longest_end = 0;
    for (const int question : {1, whole.asked / 2, whole.asked - 2})
      if (question > 0)
        longest_end = std::max(
            longest_end, least_of_tries(kCancelMs, [&] { return milliseconds_to_end(path, question); }));
    assert_true(longest_end > 0);
    std::printf("%s: asked %d times, %.0f ms of silence at most, cancelled within %.0f ms\n", what,
                whole.asked, silence_ms, longest_end);
    assert_in_time(silence_ms < kProgressMs);
    assert_in_time(longest_end < kCancelMs);
  };
  std::vector<std::string> tokens = tiny_tokens(), merges = {"t h", "th e"};
  for (int i = 0; i < kTokens; ++i) {
    tokens.push_back("the" + std::string(1, static_cast<char>('a' + i % 26)) + std::to_string(i));
    if (i % 4 == 0) merges.push_back("t " + std::to_string(i)), tokens.push_back(std::to_string(i));
    if (i % 4 == 0) tokens.push_back("t" + std::to_string(i));
  }
  GgufBuilder bytes = tiny_gguf();
  bytes.texts("tokenizer.ggml.tokens", tokens);
  bytes.texts("tokenizer.ggml.merges", merges);
  bytes.numbers("tokenizer.ggml.token_type", GgufType::i32, std::vector<int32_t>(tokens.size(), 1));
  listened_to("bytes", folder.write("bytes.gguf", bytes.bytes()));

  std::vector<float> scores(tokens.size());
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(i * 7919 % 1000003);
  listened_to("SentencePiece", folder.write("pieces.gguf", of_pieces(tokens, scores)));

  DirectoryBuilder files = tiny_directory();
  for (int i = 0; i < kTokens / 3; ++i)
    files.tokenizer["added_tokens"].push_back(
        {{"id", 261 + i}, {"content", "<|" + std::to_string(i) + "|>"}, {"special", true}});
  files.config["vocab_size"] = 261 + kTokens / 3;
  files.write(folder);
  listened_to("added tokens", folder.path());

  // As large as real ones are: a vocabulary of 300,000 tokens, half of them merged of two.
  files = tiny_directory();
  auto& model = files.tokenizer["model"];
  int64_t id = 261;
  for (int i = 0; i < kTokens / 6; ++i) {
    const std::string number = std::to_string(i);
    for (const std::string& token : {number, "t" + number, "th" + number})
      if (!model["vocab"].contains(token)) model["vocab"][token] = id++;
    model["merges"].push_back({"t", number});
    model["merges"].push_back({"th", number});
  }
  files.config["vocab_size"] = id;
  files.write(folder);
  listened_to("vocabulary", folder.path());

  files = tiny_directory();
  files.write(folder);
  const std::string fields =
      ",\"ignored\":[" + repeated("{},", test::slow_or(size_t{1} << 18, size_t{4} << 20)) + "{}]}";
  for (const auto& [name, json] : {std::pair("tokenizer_config.json", &files.tokenizer_config),
                                   std::pair("config.json", &files.config)}) {
    (*json)["vocab_size"] = 261;
    const std::string text = json->dump();
    folder.write(name, text.substr(0, text.size() - 1) + fields);
  }
  listened_to("companions", folder.path());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(a_header_of_many_values_is_refused_in_linear_time),
                              cmocka_unit_test(json_is_bounded_in_memory),
                              cmocka_unit_test(a_gguf_of_many_small_things_is_refused),
                              cmocka_unit_test(what_is_no_regular_file_is_refused),
                              cmocka_unit_test(a_normalizer_that_makes_much_of_little_is_refused),
                              cmocka_unit_test(a_token_of_many_bytes_is_refused),
                              cmocka_unit_test(many_names_of_many_added_tokens_take_linear_time),
                              cmocka_unit_test(a_gguf_of_long_arrays_is_refused),
                              cmocka_unit_test(a_json_text_of_one_piece_is_refused),
                              cmocka_unit_test(a_long_text_is_parsed_under_the_hosts_eyes),
                              cmocka_unit_test(a_vocabulary_made_to_collide_is_read_in_linear_time),
                              cmocka_unit_test(a_large_tokenizer_is_made_under_the_hosts_eyes)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
