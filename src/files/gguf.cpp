// The GGUF container: header, metadata, tensor table, data. One pass over the bytes checks everything; values
// stay where they are and are decoded when asked for.
#include "src/files/gguf.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "src/error.h"

namespace wi {
namespace {

constexpr uint64_t kMostNesting = 4;       // of arrays in arrays
constexpr uint64_t kMostKeyBytes = 65535;  // the format's own limit
constexpr uint64_t kMostNameBytes = 1024;  // the format says 64; converters write a little more
// What memory is spent on for each: far above any model's, 4,096 layers have 50,000 tensors.
constexpr uint64_t kMostFields = 1 << 16, kMostTensors = 1 << 18, kMostStrings = 1 << 22;
// Of all metadata, which is kept in memory: a vocabulary of a million tokens with its merges has 60 MB.
constexpr uint64_t kMostMetadataBytes = 256 << 20;

const char* type_name(GgufType type);
size_t type_bytes(GgufType type);  // the least a value takes
DType tensor_type(uint32_t number, const StoredTensor& tensor);

}  // namespace

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, Gguf& out, Watch* watch)
      : bytes_(bytes), out_(out), watch_(watch) {}

  uint64_t parse_fields() {
    uint64_t tensors = 0, fields = 0;
    header(&tensors, &fields);
    for (uint64_t i = 0; i < fields; ++i) {
      field(i);
      if (at_ > kMostMetadataBytes)
        broken(at_, "the metadata up to key '", out_.fields_.back().key, "' has more than ",
               kMostMetadataBytes, " bytes");
    }
    out_.fields_end_ = at_;
    return tensors;
  }

  void parse() {
    const uint64_t tensors = parse_fields();
    if (tensors > bytes_.size() / 32)
      broken(8, "the tensor count is ", tensors, ", more than the file can hold");
    if (tensors > kMostTensors)
      broken(8, "the tensor count is ", tensors, ", at most ", kMostTensors, " is allowed");
    const uint64_t alignment =
        static_cast<uint64_t>(out_.find_integer("general.alignment", 8, 1 << 20).value_or(32));
    check(std::has_single_bit(alignment), WI_E_FORMAT, out_.where("general.alignment"), " is ", alignment,
          ", must be a power of two");
    out_.tensors_.reserve(static_cast<size_t>(tensors));
    for (uint64_t i = 0; i < tensors; ++i) tensor(i, alignment);
    place_tensors(alignment);
  }

 private:
  template <class... Parts>
  [[noreturn]] void broken(size_t offset, const Parts&... parts) const {
    fail(WI_E_FORMAT, out_.name(), ": ", parts..., " (byte ", offset, ")");
  }

  uint64_t left() const { return bytes_.size() - at_; }

  // Of a model that is a folder: config.json, tokenizer.json, *.safetensors and their index.
  bool is_part_of_folder() const {
    const std::string_view name = out_.name();
    return name.ends_with(".json") || name.ends_with(".safetensors");
  }

  template <class T, class... Parts>
  T number(const Parts&... what) {
    if (left() < sizeof(T)) broken(at_, "the file ends in ", what...);
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  template <class... Parts>
  std::string_view string(uint64_t most, const Parts&... what) {
    const size_t start = at_;
    const uint64_t length = number<uint64_t>("the length of ", what...);
    if (length > left())
      broken(start, "the length of ", what..., " is ", length, ", but ", left(), " bytes are left");
    if (length > most)
      broken(start, "the length of ", what..., " is ", length, ", at most ", most, " is allowed");
    const char* text = reinterpret_cast<const char*>(bytes_.data() + at_);
    at_ += static_cast<size_t>(length);
    return {text, static_cast<size_t>(length)};
  }

  void header(uint64_t* tensors, uint64_t* fields) {
    if (bytes_.size() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0)
      broken(0, "the magic is not 'GGUF'", is_part_of_folder() ? "; open the folder that it is in" : "");
    at_ = 4;
    const uint32_t version = number<uint32_t>("the version");
    check(version != 0x02000000 && version != 0x03000000, WI_E_UNSUPPORTED, out_.name(),
          ": the file is big-endian (byte 4)");
    check(version == 2 || version == 3, WI_E_UNSUPPORTED, out_.name(), ": GGUF version ", version,
          ", only 2 and 3 are supported (byte 4)");
    *tensors = number<uint64_t>("the tensor count");
    *fields = number<uint64_t>("the metadata count");
    // A tensor takes at least 8 + 4 + 8 + 4 + 8 bytes, a field 8 + 4 + 1: larger counts cannot be true, and
    // must not be reserved for.
    if (*fields > bytes_.size() / 13)
      broken(16, "the metadata count is ", *fields, ", more than the file can hold");
    if (*fields > kMostFields)
      broken(16, "the metadata count is ", *fields, ", at most ", kMostFields, " is allowed");
  }

  void field(uint64_t number_in_file) {
    const size_t start = at_;
    GgufField field{};
    field.key = string(kMostKeyBytes, "metadata key ", number_in_file);
    if (field.key.empty()) broken(start, "metadata key ", number_in_file, " is empty");
    const uint32_t type = number<uint32_t>("the type of key '", field.key, "'");
    field.type = checked_type(type, field.key);
    field.offset = at_;
    if (field.type == GgufType::array) {
      array(field.key, 1, &field);
    } else {
      skip(field.type, field.key);
    }
    if (!out_.index_.emplace(field.key, out_.fields_.size()).second)
      broken(start, "key '", field.key, "' appears twice");
    out_.fields_.push_back(field);
  }

  GgufType checked_type(uint32_t type, std::string_view key) const {
    if (type > static_cast<uint32_t>(GgufType::f64))
      broken(at_ - 4, "key '", key, "' has unknown value type ", type);
    return static_cast<GgufType>(type);
  }

  void array(std::string_view key, uint64_t depth, GgufField* field) {
    if (depth > kMostNesting) broken(at_, "key '", key, "' nests arrays deeper than ", kMostNesting);
    const GgufType element = checked_type(number<uint32_t>("the element type of key '", key, "'"), key);
    const size_t start = at_;
    const uint64_t count = number<uint64_t>("the element count of key '", key, "'");
    if (count > left() / type_bytes(element))
      broken(start, "key '", key, "' has ", count, " elements, but ", left(), " bytes are left");
    const bool walked = element == GgufType::string || element == GgufType::array;
    if (walked && count > kMostStrings - strings_)
      broken(start, "key '", key, "' has ", count, " elements, at most ", kMostStrings,
             " strings are allowed in all");
    if (walked) strings_ += count;
    if (field) {
      field->element = element;
      field->count = count;
      field->offset = at_;
    }
    if (element == GgufType::string || element == GgufType::array || element == GgufType::boolean) {
      for (uint64_t i = 0; i < count; ++i) {
        if (i % 1024 == 0) tick(watch_);
        if (element == GgufType::array) {
          array(key, depth + 1, nullptr);
        } else {
          skip(element, key);
        }
      }
    } else {
      at_ += static_cast<size_t>(count) * type_bytes(element);
    }
  }

  void skip(GgufType type, std::string_view key) {
    if (type == GgufType::string) {
      string(UINT64_MAX, "key '", key, "'");
    } else if (type == GgufType::boolean) {
      const uint8_t value = number<uint8_t>("key '", key, "'");
      if (value > 1) broken(at_ - 1, "key '", key, "' is a bool of value ", int{value});
    } else {
      if (left() < type_bytes(type)) broken(at_, "the file ends in key '", key, "'");
      at_ += type_bytes(type);
    }
  }

  void tensor(uint64_t number_in_file, uint64_t alignment) {
    if (number_in_file % 256 == 0) tick(watch_);
    StoredTensor tensor;
    tensor.file = out_.name();
    tensor.offset = at_;
    tensor.name = string(kMostNameBytes, "the name of tensor ", number_in_file);
    const uint32_t dimensions = number<uint32_t>("the dimension count of tensor '", tensor.name, "'");
    check(dimensions >= 1 && dimensions <= 4, WI_E_FORMAT, tensor.where(), " has ", dimensions,
          " dimensions, must be 1 to 4");
    tensor.shape.resize(dimensions);
    for (uint32_t i = dimensions; i-- > 0;) {  // the file lists the innermost first
      const uint64_t extent = number<uint64_t>("the dimensions of tensor '", tensor.name, "'");
      tensor.shape[i] = extent > INT64_MAX ? -1 : static_cast<int64_t>(extent);
    }
    const int64_t elements = tensor.elements();
    check(elements > 0, WI_E_FORMAT, tensor.where(), " has dimensions ", shape_text(tensor.shape),
          ", each must be positive and the product at most 2^56");
    tensor.type = tensor_type(number<uint32_t>("the type of tensor '", tensor.name, "'"), tensor);
    const TypeFormat format = format_of(tensor.type);
    check(tensor.shape.back() % format.elements == 0, WI_E_FORMAT, tensor.where(), " has rows of ",
          tensor.shape.back(), " elements, which is no whole number of ", format.name, " blocks of ",
          format.elements);
    tensor.bytes = static_cast<uint64_t>(elements / format.elements * format.bytes);
    const uint64_t offset = number<uint64_t>("the offset of tensor '", tensor.name, "'");
    check(offset % alignment == 0, WI_E_FORMAT, tensor.where(), " has offset ", offset,
          ", which is no multiple of the alignment ", alignment);
    offsets_.push_back(offset);
    out_.tensors_.push_back(std::move(tensor));
  }

  void place_tensors(uint64_t alignment) {
    if (out_.tensors_.empty()) return;
    const uint64_t data = (at_ + alignment - 1) / alignment * alignment;
    if (data > bytes_.size()) broken(at_, "the file ends before the tensor data");
    const uint64_t data_bytes = bytes_.size() - data;
    std::vector<Extent> extents;
    for (size_t i = 0; i < offsets_.size(); ++i) {
      StoredTensor& tensor = out_.tensors_[i];
      check(offsets_[i] <= data_bytes && tensor.bytes <= data_bytes - offsets_[i], WI_E_FORMAT,
            tensor.where(), " has offset ", offsets_[i], " and ", tensor.bytes,
            " bytes, but the data part has ", data_bytes);
      extents.push_back({offsets_[i], offsets_[i] + tensor.bytes, &tensor});
    }
    check_extents(std::move(extents), data_bytes);
    for (size_t i = 0; i < offsets_.size(); ++i) {
      out_.tensors_[i].offset = data + offsets_[i];
      out_.tensors_[i].data = bytes_.data() + data + offsets_[i];
    }
  }

  std::span<const std::byte> bytes_;
  Gguf& out_;
  Watch* const watch_;
  size_t at_ = 0;
  uint64_t strings_ = 0;           // and arrays, within arrays so far
  std::vector<uint64_t> offsets_;  // of the tensors, relative to the data part
};

