// The merge loop against the plain rule: look for the lowest rank, leftmost first, join, look again.
#include "src/tokenizer/merge_queue.h"

#include <map>
#include <random>

#include "test.h"

namespace wi {
namespace {

using Ranks = std::map<std::pair<uint32_t, uint32_t>, uint32_t>;

// Few ranks, several pairs to a rank, and joins that make pairs of lower rank than the one just joined.
Ranks random_ranks(std::mt19937_64& random, uint32_t symbols) {
  Ranks ranks;
  for (uint32_t pair = 0; pair < symbols * symbols / 2; ++pair)
    ranks[{random() % symbols, random() % symbols}] = random() % 8;
  return ranks;
}

uint32_t rank_of(const Ranks& ranks, uint32_t left, uint32_t right) {
  const auto found = ranks.find({left, right});
  return found == ranks.end() ? kNoRank : found->second;
}

uint32_t joined(uint32_t left, uint32_t right, uint32_t symbols) { return (left * 3 + right + 1) % symbols; }

std::vector<uint32_t> merge_plainly(std::vector<uint32_t> list, const Ranks& ranks, uint32_t symbols) {
  for (;;) {
    size_t best = 0;
    uint32_t lowest = kNoRank;
    for (size_t i = 0; i + 1 < list.size(); ++i)
      if (const uint32_t rank = rank_of(ranks, list[i], list[i + 1]); rank < lowest) lowest = rank, best = i;
    if (lowest == kNoRank) return list;
    list[best] = joined(list[best], list[best + 1], symbols);
    list.erase(list.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

std::vector<uint32_t> merge(std::vector<uint32_t> list, const Ranks& ranks, uint32_t symbols) {
  MergeQueue queue;
  Poll poll(nullptr);
  queue.run(
      static_cast<uint32_t>(list.size()),
      [&](uint32_t left, uint32_t right) { return rank_of(ranks, list[left], list[right]); },
      [&](uint32_t left, uint32_t right) { list[left] = joined(list[left], list[right], symbols); }, &poll);
  std::vector<uint32_t> left;
  for (uint32_t i = 0; i != MergeQueue::kEnd; i = queue.next(i)) left.push_back(list[i]);
  return left;
}

void expect_the_plain_result(size_t length, std::mt19937_64& random) {
  const uint32_t symbols = 3 + random() % 6;
  const Ranks ranks = random_ranks(random, symbols);
  std::vector<uint32_t> list(length);
  for (uint32_t& symbol : list) symbol = random() % symbols;
  assert_true(merge(list, ranks, symbols) == merge_plainly(list, ranks, symbols));
}

void short_words_merge_as_the_plain_rule_says(void**) {
  std::mt19937_64 random(test::seed());
  for (int round = 0; round < 2000; ++round) expect_the_plain_result(1 + random() % 40, random);
}

void long_words_merge_in_the_same_order(void**) {
  std::mt19937_64 random(test::seed() + 1);
  const uint32_t symbols = 4;
  for (int round = 0; round < 4; ++round) {
    const Ranks ranks = random_ranks(random, symbols);
    std::vector<uint32_t> list((1 << 14) + random() % 100);
    for (uint32_t& symbol : list) symbol = random() % symbols;
    // The plain rule is quadratic: it is run with the heap's order instead, on pairs pushed one by one.
    HeapOfPairs heap;
    Poll poll(nullptr);
    ListsOfPairs lists(poll);
    for (int step = 0; step < 200'000; ++step) {
      const auto rank = static_cast<uint32_t>(random() % 5),
                 position = static_cast<uint32_t>(random() % 1000);
      heap.push(rank, position);
      lists.push(rank, position);
      while (!heap.empty() && random() % 2) assert_true(heap.pop() == lists.pop());
    }
    while (!heap.empty()) assert_true(heap.pop() == lists.pop());
    assert_true(lists.empty());
    // And whole: what is left has no pair to join.
    const std::vector<uint32_t> left = merge(list, ranks, symbols);
    for (size_t i = 0; i + 1 < left.size(); ++i)
      assert_int_equal(rank_of(ranks, left[i], left[i + 1]), kNoRank);
  }
}

void positions_come_in_order_from_any_pieces(void**) {
  std::mt19937_64 random(test::seed() + 2);
  for (int round = 0; round < 300; ++round) {
    const size_t count = random() % 5000;
    std::vector<uint32_t> all(count);
    const uint64_t among = random() % 2 ? 100 : 1'000'000;
    for (uint32_t& position : all) position = static_cast<uint32_t>(random() % among);
    // In order, in order but for one, in two parts that are in order, as they come.
    const auto part = all.begin() + static_cast<ptrdiff_t>(count == 0 ? 0 : random() % count);
    if (round % 4 != 3) std::sort(all.begin(), part);
    if (round % 4 != 3) std::sort(part, all.end());
    if (round % 4 < 2) std::sort(all.begin(), all.end());
    if (round % 4 == 1 && count > 0) all.back() = 0;
    Poll poll(nullptr);
    PositionList<1000> list;
    for (const uint32_t position : all) list.push(position, poll);
    std::sort(all.begin(), all.end());
    for (const uint32_t position : all) {
      assert_false(list.empty());
      assert_int_equal(list.first(poll), position);
      list.take();
    }
    assert_true(list.empty());
  }
}

}  // namespace
}  // namespace wi

int main() {
  using namespace wi;
  const CMUnitTest tests[] = {
      cmocka_unit_test(short_words_merge_as_the_plain_rule_says),
      cmocka_unit_test(long_words_merge_in_the_same_order),
      cmocka_unit_test(positions_come_in_order_from_any_pieces),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
