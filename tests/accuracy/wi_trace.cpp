// wi_trace: where a sparse policy loses. Reads a document, writes the answers with full attention, and at
// every step lets each policy attend to the same queries over the same keys: per layer and query head, how
// much of the attention it reached and at which stage the rest was lost.
//
//   budget      what even the best single tokens could not cover, as many as the policy retrieved
//   clustering  what whole partitions, chosen knowing the true weights, lose against those
//   ranking     what the policy's own choice of partitions loses against that
//   estimation  what is left of the output's error after the estimate, and without it
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "conversation.h"
#include "kernels/cpu/cpu.h"
#include "sample.h"
#include "src/capi_convert.h"
#include "src/decode.h"
#include "src/pipeline/index.h"
#include "src/pipeline/pipeline.h"
#include "src/prefill.h"
#include "src/runtime.h"
#include "src/workspace.h"
#include "tasks.h"
#include "variants.h"

namespace {

using namespace accuracy;
using Json = nlohmann::ordered_json;

struct Options {
  std::string model, text, out, dump;
  std::string policies = "wave streaming blocks";
  std::vector<double> budgets = {0.009, 0.018, 0.036, 0.072};
  std::string kind = "multikey-64";
  int64_t length = 16384, seed = 1, questions = 8, steps = 8, top = 32, threads = 0;
  TaskOptions tasks;
};

constexpr const char* kUsage =
    "wi_trace: per layer and head, at which stage a sparse policy loses\n"
    "  --model FILE      required: a GGUF file or a folder, with a chat template\n"
    "  --text FILE       required: the text that facts are planted in\n"
    "  --from BYTES      documents are cut from here on in it, where that leaves enough (0)\n"
    "  --policies LIST   as wi_accuracy (wave streaming blocks)\n"
    "  --budgets LIST    shares of the indexed tokens (0.009,0.018,0.036,0.072)\n"
    "  --document KIND   as wi_accuracy (multikey-64)\n"
    "  --length N        tokens of the document (16384)\n"
    "  --seed N          (1)\n"
    "  --questions N     (8)\n"
    "  --steps N         most per answer (8)\n"
    "  --top N           recall is of the N keys with the most weight (32)\n"
    "  --out FILE        JSON lines: a line per question, step, layer, head, policy and budget (none)\n"
    "  --dump FOLDER     the document's k and v and all steps' q as f32, with shapes in meta.json (none)\n"
    "  --threads N       (0: the physical cores)\n"
    "Example: wi_trace --model m.gguf --text book.txt --policies wave --budgets 0.018 --length 4096\n";

bool parse_options(int argument_count, char** arguments, Options& options);

// A policy with a budget, and the cache as it sealed it.
struct Contestant {
  std::string label;
  double budget = 0;
  wi::PolicyChoice choice;
  size_t index = 0;  // in the list of sealed documents
  wi::Sequence sequence;
};

// Means over questions and steps. Shares of the attention mass of one query head.
struct Losses {
  int64_t count = 0;
  double recall = 0, coverage = 0, budget = 0, clustering = 0, ranking = 0, error = 0, error_exact = 0;
};
struct Divergence {
  int64_t count = 0, same_token = 0;
  double kl = 0;
};

class Tracer {
 public:
  explicit Tracer(const Options& options);
  void run();

 private:
  void read(wi::Sequence& sequence, const std::vector<int32_t>& tokens, std::vector<float>* logits);
  void follow_up(const wi::Sequence& from, wi::Sequence& to) const;
  int32_t step(int64_t question, int64_t number, int32_t token, std::vector<Contestant>& contestants);
  void observe(int64_t question, int64_t number, int32_t layer, const wi::Step& step, int64_t end,
               std::vector<Contestant>& contestants);
  void true_weights(const wi::Step& step, int32_t layer, int32_t head, int64_t end);
  void judge(const wi::Lookup& lookup, Losses* heads) const;
  void compare_distributions(int32_t token, const std::vector<float>& reference,
                             std::vector<Contestant>& contestants);
  void dump(const wi::Sequence& sequence) const;
  void print() const;
  size_t group() const { return static_cast<size_t>(model_->config.group()); }