Gguf Gguf::parse(std::span<const std::byte> bytes, std::string name, Watch* watch) {
  Gguf gguf;
  gguf.bytes_ = bytes;
  gguf.name_ = std::move(name);
  GgufParser(bytes, gguf, watch).parse();
  return gguf;
}

Gguf Gguf::parse_fields(std::span<const std::byte> bytes, std::string name, Watch* watch) {
  Gguf gguf;
  gguf.bytes_ = bytes;
  gguf.name_ = std::move(name);
  GgufParser(bytes, gguf, watch).parse_fields();
  return gguf;
}

const GgufField* Gguf::find(std::string_view key) const {
  auto found = index_.find(key);
  return found == index_.end() ? nullptr : &fields_[found->second];
}

std::string Gguf::where(std::string_view key) const {
  const GgufField* field = find(key);
  return field ? concat(name_, ": key '", key, "' (byte ", field->offset, ")")
               : concat(name_, ": key '", key, "'");
}

std::optional<int64_t> Gguf::find_integer(std::string_view key, int64_t least, int64_t most) const {
  const GgufField* field = find(key);
  if (!field) return {};
  const int64_t value = integer_at(*field, field->type, field->offset);
  check(value >= least && value <= most, WI_E_FORMAT, where(key), " is ", value, ", must be in [", least,
        ", ", most, "]");
  return value;
}

