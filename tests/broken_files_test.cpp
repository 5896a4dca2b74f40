// The table of broken models: a good tiny one, one thing wrong with it, and the words that must come back.
// Every case goes through Model::open, as a host's file does; none may crash, hang or allocate what a file
// claims.
#include <cmath>
#include <functional>

#include "src/model/model.h"
#include "support/model_files.h"
#include "test.h"

using namespace wi;
using namespace wi::test;
using nlohmann::json;

namespace {

struct Case {
  const char* claim;
  wi_status status;
  const char* message;
};
struct GgufCase : Case {
  std::function<void(GgufBuilder&)> build;
  std::function<void(std::string&)> edit;
};
struct DirectoryCase : Case {
  std::function<void(DirectoryBuilder&)> build;
};

std::function<void(std::string&)> cut_to(size_t bytes) {
  return [bytes](std::string& file) { file.resize(bytes); };
}
// A header that claims no more than what is left of a file that is cut short, so that the cut itself is
// found.
std::function<void(GgufBuilder&)> first_fields(int64_t count) {
  return [=](GgufBuilder& file) {
    file.tensors.clear();
    file.field_count = count;
  };
}
std::function<void(GgufBuilder&)> text(const char* key, const char* value) {
  return [=](GgufBuilder& file) { file.text(key, value); };
}
std::function<void(GgufBuilder&)> u32(const char* key, uint32_t value) {
  return [=](GgufBuilder& file) { file.u32(key, value); };
}
std::function<void(GgufBuilder&)> f32(const char* key, float value) {
  return [=](GgufBuilder& file) { file.f32(key, value); };
}
std::function<void(GgufBuilder&)> without(const char* key) {
  return [=](GgufBuilder& file) { file.remove(key); };
}
std::function<void(GgufBuilder&)> tensor(const char* name, std::function<void(GgufBuilder::Tensor&)> change) {
  return [=](GgufBuilder& file) { change(file.tensor(name)); };
}

const std::vector<GgufCase> kGgufCases = {
    // The container
    {{"empty file", WI_E_FORMAT, "broken.gguf: the file is empty"}, {}, cut_to(0)},
    {{"three bytes", WI_E_FORMAT, "broken.gguf: the magic is not 'GGUF' (byte 0)"}, {}, cut_to(3)},
    {{"wrong magic", WI_E_FORMAT, "broken.gguf: the magic is not 'GGUF' (byte 0)"},
     [](GgufBuilder& f) { f.magic = "GGML"; },
     {}},
    {{"ends in the version", WI_E_FORMAT, "broken.gguf: the file ends in the version (byte 4)"},
     {},
     cut_to(6)},
    {{"version 1", WI_E_UNSUPPORTED, "broken.gguf: GGUF version 1, only 2 and 3 are supported (byte 4)"},
     [](GgufBuilder& f) { f.version = 1; },
     {}},
    {{"version 99", WI_E_UNSUPPORTED, "broken.gguf: GGUF version 99, only 2 and 3 are supported (byte 4)"},
     [](GgufBuilder& f) { f.version = 99; },
     {}},
    {{"big endian", WI_E_UNSUPPORTED, "broken.gguf: the file is big-endian (byte 4)"},
     [](GgufBuilder& f) { f.version = 0x03000000; },
     {}},
    {{"ends in the tensor count", WI_E_FORMAT, "broken.gguf: the file ends in the tensor count (byte 8)"},
     {},
     cut_to(12)},
    {{"ends in the metadata count", WI_E_FORMAT,
      "broken.gguf: the file ends in the metadata count (byte 16)"},
     {},
     cut_to(20)},
    {{"more tensors than bytes", WI_E_FORMAT,
      "the tensor count is 4611686018427387904, more than the file can hold (byte 8)"},
     [](GgufBuilder& f) { f.tensor_count = int64_t{1} << 62; },
     {}},
    {{"more keys than bytes", WI_E_FORMAT,
      "the metadata count is 4611686018427387904, more than the file can hold (byte 16)"},
     [](GgufBuilder& f) { f.field_count = int64_t{1} << 62; },
     {}},
    {{"one key too few", WI_E_FORMAT,
      "tensor 'tokenizer.ggml.add_bos_token' (byte "},  // the last key is taken for a tensor
     [](GgufBuilder& f) { f.field_count = static_cast<int64_t>(f.fields.size()) - 1; },
     {}},
    {{"ends in a key", WI_E_FORMAT, "the length of metadata key 0 is 20, but 16 bytes are left (byte 24)"},
     first_fields(2),
     cut_to(48)},
    {{"key longer than the file", WI_E_FORMAT, "the length of metadata key 0 is 18446744073709551615, but"},
     {},
     [](std::string& file) { file.replace(24, 8, 8, '\xff'); }},
    {{"empty key", WI_E_FORMAT, "metadata key 18 is empty (byte "}, [](GgufBuilder& f) { f.u32("", 1); }, {}},
    {{"key of 70,000 bytes", WI_E_FORMAT, "is 70000, at most 65535 is allowed (byte "},
     [](GgufBuilder& f) { f.u32(std::string(70000, 'k'), 1); },
     {}},
    {{"key twice", WI_E_FORMAT, "key 'general.name' appears twice (byte "},
     [](GgufBuilder& f) { f.fields.push_back(f.fields[1]); },
     {}},
    {{"unknown value type", WI_E_FORMAT, "key 'general.name' has unknown value type 13 (byte 89)"},
     [](GgufBuilder& f) { f.fields[1].type = 13; },
     {}},
    {{"ends in a number", WI_E_FORMAT, "the file ends in key 'llama.context_length' (byte "},
     first_fields(3),
     [](std::string& file) { file.resize(file.find("llama.context_length") + 20 + 4 + 2); }},
    {{"ends in a string", WI_E_FORMAT,
      "the length of key 'general.name' is 4, but 2 bytes are left (byte 93)"},
     first_fields(2),
     cut_to(103)},
    {{"bool of value 2", WI_E_FORMAT, "key 'tokenizer.ggml.add_bos_token' is a bool of value 2 (byte "},
     [](GgufBuilder& f) { f.set("tokenizer.ggml.add_bos_token", GgufType::boolean, "\2"); },
     {}},
    {{"array of unknown type", WI_E_FORMAT, "key 'odd' has unknown value type 77 (byte "},
     [](GgufBuilder& f) { f.array("odd", static_cast<GgufType>(77), 1, "x"); },
     {}},
    {{"array longer than the file", WI_E_FORMAT, "key 'odd' has 1152921504606846976 elements, but "},
     [](GgufBuilder& f) { f.array("odd", GgufType::u64, uint64_t{1} << 60, "xxxxxxxx"); },
     {}},
    {{"array whose byte count wraps", WI_E_FORMAT, "key 'odd' has 9223372036854775809 elements, but "},
     [](GgufBuilder& f) { f.array("odd", GgufType::u16, (uint64_t{1} << 63) + 1, "xx"); },
     {}},
    {{"string in an array past the end", WI_E_FORMAT, "the length of key 'odd' is 1099511627776, but "},
     [](GgufBuilder& f) { f.array("odd", GgufType::string, 1, little_endian(uint64_t{1} << 40)); },
     {}},
    {{"arrays nested five deep", WI_E_FORMAT, "key 'odd' nests arrays deeper than 4 (byte "},
     [](GgufBuilder& f) {
       std::string inner = little_endian<uint32_t>(0) + little_endian<uint64_t>(0);
       for (int i = 0; i < 3; ++i) inner = little_endian<uint32_t>(9) + little_endian<uint64_t>(1) + inner;
       f.array("odd", GgufType::array, 1, inner);
     },
     {}},
    {{"alignment 48", WI_E_FORMAT, "is 48, must be a power of two"}, u32("general.alignment", 48), {}},
    {{"alignment 4", WI_E_FORMAT, "is 4, must be in [8, 1048576]"}, u32("general.alignment", 4), {}},
    {{"alignment 0", WI_E_FORMAT, "key 'general.alignment' (byte "}, u32("general.alignment", 0), {}},
    // The tensor table
    {{"ends in the tensor table", WI_E_FORMAT,
      "the file ends in the dimensions of tensor 'output_norm.weight' (byte "},
     {},
     [](std::string& file) { file.resize(file.find("output_norm.weight") + 18 + 4 + 3); }},
    {{"ends before the data", WI_E_FORMAT, "but the data part has 0"},
     {},
     [](std::string& file) {
       file.resize(file.find("blk.0.ffn_down.weight") + 21 + 4 + 16 + 4 + 8);
       file.resize((file.size() + 31) / 32 * 32);
     }},
    {{"ends inside the data", WI_E_FORMAT, "tensor 'blk.0.ffn_down.weight' (byte "},
     {},
     [](std::string& file) { file.resize(file.size() - 1); }},
    {{"tensor twice", WI_E_FORMAT, "tensor 'output_norm.weight' (byte "},
     [](GgufBuilder& f) { f.tensors.push_back(f.tensor("output_norm.weight")); },
     {}},
    {{"tensor without dimensions", WI_E_FORMAT, " has 0 dimensions, must be 1 to 4"},
     tensor("output_norm.weight", [](auto& t) { t.dims.clear(); }),
     {}},
    {{"tensor of 5 dimensions", WI_E_FORMAT, " has 5 dimensions, must be 1 to 4"},
     tensor("output_norm.weight",
            [](auto& t) {
              t.dims = {2, 2, 2, 2, 2};
            }),
     {}},
    {{"dimension of 0", WI_E_FORMAT, " has dimensions (0, 32), each must be positive"},
     tensor("blk.0.attn_q.weight", [](auto& t) { t.dims[1] = 0; }),
     {}},
    {{"dimension of 2^63", WI_E_FORMAT, " has dimensions (-1, 32), each must be positive"},
     tensor("blk.0.attn_q.weight", [](auto& t) { t.dims[1] = uint64_t{1} << 63; }),
     {}},
    {{"product of dimensions wraps to 0", WI_E_FORMAT,
      " has dimensions (4294967296, 4294967296), each must be positive"},
     tensor("blk.0.attn_q.weight",
            [](auto& t) {
              t.dims = {uint64_t{1} << 32, uint64_t{1} << 32};
            }),
     {}},
    {{"tensor type 20", WI_E_UNSUPPORTED, " has type 20 (iq4_nl), which is not supported"},
     tensor("blk.0.attn_q.weight", [](auto& t) { t.type = 20; }),
     {}},
    {{"tensor type 4000000000", WI_E_UNSUPPORTED, " has type 4000000000 (unknown), which is not supported"},
     tensor("blk.0.attn_q.weight", [](auto& t) { t.type = 4000000000u; }),
     {}},
    {{"rows of half a block", WI_E_FORMAT,
      " has rows of 16 elements, which is no whole number of q8_0 blocks of 32"},
     tensor("blk.0.attn_q.weight",
            [](auto& t) {
              t.type = 8;
              t.dims = {16, 64};
            }),
     {}},
    {{"rows of an eighth of a super-block", WI_E_FORMAT,
      " has rows of 32 elements, which is no whole number of q4_k blocks of 256"},
     tensor("blk.0.attn_q.weight", [](auto& t) { t.type = 12; }),
     {}},
    {{"unaligned offset", WI_E_FORMAT, " has offset 33, which is no multiple of the alignment 32"},
     tensor("output_norm.weight", [](auto& t) { t.offset = 33; }),
     {}},
    {{"offset behind the end", WI_E_FORMAT,
      " has offset 1099511627776 and 128 bytes, but the data part has "},
     tensor("output_norm.weight", [](auto& t) { t.offset = int64_t{1} << 40; }),
     {}},
    {{"overlapping tensors", WI_E_FORMAT, " overlaps tensor "},
     tensor("output_norm.weight", [](auto& t) { t.offset = 32; }),
     {}},
    {{"name of 2,000 bytes", WI_E_FORMAT,
      "the length of the name of tensor 11 is 2000, at most 1024 is allowed (byte "},
     [](GgufBuilder& f) { f.f32_tensor(std::string(2000, 'n'), {1}, 0); },
     {}},
    // Hyper-parameters
    {{"no architecture", WI_E_FORMAT, "broken.gguf: key 'general.architecture' is missing"},
     without("general.architecture"),
     {}},
    {{"architecture of another type", WI_E_FORMAT, " has type u32, must be string"},
     u32("general.architecture", 7),
     {}},
    {{"unknown architecture", WI_E_UNSUPPORTED, " is 'mamba', supported are llama, qwen2, qwen3"},
     text("general.architecture", "mamba"),
     {}},
    {{"no layer count", WI_E_FORMAT, "broken.gguf: key 'llama.block_count' is missing"},
     without("llama.block_count"),
     {}},
    {{"0 layers", WI_E_FORMAT, " is 0, must be in [1, 4096]"}, u32("llama.block_count", 0), {}},
    {{"4 billion layers", WI_E_FORMAT, " is 4294967295, must be in [1, 4096]"},
     u32("llama.block_count", 4294967295u),
     {}},
    {{"-1 heads", WI_E_FORMAT, " is -1, must be in [1, 16384]"},
     [](GgufBuilder& f) { f.set("llama.attention.head_count", GgufType::i32, little_endian<int32_t>(-1)); },
     {}},
    {{"hidden as float", WI_E_FORMAT, "key 'llama.embedding_length' (byte "},
     f32("llama.embedding_length", 32),
     {}},
    {{"epsilon as integer", WI_E_FORMAT, " has type u32, must be f32 or f64"},
     u32("llama.attention.layer_norm_rms_epsilon", 1),
     {}},
    {{"epsilon NaN", WI_E_FORMAT, " is nan, must be finite"},
     f32("llama.attention.layer_norm_rms_epsilon", NAN),
     {}},
    {{"epsilon 0", WI_E_FORMAT, "RMS epsilon is 0, must be in (0, 1)"},
     f32("llama.attention.layer_norm_rms_epsilon", 0),
     {}},
    {{"negative RoPE base", WI_E_FORMAT, "RoPE base is -10000, must be in (1, 1e30)"},
     f32("llama.rope.freq_base", -10000),
     {}},
    {{"heads that do not divide hidden", WI_E_FORMAT, " is 3, which does not divide embedding_length 32"},
     u32("llama.attention.head_count", 3),
     {}},
    {{"KV heads that do not divide heads", WI_E_FORMAT,
      "broken.gguf: 2 query heads are no multiple of 3 KV heads"},
     u32("llama.attention.head_count_kv", 3),
     {}},
    {{"odd number of rotated dimensions", WI_E_FORMAT,
      "15 rotated dimensions, must be even and at most the head's 16"},
     u32("llama.rope.dimension_count", 15),
     {}},
    {{"more rotated dimensions than a head has", WI_E_FORMAT, "18 rotated dimensions"},
     u32("llama.rope.dimension_count", 18),
     {}},
    {{"values of another width", WI_E_UNSUPPORTED, " is 8, differs from key_length 16"},
     u32("llama.attention.value_length", 8),
     {}},
    {{"unknown RoPE scaling", WI_E_UNSUPPORTED, " is 'longrope', supported are none, linear, yarn"},
     text("llama.rope.scaling.type", "longrope"),
     {}},
    {{"RoPE scaled by 0", WI_E_FORMAT, "RoPE scaling factor is 0, must be in [0.001, 1e6]"},
     text("llama.rope.scaling.type", "yarn"),
     {}},
    {{"experts", WI_E_UNSUPPORTED, "key 'llama.expert_count' (byte "}, u32("llama.expert_count", 8), {}},
    {{"not causal", WI_E_UNSUPPORTED, "key 'llama.attention.causal' (byte "},
     [](GgufBuilder& f) { f.boolean("llama.attention.causal", false); },
     {}},
    {{"attention factor without yarn", WI_E_UNSUPPORTED, " is 1.5, supported without yarn is 1"},
     f32("llama.rope.scaling.attn_factor", 1.5f),
     {}},
    {{"attention factor of Grok's", WI_E_UNSUPPORTED, " is 0.5, supported in this architecture is 1"},
     f32("llama.rope.scaling.yarn_attn_factor", 0.5f),
     {}},
    {{"extrapolation without yarn", WI_E_UNSUPPORTED, " is 1, supported without yarn is 0"},
     f32("llama.rope.scaling.yarn_ext_factor", 1),
     {}},
    {{"KV heads that differ by layer", WI_E_UNSUPPORTED, " is 1 in one layer and 2 in another"},
     [](GgufBuilder& f) {
       f.u32("llama.block_count", 2);
       f.numbers<int32_t>("llama.attention.head_count_kv", GgufType::i32, {1, 2});
     },
     {}},
    {{"KV heads of more layers than there are", WI_E_FORMAT, " has 2 elements, but there are 1 layers"},
     [](GgufBuilder& f) {
       f.numbers<int32_t>("llama.attention.head_count_kv", GgufType::i32, {1, 1});
     },
     {}},
    {{"scaled residuals", WI_E_UNSUPPORTED, "key 'llama.residual_scale' (byte "},
     f32("llama.residual_scale", 0.22f),
     {}},
    {{"scaled embeddings", WI_E_UNSUPPORTED, "key 'llama.embedding_scale' (byte "},
     f32("llama.embedding_scale", 12),
     {}},
    {{"scaled attention", WI_E_UNSUPPORTED, " is 0.5, supported is 1 / sqrt(key_length)"},
     f32("llama.attention.scale", 0.5f),
     {}},
    {{"soft-capped logits", WI_E_UNSUPPORTED, "key 'llama.final_logit_softcapping' (byte "},
     f32("llama.final_logit_softcapping", 30),
     {}},
    {{"rotation in sections", WI_E_UNSUPPORTED, "key 'llama.rope.dimension_sections' (byte "},
     [](GgufBuilder& f) {
       f.numbers<int32_t>("llama.rope.dimension_sections", GgufType::i32, {2, 3, 3});
     },
     {}},
    {{"windows of more layers than there are", WI_E_FORMAT, " has 2 elements, but there are 1 layers"},
     [](GgufBuilder& f) {
       f.numbers<int32_t>("llama.attention.sliding_window", GgufType::i32, {64, 64});
     },
     {}},
    {{"windows in a pattern by number", WI_E_UNSUPPORTED, " is no list of bool, one for each layer"},
     [](GgufBuilder& f) {
       f.u32("llama.attention.sliding_window", 64);
       f.u32("llama.attention.sliding_window_pattern", 4);
     },
     {}},
    {{"a window that is text", WI_E_FORMAT, "key 'llama.attention.sliding_window' (byte "},
     text("llama.attention.sliding_window", "all"),
     {}},
    {{"a rotation of the window's own", WI_E_UNSUPPORTED, "key 'llama.rope.freq_base_swa' (byte "},
     [](GgufBuilder& f) {
       f.u32("llama.attention.sliding_window", 64);
       f.f32("llama.rope.freq_base_swa", 500);
     },
     {}},
    {{"vocabulary of another size", WI_E_FORMAT, " is 300, but tokenizer.ggml.tokens has 261 elements"},
     u32("llama.vocab_size", 300),
     {}},
    // Weights
    {{"no embedding", WI_E_FORMAT, "broken.gguf: tensor 'token_embd.weight' is missing"},
     [](GgufBuilder& f) { f.drop_tensor("token_embd.weight"); },
     {}},
    {{"no tensors at all", WI_E_FORMAT, "broken.gguf: tensor 'token_embd.weight' is missing"},
     [](GgufBuilder& f) { f.tensors.clear(); },
     {}},
    {{"a layer too few", WI_E_FORMAT, "broken.gguf: tensor 'blk.1.attn_norm.weight' is missing"},
     u32("llama.block_count", 2),
     {}},
    {{"transposed projection", WI_E_FORMAT, " has shape (32, 64), must have (64, 32)"},
     tensor("blk.0.ffn_gate.weight",
            [](auto& t) {
              t.dims = {64, 32};
            }),
     {}},
    {{"norm as matrix", WI_E_FORMAT, " has shape (1, 32), must have (32)"},
     tensor("output_norm.weight",
            [](auto& t) {
              t.dims = {32, 1};
            }),
     {}},
    {{"quantised norm", WI_E_FORMAT, " has type q8_0, must be f32, f16 or bf16"},
     tensor("output_norm.weight", [](auto& t) { t.type = 8; }),
     {}},
    {{"infinite norm", WI_E_FORMAT, ": element 1 is inf"},
     tensor("output_norm.weight", [](auto& t) { t.data.replace(4, 4, std::string("\0\0\x80\x7f", 4)); }),
     {}},
    {{"RoPE divisor of 0", WI_E_FORMAT, "tensor 'rope_freqs.weight': element 0 is 0, must be positive"},
     [](GgufBuilder& f) { f.f32_tensor("rope_freqs.weight", {8}, 0); },
     {}},
    {{"qwen2 without biases", WI_E_FORMAT, "broken.gguf: tensor 'blk.0.attn_q.bias' is missing"},
     [](GgufBuilder& f) {
       f.text("general.architecture", "qwen2");
       for (auto& field : f.fields)
         if (field.key.starts_with("llama.")) field.key = "qwen2." + field.key.substr(6);
     },
     {}},
    {{"a tensor nobody uses", WI_E_UNSUPPORTED, "tensor 'blk.0.ffn_gate.bias' (byte "},
     [](GgufBuilder& f) { f.f32_tensor("blk.0.ffn_gate.bias", {64}, 0); },
     {}},
    // Tokenizer
    {{"no tokens", WI_E_FORMAT, "broken.gguf: key 'tokenizer.ggml.tokens' is missing"},
     without("tokenizer.ggml.tokens"),
     {}},
    {{"tokens that are numbers", WI_E_FORMAT, " is an array of u8, must be of string"},
     [](GgufBuilder& f) { f.array("tokenizer.ggml.tokens", GgufType::u8, 261, std::string(261, 'x')); },
     {}},
    {{"unknown tokenizer", WI_E_UNSUPPORTED, " is 'bert', supported are gpt2 and llama"},
     text("tokenizer.ggml.model", "bert"),
     {}},
    {{"unknown pre-tokenizer", WI_E_UNSUPPORTED, "broken.gguf: tokenizer: pre_tokenizer \"martian\""},
     text("tokenizer.ggml.pre", "martian"),
     {}},
    {{"no pre-tokenizer", WI_E_FORMAT, "broken.gguf: key 'tokenizer.ggml.pre' is missing"},
     without("tokenizer.ggml.pre"),
     {}},
    {{"no merges", WI_E_FORMAT, "broken.gguf: key 'tokenizer.ggml.merges' is missing"},
     without("tokenizer.ggml.merges"),
     {}},
    {{"merge of an unknown token", WI_E_FORMAT, "merges[1] names \"zzz\""},
     [](GgufBuilder& f) {
       f.texts("tokenizer.ggml.merges", {"t h", "th zzz"});
     },
     {}},
    {{"merge into an unknown token", WI_E_FORMAT, "merges[0] makes \"xy\""},
     [](GgufBuilder& f) { f.texts("tokenizer.ggml.merges", {"x y"}); },
     {}},
    {{"token types of another count", WI_E_FORMAT, " has 2 elements, but there are 261 tokens"},
     [](GgufBuilder& f) {
       f.numbers<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {1, 1});
     },
     {}},
    {{"token type 9", WI_E_FORMAT, ": element 0 is 9, must be 1 to 6"},
     [](GgufBuilder& f) {
       f.numbers("tokenizer.ggml.token_type", GgufType::i32, std::vector<int32_t>(261, 9));
     },
     {}},
    {{"BOS behind the vocabulary", WI_E_FORMAT, " is 261, must be in [0, 260]"},
     u32("tokenizer.ggml.bos_token_id", 261),
     {}},
    {{"BOS wanted and missing", WI_E_FORMAT,
      "'tokenizer.ggml.bos_token_id' is missing, but add_bos_token is true"},
     without("tokenizer.ggml.bos_token_id"),
     {}},
    {{"a byte nobody stands for", WI_E_FORMAT, "broken.gguf: tokenizer: tokens lacks byte 97"},
     [](GgufBuilder& f) {
       auto tokens = tiny_tokens();
       tokens[3 + 'a'] = "aa";
       f.texts("tokenizer.ggml.tokens", tokens);
     },
     {}},
    {{"SentencePiece without scores", WI_E_FORMAT, "key 'tokenizer.ggml.scores' is missing"},
     text("tokenizer.ggml.model", "llama"),
     {}},
};

