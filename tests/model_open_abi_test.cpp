// The ways a host has to open a model: from a path, from memory, through a reader, with a cancel token; and
// what it can ask a model's files.
#include <fstream>
#include <iterator>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/abi.h"
#include "support/folder.h"

using namespace wi::test;

namespace {

const std::string kModel = WI_SOURCE_DIR "/samples/model/needle-f16.gguf";
const std::string kFolder = WI_TEST_DATA "/fixtures/models/llama";

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// As a host would hold it: aligned to 8 bytes, or `beside` that.
struct Bytes {
  explicit Bytes(const std::string& bytes, size_t beside = 0)
      : size(bytes.size()), held((bytes.size() + beside) / 8 + 1) {
    at = reinterpret_cast<char*>(held.data()) + beside;
    std::memcpy(at, bytes.data(), size);
  }
  uint64_t size;
  std::vector<uint64_t> held;
  char* at;
};

std::vector<float> logits_of(wi_model* model) {
  const Session session = create_session(model);
  const std::vector<int32_t> ids = {5, 100, 17, 42, 9, 80, 3};
  wi_model_info info = sized<wi_model_info>();
  assert_works(wi_model_get_info(model, &info, error));
  auto params = sized<wi_prefill_params>();
  assert_works(wi_session_prefill(session.get(), ids.data(), ids.size(), &params, nullptr, error));
  std::vector<float> logits(static_cast<size_t>(info.vocab));
  uint64_t count = 0;
  assert_works(wi_session_logits(session.get(), nullptr, logits.data(), logits.size(), &count, error));
  return logits;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Model owned(wi_model* model) { return {model, wi_model_release}; }

Model open_memory(wi_runtime* runtime, const Bytes& bytes, int32_t weights) {
  auto params = sized<wi_model_params>();
  params.weights = weights;
  wi_model* model = nullptr;
  assert_works(wi_model_open_memory(runtime, bytes.at, bytes.size, &params, nullptr, &model, error));
  return owned(model);
}

void memory_gives_the_same_logits(void**) {
  const Runtime runtime = create_runtime();
  const Bytes bytes(slurp(kModel));
  const std::vector<float> wanted = logits_of(open_sample_model(runtime.get()).get());
  assert_true(same_bits(wanted, logits_of(open_memory(runtime.get(), bytes, WI_WEIGHTS_MAPPED).get())));
}

// In place: what changes in the memory changes in the model. Copied: the memory may go, and may lie anywhere.
void copied_weights_outlive_the_memory(void**) {
  const Runtime runtime = create_runtime();
  const std::string file = slurp(kModel);
  const std::vector<float> wanted = logits_of(open_sample_model(runtime.get()).get());
  Bytes bytes(file), beside(file, 3);
  const Model in_place = open_memory(runtime.get(), bytes, WI_WEIGHTS_MAPPED);
  const Model copied = open_memory(runtime.get(), beside, WI_WEIGHTS_COPIED);
  auto stats = sized<wi_runtime_stats>();
  assert_works(wi_runtime_get_stats(runtime.get(), &stats, error));
  assert_true(stats.copied_weight_bytes > bytes.size / 2 && stats.copied_weight_bytes < bytes.size + 4096);
  std::memset(bytes.at + bytes.size / 2, 0, bytes.size / 4);
  std::memset(beside.at, 0, beside.size);
  assert_true(same_bits(wanted, logits_of(copied.get())));
  assert_false(same_bits(wanted, logits_of(in_place.get())));
}

struct Source {
  std::string bytes;
  uint64_t next = 0;
  int calls = 0, fails_at = -1;
  wi_reader reader() {
    auto of = sized<wi_reader>();
    of.bytes = bytes.size();
    of.user = this;
    of.read = [](void* user, uint64_t offset, void* to, uint64_t count) -> int32_t {
      Source& source = *static_cast<Source*>(user);
      if (source.calls++ == source.fails_at) return -77;
      assert_int_equal(offset, source.next);  // once, from the beginning to the end
      assert_true(count > 0 && count <= source.bytes.size() - offset);
      assert_true(count <= 1 << 20);
      std::memcpy(to, source.bytes.data() + offset, count);
      source.next = offset + count;
      return 0;
    };
    return of;
  }
};

void a_reader_gives_the_same_logits(void**) {
  const Runtime runtime = create_runtime();
  const std::vector<float> wanted = logits_of(open_sample_model(runtime.get()).get());
  wi_model* model = nullptr;
  Source source{slurp(kModel)};
  const uint64_t bytes = source.bytes.size();
  {
    const wi_reader reader = source.reader();
    assert_works(wi_model_open_reader(runtime.get(), &reader, nullptr, nullptr, &model, error));
  }
  const Model held = owned(model);
  assert_int_equal(source.next, bytes);
  source.bytes.clear();
  assert_true(same_bits(wanted, logits_of(model)));
  auto stats = sized<wi_runtime_stats>();
  assert_works(wi_runtime_get_stats(runtime.get(), &stats, error));
  assert_true(stats.copied_weight_bytes >= bytes);
}

void what_a_reader_returns_ends_the_call(void**) {
  const Runtime runtime = create_runtime();
  wi_model* model = nullptr;
  Source source{slurp(kModel)};
  source.fails_at = 1;
  wi_reader reader = source.reader();
  auto error = sized<wi_error>();
  assert_int_equal(wi_model_open_reader(runtime.get(), &reader, nullptr, nullptr, &model, &error), WI_E_IO);
  assert_true(std::strstr(error.message, "wi_reader.read returned -77 for") != nullptr);
  assert_int_equal(error.native_code, -77);
  assert_int_equal(source.calls, 2);
  assert_null(model);
  auto stats = sized<wi_runtime_stats>();
  assert_int_equal(wi_runtime_get_stats(runtime.get(), &stats, nullptr), WI_OK);
  assert_int_equal(stats.copied_weight_bytes, 0);
}

void wrong_arguments_are_named(void**) {
  const Runtime runtime = create_runtime();
  wi_runtime* const on = runtime.get();
  wi_model* model = nullptr;
  const std::string file = slurp(kModel);
  const Bytes bytes(file, 4), other("GGML");
  assert_fails(WI_E_ARGUMENT, "data is NULL",
               wi_model_open_memory(on, nullptr, 8, nullptr, nullptr, &model, error));
  assert_fails(WI_E_ARGUMENT, "bytes is 0",
               wi_model_open_memory(on, bytes.at, 0, nullptr, nullptr, &model, error));
  assert_fails(WI_E_ARGUMENT, "data lies 4 bytes behind a multiple of 8",
               wi_model_open_memory(on, bytes.at, bytes.size, nullptr, nullptr, &model, error));
  assert_fails(WI_E_ARGUMENT, "model_out is NULL",
               wi_model_open_memory(on, bytes.at, bytes.size, nullptr, nullptr, nullptr, error));
  assert_fails(WI_E_FORMAT, "memory: the magic is not 'GGUF'",
               wi_model_open_memory(on, other.at, other.size, nullptr, nullptr, &model, error));
  for (const size_t cut : {size_t{20}, size_t{5000}, file.size() - 1}) {
    const Bytes part(file.substr(0, cut));
    assert_fails(WI_E_FORMAT,
                 "memory: ", wi_model_open_memory(on, part.at, part.size, nullptr, nullptr, &model, error));
  }

  Source source{file};
  wi_reader reader = source.reader();
  assert_fails(WI_E_ARGUMENT, "reader is NULL",
               wi_model_open_reader(on, nullptr, nullptr, nullptr, &model, error));
  reader.reserved = 1;
  assert_fails(WI_E_ARGUMENT, "wi_reader.reserved is 1",
               wi_model_open_reader(on, &reader, nullptr, nullptr, &model, error));
  reader = source.reader();
  reader.read = nullptr;
  assert_fails(WI_E_ARGUMENT, "wi_reader.read is NULL",
               wi_model_open_reader(on, &reader, nullptr, nullptr, &model, error));
  reader = source.reader();
  reader.bytes = 0;
  assert_fails(WI_E_ARGUMENT, "wi_reader.bytes is 0",
               wi_model_open_reader(on, &reader, nullptr, nullptr, &model, error));
  reader.bytes = uint64_t{1} << 60;  // nobody is asked for what there is no room for
  assert_fails(WI_E_MEMORY, "wants 1152921504606846976 bytes",
               wi_model_open_reader(on, &reader, nullptr, nullptr, &model, error));
  assert_int_equal(source.calls, 0);
  assert_null(model);
}

// A process that may have no more address space is short of memory, whatever the file is.
void a_mapping_without_room_is_memory_that_was_refused(void**) {
#if defined(WI_SANITIZED) || defined(WI_EMULATED)
  skip();  // neither takes a limit of address space
#endif
  const pid_t child = ::fork();
  if (child == 0) {
    Runtime runtime = create_runtime();
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    rlimit limit{};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (1 << 20);
    setrlimit(RLIMIT_AS, &limit);
    wi_model* model = nullptr;
    auto told = sized<wi_error>();
    const wi_status status = wi_model_open(runtime.get(), WI_SOURCE_DIR "/samples/model/needle-f16.gguf",
                                           nullptr, nullptr, &model, &told);
    if (status != WI_E_MEMORY) std::printf("%s: %s\n", wi_status_name(status), told.message);
    std::fflush(stdout);
    _exit(status != WI_E_MEMORY || told.native_code != ENOMEM);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

void every_way_can_be_cancelled(void**) {
  const Runtime runtime = create_runtime();
  const Cancel cancel = create_cancel();
  wi_model* model = nullptr;
  const Bytes bytes(slurp(kModel));
  Source source{slurp(kModel)};
  const wi_reader reader = source.reader();
  wi_cancel_trigger(cancel.get());
  assert_fails(
      WI_E_CANCELLED, "cancelled",
      wi_model_open_memory(runtime.get(), bytes.at, bytes.size, nullptr, cancel.get(), &model, error));
  assert_fails(WI_E_CANCELLED, "cancelled",
               wi_model_open_reader(runtime.get(), &reader, nullptr, cancel.get(), &model, error));
  assert_int_equal(source.calls, 0);

  auto params = sized<wi_model_params>();
  params.progress_user = cancel.get();
  params.progress = [](void* user, uint64_t done, uint64_t total) -> int32_t {
    if (total && done > total / 2) wi_cancel_trigger(static_cast<wi_cancel*>(user));
    return 0;
  };
  wi_cancel_reset(cancel.get());
  assert_fails(WI_E_CANCELLED, "cancelled",
               wi_model_open_reader(runtime.get(), &reader, &params, cancel.get(), &model, error));
  params.weights = WI_WEIGHTS_COPIED;
  wi_cancel_reset(cancel.get());
  assert_fails(WI_E_CANCELLED, "cancelled",
               wi_model_open(runtime.get(), kModel.c_str(), &params, cancel.get(), &model, error));
  assert_null(model);
  auto stats = sized<wi_runtime_stats>();
  assert_works(wi_runtime_get_stats(runtime.get(), &stats, error));
  assert_int_equal(stats.copied_weight_bytes, 0);
}

// What a host draws a bar from: of what there is in all, once that is known, never less than before.
void progress_never_falls_and_ends_at_the_whole(void**) {
  struct Bar {
    uint64_t done = 0, total = 0;
    int calls = 0;
    wi_model_params params(int32_t weights) {
      auto params = sized<wi_model_params>();
      params.weights = weights;
      params.progress_user = this;
      params.progress = [](void* user, uint64_t done, uint64_t total) -> int32_t {
        Bar& bar = *static_cast<Bar*>(user);
        assert_true(done >= bar.done);
        assert_true(bar.total == 0 || total == bar.total);
        assert_true(total == 0 || done <= total);
        bar.done = done, bar.total = total, ++bar.calls;
        return 0;
      };
      return params;
    }
  };
  const Runtime runtime = create_runtime();
  const Bytes bytes(slurp(kModel));
  const auto expect = [&](uint64_t total, int32_t weights, const auto& open) {
    Bar bar;
    const wi_model_params params = bar.params(weights);
    wi_model* model = nullptr;
    assert_works(open(&params, &model, error));
    const Model held = owned(model);
    assert_true(bar.calls > 0 && bar.done == bar.total && bar.total > 0);
    if (total) assert_int_equal(bar.total, total);
  };
  for (const int32_t weights : {WI_WEIGHTS_MAPPED, WI_WEIGHTS_COPIED}) {
    for (const std::string& path : {kModel, kFolder})
      expect(0, weights, [&](const wi_model_params* params, wi_model** model, wi_error* error) {
        return wi_model_open(runtime.get(), path.c_str(), params, nullptr, model, error);
      });
    expect(0, weights, [&](const wi_model_params* params, wi_model** model, wi_error* error) {
      return wi_model_open_memory(runtime.get(), bytes.at, bytes.size, params, nullptr, model, error);
    });
    Source source{slurp(kModel)};
    const wi_reader reader = source.reader();
    expect(source.bytes.size(), weights,
           [&](const wi_model_params* params, wi_model** model, wi_error* error) {
             return wi_model_open_reader(runtime.get(), &reader, params, nullptr, model, error);
           });
  }
}

std::string metadata(wi_model* model, const char* key) {
  uint64_t length = 0;
  assert_works(wi_model_get_metadata(model, key, nullptr, 0, &length, error));
  std::string text(length, '\0');
  assert_works(wi_model_get_metadata(model, key, text.data(), text.size(), &length, error));
  assert_int_equal(length, text.size());
  return text;
}

bool lists(wi_model* model, const std::string& wanted, bool sorted = false) {
  std::string before;
  uint64_t count = 0, length = 0;
  assert_works(wi_model_metadata_count(model, &count, error));
  bool found = false;
  for (uint64_t i = 0; i < count; ++i) {
    assert_works(wi_model_metadata_key(model, i, nullptr, 0, &length, error));
    std::string key(length, '\0');
    assert_works(wi_model_metadata_key(model, i, key.data(), key.size(), &length, error));
    found |= key == wanted;
    if (sorted) assert_true(before < key);
    before = key;
    metadata(model, key.c_str());  // each can be asked for
  }
  assert_fails(WI_E_ARGUMENT, "index is " + std::to_string(count),
               wi_model_metadata_key(model, count, nullptr, 0, &length, error));
  return found;
}

void metadata_of_a_gguf_comes_by_key(void**) {
  const Runtime runtime = create_runtime();
  // Of a copy, so that the file is gone when it is asked for.
  wi_model* opened = nullptr;
  {
    const Bytes bytes(slurp(kModel));
    auto params = sized<wi_model_params>();
    params.weights = WI_WEIGHTS_COPIED;
    assert_works(wi_model_open_memory(runtime.get(), bytes.at, bytes.size, &params, nullptr, &opened, error));
  }
  const Model model = owned(opened);
  auto info = sized<wi_model_info>();
  assert_works(wi_model_get_info(opened, &info, error));
  assert_true(metadata(opened, "general.architecture") == info.architecture);
  const std::string prefix = std::string(info.architecture) + '.';
  assert_true(metadata(opened, (prefix + "block_count").c_str()) == std::to_string(info.layers));
  assert_true(lists(opened, "general.architecture") && lists(opened, prefix + "block_count"));
  assert_false(lists(opened, "no.such.key"));
  const std::string tokens = metadata(opened, "tokenizer.ggml.tokens");
  assert_true(tokens.starts_with("[\"") && tokens.ends_with("\"]"));
  const std::string kinds = metadata(opened, "tokenizer.ggml.token_type");
  assert_true(kinds.starts_with("[") && kinds.find('"') == std::string::npos);
  uint64_t length = 0;
  char small[2] = {'x', 'y'};
  assert_fails(WI_E_ARGUMENT, "key is 'no.such.key', which the model does not have",
               wi_model_get_metadata(opened, "no.such.key", nullptr, 0, &length, error));
  assert_fails(WI_E_ARGUMENT, "capacity is 2",
               wi_model_get_metadata(opened, "general.architecture", small, 2, &length, error));
  assert_true(length == std::strlen(info.architecture) && small[0] == 'x');
  assert_fails(WI_E_ARGUMENT, "key is NULL",
               wi_model_get_metadata(opened, nullptr, nullptr, 0, &length, error));
  assert_fails(WI_E_ARGUMENT, "length_out is NULL",
               wi_model_get_metadata(opened, "general.architecture", nullptr, 0, nullptr, error));
}

void a_file_of_a_folder_is_refused_with_what_to_open(void**) {
  const wi::test::Folder folder;
  const Runtime runtime = create_runtime();
  for (const char* name : {"config.json", "model.safetensors"}) {
    const std::string path = folder.file(name);
    spill(path, "{\"model_type\": \"llama\"}");
    wi_model* model = nullptr;
    assert_fails(WI_E_FORMAT, name + std::string(": the magic is not 'GGUF'; open the folder that it is in"),
                 wi_model_open(runtime.get(), path.c_str(), nullptr, nullptr, &model, error));
  }
}

void metadata_of_a_folder_is_its_config(void**) {
  const Runtime runtime = create_runtime();
  wi_model* opened = nullptr;
  assert_works(wi_model_open(runtime.get(), kFolder.c_str(), nullptr, nullptr, &opened, error));
  const Model model = owned(opened);
  auto info = sized<wi_model_info>();
  assert_works(wi_model_get_info(opened, &info, error));
  assert_true(metadata(opened, "model_type") == "llama");
  assert_true(metadata(opened, "hidden_size") == std::to_string(info.hidden));
  assert_true(metadata(opened, "general.name") == info.name);
  assert_true(lists(opened, "num_hidden_layers", true));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(memory_gives_the_same_logits),
                              cmocka_unit_test(copied_weights_outlive_the_memory),
                              cmocka_unit_test(a_reader_gives_the_same_logits),
                              cmocka_unit_test(what_a_reader_returns_ends_the_call),
                              cmocka_unit_test(wrong_arguments_are_named),
                              cmocka_unit_test(a_mapping_without_room_is_memory_that_was_refused),
                              cmocka_unit_test(every_way_can_be_cancelled),
                              cmocka_unit_test(progress_never_falls_and_ends_at_the_whole),
                              cmocka_unit_test(metadata_of_a_gguf_comes_by_key),
                              cmocka_unit_test(a_file_of_a_folder_is_refused_with_what_to_open),
                              cmocka_unit_test(metadata_of_a_folder_is_its_config)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
