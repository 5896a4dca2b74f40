// The GGUF container and models opened from it: every kind of value comes back, splits join, weights lie
// where the file says.
#include <cmath>

#include "src/files/mapped_file.h"
#include "src/memory/workers.h"
#include "src/model/model.h"
#include "src/tokenizer/vocabulary.h"
#include "support/model_files.h"
#include "test.h"

using namespace wi;
using namespace wi::test;

static Workers& workers() {
  static Workers two(2);
  return two;
}

static void metadata_of_every_type_comes_back(void**) {
  GgufBuilder file;
  file.set("u8", GgufType::u8, little_endian<uint8_t>(200));
  file.set("i8", GgufType::i8, little_endian<int8_t>(-7));
  file.set("u16", GgufType::u16, little_endian<uint16_t>(60000));
  file.set("i16", GgufType::i16, little_endian<int16_t>(-30000));
  file.u32("u32", 4000000000u);
  file.set("i32", GgufType::i32, little_endian<int32_t>(-2000000000));
  file.set("u64", GgufType::u64, little_endian<uint64_t>(1ull << 62));
  file.set("i64", GgufType::i64, little_endian<int64_t>(INT64_MIN));
  file.f32("f32", 1.5f);
  file.set("f64", GgufType::f64, little_endian(2.25));
  file.boolean("yes", true);
  file.boolean("no", false);
  file.text("text", std::string("a\0b", 3));
  file.texts("texts", {"", "one", "zwei"});
  file.numbers<float>("floats", GgufType::f32, {1, -2});
  file.numbers<int16_t>("integers", GgufType::i16, {-1, 300});
  for (uint32_t version : {2u, 3u}) {
    file.version = version;
    const std::string bytes = file.bytes();
    const Gguf gguf = Gguf::parse(as_bytes(bytes), "test.gguf");
    auto integer = [&](const char* key) { return gguf.integer(key, INT64_MIN, INT64_MAX); };
    assert_int_equal(integer("u8"), 200);
    assert_int_equal(integer("i8"), -7);
    assert_int_equal(integer("u16"), 60000);
    assert_int_equal(integer("i16"), -30000);
    assert_int_equal(integer("u32"), 4000000000ll);
    assert_int_equal(integer("i32"), -2000000000);
    assert_true(integer("u64") == int64_t{1} << 62);
    assert_true(integer("i64") == INT64_MIN);
    assert_true(gguf.number("f32") == 1.5 && gguf.number("f64") == 2.25);
    assert_true(*gguf.find_bool("yes") && !*gguf.find_bool("no"));
    assert_true(gguf.text("text") == std::string_view("a\0b", 3));
    assert_true((gguf.texts("texts") == std::vector<std::string_view>{"", "one", "zwei"}));
    assert_true((gguf.floats("floats") == std::vector<float>{1, -2}));
    assert_true((gguf.integers("integers") == std::vector<int64_t>{-1, 300}));
    assert_true(!gguf.find_integer("none", 0, 1) && !gguf.find_text("none") && gguf.texts("none").empty());
  }
}

static void nested_arrays_are_walked_over(void**) {
  GgufBuilder file;
  std::string inner;
  for (int i = 0; i < 2; ++i)
    inner += little_endian(static_cast<uint32_t>(GgufType::string)) + little_endian<uint64_t>(2) +
             gguf_string("x") + gguf_string("yy");
  file.array("nested", GgufType::array, 2, inner);
  file.u32("after", 5);
  const std::string bytes = file.bytes();
  assert_int_equal(Gguf::parse(as_bytes(bytes), "test.gguf").integer("after", 0, 9), 5);
}

static void tensors_are_found_at_any_alignment(void**) {
  for (uint32_t alignment : {8u, 32u, 4096u}) {
    GgufBuilder file;
    file.u32("general.alignment", alignment);
    file.alignment = alignment;
    file.f32_tensor("a", {3}, 1);
    file.f32_tensor("b", {2, 5}, 2);
    const std::string bytes = file.bytes();
    const Gguf gguf = Gguf::parse(as_bytes(bytes), "test.gguf");
    const StoredTensor& b = gguf.tensors()[1];
    assert_true((b.shape == std::vector<int64_t>{5, 2}));  // outermost first
    assert_int_equal(b.offset % alignment, 0);
    assert_true(b.data == as_bytes(bytes).data() + b.offset && b.bytes == 40);
    assert_true(read_floats(b)[1] == 2.01f);
  }
}

