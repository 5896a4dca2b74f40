// Any bytes as a GGUF file in memory: container, hyper-parameters, vocabulary, tokenizer, chat template,
// weights and metadata, as a host's file goes through them. Only wi::Error may come out. What opens is then
// used a little: text becomes tokens and text again, and a small model reads and writes some.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "src/error.h"
#include "src/files/gguf.h"
#include "src/model/model.h"
#include "src/session.h"

namespace {

using namespace wi;

// What the fields say even of a file that opens as no model.
void read_metadata(std::span<const std::byte> bytes) {
  const Metadata metadata(Gguf::parse(bytes, "fuzz.gguf"), nullptr);
  for (size_t i = 0; i < metadata.count(); ++i) (void)metadata.find(metadata.key(i));
}

// So that a step takes milliseconds.
bool is_small(const ModelConfig& config) {
  return config.layers <= 16 && config.hidden <= 1024 && config.ffn <= 4096 && config.vocab <= 16384 &&
         int64_t{config.query_heads} * config.head_dim <= 4096;
}

void run(const std::shared_ptr<const Model>& model) {
  static const std::shared_ptr<Runtime> runtime = [] {
    RuntimeParams params;
    params.threads = 1;
    params.kv_budget_bytes = uint64_t{64} << 20;
    return Runtime::create(params);
  }();
  SessionParams params;
  params.policy = find_policy(runtime->backend, "wave");
  const auto session = Session::create(runtime, model, params);
  const int32_t vocab = model->config.vocab;
  const int32_t tokens[] = {0, vocab / 2, vocab - 1};
  session->prefill(tokens, {}, nullptr);
  session->decode(nullptr);
  session->logits(nullptr);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  try {
    read_metadata(bytes);
    const std::shared_ptr<const Model> model = Model::open_memory(bytes, {}, Precision::fast, nullptr);
    (void)model->tokenizer->decode(model->tokenizer->encode("Hello, wörld <|end|>", true, true), true);
    if (is_small(model->config)) run(model);
  } catch (const Error&) {
  }
  return 0;
}
