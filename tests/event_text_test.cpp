// Text of answers: code points stay whole, stop strings are never told however they are cut into tokens, and
// what is told is the same for every way of cutting.
#include "src/event_text.h"

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/test.h"

namespace wi {
namespace {

struct Answer {
  std::string text;
  bool stopped = false;
  size_t tokens = 0;  // until it stopped
};

Answer tell(const std::vector<std::string>& tokens, const StopStrings& stops) {
  EventText text;
  Answer answer;
  for (const std::string& token : tokens) {
    const EventText::Told told = text.next(token, stops);
    text.commit();
    answer.text += told.text;
    ++answer.tokens;
    if (told.stopped) {
      answer.stopped = true;
      assert_true(text.pending().empty());
      return answer;
    }
  }
  const EventText::Told rest = text.finish(stops);
  text.commit();
  answer.text += rest.text;
  answer.stopped = rest.stopped;
  assert_true(text.pending().empty());
  return answer;
}

std::vector<std::string> cut(const std::string& bytes, std::mt19937& random, size_t most) {
  std::vector<std::string> tokens;
  for (size_t at = 0; at < bytes.size();) {
    const size_t length = 1 + random() % most;
    tokens.push_back(bytes.substr(at, length));
    at += length;
  }
  return tokens;
}

// The stop string that is complete first, of several the longest, by trying them all.
Answer expected(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops)
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0)
        longest = std::max(longest, stop.size());
    if (longest) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

void code_points_stay_whole(void**) {
  const StopStrings none;
  EventText text;
  const auto next = [&](const char* bytes) {
    const std::string told(text.next(bytes, none).text);
    text.commit();
    return told;
  };
  assert_string_equal(next("a\xE2").c_str(), "a");
  assert_string_equal(next("\x82").c_str(), "");
  assert_string_equal(next("\xAC!").c_str(), "\xE2\x82\xAC!");
  assert_string_equal(next("\xF0\x9F").c_str(), "");
  assert_string_equal(next("x").c_str(), "\xEF\xBF\xBDx");
  assert_string_equal(next("\xC2").c_str(), "");
  assert_string_equal(std::string(text.finish(none).text).c_str(), "\xEF\xBF\xBD");
}

void a_stop_string_is_found_across_tokens(void**) {
  const StopStrings stops(std::vector<std::string>{"<|end|>", "\n\nUser:"});
  const Answer one = tell({"Hello <", "|e", "nd|", "> more"}, stops);
  assert_true(one.stopped);
  assert_string_equal(one.text.c_str(), "Hello ");
  const Answer two = tell({"a <|en", "d of it\n", "\nUse", " this"}, stops);
  assert_false(two.stopped);
  assert_string_equal(two.text.c_str(), "a <|end of it\n\nUse this");
}

void text_is_held_back_only_as_long_as_it_must_be(void**) {
  const StopStrings stops(std::vector<std::string>{"abcd"});
  EventText text;
  const auto next = [&](const char* bytes) {
    const std::string told(text.next(bytes, stops).text);
    text.commit();
    return told;
  };
  assert_string_equal(next("xab").c_str(), "x");
  assert_string_equal(next("ab").c_str(), "ab");
  assert_string_equal(next("c").c_str(), "");
  assert_string_equal(text.pending().c_str(), "abc");
  assert_string_equal(next("a").c_str(), "abc");
  assert_string_equal(std::string(text.finish(stops).text).c_str(), "a");
}

// Over two letters, so that strings overlap themselves and each other, and over bytes that are no UTF-8.
void every_way_of_cutting_tells_the_same(void**) {
  std::mt19937 random(static_cast<unsigned>(test::seed()));
  int stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto draw = [&](size_t least, size_t most) {
      std::string out(least + random() % (most - least + 1), 'a');
      for (char& c : out) c = static_cast<char>('a' + random() % 2);
      return out;
    };
    std::vector<std::string> strings;
    for (size_t i = random() % 4; i-- > 0;) strings.push_back(draw(1, 9));
    const std::string text = draw(0, 30);
    const Answer wanted = expected(text, strings);
    const Answer got = tell(cut(text, random, 1 + random() % 8), StopStrings(strings));
    assert_string_equal(got.text.c_str(), wanted.text.c_str());
    assert_int_equal(got.stopped, wanted.stopped);
    stopped += got.stopped;
  }
  assert_true(stopped > 1000 && stopped < 19000);
}

// What is told of bytes without stop strings, to the end of an answer or, as far as it is known, in the middle of one.
std::string told_of(const std::string& bytes, bool last) {
  const StopStrings none;
  EventText text;
  std::string told(text.next(bytes, none).text);
  text.commit();
  if (last) told += text.finish(none).text;
  return told;
}

