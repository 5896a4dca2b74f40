// Words as the named patterns cut them, patterns from files with what differs between dialects, and limits.
#include "src/tokenizer/pre_tokenizer.h"

#include <ctime>
#include <functional>
#include <sys/resource.h>

#include "src/tokenizer/pattern_dialect.h"
#include "test.h"
#include "tokenizer_fixture.h"

namespace wi {
namespace {

std::string words(const PreTokenizer& tokenizer, const std::string& text) {
  std::string joined;
  Poll poll(nullptr);
  PreTokenizer::Matcher matcher(tokenizer, text.size(), poll);
  matcher.split(text, [&](std::string_view word) { joined += "[" + std::string(word) + "]"; });
  return joined;
}

PreTokenizer from_patterns(const std::string& patterns) {
  return PreTokenizer::from_steps(test::splits(patterns));
}

void expect_words(const PreTokenizer& tokenizer, const char* text, const char* wanted) {
  assert_string_equal(words(tokenizer, text).c_str(), wanted);
}

void families_cut_digits_and_contractions_their_own_way(void**) {
  const char* text = "We'LL pay 1234";
  expect_words(PreTokenizer::named("llama-bpe"), text, "[We]['LL][ pay][ ][123][4]");
  expect_words(PreTokenizer::named("qwen2"), text, "[We]['LL][ pay][ ][1][2][3][4]");
  expect_words(PreTokenizer::named("gpt-2"), text, "[We]['][LL][ pay][ 1234]");
  expect_words(PreTokenizer::named("smollm"), text, "[We]['][LL][ pay][ ][1][2][3][4]");
  expect_words(PreTokenizer::named("gpt-4o"), text, "[We'LL][ pay][ ][123][4]");
  expect_words(PreTokenizer::named("deepseek-v3"), text, "[We]['LL][ pay][ ][123][4]");
  expect_words(PreTokenizer::named("deepseek-coder"), text, "[We]['][LL][ pay][ ][1][2][3][4]");
}

void names_that_share_a_pattern_cut_alike(void**) {
  const std::string text = "It's 2024:\n\n  x\u3002 \U0001F600";
  for (const auto& [name, same] : {std::pair{"llama3", "llama-bpe"},
                                   {"llama-v3", "llama-bpe"},
                                   {"deepseek-r1-qwen", "qwen2"},
                                   {"phi-2", "gpt-2"}})
    assert_string_equal(words(PreTokenizer::named(name), text).c_str(),
                        words(PreTokenizer::named(same), text).c_str());
  assert_true(PreTokenizer::named("llama3").ignores_merges());
  assert_false(PreTokenizer::named("qwen2").ignores_merges());
}

void unknown_names_are_refused(void**) {
  assert_error(WI_E_UNSUPPORTED, "\"default\"", PreTokenizer::named("default"));
  assert_error(WI_E_UNSUPPORTED, "\"\"", PreTokenizer::named(""));
}

void several_patterns_apply_in_turn(void**) {
  const std::string patterns = std::string(R"(\d)") + '\0' + "b+";
  expect_words(from_patterns(patterns), "abb1bb2", "[a][bb][1][bb][2]");
}

void empty_matches_cut_and_move_on(void**) {
  expect_words(from_patterns("(?=b)"), "abab", "[a][ba][b]");
  expect_words(from_patterns("x*"), "a\u00e9xb", "[a][\u00e9][x][b]");
}

void a_run_of_spaces_at_the_end_is_one_word(void**) {
  expect_words(from_patterns(R"(\s+$)"), " a  ", "[ a][  ]");
  expect_words(from_patterns(R"(\s+$)"), "a \n b", "[a][ ][\n b]");
}

void space_means_unicode_white_space(void**) {
  const PreTokenizer spaces = from_patterns(R"(\s+)"), others = from_patterns(R"([\S]+)");
  expect_words(spaces, "a\u00a0\u3000\u0085 b", "[a][\u00a0\u3000\u0085 ][b]");
  expect_words(spaces, "a\u180eb", "[a\u180eb]");
  expect_words(others, "a\u180e b", "[a\u180e][ ][b]");
}

void patterns_are_rewritten_or_refused(void**) {
  assert_string_equal(to_pcre2(R"(\d\v\u00e9\p{L}+(?!x)[^\d])").c_str(),
                      R"(\p{Nd}\x{B}\x{00e9}\p{L}+(?!x)[^\p{Nd}])");
  assert_error(WI_E_UNSUPPORTED, "escape \\w at byte 1", to_pcre2(R"(a\w)"));
  assert_error(WI_E_UNSUPPORTED, "nested class at byte 2", to_pcre2("[a[b]]"));
  assert_error(WI_E_UNSUPPORTED, "&&", to_pcre2(R"([\p{L}&&\p{Lu}])"));
  assert_error(WI_E_UNSUPPORTED, "quantifier", to_pcre2(R"(\p{N}{1,3}+)"));
  assert_error(WI_E_UNSUPPORTED, "(*", to_pcre2("(*LIMIT_MATCH=1)a"));
  assert_error(WI_E_UNSUPPORTED, "group (?P<", to_pcre2("(?P<n>a)"));
  assert_error(WI_E_UNSUPPORTED, "escape \\1", to_pcre2(R"((a)\1)"));
  assert_error(WI_E_FORMAT, "does not compile", from_patterns("["));
  assert_error(WI_E_FORMAT, "does not compile", from_patterns(R"(\p{Nonsense})"));
  assert_error(WI_E_UNSUPPORTED, "\\p without {} at byte 1", to_pcre2(R"(a\pL)"));
  assert_error(WI_E_UNSUPPORTED, "property \\p{Script=Han}", to_pcre2(R"(\p{Script=Han})"));
  assert_error(WI_E_UNSUPPORTED, "other members there at byte 1", to_pcre2("[[:punct:]]"));
  assert_error(WI_E_UNSUPPORTED, "(?i) behind the beginning", to_pcre2("a(?i)b|c"));
  for (const char* pattern :
       {R"((?i)[\p{Lu}])", R"((?i:[\p{Lu}]))", R"(x(?i:a|(?:[^\p{L}])))", R"((?i:[\p{^Z}]))"})
    assert_error(WI_E_UNSUPPORTED, "a property of letters in a class without case", to_pcre2(pattern));
  assert_string_equal(to_pcre2(R"((?i:[\p{P}]|\p{Lu})[\p{Lu}](?i:a(?-i:[\p{Lu}]))[\p{Lu}])").c_str(),
                      R"((?i:[\p{P}]|\p{Lu})[\p{Lu}](?i:a(?-i:[\p{Lu}]))[\p{Lu}])");
}

// Oniguruma finds the one character where the pattern has several without case, and the other way about.
void what_is_one_character_without_case_is_refused(void**) {
  for (const char* pattern :
       {"(?i:ss)", "(?i)aSt", "(?i:(?:s)s)", R"((?i:s\x73))", "(?i:x|(?:f)+(i))", "(?i:a(?i:f)L)"})
    assert_error(WI_E_UNSUPPORTED, "what one character is without case", to_pcre2(pattern));
  for (const char* pattern : {"(?i:\u00df)", "(?i:[\u00df])", "(?i:[\u00e0-\u00ff])", R"((?i:\x{DF}))",
                              R"((?i:\u0149))", "(?i:[!-\u2020])", "(?i:a\u02be)"})
    assert_error(WI_E_UNSUPPORTED, "a letter outside ASCII without case", to_pcre2(pattern));
  assert_error(WI_E_UNSUPPORTED, "a class of letters without case", to_pcre2(R"((?i:[\S]))"));
  for (const char* pattern :
       {"ss|\u00df", "(?i:s)s", "(?i:s|s)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?i:[sdmt]|ll|ve|re)",
        "(?-i:ss)", "(?i:a(?-i:ss))", "(?i:[\u2019']s)", "(?i:\u6f22s)", "(?i:[s]s)"})
    assert_string_equal(to_pcre2(pattern).c_str(), pattern);
}

// Where Oniguruma reads bytes, other digits, or nothing at all.
void escapes_that_read_differently_are_refused(void**) {
  assert_string_equal(to_pcre2(R"(\x{1F600}\x41[\x41-\x{5A}\u0061])").c_str(),
                      R"(\x{1F600}\x41[\x41-\x{5A}\x{0061}])");
  for (const char* pattern : {R"(\x4)", R"(\x)", R"(\xzz)", R"(\x{})", R"(\x{41)", R"(\x{1234567})"})
    assert_error(WI_E_UNSUPPORTED, "\\x without", to_pcre2(pattern));
  assert_error(WI_E_UNSUPPORTED, "\\x of a byte", to_pcre2(R"(\xC3\xA9)"));
  for (const char* pattern : {R"(\u{41})", R"(\u00e)", R"(\u)"})
    assert_error(WI_E_UNSUPPORTED, "\\u without", to_pcre2(pattern));
  for (const char* pattern : {R"([\s-a])", R"([\d-z])", R"([\p{L}-9])"})
    assert_error(WI_E_UNSUPPORTED, "a range from a class", to_pcre2(pattern));
  assert_error(WI_E_UNSUPPORTED, "a range to a class", to_pcre2(R"([a-\s])"));
  expect_words(from_patterns(R"([\s-]+)"), "a -b", "[a][ -][b]");
  expect_words(from_patterns(R"([-\s]+)"), "a -b", "[a][ -][b]");
  expect_words(from_patterns(R"([\--a]+)"), "-a.b", "[-a.][b]");
}

// A script is a character's own: not all that it is written with, as PCRE2 takes a name alone.
void scripts_are_those_of_oniguruma(void**) {
  assert_string_equal(to_pcre2(R"(\p{Han}[\p{^Hiragana}\p{L}])").c_str(),
                      R"(\p{sc:Han}[\p{^sc:Hiragana}\p{L}])");
  expect_words(from_patterns(R"(\p{Han}+)"), "a\u3002\u6f22b", "[a\u3002][\u6f22][b]");
}

void behaviours_join_matches_to_their_neighbours(void**) {
  using Behavior = SplitStep::Behavior;
  const auto split = [](Behavior behavior, bool invert) {
    const SplitStep step{"-", behavior, invert};
    return words(PreTokenizer::from_steps({&step, 1}), "the-final--countdown-");
  };
  const auto expect = [&](Behavior behavior, bool invert, const char* wanted) {
    assert_string_equal(split(behavior, invert).c_str(), wanted);
  };
  expect(Behavior::isolated, false, "[the][-][final][-][-][countdown][-]");
  expect(Behavior::removed, false, "[the][final][countdown]");
  expect(Behavior::removed, true, "[-][-][-][-]");
  expect(Behavior::merged_previous, false, "[the-][final-][-][countdown-]");
  expect(Behavior::merged_next, false, "[the][-final][-][-countdown][-]");
  expect(Behavior::contiguous, false, "[the][-][final][--][countdown][-]");
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;  // of one thread
}

void match(const char* pattern, const std::string& text, const std::atomic<bool>* cancel = nullptr) {
  const PreTokenizer hostile = from_patterns(pattern);
  Poll poll(cancel);
  PreTokenizer::Matcher matcher(hostile, text.size(), poll);
  matcher.split(text, [](std::string_view) {});
}

// Each takes minutes to years without the meter, wherever it backtracks: in groups, in single characters, in
// a scan to the end of the text from each of its characters.
void a_files_pattern_has_only_so_many_steps(void**) {
  const std::string letters(60, 'a'), many(100'000, 'a'), spaces = std::string(200'000, ' ') + 'y';
  const std::pair<const char*, const std::string*> hostile[] = {
      {R"((?:a?){24}a{24}b|[\s\S])", &letters},
      {"(a+a+)+[bc]", &letters},
      {R"([\s\S]*[\s\S]*[\s\S]*[\s\S]*[bc]|a)", &many},
      {R"((?=[\s\S]*[bc])a|[\s\S])", &many},
      {R"(\s+[xz])", &spaces},
      {R"((?:[\s\S]*){20}[bc]|a)", &many}};
  for (const auto& [pattern, text] : hostile) {
    const double seconds = seconds_of([&, pattern = pattern, text = text] {
      assert_error(WI_E_UNSUPPORTED, pattern, match(pattern, *text));
    });
    std::printf("%s on %zu bytes: given up after %.2f s\n", pattern, text->size(), seconds);
    assert_in_time(seconds < 20);  // a step takes some 20 ns, and there are 26 million; a loaded machine
  }
}

// A thread's own stack is enough for but few; for those there are 16 MB, and it is no other text's fault.
void a_match_has_the_stack_it_needs(void**) {
  std::string text;
  while (text.size() < 20'000) text += "ab";
  const PreTokenizer nested = from_patterns("(?:a|b)+c");
  const std::string found = text + "c";
  assert_string_equal(words(nested, found + " " + found).c_str(),
                      ("[" + found + "][ ][" + found + "]").c_str());
  const std::string long_text(2'000'000, 'a');
  assert_error(WI_E_UNSUPPORTED, "failed on this text", match("(?:a|b)+c", long_text));
}

// Pages that come and go would have the calls of one thread wait for page faults of all others.
void short_texts_map_no_memory(void**) {
  const PreTokenizer tokenizer = PreTokenizer::named("llama-bpe");
  const auto faults = [&] {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
  };
  words(tokenizer, "What is the password?");
  const auto before = faults();
  for (int i = 0; i < 1000; ++i) words(tokenizer, "What is the password?");
  const auto taken = faults() - before;
  std::printf("%ld page faults in 1000 texts\n", static_cast<long>(taken));
  assert_in_time(taken < 100);  // nor are allocators judged that keep what is freed
}

void matching_is_cancelled_within_one_match(void**) {
  const std::atomic<bool> cancelled{true};
  const std::string letters(60, 'a');
  for (const char* pattern : {R"((?:a?){24}a{24}b|[\s\S])", R"(\p{N})"})
    assert_error(WI_E_CANCELLED, "cancelled", match(pattern, letters, &cancelled));
}

void patterns_of_files_are_bounded(void**) {
  assert_error(WI_E_UNSUPPORTED, "at most 32768", from_patterns(std::string(40'000, 'a')));
  assert_error(WI_E_FORMAT, "does not compile",
               from_patterns(std::string(200, '(') + "a" + std::string(200, ')')));
  assert_error(WI_E_FORMAT, "does not compile", from_patterns("(?:(?:(?:a{1000}){1000}){1000}){1000}"));
  const std::vector<SplitStep> many(33, SplitStep{"a", SplitStep::Behavior::isolated, false});
  assert_error(WI_E_UNSUPPORTED, "33 patterns", PreTokenizer::from_steps(many));
  std::string alternatives = "x";
  while (alternatives.size() < 32'000) alternatives += R"(|\p{L}+\s*a{1,3})";
  double seconds = 0;
  try {
    seconds = seconds_of([&] { from_patterns(alternatives); });
  } catch (const Error& error) {
    assert_int_equal(error.code(), WI_E_FORMAT);  // too large for PCRE2's compiled form
  }
  std::printf("the longest pattern compiles in %.2f s\n", seconds);
  assert_in_time(seconds < 10);
}

}  // namespace
}  // namespace wi

int main() {
  using namespace wi;
  const CMUnitTest tests[] = {
      cmocka_unit_test(families_cut_digits_and_contractions_their_own_way),
      cmocka_unit_test(names_that_share_a_pattern_cut_alike),
      cmocka_unit_test(unknown_names_are_refused),
      cmocka_unit_test(several_patterns_apply_in_turn),
      cmocka_unit_test(empty_matches_cut_and_move_on),
      cmocka_unit_test(a_run_of_spaces_at_the_end_is_one_word),
      cmocka_unit_test(space_means_unicode_white_space),
      cmocka_unit_test(patterns_are_rewritten_or_refused),
      cmocka_unit_test(what_is_one_character_without_case_is_refused),
      cmocka_unit_test(escapes_that_read_differently_are_refused),
      cmocka_unit_test(scripts_are_those_of_oniguruma),
      cmocka_unit_test(behaviours_join_matches_to_their_neighbours),
      cmocka_unit_test(a_files_pattern_has_only_so_many_steps),
      cmocka_unit_test(a_match_has_the_stack_it_needs),
      cmocka_unit_test(short_texts_map_no_memory),
      cmocka_unit_test(matching_is_cancelled_within_one_match),
      cmocka_unit_test(patterns_of_files_are_bounded),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
