// A part of a text, by its bytes.
#pragma once

#include <cstddef>

namespace wi {

struct TextRange {
  size_t begin, end;  // [begin, end)
  bool operator==(const TextRange&) const = default;
};

}  // namespace wi
