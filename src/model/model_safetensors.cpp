// A model from a Hugging Face directory: config.json, tokenizer.json and its companions, and the weights in
// model.safetensors or in the shards that model.safetensors.index.json lists.
#include <algorithm>
#include <map>
#include <sys/stat.h>

#include "src/error.h"
#include "src/files/json_file.h"
#include "src/files/safetensors.h"
#include "src/model/model_file.h"

namespace wi {
namespace {

bool exists(const std::string& path);
std::string read_if_there(const std::string& path, Watch* watch);
void add_tensors(const std::string& path, FileStorage* storage, TensorTable* table, Watch* watch);
void add_shards(const std::string& directory, const std::string& index, FileStorage* storage,
                TensorTable* table, Watch* watch);

// A few times the largest that are about: 35 MB of tokenizer, some hundred KB of everything else.
constexpr uint64_t kMostTokenizerBytes = uint64_t{128} << 20, kMostJsonBytes = uint64_t{16} << 20;

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

ModelFile read_safetensors_model(const std::string& directory, Watch* watch) {
  ModelFile file;
  file.name = file_name(directory);
  file.names = &kSafetensorsNames;
  const std::string base = directory + "/";
  for (const char* needed : {"config.json", "tokenizer.json"})
    check(exists(base + needed), WI_E_FORMAT, file.name, ": a model directory must hold ", needed);
  check(!exists(base + "adapter_config.json"), WI_E_UNSUPPORTED, file.name,
        ": adapter_config.json is there, adapters are not supported: merge it into the weights, or take it "
        "away");

  const std::string config = read_if_there(base + "config.json", watch);
  file.config = config_from_json(config, "config.json", watch);
  if (file.config.name.empty()) file.config.name = file.name;
  {
    const std::string tokenizer = read_if_there(base + "tokenizer.json", watch);
    const std::string tokenizer_config = read_if_there(base + "tokenizer_config.json", watch);
    const std::string generation_config = read_if_there(base + "generation_config.json", watch);
    const std::string chat_template = read_if_there(base + "chat_template.jinja", watch);
    const std::string tool_template = read_if_there(base + "additional_chat_templates/tool_use.jinja", watch);
    const std::string added_tokens = read_if_there(base + "added_tokens.json", watch);
    const std::string special_tokens_map = read_if_there(base + "special_tokens_map.json", watch);
    file.vocabulary =
        vocabulary_from_json({tokenizer, tokenizer_config, config, generation_config, chat_template,
                              added_tokens, special_tokens_map, tool_template, watch},
                             file.config.vocab);
  }

  std::map<std::string, std::string> metadata = {{"general.name", file.config.name}};
  for (const auto& [name, text] : file.vocabulary.chat_templates)
    if (name == "default") metadata["tokenizer.chat_template"] = text;
  const JsonTree fields = parse_json(config, "config.json", watch, kMostCompanionMemory);
  for (const auto& [key, value] : fields->items())
    metadata.try_emplace(key, value.is_string() ? value.get<std::string>() : value.dump());
  for (const auto& [key, value] : metadata) file.metadata.add(key, value);

  // As transformers does: what one file holds goes before what an index names, which may be left of older weights.
  auto storage = std::make_shared<FileStorage>();
  if (exists(base + "model.safetensors")) {
    add_tensors(base + "model.safetensors", storage.get(), &file.tensors, watch);
  } else {
    check(exists(base + "model.safetensors.index.json"), WI_E_FORMAT, file.name,
          ": a model directory must hold model.safetensors or model.safetensors.index.json");
    add_shards(base, "model.safetensors.index.json", storage.get(), &file.tensors, watch);
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

std::string read_if_there(const std::string& path, Watch* watch) {
  if (!exists(path)) return {};
  return read_small_file(path, path.ends_with("/tokenizer.json") ? kMostTokenizerBytes : kMostJsonBytes,
                         watch);
}

void add_tensors(const std::string& path, FileStorage* storage, TensorTable* table, Watch* watch) {
  const MappedFile& mapping = storage->mappings.emplace_back(path);
  for (StoredTensor& tensor : parse_safetensors(mapping.bytes(), file_name(path), watch)) {
    if (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<size_t>(format_of(tensor.type).bytes) != 0) {
      std::vector<uint64_t>& copy = storage->copies.emplace_back((tensor.bytes + 7) / 8);
      copy_watched(copy.data(), tensor.data, tensor.bytes, watch);
      tensor.data = reinterpret_cast<const std::byte*>(copy.data());
    }
    table->add(std::move(tensor));
  }
}

void add_shards(const std::string& directory, const std::string& index, FileStorage* storage,
                TensorTable* table, Watch* watch) {
  const auto entries = parse_shard_index(read_if_there(directory + index, watch), index, watch);
  std::vector<std::string> shards;
  shards.reserve(entries.size());
  for (const auto& [tensor, shard] : entries) shards.push_back(shard);
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  for (const std::string& shard : shards) {
    check(exists(directory + shard), WI_E_FORMAT, index, ": weight_map names ", shard,
          ", which is not there");
    add_tensors(directory + shard, storage, table, watch);
  }
  for (const auto& [name, shard] : entries) {
    const StoredTensor* tensor = table->find(name);
    check(tensor && tensor->file == shard, WI_E_FORMAT, index, ": weight_map: tensor '", name, "' is not in ",
          shard);
  }
}

}  // namespace
}  // namespace wi
