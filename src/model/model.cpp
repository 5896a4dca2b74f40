// Opens a model: picks the reader by what the path is, then looks up every tensor the architecture needs,
// checks its shape and points the weights at it. Matrices stay in the mapping unless they are to be copied,
// vectors are copied to f32.
#include "src/model/model.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <sys/stat.h>
#include <unordered_set>

#include "src/error.h"
#include "src/files/mapped_file.h"
#include "src/model/copy_weights.h"
#include "src/model/model_file.h"

namespace wi {
namespace {

bool is_directory(const std::string& path);
// counting: is told of the weights that are looked at; null: nobody is
std::shared_ptr<const Model> make_model(ModelFile file, Precision precision, Watch* watch, Watch* counting,
                                        HostPool* copy_into);
std::unique_ptr<const Tokenizer> make_tokenizer(Vocabulary vocabulary, const std::string& file, Watch* watch);
std::string type_of_most_bytes(const std::vector<const StoredTensor*>& tensors);

}  // namespace

std::shared_ptr<const Model> Model::open(const std::string& path, const Progress& progress,
                                         Precision precision, HostPool* copy_into) {
  Watch watch(progress);
  ModelFile file = is_directory(path) ? read_safetensors_model(path, &watch) : read_gguf_model(path, &watch);
  return make_model(std::move(file), precision, &watch, &watch, copy_into);
}

std::shared_ptr<const Model> Model::open_memory(std::span<const std::byte> bytes, const Progress& progress,
                                                Precision precision, HostPool* copy_into) {
  Watch watch(progress);
  return make_model(read_gguf_model(bytes, std::make_shared<FileStorage>(), &watch), precision, &watch,
                    &watch, copy_into);
}

std::shared_ptr<const Model> Model::open_reader(uint64_t bytes, const Reader& read, const Progress& progress,
                                                Precision precision, HostPool* pool) {
  constexpr uint64_t kPieceBytes = uint64_t{1} << 20;  // a host is listened to between two
  Watch watch(progress);
  auto storage = std::make_shared<FileStorage>();
  storage->read = room_for_weights(pool, bytes, "the reader", "its whole file");
  const std::span<std::byte> all(storage->read.data(), bytes);
  for (uint64_t at = 0; at < bytes; at += std::min(kPieceBytes, bytes - at)) {
    watch.reached(at, bytes);
    read(at, all.subspan(at, std::min(kPieceBytes, bytes - at)));
  }
  watch.reached(bytes, bytes);
  // The weights are quick now, and their own count would begin anew.
  return make_model(read_gguf_model(all, std::move(storage), &watch), precision, &watch, nullptr, nullptr);
}

namespace {

std::shared_ptr<const Model> make_model(ModelFile file, Precision precision, Watch* watch, Watch* counting,
                                        HostPool* copy_into) {
  const std::string name = file.name;
  VocabularyFile vocabulary = std::move(file.vocabulary);
  auto model = std::make_shared<Model>();
  model->precision = precision;
  tick(watch);
  model->tokenizer = make_tokenizer(std::move(vocabulary.vocabulary), name, watch);
  tick(watch);
  model->chat = ChatTemplate(std::move(vocabulary.chat_templates), std::move(vocabulary.special_texts));
  bind_weights(std::move(file), model.get(), counting, copy_into);  // last: a copy takes long
  return model;
}

// Finds tensors by name and layer, and keeps account of which were asked for.
class Binder {
 public:
  // counts: the bytes that were looked at are told to the watch
  Binder(const ModelFile& file, Watch* watch, bool counts) : file_(file), watch_(watch), counts_(counts) {
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

  // Null if there is none, which is an error where it is needed.
  const float* bias(ModelConfig::Bias kind, const char* name, int32_t layer, int64_t count) {
    const bool wanted = kind == ModelConfig::Bias::needed ||
                        (kind == ModelConfig::Bias::optional && has(name, layer, ".bias"));
    return wanted ? vector(name, layer, ".bias", count) : nullptr;
  }

  bool has(const char* name, int32_t layer, const char* suffix) const {
    return file_.tensors.find(full_name(name, layer, suffix)) != nullptr;
  }

  // A tensor that nobody asked for is arithmetic that would be left out.
  void refuse_unused() const {
    for (const StoredTensor& tensor : file_.tensors.all()) {
      const bool recomputed = std::string_view(tensor.name).ends_with("rotary_emb.inv_freq");
      if (recomputed || seen_.count(&tensor)) continue;
      fail(WI_E_UNSUPPORTED, tensor.where(),
           " is not part of any supported architecture with these hyper-parameters");
    }
  }

  // What nobody asks for is looked at as little as that takes.
  void tell_end() const {
    if (watch_ && counts_) watch_->reached(total_bytes_, total_bytes_);
  }

  // An output that is stored although it is tied to the embedding. Versions of transformers differ in which
  // of the two they then multiply by, so they must be the same.
  void check_repeated_output(const char* embedding, const char* output) {
    const StoredTensor* one = file_.tensors.find(full_name(embedding, 0, ".weight"));
    const StoredTensor* two = file_.tensors.find(full_name(output, 0, ".weight"));
    if (!two) return;
    seen_.insert(two);
    constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
    bool same = one->type == two->type && one->shape == two->shape;
    for (uint64_t at = 0; same && at < one->bytes; at += kPieceBytes) {
      same = std::memcmp(one->data + at, two->data + at, std::min(kPieceBytes, one->bytes - at)) == 0;
      tick(watch_);
    }
    check(same, WI_E_UNSUPPORTED, two->where(), " differs from ", one->name,
          ", but tie_word_embeddings says that they are one");
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
      if (watch_ && counts_) watch_->reached(used_bytes_, total_bytes_);
    }
    return *tensor;
  }