static void half_floats_are_read_exactly(void**) {
  struct Sample {
    uint16_t f16, bf16;
    float value16, value_b;
  };
  const Sample samples[] = {{0x3c00, 0x3f80, 1, 1},
                            {0xc000, 0xc000, -2, -2},
                            {0x0001, 0x0080, 0x1p-24f, 0x1p-126f},
                            {0x7bff, 0x7f7f, 65504, 0x1.fep127f},
                            {0x8000, 0x8000, -0.0f, -0.0f},
                            {0x03ff, 0x4049, 0x1.ff8p-15f, 3.140625f}};
  for (const Sample& sample : samples) {
    StoredTensor tensor;
    tensor.shape = {1};
    tensor.type = DType::f16;
    tensor.data = reinterpret_cast<const std::byte*>(&sample.f16);
    assert_true(read_floats(tensor)[0] == sample.value16);
    tensor.type = DType::bf16;
    tensor.data = reinterpret_cast<const std::byte*>(&sample.bf16);
    assert_true(read_floats(tensor)[0] == sample.value_b);
  }
}

static void tiny_model_opens_with_its_weights_in_place(void**) {
  TempFolder folder;
  uint64_t done = 0, total = 0;
  auto model = Model::open(folder.write("tiny.gguf", tiny_gguf().bytes()), [&](uint64_t now, uint64_t all) {
    assert_true(now >= done);
    done = now;
    total = all;
  });
  assert_true(done > 0 && done == total);
  const ModelConfig& config = model->config;
  assert_string_equal(config.name.c_str(), "tiny");
  assert_true(config.layers == 1 && config.hidden == 32 && config.query_heads == 2 && config.kv_heads == 1 &&
              config.head_dim == 16);
  assert_true(config.ffn == 64 && config.vocab == 261 && config.max_positions == 128 && config.rotary == 16);
  assert_true(config.rope_interleaved && config.tied_embeddings && !config.qk_norm);
  const LayerWeights& layer = model->weights.layers[0];
  assert_true(layer.k.rows == 16 && layer.k.cols == 32 && layer.k.type == DType::f32);
  assert_true(static_cast<const float*>(layer.k.data)[2] == 0.3f + 0.02f);
  assert_true(layer.attention_norm[1] == 1.01f && layer.q_bias == nullptr);
  assert_true(model->weights.output.data == model->weights.embedding.data);
  assert_int_equal(model->parameters, 261 * 32 + 32 * 3 + 32 * 32 * 2 + 16 * 32 * 2 + 3 * 64 * 32);
  assert_int_equal(model->weight_bytes, 4 * model->parameters);
  assert_string_equal(model->weight_type.c_str(), "f32");
  assert_int_equal(model->tokenizer->vocabulary().eos, 1);
  assert_true(model->tokenizer->ends_generation(1) && !model->tokenizer->ends_generation(0));
}

// Which stands in the file by the model's name alone.
static void white_space_behind_the_tokens_of_a_phi_3_is_theirs(void**) {
  TempFolder folder;
  GgufBuilder file = tiny_gguf();
  auto tokens = tiny_tokens();
  tokens[0] = "<s>";
  file.texts("tokenizer.ggml.tokens", tokens);
  const std::string text = "<|user|> \n the<|end|> <s>\n";
  const auto byte = [](char c) {  // an unprintable one's place is its number's among those
    return 3 + static_cast<int32_t>(static_cast<unsigned char>(c));
  };
  const int32_t the = 260;
  for (const char* name : {"My PHI-3 mini", "phi3-small"}) {
    file.text("general.name", name);
    const auto model = Model::open(folder.write("phi.gguf", file.bytes()));
    assert_true(model->tokenizer->encode(text, false, true) ==
                (std::vector<int32_t>{2, the, 1, 0, byte('\n')}));
    assert_int_equal(model->tokenizer->encode(text, false, false).front(), byte('<'));
  }
  file.text("general.name", "Phi-4 mini");
  const auto model = Model::open(folder.write("other.gguf", file.bytes()));
  assert_true(model->tokenizer->encode(text, false, true) ==
              (std::vector<int32_t>{2, byte(' '), byte('\n'), byte(' '), the, 1, byte(' '), 0, byte('\n')}));
}

