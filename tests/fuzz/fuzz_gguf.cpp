// Any bytes as a GGUF file in memory: container, hyper-parameters, vocabulary, tokenizer, chat template,
// weights and metadata, as a host's file goes through them. Only wi::Error may come out. What opens is then
// used a little.
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/error.h"
#include "src/files/gguf.h"
#include "src/model/model.h"

namespace {

// What the fields say even of a file that opens as no model.
void read_metadata(std::span<const std::byte> bytes) {
  using namespace wi;
  const Metadata metadata(Gguf::parse(bytes, "fuzz.gguf"));
  for (size_t i = 0; i < metadata.count(); ++i) (void)metadata.find(metadata.key(i));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace wi;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  try {
    read_metadata(bytes);
    const auto model = Model::open_memory(bytes, {}, Precision::fast, nullptr);
    (void)model->tokenizer->decode(model->tokenizer->encode("Hello, wörld <|end|>", true, true), true);
  } catch (const Error&) {
  }
  return 0;
}
