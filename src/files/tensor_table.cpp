// Names, extents and small conversions of stored tensors.
#include "src/files/tensor_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "src/error.h"

namespace wi {
namespace {

float f16_to_float(uint16_t bits);

}  // namespace

int64_t StoredTensor::elements() const { return count_elements(shape); }

std::string StoredTensor::where() const { return concat(file, ": tensor '", name, "' (byte ", offset, ")"); }

void TensorTable::add(StoredTensor tensor) {
  auto [at, fresh] = index_.emplace(tensor.name, tensors_.size());
  check(fresh, WI_E_FORMAT, tensor.where(), " appears twice");
  tensors_.push_back(std::move(tensor));
}

const StoredTensor* TensorTable::find(std::string_view name) const {
  auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

void check_extents(std::vector<Extent> extents, uint64_t data_bytes) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < extents.size(); ++i) {
    const Extent& extent = extents[i];
    check(extent.end <= data_bytes, WI_E_FORMAT, extent.tensor->where(), " ends at byte ", extent.end,
          " of the data, which has ", data_bytes);
    check(i == 0 || extents[i - 1].end <= extent.begin, WI_E_FORMAT, extent.tensor->where(),
          " overlaps tensor '", i ? extents[i - 1].tensor->name : "", "'");
  }
}

int64_t count_elements(const std::vector<int64_t>& shape) {
  constexpr int64_t kMost = int64_t{1} << 56;
  int64_t count = 1;
  for (int64_t dimension : shape) {
    if (dimension < 1 || dimension > kMost / count) return -1;
    count *= dimension;
  }
  return count;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += concat(i ? ", " : "", shape[i]);
  return text + ")";
}

std::vector<float> read_floats(const StoredTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  const size_t width = tensor.type == DType::f32 ? 4 : 2;
  check(tensor.type == DType::f32 || tensor.type == DType::f16 || tensor.type == DType::bf16, WI_E_FORMAT,
        tensor.where(), " has type ", format_of(tensor.type).name, ", must be f32, f16 or bf16");
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, tensor.data + i * width, width);
    values[i] = tensor.type == DType::f32   ? std::bit_cast<float>(bits)
                : tensor.type == DType::f16 ? f16_to_float(static_cast<uint16_t>(bits))
                                            : std::bit_cast<float>(bits << 16);
    check(std::isfinite(values[i]), WI_E_FORMAT, tensor.where(), ": element ", i, " is ", values[i]);
  }
  return values;
}

namespace {

float f16_to_float(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float magnitude = exponent == 0    ? std::ldexp(static_cast<float>(mantissa), -24)
                    : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                     : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

}  // namespace
}  // namespace wi
