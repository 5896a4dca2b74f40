// A session file of any bytes is refused with an error or loads into a session that can decode. Inputs are
// tried as they come and, so that the checks behind it are reached, with a right checksum and length.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>
#include <xxhash.h>

#include "src/session.h"
#include "tests/support/random_model.h"

using namespace wi;

namespace {

struct Fixture {
  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<const Model> model;
  SessionParams params;
  std::string path;

  Fixture() {
    RuntimeParams runtime_params;
    runtime_params.threads = 1;
    runtime_params.kv_budget_bytes = uint64_t{64} << 20;
    runtime = Runtime::create(runtime_params);
    model = test::random_model(test::shape_named("tiny"), DType::f32, 7);
    params.policy = find_policy(runtime->backend, "wave");
    params.policy_params.segment_tokens = params.policy_params.decode_segment_tokens = 64;
    params.policy_params.local_window = 8;
    params.prefix_reuse = false;
    char name[] = "/tmp/wi-fuzz-session-XXXXXX";
    close(mkstemp(name));
    path = name;
  }
  ~Fixture() { unlink(path.c_str()); }
};

void load(Fixture& fixture, const std::string& bytes) {
  FILE* file = std::fopen(fixture.path.c_str(), "wb");
  if (!file) std::abort();
  std::fwrite(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
  try {
    auto session = Session::load(fixture.runtime, fixture.model, fixture.path, fixture.params);
    if (session->tokens().empty()) return;
    for (int i = 0; i < 3; ++i) session->decode(nullptr);
    session->truncate(1);
    session->decode(nullptr);
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Fixture fixture;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  load(fixture, bytes);
  constexpr size_t kLengthAt = 16;
  if (size > kLengthAt + 8 + sizeof(uint64_t)) {
    const uint64_t length = size;
    std::memcpy(bytes.data() + kLengthAt, &length, sizeof length);
    const uint64_t checksum = XXH3_64bits(bytes.data(), size - sizeof(uint64_t));
    std::memcpy(bytes.data() + size - sizeof(uint64_t), &checksum, sizeof checksum);
    load(fixture, bytes);
  }
  return 0;
}
