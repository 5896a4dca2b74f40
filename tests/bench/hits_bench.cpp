// Hit ratio of the fast tier over its size, on what a real model's decode steps wanted: the managers of
// src/buffer against Belady's optimum, which knows the future. Select is traced while everything is in memory;
// then each cache is played the trace. One JSON object per line; tests/bench/tiers draws them.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

#include "src/buffer/page_cache.h"
#include "src/runtime.h"
#include "src/session.h"
#include "tests/bench/help.h"

using namespace wi;

namespace {

constexpr const char* kUsage =
    "hits_bench: --model FILE --document FILE [--context N] [--steps N] [--trace FILE]\n"
    "Traces which clusters `wave` retrieves in each decode step, then plays that to caches of 1 to 50 % of "
    "the\n"
    "sealed keys and values: exact LRU, recency buckets, and Belady's optimum.\n"
    "--trace: writes the trace, a step a line: cluster and pages, cluster and pages, …\n"
    "Example: hits_bench --model samples/model/needle-f16.gguf --document book.txt --context 32768\n";

struct Options {
  std::string model, document, trace;
  int64_t context = 32768, steps = 400;
};

// A cluster of one (segment, layer, KV head) and its pages.
struct Want {
  int32_t cluster;
  int32_t pages;
};
struct Trace {
  std::vector<std::vector<Want>> steps;
  std::unordered_map<const int32_t*, int32_t> numbers;  // by where its offset lies, which nothing else has
  std::mutex mutex;                                     // of the step that is being traced
  const Policy* policy = nullptr;

