// What the readers of both formats hand to model.cpp: checked hyper-parameters, the vocabulary, and the
// tensors by the names that this format uses.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/files/mapped_file.h"
#include "src/files/metadata.h"
#include "src/files/tensor_table.h"
#include "src/memory/host_pool.h"
#include "src/model/config.h"
#include "src/tokenizer/vocabulary.h"

namespace wi {

// '#' stands for the layer's number; ".weight" or ".bias" follows.
struct TensorNames {
  const char *embedding, *output_norm, *output;
  const char *attention_norm, *q, *k, *v, *q_norm, *k_norm, *o, *ffn_norm, *gate, *up, *down;
  const char* rope_factors;  // whole name, or null
};
extern const TensorNames kGgufNames, kSafetensorsNames;

// What the tensors' data lies in.
struct FileStorage {
  std::list<MappedFile> mappings;
  HostBuffer read;                          // a whole file that came through a reader
  std::list<std::vector<uint64_t>> copies;  // of tensors that lie unaligned in their file
};

struct ModelFile {
  ModelConfig config;
  VocabularyFile vocabulary;
  TensorTable tensors;
  const TensorNames* names = nullptr;
  std::string name;  // of the file or directory, for messages
  std::shared_ptr<const FileStorage> storage;
  Metadata metadata;
};

ModelFile read_gguf_model(const std::string& path, Watch* watch);  // a file, or the first of a split set
// A whole file that lies in memory, in the storage or, if that is empty, in the host's.
ModelFile read_gguf_model(std::span<const std::byte> bytes, std::shared_ptr<const FileStorage> storage,
                          Watch* watch);
ModelFile read_safetensors_model(const std::string& directory, Watch* watch);

class HostPool;
class Model;
// Fills config, weights, rope, counts and metadata: everything but tokenizer and chat. The matrices stay in
// the file's storage, or are copied into the pool if there is one (copy_weights.h).
void bind_weights(ModelFile file, Model* model, Watch* watch, HostPool* copy_into = nullptr);

}  // namespace wi
