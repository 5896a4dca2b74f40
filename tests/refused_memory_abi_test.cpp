// Memory that the system refuses at any moment of any call is an error like others (support/refusal.h): one
// call after the other, each of its allocations.
#include <array>
#include <cstring>
#include <regex>
#include <utility>

#include "support/folder.h"
#include "support/refusal_world.h"

namespace {

using namespace wi::test;

// A host's memory as what is saved to and read from; none is asked for meanwhile.
struct HostMemory {
  explicit HostMemory(size_t most) : bytes(most) {}
  std::vector<char> bytes;
  size_t used = 0;
  wi_writer writer() {
    auto out = sized<wi_writer>();
    out.user = this;
    out.write = [](void* user, const void* from, uint64_t count) -> int32_t {
      auto& to = *static_cast<HostMemory*>(user);
      if (count > to.bytes.size() - to.used) return ENOSPC;
      std::memcpy(to.bytes.data() + to.used, from, count);
      to.used += count;
      return 0;
    };
    return out;
  }
  wi_reader reader() {
    auto in = sized<wi_reader>();
    in.user = this;
    in.bytes = used;
    in.read = [](void* user, uint64_t offset, void* to, uint64_t count) -> int32_t {
      std::memcpy(to, static_cast<HostMemory*>(user)->bytes.data() + offset, count);
      return 0;
    };
    return in;
  }
};

void sweep_opening() {
  sweep("wi_runtime_create", [](const Attempt& attempt) {
    auto params = sized<wi_runtime_params>();
    params.threads = 2;
    wi_runtime* runtime = nullptr;
    attempt([&](wi_error* error) {
      require(!runtime);
      return wi_runtime_create(&params, &runtime, error);
    });
    wi_runtime_release(runtime);
  });
  wi_runtime* runtime = nullptr;
  must([&](wi_error* error) { return wi_runtime_create(nullptr, &runtime, error); });
  for (const char* name : {"llama.gguf", "llama"}) {
    for (const int32_t weights : {WI_WEIGHTS_MAPPED, WI_WEIGHTS_COPIED}) {
      sweep(("wi_model_open of " + std::string(name)).c_str(), [&](const Attempt& attempt) {
        auto params = sized<wi_model_params>();
        params.weights = weights;
        const std::string path = kFixtures + name;
        wi_model* model = nullptr;
        attempt([&](wi_error* error) {
          require(!model);
          return wi_model_open(runtime, path.c_str(), &params, nullptr, &model, error);
        });
        wi_model_release(model);
      });
    }
  }
  const std::string file = slurp(kFixtures + "llama.gguf");
  HostMemory memory(file.size());
  std::copy(file.begin(), file.end(), memory.bytes.begin());
  memory.used = file.size();
  for (const int32_t weights : {WI_WEIGHTS_MAPPED, WI_WEIGHTS_COPIED}) {
    sweep("wi_model_open_memory", [&](const Attempt& attempt) {
      auto params = sized<wi_model_params>();
      params.weights = weights;
      wi_model* model = nullptr;
      attempt([&](wi_error* error) {
        return wi_model_open_memory(runtime, memory.bytes.data(), memory.used, &params, nullptr, &model,
                                    error);
      });
      wi_model_release(model);
    });
  }
  sweep("wi_model_open_reader", [&](const Attempt& attempt) {
    const wi_reader reader = memory.reader();
    wi_model* model = nullptr;
    attempt([&](wi_error* error) {
      return wi_model_open_reader(runtime, &reader, nullptr, nullptr, &model, error);
    });
    wi_model_release(model);
  });
  wi_runtime_release(runtime);
}

// What a host asks about a machine, a runtime, a model.
void sweep_questions() {
  sweep("wi_cancel_create", [](const Attempt& attempt) {
    wi_cancel* cancel = nullptr;
    attempt([&](wi_error* error) { return wi_cancel_create(&cancel, error); });
    wi_cancel_release(cancel);
  });
  sweep("wi_device_count, wi_device_get_info", [](const Attempt& attempt) {
    int32_t count = 0;
    attempt([&](wi_error* error) { return wi_device_count(&count, error); });
    require(count >= 1);
    auto info = sized<wi_device_info>();
    for (int32_t i = 0; i < count; ++i)
      attempt([&](wi_error* error) { return wi_device_get_info(i, &info, error); });
  });
  const World world((kFixtures + "llama.gguf").c_str(), 1);
  wi_runtime* const runtime = world.runtime.get();
  sweep("wi_runtime_device_info, policy, get_stats", [&](const Attempt& attempt) {
    auto device = sized<wi_device_info>();
    attempt([&](wi_error* error) { return wi_runtime_device_info(runtime, &device, error); });
    auto policy = sized<wi_policy_info>();
    attempt([&](wi_error* error) { return wi_runtime_policy(runtime, 0, &policy, error); });
    require(policy.name && policy.description);
    auto stats = sized<wi_runtime_stats>();
    attempt([&](wi_error* error) { return wi_runtime_get_stats(runtime, &stats, error); });
  });
  wi_model* const model = world.model.get();
  sweep("wi_model_get_info, token_info, plan_memory", [&](const Attempt& attempt) {
    auto info = sized<wi_model_info>();
    attempt([&](wi_error* error) { return wi_model_get_info(model, &info, error); });
    auto token = sized<wi_token_info>();
    for (int32_t i = 0; i < 50; ++i)
      attempt([&](wi_error* error) { return wi_model_token_info(model, i, &token, error); });
    const wi_session_params params = World::session_params();
    auto plan = sized<wi_memory_plan>();
    attempt([&](wi_error* error) { return wi_model_plan_memory(model, &params, 5000, &plan, error); });
    require(plan.fits == 1);
  });
  std::string text(size_t{1} << 16, ' ');
  uint64_t keys = 0, length = 0;
  sweep("wi_model_metadata_count, metadata_key, get_metadata", [&](const Attempt& attempt) {
    attempt([&](wi_error* error) { return wi_model_metadata_count(model, &keys, error); });
    require(keys > 0);
    for (uint64_t i = 0; i < keys; ++i) {
      attempt([&](wi_error* error) {
        return wi_model_metadata_key(model, i, text.data(), text.size(), &length, error);
      });
    }
    for (const char* key : {"general.architecture", "tokenizer.ggml.tokens"}) {
      attempt([&](wi_error* error) {
        return wi_model_get_metadata(model, key, text.data(), text.size(), &length, error);
      });
    }
  });
  const Session session = world.filled_session(500);
  sweep("wi_session_tokens, get_stats, saved_bytes", [&](const Attempt& attempt) {
    std::vector<int32_t> tokens(500);
    uint64_t count = 0, bytes = 0;
    attempt([&](wi_error* error) {
      return wi_session_tokens(session.get(), tokens.data(), tokens.size(), &count, error);
    });
    require(std::equal(tokens.begin(), tokens.end(), world.tokens.begin()));
    auto stats = sized<wi_session_stats>();
    attempt([&](wi_error* error) { return wi_session_get_stats(session.get(), &stats, error); });
    require(stats.tokens == 500);
    attempt([&](wi_error* error) { return wi_session_saved_bytes(session.get(), &bytes, error); });
    require(bytes > 0);
  });
}

void sweep_text() {
  const World world((kFixtures + "llama").c_str(), 1);
  wi_model* const model = world.model.get();
  std::vector<int32_t> tokens(world.tokens.size());
  uint64_t count = 0;
  sweep("wi_model_tokenize", [&](const Attempt& attempt) {
    std::fill(tokens.begin(), tokens.end(), -1);
    attempt([&](wi_error* error) {
      return wi_model_tokenize(model, World::kText.data(), World::kText.size(), 0, tokens.data(),
                               tokens.size(), &count, error);
    });
    require(tokens == world.tokens);
  });
  sweep("wi_model_detokenize", [&](const Attempt& attempt) {
    std::string text(World::kText.size(), ' ');
    attempt([&](wi_error* error) {
      return wi_model_detokenize(model, tokens.data(), tokens.size(), 0, text.data(), text.size(), &count,
                                 error);
    });
    require(text == World::kText);
  });
  const Model with_template = [&] {
    wi_model* opened = nullptr;
    must([&](wi_error* error) {
      return wi_model_open(world.runtime.get(), WI_SOURCE_DIR "/samples/model/needle-f16.gguf", nullptr,
                           nullptr, &opened, error);
    });
    return Model{opened, wi_model_release};
  }();
  std::array<wi_chat_message, 2> messages{sized<wi_chat_message>(), sized<wi_chat_message>()};
  messages[0].role = "system", messages[0].content = "Be brief.", messages[0].content_length = 9;
  messages[1].role = "user", messages[1].content = "Who <|end|>?", messages[1].content_length = 12;
  messages[1].fields_json = R"({"name": "Ruth", "more": [1, {"x": null}, "y"]})";
  auto chat = sized<wi_chat_params>();
  chat.flags = WI_CHAT_ADD_GENERATION_PROMPT;
  chat.variables_json = R"({"enable_thinking": false})";
  std::string rendered;
  sweep("wi_model_chat_render", [&](const Attempt& attempt) {
    std::string text(1000, ' ');
    attempt([&](wi_error* error) {
      return wi_model_chat_render(with_template.get(), messages.data(), 2, &chat, text.data(), text.size(),
                                  &count, error);
    });
    text.resize(count);
    require(rendered.empty() || rendered == text);
    rendered = text;
  });
  std::vector<int32_t> rendered_tokens;
  sweep("wi_model_chat_tokens", [&](const Attempt& attempt) {
    std::vector<int32_t> ids(1000);
    attempt([&](wi_error* error) {
      return wi_model_chat_tokens(with_template.get(), messages.data(), 2, &chat, ids.data(), ids.size(),
                                  &count, error);
    });
    ids.resize(count);
    require(rendered_tokens.empty() || rendered_tokens == ids);
    rendered_tokens = ids;
  });
}

void sweep_session() {
  const World world((kFixtures + "llama.gguf").c_str(), 1);
  const std::vector<int32_t>& tokens = world.tokens;
  const Session base = world.filled_session(700);
  const Future of_base = future_of(base.get());

  sweep("wi_session_create", [&](const Attempt& attempt) {
    const wi_session_params params = World::session_params();
    wi_session* session = nullptr;
    attempt([&](wi_error* error) { return wi_session_create(world.model.get(), &params, &session, error); });
    wi_session_release(session);
  });
  Future wanted;
  sweep("wi_session_prefill", [&](const Attempt& attempt) {
    const Session session = world.empty_session();
    attempt([&](wi_error* error) {
      return wi_session_prefill(session.get(), tokens.data(), 700, nullptr, nullptr, error);
    });
    require(future_of(session.get()) == of_base);
  });
  sweep("wi_session_append_text", [&](const Attempt& attempt) {
    const Session session = fork_of(base.get());
    attempt([&](wi_error* error) {
      return wi_session_append_text(session.get(), World::kText.data(), 400, 0, nullptr, nullptr, error);
    });
    const Future got = future_of(session.get());
    require(wanted.logits.empty() || got == wanted);
    wanted = got;
  });
  wanted = {};
  sweep("wi_session_decode", [&](const Attempt& attempt) {
    const Session session = fork_of(base.get());
    Future got;
    for (int i = 0; i < 3; ++i) {
      auto event = sized<wi_event>();
      attempt([&](wi_error* error) { return wi_session_decode(session.get(), nullptr, &event, error); });
      got.tokens.push_back(event.token);
    }
    require(got.tokens == of_base.tokens);
    got.logits = logits_of(session.get());
    require(wanted.logits.empty() || got == wanted);
    wanted = got;
  });
  // A segment's making begins, goes on beside the steps, and ends.
  const Session sealing = fork_of(base.get());
  for (int i = 0; i < 150; ++i) decode(sealing.get());
  Future sealed;
  for (const int steps : {20, 120, 250}) {
    sealed = {};
    const Session before = fork_of(sealing.get());
    for (int i = 0; i < steps; ++i) decode(before.get());
    sweep("wi_session_decode beside sealing", [&](const Attempt& attempt) {
      const Session session = fork_of(before.get());
      for (int i = 0; i < 3; ++i) {
        auto event = sized<wi_event>();
        attempt([&](wi_error* error) { return wi_session_decode(session.get(), nullptr, &event, error); });
      }
      const Future got = future_of(session.get());
      require(sealed.logits.empty() || got == sealed);
      sealed = got;
    });
  }
  wanted = {};
  sweep("wi_batch_decode", [&](const Attempt& attempt) {
    std::vector<Session> sessions;
    std::vector<wi_session*> batch;
    for (int i = 0; i < 3; ++i) sessions.push_back(fork_of(base.get()));
    for (const Session& session : sessions) batch.push_back(session.get());
    std::vector<wi_event> events(3, sized<wi_event>());
    for (int step = 0; step < 2; ++step) {
      attempt(
          [&](wi_error* error) { return wi_batch_decode(batch.data(), 3, nullptr, events.data(), error); });
      for (const wi_event& event : events) require(event.token == of_base.tokens[static_cast<size_t>(step)]);
    }
  });
  sweep("wi_session_accept", [&](const Attempt& attempt) {
    const Session session = fork_of(base.get());
    auto event = sized<wi_event>();
    for (size_t i = 0; i < 2; ++i)
      attempt([&](wi_error* error) {
        return wi_session_accept(session.get(), of_base.tokens[i], nullptr, &event, error);
      });
    const Future got = future_of(session.get());
    require(wanted.logits.empty() || got == wanted);
    wanted = got;
  });
  sweep("wi_session_logits", [&](const Attempt& attempt) {
    const Session session = fork_of(base.get());
    std::vector<float> logits(of_base.logits.size());
    uint64_t count = 0;
    attempt([&](wi_error* error) {
      return wi_session_logits(session.get(), nullptr, logits.data(), logits.size(), &count, error);
    });
    require(logits == of_base.logits);
  });
  sweep("wi_session_set_sampling", [&](const Attempt& attempt) {
    const Session session = fork_of(base.get());
    auto sampling = sized<wi_sampling_params>();
    const wi_logit_bias bias[] = {{7, 1}, {8, -1}};
    const wi_text stop{"still", 5};
    sampling.logit_bias = bias;
    sampling.logit_bias_count = 2;
    sampling.stops = &stop;
    sampling.stop_count = 1;
    attempt([&](wi_error* error) { return wi_session_set_sampling(session.get(), &sampling, error); });
    decode(session.get());
  });
  sweep("wi_session_fork", [&](const Attempt& attempt) {
    wi_session* copy = nullptr;
    attempt([&](wi_error* error) { return wi_session_fork(base.get(), &copy, error); });
    const Session session(copy, wi_session_release);
    require(future_of(copy) == of_base);
  });
  wanted = {};
  sweep("wi_session_fork_as", [&](const Attempt& attempt) {
    wi_session_params params = World::session_params();
    auto policy = *params.policy;
    policy.segment_tokens = 128;
    params.policy = &policy;
    wi_session* copy = nullptr;
    attempt([&](wi_error* error) { return wi_session_fork_as(base.get(), &params, nullptr, &copy, error); });
    const Session session(copy, wi_session_release);
    const Future got = future_of(copy);
    require(wanted.logits.empty() || got == wanted);
    wanted = got;
    require(future_of(base.get()) == of_base);
  });
  wanted = {};
  sweep("wi_session_truncate", [&](const Attempt& attempt) {
    const Session session = fork_of(base.get());
    attempt([&](wi_error* error) { return wi_session_truncate(session.get(), 333, error); });
    const Future got = future_of(session.get());
    require(wanted.logits.empty() || got == wanted);
    wanted = got;
  });
}

// The engine's own memory: either the submission says that there is none, or the task does, in its own time. What
// is refused stays refused until it has ended.
void sweep_tasks() {
  const World world((kFixtures + "llama.gguf").c_str(), 1);
  const Session base = world.filled_session(300);
  const Future of_base = future_of(base.get());
  for (const bool with_text : {false, true}) {
    sweep(with_text ? "wi_task_submit of a text" : "wi_task_submit", [&](const Attempt& attempt) {
      Session session = fork_of(base.get());
      auto params = sized<wi_task_params>();
      params.text = World::kText.data();
      params.text_length = with_text ? 200 : 0;
      params.max_tokens = 3;
      wi_task* task = nullptr;
      attempt([&](wi_error* error) {
        if (task) session = fork_of(base.get());  // a task that failed may have written some of its answer
        wi_task_release(std::exchange(task, nullptr));
        const wi_status status = wi_task_submit(session.get(), &params, &task, error);
        if (status != WI_OK) return status;
        auto info = sized<wi_task_info>();
        while (info.state < WI_TASK_DONE) {
          usleep(100);
          wi_task_get_info(task, &info, error);
        }
        error->code = info.status;
        return info.status;
      });
      std::array<wi_event, 8> events;
      events.fill(sized<wi_event>());
      uint64_t count = 0;
      must([&](wi_error* error) { return wi_task_poll(task, events.data(), events.size(), &count, error); });
      require(count == 4 && events[3].kind == WI_EVENT_LIMIT);
      if (!with_text)
        for (size_t i = 0; i < 3; ++i) require(events[i].token == of_base.tokens[i]);
      wi_task_release(task);
    });
  }
  sweep("wi_task_get_fd, wait, get_info, poll", [&](const Attempt& attempt) {
    const Session session = fork_of(base.get());
    auto params = sized<wi_task_params>();
    params.max_tokens = 3;
    wi_task* task = nullptr;
    must([&](wi_error* error) { return wi_task_submit(session.get(), &params, &task, error); });
    auto info = sized<wi_task_info>();
    for (; info.state < WI_TASK_DONE; usleep(100))  // the engine's own memory is refused above
      must([&](wi_error* error) { return wi_task_get_info(task, &info, error); });
    int32_t descriptor = -1, ready = 0;
    attempt([&](wi_error* error) { return wi_task_get_fd(task, &descriptor, error); });
    attempt([&](wi_error* error) { return wi_task_wait(task, 0, &ready, error); });
    attempt([&](wi_error* error) { return wi_task_get_info(task, &info, error); });
    require(ready == 1 && info.answer_tokens == 3);
    std::vector<int32_t> tokens;
    std::array<wi_event, 3> events;
    events.fill(sized<wi_event>());
    for (uint64_t count = 1; count > 0;) {
      attempt(
          [&](wi_error* error) { return wi_task_poll(task, events.data(), events.size(), &count, error); });
      for (uint64_t i = 0; i < count; ++i) tokens.push_back(events[i].token);
    }
    require(tokens.size() == 4 && tokens.back() == -1);
    require(std::equal(tokens.begin(), tokens.end() - 1, of_base.tokens.begin()));
    wi_task_release(task);
  });
}

void sweep_files() {
  const World world((kFixtures + "llama.gguf").c_str(), 1);
  const Session base = world.filled_session(500);
  const Future of_base = future_of(base.get());
  const Folder folder;
  const std::string path = folder.file("s");
  sweep("wi_session_save", [&](const Attempt& attempt) {
    attempt([&](wi_error* error) { return wi_session_save(base.get(), path.c_str(), nullptr, error); });
    require(folder.entries() == 1);
  });
  sweep("wi_session_load", [&](const Attempt& attempt) {
    wi_session* loaded = nullptr;
    attempt([&](wi_error* error) {
      return wi_session_load(world.model.get(), path.c_str(), nullptr, nullptr, &loaded, error);
    });
    const Session session(loaded, wi_session_release);
    require(future_of(loaded) == of_base);
  });
  HostMemory memory(size_t{16} << 20);
  sweep("wi_session_save_to", [&](const Attempt& attempt) {
    const wi_writer writer = memory.writer();
    attempt([&](wi_error* error) {
      memory.used = 0;
      return wi_session_save_to(base.get(), &writer, nullptr, error);
    });
    require(memory.used == std::filesystem::file_size(path));
  });
  sweep("wi_session_load_from", [&](const Attempt& attempt) {
    const wi_reader reader = memory.reader();
    wi_session* loaded = nullptr;
    attempt([&](wi_error* error) {
      return wi_session_load_from(world.model.get(), &reader, nullptr, nullptr, &loaded, error);
    });
    const Session session(loaded, wi_session_release);
    require(future_of(loaded) == of_base);
  });
}

void sweep_store() {
  const World world((kFixtures + "llama.gguf").c_str(), 1);
  auto params = sized<wi_kv_params>();
  params.layers = 1, params.query_heads = 4, params.kv_heads = 2, params.head_dim = 16;
  auto policy = *World::session_params().policy;
  params.policy = &policy;
  constexpr uint64_t kTokens = 600, kRow = 2 * 16;
  std::vector<float> keys(kTokens * kRow), queries(4 * 16), wanted;
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<float>(i * i % 97) / 97 - 0.5f;
  for (size_t i = 0; i < queries.size(); ++i) queries[i] = static_cast<float>(i % 7) - 3;
  sweep("wi_kv_create, append, seal, attend, fork, truncate", [&](const Attempt& attempt) {
    wi_kv *kv = nullptr, *copy = nullptr;
    std::vector<float> out(4 * 16);
    attempt([&](wi_error* error) { return wi_kv_create(world.runtime.get(), &params, &kv, error); });
    const Kv own(kv, wi_kv_release);
    attempt([&](wi_error* error) { return wi_kv_append(kv, 0, kTokens, keys.data(), keys.data(), error); });
    attempt([&](wi_error* error) { return wi_kv_seal(kv, error); });
    attempt([&](wi_error* error) {
      return wi_kv_attend(kv, 0, 1, queries.data(), nullptr, out.data(), nullptr, error);
    });
    attempt([&](wi_error* error) { return wi_kv_fork(kv, &copy, error); });
    const Kv second(copy, wi_kv_release);
    attempt([&](wi_error* error) { return wi_kv_truncate(copy, 200, error); });
    require(wanted.empty() || out == wanted);
    wanted = out;
  });

  const auto attend = [&](wi_kv* kv) {
    std::vector<float> out(4 * 16);
    must([&](wi_error* error) {
      return wi_kv_attend(kv, 0, 1, queries.data(), nullptr, out.data(), nullptr, error);
    });
    return out;
  };
  wi_kv* made = nullptr;
  must([&](wi_error* error) { return wi_kv_create(world.runtime.get(), &params, &made, error); });
  const Kv store(made, wi_kv_release);
  must([&](wi_error* error) { return wi_kv_append(made, 0, kTokens, keys.data(), keys.data(), error); });
  must([&](wi_error* error) { return wi_kv_seal(made, error); });
  uint64_t bytes = 0;
  sweep("wi_kv_get_stats, saved_bytes", [&](const Attempt& attempt) {
    auto stats = sized<wi_session_stats>();
    attempt([&](wi_error* error) { return wi_kv_get_stats(made, &stats, error); });
    require(stats.tokens == kTokens);
    attempt([&](wi_error* error) { return wi_kv_saved_bytes(made, &bytes, error); });
  });
  const Folder folder;
  const std::string path = folder.file("k");
  HostMemory memory(size_t{1} << 20);
  sweep("wi_kv_save, save_to", [&](const Attempt& attempt) {
    attempt([&](wi_error* error) { return wi_kv_save(made, path.c_str(), nullptr, error); });
    require(folder.entries() == 1 && std::filesystem::file_size(path) == bytes);
    const wi_writer writer = memory.writer();
    attempt([&](wi_error* error) {
      memory.used = 0;
      return wi_kv_save_to(made, &writer, nullptr, error);
    });
    require(memory.used == bytes);
  });
  sweep("wi_kv_load, load_from", [&](const Attempt& attempt) {
    wi_kv *from_file = nullptr, *from_memory = nullptr;
    attempt([&](wi_error* error) {
      return wi_kv_load(world.runtime.get(), path.c_str(), nullptr, nullptr, &from_file, error);
    });
    const Kv own(from_file, wi_kv_release);
    const wi_reader reader = memory.reader();
    attempt([&](wi_error* error) {
      return wi_kv_load_from(world.runtime.get(), &reader, nullptr, nullptr, &from_memory, error);
    });
    const Kv second(from_memory, wi_kv_release);
    require(attend(from_file) == wanted && attend(from_memory) == wanted);
  });
}

// By what this file says: the calls that it hands to attempt() are all those of the header that can fail.
void every_call_that_can_fail_is_swept(void**) {
  const std::string own = slurp(WI_SOURCE_DIR "/tests/refused_memory_abi_test.cpp"),
                    header = slurp(WI_SOURCE_DIR "/include/waveinfer.h");
  const auto names = [](const std::string& text, const std::regex& wanted) {
    std::set<std::string> found;
    for (std::sregex_iterator at(text.begin(), text.end(), wanted), end; at != end; ++at)
      found.insert((*at)[1].str());
    return found;
  };
  std::set<std::string> swept;
  const std::regex attempts(R"(attempt\(\s*\[&\]\(wi_error\* error\) (\{[^}]*\}))"), calls(R"((wi_\w+)\()");
  for (const std::string& body : names(own, attempts)) swept.merge(names(body, calls));
  const std::set<std::string> all = names(header, std::regex(R"(WI_API wi_status (wi_\w+)\()"));
  assert_true(all.size() > 50);
  for (const std::string& name : all)
    if (!swept.contains(name)) fail_with(name + " is in no sweep");
}

}  // namespace

int main() {
  shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_call_that_can_fail_is_swept),
      cmocka_unit_test(each_allocation_may_be_refused_in<sweep_opening>),
      cmocka_unit_test(each_allocation_may_be_refused_in<sweep_questions>),
      cmocka_unit_test(each_allocation_may_be_refused_in<sweep_text>),
      cmocka_unit_test(each_allocation_may_be_refused_in<sweep_session>),
      cmocka_unit_test(each_allocation_may_be_refused_in<sweep_tasks>),
      cmocka_unit_test(each_allocation_may_be_refused_in<sweep_files>),
      cmocka_unit_test(each_allocation_may_be_refused_in<sweep_store>),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
