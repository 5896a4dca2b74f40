// struct_size, for every struct that crosses the ABI: an older caller's is shorter, a newer caller's longer,
// and neither is read or written where it does not exist.
#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "support/abi.h"

namespace {

using namespace wi::test;

constexpr size_t kRoom = 8192;

// A struct of any struct_size with guard bytes behind it.
struct Bytes {
  alignas(8) unsigned char at[kRoom];
  Bytes(size_t size, unsigned char behind) {
    std::memset(at, 0, sizeof at);
    set_size(static_cast<uint32_t>(size));
    std::memset(at + size, behind, sizeof at - size);
  }
  void set_size(uint32_t size) { std::memcpy(at, &size, sizeof size); }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(at);
  }
};

struct World {
  Runtime runtime = create_runtime();
  Model model = open_sample_model(runtime.get());
  Session session = create_session(model.get());
  Kv kv{nullptr, wi_kv_release};
  Session of_task{nullptr, wi_session_release};
  std::unique_ptr<wi_task, decltype(&wi_task_release)> task{nullptr, wi_task_release};  // which has ended
};
World* world;

// One struct and the call that takes it. ours: its size in this library; least: up to where fields are
// needed.
struct Case {
  const char* name;
  size_t ours, least;
  std::function<wi_status(Bytes&, wi_error*)> call;
};

template <class T>
wi_status with_session(const T& params, wi_error* error) {
  wi_session* session = nullptr;
  const wi_status status = wi_session_create(world->model.get(), &params, &session, error);
  wi_session_release(session);
  return status;
}

const std::vector<Case> kInputs = {
    {"wi_runtime_params", sizeof(wi_runtime_params), 4,
     [](Bytes& bytes, wi_error* error) {
       wi_runtime* runtime = nullptr;
       const wi_status status = wi_runtime_create(bytes.as<wi_runtime_params>(), &runtime, error);
       wi_runtime_release(runtime);
       return status;
     }},
    {"wi_model_params", sizeof(wi_model_params), 4,
     [](Bytes& bytes, wi_error* error) {
       wi_model* model = nullptr;
       const wi_status status =
           wi_model_open(world->runtime.get(), WI_SOURCE_DIR "/samples/model/needle-f16.gguf",
                         bytes.as<wi_model_params>(), nullptr, &model, error);
       wi_model_release(model);
       return status;
     }},
    {"wi_session_params", sizeof(wi_session_params), 4,
     [](Bytes& bytes, wi_error* error) { return with_session(*bytes.as<wi_session_params>(), error); }},
    {"wi_policy_params", sizeof(wi_policy_params), 4,
     [](Bytes& bytes, wi_error* error) {
       auto params = sized<wi_session_params>();
       params.policy = bytes.as<wi_policy_params>();
       return with_session(params, error);
     }},
    {"wi_sampling_params", sizeof(wi_sampling_params), 4,
     [](Bytes& bytes, wi_error* error) {
       return wi_session_set_sampling(world->session.get(), bytes.as<wi_sampling_params>(), error);
     }},
    {"wi_prefill_params", sizeof(wi_prefill_params), 4,
     [](Bytes& bytes, wi_error* error) {
       const int32_t token = 1;
       return wi_session_prefill(world->session.get(), &token, 1, bytes.as<wi_prefill_params>(), nullptr,
                                 error);
     }},
    {"wi_kv_params", sizeof(wi_kv_params), offsetof(wi_kv_params, kv_type),
     [](Bytes& bytes, wi_error* error) {
       auto* params = bytes.as<wi_kv_params>();
       params->layers = params->query_heads = params->kv_heads = 1;
       params->head_dim = 64;
       wi_kv* kv = nullptr;
       const wi_status status = wi_kv_create(world->runtime.get(), params, &kv, error);
       wi_kv_release(kv);
       return status;
     }},
    {"wi_task_params", sizeof(wi_task_params), 4,
     [](Bytes& bytes, wi_error* error) {
       // Of a session of its own, which its task may keep for a moment.
       Session copy = fork(world->session.get());
       wi_task* task = nullptr;
       const wi_status status = wi_task_submit(copy.get(), bytes.as<wi_task_params>(), &task, error);
       wi_task_release(task);
       return status;
     }},
    {"wi_writer", sizeof(wi_writer), offsetof(wi_writer, user),
     [](Bytes& bytes, wi_error* error) {
       bytes.as<wi_writer>()->write = [](void*, const void*, uint64_t) { return 0; };
       return wi_session_save_to(world->session.get(), bytes.as<wi_writer>(), nullptr, error);
     }},
    {"wi_reader", sizeof(wi_reader), offsetof(wi_reader, user),
     [](Bytes& bytes, wi_error* error) {
       // Reads nothing but zeros, which are no session; that it says so shows that the struct was taken.
       bytes.as<wi_reader>()->bytes = 100;
       bytes.as<wi_reader>()->read = [](void*, uint64_t, void* to, uint64_t count) {
         std::memset(to, 0, count);
         return 0;
       };
       wi_session* session = nullptr;
       const wi_status status =
           wi_session_load_from(world->model.get(), bytes.as<wi_reader>(), nullptr, nullptr, &session, error);
       return status == WI_E_FORMAT ? WI_OK : status;
     }},
    {"wi_chat_params", sizeof(wi_chat_params), 4,
     [](Bytes& bytes, wi_error* error) {
       auto message = sized<wi_chat_message>();
       message.role = "user";
       uint64_t length = 0;
       return wi_model_chat_render(world->model.get(), &message, 1, bytes.as<wi_chat_params>(), nullptr, 0,
                                   &length, error);
     }},
    {"messages[0]", sizeof(wi_chat_message), sizeof(wi_chat_message),
     [](Bytes& bytes, wi_error* error) {
       bytes.as<wi_chat_message>()->role = "user";
       bytes.as<wi_chat_message>()->content = "Hello";
       bytes.as<wi_chat_message>()->content_length = 5;
       uint64_t length = 0;
       return wi_model_chat_render(world->model.get(), bytes.as<wi_chat_message>(), 1, nullptr, nullptr, 0,
                                   &length, error);
     }},
};