  const Options& options_;
  sample::Runtime host_runtime_;
  sample::Model host_model_;  // for text; what follows computes
  Template template_;
  std::shared_ptr<wi::Runtime> runtime_;
  std::shared_ptr<const wi::Model> model_;
  wi::KvShape shape_;
  const wi::Policy* full_;
  wi::PolicyParams full_params_;
  wi::Sequence reference_;
  std::vector<std::vector<float>> weights_;  // (group, tokens) softmax of the layer and KV head looked at
  std::vector<double> lse_;                  // (group) of the same
  std::vector<float> queries_;               // dumped: (steps, layers, query heads, head_dim)
  std::vector<float> rest_;  // dumped: (steps, layers, query heads) LSE of the tokens behind the document
  int64_t document_tokens_ = 0;
  std::vector<float> logits_;
  wi::Attention attention_;
  std::map<std::string, std::map<std::pair<int32_t, int32_t>, Losses>> losses_;  // policy; layer, head
  std::map<std::string, Divergence> divergences_;
  std::unique_ptr<sample::OutputFile> out_;
};

std::string name_of(const Contestant& contestant) {
  char budget[32];
  std::snprintf(budget, sizeof budget, " %g %%", contestant.budget * 100);
  return contestant.label + budget;
}

Tracer::Tracer(const Options& options)
    : options_(options),
      host_runtime_(sample::create_runtime(1, "cpu")),
      host_model_(sample::open_model(host_runtime_, options.model)),
      template_(host_model_),
      runtime_(wi::Runtime::create({.threads = static_cast<int32_t>(options.threads)})),
      model_(wi::Model::open(options.model)),
      shape_{model_->config.layers, model_->config.kv_heads, model_->config.head_dim, wi::DType::f16},
      full_(wi::find_policy(runtime_->backend, "full")),
      reference_(runtime_->pool, shape_, 0),
      logits_(static_cast<size_t>(model_->config.vocab)) {
  if (!options.out.empty()) out_ = std::make_unique<sample::OutputFile>(options.out);
}

void Tracer::run() {
  TaskOptions tasks = options_.tasks;
  tasks.text = sample::read_file(options_.text);
  tasks.questions = static_cast<int>(options_.questions);
  const Counting counting = {
      [&](const std::string& text) { return sample::tokenize(host_model_, text, 0).size(); },
      [&](const std::string& text, size_t count) {
        std::vector<int32_t> tokens = sample::tokenize(host_model_, text, 0);
        if (tokens.size() > count) tokens.resize(count);
        return sample::detokenize(host_model_, tokens, 0);
      }};
  const Document document =
      make_document(tasks, counting, options_.kind, options_.length, static_cast<uint64_t>(options_.seed));
  if (document.conversations.empty()) throw std::runtime_error("the facts do not fit half of --length");

  // The document is never sealed under the reference: it stays in the order of its tokens.
  wi::Sequence read_document(runtime_->pool, shape_, 0);
  read(read_document, template_.opening(document.text), nullptr);
  document_tokens_ = read_document.tokens();
  std::vector<Contestant> contestants;
  std::vector<wi::Sequence> sealed;
  std::map<std::string, size_t> index_of;
  const std::vector<Variant> variants = parse_variants(options_.policies);
  for (const Variant& variant : variants)
    for (double budget : options_.budgets) {
      const wi_policy_params params = variant.with_budget(budget);
      const wi::PolicyChoice choice = wi::to_policy(&params, runtime_->backend);
      const auto [found, fresh] = index_of.emplace(variant.index_key(), sealed.size());
      if (fresh) {
        sealed.emplace_back(runtime_->pool, shape_, 0);
        runtime_->workers.run(nullptr, [&](const wi::Stream& stream) {
          const wi::SealContext context{runtime_->backend, *choice.policy, choice.params, stream, {}};
          wi::reindex(read_document, context, sealed.back());
        });
      }
      contestants.push_back(
          {variant.label, budget, choice, found->second, wi::Sequence(runtime_->pool, shape_, 0)});
    }

  int64_t asked = 0;
  for (const Conversation& conversation : document.conversations) {
    if (asked == options_.questions) break;
    reference_ = read_document;
    read(reference_, template_.first_question(conversation.front().text), &logits_);
    for (Contestant& contestant : contestants) {
      contestant.sequence = sealed[contestant.index];
      follow_up(reference_, contestant.sequence);
    }
    int32_t token = static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
    for (int64_t i = 0; i < options_.steps && !model_->tokenizer->ends_generation(token); i++)
      token = step(asked, i, token, contestants);
    asked++;
  }
  if (!options_.dump.empty()) dump(read_document);
  if (out_) out_->close();
  print();
}

// Exact attention; logits of the last token if they are wanted.
void Tracer::read(wi::Sequence& sequence, const std::vector<int32_t>& tokens, std::vector<float>* logits) {
  auto workspace = runtime_->workspace();
  runtime_->workers.run(nullptr, [&](const wi::Stream& stream) {
    const wi::Step step{runtime_->backend, stream, *model_, *workspace};
    const size_t chunk = static_cast<size_t>(wi::prefill_chunk_tokens(model_->config));
    for (size_t done = 0; done < tokens.size(); done += chunk) {
      const size_t count = std::min(chunk, tokens.size() - done);
      const bool last = logits && done + count == tokens.size();
      sequence.reserve(static_cast<int64_t>(count));
      wi::prefill_chunk(step, sequence, {tokens.data() + done, count},
                        last ? wi::PrefillLogits::last : wi::PrefillLogits::none,
                        last ? logits->data() : nullptr);
      sequence.commit(static_cast<int64_t>(count));
    }
  });
}

// Appends to `to` the tokens that `from` has beyond it.
void Tracer::follow_up(const wi::Sequence& from, wi::Sequence& to) const {
  const int64_t first = to.tokens(), count = from.tokens() - first;
  const int64_t width = int64_t{shape_.kv_heads} * shape_.head_dim;
  const size_t row = shape_.head_bytes(), dim = static_cast<size_t>(shape_.head_dim);
  std::vector<float> keys(static_cast<size_t>(count * width)), values(keys.size());
  std::vector<std::byte> stored_keys(static_cast<size_t>(count) * row), stored_values(stored_keys.size());
  to.reserve(count);
  for (int32_t layer = 0; layer < shape_.layers; layer++) {
    for (int32_t head = 0; head < shape_.kv_heads; head++) {
      from.copy_tokens(layer, head, first, count, stored_keys.data(), stored_values.data());
      for (size_t i = 0; i < static_cast<size_t>(count); i++) {
        const size_t at = i * static_cast<size_t>(width) + static_cast<size_t>(head) * dim;
        wi::cpu::from_kv(stored_keys.data() + i * row, shape_.dtype, keys.data() + at, shape_.head_dim);
        wi::cpu::from_kv(stored_values.data() + i * row, shape_.dtype, values.data() + at, shape_.head_dim);
      }
    }
    runtime_->workers.run(nullptr, [&](const wi::Stream& stream) {
      wi::AppendRoom room;
      check_kv_range(shape_.dtype,
                     wi::append(runtime_->backend, stream, to, layer, first, count, keys.data(),
                                values.data(), width, room),
                     layer);
    });
  }
  to.commit(count);
}

// A decode step with full attention (src/decode.cpp), looked at between rotation and attention of each layer;
// returns the next token.
int32_t Tracer::step(int64_t question, int64_t number, int32_t token, std::vector<Contestant>& contestants) {
  auto workspace = runtime_->workspace();
  const int64_t position = reference_.tokens();
  const int64_t width = int64_t{shape_.kv_heads} * shape_.head_dim;
  compare_distributions(token, {}, contestants);
  reference_.reserve(1);
  for (Contestant& contestant : contestants) contestant.sequence.reserve(1);
  runtime_->workers.run(nullptr, [&](const wi::Stream& stream) {
    const wi::Step step{runtime_->backend, stream, *model_, *workspace};
    wi::Workspace& work = *workspace;
    wi::StepStats stats;
    work.prepare(model_->config, 1);
    work.tokens[0] = token;
    wi::rotation_tables(step, 0, position, 1);
    wi::embed(step, 1);
    const wi::Row row{&reference_, position, full_, &full_params_, &stats};
    for (int32_t layer = 0; layer < shape_.layers; layer++) {
      const wi::LayerWeights& weights = model_->weights.layers[static_cast<size_t>(layer)];
      wi::project(step, weights, 1);
      wi::rotate(step, 1);
      check_kv_range(shape_.dtype,
                     wi::append(step.backend, stream, reference_, layer, position, 1, work.k, work.v, width,
                                work.append),
                     layer);
      for (Contestant& contestant : contestants)
        check_kv_range(contestant.sequence.shape().dtype,
                       wi::append(step.backend, stream, contestant.sequence, layer, position, 1, work.k,
                                  work.v, width, work.append),
                       layer);
      work.attention.begin({&row, 1}, model_->config.group(), nullptr);
      work.attention.open(layer, work.q, work.attended, nullptr);
      while (work.attention.next_pass()) {
        const wi::Pass pass = {*full_, work.attention.args(), stats, nullptr};
        wi::select(stream, pass);
        wi::retrieve(step.backend, stream, pass);
        wi::attend(step.backend, stream, pass);
      }
      observe(question, number, layer, step, position + 1, contestants);
      wi::project_output(step, weights, 0, 1);
      wi::feed_forward(step, weights, 0, 1);
    }
    wi::logits(step, 0, 1, logits_.data());
  });
  reference_.commit(1);
  for (Contestant& contestant : contestants) contestant.sequence.commit(1);
  compare_distributions(token, logits_, contestants);
  return static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
}

// Every contestant attends with this layer's queries; work.attended is what full attention made of them.
void Tracer::observe(int64_t question, int64_t number, int32_t layer, const wi::Step& step, int64_t end,
                     std::vector<Contestant>& contestants) {
  const size_t dim = static_cast<size_t>(shape_.head_dim);
  const size_t query_width = static_cast<size_t>(model_->config.query_heads) * dim;
  if (!options_.dump.empty()) queries_.insert(queries_.end(), step.work.q, step.work.q + query_width);
  std::vector<float> out(query_width), exact(query_width);
  std::vector<std::vector<Losses>> found(contestants.size(), std::vector<Losses>(query_width / dim));
  for (int32_t head = 0; head < shape_.kv_heads; head++) {
    true_weights(step, layer, head, end);
    for (size_t g = 0; g < group() && !options_.dump.empty(); g++)
      rest_.push_back(static_cast<float>(
          lse_[g] +
          std::log(std::accumulate(weights_[g].begin() + document_tokens_, weights_[g].end(), 0.0))));
    for (size_t c = 0; c < contestants.size(); c++) {
      Contestant& contestant = contestants[c];
      wi::StepStats stats;
      const wi::Row row{&contestant.sequence, end - 1, contestant.choice.policy, &contestant.choice.params,
                        &stats};
      attention_.begin({&row, 1}, model_->config.group(), nullptr);
      attention_.open(layer, step.work.q, out.data(), nullptr);
      while (attention_.next_pass()) {
        const wi::Pass pass = {*contestant.choice.policy, attention_.args(), stats, nullptr};
        wi::select(step.stream, pass);
        wi::retrieve(step.backend, step.stream, pass);
        wi::attend(step.backend, step.stream, pass);
        exact = out;
        wi::estimate(step.stream, pass);
        judge(attention_.args().lookups[head], found[c].data() + static_cast<size_t>(head) * group());
      }
      const auto error = [&](const std::vector<float>& ours, size_t h) {
        double difference = 0, size = 0;
        for (size_t i = h * dim; i < (h + 1) * dim; i++) {
          const double of = static_cast<double>(step.work.attended[i]);
          difference += (static_cast<double>(ours[i]) - of) * (static_cast<double>(ours[i]) - of);
          size += of * of;
        }
        return std::sqrt(difference / std::max(size, 1e-30));
      };
      for (size_t g = 0; g < group(); g++) {
        const size_t h = static_cast<size_t>(head) * group() + g;
        Losses& one = found[c][h];
        one.error = error(out, h);
        one.error_exact = error(exact, h);
        Losses& all = losses_[name_of(contestant)][{layer, static_cast<int32_t>(h)}];
        all.count++;
        all.recall += one.recall, all.coverage += one.coverage, all.budget += one.budget;
        all.clustering += one.clustering, all.ranking += one.ranking;
        all.error += one.error, all.error_exact += one.error_exact;
        if (!out_) continue;
        const Json line = {{"document", options_.kind},
                           {"length", options_.length},
                           {"seed", options_.seed},
                           {"question", question},
                           {"step", number},
                           {"layer", layer},
                           {"head", h},
                           {"policy", contestant.label},
                           {"budget", contestant.budget},
                           {"recall", one.recall},
                           {"top", options_.top},
                           {"coverage", one.coverage},
                           {"lost_budget", one.budget},
                           {"lost_clustering", one.clustering},
                           {"lost_ranking", one.ranking},
                           {"output_error", one.error},
                           {"output_error_without_estimate", one.error_exact}};
        std::fprintf(out_->get(), "%s\n", line.dump().c_str());
      }
    }
  }
}

// Softmax over all tokens that the reference sees, for each query head of a KV head.
void Tracer::true_weights(const wi::Step& step, int32_t layer, int32_t head, int64_t end) {
  const size_t dim = static_cast<size_t>(shape_.head_dim);
  const float scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim));
  std::vector<wi::KvRun> runs(static_cast<size_t>(reference_.max_steady_runs()));
  runs.resize(static_cast<size_t>(reference_.steady_runs(layer, head, end, runs.data())));
  weights_.assign(group(), {});
  lse_.clear();
  std::vector<float> keys;
  for (const wi::KvRun& run : runs) {
    keys.resize(static_cast<size_t>(run.tokens) * dim);
    wi::cpu::from_kv(run.keys, shape_.dtype, keys.data(), static_cast<int64_t>(keys.size()));
    for (size_t g = 0; g < group(); g++) {
      const float* query = step.work.q + (static_cast<size_t>(head) * group() + g) * dim;
      for (size_t t = 0; t < static_cast<size_t>(run.tokens); t++)
        weights_[g].push_back(std::inner_product(query, query + dim, keys.data() + t * dim, 0.0f) * scale);
    }
  }
  for (std::vector<float>& weights : weights_) {
    const float highest = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (float& weight : weights) sum += static_cast<double>(weight = std::exp(weight - highest));
    lse_.push_back(static_cast<double>(highest) + std::log(sum));
    for (float& weight : weights) weight = static_cast<float>(static_cast<double>(weight) / sum);
  }
}

