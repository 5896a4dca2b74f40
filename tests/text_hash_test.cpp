// Texts whose hashes under the standard library's function are all the same have different ones here.
#include "src/text_hash.h"

#include <unordered_set>

#include "src/tokenizer/text_table.h"
#include "support/cancel_time.h"
#include "support/colliding_texts.h"
#include "tests/test.h"

using namespace wi;

namespace {

void texts_made_to_fall_on_one_another_do_not(void**) {
  if (!test::std_hash_is_murmurs()) skip();  // another library's function
  std::unordered_set<size_t> standard, own;
  const std::vector<std::string> texts = test::colliding_texts(1000, test::seed());
  for (const std::string& text : texts) {
    standard.insert(std::hash<std::string>()(text));
    own.insert(TextHash()(text));
  }
  assert_int_equal(standard.size(), 1);
  assert_int_equal(own.size(), texts.size());
}

void a_text_has_one_hash(void**) {
  assert_int_equal(TextHash()("text"), TextHash()(std::string("text")));
  assert_int_equal(TextHash()(""), TextHash()(std::string_view()));
  assert_int_not_equal(TextHash()("text"), TextHash()("Text"));
}

// Took time quadratic in their number.
void a_table_of_such_texts_is_filled_in_linear_time(void**) {
  const std::vector<std::string> texts = test::colliding_texts(50'000, test::seed());
  const auto start = test::time_worked(CLOCK_THREAD_CPUTIME_ID);
  TextTable<size_t> table;
  table.reserve(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) table.insert(texts[i], i);
  for (size_t i = 0; i < texts.size(); ++i) assert_int_equal(*table.find(texts[i]), i);
  const auto took = test::time_worked(CLOCK_THREAD_CPUTIME_ID) - start;
  std::printf("%zu texts in %.0f ms\n", texts.size(),
              std::chrono::duration<double, std::milli>(took).count());
  assert_in_time(took < std::chrono::seconds(1));  // 4 ms; a probe for each pair took 4 s
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(texts_made_to_fall_on_one_another_do_not),
      cmocka_unit_test(a_text_has_one_hash),
      cmocka_unit_test(a_table_of_such_texts_is_filled_in_linear_time),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
