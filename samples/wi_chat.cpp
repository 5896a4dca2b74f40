// wi_chat: a conversation with a model of one's own, in the model's own chat template. Before each answer the
// whole conversation is rendered to tokens; what the session has of them already is kept, the rest is read.
// So it does not matter what a template does with old turns, and a long conversation is not read again.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <unistd.h>

#include "chat_words.h"
#include "interrupt.h"
#include "sample.h"

namespace {

using namespace sample;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string model, system, policy, kv_type = "f16", variables;
  std::string spill, load = "mapped", precision = "fast", device = "cpu";
  int64_t threads = 0, max_tokens = 1024, kv_budget_mb = 0;
  double budget = 0;
  // What is not given is, of a conversation that is loaded, as saved.
  std::optional<double> temperature, top_p;
  std::optional<int64_t> seed;
  bool has_sampling() const { return temperature || top_p || seed; }
};

constexpr const char* kUsage =
    "wi_chat: a conversation with a model, in its own chat template\n"
    "  --model FILE       required: GGUF file, or folder with safetensors\n"
    "  --system TEXT      what the model is told first\n"
    "  --policy P         wave (default) or full\n"
    "  --budget R         share of the indexed tokens that wave reads exactly (default 0.018)\n"
    "  --kv f16|bf16|f32  type of the KV cache (default f16)\n"
    "  --kv-budget MB     most memory for the KV cache (default: 80 % of what there is)\n"
    "  --spill FOLDER     on a local disk, for what of the KV cache memory has no room for\n"
    "  --load WHERE       weights lie: mapped (default), in the file, or copied, in memory\n"
    "  --precision P      of the products: fast (default), high, f32 or int8 (WI_PRECISION_*)\n"
    "  --device D         where to run: cpu (default), cuda or cuda:N\n"
    "  --temperature T    0.7; 0 takes the likeliest token\n"
    "  --top-p P          of the sampler (0.95)\n"
    "  --seed N           of the sampler (0)\n"
    "  --max-tokens N     longest answer (1024)\n"
    "  --variables JSON   more variables of the template, e.g. '{\"enable_thinking\": false}'\n"
    "  --threads N        default: every core this process may use\n"
    "Example: wi_chat --model qwen2.5-1.5b-instruct-q8_0.gguf --system 'Answer in one sentence.'\n"
    "Of a conversation that is loaded, what is not given is as saved; one of --temperature, --top-p and\n"
    "--seed brings the defaults of the others.\n"
    "More tokens than the model was made for are warned of, once a conversation, not refused.\n"
    "In the conversation: /save FILE, /load FILE, /stats, /new, /help, /quit; //TEXT says /TEXT.\n"
    "Ctrl-C ends an answer, a save or a load, and at the prompt, where it comes twice, the program.\n";

constexpr const char* kCommands =
    "/save FILE  keeps the conversation and its KV cache    /load FILE  goes on with one\n"
    "/stats      tokens, memory and speed                   /new        forgets everything\n"
    "/help       this                                       /quit       or the end of input\n"
    "//TEXT      says /TEXT to the model\n";

constexpr const char* kHowToLeave = "\nCtrl-C again or /quit leaves\n> ";

class Chat {
 public:
  explicit Chat(const Options& options);
  void run();

 private:
  bool obey(const std::string& line);
  void start();
  void check_template() const;
  void answer(const std::string& words);
  std::vector<int32_t> render(const std::vector<Message>& messages) const;
  void read(const std::vector<int32_t>& wanted, wi_cancel* cancel);
  bool write(wi_cancel* cancel, std::string* text);
  void save(const std::string& path);
  void load(const std::string& path);
  void print_stats() const;
  wi_session_params session_params();

  const Options options_;
  Runtime runtime_;
  Model model_;
  Interrupt interrupt_;
  wi_sampling_params sampling_ = sized<wi_sampling_params>();
  wi_policy_params policy_ = sized<wi_policy_params>();
  Session session_{nullptr, wi_session_release};
  std::vector<Message> messages_;
  bool warned_ = false;                            // that it may become longer than the model was made for
  uint64_t read_tokens_ = 0, written_tokens_ = 0;  // for the last answer
  double read_seconds_ = 0, write_seconds_ = 0;
};

Chat::Chat(const Options& options)
    : options_(options),
      runtime_(create_runtime(static_cast<int>(options.threads), options.device, options.spill,
                              static_cast<uint64_t>(options.kv_budget_mb) << 20)),
      model_(
          open_model(runtime_, options.model, parse_load(options.load), parse_precision(options.precision))),
      interrupt_(isatty(STDIN_FILENO) ? kHowToLeave : "") {
  sampling_.temperature = static_cast<float>(options.temperature.value_or(0.7));
  sampling_.top_p = static_cast<float>(options.top_p.value_or(0.95));
  sampling_.seed = static_cast<uint64_t>(options.seed.value_or(0));
  if (!options_.policy.empty()) policy_.name = options_.policy.c_str();
  policy_.budget = static_cast<float>(options.budget);
  start();
  check_template();
}