static void a_template_that_is_named_again_is_the_same(void**) {
  GgufBuilder file = tiny_gguf();
  file.text("tokenizer.chat_template", "default's");
  file.text("tokenizer.chat_template.tools", "of tools");
  file.texts("tokenizer.chat_templates", {"tools", "default", "tools", "none", "tools"});
  const std::string bytes = file.bytes();
  const auto templates = vocabulary_from_gguf(Gguf::parse(as_bytes(bytes), "templates")).chat_templates;
  assert_int_equal(templates.size(), 2);
  assert_true(templates[0].first == "default" && templates[1].first == "tools" &&
              templates[1].second == "of tools");
}

// -1, as converters write it; a BOS that nobody asked for and nobody has.
static void a_file_may_say_that_it_lacks_a_token(void**) {
  TempFolder folder;
  GgufBuilder file = tiny_gguf();
  for (const char* key : {"bos", "padding", "seperator", "eot", "mask"})
    file.u32(concat("tokenizer.ggml.", key, "_token_id"), UINT32_MAX);
  file.remove("tokenizer.ggml.add_bos_token");
  file.text("tokenizer.ggml.pre", "llama-bpe");  // which begins with one
  auto model = Model::open(folder.write("none.gguf", file.bytes()));
  assert_true(model->tokenizer->vocabulary().bos < 0 && !model->tokenizer->vocabulary().add_bos);
  assert_true(model->tokenizer->vocabulary().end_of_generation == std::vector<int32_t>{1});
  file.remove("tokenizer.ggml.bos_token_id");
  model = Model::open(folder.write("none.gguf", file.bytes()));
  assert_true(!model->tokenizer->vocabulary().add_bos);
  // SentencePiece's have their places all the same.
  GgufBuilder pieces = tiny_gguf();
  pieces.text("tokenizer.ggml.model", "llama");
  pieces.numbers("tokenizer.ggml.scores", GgufType::f32, std::vector<float>(kTinyVocab));
  for (const char* key : {"bos", "eos", "unknown"})
    pieces.u32(concat("tokenizer.ggml.", key, "_token_id"), UINT32_MAX);
  const std::string bytes = pieces.bytes();
  const Vocabulary vocabulary = vocabulary_from_gguf(Gguf::parse(as_bytes(bytes), "pieces")).vocabulary;
  assert_true(vocabulary.bos == 1 && vocabulary.eos == 2 && vocabulary.unknown == 0 && vocabulary.add_bos);

  file.u32("tokenizer.ggml.padding_token_id", 261);  // that of a table which was longer: a template's at most
  Model::open(folder.write("none.gguf", file.bytes()));
  file.u32("tokenizer.ggml.eot_token_id", 261);
  assert_error(WI_E_FORMAT, "is 261, must be in [0, 260]",
               Model::open(folder.write("none.gguf", file.bytes())));
}

static void mapping_outlives_the_file_name(void**) {
  std::shared_ptr<const Model> model;
  {
    TempFolder folder;
    model = Model::open(folder.write("tiny.gguf", tiny_gguf().bytes()));
  }
  assert_true(static_cast<const float*>(model->weights.embedding.data)[0] == 0.1f);
}

static void split_set_opens_as_one_model(void**) {
  TempFolder folder;
  write_split_gguf(folder);
  auto whole = Model::open(folder.write("whole.gguf", tiny_gguf().bytes()));
  auto split = Model::open(folder / "tiny-00001-of-00003.gguf");
  assert_true(split->parameters == whole->parameters &&
              split->weights_hash(workers()) == whole->weights_hash(workers()));
}

