// The tensors of a model's files by name, whichever format they came from: the common ground between the
// readers (gguf.cpp, safetensors.cpp) and model.cpp, which asks for tensors by name, shape and type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/types.h"
#include "src/text_hash.h"

namespace wi {

struct StoredTensor {
  std::string name;
  DType type = DType::f32;
  std::vector<int64_t> shape;  // outermost first, each ≥ 1
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
  uint64_t offset = 0;  // in its file, for messages
  std::string file;     // name of that file, for messages

  int64_t elements() const;
  std::string where() const;  // "model.gguf: tensor 'blk.0.attn_q.weight' (byte 4096)"
};

class TensorTable {
 public:
  void add(StoredTensor tensor);                          // a second one of the same name is WI_E_FORMAT
  const StoredTensor* find(std::string_view name) const;  // null if there is none
  const std::vector<StoredTensor>& all() const { return tensors_; }

 private:
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, size_t, TextHash> index_;
};

// The extents of a tensor's bytes in the data part of one file, to check that they fit and do not overlap.
struct Extent {
  uint64_t begin = 0, end = 0;  // relative to the data part
  const StoredTensor* tensor = nullptr;
};
void check_extents(std::vector<Extent> extents, uint64_t data_bytes);

// Product of the dimensions, or -1 if one is below 1 or the product exceeds 2^56.
int64_t count_elements(const std::vector<int64_t>& shape);
std::string shape_text(const std::vector<int64_t>& shape);  // "(4096, 256)"

// An f32, f16 or bf16 tensor as floats; any other type, or a value that is not finite, is WI_E_FORMAT.
std::vector<float> read_floats(const StoredTensor& tensor);

}  // namespace wi
