// Builds tiny model files field by field, so that tests can make whole ones and then break a single thing:
// a GGUF writer that writes whatever it is told, the parts of a safetensors directory, and a folder to put
// them in that goes away with the test.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "src/files/gguf.h"

namespace wi::test {

template <class T>
std::string little_endian(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "wi-test-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp");
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return *this / name;
  }

 private:
  std::filesystem::path path_;
};

// A string as GGUF stores it.
inline std::string gguf_string(const std::string& text) {
  return little_endian<uint64_t>(text.size()) + text;
}

struct GgufBuilder {
  struct Field {
    std::string key;
    uint32_t type;
    std::string payload;
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // innermost first, as in the file
    uint32_t type;
    std::string data;
    int64_t offset = -1;  // -1: behind the tensors before it
  };
  std::string magic = "GGUF";
  uint32_t version = 3;
  int64_t tensor_count = -1, field_count = -1;  // -1: what is there
  uint64_t alignment = 32;
  std::vector<Field> fields;
  std::vector<Tensor> tensors;

  void set(const std::string& key, GgufType type, std::string payload) {
    remove(key);
    fields.push_back({key, static_cast<uint32_t>(type), std::move(payload)});
  }
  void u32(const std::string& key, uint32_t value) { set(key, GgufType::u32, little_endian(value)); }
  void f32(const std::string& key, float value) { set(key, GgufType::f32, little_endian(value)); }
  void boolean(const std::string& key, bool value) {
    set(key, GgufType::boolean, std::string(1, value ? 1 : 0));
  }
  void text(const std::string& key, const std::string& value) {
    set(key, GgufType::string, gguf_string(value));
  }
  void array(const std::string& key, GgufType element, uint64_t count, const std::string& elements) {
    set(key, GgufType::array,
        little_endian(static_cast<uint32_t>(element)) + little_endian(count) + elements);
  }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    std::string elements;
    for (const std::string& value : values) elements += gguf_string(value);
    array(key, GgufType::string, values.size(), elements);
  }
  template <class T>
  void numbers(const std::string& key, GgufType element, const std::vector<T>& values) {
    std::string elements;
    for (T value : values) elements += little_endian(value);
    array(key, element, values.size(), elements);
  }
  void remove(const std::string& key) {
    std::erase_if(fields, [&](const Field& field) { return field.key == key; });
  }
  Tensor& tensor(const std::string& name) {
    for (Tensor& tensor : tensors)
      if (tensor.name == name) return tensor;
    throw std::runtime_error("no tensor " + name);
  }
  void drop_tensor(const std::string& name) {
    std::erase_if(tensors, [&](const Tensor& tensor) { return tensor.name == name; });
  }
  void f32_tensor(const std::string& name, std::vector<uint64_t> dims, float seed) {
    uint64_t count = 1;
    for (uint64_t dim : dims) count *= dim;
    std::string data;
    for (uint64_t i = 0; i < count; ++i) data += little_endian(seed + 0.01f * static_cast<float>(i % 97));
    tensors.push_back({name, std::move(dims), 0, std::move(data)});
  }

  std::string bytes() const {
    std::string out = magic + little_endian(version);
    out += little_endian<uint64_t>(tensor_count < 0 ? tensors.size() : static_cast<uint64_t>(tensor_count));
    out += little_endian<uint64_t>(field_count < 0 ? fields.size() : static_cast<uint64_t>(field_count));
    for (const Field& field : fields)
      out += gguf_string(field.key) + little_endian(field.type) + field.payload;
    std::string data;
    for (const Tensor& tensor : tensors) {
      data.resize((data.size() + alignment - 1) / alignment * alignment);
      out += gguf_string(tensor.name) + little_endian(static_cast<uint32_t>(tensor.dims.size()));
      for (uint64_t dim : tensor.dims) out += little_endian(dim);
      out += little_endian(tensor.type);
      out += little_endian<uint64_t>(tensor.offset < 0 ? data.size() : static_cast<uint64_t>(tensor.offset));
      data += tensor.data;
    }
    if (!tensors.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data;
  }
};

