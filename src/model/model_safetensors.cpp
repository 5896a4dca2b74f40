// A model from a Hugging Face directory: config.json, tokenizer.json and its companions, and the weights in
// model.safetensors or in the shards that model.safetensors.index.json lists.
#include <algorithm>
#include <cstring>
#include <sys/stat.h>

#include "src/error.h"
#include "src/model/model_file.h"
#include "src/model/safetensors.h"

namespace wi {
namespace {

bool exists(const std::string& path);
std::string read_if_there(const std::string& path);
void add_tensors(const std::string& path, FileStorage* storage, TensorTable* table);
void add_shards(const std::string& directory, const std::string& index, FileStorage* storage,
                TensorTable* table);

constexpr uint64_t kMostJsonBytes = 1 << 28;

}  // namespace

const TensorNames kSafetensorsNames = {.embedding = "model.embed_tokens",
                                       .output_norm = "model.norm",
                                       .output = "lm_head",
                                       .attention_norm = "model.layers.#.input_layernorm",
                                       .q = "model.layers.#.self_attn.q_proj",
                                       .k = "model.layers.#.self_attn.k_proj",
                                       .v = "model.layers.#.self_attn.v_proj",
                                       .q_norm = "model.layers.#.self_attn.q_norm",
                                       .k_norm = "model.layers.#.self_attn.k_norm",
                                       .o = "model.layers.#.self_attn.o_proj",
                                       .ffn_norm = "model.layers.#.post_attention_layernorm",
                                       .gate = "model.layers.#.mlp.gate_proj",
                                       .up = "model.layers.#.mlp.up_proj",
                                       .down = "model.layers.#.mlp.down_proj",
                                       .rope_factors = nullptr};

ModelFile read_safetensors_model(const std::string& directory) {
  ModelFile file;
  file.name = file_name(directory);
  file.names = &kSafetensorsNames;
  const std::string base = directory + "/";
  for (const char* needed : {"config.json", "tokenizer.json"})
    check(exists(base + needed), WI_E_FORMAT, file.name, ": a model directory must hold ", needed);

  const std::string config = read_if_there(base + "config.json");
  file.config = config_from_json(config, "config.json");
  if (file.config.name.empty()) file.config.name = file.name;
  {
    const std::string tokenizer = read_if_there(base + "tokenizer.json");
    const std::string tokenizer_config = read_if_there(base + "tokenizer_config.json");
    const std::string generation_config = read_if_there(base + "generation_config.json");
    const std::string chat_template = read_if_there(base + "chat_template.jinja");
    file.vocabulary = vocabulary_from_json(
        {tokenizer, tokenizer_config, config, generation_config, chat_template}, file.config.vocab);
  }

  auto storage = std::make_shared<FileStorage>();
  if (exists(base + "model.safetensors.index.json")) {
    add_shards(base, "model.safetensors.index.json", storage.get(), &file.tensors);
  } else {
    check(exists(base + "model.safetensors"), WI_E_FORMAT, file.name,
          ": a model directory must hold model.safetensors or model.safetensors.index.json");
    add_tensors(base + "model.safetensors", storage.get(), &file.tensors);
  }
  for (const MappedFile& mapping : storage->mappings) mapping.read_ahead();
  file.storage = std::move(storage);
  return file;
}

namespace {

bool exists(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

std::string read_if_there(const std::string& path) {
  if (!exists(path)) return {};
  const MappedFile mapping(path);
  const std::span<const std::byte> bytes = mapping.bytes();
  check(bytes.size() <= kMostJsonBytes, WI_E_FORMAT, file_name(path), ": the file has ", bytes.size(),
        " bytes, at most ", kMostJsonBytes, " are allowed");
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void add_tensors(const std::string& path, FileStorage* storage, TensorTable* table) {
  const MappedFile& mapping = storage->mappings.emplace_back(path);
  for (StoredTensor& tensor : parse_safetensors(mapping.bytes(), file_name(path))) {
    if (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<size_t>(format_of(tensor.type).bytes) != 0) {
      std::vector<uint64_t>& copy = storage->copies.emplace_back((tensor.bytes + 7) / 8);
      std::memcpy(copy.data(), tensor.data, tensor.bytes);
      tensor.data = reinterpret_cast<const std::byte*>(copy.data());
    }
    table->add(std::move(tensor));
  }
}

void add_shards(const std::string& directory, const std::string& index, FileStorage* storage,
                TensorTable* table) {
  const auto entries = parse_shard_index(read_if_there(directory + index), index);
  std::vector<std::string> shards;
  shards.reserve(entries.size());
  for (const auto& [tensor, shard] : entries) shards.push_back(shard);
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  for (const std::string& shard : shards) {
    check(exists(directory + shard), WI_E_FORMAT, index, ": weight_map names ", shard,
          ", which is not there");
    add_tensors(directory + shard, storage, table);
  }
  for (const auto& [name, shard] : entries) {
    const StoredTensor* tensor = table->find(name);
    check(tensor && tensor->file == shard, WI_E_FORMAT, index, ": weight_map: tensor '", name, "' is not in ",
          shard);
  }
}

}  // namespace
}  // namespace wi