const std::vector<Case> kOutputs = {
    {"info_out", sizeof(wi_device_info), 4,
     [](Bytes& bytes, wi_error* error) {
       return wi_runtime_device_info(world->runtime.get(), bytes.as<wi_device_info>(), error);
     }},
    {"info_out", sizeof(wi_policy_info), 4,
     [](Bytes& bytes, wi_error* error) {
       return wi_runtime_policy(world->runtime.get(), 1, bytes.as<wi_policy_info>(), error);
     }},
    {"stats_out", sizeof(wi_runtime_stats), 4,
     [](Bytes& bytes, wi_error* error) {
       return wi_runtime_get_stats(world->runtime.get(), bytes.as<wi_runtime_stats>(), error);
     }},
    {"info_out", sizeof(wi_token_info), 4,
     [](Bytes& bytes, wi_error* error) {
       return wi_model_token_info(world->model.get(), 3, bytes.as<wi_token_info>(), error);
     }},
    {"info_out", sizeof(wi_model_info), 4,
     [](Bytes& bytes, wi_error* error) {
       return wi_model_get_info(world->model.get(), bytes.as<wi_model_info>(), error);
     }},
    {"plan_out", sizeof(wi_memory_plan), 4,
     [](Bytes& bytes, wi_error* error) {
       return wi_model_plan_memory(world->model.get(), nullptr, 20000, bytes.as<wi_memory_plan>(), error);
     }},
    {"info_out", sizeof(wi_task_info), 4,
     [](Bytes& bytes, wi_error* error) {
       return wi_task_get_info(world->task.get(), bytes.as<wi_task_info>(), error);
     }},
    {"stats_out", sizeof(wi_session_stats), 4,
     [](Bytes& bytes, wi_error* error) {
       return wi_session_get_stats(world->session.get(), bytes.as<wi_session_stats>(), error);
     }},
    {"stats_out", sizeof(wi_session_stats), 4,
     [](Bytes& bytes, wi_error* error) {
       return wi_kv_get_stats(world->kv.get(), bytes.as<wi_session_stats>(), error);
     }},
    {"event_out", sizeof(wi_event), 4,
     [](Bytes& bytes, wi_error* error) {
       // From a fork, so that every call gives the same event; its text dies with it.
       Session copy = fork(world->session.get());
       const wi_status status = wi_session_decode(copy.get(), nullptr, bytes.as<wi_event>(), error);
       uint32_t size = 0;
       std::memcpy(&size, bytes.at, sizeof size);
       if (status == WI_OK && size >= offsetof(wi_event, text) + sizeof(void*))
         bytes.as<wi_event>()->text = nullptr;
       return status;
     }},
};