// The 256 byte tokens in GPT-2's printable alphabet, after three special tokens.
inline std::vector<std::string> tiny_tokens() {
  std::vector<std::string> tokens = {"<|bos|>", "<|end|>", "<|user|>"};
  int spare = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool plain = (byte > 32 && byte < 127) || (byte > 160 && byte < 173) || byte > 173;
    const int code = plain ? byte : 256 + spare++;
    std::string text;
    if (code < 128) {
      text = static_cast<char>(code);
    } else {
      text = {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    }
    tokens.push_back(text);
  }
  tokens.push_back("th");
  tokens.push_back("the");
  return tokens;
}

inline constexpr uint64_t kTinyHidden = 32, kTinyFfn = 64, kTinyKv = 16, kTinyVocab = 261;

// A whole llama of one layer: hidden 32, 2 query heads and 1 KV head × 16, ffn 64, tied, f32.
inline GgufBuilder tiny_gguf() {
  GgufBuilder file;
  file.text("general.architecture", "llama");
  file.text("general.name", "tiny");
  file.u32("llama.context_length", 128);
  file.u32("llama.embedding_length", kTinyHidden);
  file.u32("llama.block_count", 1);
  file.u32("llama.feed_forward_length", kTinyFfn);
  file.u32("llama.attention.head_count", 2);
  file.u32("llama.attention.head_count_kv", 1);
  file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  file.f32("llama.rope.freq_base", 10000);
  file.text("tokenizer.ggml.model", "gpt2");
  file.text("tokenizer.ggml.pre", "qwen2");
  file.texts("tokenizer.ggml.tokens", tiny_tokens());
  std::vector<int32_t> kinds(kTinyVocab, 1);
  kinds[0] = kinds[1] = kinds[2] = 3;
  file.numbers("tokenizer.ggml.token_type", GgufType::i32, kinds);
  file.texts("tokenizer.ggml.merges", {"t h", "th e"});
  file.u32("tokenizer.ggml.bos_token_id", 0);
  file.u32("tokenizer.ggml.eos_token_id", 1);
  file.boolean("tokenizer.ggml.add_bos_token", true);
  file.f32_tensor("token_embd.weight", {kTinyHidden, kTinyVocab}, 0.1f);
  file.f32_tensor("output_norm.weight", {kTinyHidden}, 1);
  file.f32_tensor("blk.0.attn_norm.weight", {kTinyHidden}, 1);
  file.f32_tensor("blk.0.attn_q.weight", {kTinyHidden, kTinyHidden}, 0.2f);
  file.f32_tensor("blk.0.attn_k.weight", {kTinyHidden, kTinyKv}, 0.3f);
  file.f32_tensor("blk.0.attn_v.weight", {kTinyHidden, kTinyKv}, 0.4f);
  file.f32_tensor("blk.0.attn_output.weight", {kTinyHidden, kTinyHidden}, 0.5f);
  file.f32_tensor("blk.0.ffn_norm.weight", {kTinyHidden}, 1);
  file.f32_tensor("blk.0.ffn_gate.weight", {kTinyHidden, kTinyFfn}, 0.6f);
  file.f32_tensor("blk.0.ffn_up.weight", {kTinyHidden, kTinyFfn}, 0.7f);
  file.f32_tensor("blk.0.ffn_down.weight", {kTinyFfn, kTinyHidden}, 0.8f);
  return file;
}

// The tensors of the tiny model over three files, the second of which has no weights at all.
inline void write_split_gguf(const TempFolder& folder,
                             const std::function<void(int, GgufBuilder&)>& change = {}) {
  for (int part = 0; part < 3; ++part) {
    GgufBuilder file = part == 0 ? tiny_gguf() : GgufBuilder();
    const GgufBuilder whole = tiny_gguf();
    const size_t cut = 6;
    file.tensors.clear();
    if (part == 0) file.tensors.assign(whole.tensors.begin(), whole.tensors.begin() + cut);
    if (part == 2) file.tensors.assign(whole.tensors.begin() + cut, whole.tensors.end());
    file.set("split.no", GgufType::u16, little_endian<uint16_t>(static_cast<uint16_t>(part)));
    file.set("split.count", GgufType::u16, little_endian<uint16_t>(3));
    file.set("split.tensors.count", GgufType::i32, little_endian<int32_t>(11));
    if (change) change(part, file);
    folder.write("tiny-0000" + std::to_string(part + 1) + "-of-00003.gguf", file.bytes());
  }
}

