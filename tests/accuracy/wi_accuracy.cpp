// wi_accuracy: what sparse policies cost in accuracy. Makes documents with tasks (tasks.h), reads each once
// under the reference policy, and asks every question of forks under every policy and budget. Writes a JSON
// line per question, policy and budget, and a table of what each got right of what the reference got right.
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "conversation.h"
#include "sample.h"
#include "tasks.h"
#include "variants.h"

namespace {

using namespace accuracy;
using namespace sample;
using Json = nlohmann::ordered_json;

struct Options {
  std::string model, text, out;
  std::string reference = "full";
  std::string load = "mapped";
  std::string policies = "wave wave:estimation=-1 wave:repeats=-1 wave:target_mass=0.95 streaming blocks";
  std::vector<double> budgets = {0.009, 0.018, 0.036, 0.072};
  std::vector<int64_t> lengths = {4096, 16384};
  std::vector<std::string> kinds = document_kinds();
  int64_t seeds = 1, first_seed = 1, threads = 0, sparse_read = 0, max_tokens = 32;
  TaskOptions tasks;
};

constexpr const char* kUsage =
    "wi_accuracy: right answers of sparse policies, side by side with a reference\n"
    "  --model FILE        required: a GGUF file or a folder, with a chat template\n"
    "  --text FILE         required: the text that facts are planted in\n"
    "  --from BYTES        documents are cut from here on in it, where that leaves enough (0)\n"
    "  --out FILE          JSON lines (standard output)\n"
    "  --policies LIST     e.g. \"wave wave:estimation=-1\" (wave, two variants of it, streaming, blocks)\n"
    "  --reference POLICY  what the others are held against (full)\n"
    "  --budgets LIST      shares of the indexed tokens (0.009,0.018,0.036,0.072)\n"
    "  --lengths LIST      tokens of the documents (4096,16384)\n"
    "  --documents LIST    kinds: single,few,multikey-64,multikey-512,list-5,list-20,list-50 (all)\n"
    "  --seeds N           documents of each kind and length (1)\n"
    "  --first-seed N      (1)\n"
    "  --questions N       most per task and document; the list tasks ask for everything (8)\n"
    "  --answers one|all   whether the model is asked for one fact at a time (one) or for all in one prompt\n"
    "  --sparse-read N     read questions of up to N tokens through the policy too (0: exactly)\n"
    "  --max-tokens N      of an answer (32)\n"
    "  --load WHERE        weights lie: mapped or copied (mapped)\n"
    "  --threads N         (0: the physical cores)\n"
    "Example: wi_accuracy --model m.gguf --text book.txt --policies \"wave blocks\" --lengths 4096\n";

bool parse_options(int argument_count, char** arguments, Options& options);

// What one policy said to one question.
struct Reply {
  std::vector<int32_t> tokens;
  std::string text;
  size_t found = 0;  // of the expected values
  bool right = false;
  uint64_t steps = 0, kv_bytes_read = 0, index_bytes_read = 0, retrieved_tokens = 0;
};

class Runner {
 public:
  explicit Runner(const Options& options);
  void run();

 private:
  void run_document(const Document& document);
  std::vector<Reply> hold(Session session, const Conversation& conversation, bool first_is_read) const;
  Reply answer(const Session& session, const Question& question) const;
  wi_session_params session_params(const wi_policy_params& policy) const;
  void record(const Document& document, const Question& question, const Variant& variant, double budget,
              const Reply& reply, const Reply& reference);
  void print_table() const;

