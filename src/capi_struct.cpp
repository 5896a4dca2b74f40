#include "src/capi_struct.h"

#include <algorithm>
#include <cstring>

namespace wi {
namespace {

// Bytes of the code point that text starts with; 0 if it starts with none (RFC 3629, no surrogates).
size_t code_point_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto continues = [&](size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) {
      if ((byte(i) & 0xC0u) != 0x80u) return false;
    }
    return true;
  };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return continues(1, 2) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && second < 0xA0, surrogate = first == 0xED && second > 0x9F;
    return continues(1, 3) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && second < 0x90, beyond = first == 0xF4 && second > 0x8F;
    return continues(1, 4) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

}  // namespace

uint32_t check_struct_size(const void* theirs, const char* name) {
  uint32_t size = 0;
  std::memcpy(&size, theirs, sizeof size);
  check(size >= sizeof size && size <= kLargestStruct, WI_E_ARGUMENT, name, ".struct_size is ", size,
        ", must be the size of the struct (", sizeof size, " to ", kLargestStruct, ")");
  return size;
}

void copy_struct_in(const void* theirs, void* ours, size_t our_size, const char* name) {
  const size_t size = check_struct_size(theirs, name);
  const auto* bytes = static_cast<const unsigned char*>(theirs);
  for (size_t offset = our_size; offset < size; ++offset) {
    check(bytes[offset] == 0, WI_E_ARGUMENT, name, " has ", size, " bytes, this library knows ", our_size,
          ", and the one at offset ", offset, " is ", static_cast<int>(bytes[offset]),
          ", not 0: it asks for something newer");
  }
  std::memcpy(ours, theirs, std::min(size, our_size));
}

void copy_struct_out(const void* ours, size_t our_size, void* theirs) {
  uint32_t size = 0;
  std::memcpy(&size, theirs, sizeof size);
  const size_t common = std::min<size_t>(size, our_size), header = sizeof size;
  auto* out = static_cast<std::byte*>(theirs);
  std::memcpy(out + header, static_cast<const std::byte*>(ours) + header, common - header);
  std::memset(out + common, 0, size - common);
}

size_t copy_utf8(std::string_view text, char* out, size_t capacity) {
  size_t used = 0;
  while (!text.empty() && text[0] != '\0') {
    const size_t bytes = code_point_bytes(text), written = std::max<size_t>(bytes, 1);
    if (used + written >= capacity) break;
    if (bytes)
      std::memcpy(out + used, text.data(), bytes);
    else
      out[used] = '?';
    used += written;
    text.remove_prefix(written);
  }
  if (capacity) out[used] = '\0';
  return used;
}

void check_list_out(const void* out, uint64_t capacity, const uint64_t* count_out, const char* out_name,
                    const char* count_name) {
  check(count_out != nullptr, WI_E_ARGUMENT, count_name, " is NULL");
  check(out != nullptr || capacity == 0, WI_E_ARGUMENT, out_name, " is NULL with capacity ", capacity);
}

void report_list_size(const void* out, uint64_t needed, uint64_t capacity, uint64_t* count_out,
                      const char* out_name) {
  *count_out = needed;
  check(!out || needed <= capacity, WI_E_ARGUMENT, "capacity is ", capacity, ", ", out_name, " needs ",
        needed);
}

}  // namespace wi
