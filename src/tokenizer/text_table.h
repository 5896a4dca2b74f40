// Text → value, of texts that stay where they are. Open addressing in one flat array at half load: tables of
// millions of tokens are quickly filled, and gone at once when the opening of a file is given up.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "src/text_hash.h"

namespace wi {

template <class Value>
class TextTable {
 public:
  void reserve(size_t texts) { slots_.assign(std::bit_ceil(texts * 2 + 2), {}); }

  // The first value of a text holds. At most as many texts as were reserved.
  void insert(std::string_view text, Value value) {
    const auto hash = static_cast<uint32_t>(TextHash()(text));
    Slot& slot = slots_[position(text, hash)];
    if (!slot.taken) slot = {text, hash, true, value};
  }
  // Null: it is not there.
  const Value* find(std::string_view text) const {
    if (slots_.empty()) return nullptr;
    const Slot& slot = slots_[position(text, static_cast<uint32_t>(TextHash()(text)))];
    return slot.taken ? &slot.value : nullptr;
  }

 private:
  struct Slot {
    std::string_view text;
    uint32_t hash = 0;
    bool taken = false;
    Value value{};
  };
  size_t position(std::string_view text, uint32_t hash) const {
    const size_t mask = slots_.size() - 1;
    size_t at = hash & mask;
    while (slots_[at].taken && (slots_[at].hash != hash || slots_[at].text != text)) at = (at + 1) & mask;
    return at;
  }
  std::vector<Slot> slots_;
};

}  // namespace wi