// What a lookup retrieved, against the true weights of its positions. heads: (group)
void Tracer::judge(const wi::Lookup& lookup, Losses* heads) const {
  const size_t tokens = weights_[0].size();
  std::vector<float> both(tokens, 0.0f);  // summed over the group, which shares what is retrieved
  for (const std::vector<float>& weights : weights_)
    for (size_t t = 0; t < tokens; t++) both[t] += weights[t];
  struct Partition {
    double density;
    wi::PartitionRef ref;
    int32_t begin, end;
  };
  std::vector<Partition> partitions;
  std::vector<int32_t> indexed;
  std::vector<std::vector<int32_t>> positions;  // (segments, tokens) in the stored order
  for (int32_t s = 0, first = wi::kSinkTokens; s < lookup.segment_count;
       first += lookup.segments[s++].tokens) {
    const wi::SegmentView& segment = lookup.segments[s];
    std::vector<int32_t>& own = positions.emplace_back(static_cast<size_t>(segment.tokens));
    for (int32_t t = 0; t < segment.tokens; t++) own[static_cast<size_t>(segment.places[t])] = first + t;
    indexed.insert(indexed.end(), own.begin(), own.end());
    for (int32_t p = 0; p < segment.partitions; p++) {
      Partition one{0, {s, p}, segment.offsets[p], segment.offsets[p + 1]};
      for (int32_t t = one.begin; t < one.end; t++)
        one.density += static_cast<double>(both[static_cast<size_t>(own[static_cast<size_t>(t)])]);
      one.density /= one.end - one.begin;
      partitions.push_back(one);
    }
  }
  std::vector<bool> retrieved(tokens, false), best(tokens, false), whole(tokens, false);
  for (int32_t i = 0; i < lookup.retrieved_count; i++) {
    const wi::PartitionRef ref = lookup.retrieved[i];
    const int32_t* offsets = lookup.segments[ref.segment].offsets + ref.partition;
    const std::vector<int32_t>& own = positions[static_cast<size_t>(ref.segment)];
    for (int32_t t = offsets[0]; t < offsets[1]; t++)
      retrieved[static_cast<size_t>(own[static_cast<size_t>(t)])] = true;
  }
  std::vector<bool> is_indexed(tokens, false);
  for (int32_t position : indexed) is_indexed[static_cast<size_t>(position)] = true;
  const auto take = std::min<size_t>(indexed.size(), static_cast<size_t>(lookup.counters->retrieved_tokens));
  std::partial_sort(
      indexed.begin(), indexed.begin() + static_cast<std::ptrdiff_t>(take), indexed.end(),
      [&](int32_t a, int32_t b) { return both[static_cast<size_t>(a)] > both[static_cast<size_t>(b)]; });
  for (size_t i = 0; i < take; i++) best[static_cast<size_t>(indexed[i])] = true;
  std::sort(partitions.begin(), partitions.end(),
            [](const Partition& a, const Partition& b) { return a.density > b.density; });
  int64_t filled = 0;
  for (const Partition& one : partitions) {
    if (filled + one.end - one.begin > lookup.counters->retrieved_tokens) continue;
    filled += one.end - one.begin;
    for (int32_t t = one.begin; t < one.end; t++)
      whole[static_cast<size_t>(positions[static_cast<size_t>(one.ref.segment)][static_cast<size_t>(t)])] =
          true;
  }
  for (size_t g = 0; g < weights_.size(); g++) {
    const std::vector<float>& weights = weights_[g];
    double got = 0, of_best = 0, of_whole = 0;
    for (size_t t = 0; t < tokens; t++) {
      const double weight = static_cast<double>(weights[t]);
      if (!is_indexed[t] || retrieved[t]) got += weight;
      if (!is_indexed[t] || best[t]) of_best += weight;
      if (!is_indexed[t] || whole[t]) of_whole += weight;
    }
    std::vector<int32_t> top(indexed);
    const auto most = std::min<size_t>(top.size(), static_cast<size_t>(options_.top));
    std::partial_sort(top.begin(), top.begin() + static_cast<std::ptrdiff_t>(most), top.end(),
                      [&](int32_t a, int32_t b) {
                        return weights[static_cast<size_t>(a)] > weights[static_cast<size_t>(b)];
                      });
    size_t recalled = 0;
    for (size_t i = 0; i < most; i++) recalled += retrieved[static_cast<size_t>(top[i])];
    Losses& one = heads[g];
    one.recall = most ? static_cast<double>(recalled) / static_cast<double>(most) : 1;
    one.coverage = got;
    one.budget = 1 - of_best;
    one.clustering = of_best - of_whole;
    one.ranking = of_whole - got;
  }
}