std::optional<double> Gguf::find_number(std::string_view key) const {
  const GgufField* field = find(key);
  if (!field) return {};
  return number_at(*field, field->type, field->offset);
}

std::optional<bool> Gguf::find_bool(std::string_view key) const {
  const GgufField* field = find(key);
  if (!field) return {};
  check(field->type == GgufType::boolean, WI_E_FORMAT, where(key), " has type ", type_name(field->type),
        ", must be bool");
  return bytes_[field->offset] != std::byte{0};
}

std::optional<std::string_view> Gguf::find_text(std::string_view key) const {
  const GgufField* field = find(key);
  if (!field) return {};
  check(field->type == GgufType::string, WI_E_FORMAT, where(key), " has type ", type_name(field->type),
        ", must be string");
  return text_at(field->offset);
}

int64_t Gguf::integer(std::string_view key, int64_t least, int64_t most) const {
  auto value = find_integer(key, least, most);
  check(value.has_value(), WI_E_FORMAT, where(key), " is missing");
  return *value;
}

double Gguf::number(std::string_view key) const {
  auto value = find_number(key);
  check(value.has_value(), WI_E_FORMAT, where(key), " is missing");
  return *value;
}

std::string_view Gguf::text(std::string_view key) const {
  auto value = find_text(key);
  check(value.has_value(), WI_E_FORMAT, where(key), " is missing");
  return *value;
}

