// Reads the safetensors container: eight bytes of header length, a JSON header that names each tensor's type,
// shape and byte range, and the data. Nothing in it is trusted.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/files/tensor_table.h"
#include "src/files/watch.h"

namespace wi {

// The tensors point into the bytes, which must outlive them; file is the name for messages. The format does
// not promise alignment: data may start at any byte. Sorted by name.
std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> bytes, const std::string& file,
                                            Watch* watch = nullptr);

// model.safetensors.index.json: (tensor, shard file), sorted by tensor. Shards are plain names without a
// path.
std::vector<std::pair<std::string, std::string>> parse_shard_index(std::string_view text,
                                                                   const std::string& file,
                                                                   Watch* watch = nullptr);

}  // namespace wi
