// Any bytes as a GGUF file: container, hyper-parameters, vocabulary, tokenizer and weights, as Model::open
// reads them. Only wi::Error may come out. What opens is then used a little.
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/error.h"
#include "src/model/gguf.h"
#include "src/model/model.h"
#include "src/model/model_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace wi;
  try {
    const Gguf gguf = Gguf::parse(std::as_bytes(std::span(data, size)), "fuzz.gguf");
    for (const GgufField& field : gguf.fields()) (void)gguf.where(field.key);
    ModelFile file;
    file.name = gguf.name();
    file.names = &kGgufNames;
    for (const StoredTensor& tensor : gguf.tensors()) file.tensors.add(tensor);
    file.config = config_from_gguf(gguf);
    file.vocabulary = vocabulary_from_gguf(gguf);
    Vocabulary vocabulary = file.vocabulary.vocabulary;
    Model model;
    bind_weights(std::move(file), &model, {});
    const auto tokenizer = Tokenizer::create(std::move(vocabulary));
    (void)tokenizer->decode(tokenizer->encode("Hello, wörld <|end|>", true, true), true);
  } catch (const Error&) {
  }
  return 0;
}
