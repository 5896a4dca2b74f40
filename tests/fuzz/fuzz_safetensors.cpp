// Any bytes as a safetensors file ('s' first), a config.json ('c') or a shard index ('i'). Only wi::Error may
// come out; tensors that are accepted are read to their last byte.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "src/error.h"
#include "src/files/safetensors.h"
#include "src/model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace wi;
  if (size == 0) return 0;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data + 1, size - 1));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  try {
    if (data[0] == 's') {
      for (const StoredTensor& tensor : parse_safetensors(bytes, "fuzz.safetensors"))
        (void)read_floats(tensor);
    } else if (data[0] == 'c') {
      (void)rope_frequencies(config_from_json(text, "config.json"), nullptr);
    } else if (data[0] == 'i') {
      (void)parse_shard_index(text, "index.json");
    }
  } catch (const Error&) {
  }
  return 0;
}