void Chat::run() {
  const bool at_terminal = isatty(STDIN_FILENO);
  if (at_terminal) std::fputs(kCommands, stdout);
  std::string line;
  for (;;) {
    if (at_terminal) std::fputs("\n> ", stdout), std::fflush(stdout);
    if (!std::getline(std::cin, line)) return;
    Interrupt::line_was_entered();
    if (!line.empty() && line.back() == '\r') line.pop_back();  // of a file from elsewhere
    if (line.empty()) continue;
    try {
      if (line == "/quit") return;
      if (line[0] != '/')
        answer(line);
      else if (line.compare(0, 2, "//") == 0)
        answer(line.substr(1));
      else if (!obey(line))
        std::printf("%s is no command. These are:\n%s", line.c_str(), kCommands);
    } catch (const std::runtime_error& error) {  // a wrong file name is no reason to lose a conversation
      if (!at_terminal) throw;
      std::printf("%s\n", error.what());
    }
  }
}

bool Chat::obey(const std::string& line) {
  const size_t space = line.find(' ');
  const std::string command = line.substr(0, space);
  const std::string file = space == std::string::npos ? "" : line.substr(space + 1);
  if (command == "/save" && !file.empty())
    save(file);
  else if (command == "/load" && !file.empty())
    load(file);
  else if (line == "/stats")
    print_stats();
  else if (line == "/new")
    start();
  else if (line == "/help")
    std::fputs(kCommands, stdout);
  else
    return false;
  return true;
}

void Chat::start() {
  session_ = create_session(model_, session_params());
  messages_.clear();
  warned_ = false;
  if (!options_.system.empty()) messages_.push_back({"system", options_.system});
}

// What the template or its variables have against any conversation is said before there is one.
void Chat::check_template() const {
  std::vector<Message> messages = messages_;
  messages.push_back({"user", "?"});
  render(messages);
}

// A turn that fails or is cut off before its first word leaves the conversation as it was; after that, what was written
// stays as the answer. So roles alternate whatever happens, as some templates insist.
void Chat::answer(const std::string& words) {
  const Interrupt::Work work(interrupt_);
  messages_.push_back({"user", words});
  std::string text;
  bool whole = false;
  std::exception_ptr failure;
  try {
    const std::vector<int32_t> wanted = render(messages_);
    warned_ = warned_ ||
              warn_beyond_model("wi_chat", model_, wanted.size(), static_cast<uint64_t>(options_.max_tokens));
    read(wanted, work.cancel());
    whole = write(work.cancel(), &text);
  } catch (...) {
    failure = std::current_exception();
  }
  if (whole || !text.empty())
    messages_.push_back({"assistant", text});
  else
    messages_.pop_back();
  if (failure) std::rethrow_exception(failure);
}

std::vector<int32_t> Chat::render(const std::vector<Message>& messages) const {
  std::vector<wi_chat_message> turns;
  for (const Message& message : messages) {
    wi_chat_message& turn = turns.emplace_back(sized<wi_chat_message>());
    turn.role = message.role.c_str();
    turn.content = message.content.data();
    turn.content_length = message.content.size();
  }
  auto params = sized<wi_chat_params>();
  params.flags = WI_CHAT_ADD_GENERATION_PROMPT;
  if (!options_.variables.empty()) params.variables_json = options_.variables.c_str();
  uint64_t count = 0;
  call(wi_model_chat_tokens, model_.get(), turns.data(), turns.size(), &params, nullptr, 0, &count);
  std::vector<int32_t> tokens(count);
  call(wi_model_chat_tokens, model_.get(), turns.data(), turns.size(), &params, tokens.data(), count, &count);
  return tokens;
}

// Goes back to where the session's tokens and the wanted ones part, and reads the rest.
void Chat::read(const std::vector<int32_t>& wanted, wi_cancel* cancel) {
  uint64_t count = 0;
  call(wi_session_tokens, session_.get(), nullptr, 0, &count);
  std::vector<int32_t> held(count);
  call(wi_session_tokens, session_.get(), held.data(), count, &count);
  const auto parts = std::mismatch(held.begin(), held.end(), wanted.begin(), wanted.end());
  const auto same = std::min(static_cast<size_t>(parts.first - held.begin()), wanted.size() - 1);
  call(wi_session_truncate, session_.get(), same);
  const auto start = Clock::now();
  call(wi_session_prefill, session_.get(), wanted.data() + same, wanted.size() - same, nullptr, cancel);
  read_seconds_ = std::chrono::duration<double>(Clock::now() - start).count();
  read_tokens_ = wanted.size() - same;
}

