// Completions for an editor, by the Language Server Protocol over standard input and output. One thread: it waits for
// messages and for the tasks of the open files at once, and looks at all that a client has sent before it goes on with
// anything for it, since most of what is typed overtakes what came before.
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <poll.h>
#include <stdexcept>
#include <unistd.h>

#include "server.h"

namespace {

using namespace editor;

constexpr const char* kUsage =
    "editor: completions by the Language Server Protocol, over standard input and output\n"
    "  --model FILE      required: GGUF file, or folder with safetensors\n"
    "  --max-tokens N    longest completion (24); it ends with its line in any case\n"
    "  --precision P     of reading: fast (default), high, f32 or int8\n"
    "  --kv f16|bf16|f32 type of the KV cache (default f16)\n"
    "  --threads N       default: every core this process may use\n"
    "Completions wait until the whole file was read once, in a long file for as long as that takes.\n"
    "Example: editor --model m.gguf\n";

void handle_messages(Inbox* inbox, Server* server) {
  while (server->takes_messages()) {
    try {
      Json message;
      if (!inbox->next(&message)) return;
      server->handle(message);
    } catch (const RpcError& error) {
      server->reject(nullptr, error);
    }
  }
}

// All that the client has sent. False: there will be no more.
bool take_input(Inbox* inbox, Server* server) {
  handle_messages(inbox, server);
  std::array<char, 1 << 16> block;
  for (pollfd input{STDIN_FILENO, POLLIN, 0}; server->takes_messages() && ::poll(&input, 1, 0) > 0;) {
    const ssize_t count = ::read(STDIN_FILENO, block.data(), block.size());
    if (count == 0) return false;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::runtime_error(std::string("cannot read: ") + std::strerror(errno));
    inbox->feed(block.data(), static_cast<size_t>(count));
    handle_messages(inbox, server);
  }
  return true;
}

void wait(const Server& server) {
  std::vector<pollfd> waited;
  if (server.takes_messages()) waited.push_back({STDIN_FILENO, POLLIN, 0});
  for (const int descriptor : server.descriptors()) waited.push_back({descriptor, POLLIN, 0});
  ::poll(waited.data(), waited.size(), -1);
}

void serve(const sample::Model& model, const OpenFile::Options& options) {
  Inbox inbox;
  Server server(model, options);
  while (take_input(&inbox, &server) && !server.exited()) {
    const bool held_back = !server.takes_messages();
    server.advance();
    if (!held_back || !server.takes_messages()) wait(server);
  }
  if (!server.was_shut_down()) throw std::runtime_error("the client is gone without a shutdown");
}

void run(int argc, char** argv) {
  std::string model_path, precision = "fast", kv_type = "f16";
  int32_t threads = 0;
  OpenFile::Options options;
  sample::CommandLine line(kUsage);
  line.text("--model", &model_path).text("--precision", &precision).text("--kv", &kv_type);
  line.integer("--max-tokens", &options.most_tokens, 1, 4096).integer("--threads", &threads, 0, 1024);
  if (!line.parse(argc, argv)) return;
  if (model_path.empty()) throw std::runtime_error("--model FILE is missing (--help lists the options)");
  options.session.kv_type = sample::parse_kv_type(kv_type);

  std::signal(SIGPIPE, SIG_IGN);  // a client that is gone is an error of a write
  const sample::Runtime runtime = sample::create_runtime(threads, "cpu");
  const sample::Model model =
      sample::open_model(runtime, model_path, WI_WEIGHTS_MAPPED, sample::parse_precision(precision));
  serve(model, options);
}

}  // namespace

int main(int argc, char** argv) {
  return sample::run_main("editor", [&] { run(argc, argv); });
}