// What is told of bytes up to a place, which may be in the middle of a code point.
std::string told_up_to(size_t place, const std::string& bytes) {
  const std::string before = bytes.substr(0, place), whole = told_of(before, true);
  const bool is_between = whole + told_of(bytes.substr(place), true) == told_of(bytes, true);
  return is_between ? whole : told_of(before, false);
}

// The stop string that is complete first, in the bytes or in what is told of them, when they come one by one; of
// several, and of what is told before it, the longest.
Answer expected_of_bytes(const std::string& bytes, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= bytes.size(); ++end) {
    const std::string some = bytes.substr(0, end), told = told_of(some, false);
    std::optional<std::string> before;
    const auto consider = [&](const std::string& text) {
      if (!before || text.size() < before->size()) before = text;
    };
    for (const std::string& stop : stops) {
      if (some.ends_with(stop)) consider(told_up_to(end - stop.size(), some));
      if (const size_t at = told.find(stop); at != std::string::npos) consider(told_up_to(at, told));
    }
    if (before) return {*before, true};
  }
  return expected(told_of(bytes, true), stops);
}

// What is no UTF-8 becomes U+FFFD in the same places, and stop strings are found in the bytes and in that.
void broken_bytes_are_told_the_same_however_they_are_cut(void**) {
  std::mt19937 random(static_cast<unsigned>(test::seed()));
  const std::string bytes_drawn =
      "\xE2\x82\xAC\xF0\x9F\x98\x80\xC2\xFF"
      "ab";
  const std::vector<std::string> strings = {"ab\xE2",
                                            "\x82\xAC"
                                            "a",
                                            "bb",
                                            "\xF0\x9F\x98\x80"
                                            "a",
                                            "a\uFFFD",
                                            "\uFFFD\uFFFD"
                                            "b",
                                            "\xFF\xFF"};
  int in_text = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text(random() % 20, ' ');
    for (char& c : text) c = bytes_drawn[random() % bytes_drawn.size()];
    std::vector<std::string> some;
    for (const std::string& string : strings)
      if (random() % 2) some.push_back(string);
    const Answer wanted = expected_of_bytes(text, some);
    const Answer got = tell(cut(text, random, 1 + random() % 5), StopStrings(some));
    assert_string_equal(got.text.c_str(), wanted.text.c_str());
    assert_int_equal(got.stopped, wanted.stopped);
    in_text += wanted.stopped && !expected(text, some).stopped;
  }
  assert_true(in_text > 1000);
}

void what_stands_for_broken_bytes_is_a_stop_string_as_any_text(void**) {
  const StopStrings stops(std::vector<std::string>{"\uFFFD"});
  for (const char* broken : {"\xFF", "\xE2\x82", "\xF0\x9F\x98", "\x80", "\uFFFD"}) {
    const Answer got = tell({"a", broken, "b"}, stops);
    assert_true(got.stopped);
    assert_string_equal(got.text.c_str(), "a");
  }
  const Answer at_the_end = tell({"a", "\xE2\x82"}, stops);
  assert_true(at_the_end.stopped);
  assert_string_equal(at_the_end.text.c_str(), "a");
}

void nothing_changes_before_commit(void**) {
  const StopStrings stops(std::vector<std::string>{"stop"});
  EventText text;
  text.next("\xE2 st", stops);
  assert_true(text.pending().empty());
  text.next("st", stops);
  text.commit();
  assert_string_equal(text.pending().c_str(), "st");
  text.finish(stops);
  text.next("op", stops);
  assert_string_equal(text.pending().c_str(), "st");
  assert_true(text.next("op", stops).stopped);
}

// A string that all but matches at every byte costs no more than one that never does: linear in text and
// string.
void a_hostile_stop_string_costs_its_length(void**) {
  const StopStrings stops(std::vector<std::string>(64, std::string(1023, 'a') + "b"));
  EventText text;
  std::string told;
  for (int i = 0; i < 300; ++i) {
    told += text.next("aaaaaaaa", stops).text;
    text.commit();
  }
  assert_int_equal(text.pending().size(), 1023);
  assert_int_equal(told.size() + 1023, 2400);
  assert_true(text.next("b", stops).stopped);
}

}  // namespace
}  // namespace wi

int main() {
  using namespace wi;
  const CMUnitTest tests[] = {
      cmocka_unit_test(code_points_stay_whole),
      cmocka_unit_test(a_stop_string_is_found_across_tokens),
      cmocka_unit_test(text_is_held_back_only_as_long_as_it_must_be),
      cmocka_unit_test(every_way_of_cutting_tells_the_same),
      cmocka_unit_test(broken_bytes_are_told_the_same_however_they_are_cut),
      cmocka_unit_test(what_stands_for_broken_bytes_is_a_stop_string_as_any_text),
      cmocka_unit_test(nothing_changes_before_commit),
      cmocka_unit_test(a_hostile_stop_string_costs_its_length),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