void a_shorter_struct_has_zeros_at_its_end(void**) {
  for (const Case& it : kInputs) {
    for (size_t size = it.least; size < it.ours; size += 4) {
      Bytes bytes(size, 0xAB);  // what lies behind would be refused if it were read
      assert_works(it.call(bytes, error));
    }
  }
}

void an_equal_struct_is_read_whole(void**) {
  for (const Case& it : kInputs) {
    Bytes bytes(it.ours, 0xAB);
    assert_works(it.call(bytes, error));
  }
}

void a_longer_struct_of_zeros_is_accepted(void**) {
  for (const Case& it : kInputs) {
    for (size_t more : {size_t{8}, size_t{64}, 4096 - it.ours}) {
      Bytes bytes(it.ours + more, 0xAB);
      assert_works(it.call(bytes, error));
    }
  }
}

void an_unknown_byte_is_refused_by_its_offset(void**) {
  for (const Case& it : kInputs) {
    for (size_t offset : {it.ours, it.ours + 7, it.ours + 63}) {
      Bytes bytes(it.ours + 64, 0);
      bytes.at[offset] = 5;
      const std::string place = "offset " + std::to_string(offset) + " is 5";
      assert_fails(WI_E_ARGUMENT, it.name, it.call(bytes, error));
      assert_fails(WI_E_ARGUMENT, place, it.call(bytes, error));
    }
  }
}

void an_impossible_struct_size_is_refused(void**) {
  std::vector<Case> cases = kInputs;
  cases.insert(cases.end(), kOutputs.begin(), kOutputs.end());
  for (const Case& it : cases) {
    for (uint32_t size : {0u, 1u, 3u, 4097u, 0xCCCCCCCCu}) {
      Bytes bytes(it.ours, 0);
      bytes.set_size(size);
      assert_fails(WI_E_ARGUMENT, "struct_size is " + std::to_string(size), it.call(bytes, error));
    }
  }
}

void an_output_is_filled_up_to_its_size_and_no_further(void**) {
  for (const Case& it : kOutputs) {
    Bytes whole(it.ours, 0xAB);
    assert_works(it.call(whole, error));
    for (size_t size = it.least; size <= it.ours; size = size / 8 * 8 + 8) {  // no half pointers
      Bytes part(size, 0xAB);
      assert_works(it.call(part, error));
      assert_memory_equal(part.at + 4, whole.at + 4, size - 4);
      uint32_t kept = 0;
      std::memcpy(&kept, part.at, sizeof kept);
      assert_int_equal(kept, size);
      assert_true(
          std::all_of(part.at + size, part.at + kRoom, [](unsigned char byte) { return byte == 0xAB; }));
    }
  }
}

void what_an_output_has_beyond_us_is_zeroed(void**) {
  for (const Case& it : kOutputs) {
    Bytes bytes(it.ours, 0xAB);
    bytes.set_size(static_cast<uint32_t>(it.ours + 32));
    assert_works(it.call(bytes, error));
    const unsigned char* tail = bytes.at + it.ours;
    assert_true(std::all_of(tail, tail + 32, [](unsigned char byte) { return byte == 0; }));
    assert_int_equal(tail[32], 0xAB);
  }
}

