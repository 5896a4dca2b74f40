// Megabytes of one thing: texts that make regular expressions backtrack, recurse or rescan, and words of
// ten million bytes for the merge loop. Seconds each and bounded memory, for every pre-tokenizer.
#include <ctime>
#include <fstream>
#include <sys/resource.h>

#include "support/cancel_time.h"
#include "test.h"
#include "tokenizer_fixture.h"

namespace wi {
namespace {

using namespace test;
#if defined(WI_SANITIZED) || defined(WI_EMULATED)
constexpr size_t kBytes = 512'000;  // which make every byte some twenty times as dear
#else
constexpr size_t kBytes = 10'000'000;
#endif
// A guard against what is quadratic (hours), wide enough for a loaded machine.
constexpr double kSecondsAllowed = 60;

std::string repeat(const std::string& unit, const std::string& end = "", size_t bytes = kBytes) {
  std::string text;
  text.reserve(bytes + unit.size() + end.size());
  while (text.size() < bytes) text += unit;
  return text + end;
}

double encode_seconds(const Tokenizer& tokenizer, const std::string& text, size_t* tokens) {
  const auto start = std::clock();
  const std::vector<int32_t> ids = tokenizer.encode(text, false, true);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;  // of one thread
  *tokens = ids.size();
  assert_true(tokenizer.decode(ids, true) == text);
  assert_in_time(seconds < kSecondsAllowed);
  return seconds;
}

// Merges that double runs of a letter and of spaces, as code models have, up to 64.
void add_runs(Vocabulary& vocabulary, std::string unit) {
  for (int length = 1; length < 64; length *= 2, unit += unit) add_merge(vocabulary, unit, unit);
}

// A fifth as long, for there are twenty of them and many tokenizers: what is quadratic still takes more than an hour.
const std::pair<const char*, std::string>* long_texts(size_t* count) {
  const auto repeat = [](const std::string& unit, const std::string& end = "") {
    return wi::repeat(unit, end, kBytes / 5);
  };
  static const std::pair<const char*, std::string> texts[] = {
      {"spaces", repeat(" ")},
      {"spaces, then a letter", repeat(" ", "x")},
      {"newlines", repeat("\n")},
      {"newlines, then a letter", repeat("\n", "x")},
      {"one letter", repeat("a")},
      {"digits", repeat("7")},
      {"one mark", repeat("!")},
      {"space, newline", repeat(" \n", "x")},
      {"newline, spaces", "\n" + repeat(" ", "x")},
      {"letter, space", repeat("a ")},
      {"letter, digit", repeat("a1")},
      {"tab, letter", repeat("\tx")},
      {"apostrophes", repeat("'")},
      {"contractions", repeat("'s")},
      {"combining marks", repeat("\u0301")},
      {"emoji", repeat("\U0001F600")},
      {"Chinese", repeat("\u4E2D")},
      {"no-break spaces", repeat("\u00A0", "x")},
      {"NUL", repeat(std::string(1, '\0'))},
      {"no UTF-8", repeat("\xFF")},
      {"half a special", repeat("<|en")},
  };
  *count = std::size(texts);
  return texts;
}

void megabytes_of_anything_take_seconds(void**) {
  for (const char* name :
       {"llama-bpe", "qwen2", "gpt-2", "smollm", "gpt-4o", "deepseek-v3", "deepseek-llm", "deepseek-coder"}) {
    Vocabulary vocabulary = byte_vocabulary(name);
    add_runs(vocabulary, "a");
    add_runs(vocabulary, "Ġ");
    add_runs(vocabulary, "Ċ");
    add_special(vocabulary, "<|end|>");
    const auto tokenizer = Tokenizer::create(vocabulary);
    double slowest = 0;
    const char* which = "";
    size_t count, tokens;
    const auto* texts = long_texts(&count);
    for (size_t i = 0; i < count; ++i) {
      const double seconds = encode_seconds(*tokenizer, texts[i].second, &tokens);
      if (seconds > slowest) slowest = seconds, which = texts[i].first;
    }
    std::printf("%s: slowest of %zu texts is %s, %.2f s\n", name, count, which, slowest);
  }
}

void runs_of_ten_million_merge_to_the_longest_token(void**) {
  Vocabulary vocabulary = byte_vocabulary("qwen2");
  add_runs(vocabulary, "a");
  add_runs(vocabulary, "Ġ");
  const auto tokenizer = Tokenizer::create(vocabulary);
  for (const char* unit : {"a", " "}) {
    size_t tokens;
    const double seconds = encode_seconds(*tokenizer, repeat(unit), &tokens);
    assert_int_equal(tokens, kBytes / 64);
    std::printf("one word of %zu x \"%s\": %.2f s\n", kBytes, unit, seconds);
  }
}

void sentencepiece_takes_ten_megabytes_as_one_word(void**) {
  TokenizerFixture fixture = read_tokenizer("sentencepiece");
  for (int across : {0, 1}) {
    if (across) fixture.vocabulary.tokens.back() = "a\u2581b";  // a token across words: the text is one word
    const auto tokenizer = Tokenizer::create(fixture.vocabulary);
    const std::pair<const char*, std::string> texts[] = {
        {"spaces", repeat(" ")},         {"one letter", repeat("a")},
        {"letter, space", repeat("a ")}, {"English", repeat("the LORD said unto ")},
        {"newlines", repeat("\n")},      {"no UTF-8", repeat("\xFF")}};
    for (const auto& [name, text] : texts) {
      size_t tokens;
      const double seconds = encode_seconds(*tokenizer, text, &tokens);
      std::printf("sentencepiece%s, %s: %zu tokens, %.2f s\n", across ? " (one word)" : "", name, tokens,
                  seconds);
    }
  }
}

void a_text_of_any_kind_is_given_up_within_100_ms(void**) {
  std::vector<std::pair<const char*, std::unique_ptr<const Tokenizer>>> tokenizers;
  for (const char* name : {"llama-bpe", "qwen2", "deepseek-v3"}) {
    Vocabulary vocabulary = byte_vocabulary(name);
    add_runs(vocabulary, "a");
    add_special(vocabulary, "<|end|>");
    if (name == std::string("qwen2")) vocabulary.normalizer = {{RewriteStep::Kind::nfc, "", ""}};
    tokenizers.emplace_back(name, Tokenizer::create(vocabulary));
  }
  tokenizers.emplace_back("sentencepiece", Tokenizer::create(read_tokenizer("sentencepiece").vocabulary));
  std::vector<std::pair<const char*, std::string>> texts;
  for (const auto& [name, unit] : {std::pair{"English", "the LORD said unto Moses, "},
                                   {"one letter", "a"},
                                   {"spaces", " "},
                                   {"Chinese", "\u4E2D\u6587"},
                                   {"marks", "e\u0301"},
                                   {"half a special", "<|en"}})
    texts.emplace_back(name, repeat(unit));
  double worst = 0;
  int cancelled = 0;
  for (const auto& [name, made] : tokenizers)
    for (const auto& [kind, repeated] : texts)
      for (const int after : {5, 60, 250}) {
        const double took = milliseconds_to_cancel(
            [&tokenizer = *made, &text = repeated](const std::atomic<bool>* flag) {
              tokenizer.encode(text, false, true, flag);
            },
            std::chrono::milliseconds(after));
        cancelled += took >= 0;
        if (took > 50) std::printf("%s, %s, after %d ms: %.1f ms\n", name, kind, after, took);
        worst = std::max(worst, took);
      }
  std::printf("%d texts given up, within %.1f ms\n", cancelled, worst);
  assert_in_time(worst < kCancelMs);
  assert_true(cancelled > 20);
}

void memory_stays_a_small_multiple_of_the_text(void**) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double megabytes = static_cast<double>(usage.ru_maxrss) / 1024;
  std::printf("peak memory %.0f MB\n", megabytes);
  // 21 texts are held at once (210 MB); a word's merge loop takes some 50 bytes a byte, its ids 4 to 8 more.
  // Sanitizers keep freed memory back, so there only the time counts.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  assert_true(megabytes < 2000);
#endif
}

// What the merges of such a word hold by then is a gigabyte, which is given back before the call returns.
void a_word_of_sixty_megabytes_is_given_up_within_100_ms(void**) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(WI_EMULATED)
  skip();  // they have memory of their own
#endif
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string setting;
  std::getline(file, setting);
  if (setting.find("[always]") == std::string::npos && setting.find("[madvise]") == std::string::npos) {
    std::printf("skipped: the system has no huge pages to give\n");
    skip();
  }
  Vocabulary vocabulary = byte_vocabulary("llama-bpe");
  add_runs(vocabulary, "a");
  const auto tokenizer = Tokenizer::create(vocabulary);
  const std::string word(60'000'000, 'a');
  double worst = -1;
  for (const int after : {1000, 2000}) {
    const double took = milliseconds_to_cancel(
        [&](const std::atomic<bool>* flag) { tokenizer->encode(word, false, true, flag); },
        std::chrono::milliseconds(after));
    worst = std::max(worst, took);
  }
  std::printf("given up within %.1f ms\n", worst);
  assert_true(worst >= 0);
  assert_in_time(worst < kCancelMs);
}

}  // namespace
}  // namespace wi

int main() {
  using namespace wi;
  const CMUnitTest tests[] = {
      cmocka_unit_test(megabytes_of_anything_take_seconds),
      cmocka_unit_test(runs_of_ten_million_merge_to_the_longest_token),
      cmocka_unit_test(sentencepiece_takes_ten_megabytes_as_one_word),
      cmocka_unit_test(a_text_of_any_kind_is_given_up_within_100_ms),
      cmocka_unit_test(memory_stays_a_small_multiple_of_the_text),
      cmocka_unit_test(a_word_of_sixty_megabytes_is_given_up_within_100_ms),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
