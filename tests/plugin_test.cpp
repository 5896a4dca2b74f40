// libwaveinfer with its plugin as a host has them: two libraries in a folder, found by each other. The folders are
// made by the build: one with the CUDA backend's kernels run on the CPU, one with a plugin of another build, one
// with one that is no library, one with none.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <functional>
#include <malloc.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "src/devices.h"
#include "tests/support/folder.h"
#include "tests/test.h"
#include "waveinfer.h"

namespace {

// The library of a folder, and of its functions those that are asked for by name.
class Library {
 public:
  explicit Library(const std::string& folder)
      : handle_(dlopen((std::string(WI_BINARY_DIR) + "/" + folder + "/libwaveinfer.so.2").c_str(),
                       RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) std::printf("%s\n", dlerror());
    assert_non_null(handle_);
  }
  template <class Function>
  Function* find(const char* name) const {
    auto* const found = reinterpret_cast<Function*>(dlsym(handle_, name));
    assert_non_null(found);
    return found;
  }
#define WI_CALL(name) find<decltype(::name)>(#name)

 private:
  void* handle_;
};

wi_error blank() {
  wi_error error{};
  error.struct_size = sizeof error;
  return error;
}

wi_device_info device_info(const Library& library, int32_t index) {
  wi_device_info info{};
  info.struct_size = sizeof info;
  wi_error error = blank();
  assert_int_equal(library.WI_CALL(wi_device_get_info)(index, &info, &error), WI_OK);
  return info;
}

int32_t device_count(const Library& library) {
  int32_t count = 0;
  wi_error error = blank();
  assert_int_equal(library.WI_CALL(wi_device_count)(&count, &error), WI_OK);
  return count;
}

std::string refusal(const Library& library, const char* device, wi_status expected) {
  wi_runtime_params params{};
  params.struct_size = sizeof params;
  params.device = device;
  wi_runtime* runtime = nullptr;
  wi_error error = blank();
  assert_int_equal(library.WI_CALL(wi_runtime_create)(&params, &runtime, &error), expected);
  assert_null(runtime);
  return error.message;
}

// The first tokens of an answer to a prompt.
std::vector<int32_t> answer(const Library& library, const char* device) {
  wi_runtime_params params{};
  params.struct_size = sizeof params;
  params.device = device;
  params.threads = 1;
  params.kv_budget_bytes = uint64_t{1} << 28;
  wi_error error = blank();
  wi_runtime* runtime = nullptr;
  wi_model* model = nullptr;
  wi_session* session = nullptr;
  const auto check = [&](wi_status status) {
    if (status) std::printf("%s: %s\n", device, error.message);
    assert_int_equal(status, WI_OK);
  };
  check(library.WI_CALL(wi_runtime_create)(&params, &runtime, &error));
  wi_device_info info{};
  info.struct_size = sizeof info;
  check(library.WI_CALL(wi_runtime_device_info)(runtime, &info, &error));
  assert_int_equal(std::strncmp(info.name, device, std::strlen(device)), 0);
  const std::string path = std::string(WI_SOURCE_DIR) + "/samples/model/needle-f16.gguf";
  wi_model_params model_params{};
  model_params.struct_size = sizeof model_params;
  model_params.precision = WI_PRECISION_F32;
  check(library.WI_CALL(wi_model_open)(runtime, path.c_str(), &model_params, nullptr, &model, &error));
  check(library.WI_CALL(wi_session_create)(model, nullptr, &session, &error));
  const char text[] = "The password of Boaz is copper meadow.";
  check(library.WI_CALL(wi_session_append_text)(session, text, sizeof text - 1, WI_TOKENIZE_ADD_BOS, nullptr,
                                                nullptr, &error));
  std::vector<int32_t> tokens;
  for (int i = 0; i < 4; ++i) {
    wi_event event{};
    event.struct_size = sizeof event;
    check(library.WI_CALL(wi_session_decode)(session, nullptr, &event, &error));
    tokens.push_back(event.token);
  }
  library.WI_CALL(wi_session_release)(session);
  library.WI_CALL(wi_model_release)(model);
  library.WI_CALL(wi_runtime_release)(runtime);
  return tokens;
}

void without_a_plugin_there_is_the_processor_and_the_reason(void**) {
  const Library library("plugins/none");
  assert_int_equal(device_count(library), 2);
  const wi_device_info cpu = device_info(library, 0), cuda = device_info(library, 1);
  assert_string_equal(cpu.name, "cpu");
  assert_int_equal(cpu.usable, 1);
  assert_true(cpu.threads > 0 && cpu.memory_bytes > 0);
  assert_string_equal(cuda.name, "cuda:0");
  assert_int_equal(cuda.usable, 0);
  assert_non_null(std::strstr(cuda.reason, "libwaveinfer_cuda.so cannot be opened"));
  assert_non_null(std::strstr(refusal(library, "cuda", WI_E_DEVICE).c_str(), cuda.reason));
}

void a_plugin_of_another_build_is_not_used(void**) {
  const Library library("plugins/other");
  const wi_device_info cuda = device_info(library, 1);
  assert_int_equal(cuda.usable, 0);
  assert_non_null(std::strstr(cuda.reason, "is of another build (0.0.0-other)"));
  refusal(library, "cuda:0", WI_E_DEVICE);
}

void a_plugin_that_does_not_load_says_why(void**) {
  const Library library("plugins/broken");
  const wi_device_info cuda = device_info(library, 1);
  assert_int_equal(cuda.usable, 0);
  assert_non_null(std::strstr(cuda.reason, "plugins/broken/libwaveinfer_cuda.so"));
  assert_null(std::strstr(cuda.reason, "No such file"));
}

// A host that has the library inside (this program, which links it), started by a relative path, goes to another
// folder before it asks: what lies beside it is still what is opened. The child says why it cannot be.
constexpr char kAsks[] = "asks-from-another-folder";
int ask_from_another_folder(const char* expected) {
  if (chdir("/") != 0) return 1;
  const std::string reason = wi::describe_plugin_device(0).description.reason;
  if (reason.find(expected) == reason.npos) std::printf("%s\n", reason.c_str());
  return reason.find(expected) == reason.npos;
}
void a_host_that_changes_its_folder_finds_what_lies_beside_it(void**) {
  const wi::test::Folder folder;
  std::filesystem::copy_file("/proc/self/exe", folder.path + "/host");
  const std::string plugin = folder.path + "/libwaveinfer_cuda.so";
  std::filesystem::copy_file(std::string(WI_BINARY_DIR) + "/plugins/broken/libwaveinfer_cuda.so", plugin);
  std::fflush(nullptr);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (chdir(folder.path.c_str()) == 0) execl("./host", "./host", kAsks, plugin.c_str(), nullptr);
    _exit(1);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

// The same of the shared library, opened by a relative path.
void a_library_of_a_relative_path_finds_its_plugin_from_another_folder(void**) {
  std::fflush(nullptr);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (chdir(WI_BINARY_DIR) != 0) _exit(1);
    void* const library = dlopen("plugins/emulated/libwaveinfer.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library || chdir("/") != 0) _exit(2);
    auto* const ask = reinterpret_cast<decltype(::wi_device_get_info)*>(dlsym(library, "wi_device_get_info"));
    wi_device_info info{};
    info.struct_size = sizeof info;
    _exit(ask(1, &info, nullptr) == WI_OK && info.usable == 1 ? 0 : 3);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

// Where nothing lies beside it, what the system finds on its way to libraries is opened.
constexpr char kAsksThePath[] = "asks-the-library-path";
int ask_the_library_path() {
  const wi::DeviceDescription found = wi::describe_plugin_device(0).description;
  if (found.reason[0]) std::printf("%s\n", found.reason);
  return std::strcmp(found.product, "Emulated") != 0;
}
void a_plugin_on_the_library_path_is_found(void**) {
  const wi::test::Folder folder;
  const std::string host = folder.path + "/host";
  std::filesystem::copy_file("/proc/self/exe", host);
  std::fflush(nullptr);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (setenv("LD_LIBRARY_PATH", (std::string(WI_BINARY_DIR) + "/plugins/emulated").c_str(), 1) == 0)
      execl(host.c_str(), host.c_str(), kAsksThePath, nullptr);
    _exit(1);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

void names_that_no_device_has_are_refused(void**) {
  const Library library("plugins/emulated");
  for (const char* name : {"gpu", "cuda:", "cuda:x", "cuda:0x", "cuda:-1", "cuda0", "cuda:99999999999"})
    assert_non_null(std::strstr(refusal(library, name, WI_E_UNSUPPORTED).c_str(), name));
  assert_non_null(std::strstr(refusal(library, "cuda:7", WI_E_DEVICE).c_str(), "cuda:7"));
}

// What a host has not let go by exit() is used by its other threads and by what it registered before.
void a_device_is_there_until_the_process_is_not(void**) {
  static std::function<int()> at_the_end;
  std::fflush(nullptr);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    mallopt(M_PERTURB, 0x5A);  // what is freed is not what it was
    std::atexit([] { _exit(at_the_end()); });
    const Library library("plugins/emulated");
    wi_runtime_params params{};
    params.struct_size = sizeof params;
    params.device = "cuda:0";
    params.threads = 1;
    wi_runtime* runtime = nullptr;
    wi_error error = blank();
    if (library.WI_CALL(wi_runtime_create)(&params, &runtime, &error)) _exit(1);
    auto* const ask = library.WI_CALL(wi_runtime_policy);
    at_the_end = [ask, runtime] {
      wi_policy_info info{};
      info.struct_size = sizeof info;
      return ask(runtime, 0, &info, nullptr) == WI_OK && std::strcmp(info.name, "full") == 0 ? 0 : 2;
    };
    std::exit(3);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

void a_plugin_beside_the_library_runs_a_model_with_the_tokens_of_the_processor(void**) {
  const Library library("plugins/emulated");
  const wi_device_info cuda = device_info(library, 1);
  assert_string_equal(cuda.description, "Emulated");
  assert_int_equal(cuda.usable, 1);
  assert_string_equal(cuda.reason, "");
  assert_int_equal(cuda.policies, 2);
  assert_true(answer(library, "cpu") == answer(library, "cuda:0"));
}

}  // namespace

int main(int count, char** words) {
  if (count == 3 && std::strcmp(words[1], kAsks) == 0) return ask_from_another_folder(words[2]);
  if (count == 2 && std::strcmp(words[1], kAsksThePath) == 0) return ask_the_library_path();
  const CMUnitTest tests[] = {
      // First: their children are to open the library by themselves.
      cmocka_unit_test(a_library_of_a_relative_path_finds_its_plugin_from_another_folder),
      cmocka_unit_test(a_host_that_changes_its_folder_finds_what_lies_beside_it),
      cmocka_unit_test(a_plugin_on_the_library_path_is_found),
      cmocka_unit_test(a_device_is_there_until_the_process_is_not),
      cmocka_unit_test(without_a_plugin_there_is_the_processor_and_the_reason),
      cmocka_unit_test(a_plugin_of_another_build_is_not_used),
      cmocka_unit_test(a_plugin_that_does_not_load_says_why),
      cmocka_unit_test(names_that_no_device_has_are_refused),
      cmocka_unit_test(a_plugin_beside_the_library_runs_a_model_with_the_tokens_of_the_processor),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
