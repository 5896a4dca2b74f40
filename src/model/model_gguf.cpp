// A model from one GGUF file or a split set name-00001-of-000NN.gguf, whose first part carries the metadata
// and whose parts each carry a share of the tensors.
#include <algorithm>
#include <cstdio>
#include <string_view>

#include "src/error.h"
#include "src/files/gguf.h"
#include "src/model/model_file.h"

namespace wi {
namespace {

constexpr int64_t kMostParts = 10000;

void describe(const Gguf& gguf, ModelFile* file, Watch* watch);
std::string part_path(const std::string& first, int64_t part, int64_t parts);
void add_tensors(const Gguf& gguf, TensorTable* table);

}  // namespace

const TensorNames kGgufNames = {.embedding = "token_embd",
                                .output_norm = "output_norm",
                                .output = "output",
                                .attention_norm = "blk.#.attn_norm",
                                .q = "blk.#.attn_q",
                                .k = "blk.#.attn_k",
                                .v = "blk.#.attn_v",
                                .q_norm = "blk.#.attn_q_norm",
                                .k_norm = "blk.#.attn_k_norm",
                                .o = "blk.#.attn_output",
                                .ffn_norm = "blk.#.ffn_norm",
                                .gate = "blk.#.ffn_gate",
                                .up = "blk.#.ffn_up",
                                .down = "blk.#.ffn_down",
                                .rope_factors = "rope_freqs.weight"};

ModelFile read_gguf_model(const std::string& path, Watch* watch) {
  auto storage = std::make_shared<FileStorage>();
  const Gguf first = Gguf::parse(storage->mappings.emplace_back(path).bytes(), file_name(path), watch);
  const int64_t parts = std::max<int64_t>(1, first.find_integer("split.count", 0, kMostParts).value_or(1));
  const int64_t number = first.find_integer("split.no", 0, kMostParts).value_or(0);
  check(number == 0, WI_E_FORMAT, first.where("split.no"), " is ", number,
        ": open the first file of the set");
  ModelFile file;
  add_tensors(first, &file.tensors);
  for (int64_t part = 1; part < parts; ++part) {
    const std::string next = part_path(path, part, parts);
    const Gguf gguf = Gguf::parse(storage->mappings.emplace_back(next).bytes(), file_name(next), watch);
    const int64_t no = gguf.integer("split.no", 0, kMostParts),
                  count = gguf.integer("split.count", 0, kMostParts);
    check(no == part, WI_E_FORMAT, gguf.where("split.no"), " is ", no, ", must be ", part);
    check(count == parts, WI_E_FORMAT, gguf.where("split.count"), " is ", count, ", but the first file's is ",
          parts);
    add_tensors(gguf, &file.tensors);
  }
  const int64_t stated = static_cast<int64_t>(file.tensors.all().size());
  const int64_t tensors =
      parts == 1 ? stated : first.find_integer("split.tensors.count", 0, INT64_MAX).value_or(stated);
  check(tensors == stated, WI_E_FORMAT, first.where("split.tensors.count"), " is ", tensors,
        ", but the set has ", stated, " tensors");

  describe(first, &file, watch);
  for (const MappedFile& mapping : storage->mappings) mapping.read_ahead();
  file.storage = std::move(storage);
  return file;
}

ModelFile read_gguf_model(std::span<const std::byte> bytes, std::shared_ptr<const FileStorage> storage,
                          Watch* watch) {
  const Gguf gguf = Gguf::parse(bytes, "memory", watch);
  const int64_t parts = gguf.find_integer("split.count", 0, kMostParts).value_or(1);
  check(parts <= 1, WI_E_UNSUPPORTED, gguf.where("split.count"), " is ", parts,
        ": only a whole model can be opened from memory, not the parts of a set");
  ModelFile file;
  add_tensors(gguf, &file.tensors);
  describe(gguf, &file, watch);
  file.storage = std::move(storage);
  return file;
}

namespace {

// Everything but the tensors.
void describe(const Gguf& gguf, ModelFile* file, Watch* watch) {
  file->name = gguf.name();
  file->names = &kGgufNames;
  file->config = config_from_gguf(gguf);
  file->vocabulary = vocabulary_from_gguf(gguf, watch);
  tick(watch);
  file->metadata = Metadata(gguf, watch);
}

std::string part_path(const std::string& first, int64_t part, int64_t parts) {
  char own[32], wanted[32];
  std::snprintf(own, sizeof own, "-00001-of-%05d.gguf", static_cast<int>(parts));
  std::snprintf(wanted, sizeof wanted, "-%05d-of-%05d.gguf", static_cast<int>(part + 1),
                static_cast<int>(parts));
  check(first.ends_with(own), WI_E_FORMAT, file_name(first), ": the file is the first of ", parts,
        ", so its name must end in ", own);
  return first.substr(0, first.size() - std::string_view(own).size()) + wanted;
}

void add_tensors(const Gguf& gguf, TensorTable* table) {
  for (const StoredTensor& tensor : gguf.tensors()) table->add(tensor);
}

}  // namespace
}  // namespace wi