  const Options& options_;
  Runtime runtime_;
  Model model_;
  Template template_;
  Variant reference_;
  std::vector<Variant> variants_;
  TaskOptions tasks_;
  std::unique_ptr<OutputFile> out_;
  struct Score {
    int64_t right = 0, asked = 0;
  };
  std::map<std::string, std::map<int64_t, Score>> scores_;  // policy and budget, length
};

Runner::Runner(const Options& options)
    : options_(options),
      runtime_(create_runtime(static_cast<int>(options.threads), "cpu")),
      model_(open_model(runtime_, options.model, parse_load(options.load))),
      template_(model_),
      reference_(parse_variant(options.reference)),
      variants_(parse_variants(options.policies)),
      tasks_(options.tasks) {
  tasks_.text = read_file(options.text);
  if (!options.out.empty()) out_ = std::make_unique<OutputFile>(options.out);
  for (const Variant& variant : variants_) {  // a wrong name fails at once
    const wi_policy_params policy = variant.with_budget(options.budgets.front());
    create_session(model_, session_params(policy));
  }
}

void Runner::run() {
  const Counting counting = {[&](const std::string& text) { return tokenize(model_, text, 0).size(); },
                             [&](const std::string& text, size_t count) {
                               std::vector<int32_t> tokens = tokenize(model_, text, 0);
                               if (tokens.size() > count) tokens.resize(count);
                               return detokenize(model_, tokens, 0);
                             }};
  for (int64_t length : options_.lengths)
    for (int64_t seed = options_.first_seed; seed < options_.first_seed + options_.seeds; seed++)
      for (const std::string& kind : options_.kinds) {
        const Document document = make_document(tasks_, counting, kind, length, static_cast<uint64_t>(seed));
        if (document.conversations.empty()) continue;
        std::fprintf(stderr, "%s, %lld tokens, seed %lld\n", kind.c_str(), static_cast<long long>(length),
                     static_cast<long long>(seed));
        run_document(document);
      }
  if (out_) out_->close();
  print_table();
}

// The reference reads the document. Where an index differs it is built once, from the same keys.
void Runner::run_document(const Document& document) {
  const wi_policy_params policy = reference_.with_budget(1);
  const Session read = create_session(model_, session_params(policy));
  const std::vector<int32_t> opening = template_.opening(document.text);
  call(wi_session_prefill, read.get(), opening.data(), opening.size(), nullptr, nullptr);
  const auto fork_as = [&](const Session& session, const Variant& variant, double budget) {
    const wi_policy_params changed = variant.with_budget(budget);
    const wi_session_params params = session_params(changed);
    wi_session* copy = nullptr;
    call(wi_session_fork_as, session.get(), &params, nullptr, &copy);
    return Session(copy, wi_session_release);
  };
  std::map<std::string, Session> indexed;
  for (const Variant& variant : variants_)
    if (!indexed.count(variant.index_key()))
      indexed.emplace(variant.index_key(), fork_as(read, variant, options_.budgets.front()));

  for (const Conversation& conversation : document.conversations) {
    const std::vector<Reply> expected = hold(fork(read), conversation, false);
    for (size_t i = 0; i < expected.size(); i++)
      record(document, conversation[i], reference_, 1, expected[i], expected[i]);
    // A question that is read exactly is read once for all budgets.
    std::map<std::string, Session> asked;
    const std::vector<int32_t> first = template_.first_question(conversation.front().text);
    if (options_.sparse_read == 0)
      for (const auto& [key, session] : indexed) {
        Session& copy = asked.emplace(key, fork(session)).first->second;
        call(wi_session_prefill, copy.get(), first.data(), first.size(), nullptr, nullptr);
      }
    for (const Variant& variant : variants_)
      for (double budget : options_.budgets) {
        const bool is_read = asked.count(variant.index_key()) > 0;
        const Session& from = is_read ? asked.at(variant.index_key()) : indexed.at(variant.index_key());
        const std::vector<Reply> replies = hold(fork_as(from, variant, budget), conversation, is_read);
        for (size_t i = 0; i < replies.size(); i++)
          record(document, conversation[i], variant, budget, replies[i], expected[i]);
      }
  }
}

// Asks one question after another. A conversation goes on from what this policy said itself.
std::vector<Reply> Runner::hold(Session session, const Conversation& conversation, bool first_is_read) const {
  std::vector<Reply> replies;
  for (const Question& question : conversation) {
    if (!replies.empty() || !first_is_read) {
      const std::vector<int32_t> tokens =
          replies.empty() ? template_.first_question(question.text)
                          : template_.next_question(question.text, replies.back().tokens.back());
      call(wi_session_prefill, session.get(), tokens.data(), tokens.size(), nullptr, nullptr);
    }
    replies.push_back(answer(session, question));
  }
  return replies;
}

wi_session_stats stats_of(const Session& session) {
  auto stats = sized<wi_session_stats>();
  call(wi_session_get_stats, session.get(), &stats);
  return stats;
}

Reply Runner::answer(const Session& session, const Question& question) const {
  Reply reply;
  const wi_session_stats before = stats_of(session);
  const auto most = options_.max_tokens * static_cast<int64_t>(question.any ? 1 : question.expected.size());
  auto event = sized<wi_event>();
  while (event.kind == WI_EVENT_TOKEN && static_cast<int64_t>(reply.tokens.size()) < most) {
    call(wi_session_decode, session.get(), nullptr, &event);
    reply.tokens.push_back(event.token);
    reply.text.append(event.text, event.text_length);
  }
  const wi_session_stats after = stats_of(session);
  reply.steps = after.decode_steps - before.decode_steps;
  reply.kv_bytes_read = after.kv_bytes_read - before.kv_bytes_read;
  reply.index_bytes_read = after.index_bytes_read - before.index_bytes_read;
  reply.retrieved_tokens = after.retrieved_tokens - before.retrieved_tokens;
  for (const std::string& value : question.expected)
    reply.found += reply.text.find(value) != std::string::npos;
  reply.right = question.any ? reply.found > 0 : reply.found == question.expected.size();
  return reply;
}

wi_session_params Runner::session_params(const wi_policy_params& policy) const {
  auto params = sized<wi_session_params>();
  params.policy = &policy;
  params.sparse_read_tokens = static_cast<int32_t>(options_.sparse_read);
  params.prefix_reuse = WI_PREFIX_REUSE_OFF;
  return params;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%g %%", share * 100);
  return text;
}

void Runner::record(const Document& document, const Question& question, const Variant& variant, double budget,
                    const Reply& reply, const Reply& reference) {
  const auto first_difference = [&]() -> int64_t {
    const auto [ours, theirs] = std::mismatch(reply.tokens.begin(), reply.tokens.end(),
                                              reference.tokens.begin(), reference.tokens.end());
    if (ours == reply.tokens.end() && theirs == reference.tokens.end()) return -1;
    return ours - reply.tokens.begin();
  };
  const double steps = static_cast<double>(std::max<uint64_t>(reply.steps, 1));
  const Json line = {{"task", question.task},
                     {"document", document.kind},
                     {"length", document.length},
                     {"seed", document.seed},
                     {"depth", question.depth},
                     {"policy", variant.label},
                     {"budget", budget},
                     {"estimation", variant.params.estimation},
                     {"target_mass", variant.params.target_mass},
                     {"question", question.text},
                     {"expected", question.expected},
                     {"answer", reply.text},
                     {"found", reply.found},
                     {"right", reply.right},
                     {"reference_found", reference.found},
                     {"reference_right", reference.right},
                     {"first_difference", first_difference()},
                     {"steps", reply.steps},
                     {"kv_bytes_read_per_step", static_cast<double>(reply.kv_bytes_read) / steps},
                     {"index_bytes_read_per_step", static_cast<double>(reply.index_bytes_read) / steps},
                     {"retrieved_tokens_per_step", static_cast<double>(reply.retrieved_tokens) / steps}};
  std::FILE* file = out_ ? out_->get() : stdout;
  std::fprintf(file, "%s\n", line.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  if (!reference.right) return;
  Score& score = scores_[variant.label + " " + percent(budget)][document.length];
  score.asked++;
  score.right += reply.right;
}

void Runner::print_table() const {
  std::fprintf(stderr, "\nright of what %s got right\n%-36s", reference_.label.c_str(), "");
  for (int64_t length : options_.lengths) std::fprintf(stderr, "%14lld", static_cast<long long>(length));
  for (const auto& [label, by_length] : scores_) {
    std::fprintf(stderr, "\n%-36s", label.c_str());
    for (int64_t length : options_.lengths) {
      const auto found = by_length.find(length);
      const Score score = found == by_length.end() ? Score{} : found->second;
      std::fprintf(stderr, "%8lld of %3lld", static_cast<long long>(score.right),
                   static_cast<long long>(score.asked));
    }
  }
  std::fprintf(stderr, "\n");
}

bool parse_options(int argument_count, char** arguments, Options& options) {
  CommandLine line(kUsage);
  line.text("--model", &options.model)
      .text("--text", &options.text)
      .integer("--from", &options.tasks.first_byte, 0)
      .text("--out", &options.out)
      .text("--policies", &options.policies)
      .text("--reference", &options.reference)
      .each("--budgets", [&](const std::string& list) { options.budgets = parse_budgets(list); })
      .each("--lengths",
            [&](const std::string& list) {
              options.lengths.clear();
              for (const std::string& length : split_at_commas(list))
                options.lengths.push_back(parse_integer("--lengths", length, 256, INT32_MAX));
            })
      .list("--documents", &options.kinds)
      .integer("--seeds", &options.seeds, 1)
      .integer("--first-seed", &options.first_seed, 0)
      .integer("--questions", &options.tasks.questions, 1)
      .each("--answers",
            [&](const std::string& answers) {
              if (answers != "one" && answers != "all") throw std::runtime_error("--answers is one or all");
              options.tasks.single_answers = answers == "one";
            })
      .integer("--sparse-read", &options.sparse_read, 0)
      .integer("--max-tokens", &options.max_tokens, 1)
      .text("--load", &options.load)
      .integer("--threads", &options.threads, 0);
  if (!line.parse(argument_count, arguments)) return false;
  if (options.model.empty() || options.text.empty())
    throw std::runtime_error("--model and --text are needed (--help lists all options)");
  return true;
}

}  // namespace

int main(int argument_count, char** arguments) {
  return run_main("wi_accuracy", [&] {
    Options options;
    if (parse_options(argument_count, arguments, options)) Runner(options).run();
  });
}
