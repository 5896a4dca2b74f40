// Where the newest tokens stood before, against a search of all positions.
#include "src/repeats.h"

#include <algorithm>
#include <random>
#include <vector>

#include "test.h"

namespace wi {
namespace {

TokenLog log_of(const std::vector<int32_t>& ids) {
  TokenLog log;
  log.append(ids);
  return log;
}

std::vector<Repeat> found_in(const TokenLog& log, int64_t first, int64_t end, int32_t most) {
  std::vector<Repeat> out(static_cast<size_t>(most) + 1);
  out.resize(static_cast<size_t>(find_repeats(log, first, end, most, out.data())));
  return out;
}

std::vector<Repeat> all_repeats(const std::vector<int32_t>& ids, int64_t first, int64_t end) {
  std::vector<Repeat> all;
  const int64_t newest = static_cast<int64_t>(ids.size()) - 1;
  for (int64_t last = std::min(end, newest) - 1; last >= first; --last) {
    int64_t length = 0;
    while (length <= last && length < kLongestRepeat &&
           ids[static_cast<size_t>(last - length)] == ids[static_cast<size_t>(newest - length)])
      ++length;
    if (length >= kShortestRepeat) all.push_back({last, length});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Repeat& a, const Repeat& b) { return a.tokens > b.tokens; });
  return all;
}

void the_longest_repeats_are_found_the_newest_of_equals_first(void**) {
  std::mt19937_64 random(test::seed());
  for (int64_t count : {1, 2, 5, 63, 64, 65, 700, 4096, 4097, 9000})
    for (int32_t vocab : {1, 2, 5, 40}) {
      std::vector<int32_t> ids(static_cast<size_t>(count));
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
      const TokenLog log = log_of(ids);
      for (int64_t first : {int64_t{0}, int64_t{4}, count / 2})
        for (int64_t end : {int64_t{4}, count / 3, count - 1, count + 100})
          for (int32_t most : {0, 1, 2, kMostRepeats}) {
            std::vector<Repeat> expected = all_repeats(ids, first, end);
            expected.resize(std::min(expected.size(), static_cast<size_t>(most)));
            const std::vector<Repeat> got = found_in(log, first, end, most);
            assert_int_equal(got.size(), expected.size());
            for (size_t i = 0; i < got.size(); ++i) {
              assert_int_equal(got[i].last, expected[i].last);
              assert_int_equal(got[i].tokens, expected[i].tokens);
            }
          }
    }
}

void a_pair_is_no_repeat(void**) {
  assert_int_equal(found_in(log_of({7, 1, 2, 8, 9, 1, 2}), 0, 5, 2).size(), 0);
  const std::vector<Repeat> three = found_in(log_of({7, 1, 2, 3, 9, 1, 2, 3}), 0, 5, 2);
  assert_int_equal(three.size(), 1);
  assert_int_equal(three[0].last, 3);
  assert_int_equal(three[0].tokens, 3);
}

void an_empty_log_has_none(void**) { assert_int_equal(found_in(TokenLog(), 0, 10, 2).size(), 0); }

}  // namespace
}  // namespace wi

int main() {
  using namespace wi;
  const CMUnitTest tests[] = {
      cmocka_unit_test(the_longest_repeats_are_found_the_newest_of_equals_first),
      cmocka_unit_test(a_pair_is_no_repeat),
      cmocka_unit_test(an_empty_log_has_none),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