// The parts of a model directory; what is empty is not written.
struct DirectoryBuilder {
  nlohmann::json config, tokenizer, tokenizer_config, header;
  std::string data;                                        // the tensors' bytes
  std::vector<std::pair<std::string, std::string>> files;  // more files, or others in place of the above

  void f32_tensor(const std::string& name, std::vector<int64_t> shape, float seed) {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    const size_t begin = data.size();
    for (int64_t i = 0; i < count; ++i) data += little_endian(seed + 0.01f * static_cast<float>(i % 97));
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string safetensors() const {
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    return little_endian<uint64_t>(text.size()) + text + data;
  }
  void write(const TempFolder& folder) const {
    folder.write("config.json", config.dump());
    folder.write("tokenizer.json", tokenizer.dump());
    folder.write("tokenizer_config.json", tokenizer_config.dump());
    folder.write("model.safetensors", safetensors());
    for (const auto& [name, bytes] : files) {
      if (bytes.empty()) {
        std::filesystem::remove(folder / name);
      } else {
        folder.write(name, bytes);
      }
    }
  }
};

inline nlohmann::json byte_level_tokenizer() {
  nlohmann::json vocab = nlohmann::json::object(), added = nlohmann::json::array();
  const std::vector<std::string> tokens = tiny_tokens();
  for (size_t i = 0; i < tokens.size(); ++i) vocab[tokens[i]] = i;
  for (int i = 0; i < 3; ++i)
    added.push_back({{"id", i}, {"content", tokens[static_cast<size_t>(i)]}, {"special", true}});
  return {{"added_tokens", added},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"t h", "th e"}}}}};
}

// The same model as tiny_gguf(), with other weights.
inline DirectoryBuilder tiny_directory() {
  DirectoryBuilder files;
  files.config = {{"model_type", "llama"},
                  {"hidden_size", kTinyHidden},
                  {"intermediate_size", kTinyFfn},
                  {"num_hidden_layers", 1},
                  {"num_attention_heads", 2},
                  {"num_key_value_heads", 1},
                  {"vocab_size", kTinyVocab},
                  {"max_position_embeddings", 128},
                  {"rms_norm_eps", 1e-5},
                  {"tie_word_embeddings", true},
                  {"hidden_act", "silu"},
                  {"rope_theta", 10000.0},
                  {"eos_token_id", 1}};
  files.tokenizer = byte_level_tokenizer();
  files.tokenizer_config = {{"bos_token", "<|bos|>"}, {"eos_token", "<|end|>"}, {"add_bos_token", true}};
  const int64_t hidden = kTinyHidden, ffn = kTinyFfn, kv = kTinyKv, vocab = kTinyVocab;
  const std::string layer = "model.layers.0.";
  files.f32_tensor("model.embed_tokens.weight", {vocab, hidden}, 0.1f);
  files.f32_tensor("model.norm.weight", {hidden}, 1);
  files.f32_tensor(layer + "input_layernorm.weight", {hidden}, 1);
  files.f32_tensor(layer + "self_attn.q_proj.weight", {hidden, hidden}, 0.2f);
  files.f32_tensor(layer + "self_attn.k_proj.weight", {kv, hidden}, 0.3f);
  files.f32_tensor(layer + "self_attn.v_proj.weight", {kv, hidden}, 0.4f);
  files.f32_tensor(layer + "self_attn.o_proj.weight", {hidden, hidden}, 0.5f);
  files.f32_tensor(layer + "post_attention_layernorm.weight", {hidden}, 1);
  files.f32_tensor(layer + "mlp.gate_proj.weight", {ffn, hidden}, 0.6f);
  files.f32_tensor(layer + "mlp.up_proj.weight", {ffn, hidden}, 0.7f);
  files.f32_tensor(layer + "mlp.down_proj.weight", {hidden, ffn}, 0.8f);
  return files;
}

// The same with a header whose length is no multiple of 4, which puts every f32 between two words.
inline DirectoryBuilder unaligned_directory() {
  DirectoryBuilder files = tiny_directory();
  std::string header = files.header.dump();
  while ((header.size() + 8) % 4 != 1) header += ' ';
  files.files.emplace_back("model.safetensors", little_endian<uint64_t>(header.size()) + header + files.data);
  return files;
}

}  // namespace wi::test