// Called twice a step: first, with an empty reference, every contestant computes the whole step by its own
// policy on a copy; then, when the reference's logits are there, they are compared.
void Tracer::compare_distributions(int32_t token, const std::vector<float>& reference,
                                   std::vector<Contestant>& contestants) {
  static std::vector<std::vector<float>> computed;
  const size_t vocab = logits_.size();
  if (reference.empty()) {
    computed.assign(contestants.size(), std::vector<float>(vocab));
    auto workspace = runtime_->workspace();
    for (size_t c = 0; c < contestants.size(); c++) {
      wi::Sequence copy = contestants[c].sequence;
      copy.reserve(1);
      wi::StepStats stats, times;
      wi::Row row{&copy, copy.tokens(), contestants[c].choice.policy, &contestants[c].choice.params, &stats};
      row.token = token;
      row.logits = computed[c].data();
      runtime_->workers.run(nullptr, [&](const wi::Stream& stream) {
        wi::decode_step(wi::Step{runtime_->backend, stream, *model_, *workspace}, {&row, 1}, times);
      });
    }
    return;
  }
  const auto log_sum = [&](const std::vector<float>& logits) {
    const double highest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
    double sum = 0;
    for (float x : logits) sum += std::exp(static_cast<double>(x) - highest);
    return highest + std::log(sum);
  };
  const double all = log_sum(reference);
  for (size_t c = 0; c < contestants.size(); c++) {
    const std::vector<float>& ours = computed[c];
    const double ours_all = log_sum(ours);
    double kl = 0;
    for (size_t i = 0; i < vocab; i++) {
      const double p = static_cast<double>(reference[i]) - all;
      kl += std::exp(p) * (p - (static_cast<double>(ours[i]) - ours_all));
    }
    Divergence& total = divergences_[name_of(contestants[c])];
    total.count++;
    total.kl += kl;
    total.same_token += std::max_element(ours.begin(), ours.end()) - ours.begin() ==
                        std::max_element(reference.begin(), reference.end()) - reference.begin();
    if (!out_) continue;
    const Json line = {{"document", options_.kind},       {"length", options_.length},
                       {"seed", options_.seed},           {"policy", contestants[c].label},
                       {"budget", contestants[c].budget}, {"kl", kl}};
    std::fprintf(out_->get(), "%s\n", line.dump().c_str());
  }
}