// Adds to the text as it comes. Whether the answer is whole: Ctrl-C ends it, too.
bool Chat::write(wi_cancel* cancel, std::string* text) {
  written_tokens_ = 0;
  const auto start = Clock::now();
  auto event = sized<wi_event>();
  auto error = sized<wi_error>();
  wi_status status = WI_OK;
  while (event.kind == WI_EVENT_TOKEN && static_cast<int64_t>(written_tokens_) < options_.max_tokens) {
    status = wi_session_decode(session_.get(), cancel, &event, &error);
    if (status != WI_OK) break;
    ++written_tokens_;
    text->append(event.text, event.text_length);
    std::fwrite(event.text, 1, event.text_length, stdout);
    std::fflush(stdout);
  }
  write_seconds_ = std::chrono::duration<double>(Clock::now() - start).count();
  std::fputs("\n", stdout);
  if (status != WI_OK && status != WI_E_CANCELLED) throw_call_error(error);
  if (status == WI_OK && event.kind == WI_EVENT_TOKEN)
    std::fprintf(stderr, "wi_chat: the answer is cut off at --max-tokens %lld\n",
                 static_cast<long long>(options_.max_tokens));
  return status == WI_OK;
}

// Two files: the session, and beside it the words. Each is put in its place whole: the words, which are ready then, right
// after the session, so that whatever fails before leaves the pair that was there.
void Chat::save(const std::string& path) {
  const Interrupt::Work work(interrupt_);
  WordsFile words(path + ".words");
  words.write(words_of(messages_));
  call(wi_session_save, session_.get(), path.c_str(), work.cancel());
  words.put_in_place(path);
  std::printf("saved %s and %s.words\n", path.c_str(), path.c_str());
}

void Chat::load(const std::string& path) {
  const Interrupt::Work work(interrupt_);
  std::vector<Message> messages = messages_of(read_file(path + ".words"), path + ".words");
  wi_session_params params = session_params();
  if (!options_.has_sampling()) params.sampling = nullptr;
  wi_session* session = nullptr;
  call(wi_session_load, model_.get(), path.c_str(), &params, work.cancel(), &session);
  session_.reset(session);
  messages_ = std::move(messages);
  warned_ = false;
  std::printf("%zu messages; sampling as %s\n", messages_.size(),
              options_.has_sampling() ? "the command line has it" : "saved");
}

void Chat::print_stats() const {
  auto stats = sized<wi_session_stats>();
  call(wi_session_get_stats, session_.get(), &stats);
  std::printf("%llu tokens, %.1f MB of KV cache in %d segments\n",
              static_cast<unsigned long long>(stats.tokens), static_cast<double>(stats.kv_bytes) / 1e6,
              stats.segments);
  if (written_tokens_ == 0) return;
  std::printf("last answer: read %llu tokens in %.2f s, wrote %llu in %.2f s (%.1f ms a token)\n",
              static_cast<unsigned long long>(read_tokens_), read_seconds_,
              static_cast<unsigned long long>(written_tokens_), write_seconds_,
              write_seconds_ / static_cast<double>(written_tokens_) * 1e3);
}

wi_session_params Chat::session_params() {
  auto params = sized<wi_session_params>();
  params.kv_type = parse_kv_type(options_.kv_type);
  params.policy = &policy_;
  params.sampling = &sampling_;
  return params;
}

bool parse_options(int argument_count, char** arguments, Options& options) {
  CommandLine line(kUsage);
  line.text("--model", &options.model)
      .text("--system", &options.system)
      .text("--policy", &options.policy)
      .text("--kv", &options.kv_type)
      .text("--spill", &options.spill)
      .text("--load", &options.load)
      .text("--precision", &options.precision)
      .text("--device", &options.device)
      .text("--variables", &options.variables)
      .number("--budget", &options.budget, 0, 1)
      .number("--temperature", &options.temperature, 0, 100)
      .number("--top-p", &options.top_p, 0, 1)
      .integer("--kv-budget", &options.kv_budget_mb, 1, INT64_MAX >> 20)
      .integer("--seed", &options.seed, 0, INT64_MAX)
      .integer("--max-tokens", &options.max_tokens, 1)
      .integer("--threads", &options.threads, 0, 1024);
  if (!line.parse(argument_count, arguments)) return false;
  if (options.model.empty()) throw std::runtime_error("--model FILE is missing (--help lists the options)");
  return true;
}

}  // namespace

int main(int argument_count, char** arguments) {
  return end_status(run_main("wi_chat", [&] {
    Options options;
    if (parse_options(argument_count, arguments, options)) Chat(options).run();
  }));
}
