// The hash of texts that come from files and hosts. Its seed is the process's own, so that nobody can write texts that
// all fall on one another in a table and make it take quadratic time.
#pragma once

#include <cstddef>
#include <string_view>

namespace wi {

struct TextHash {
  size_t operator()(std::string_view text) const noexcept;
};

}  // namespace wi