// The document's keys and values in the order of its tokens, and the queries of all steps.
void Tracer::dump(const wi::Sequence& sequence) const {
  std::filesystem::create_directories(options_.dump);
  const auto write = [&](const std::string& name, const std::vector<float>& floats) {
    sample::write_file(options_.dump + "/" + name,
                       {reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float)});
  };
  const size_t dim = static_cast<size_t>(shape_.head_dim);
  std::vector<wi::KvRun> runs(static_cast<size_t>(sequence.max_steady_runs()));
  for (int32_t layer = 0; layer < shape_.layers; layer++) {
    std::vector<float> keys, values;
    for (int32_t head = 0; head < shape_.kv_heads; head++) {
      const int32_t count = sequence.steady_runs(layer, head, sequence.tokens(), runs.data());
      for (int32_t r = 0; r < count; r++) {
        const size_t floats = static_cast<size_t>(runs[static_cast<size_t>(r)].tokens) * dim;
        keys.resize(keys.size() + floats), values.resize(values.size() + floats);
        wi::cpu::from_kv(runs[static_cast<size_t>(r)].keys, shape_.dtype, keys.data() + keys.size() - floats,
                         static_cast<int64_t>(floats));
        wi::cpu::from_kv(runs[static_cast<size_t>(r)].values, shape_.dtype,
                         values.data() + values.size() - floats, static_cast<int64_t>(floats));
      }
    }
    write("k" + std::to_string(layer) + ".f32", keys);
    write("v" + std::to_string(layer) + ".f32", values);
  }
  write("q.f32", queries_);
  write("rest.f32", rest_);
  const int64_t tokens = sequence.tokens();
  const size_t per_step = static_cast<size_t>(shape_.layers * model_->config.query_heads) * dim;
  const Json meta = {
      {"q", {queries_.size() / per_step, shape_.layers, model_->config.query_heads, shape_.head_dim}},
      {"rest, LSE of the tokens behind the document",
       {queries_.size() / per_step, shape_.layers, model_->config.query_heads}},
      {"k and v of a layer", {shape_.kv_heads, tokens, shape_.head_dim}}};
  sample::write_file(options_.dump + "/meta.json", meta.dump(1) + "\n");
}

