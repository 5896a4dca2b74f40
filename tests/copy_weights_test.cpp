// Weights that are copied out of their files: the same numbers elsewhere, and the files are not needed any
// more.
#include "src/model/copy_weights.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "kernels/turned_rows.h"
#include "src/session.h"
#include "support/model_files.h"
#include "support/runtime.h"
#include "test.h"

using namespace wi;
using namespace wi::test;

namespace {

const std::string kModels = WI_TEST_DATA "/fixtures/models/";

std::shared_ptr<HostPool> pool() { return runtime()->weights_pool; }
std::shared_ptr<const Model> open_copied(const std::string& path) {
  return Model::open(path, {}, Precision::fast, pool().get());
}

// Of a prefill, and of a decode step behind it.
std::vector<float> logits_of(const std::shared_ptr<const Model>& model) {
  const std::vector<int32_t> ids = {5, 100, 17, 42, 9, 80, 3};
  std::vector<float> logits(ids.size() * static_cast<size_t>(model->config.vocab));
  PrefillParams params;
  params.logits = logits;
  SessionParams session_params;
  session_params.policy = find_policy(runtime()->backend, "full");
  session_params.prefix_reuse = false;
  const auto session = Session::create(runtime(), model, session_params);
  session->prefill(ids, params, nullptr);
  session->decode(nullptr);
  const auto next = session->logits(nullptr);
  logits.insert(logits.end(), next.begin(), next.end());
  return logits;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool is_mapped(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  const std::string all((std::istreambuf_iterator<char>(maps)), std::istreambuf_iterator<char>());
  return all.find(path) != std::string::npos;
}

std::vector<const Matrix*> matrices_of(const Weights& weights) {
  std::vector<const Matrix*> list = {&weights.embedding, &weights.output};
  for (const LayerWeights& layer : weights.layers)
    for (const Matrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
      list.push_back(matrix);
  return list;
}

void copied_weights_give_the_same_logits(void**) {
  TempFolder split, unaligned;
  write_split_gguf(split);
  unaligned_directory().write(unaligned);
  for (const std::string& path :
       {split / "tiny-00001-of-00003.gguf", unaligned.path(), kModels + "llama", kModels + "llama-bf16",
        kModels + "qwen2", kModels + "llama-f16.gguf", kModels + "llama-llama3.gguf",
        kModels + "llama-quantised.gguf", kModels + "qwen3.gguf",
        std::string(WI_SOURCE_DIR "/samples/model/needle-f16.gguf")}) {
    const auto mapped = Model::open(path), copied = open_copied(path);
    std::printf("%s\n", std::filesystem::path(path).filename().c_str());
    assert_true(copied->weights_hash(runtime()->workers) == mapped->weights_hash(runtime()->workers) &&
                copied->weight_bytes == mapped->weight_bytes);
    assert_true(same_bits(logits_of(mapped), logits_of(copied)));
  }
}

// Where a step of many rows is faster for it, and nobody else notices.
void rows_of_quantised_matrices_are_turned(void**) {
  for (const char* name : {"llama-quantised.gguf", "llama-f16.gguf"}) {
    const auto mapped = Model::open(kModels + name), copied = open_copied(kModels + name);
    int turned = 0;
    for (const Matrix* matrix : matrices_of(mapped->weights)) assert_false(matrix->turned);
    for (const Matrix* matrix : matrices_of(copied->weights)) {
      assert_true(matrix->turned == (can_be_turned(*matrix) && turned_rows_pay()));
      turned += matrix->turned;
    }
    assert_true((turned > 0) == (turned_rows_pay() && std::strcmp(name, "llama-f16.gguf") != 0));
  }
}

void a_model_with_copied_weights_outlives_its_file(void**) {
  TempFolder folder;
  const std::string path = folder / "model.gguf", directory = folder / "model";
  std::filesystem::copy(kModels + "llama-f16.gguf", path);
  std::filesystem::copy(kModels + "llama", directory);
  const auto model = open_copied(path), from_directory = open_copied(directory);
  assert_false(is_mapped(folder.path()));
  const std::vector<float> before = logits_of(model), before_directory = logits_of(from_directory);
  std::filesystem::resize_file(path, 0);
  std::filesystem::resize_file(directory + "/model.safetensors", 0);
  std::filesystem::resize_file(directory + "/tokenizer.json", 0);
  assert_true(same_bits(before, logits_of(model)));
  assert_true(same_bits(before_directory, logits_of(from_directory)));
  assert_true(model->tokenizer->decode(model->tokenizer->encode("In the beginning", false, false), true) ==
              "In the beginning");
}

void copied_matrices_are_aligned_and_tied_ones_stay_one(void**) {
  TempFolder folder;
  GgufBuilder file = tiny_gguf();
  GgufBuilder::Tensor& embedding = file.tensor("token_embd.weight");
  embedding.type = 8;  // q8_0, whose rows of 34 bytes end anywhere
  embedding.data.assign(kTinyVocab * 34, 1);
  const uint64_t before = pool()->used();
  {
    const auto model = open_copied(folder.write("tiny.gguf", file.bytes()));
    for (const Matrix* matrix : matrices_of(model->weights))
      assert_int_equal(reinterpret_cast<uintptr_t>(matrix->data) % 64, 0);
    assert_true(model->config.tied_embeddings);
    assert_ptr_equal(model->weights.output.data, model->weights.embedding.data);
    const uint64_t norms = 3 * kTinyHidden * sizeof(float), padding = 64 - kTinyVocab * 34 % 64;
    assert_int_equal(pool()->used() - before, model->weight_bytes - norms + padding);
  }
  assert_int_equal(pool()->used(), before);
}

void more_than_the_process_may_use_is_refused(void**) {
  TempFolder folder;
  const std::string path = folder.write("tiny.gguf", tiny_gguf().bytes());
  const auto limited = HostPool::create(100000, true);
  const auto first = Model::open(path, {}, Precision::fast, limited.get());
  const uint64_t used = limited->used();
  assert_true(used > 50000);
  const std::string words =
      concat("tiny.gguf: a copy of the weights wants ", used,
             " bytes, of the 100000 that this process may use ", used, " are such copies already");
  assert_error(WI_E_MEMORY, words.c_str(), Model::open(path, {}, Precision::fast, limited.get()));
  assert_int_equal(limited->used(), used);
  assert_false(is_mapped(folder.path()));
  assert_true(same_bits(logits_of(first), logits_of(Model::open(path))));
}

void progress_counts_the_bytes_copied(void**) {
  uint64_t done = 0, total = 0, calls = 0;
  const auto count = [&](uint64_t now, uint64_t all) {
    if (all == 0) return;  // a machine so slow that reading the table took its time
    assert_true(now >= done && now <= all && (calls == 0 || all == total));
    done = now;
    total = all;
    ++calls;
  };
  const uint64_t before = pool()->used();
  const auto model = Model::open(kModels + "llama-f16.gguf", count, Precision::fast, pool().get());
  assert_int_equal(done, total);
  assert_true(total <= pool()->used() - before && total > model->weight_bytes / 10 * 9);
  assert_true(calls >= model->weights.layers.size() * 7 + 1);
}

// What is wrong with a file is found before anything is copied.
void a_broken_file_copies_nothing(void**) {
  TempFolder folder;
  GgufBuilder no_tokens = tiny_gguf(), no_norm = tiny_gguf();
  no_tokens.text("tokenizer.ggml.pre", "unheard-of");
  no_norm.drop_tensor("output_norm.weight");
  const uint64_t before = pool()->used(), peak = pool()->peak();
  const auto open = [&](const std::string& path) {
    Model::open(
        path, [](uint64_t done, uint64_t) { assert_int_equal(done, 0); }, Precision::fast, pool().get());
  };
  assert_error(WI_E_UNSUPPORTED, "unheard-of", open(folder.write("a.gguf", no_tokens.bytes())));
  assert_error(WI_E_FORMAT, "output_norm.weight", open(folder.write("b.gguf", no_norm.bytes())));
  assert_true(pool()->used() == before && pool()->peak() == peak);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(copied_weights_give_the_same_logits),
      cmocka_unit_test(rows_of_quantised_matrices_are_turned),
      cmocka_unit_test(a_model_with_copied_weights_outlives_its_file),
      cmocka_unit_test(copied_matrices_are_aligned_and_tied_ones_stay_one),
      cmocka_unit_test(more_than_the_process_may_use_is_refused),
      cmocka_unit_test(progress_counts_the_bytes_copied),
      cmocka_unit_test(a_broken_file_copies_nothing),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