std::vector<std::string_view> Gguf::texts(std::string_view key, Watch* watch) const {
  const GgufField* field = find_array(key);
  if (!field) return {};
  check(field->element == GgufType::string, WI_E_FORMAT, where(key), " is an array of ",
        type_name(field->element), ", must be of string");
  std::vector<std::string_view> values;
  values.reserve(static_cast<size_t>(field->count));
  size_t offset = field->offset;
  for (uint64_t i = 0; i < field->count; ++i) {
    tick(watch, i);
    values.push_back(text_at(offset));
    offset += 8 + values.back().size();
  }
  return values;
}

std::vector<float> Gguf::floats(std::string_view key) const {
  const GgufField* field = find_array(key);
  std::vector<float> values;
  for (uint64_t i = 0; field && i < field->count; ++i)
    values.push_back(static_cast<float>(
        number_at(*field, field->element, field->offset + i * type_bytes(field->element))));
  return values;
}

std::vector<int64_t> Gguf::integers(std::string_view key) const {
  const GgufField* field = find_array(key);
  std::vector<int64_t> values;
  for (uint64_t i = 0; field && i < field->count; ++i)
    values.push_back(integer_at(*field, field->element, field->offset + i * type_bytes(field->element)));
  return values;
}

std::vector<bool> Gguf::booleans(std::string_view key) const {
  const GgufField* field = find_array(key);
  check(!field || field->element == GgufType::boolean, WI_E_FORMAT, where(key), " has elements of type ",
        field ? type_name(field->element) : "", ", must be bool");
  std::vector<bool> values;
  for (uint64_t i = 0; field && i < field->count; ++i)
    values.push_back(bytes_[field->offset + i] != std::byte{0});
  return values;
}