// All of a table's failures are shown, not the first alone.
bool refused(const Case& entry, const std::string& path) {
  try {
    Model::open(path);
    std::printf("%s: opened\n", entry.claim);
  } catch (const Error& error) {
    if (error.code() == entry.status && std::strstr(error.what(), entry.message)) return true;
    std::printf("%s: status %d: %s\n", entry.claim, error.code(), error.what());
  }
  std::printf("  wanted status %d: %s\n", entry.status, entry.message);
  return false;
}

void each_broken_gguf_is_refused_with_its_reason(void**) {
  TempFolder folder;
  int failures = 0;
  for (const GgufCase& entry : kGgufCases) {
    GgufBuilder file = tiny_gguf();
    if (entry.build) entry.build(file);
    std::string bytes = file.bytes();
    if (entry.edit) entry.edit(bytes);
    failures += !refused(entry, folder.write("broken.gguf", bytes));
  }
  assert_int_equal(failures, 0);
}

// Cut anywhere, a file is refused: no length is believed that the rest does not bear out.
void a_gguf_cut_at_any_byte_is_refused(void**) {
  TempFolder folder;
  const std::string whole = tiny_gguf().bytes();
  for (size_t bytes = 1; bytes < whole.size(); bytes += bytes < 700 ? 1 : 997) {
    const std::string part = whole.substr(0, bytes);
    assert_error(WI_E_FORMAT, "broken.gguf", Gguf::parse(as_bytes(part), "broken.gguf"));
  }
}

