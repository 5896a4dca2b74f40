#include "src/tokenizer/merge_table.h"

#include <algorithm>
#include <string_view>

#include "src/error.h"
#include "src/files/watch.h"
#include "src/tokenizer/tokenizer.h"

namespace wi {

MergeTable read_merges(const Tokenizer& tokenizer, Watch* watch) {
  const std::vector<std::string>& merges = tokenizer.vocabulary().merges;
  check(merges.size() < kNoRank, WI_E_FORMAT, "merges has ", merges.size(), " entries");
  MergeTable table;
  table.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    tick(watch, i);
    const std::string_view merge = merges[i];
    const size_t space = merge.find(' ', 1);
    check(space != std::string_view::npos && space + 1 < merge.size(), WI_E_FORMAT, "merges[", i, "] is \"",
          merge, "\", not two tokens with a space between");
    const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
    const int32_t left_id = tokenizer.find(left), right_id = tokenizer.find(right),
                  joined = tokenizer.find(concat(left, right));
    check(left_id >= 0, WI_E_FORMAT, "merges[", i, "] names \"", left, "\", which tokens lacks");
    check(right_id >= 0, WI_E_FORMAT, "merges[", i, "] names \"", right, "\", which tokens lacks");
    check(joined >= 0, WI_E_FORMAT, "merges[", i, "] makes \"", left, right, "\", which tokens lacks");
    table.insert(left_id, right_id, {static_cast<uint32_t>(i), joined});
    if (tokenizer.vocabulary().kinds[static_cast<size_t>(joined)] == TokenKind::control)
      table.specials.push_back(joined);
  }
  std::sort(table.specials.begin(), table.specials.end());
  return table;
}

}  // namespace wi
