// Opens a model: picks the reader by what the path is, then looks up every tensor the architecture needs,
// checks its shape and points the weights at it. Matrices stay in the mapping unless they are to be copied,
// vectors are copied to f32.
#include "src/model/model.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <list>
#include <sys/stat.h>
#include <unordered_set>

#include "src/error.h"
#include "src/model/copy_weights.h"
#include "src/model/mapped_file.h"
#include "src/model/model_file.h"

namespace wi {
namespace {

bool is_directory(const std::string& path);
std::unique_ptr<const Tokenizer> make_tokenizer(Vocabulary vocabulary, const std::string& file);
uint64_t fingerprint_of(const ModelConfig& config, const std::vector<const StoredTensor*>& tensors);
std::string type_of_most_bytes(const std::vector<const StoredTensor*>& tensors);

}  // namespace

std::shared_ptr<const Model> Model::open(const std::string& path,
                                         const std::function<void(uint64_t, uint64_t)>& progress,
                                         Precision precision, HostPool* copy_into) {
  ModelFile file = is_directory(path) ? read_safetensors_model(path) : read_gguf_model(path);
  const std::string name = file.name;
  VocabularyFile vocabulary = std::move(file.vocabulary);
  auto model = std::make_shared<Model>();
  model->precision = precision;
  model->tokenizer = make_tokenizer(std::move(vocabulary.vocabulary), name);
  const Vocabulary& words = model->tokenizer->vocabulary();
  auto text = [&](int32_t id) {
    return id < 0 ? std::string_view() : std::string_view(words.tokens[static_cast<size_t>(id)]);
  };
  model->chat = ChatTemplate::recognise(vocabulary.chat_template, text(words.bos), text(words.eos));
  bind_weights(std::move(file), model.get(), progress, copy_into);  // last: a copy takes long
  return model;
}

namespace {

// Finds tensors by name and layer, and keeps account of which were asked for.
class Binder {
 public:
  Binder(const ModelFile& file, const std::function<void(uint64_t, uint64_t)>& progress)
      : file_(file), progress_(progress) {
    for (const StoredTensor& tensor : file.tensors.all()) total_bytes_ += tensor.bytes;
  }

  Matrix matrix(const char* name, int32_t layer, int64_t rows, int64_t cols) {
    const StoredTensor& tensor = need(name, layer, ".weight");
    check_shape(tensor, {rows, cols});
    return {tensor.data, tensor.type, rows, cols};
  }

  const float* vector(const char* name, int32_t layer, const char* suffix, int64_t count) {
    const StoredTensor& tensor = need(name, layer, suffix);
    check_shape(tensor, {count});
    return copies_->emplace_back(read_floats(tensor)).data();
  }

  // Null if it is not needed and not there.
  const float* vector_if(bool needed, const char* name, int32_t layer, const char* suffix, int64_t count) {
    return needed || has(name, layer, suffix) ? vector(name, layer, suffix, count) : nullptr;
  }

  bool has(const char* name, int32_t layer, const char* suffix) const {
    return file_.tensors.find(full_name(name, layer, suffix)) != nullptr;
  }

  // A tensor that nobody asked for is arithmetic that would be left out.
  void refuse_unused() const {
    for (const StoredTensor& tensor : file_.tensors.all()) {
      const bool recomputed = std::string_view(tensor.name).ends_with("rotary_emb.inv_freq");
      const bool repeated =
          file_.config.tied_embeddings && tensor.name == full_name(file_.names->output, 0, ".weight");
      check(recomputed || repeated || seen_.count(&tensor), WI_E_UNSUPPORTED, tensor.where(),
            " is not part of any supported architecture with these hyper-parameters");
    }
  }

  const std::vector<const StoredTensor*>& used() const { return used_; }
  std::shared_ptr<std::list<std::vector<float>>> copies() const { return copies_; }

 private:
  static std::string full_name(const char* name, int32_t layer, const char* suffix) {
    std::string full = name;
    if (size_t at = full.find('#'); at != std::string::npos) full.replace(at, 1, std::to_string(layer));
    return full + suffix;
  }