static void broken_split_sets_are_refused(void**) {
  TempFolder folder;
  write_split_gguf(folder);
  assert_error(WI_E_FORMAT, "tiny-00002-of-00003.gguf: key 'split.no'",
               Model::open(folder / "tiny-00002-of-00003.gguf"));
  std::filesystem::copy(folder / "tiny-00001-of-00003.gguf", folder / "renamed.gguf");
  assert_error(WI_E_FORMAT, "its name must end in -00001-of-00003.gguf",
               Model::open(folder / "renamed.gguf"));
  write_split_gguf(folder, [](int part, GgufBuilder& file) {
    if (part == 1) file.u32("split.no", 2);
  });
  assert_error(WI_E_FORMAT, "is 2, must be 1", Model::open(folder / "tiny-00001-of-00003.gguf"));
  write_split_gguf(folder, [](int part, GgufBuilder& file) {
    if (part == 2) file.u32("split.count", 4);
  });
  assert_error(WI_E_FORMAT, "is 4, but the first file's is 3",
               Model::open(folder / "tiny-00001-of-00003.gguf"));
  write_split_gguf(folder, [](int, GgufBuilder& file) { file.u32("split.tensors.count", 12); });
  assert_error(WI_E_FORMAT, "is 12, but the set has 11 tensors",
               Model::open(folder / "tiny-00001-of-00003.gguf"));
  write_split_gguf(folder, [](int part, GgufBuilder& file) {
    if (part == 1) file.f32_tensor("output_norm.weight", {32}, 1);
  });
  assert_error(WI_E_FORMAT, "tensor 'output_norm.weight'", Model::open(folder / "tiny-00001-of-00003.gguf"));
  write_split_gguf(folder);
  std::filesystem::remove(folder / "tiny-00003-of-00003.gguf");
  assert_error(WI_E_IO, "tiny-00003-of-00003.gguf: No such file",
               Model::open(folder / "tiny-00001-of-00003.gguf"));
}

static void files_that_cannot_be_mapped_say_why(void**) {
  TempFolder folder;
  assert_error(WI_E_IO, "No such file or directory", MappedFile(folder / "nothing.gguf"));
  assert_error(WI_E_IO, "Is a directory", MappedFile(folder.path()));
  assert_error(WI_E_FORMAT, "empty.gguf: the file is empty", MappedFile(folder.write("empty.gguf", "")));
  try {
    MappedFile file(folder / "nothing.gguf");
  } catch (const Error& error) {
    assert_int_equal(error.native_code(), ENOENT);
  }
}

// Every byte counts, wherever it is: a tensor of 5 MB is hashed in several pieces, of which each has a
// middle.
static void one_byte_of_any_weight_changes_the_hash(void**) {
  const int64_t rows = 40000;
  auto matrix = std::make_shared<std::vector<float>>(static_cast<size_t>(rows * 32), 0.5f);
  const auto hash = [&](Workers& of) {
    Model model;
    model.weights.embedding = model.weights.output = {matrix->data(), DType::f32, rows, 32};
    return model.weights_hash(of);
  };
  Workers alone(1);
  const uint64_t first = hash(workers());
  assert_true(first == hash(alone));
  auto* bytes = reinterpret_cast<unsigned char*>(matrix->data());
  const size_t count = matrix->size() * sizeof(float);
  for (const size_t at : {size_t{0}, count / 3, count / 2, count / 2 + 77777, count - 1}) {
    bytes[at] ^= 1;
    assert_true(hash(workers()) != first);
    bytes[at] ^= 1;
  }
  assert_true(hash(workers()) == first);
}

static void hashing_the_weights_can_be_cancelled(void**) {
  const auto model = Model::open(WI_SOURCE_DIR "/samples/model/needle-f16.gguf");
  const std::atomic<bool> fired{true};
  assert_error(WI_E_CANCELLED, "cancelled", model->weights_hash(workers(), &fired));
  const uint64_t hash = model->weights_hash(workers());
  assert_true(hash != 0 && hash == model->weights_hash(workers(), &fired));  // known by now
}

static void every_opened_model_has_an_identity_of_its_own(void**) {
  TempFolder folder;
  const std::string path = folder.write("m.gguf", tiny_gguf().bytes());
  const auto first = Model::open(path), second = Model::open(path);
  assert_true(first->identity != second->identity);
  assert_true(first->weights_hash(workers()) == second->weights_hash(workers()));
}

