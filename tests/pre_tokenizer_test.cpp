// Words as the named patterns cut them, patterns from files with what differs between dialects, and limits.
#include "src/model/pre_tokenizer.h"

#include "src/model/pattern_dialect.h"
#include "test.h"

namespace wi {
namespace {

std::string words(const PreTokenizer& tokenizer, const std::string& text) {
  std::string joined;
  PreTokenizer::Matcher matcher(tokenizer);
  matcher.split(text, [&](std::string_view word) { joined += "[" + std::string(word) + "]"; });
  return joined;
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
  expect_words(PreTokenizer::from_patterns(patterns), "abb1bb2", "[a][bb][1][bb][2]");
}

void empty_matches_cut_and_move_on(void**) {
  expect_words(PreTokenizer::from_patterns("(?=b)"), "abab", "[a][ba][b]");
  expect_words(PreTokenizer::from_patterns("x*"), "a\u00e9xb", "[a][\u00e9][x][b]");
}

void a_run_of_spaces_at_the_end_is_one_word(void**) {
  expect_words(PreTokenizer::from_patterns(R"(\s+$)"), " a  ", "[ a][  ]");
  expect_words(PreTokenizer::from_patterns(R"(\s+$)"), "a \n b", "[a][ ][\n b]");
}

void space_means_unicode_white_space(void**) {
  const PreTokenizer spaces = PreTokenizer::from_patterns(R"(\s+)"),
                     others = PreTokenizer::from_patterns(R"([\S]+)");
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
  assert_error(WI_E_FORMAT, "does not compile", PreTokenizer::from_patterns("["));
  assert_error(WI_E_FORMAT, "does not compile", PreTokenizer::from_patterns(R"(\p{Nonsense})"));
}

void exponential_patterns_end_in_an_error(void**) {
  const PreTokenizer hostile = PreTokenizer::from_patterns("(a+a+)+[bc]");
  PreTokenizer::Matcher matcher(hostile);
  assert_error(WI_E_UNSUPPORTED, "near byte 0",
               matcher.split(std::string(200, 'a'), [](std::string_view) {}));
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
      cmocka_unit_test(exponential_patterns_end_in_an_error),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