const GgufField* Gguf::find_array(std::string_view key) const {
  const GgufField* field = find(key);
  check(!field || field->type == GgufType::array, WI_E_FORMAT, where(key), " has type ",
        field ? type_name(field->type) : "", ", must be array");
  return field;
}

int64_t Gguf::integer_at(const GgufField& field, GgufType type, size_t offset) const {
  auto load = [&]<class T>(T value) {
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  };
  switch (type) {
    case GgufType::u8:
      return load(uint8_t{});
    case GgufType::i8:
      return load(int8_t{});
    case GgufType::u16:
      return load(uint16_t{});
    case GgufType::i16:
      return load(int16_t{});
    case GgufType::u32:
      return load(uint32_t{});
    case GgufType::i32:
      return load(int32_t{});
    case GgufType::i64:
      return load(int64_t{});
    case GgufType::u64: {
      const uint64_t value = load(uint64_t{});
      if (value > INT64_MAX) fail(WI_E_FORMAT, where(field.key), " is ", value, ", above 2^63");
      return static_cast<int64_t>(value);
    }
    default:
      fail(WI_E_FORMAT, where(field.key), " has type ", type_name(type), ", must be an integer");
  }
}

double Gguf::number_at(const GgufField& field, GgufType type, size_t offset) const {
  double value = 0;
  if (type == GgufType::f32) {
    float narrow;
    std::memcpy(&narrow, bytes_.data() + offset, sizeof narrow);
    value = narrow;
  } else if (type == GgufType::f64) {
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
  } else {
    fail(WI_E_FORMAT, where(field.key), " has type ", type_name(type), ", must be f32 or f64");
  }
  if (!std::isfinite(value)) fail(WI_E_FORMAT, where(field.key), " is ", value, ", must be finite");
  return value;
}

std::string_view Gguf::text_at(size_t offset) const {
  uint64_t length;
  std::memcpy(&length, bytes_.data() + offset, sizeof length);
  return {reinterpret_cast<const char*>(bytes_.data() + offset + 8), static_cast<size_t>(length)};
}

namespace {

const char* type_name(GgufType type) {
  constexpr const char* names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                   "bool", "string", "array", "u64", "i64", "f64"};
  return names[static_cast<int>(type)];
}

size_t type_bytes(GgufType type) {
  constexpr size_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
  return bytes[static_cast<int>(type)];
}

DType tensor_type(uint32_t number, const StoredTensor& tensor) {
  switch (number) {
    case 0:
      return DType::f32;
    case 1:
      return DType::f16;
    case 2:
      return DType::q4_0;
    case 3:
      return DType::q4_1;
    case 6:
      return DType::q5_0;
    case 7:
      return DType::q5_1;
    case 8:
      return DType::q8_0;
    case 10:
      return DType::q2_k;
    case 11:
      return DType::q3_k;
    case 12:
      return DType::q4_k;
    case 13:
      return DType::q5_k;
    case 14:
      return DType::q6_k;
    case 30:
      return DType::bf16;
    default:
      break;
  }
  struct Other {
    uint32_t number;
    const char* name;
  };
  constexpr Other others[] = {{9, "q8_1"},   {15, "q8_k"},   {16, "iq2_xxs"}, {17, "iq2_xs"}, {18, "iq3_xxs"},
                              {19, "iq1_s"}, {20, "iq4_nl"}, {21, "iq3_s"},   {22, "iq2_s"},  {23, "iq4_xs"},
                              {24, "i8"},    {25, "i16"},    {26, "i32"},     {27, "i64"},    {28, "f64"},
                              {29, "iq1_m"}, {34, "tq1_0"},  {35, "tq2_0"},   {39, "mxfp4"}};
  const char* name = "unknown";
  for (const Other& other : others)
    if (other.number == number) name = other.name;
  fail(WI_E_UNSUPPORTED, tensor.where(), " has type ", number, " (", name, "), which is not supported");
}

}  // namespace
}  // namespace wi
