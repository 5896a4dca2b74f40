// A saved session or KV store of any bytes is refused with an error or loads into one that can go on, be it into
// memory or in place. Inputs are tried as they come and, so that the checks behind them are reached, with right
// checksums and lengths; in place the pages' own checksums are looked at only when a step wants the pages.
#include <cstring>
#include <string>
#include <vector>

#include "src/kv_store.h"
#include "src/session.h"
#include "src/store/byte_stream.h"
#include "tests/support/folder.h"
#include "tests/support/random_model.h"
#include "tests/support/session_bytes.h"

using namespace wi;

namespace {

struct Fixture {
  std::shared_ptr<Runtime> runtime, slow;
  std::shared_ptr<const Model> model;
  test::Folder folder;

  Fixture() {
    RuntimeParams runtime_params;
    runtime_params.threads = 1;
    runtime_params.kv_budget_bytes = uint64_t{64} << 20;
    runtime = Runtime::create(runtime_params);
    runtime_params.spill_folder = folder.path;
    slow = Runtime::create(runtime_params);
    model = test::random_model(test::shape_named("tiny"), DType::f32, 7);
  }
};

struct Memory final : ByteSource, ByteSink {
  std::string content;
  explicit Memory(std::string bytes) : content(std::move(bytes)) {}
  uint64_t bytes() const override { return content.size(); }
  void read(uint64_t offset, void* to, size_t bytes) override {
    std::memcpy(to, content.data() + offset, bytes);
  }
  void write(const void* data, size_t bytes) override {
    content.append(static_cast<const char*>(data), bytes);
  }
};

void go_on(Session& session) {
  Memory again("");
  session.save(again, nullptr);
  if (session.tokens().empty()) return;
  for (int i = 0; i < 3; ++i) session.decode(nullptr);
  session.truncate(1);
  session.decode(nullptr);
}

void go_on(KvStore& store) {
  const KvShape& shape = store.params().shape;
  const size_t width = static_cast<size_t>(store.params().query_heads) * static_cast<size_t>(shape.head_dim);
  if (store.stats().tokens == 0 || shape.layers > 64 || width > 4096) return;
  const std::vector<float> queries(width, 0.5f);
  std::vector<float> out(width);
  for (int32_t layer = 0; layer < shape.layers; ++layer)
    store.attend(layer, 1, queries.data(), nullptr, out.data(), nullptr);
  store.truncate(1);
  store.seal();
}

template <class Load>
void attempt(const Load& load) {
  try {
    go_on(*load());
  } catch (const Error&) {
  }
}

void load(const Fixture& fixture, const std::string& bytes) {
  const auto as_saved = [](const auto& saved) { return saved; };
  Memory memory(bytes);
  attempt([&] { return Session::load(fixture.runtime, fixture.model, memory, as_saved, nullptr); });
  attempt([&] { return KvStore::load(fixture.runtime, memory, as_saved, nullptr); });
  const std::string path = fixture.folder.file("saved");
  test::spill(path, bytes);
  attempt([&] { return Session::load(fixture.slow, fixture.model, path, as_saved, nullptr); });
  attempt([&] { return KvStore::load(fixture.slow, path, as_saved, nullptr); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Fixture fixture;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  load(fixture, bytes);
  load(fixture, test::SessionBytes(bytes).bytes());
  return 0;
}
