// Tokenizers against the reference libraries' ids, exact round trips, special tokens, and what create()
// refuses.
#include <random>

#include "support/cancel_time.h"
#include "support/fewer.h"
#include "test.h"
#include "tokenizer_fixture.h"

namespace wi {
namespace {

using namespace test;
using Ids = std::vector<int32_t>;

void expect_ids(const Tokenizer& tokenizer, const std::string& name, const std::string& text,
                const Ids& wanted, bool parse_special) {
  const Ids ids = tokenizer.encode(text, false, parse_special);
  if (ids == wanted) return;
  std::printf("%s: \"%s\":", name.c_str(), text.c_str());
  for (int32_t id : ids) std::printf(" %d", id);
  std::printf(", wanted:");
  for (int32_t id : wanted) std::printf(" %d", id);
  std::printf("\n");
  assert_true(ids == wanted);
}

void expect_round_trip(const Tokenizer& tokenizer, const std::string& text) {
  for (bool parse_special : {false, true}) {
    const std::string back = tokenizer.decode(tokenizer.encode(text, false, parse_special), true);
    assert_int_equal(back.size(), text.size());
    assert_true(back == text);
  }
}

void byte_bpe_gives_the_reference_ids(void**) {
  for (const char* name : kByteTokenizers) {
    for (bool with_pattern : {false, true}) {
      const TokenizerFixture fixture = read_tokenizer(name, with_pattern);
      const auto tokenizer = Tokenizer::create(fixture.vocabulary);
      for (const TokenizerCase& one : fixture.cases) {
        expect_ids(*tokenizer, name, one.text, one.ids, true);
        expect_ids(*tokenizer, name, one.text, one.plain_ids, false);
        expect_round_trip(*tokenizer, one.text);
      }
    }
  }
}

void sentencepiece_gives_the_reference_ids(void**) {
  const TokenizerFixture fixture = read_tokenizer("sentencepiece");
  const auto tokenizer = Tokenizer::create(fixture.vocabulary);
  for (const TokenizerCase& one : fixture.cases) {
    // The reference turns an empty text into nothing and keeps U+2581 of the text as a space, as here.
    expect_ids(*tokenizer, "sentencepiece", one.text, one.ids, true);
    expect_round_trip(*tokenizer, one.text);
  }
}

void any_bytes_round_trip(void**) {
  std::mt19937_64 random(seed());
  for (const char* name : {"llama-bpe", "qwen2", "gpt-2", "deepseek-v3", "deepseek-llm", "sentencepiece"}) {
    const auto tokenizer = Tokenizer::create(read_tokenizer(name).vocabulary);
    for (const char* text :
         {"\xff", "\xc3", "a\xc3", "\xc3 a", "\xe4\xb8", "\xe4\xb8\xad\xb8", "\xf0\x9f\x98", "\xed\xa0\x80",
          "\xc0\x80", "\xf4\x90\x80\x80", "<|end|>\xff<|end|>", " \xe2\x96\x81 "})
      if (std::string(name) != "sentencepiece" || !std::strstr(text, "\xe2\x96\x81"))
        expect_round_trip(*tokenizer, text);
    for (int round = 0; round < few_or(50, 500); ++round) {
      std::string text(random() % 64, '\0');
      for (char& c : text)
        c = static_cast<char>(round % 2 ? random()
                                        : (random() % 4 ? ' ' + random() % 64 : 0x80 + random() % 128));
      expect_round_trip(*tokenizer, text);
    }
  }
}

void bytes_that_are_no_utf8_are_words_of_their_own(void**) {
  Vocabulary vocabulary = byte_vocabulary("gpt-2");
  add_merge(vocabulary, "a", "b");
  add_merge(vocabulary, "ÿ", "ÿ");  // 0xFF 0xFF would merge inside a word
  const auto tokenizer = Tokenizer::create(vocabulary);
  assert_true(tokenizer->encode("ab\xff\xff"
                                "ab",
                                false, false) == (Ids{256, 255, 255, 256}));
}

void specials_are_found_longest_first(void**) {
  Vocabulary vocabulary = byte_vocabulary("gpt-2");
  const int32_t end = add_special(vocabulary, "<|end|>"), turn = add_special(vocabulary, "<|end|>x");
  const int32_t word = add_special(vocabulary, "<t>", TokenKind::user_defined);
  vocabulary.bos = end;
  vocabulary.add_bos = true;
  const auto tokenizer = Tokenizer::create(vocabulary);
  assert_true(tokenizer->encode("<|end|>x<|end|>y", false, true) == (Ids{turn, end, 'y'}));
  assert_true(tokenizer->encode("<|<|end|>", false, true) == (Ids{'<', '|', end}));
  assert_true(tokenizer->encode("<|end|><t>", false, false) ==
              (Ids{'<', '|', 'e', 'n', 'd', '|', '>', word}));
  assert_true(tokenizer->encode("y", true, false) == (Ids{end, 'y'}));
  assert_string_equal(tokenizer->decode(Ids{end, 'y', word}, false).c_str(), "y<t>");
  assert_string_equal(tokenizer->decode(Ids{end, 'y', word}, true).c_str(), "<|end|>y<t>");
  assert_int_equal(tokenizer->find("<|end|>x"), turn);
  assert_int_equal(tokenizer->find("<|nothing|>"), -1);
}

// Words that the file does not flag as special, but the template writes between turns; others are the user's.
void marks_of_a_template_are_not_made_of_host_text(void**) {
  Vocabulary vocabulary = byte_vocabulary("gpt-2");
  const char* words[] = {"<｜User｜>", "<|user|>", "<think>", "  ", "<other>"};
  int32_t ids[std::size(words)];
  for (size_t i = 0; i < std::size(words); ++i)
    ids[i] = add_special(vocabulary, words[i], TokenKind::user_defined);
  const auto tokenizer = Tokenizer::create(vocabulary);
  const auto expect = [&](size_t word, const std::string& literals, bool is_mark) {
    const std::string name = words[word], text = name + name;
    const std::vector<TextRange> host = {{name.size(), text.size()}},
                                 part = {{name.size() + 1, name.size() + 2}};
    Ids wanted{ids[word]};
    if (is_mark)
      for (const char c : name) wanted.push_back(static_cast<unsigned char>(c));
    else
      wanted.push_back(ids[word]);
    for (const auto& ranges : {host, part})
      assert_true(tokenizer->encode_beside(text, ranges, literals) == wanted);
  };
  const auto texts = [](std::initializer_list<std::string> all) {
    std::string joined(1, '\0');
    for (const std::string& text : all) joined += text + '\0';
    return joined;
  };
  expect(0, texts({"a<｜User｜>b"}), true);
  expect(0, texts({"<｜User", "｜>"}), false);
  expect(0, texts({}), false);
  expect(0, {}, false);
  expect(1, texts({"x <|", "|> y"}), true);  // '<|' + role + '|>'
  expect(1, texts({"|>", "<|"}), true);
  expect(1, texts({"<|", "x|>"}), false);
  expect(2, texts({"</think>"}), false);
  expect(2, texts({"\n<think>\n"}), true);
  expect(3, texts({"a  b"}), false);
  expect(4, texts({"<think>", "<|"}), false);
}

// Not a word of its prose, nor a sign that texts of all kinds have.
void words_and_signs_of_a_template_s_prose_are_no_marks(void**) {
  Vocabulary vocabulary = byte_vocabulary("gpt-2");
  Ids ids;
  const std::string prose = "You are an assistant. 26 ``` -\xe4\xbd\xa0";
  for (const char* word : {"assistant", "2", "```", " -", "You are", "\xe4\xbd\xa0"})
    ids.push_back(add_special(vocabulary, word, TokenKind::user_defined));
  const auto tokenizer = Tokenizer::create(vocabulary);
  for (const int32_t id : ids) {
    const std::string word(tokenizer->piece(id, true));
    const TextRange host = {0, word.size()};
    assert_true(tokenizer->encode_beside(word, {&host, 1}, '\0' + prose + '\0') == Ids{id});
  }
}

void marks_are_what_stands_in_the_texts(void**) {
  std::mt19937_64 random(seed());
  const auto any = [&](size_t length) {
    std::string text(length, ' ');
    for (char& c : text) c = "aa<>"[random() % 4];
    return text;
  };
  int64_t marks = 0;
  for (int round = 0; round < few_or(20, 300); ++round) {
    Vocabulary vocabulary = byte_vocabulary("gpt-2");
    std::vector<std::string> words;
    Ids ids;
    for (int i = 0; i < 12; ++i) {
      words.push_back(any(2 + random() % 5));
      ids.push_back(add_special(vocabulary, words.back(), TokenKind::user_defined));
    }
    const auto tokenizer = Tokenizer::create(vocabulary);
    const std::string text = 'b' + any(random() % 12) + 'b';  // no name may be put between two of it
    for (size_t i = 0; i < words.size(); ++i) {
      const bool first = std::find(words.begin(), words.end(), words[i]) == words.begin() + ptrdiff_t(i);
      const bool named =
          words[i].find('a') != std::string::npos && words[i].find_first_of("<>") != std::string::npos;
      const bool is_mark = named && text.find(words[i]) != std::string::npos;
      marks += is_mark;
      const TextRange host = {0, words[i].size()};
      const Ids made = tokenizer->encode_beside(words[i], {&host, 1}, '\0' + text + '\0');
      if (!is_mark && first) assert_true(made == Ids{ids[i]});
      if (is_mark) assert_true(std::find(made.begin(), made.end(), ids[i]) == made.end());
    }
  }
  assert_true(marks > 10);
}

// Each byte of a text was the begin of a thousand of them, and each of a template's texts was noted as often.
void crowded_words_cost_little(void**) {
  Vocabulary vocabulary = byte_vocabulary("gpt-2");
  const int32_t most = few_or(100, 300);
  std::string chain;
  for (int32_t depth = 0; depth < most; ++depth) {
    chain += depth % 2 ? '<' : 'a';
    for (unsigned byte = 1; byte < 128; ++byte)
      if (const char end = static_cast<char>(byte); end != '<' && end != 'a')
        add_special(vocabulary, chain + end, TokenKind::user_defined);
  }
  add_special(vocabulary, chain, TokenKind::user_defined);
  const auto seconds = [](const std::function<void()>& work) {
    return least_of_tries(1, [&] {
      const auto begin = time_worked(CLOCK_THREAD_CPUTIME_ID);
      work();
      return std::chrono::duration<double>(time_worked(CLOCK_THREAD_CPUTIME_ID) - begin).count();
    });
  };
  std::unique_ptr<const Tokenizer> tokenizer;
  const double opening = seconds([&] { tokenizer = Tokenizer::create(vocabulary); });
  std::string text;
  while (text.size() < 20'000) text += "a<";
  const double encoding = seconds([&] { assert_true(!tokenizer->encode(text, false, false).empty()); });
  while (text.size() < 1'000'000) text += text;
  const double marking =
      seconds([&] { assert_int_equal(tokenizer->encode_beside("x", {}, text).size(), 1); });
  std::printf("%d words: opened in %.2f s, 20 KB in %.2f s, marks of 1 MB in %.2f s\n", most * 125, opening,
              encoding, marking);
  assert_in_time(opening < 3);   // 13 s
  assert_in_time(encoding < 1);  // 4 s
  assert_in_time(marking < 3);   // 15 s
}

void bos_comes_only_where_the_file_wants_one(void**) {
  Vocabulary vocabulary = byte_vocabulary("qwen2");
  vocabulary.bos = 5;
  assert_true(Tokenizer::create(vocabulary)->encode("a", true, false) == (Ids{'a'}));
}

void a_whole_word_wins_over_merges_for_llama3_only(void**) {
  for (const char* name : {"llama-bpe", "qwen2"}) {
    Vocabulary vocabulary = byte_vocabulary(name);
    vocabulary.tokens.push_back("abc");  // no merge leads to it
    vocabulary.kinds.push_back(TokenKind::normal);
    const Ids ids = Tokenizer::create(vocabulary)->encode("abc", false, false);
    assert_true(ids == (std::string(name) == "qwen2" ? Ids{'a', 'b', 'c'} : Ids{256}));
  }
}

Vocabulary small_sentencepiece() {
  Vocabulary vocabulary;
  vocabulary.model = Vocabulary::Model::sentencepiece;
  vocabulary.add_space_prefix = vocabulary.space_after_special = true;
  vocabulary.tokens = {"<unk>", "<s>", "</s>", "\u2581", "a", "b", "\u2581a", "ab", "<0x0A>"};
  vocabulary.kinds = {TokenKind::unknown, TokenKind::control, TokenKind::control,
                      TokenKind::normal,  TokenKind::normal,  TokenKind::normal,
                      TokenKind::normal,  TokenKind::normal,  TokenKind::byte};
  vocabulary.scores = {0, 0, 0, -9, -9, -9, -2, -1, 0};
  vocabulary.unknown = 0;
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  return vocabulary;
}

// Parts of it that are tokens were joined to the mark, where the model's own tokens are.
void no_mark_is_joined_from_a_host_s_text(void**) {
  Vocabulary pieces = small_sentencepiece();
  const auto add = [&](const char* text, float score, TokenKind kind) {
    pieces.tokens.push_back(text);
    pieces.scores.push_back(score);
    pieces.kinds.push_back(kind);
    return static_cast<int32_t>(pieces.tokens.size() - 1);
  };
  for (const char* part : {"<", "t", ">", "<t"}) add(part, -1, TokenKind::normal);
  const int32_t mark = add("<t>", 0, TokenKind::user_defined);
  Vocabulary bytes = byte_vocabulary("gpt-2");
  bytes.ignore_merges = true;
  add_merge(bytes, "<", "t");
  const int32_t other = add_special(bytes, "<t>", TokenKind::user_defined);
  bytes.merges.push_back("<t >");
  Vocabulary controls = bytes;  // where an ordinary word was made one
  controls.kinds[static_cast<size_t>(other)] = TokenKind::control;
  for (const auto& [vocabulary, id] :
       {std::make_pair(pieces, mark), std::make_pair(bytes, other), std::make_pair(controls, other)}) {
    const auto tokenizer = Tokenizer::create(vocabulary);
    const std::string text = "<t>a<t>";
    const TextRange host = {3, text.size()};
    const Ids made = tokenizer->encode_beside(text, {&host, 1}, std::string("\0x<t>\0", 6));
    assert_int_equal(std::count(made.begin(), made.end(), id), 1);
    assert_int_equal(made.front(), id);
    assert_string_equal(tokenizer->decode(made, true).c_str(),
                        tokenizer->decode(tokenizer->encode(text, false, true), true).c_str());
  }
}

void sentencepiece_joins_by_score_and_falls_back(void**) {
  const auto tokenizer = Tokenizer::create(small_sentencepiece());
  assert_true(tokenizer->encode("ab", false, false) == (Ids{3, 7}));  // ab scores above ▁a
  assert_true(tokenizer->encode("a b", false, false) == (Ids{6, 3, 5}));
  assert_true(tokenizer->encode("a\n", false, false) == (Ids{6, 8}));      // a byte token
  assert_true(tokenizer->encode("a\u4e2d", false, false) == (Ids{6, 0}));  // no byte token: unknown, once
  assert_true(tokenizer->encode("<s>a", false, true) == (Ids{1, 6}));
  assert_true(tokenizer->encode("<s>", false, false)[0] == 3);
  assert_string_equal(tokenizer->decode(Ids{1, 6, 6}, false).c_str(), "a a");
}

void create_refuses_what_does_not_fit(void**) {
  const auto with = [](auto&& change) {
    return [change] {
      Vocabulary vocabulary = byte_vocabulary("gpt-2");
      add_merge(vocabulary, "a", "b");
      change(vocabulary);
      Tokenizer::create(vocabulary);
    };
  };
  using V = Vocabulary;
  assert_error(WI_E_UNSUPPORTED, "\"qwen9\"", with([](V& v) { v.pre_tokenizer = "qwen9"; })());
  assert_error(WI_E_FORMAT, "tokens is empty", with([](V& v) { v.tokens.clear(); })());
  assert_error(WI_E_FORMAT, "kinds has 256", with([](V& v) { v.kinds.pop_back(); })());
  assert_error(WI_E_FORMAT, "kinds[3] is 9", with([](V& v) { v.kinds[3] = static_cast<TokenKind>(9); })());
  assert_error(WI_E_FORMAT, "scores has 1", with([](V& v) { v.scores = {1}; })());
  assert_error(WI_E_FORMAT, "scores[7] is nan", with([](V& v) {
                 v.scores.assign(257, 0);
                 v.scores[7] = NAN;
               })());
  assert_error(WI_E_FORMAT, "bos is 257", with([](V& v) { v.bos = 257; })());
  assert_error(WI_E_FORMAT, "eos is -2", with([](V& v) { v.eos = -2; })());
  assert_error(WI_E_FORMAT, "add_bos", with([](V& v) { v.add_bos = true; })());
  assert_error(WI_E_FORMAT, "end_of_generation[1] is 300", with([](V& v) {
                 v.end_of_generation = {1, 300};
               })());
  assert_error(WI_E_FORMAT, "merges[1] is \"ab\"", with([](V& v) { v.merges.push_back("ab"); })());
  assert_error(WI_E_FORMAT, "merges[1] names \"ax\"", with([](V& v) { v.merges.push_back("ax b"); })());
  assert_error(WI_E_FORMAT, "merges[1] names \"xx\"", with([](V& v) { v.merges.push_back("b xx"); })());
  assert_error(WI_E_FORMAT, "merges[1] makes \"bb\"", with([](V& v) { v.merges.push_back("b b"); })());
  assert_error(WI_E_FORMAT, "lacks byte 65", with([](V& v) { v.tokens[65] = "?A"; })());
  assert_error(WI_E_FORMAT, "special token of 2000 bytes",
               with([](V& v) { add_special(v, std::string(2000, 'x')); })());
  assert_error(WI_E_UNSUPPORTED, "have 10000000 bytes, at most 8388608", with([](V& v) {
                 for (int i = 0; i < 10000; ++i) add_special(v, std::string(1000, 'x'));
               })());
  assert_error(WI_E_FORMAT, "does not compile", with([](V& v) { v.splits = splits("a)"); })());
  assert_error(WI_E_FORMAT, "scores is empty", {
    V v = small_sentencepiece();
    v.scores.clear();
    Tokenizer::create(v);
  });
  assert_error(WI_E_FORMAT, "tokens[8]", {
    V v = small_sentencepiece();
    v.tokens[8] = "<0xZZ>";
    Tokenizer::create(v);
  });
  assert_error(WI_E_FORMAT, "lacks byte 0", {
    V v = small_sentencepiece();
    v.unknown = -1;
    Tokenizer::create(v);
  });
}

void tokens_out_of_range_are_refused(void**) {
  const auto tokenizer = Tokenizer::create(byte_vocabulary("gpt-2"));
  assert_error(WI_E_ARGUMENT, "token is 256", tokenizer->piece(256, true));
  assert_error(WI_E_ARGUMENT, "token is -1", tokenizer->decode(Ids{-1}, false));
}

}  // namespace
}  // namespace wi

int main() {
  using namespace wi;
  const CMUnitTest tests[] = {
      cmocka_unit_test(byte_bpe_gives_the_reference_ids),
      cmocka_unit_test(sentencepiece_gives_the_reference_ids),
      cmocka_unit_test(any_bytes_round_trip),
      cmocka_unit_test(bytes_that_are_no_utf8_are_words_of_their_own),
      cmocka_unit_test(specials_are_found_longest_first),
      cmocka_unit_test(marks_of_a_template_are_not_made_of_host_text),
      cmocka_unit_test(words_and_signs_of_a_template_s_prose_are_no_marks),
      cmocka_unit_test(marks_are_what_stands_in_the_texts),
      cmocka_unit_test(crowded_words_cost_little),
      cmocka_unit_test(no_mark_is_joined_from_a_host_s_text),
      cmocka_unit_test(bos_comes_only_where_the_file_wants_one),
      cmocka_unit_test(a_whole_word_wins_over_merges_for_llama3_only),
      cmocka_unit_test(sentencepiece_joins_by_score_and_falls_back),
      cmocka_unit_test(create_refuses_what_does_not_fit),
      cmocka_unit_test(tokens_out_of_range_are_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