  static void check_shape(const StoredTensor& tensor, const std::vector<int64_t>& shape) {
    check(tensor.shape == shape, WI_E_FORMAT, tensor.where(), " has shape ", shape_text(tensor.shape),
          ", must have ", shape_text(shape));
  }

  const ModelFile& file_;
  Watch* const watch_;
  const bool counts_;
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
  weights.q_bias = bind.bias(config.input_bias, names.q, layer, query_width);
  weights.k_bias = bind.bias(config.input_bias, names.k, layer, kv_width);
  weights.v_bias = bind.bias(config.input_bias, names.v, layer, kv_width);
  if (config.qk_norm) {
    weights.q_norm = bind.vector(names.q_norm, layer, ".weight", head_dim);
    weights.k_norm = bind.vector(names.k_norm, layer, ".weight", head_dim);
  }
  weights.o = bind.matrix(names.o, layer, hidden, query_width);
  weights.o_bias = bind.bias(config.output_bias, names.o, layer, hidden);
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

void bind_weights(ModelFile file, Model* model, Watch* watch, HostPool* copy_into) {
  const TensorNames& names = *file.names;
  ModelConfig& config = file.config;
  Binder bind(file, watch, !copy_into);
  if (file.names == &kGgufNames) config.tied_embeddings = !bind.has(names.output, 0, ".weight");

  Weights& weights = model->weights;
  weights.embedding = bind.matrix(names.embedding, 0, config.vocab, config.hidden);
  weights.output =
      config.tied_embeddings ? weights.embedding : bind.matrix(names.output, 0, config.vocab, config.hidden);
  weights.output_norm = bind.vector(names.output_norm, 0, ".weight", config.hidden);
  for (int32_t layer = 0; layer < config.layers; ++layer)
    weights.layers.push_back(bind_layer(bind, names, config, layer));
  const float* factors = bind_rope_factors(bind, names, config, file.name);
  if (factors) model->rope_factors.assign(factors, factors + config.rotary / 2);
  model->rope = rope_frequencies(config, factors);
  if (config.tied_embeddings) bind.check_repeated_output(names.embedding, names.output);
  bind.refuse_unused();
  bind.tell_end();

  for (const StoredTensor* tensor : bind.used()) {
    model->parameters += static_cast<uint64_t>(tensor->elements());
    model->weight_bytes += tensor->bytes;
  }
  model->weight_type = type_of_most_bytes(bind.used());
  model->metadata = std::move(file.metadata);
  struct Storage {
    std::shared_ptr<void> vectors;
    std::shared_ptr<const FileStorage> file;  // of matrices that stay there
    HostBuffer copy;                          // of those that do not
  };
  auto storage = std::make_shared<Storage>();
  storage->vectors = bind.copies();
  if (copy_into)
    storage->copy = copy_weights(&weights, file, copy_into, watch);
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
std::unique_ptr<const Tokenizer> make_tokenizer(Vocabulary vocabulary, const std::string& file,
                                                Watch* watch) {
  try {
    return Tokenizer::create(std::move(vocabulary), watch);
  } catch (const Error& error) {
    if (error.code() == WI_E_CANCELLED) throw;
    fail(error.code(), file, ": tokenizer: ", error.what());
  }
}

std::string type_of_most_bytes(const std::vector<const StoredTensor*>& tensors) {
  uint64_t bytes[32] = {};
  for (const StoredTensor* tensor : tensors) bytes[static_cast<int>(tensor->type)] += tensor->bytes;
  return format_of(static_cast<DType>(std::max_element(std::begin(bytes), std::end(bytes)) - bytes)).name;
}

}  // namespace
}  // namespace wi