static void hash_tells_models_apart(void**) {
  TempFolder folder;
  auto print = [&](GgufBuilder file) {
    return Model::open(folder.write("m.gguf", file.bytes()))->weights_hash(workers());
  };
  const uint64_t first = print(tiny_gguf());
  assert_true(first == print(tiny_gguf()));
  GgufBuilder renamed = tiny_gguf();
  renamed.text("general.name", "other");
  assert_true(first == print(renamed));  // a name is no arithmetic
  GgufBuilder base = tiny_gguf();
  base.f32("llama.rope.freq_base", 20000);
  assert_true(first != print(base));
  GgufBuilder weight = tiny_gguf();
  weight.tensor("blk.0.ffn_up.weight").data[3] ^= 1;
  assert_true(first != print(weight));
}

static void sample_model_has_the_numbers_of_its_report(void**) {
  const auto model = Model::open(WI_SOURCE_DIR "/samples/model/needle-f16.gguf");
  const ModelConfig& config = model->config;
  assert_true(config.layers == 4 && config.hidden == 256 && config.query_heads == 4 && config.kv_heads == 2);
  assert_true(config.head_dim == 64 && config.ffn == 512 && config.vocab == 4096 &&
              config.max_positions == 1048576);
  assert_true(std::fabs(config.rope_theta / 1e12 - 1) < 1e-7 && config.tied_embeddings);
  assert_int_equal(model->parameters, 3410176);
  assert_string_equal(model->weight_type.c_str(), "f16");
  const std::vector<int32_t> wanted = {0,   2,    204,  46,  83,  264, 2978,
                                       434, 2015, 1538, 264, 829, 19,  1};  // by the package tokenizers
  assert_true(model->tokenizer->encode("<|user|>\nIn the beginning God created the heaven.<|end|>", true,
                                       true) == wanted);
}

static void every_architecture_brings_its_own_tensors(void**) {
  auto half = Model::open(WI_TEST_DATA "/fixtures/models/llama-f16.gguf");
  assert_string_equal(half->weight_type.c_str(), "f16");
  auto qwen = Model::open(WI_TEST_DATA "/fixtures/models/qwen2.gguf");
  assert_true(qwen->config.architecture == Architecture::qwen2 && !qwen->config.rope_interleaved);
  assert_non_null(qwen->weights.layers[1].k_bias);
  assert_null(qwen->weights.layers[1].o_bias);
  auto normed = Model::open(WI_TEST_DATA "/fixtures/models/qwen3.gguf");
  assert_non_null(normed->weights.layers[0].q_norm);
  assert_true(normed->config.head_dim == 32 && normed->config.hidden / normed->config.query_heads == 8);
}

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(metadata_of_every_type_comes_back),
                              cmocka_unit_test(nested_arrays_are_walked_over),
                              cmocka_unit_test(tensors_are_found_at_any_alignment),
                              cmocka_unit_test(half_floats_are_read_exactly),
                              cmocka_unit_test(tiny_model_opens_with_its_weights_in_place),
                              cmocka_unit_test(white_space_behind_the_tokens_of_a_phi_3_is_theirs),
                              cmocka_unit_test(a_template_that_is_named_again_is_the_same),
                              cmocka_unit_test(a_file_may_say_that_it_lacks_a_token),
                              cmocka_unit_test(mapping_outlives_the_file_name),
                              cmocka_unit_test(split_set_opens_as_one_model),
                              cmocka_unit_test(broken_split_sets_are_refused),
                              cmocka_unit_test(files_that_cannot_be_mapped_say_why),
                              cmocka_unit_test(one_byte_of_any_weight_changes_the_hash),
                              cmocka_unit_test(hashing_the_weights_can_be_cancelled),
                              cmocka_unit_test(every_opened_model_has_an_identity_of_its_own),
                              cmocka_unit_test(hash_tells_models_apart),
                              cmocka_unit_test(sample_model_has_the_numbers_of_its_report),
                              cmocka_unit_test(every_architecture_brings_its_own_tensors)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