void an_error_is_filled_up_to_its_size(void**) {
  for (size_t size : {4u, 8u, 16u, 17u, 24u, 100u, 528u}) {
    Bytes bytes(size, 0xAB);
    assert_int_equal(wi_runtime_create(nullptr, nullptr, bytes.as<wi_error>()), WI_E_ARGUMENT);
    if (size >= 8) assert_int_equal(bytes.as<wi_error>()->code, WI_E_ARGUMENT);
    if (size > 16) assert_true(std::strlen(bytes.as<wi_error>()->message) < size - 16);
    if (size > 40) assert_string_equal(bytes.as<wi_error>()->message, "runtime_out is NULL");
    assert_true(
        std::all_of(bytes.at + size, bytes.at + kRoom, [](unsigned char byte) { return byte == 0xAB; }));
  }
  Bytes newer(528 + 40, 0xAB);  // what it has beyond us is zeroed
  assert_int_equal(wi_runtime_create(nullptr, nullptr, newer.as<wi_error>()), WI_E_ARGUMENT);
  assert_true(std::all_of(newer.at + 528, newer.at + 528 + 40, [](unsigned char byte) { return byte == 0; }));
  Bytes untouched(0, 0xAB);
  untouched.set_size(0);
  assert_int_equal(wi_runtime_create(nullptr, nullptr, untouched.as<wi_error>()), WI_E_ARGUMENT);
  assert_int_equal(untouched.at[4], 0xAB);
}

void an_array_strides_by_its_first_elements_size(void**) {
  constexpr uint32_t kStride = sizeof(wi_event) + 16;
  std::vector<Session> sessions;
  std::vector<wi_session*> batch;
  for (int i = 0; i < 3; ++i) {
    sessions.push_back(fork(world->session.get()));
    batch.push_back(sessions.back().get());
  }
  alignas(8) unsigned char bytes[3 * kStride];
  std::memset(bytes, 0xAB, sizeof bytes);
  const auto at = [&](int i) { return reinterpret_cast<wi_event*>(bytes + i * kStride); };
  for (int i = 0; i < 3; ++i) at(i)->struct_size = kStride;
  assert_works(wi_batch_decode(batch.data(), 3, nullptr, at(0), error));
  auto alone = sized<wi_event>();
  assert_works(wi_session_decode(fork(world->session.get()).get(), nullptr, &alone, error));
  for (int i = 0; i < 3; ++i) {
    assert_int_equal(at(i)->token, alone.token);
    assert_int_equal(at(i)->struct_size, kStride);
  }

  at(2)->struct_size = sizeof(wi_event);
  assert_fails(WI_E_ARGUMENT, "events_out[2].struct_size is 56, the first element's is 72",
               wi_batch_decode(batch.data(), 3, nullptr, at(0), error));
  for (int i = 0; i < 3; ++i) at(i)->struct_size = sizeof(wi_event) + 4;
  assert_fails(WI_E_ARGUMENT, "must be a multiple of 8",
               wi_batch_decode(batch.data(), 3, nullptr, at(0), error));
}

int open_world(void**) {
  world = new World;
  const int32_t tokens[] = {1, 2, 3, 4, 5};
  assert_works(wi_session_prefill(world->session.get(), tokens, 5, nullptr, nullptr, error));
  auto params = sized<wi_kv_params>();
  params.layers = params.query_heads = params.kv_heads = 1;
  params.head_dim = 64;
  wi_kv* kv = nullptr;
  assert_works(wi_kv_create(world->runtime.get(), &params, &kv, error));
  world->kv.reset(kv);

  world->of_task = fork(world->session.get());
  auto writes = sized<wi_task_params>();
  writes.max_tokens = 2;
  wi_task* task = nullptr;
  assert_works(wi_task_submit(world->of_task.get(), &writes, &task, error));
  world->task.reset(task);
  auto info = sized<wi_task_info>();
  while (info.state < WI_TASK_DONE) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    assert_works(wi_task_get_info(task, &info, error));
  }
  return 0;
}

int close_world(void**) {
  delete world;
  return 0;
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_shorter_struct_has_zeros_at_its_end),
      cmocka_unit_test(an_equal_struct_is_read_whole),
      cmocka_unit_test(a_longer_struct_of_zeros_is_accepted),
      cmocka_unit_test(an_unknown_byte_is_refused_by_its_offset),
      cmocka_unit_test(an_impossible_struct_size_is_refused),
      cmocka_unit_test(an_output_is_filled_up_to_its_size_and_no_further),
      cmocka_unit_test(what_an_output_has_beyond_us_is_zeroed),
      cmocka_unit_test(an_error_is_filled_up_to_its_size),
      cmocka_unit_test(an_array_strides_by_its_first_elements_size),
  };
  return cmocka_run_group_tests(tests, open_world, close_world);
}