  void note(const LookupArgs& args) {
    std::lock_guard lock(mutex);
    for (int32_t i = 0; i < args.count; ++i) {
      const Lookup& lookup = args.lookups[i];
      for (int32_t r = 0; r < lookup.retrieved_count; ++r) {
        const PartitionRef ref = lookup.retrieved[r];
        const int32_t* const at = lookup.segments[ref.segment].offsets + ref.partition;
        const auto number = numbers.try_emplace(at, static_cast<int32_t>(numbers.size())).first->second;
        steps.back().push_back({number, frames_of(at[1] - at[0])});
      }
    }
  }
};
Trace trace;

void traced_select(const Stream& stream, const LookupArgs& args) {
  trace.policy->select(stream, args);
  trace.note(args);
}

struct Hits {
  int64_t hits = 0, wanted = 0, missed_pages = 0;
};

// As the page cache does it: a step's misses come in and stay, what goes was not used in this step.
Hits play(std::unique_ptr<Replacement> manager, int64_t capacity, size_t warm_up) {
  Hits hits;
  std::vector<char> held(trace.numbers.size());
  std::vector<int32_t> out, used;
  for (size_t step = 0; step < trace.steps.size(); ++step) {
    int64_t room = 0, kept = 0;
    used.clear();
    for (const Want& want : trace.steps[step]) {
      if (held[static_cast<size_t>(want.cluster)]) {
        used.push_back(want.cluster);
        kept += want.pages;
        if (step >= warm_up) ++hits.hits;
      } else {
        room += want.pages;
      }
    }
    manager->use(used, step);
    if (step >= warm_up) {
      hits.wanted += static_cast<int64_t>(trace.steps[step].size());
      hits.missed_pages += room;
    }
    const int64_t too_many = std::min(manager->pages() + room - capacity, manager->pages() - kept);
    out.clear();
    if (too_many > 0) manager->evict(too_many, out);
    for (int32_t gone : out) held[static_cast<size_t>(gone)] = 0;
    for (const Want& want : trace.steps[step]) {
      char& there = held[static_cast<size_t>(want.cluster)];
      if (there || manager->pages() + want.pages > capacity) continue;
      manager->admit(want.cluster, want.pages, step);
      there = 1;
    }
  }
  return hits;
}

// What is wanted again last goes first, the newcomer itself if that is it. Clusters have several sizes, for
// which the true optimum is a knapsack; this is its relaxation page by page.
Hits belady(int64_t capacity, size_t warm_up) {
  Hits hits;
  const size_t clusters = trace.numbers.size();
  constexpr auto kNever = std::numeric_limits<uint32_t>::max();
  std::vector<std::vector<uint32_t>> next(trace.steps.size());  // when each want's cluster is wanted again
  std::vector<uint32_t> seen(clusters, kNever);
  for (size_t step = trace.steps.size(); step-- > 0;) {
    next[step].resize(trace.steps[step].size());
    for (size_t i = 0; i < trace.steps[step].size(); ++i) {
      uint32_t& at = seen[static_cast<size_t>(trace.steps[step][i].cluster)];
      next[step][i] = at;
      at = static_cast<uint32_t>(step);
    }
  }
  std::set<std::pair<uint32_t, int32_t>> held;  // wanted again at, cluster
  std::vector<int32_t> pages(clusters);         // of those held
  int64_t all = 0;
  for (size_t step = 0; step < trace.steps.size(); ++step) {
    for (size_t i = 0; i < trace.steps[step].size(); ++i) {
      const Want want = trace.steps[step][i];
      int32_t& size = pages[static_cast<size_t>(want.cluster)];
      const bool counts = step >= warm_up;
      if (counts) ++hits.wanted;
      if (size) {
        held.erase({static_cast<uint32_t>(step), want.cluster});
        if (counts) ++hits.hits;
      } else {
        if (counts) hits.missed_pages += want.pages;
        size = want.pages;
        all += size;
      }
      held.insert({next[step][i], want.cluster});
    }
    while (!held.empty() && (all > capacity || held.rbegin()->first == kNever)) {
      int32_t& size = pages[static_cast<size_t>(held.rbegin()->second)];
      all -= size;
      size = 0;
      held.erase(std::prev(held.end()));
    }
  }
  return hits;
}

Options parse(int count, char** words) {
  answer_help(count, words, kUsage);
  Options options;
  for (int i = 1; i < count; i += 2) {
    const std::string name = words[i], value = i + 1 < count ? words[i + 1] : "";
    if (name == "--model")
      options.model = value;
    else if (name == "--document")
      options.document = value;
    else if (name == "--trace")
      options.trace = value;
    else if (name == "--context")
      options.context = std::stoll(value);
    else if (name == "--steps")
      options.steps = std::stoll(value);
    else
      std::exit((std::cerr << "hits_bench: " << name << "?\n" << kUsage, 2));
  }
  if (options.model.empty() || options.document.empty()) std::exit((std::cerr << kUsage, 2));
  return options;
}

void run(const Options& options) {
  Backend backend = cpu_backend();
  trace.policy = find_policy(cpu_backend(), "wave");
  std::vector<Policy> policies(backend.policies, backend.policies + backend.policy_count);
  for (Policy& policy : policies)
    if (policy.name == std::string("wave")) policy.select = traced_select;
  backend.policies = policies.data();
  RuntimeParams params;
  params.backend = &backend;
  const auto runtime = Runtime::create(params);
  const auto model = Model::open(options.model, {}, Precision::fast, nullptr);

  std::ifstream file(options.document, std::ios::binary);
  std::vector<int32_t> ids =
      model->tokenizer->encode(std::string{std::istreambuf_iterator<char>(file), {}}, true, false);
  check(static_cast<int64_t>(ids.size()) >= options.context, WI_E_ARGUMENT, options.document, " has ",
        ids.size(), " tokens");
  ids.resize(static_cast<size_t>(options.context));
  SessionParams session_params;
  session_params.policy = find_policy(backend, "wave");
  session_params.prefix_reuse = false;
  const auto session = Session::create(runtime, model, session_params);
  trace.steps.emplace_back();
  session->prefill(ids, {}, nullptr);
  trace.steps.clear();
  trace.numbers.clear();
  Session* const one = session.get();
  for (int64_t i = 0; i < options.steps; ++i) {
    trace.steps.emplace_back();
    Event event;
    Session::decode_batch({&one, 1}, nullptr, &event);
  }
  if (!options.trace.empty()) {
    std::ofstream out(options.trace);
    for (const auto& step : trace.steps) {
      for (const Want& want : step) out << want.cluster << ' ' << want.pages << ' ';
      out << '\n';
    }
  }

  // What is sealed is all but some hundred tokens.
  const int64_t all_pages = options.context * model->config.layers * model->config.kv_heads / kFrameTokens;
  const size_t warm_up = trace.steps.size() / 4;
  const auto counted = static_cast<int64_t>(trace.steps.size() - warm_up);
  const auto clusters = static_cast<int32_t>(trace.numbers.size());
  for (double share : {0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5}) {
    const auto capacity = static_cast<int64_t>(share * static_cast<double>(all_pages));
    const auto print = [&](const char* manager, const Hits& hits) {
      std::cout << "{\"bench\":\"hits\",\"context\":" << options.context << ",\"share\":" << share
                << ",\"manager\":\"" << manager
                << "\",\"hit_ratio\":" << static_cast<double>(hits.hits) / static_cast<double>(hits.wanted)
                << ",\"clusters_per_step\":" << hits.wanted / counted
                << ",\"misses_per_step\":" << (hits.wanted - hits.hits) / counted
                << ",\"missed_pages_per_step\":" << hits.missed_pages / counted << "}" << std::endl;
    };
    print("lru", play(make_lru(clusters), capacity, warm_up));
    print("bucketed", play(make_bucketed(clusters), capacity, warm_up));
    print("belady", belady(capacity, warm_up));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "hits_bench: " << error.what() << '\n';
    return 1;
  }
}