void Tracer::print() const {
  std::printf("%-32s %5s %5s %8s %9s %9s %11s %9s %9s %9s\n", "policy and budget", "layer", "head", "recall",
              "coverage", "-budget", "-clustering", "-ranking", "error", "no est.");
  for (const auto& [name, heads] : losses_) {
    Losses all;
    const auto line = [&name = name](const char* layer, const char* head, const Losses& sum) {
      const double n = static_cast<double>(std::max<int64_t>(sum.count, 1));
      std::printf("%-32s %5s %5s %8.4f %9.4f %9.4f %11.4f %9.4f %9.4f %9.4f\n", name.c_str(), layer, head,
                  sum.recall / n, sum.coverage / n, sum.budget / n, sum.clustering / n, sum.ranking / n,
                  sum.error / n, sum.error_exact / n);
    };
    for (const auto& [place, sum] : heads) {
      line(std::to_string(place.first).c_str(), std::to_string(place.second).c_str(), sum);
      all.count += sum.count, all.recall += sum.recall, all.coverage += sum.coverage,
          all.budget += sum.budget;
      all.clustering += sum.clustering, all.ranking += sum.ranking, all.error += sum.error;
      all.error_exact += sum.error_exact;
    }
    line("all", "all", all);
    const Divergence& divergence = divergences_.at(name);
    std::printf("%-32s KL %.5f, same next token %lld of %lld\n", name.c_str(),
                divergence.kl / static_cast<double>(std::max<int64_t>(divergence.count, 1)),
                static_cast<long long>(divergence.same_token), static_cast<long long>(divergence.count));
  }
}

bool parse_options(int argument_count, char** arguments, Options& options) {
  sample::CommandLine line(kUsage);
  line.text("--model", &options.model)
      .text("--text", &options.text)
      .integer("--from", &options.tasks.first_byte, 0)
      .text("--policies", &options.policies)
      .each("--budgets", [&](const std::string& list) { options.budgets = parse_budgets(list); })
      .text("--document", &options.kind)
      .integer("--length", &options.length, 256)
      .integer("--seed", &options.seed, 0)
      .integer("--questions", &options.questions, 1)
      .integer("--steps", &options.steps, 1)
      .integer("--top", &options.top, 1)
      .text("--out", &options.out)
      .text("--dump", &options.dump)
      .integer("--threads", &options.threads, 0);
  if (!line.parse(argument_count, arguments)) return false;
  if (options.model.empty() || options.text.empty())
    throw std::runtime_error("--model and --text are needed (--help lists all options)");
  return true;
}

}  // namespace

int main(int argument_count, char** arguments) {
  return sample::run_main("wi_trace", [&] {
    Options options;
    if (parse_options(argument_count, arguments, options)) Tracer(options).run();
  });
}
