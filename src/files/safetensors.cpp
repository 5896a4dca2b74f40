// The safetensors container and its shard index.
#include "src/files/safetensors.h"

#include <algorithm>
#include <cstring>

#include "src/error.h"
#include "src/files/json_file.h"

namespace wi {
namespace {

constexpr uint64_t kMostHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMostTensors = size_t{1} << 18;    // in one file; five times what 4,096 layers have

StoredTensor read_entry(const std::string& name, const Json& entry, const std::string& file, uint64_t data,
                        uint64_t data_bytes, Extent* extent);
DType type_of(const std::string& name, const StoredTensor& tensor);

}  // namespace

std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> bytes, const std::string& file,
                                            Watch* watch) {
  uint64_t header_bytes = 0;
  check(bytes.size() >= sizeof header_bytes, WI_E_FORMAT, file,
        ": the file ends in the header length (byte 0)");
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  check(header_bytes <= kMostHeaderBytes, WI_E_FORMAT, file, ": the header length is ", header_bytes,
        ", at most ", kMostHeaderBytes, " is allowed (byte 0)");
  check(header_bytes <= bytes.size() - 8, WI_E_FORMAT, file, ": the header length is ", header_bytes,
        ", but ", bytes.size() - 8, " bytes are left (byte 0)");
  const uint64_t data = 8 + header_bytes, data_bytes = bytes.size() - data;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data() + 8),
                              static_cast<size_t>(header_bytes));
  std::vector<std::pair<StoredTensor, Extent>> entries;
  parse_json_entries(text, file + ": header", watch, [&](const std::string& name, const Json& entry) {
    if (name == "__metadata__") return;
    check(entries.size() < kMostTensors, WI_E_FORMAT, file, ": header: more than ", kMostTensors, " tensors");
    auto& [tensor, extent] = entries.emplace_back();
    tensor = read_entry(name, entry, file, data, data_bytes, &extent);
    tensor.data = bytes.data() + data + extent.begin;
  });
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.first.name < b.first.name; });

  std::vector<StoredTensor> tensors;
  std::vector<Extent> extents;
  tensors.reserve(entries.size());  // extents point into it
  for (auto& [tensor, extent] : entries) {
    tensors.push_back(std::move(tensor));
    extent.tensor = &tensors.back();
    extents.push_back(extent);
  }
  check_extents(std::move(extents), data_bytes);
  return tensors;
}

std::vector<std::pair<std::string, std::string>> parse_shard_index(std::string_view text,
                                                                   const std::string& file, Watch* watch) {
  const JsonTree json = parse_json(text, file, watch);
  const Json* map = JsonFields(*json, file).find_object("weight_map");
  check(map && !map->empty(), WI_E_FORMAT, file, ": weight_map is missing or empty");
  std::vector<std::pair<std::string, std::string>> entries;
  for (const auto& [tensor, shard] : map->items()) {
    check(shard.is_string(), WI_E_FORMAT, file, ": weight_map: '", tensor, "' is ", shard.type_name(),
          ", must be a string");
    const std::string name = shard.get<std::string>();
    check(!name.empty() && name.find('/') == std::string::npos && name.find('\0') == std::string::npos &&
              name[0] != '.',
          WI_E_FORMAT, file, ": weight_map: '", tensor, "' lies in '", name,
          "', which is no plain file name");
    entries.emplace_back(tensor, name);
  }
  return entries;
}

namespace {

StoredTensor read_entry(const std::string& name, const Json& entry, const std::string& file, uint64_t data,
                        uint64_t data_bytes, Extent* extent) {
  StoredTensor tensor;
  tensor.name = name;
  tensor.file = file;
  tensor.offset = 8;
  check(entry.is_object(), WI_E_FORMAT, tensor.where(), " is ", entry.type_name(), ", must be an object");
  const JsonFields fields(entry, tensor.where());
  const std::vector<int64_t> offsets = fields.integers("data_offsets", 0, INT64_MAX);
  check(offsets.size() == 2 && offsets[0] <= offsets[1], WI_E_FORMAT, fields.at("data_offsets"),
        " must be two rising numbers");
  extent->begin = static_cast<uint64_t>(offsets[0]);
  extent->end = static_cast<uint64_t>(offsets[1]);
  check(extent->end <= data_bytes, WI_E_FORMAT, fields.at("data_offsets"), " end at ", extent->end,
        ", but the data part has ", data_bytes, " bytes");
  tensor.offset = data + extent->begin;
  tensor.bytes = extent->end - extent->begin;

  check(fields.find_array("shape") != nullptr, WI_E_FORMAT, fields.at("shape"), " is missing");
  tensor.shape = fields.integers("shape", 1, INT64_MAX);
  const int64_t elements = tensor.elements();
  check(elements > 0 && tensor.shape.size() <= 8, WI_E_FORMAT, fields.at("shape"), " is ",
        shape_text(tensor.shape), ", its product must be at most 2^56");
  tensor.type = type_of(fields.text("dtype"), tensor);
  const uint64_t wanted = static_cast<uint64_t>(elements * format_of(tensor.type).bytes);
  check(tensor.bytes == wanted, WI_E_FORMAT, fields.at("data_offsets"), " span ", tensor.bytes,
        " bytes, but ", format_of(tensor.type).name, " ", shape_text(tensor.shape), " takes ", wanted);
  return tensor;
}

DType type_of(const std::string& name, const StoredTensor& tensor) {
  if (name == "F32") return DType::f32;
  if (name == "F16") return DType::f16;
  if (name == "BF16") return DType::bf16;
  fail(WI_E_UNSUPPORTED, tensor.where(), " has dtype '", name, "', supported are F32, F16, BF16");
}

}  // namespace
}  // namespace wi
