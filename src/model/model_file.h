// What the readers of both formats hand to model.cpp: checked hyper-parameters, the vocabulary, and the
// tensors by the names that this format uses.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "src/model/config.h"
#include "src/model/tensor_table.h"
#include "src/model/vocabulary.h"

namespace wi {

// '#' stands for the layer's number; ".weight" or ".bias" follows.
struct TensorNames {
  const char *embedding, *output_norm, *output;
  const char *attention_norm, *q, *k, *v, *q_norm, *k_norm, *o, *ffn_norm, *gate, *up, *down;
  const char* rope_factors;  // whole name, or null
};
extern const TensorNames kGgufNames, kSafetensorsNames;

struct ModelFile {
  ModelConfig config;
  VocabularyFile vocabulary;
  TensorTable tensors;
  const TensorNames* names = nullptr;
  std::string name;               // of the file or directory, for messages
  std::shared_ptr<void> storage;  // what the tensors' data lies in
};

ModelFile read_gguf_model(const std::string& path);  // a file, or the first of a split set
ModelFile read_safetensors_model(const std::string& directory);

class Model;
// Fills config, weights, rope, counts and fingerprint: everything but tokenizer and chat.
void bind_weights(ModelFile file, Model* model, const std::function<void(uint64_t, uint64_t)>& progress);

}  // namespace wi