  const StoredTensor& need(const char* name, int32_t layer, const char* suffix) {
    const std::string full = full_name(name, layer, suffix);
    const StoredTensor* tensor = file_.tensors.find(full);
    check(tensor, WI_E_FORMAT, file_.name, ": tensor '", full, "' is missing");
    if (seen_.insert(tensor).second) {
      used_.push_back(tensor);
      used_bytes_ += tensor->bytes;
      if (progress_) progress_(used_bytes_, total_bytes_);
    }
    return *tensor;
  }

  static void check_shape(const StoredTensor& tensor, const std::vector<int64_t>& shape) {
    check(tensor.shape == shape, WI_E_FORMAT, tensor.where(), " has shape ", shape_text(tensor.shape),
          ", must have ", shape_text(shape));
  }

  const ModelFile& file_;
  const std::function<void(uint64_t, uint64_t)>& progress_;
  std::vector<const StoredTensor*> used_;
  std::unordered_set<const StoredTensor*> seen_;
  uint64_t used_bytes_ = 0, total_bytes_ = 0;
  std::shared_ptr<std::list<std::vector<float>>> copies_ = std::make_shared<std::list<std::vector<float>>>();
};

LayerWeights bind_layer(Binder& bind, const TensorNames& names, const ModelConfig& config, int32_t layer) {
  const int64_t hidden = config.hidden, head_dim = config.head_dim;
  const int64_t query_width = config.query_heads * head_dim, kv_width = config.kv_heads * head_dim;
  LayerWeights weights;
  weights.attention_norm = bind.vector(names.attention_norm, layer, ".weight", hidden);
  weights.q = bind.matrix(names.q, layer, query_width, hidden);
  weights.k = bind.matrix(names.k, layer, kv_width, hidden);
  weights.v = bind.matrix(names.v, layer, kv_width, hidden);
  weights.q_bias = bind.vector_if(config.attention_bias, names.q, layer, ".bias", query_width);
  weights.k_bias = bind.vector_if(config.attention_bias, names.k, layer, ".bias", kv_width);
  weights.v_bias = bind.vector_if(config.attention_bias, names.v, layer, ".bias", kv_width);
  if (config.qk_norm) {
    weights.q_norm = bind.vector(names.q_norm, layer, ".weight", head_dim);
    weights.k_norm = bind.vector(names.k_norm, layer, ".weight", head_dim);
  }
  weights.o = bind.matrix(names.o, layer, hidden, query_width);
  weights.o_bias = bind.vector_if(false, names.o, layer, ".bias", hidden);
  weights.ffn_norm = bind.vector(names.ffn_norm, layer, ".weight", hidden);
  weights.gate = bind.matrix(names.gate, layer, config.ffn, hidden);
  weights.up = bind.matrix(names.up, layer, config.ffn, hidden);
  weights.down = bind.matrix(names.down, layer, hidden, config.ffn);
  return weights;
}

// llama3's scaling, as GGUF stores it: a divisor per rotated pair.
const float* bind_rope_factors(Binder& bind, const TensorNames& names, const ModelConfig& config,
                               const std::string& file) {
  if (!names.rope_factors || !bind.has(names.rope_factors, 0, "")) return nullptr;
  const float* factors = bind.vector(names.rope_factors, 0, "", config.rotary / 2);
  for (int32_t i = 0; i < config.rotary / 2; ++i)
    check(factors[i] > 0, WI_E_FORMAT, file, ": tensor '", names.rope_factors, "': element ", i, " is ",
          factors[i], ", must be positive");
  return factors;
}

}  // namespace

void bind_weights(ModelFile file, Model* model, const std::function<void(uint64_t, uint64_t)>& progress,
                  HostPool* copy_into) {
  const std::function<void(uint64_t, uint64_t)> none;
  const TensorNames& names = *file.names;
  ModelConfig& config = file.config;
  Binder bind(file, copy_into ? none : progress);
  if (file.names == &kGgufNames) config.tied_embeddings = !bind.has(names.output, 0, ".weight");

  Weights& weights = model->weights;
  weights.embedding = bind.matrix(names.embedding, 0, config.vocab, config.hidden);
  weights.output =
      config.tied_embeddings ? weights.embedding : bind.matrix(names.output, 0, config.vocab, config.hidden);
  weights.output_norm = bind.vector(names.output_norm, 0, ".weight", config.hidden);
  for (int32_t layer = 0; layer < config.layers; ++layer)
    weights.layers.push_back(bind_layer(bind, names, config, layer));
  model->rope = rope_frequencies(config, bind_rope_factors(bind, names, config, file.name));
  bind.refuse_unused();

  for (const StoredTensor* tensor : bind.used()) {
    model->parameters += static_cast<uint64_t>(tensor->elements());
    model->weight_bytes += tensor->bytes;
  }
  model->weight_type = type_of_most_bytes(bind.used());
  model->fingerprint = fingerprint_of(config, bind.used());
  struct Storage {
    std::shared_ptr<void> vectors;
    std::shared_ptr<const FileStorage> file;  // of matrices that stay there
    HostBuffer copy;                          // of those that do not
  };
  auto storage = std::make_shared<Storage>();
  storage->vectors = bind.copies();
  if (copy_into)
    storage->copy = copy_weights(&weights, file, copy_into, progress);
  else
    storage->file = std::move(file.storage);
  model->storage = std::move(storage);
  model->config = std::move(config);
}

namespace {

bool is_directory(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw_errno(WI_E_IO, concat("cannot open ", path), errno);
  return S_ISDIR(status.st_mode);
}

// A tokenizer knows the field that is wrong, and not which file it came from.
std::unique_ptr<const Tokenizer> make_tokenizer(Vocabulary vocabulary, const std::string& file) {
  try {
    return Tokenizer::create(std::move(vocabulary));
  } catch (const Error& error) {
    fail(error.code(), file, ": tokenizer: ", error.what());
  }
}

std::string type_of_most_bytes(const std::vector<const StoredTensor*>& tensors) {
  uint64_t bytes[32] = {};
  for (const StoredTensor* tensor : tensors) bytes[static_cast<int>(tensor->type)] += tensor->bytes;
  return format_of(static_cast<DType>(std::max_element(std::begin(bytes), std::end(bytes)) - bytes)).name;
}

// FNV-1a over words. Four samples of each tensor tell fine-tunes of one model apart without reading it all.
class Fingerprint {
 public:
  void add(uint64_t word) { state_ = (state_ ^ word) * 0x100000001b3ull ^ state_ >> 29; }
  void add(double value) {
    uint64_t word;
    std::memcpy(&word, &value, sizeof word);
    add(word);
  }
  void add(const std::byte* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) add(uint64_t(data[i]));
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325ull;
};

uint64_t fingerprint_of(const ModelConfig& config, const std::vector<const StoredTensor*>& tensors) {
  constexpr uint64_t kSamples = 4, kSampleBytes = 32;
  Fingerprint print;
  for (int64_t number :
       {int64_t(config.architecture), int64_t(config.layers), int64_t(config.hidden),
        int64_t(config.query_heads), int64_t(config.kv_heads), int64_t(config.head_dim), int64_t(config.ffn),
        int64_t(config.vocab), int64_t(config.rotary), int64_t(config.rope.kind)})
    print.add(static_cast<uint64_t>(number));
  const RopeScaling& rope = config.rope;
  for (double number : {config.rope_theta, rope.factor, rope.original_positions, rope.low_frequency,
                        rope.high_frequency, rope.beta_fast, rope.beta_slow, rope.attention_factor,
                        double(rope.truncate), double(config.rms_epsilon)})
    print.add(number);
  for (const StoredTensor* tensor : tensors) {
    print.add(reinterpret_cast<const std::byte*>(tensor->name.data()), tensor->name.size());
    print.add(static_cast<uint64_t>(tensor->type));
    for (int64_t dimension : tensor->shape) print.add(static_cast<uint64_t>(dimension));
    const uint64_t sample = std::min(kSampleBytes, tensor->bytes);
    for (uint64_t i = 0; i < kSamples; ++i)
      print.add(tensor->data + (tensor->bytes - sample) / (kSamples - 1) * i, sample);
  }
  return print.value();
}

}  // namespace
}  // namespace wi
