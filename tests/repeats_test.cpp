// Where the newest tokens stood before, against a search of all positions.
#include "src/repeats.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <time.h>
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

void check_all(const std::vector<int32_t>& ids) {
  const TokenLog log = log_of(ids);
  const int64_t count = log.size();
  for (int64_t first : {int64_t{0}, int64_t{4}, count / 2})
    for (int64_t end : {int64_t{4}, count / 3, count - 1, count + 100}) {
      const std::vector<Repeat> all = all_repeats(ids, first, end);
      for (int32_t most : {0, 1, 2, kMostRepeats}) {
        const std::vector<Repeat> got = found_in(log, first, end, most);
        assert_int_equal(got.size(), std::min(all.size(), static_cast<size_t>(most)));
        for (size_t i = 0; i < got.size(); ++i) {
          assert_int_equal(got[i].last, all[i].last);
          assert_int_equal(got[i].tokens, all[i].tokens);
        }
      }
    }
}

void the_longest_repeats_are_found_the_newest_of_equals_first(void**) {
  std::mt19937_64 random(test::seed());
  for (int64_t count : {1, 2, 5, 63, 64, 65, 700, 4096, 4097, 9000})
    for (uint64_t vocab : {1, 2, 3, 5, 40}) {
      std::vector<int32_t> ids(static_cast<size_t>(count));
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocab);
      check_all(ids);
    }
}

// Adds `count` tokens of which one in so many is another than the one `period` before.
void add_periodic(std::vector<int32_t>& ids, size_t count, size_t period, uint64_t one_in,
                  std::mt19937_64& random) {
  for (const size_t size = ids.size() + count; ids.size() < size;) {
    const bool other = ids.size() < period || random() % one_in == 0;
    ids.push_back(other ? static_cast<int32_t>(random() % 3) : ids[ids.size() - period]);
  }
}

void repeats_of_rulers_and_tables_are_those_of_a_search_of_all_positions(void**) {
  std::mt19937_64 random(test::seed());
  for (size_t period = 1; period <= 70; ++period)
    for (uint64_t one_in : {11, 47, 90, 5000}) {
      std::vector<int32_t> ids;
      add_periodic(ids, 200 + random() % 700, period, one_in, random);
      check_all(ids);
    }
  for (int text = 0; text < 60; ++text) {  // of pieces, in more than one chunk
    std::vector<int32_t> ids;
    while (ids.size() < 4300)
      add_periodic(ids, 1 + random() % 200, 1 + random() % (random() % 2 ? 3 : 70), 1 + random() % 200,
                   random);
    check_all(ids);
  }
}

// Equal tokens, `run` of them between others, and `newest` of them at the end.
std::vector<int32_t> rulers(int64_t run, int64_t newest, std::mt19937_64& random) {
  std::vector<int32_t> ids(1'000'000, 7);
  for (size_t i = 0; i < ids.size(); i += static_cast<size_t>(run) + 1)
    ids[i] = static_cast<int32_t>(100 + random() % 30000);
  ids.push_back(3);
  ids.insert(ids.end(), static_cast<size_t>(newest), 7);
  return ids;
}

double processor_ms() {  // of this thread
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

// A lookup that compares anew at each place takes more than a thousand times as long in rulers as where the newest token
// is rare. One that compares each token a few times takes about ten times as long, since those texts go sixteen bytes at
// a time; the rest of the bound is for machines that others use.
void rulers_cost_about_what_any_text_does(void**) {
  std::mt19937_64 random(test::seed());
  std::vector<int32_t> any(1'000'000);
  for (int32_t& id : any) id = static_cast<int32_t>(100 + random() % 30000);
  const auto ms_of = [](const std::vector<int32_t>& ids, double limit) {
    const TokenLog log = log_of(ids);
    return test::least_of_tries(limit, [&] {
      const double began = processor_ms();
      found_in(log, 0, log.size(), 2);
      return processor_ms() - began;
    });
  };
  const double any_ms = ms_of(any, 0);
  for (int64_t run : {8, 20, 40, 60})
    for (int64_t newest : {run, run + 2}) {
      const double ms = ms_of(rulers(run, newest, random), 100 * any_ms);
      std::printf("runs of %d, %d at the end: %.2f ms; any text: %.2f ms\n", static_cast<int>(run),
                  static_cast<int>(newest), ms, any_ms);
      assert_in_time(ms < 100 * any_ms);
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
      cmocka_unit_test(repeats_of_rulers_and_tables_are_those_of_a_search_of_all_positions),
      cmocka_unit_test(rulers_cost_about_what_any_text_does),
      cmocka_unit_test(a_pair_is_no_repeat),
      cmocka_unit_test(an_empty_log_has_none),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