std::function<void(DirectoryBuilder&)> config(const char* key, json value) {
  return [=](DirectoryBuilder& files) { files.config[key] = value; };
}
std::function<void(DirectoryBuilder&)> config_without(const char* key) {
  return [=](DirectoryBuilder& files) { files.config.erase(key); };
}
std::function<void(DirectoryBuilder&)> file(const char* name, std::string bytes) {
  return [=](DirectoryBuilder& files) { files.files.emplace_back(name, bytes); };
}
std::function<void(DirectoryBuilder&)> header(const char* tensor, const char* key, json value) {
  return [=](DirectoryBuilder& files) { files.header[tensor][key] = value; };
}
std::function<void(DirectoryBuilder&)> tokenizer(std::function<void(json&)> change) {
  return [=](DirectoryBuilder& files) { change(files.tokenizer); };
}
std::string with_header(const std::string& text) { return little_endian<uint64_t>(text.size()) + text; }
const char* const kNorm = "model.norm.weight";

const std::vector<DirectoryCase> kDirectoryCases = {
    // Files
    {{"no config.json", WI_E_FORMAT, "a model directory must hold config.json"}, file("config.json", "")},
    {{"no tokenizer.json", WI_E_FORMAT, "a model directory must hold tokenizer.json"},
     file("tokenizer.json", "")},
    {{"no weights", WI_E_FORMAT, "a model directory must hold model.safetensors or"},
     file("model.safetensors", "")},
    {{"an adapter beside the weights", WI_E_UNSUPPORTED, "adapter_config.json is there"},
     file("adapter_config.json", "{}")},
    // config.json
    {{"other weights than those of its own name", WI_E_UNSUPPORTED,
      "config.json: transformers_weights is set"},
     config("transformers_weights", "other.safetensors")},
    {{"layers of their own", WI_E_UNSUPPORTED, "config.json: per_layer_config is set"},
     config("per_layer_config", {{"1", {{"rms_norm_eps", 0.01}}}})},
    {{"config that is no JSON", WI_E_FORMAT, "config.json: broken JSON at byte 1"},
     file("config.json", "hidden_size: 32")},
    {{"config that ends early", WI_E_FORMAT, "config.json: broken JSON at byte "},
     file("config.json", "{\"hidden_size\": 32")},
    {{"config that is a list", WI_E_FORMAT, "config.json: the JSON is array, must be object"},
     file("config.json", "[1]")},
    {{"config of 100,000 brackets", WI_E_FORMAT, "config.json: JSON nests deeper than 64 at byte 65"},
     file("config.json", std::string(100000, '['))},
    {{"config with a number beyond all numbers", WI_E_FORMAT, "config.json: broken JSON"},
     file("config.json", "{\"rope_theta\": 1e999}")},
    {{"config with broken UTF-8", WI_E_FORMAT, "config.json: broken JSON at byte "},
     file("config.json", "{\"model_type\": \"\xff\"}")},
    {{"no model type", WI_E_FORMAT, "config.json: model_type is missing"}, config_without("model_type")},
    {{"unknown model type", WI_E_UNSUPPORTED,
      "config.json: model_type is 'gpt_neox', supported are llama, mistral, qwen2, qwen3"},
     config("model_type", "gpt_neox")},
    {{"hidden size as text", WI_E_FORMAT, "config.json: hidden_size is string, must be an integer"},
     config("hidden_size", "32")},
    {{"hidden size as fraction", WI_E_FORMAT, "config.json: hidden_size is number, must be an integer"},
     config("hidden_size", 32.5)},
    {{"hidden size 2^64 - 1", WI_E_FORMAT,
      "config.json: hidden_size is 2^63 or more, must be in [1, 1048576]"},
     config("hidden_size", UINT64_MAX)},
    {{"hidden size missing", WI_E_FORMAT, "config.json: hidden_size is missing"},
     config_without("hidden_size")},
    {{"-1 layers", WI_E_FORMAT, "config.json: num_hidden_layers is -1, must be in [1, 4096]"},
     config("num_hidden_layers", -1)},
    {{"0 KV heads", WI_E_FORMAT, "config.json: num_key_value_heads is 0, must be in [1, 16384]"},
     config("num_key_value_heads", 0)},
    {{"KV heads that do not divide", WI_E_FORMAT, "config.json: 2 query heads are no multiple of 3 KV heads"},
     config("num_key_value_heads", 3)},
    {{"heads that do not divide hidden", WI_E_FORMAT,
      "config.json: num_attention_heads is 5, which does not divide hidden_size 32"},
     config("num_attention_heads", 5)},
    {{"odd head_dim", WI_E_FORMAT, "config.json: 15 rotated dimensions"}, config("head_dim", 15)},
    {{"negative epsilon", WI_E_FORMAT, "config.json: RMS epsilon is -1e-05, must be in (0, 1)"},
     config("rms_norm_eps", -1e-5)},
    {{"flag that is a number", WI_E_FORMAT,
      "config.json: tie_word_embeddings is number, must be true or false"},
     config("tie_word_embeddings", 1)},
    {{"unknown RoPE scaling", WI_E_UNSUPPORTED,
      "config.json: rope_scaling: rope_type is 'dynamic', supported are default, linear, llama3, yarn"},
     config("rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}})},
    {{"RoPE scaling without factor", WI_E_FORMAT, "config.json: rope_scaling: factor is missing"},
     config("rope_scaling", {{"type", "linear"}})},
    {{"RoPE scaling that is a number", WI_E_FORMAT, "config.json: rope_scaling is number, must be an object"},
     config("rope_scaling", 2)},
    {{"yarn from 0 positions", WI_E_FORMAT,
      "config.json: rope_scaling: original_max_position_embeddings is 0, must be positive"},
     config("rope_scaling", {{"rope_type", "yarn"}, {"original_max_position_embeddings", 0}})},
    {{"llama3 with one frequency", WI_E_FORMAT,
      "RoPE scaling's low and high frequency factors are 2 and 2, must be positive and rising"},
     config("rope_scaling",
            {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 2}, {"high_freq_factor", 2}})},
    {{"another activation", WI_E_UNSUPPORTED, "config.json: hidden_act is 'gelu', supported is silu"},
     config("hidden_act", "gelu")},
    {{"biases in the feed-forward", WI_E_UNSUPPORTED, "config.json: mlp_bias is true, supported is false"},
     config("mlp_bias", true)},
    {{"weights quantised by another program", WI_E_UNSUPPORTED, "config.json: quantization_config is set"},
     config("quantization_config", {{"bits", 4}})},
    {{"rotation of half the head", WI_E_UNSUPPORTED, "config.json: partial_rotary_factor is 0.5, supported"},
     config("partial_rotary_factor", 0.5)},
    {{"rotation of half the head in rope_parameters", WI_E_UNSUPPORTED, "partial_rotary_factor is 0.5"},
     config("rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}})},
    {{"RoPE by layer type", WI_E_UNSUPPORTED, "config.json: rope_parameters: full_attention is an object"},
     config("rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}})},
    {{"not causal", WI_E_UNSUPPORTED, "config.json: is_causal is false"}, config("is_causal", false)},
    {{"an encoder", WI_E_UNSUPPORTED, "config.json: use_bidirectional_attention is set"},
     config("use_bidirectional_attention", true)},
    {{"soft-capped logits", WI_E_UNSUPPORTED, "config.json: final_logit_softcapping is set"},
     config("final_logit_softcapping", 30.0)},
    {{"scaled logits", WI_E_UNSUPPORTED, "config.json: logits_scaling is set, supported is 1"},
     config("logits_scaling", 8.0)},
    {{"scaled attention", WI_E_UNSUPPORTED, "config.json: attention_multiplier is 0.1"},
     config("attention_multiplier", 0.1)},
    {{"experts", WI_E_UNSUPPORTED, "config.json: num_local_experts is set"}, config("num_local_experts", 8)},
    {{"a classifier", WI_E_UNSUPPORTED, "config.json: architectures is 'LlamaForSequenceClassification'"},
     config("architectures", json::array({"LlamaForSequenceClassification"}))},
    {{"a stored output that differs from the embedding it is tied to", WI_E_UNSUPPORTED,
      " differs from model.embed_tokens.weight, but tie_word_embeddings says that they are one"},
     [](DirectoryBuilder& files) {
       files.f32_tensor("lm_head.weight", {kTinyVocab, kTinyHidden}, 0.9f);
     }},
    {{"a bias that is stored but not declared", WI_E_UNSUPPORTED,
      "tensor 'model.layers.0.self_attn.q_proj.bias' (byte "},
     [](DirectoryBuilder& files) { files.f32_tensor("model.layers.0.self_attn.q_proj.bias", {32}, 0.1f); }},
    // safetensors
    {{"5 bytes of weights", WI_E_FORMAT, "model.safetensors: the file ends in the header length (byte 0)"},
     file("model.safetensors", "12345")},
    {{"header longer than the file", WI_E_FORMAT,
      "model.safetensors: the header length is 1000, but 2 bytes are left (byte 0)"},
     file("model.safetensors", little_endian<uint64_t>(1000) + "{}")},
    {{"header of 2^64 - 1 bytes", WI_E_FORMAT,
      "model.safetensors: the header length is 18446744073709551615, at most 100000000 is allowed (byte 0)"},
     file("model.safetensors", little_endian<uint64_t>(UINT64_MAX) + "{}")},
    {{"header that is no JSON", WI_E_FORMAT, "model.safetensors: header: broken JSON at byte "},
     file("model.safetensors", with_header("{\"a\""))},
    {{"no tensors", WI_E_FORMAT, "tensor 'model.embed_tokens.weight' is missing"},
     file("model.safetensors", with_header("{}"))},
    {{"tensor twice", WI_E_FORMAT, "model.safetensors: header: 'a' appears twice"},
     file("model.safetensors",
          with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{}})") + "data")},
    {{"entry that is a list", WI_E_FORMAT,
      "model.safetensors: tensor 'a' (byte 8) is array, must be an object"},
     file("model.safetensors", with_header(R"({"a":[]})"))},
    {{"no dtype", WI_E_FORMAT, ": dtype is missing"}, header(kNorm, "dtype", nullptr)},
    {{"unknown dtype", WI_E_UNSUPPORTED, " has dtype 'F8_E4M3', supported are F32, F16, BF16"},
     header(kNorm, "dtype", "F8_E4M3")},
    {{"no shape", WI_E_FORMAT, ": shape is missing"}, header(kNorm, "shape", nullptr)},
    {{"shape with a 0", WI_E_FORMAT, ": shape: element 0 must be an integer in [1, 9223372036854775807]"},
     header(kNorm, "shape", {0, 32})},
    {{"shape that overflows", WI_E_FORMAT,
      ": shape is (4294967296, 4294967296, 4), its product must be at most 2^56"},
     header(kNorm, "shape", {int64_t{1} << 32, int64_t{1} << 32, 4})},
    {{"one offset", WI_E_FORMAT, ": data_offsets must be two rising numbers"},
     header(kNorm, "data_offsets", json::array({4}))},
    {{"falling offsets", WI_E_FORMAT, ": data_offsets must be two rising numbers"},
     header(kNorm, "data_offsets", json::array({128, 0}))},
    {{"negative offset", WI_E_FORMAT,
      ": data_offsets: element 0 must be an integer in [0, 9223372036854775807]"},
     header(kNorm, "data_offsets", json::array({-4, 124}))},
    {{"offsets behind the end", WI_E_FORMAT, ": data_offsets end at 1000128, but the data part has "},
     header(kNorm, "data_offsets", json::array({1000000, 1000128}))},
    {{"offsets that do not fit the shape", WI_E_FORMAT,
      ": data_offsets span 64 bytes, but f32 (32) takes 128"},
     header(kNorm, "data_offsets", json::array({0, 64}))},
    {{"overlapping tensors", WI_E_FORMAT, " overlaps tensor 'model."},
     header(kNorm, "data_offsets", json::array({4, 132}))},
    {{"wrong shape", WI_E_FORMAT, " has shape (4, 8), must have (32)"}, header(kNorm, "shape", {4, 8})},
    {{"missing output", WI_E_FORMAT, "tensor 'lm_head.weight' is missing"},
     config("tie_word_embeddings", false)},
    {{"missing bias", WI_E_FORMAT, "tensor 'model.layers.0.self_attn.q_proj.bias' is missing"},
     config("attention_bias", true)},
    {{"missing QK norm", WI_E_FORMAT, "tensor 'model.layers.0.self_attn.q_norm.weight' is missing"},
     [](DirectoryBuilder& files) {
       files.config["model_type"] = "qwen3";
       files.config["head_dim"] = 16;
     }},
    {{"index that names a missing shard", WI_E_FORMAT,
      "weight_map names gone.safetensors, which is not there"},
     [](DirectoryBuilder& files) {
       files.files.emplace_back("model.safetensors", "");
       files.files.emplace_back("model.safetensors.index.json",
                                R"({"weight_map": {"model.norm.weight": "gone.safetensors"}})");
     }},
    // tokenizer.json
    {{"tokenizer without model", WI_E_FORMAT, "tokenizer.json: model is missing"},
     tokenizer([](json& j) { j.erase("model"); })},
    {{"unigram tokenizer", WI_E_UNSUPPORTED, "tokenizer.json: model: type is 'Unigram', supported is BPE"},
     tokenizer([](json& j) { j["model"]["type"] = "Unigram"; })},
    {{"empty vocabulary", WI_E_FORMAT, "tokenizer.json: model: vocab is missing or empty"},
     tokenizer([](json& j) { j["model"]["vocab"] = json::object(); })},
    {{"token id as text", WI_E_FORMAT, "tokenizer.json: model: vocab: 'a' is string, must be an integer"},
     tokenizer([](json& j) { j["model"]["vocab"]["a"] = "5"; })},
    {{"token id behind the vocabulary", WI_E_FORMAT,
      "'extra' has id 261, but config.json's vocab_size is 261"},
     tokenizer([](json& j) { j["model"]["vocab"]["extra"] = 261; })},
    {{"token id of 2^63", WI_E_FORMAT, "'extra' has id 2147483647, but"},
     tokenizer([](json& j) { j["model"]["vocab"]["extra"] = uint64_t{1} << 63; })},
    {{"negative token id", WI_E_FORMAT, "'extra' has id -1, but"},
     tokenizer([](json& j) { j["model"]["vocab"]["extra"] = -1; })},
    {{"two tokens of one id", WI_E_FORMAT, "'th' has id 259, which is 'extra'"},
     tokenizer([](json& j) { j["model"]["vocab"]["extra"] = 259; })},
    {{"added token without content", WI_E_FORMAT,
      "tokenizer.json: added_tokens: element 3: content is missing"},
     tokenizer([](json& j) {
       j["added_tokens"].push_back({{"id", 4}});
     })},
    {{"added token in another's place", WI_E_UNSUPPORTED, "added_tokens: element 3: 'mine' has id 4, but"},
     tokenizer([](json& j) {
       j["added_tokens"].push_back({{"id", 4}, {"content", "mine"}});
     })},
    {{"merge of three", WI_E_FORMAT, "tokenizer.json: model: merges: element 0 must be two tokens"},
     tokenizer([](json& j) {
       j["model"]["merges"] = json::array({json::array({"t", "h", "e"})});
     })},
    {{"merge of one", WI_E_FORMAT, "tokenizer.json: model: merges: element 0 must be two tokens"},
     tokenizer([](json& j) { j["model"]["merges"] = json::array({"th"}); })},
    {{"merge of an unknown token", WI_E_FORMAT, "merges[0] names \"qq\""},
     tokenizer([](json& j) { j["model"]["merges"] = json::array({"qq h"}); })},
    {{"no way to spell a byte", WI_E_FORMAT, "tokens lacks byte 0, and there is no unknown token"},
     tokenizer([](json& j) { j.erase("pre_tokenizer"); })},
    {{"unknown pre-tokenizer", WI_E_UNSUPPORTED,
      "pre_tokenizer: type is 'Punctuation', supported are Split, Digits, Metaspace and ByteLevel"},
     tokenizer([](json& j) {
       j["pre_tokenizer"] = {{"type", "Punctuation"}};
     })},
    {{"pattern that is no pattern", WI_E_FORMAT, "tokenizer: pre-tokenizer pattern"}, tokenizer([](json& j) {
       j["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers",
                              {{{"type", "Split"}, {"pattern", {{"Regex", "(["}}}, {"behavior", "Isolated"}},
                               {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
     })},
    {{"lower-casing tokenizer", WI_E_UNSUPPORTED,
      "tokenizer.json: normalizer: type is 'Lowercase', supported are NFC"},
     tokenizer([](json& j) {
       j["normalizer"] = {{"type", "Lowercase"}};
     })},
    {{"unknown BOS", WI_E_FORMAT, "tokenizer_config.json: bos_token is '<s>', which is no token"},
     [](DirectoryBuilder& files) { files.tokenizer_config["bos_token"] = "<s>"; }},
    {{"special tokens that are split", WI_E_UNSUPPORTED, "split_special_tokens is true"},
     [](DirectoryBuilder& files) { files.tokenizer_config["split_special_tokens"] = true; }},
    {{"EOS behind the vocabulary", WI_E_FORMAT, "config.json: eos_token_id is 999, must be in [0, 260]"},
     config("eos_token_id", 999)},
};

void each_broken_directory_is_refused_with_its_reason(void**) {
  int failures = 0;
  for (const DirectoryCase& entry : kDirectoryCases) {
    TempFolder folder;
    DirectoryBuilder files = tiny_directory();
    entry.build(files);
    files.write(folder);
    failures += !refused(entry, folder.path());
  }
  assert_int_equal(failures, 0);
}

// What looks like one of the cases above and computes the same all the same.
void what_changes_nothing_is_accepted(void**) {
  TempFolder folder;
  GgufBuilder gguf = tiny_gguf();
  gguf.numbers<int32_t>("llama.attention.head_count_kv", GgufType::i32, {1});
  gguf.numbers<int32_t>("llama.attention.head_count", GgufType::i32, {2});
  gguf.numbers<int32_t>("llama.feed_forward_length", GgufType::i32, {64});
  gguf.boolean("llama.attention.causal", true);
  gguf.f32("llama.rope.scaling.attn_factor", 1);
  gguf.f32("llama.attention.scale", 0.25f);
  gguf.f32("llama.logit_scale", 1);
  gguf.u32("llama.attention.sliding_window", 128);
  Model::open(folder.write("m.gguf", gguf.bytes()));

  DirectoryBuilder files = tiny_directory();
  const json embedding = files.header["model.embed_tokens.weight"];
  const size_t begin = embedding["data_offsets"][0], end = embedding["data_offsets"][1],
               at = files.data.size();
  files.data += files.data.substr(begin, end - begin);
  files.header["lm_head.weight"] = embedding;  // the same as the embedding that it is tied to
  files.header["lm_head.weight"]["data_offsets"] = {at, files.data.size()};
  files.config["partial_rotary_factor"] = 1.0;
  files.config["rope_scaling"] = json::object();
  files.config["pretraining_tp"] = 2;
  files.config["attention_dropout"] = 0.1;
  files.config["logits_scaling"] = 1;
  files.config["architectures"] = {"LlamaForCausalLM"};
  files.config["per_layer_config"] = json::object();
  // Left of weights in several files, in whose place there is one now.
  files.files.emplace_back("model.safetensors.index.json", R"({"weight_map": {"a": "gone.safetensors"}})");
  TempFolder directory;
  files.write(directory);
  Model::open(directory.path());
}

}  // namespace

int main() {
  std::printf("%zu broken models\n", kGgufCases.size() + kDirectoryCases.size());
  const CMUnitTest tests[] = {cmocka_unit_test(each_broken_gguf_is_refused_with_its_reason),
                              cmocka_unit_test(a_gguf_cut_at_any_byte_is_refused),
                              cmocka_unit_test(each_broken_directory_is_refused_with_its_reason),
                              cmocka_unit_test(what_changes_nothing_is_accepted)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
