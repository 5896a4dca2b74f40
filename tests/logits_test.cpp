// The whole against other people's programs: logits of tiny models of every architecture and variant equal
// those that Hugging Face transformers computed (tests/fixtures/README.md), by three ways through the
// library: one prefill, token by token through the decode step, and the wave policy with its whole budget.
// Files that llama.cpp quantised give the next-token distributions that llama.cpp computed.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

#include "src/session.h"
#include "tests/support/runtime.h"
#include "tests/test.h"

using namespace wi;
using test::runtime;

namespace {

const std::string kFolder = WI_TEST_DATA "/fixtures/models/";

struct Case {
  std::string model, logits;
  double
      tolerance;  // of the case's number type: 2e-4 for f32, 2e-2 for f16 and bf16 (tests/fixtures/README.md)
};

std::vector<Case> cases() {
  std::ifstream file(kFolder + "cases.txt");
  std::vector<Case> list;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    Case entry;
    words >> entry.model >> entry.logits >> entry.tolerance;
    assert_false(words.fail());
    list.push_back(entry);
  }
  assert_true(list.size() >= 16);
  return list;
}

std::vector<int32_t> prompt() {
  std::ifstream file(kFolder + "tokens.txt");
  std::vector<int32_t> ids;
  for (int32_t id; file >> id;) ids.push_back(id);
  assert_int_equal(ids.size(), 40);
  return ids;
}

std::vector<float> floats(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  assert_true(!values.empty());
  return values;
}

double worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  assert_int_equal(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - double{b[i]});
    worst = difference >= worst ? difference : worst;
    if (std::isnan(difference)) return INFINITY;
  }
  return worst;
}

std::shared_ptr<Session> session(const std::shared_ptr<const Model>& model, const char* policy,
                                 DType kv = DType::f32) {
  SessionParams params;
  params.policy = find_policy(runtime()->backend, policy);
  params.kv = kv;
  params.prefix_reuse = false;
  return Session::create(runtime(), model, params);
}

// Tolerances that a case's own is raised to, by its weights' type.
struct AtLeast {
  double f32 = 0, narrower = 0;
};

// Calls way(model, ids) -> logits (tokens, vocab) for every case and compares.
template <class Way>
void every_case(Precision precision, AtLeast at_least, Way&& way) {
  const std::vector<int32_t> ids = prompt();
  for (const Case& entry : cases()) {
    const std::shared_ptr<const Model> model = Model::open(kFolder + entry.model, {}, precision);
    const double tolerance =
        std::max(entry.tolerance, entry.tolerance > 2e-4 ? at_least.narrower : at_least.f32);
    const double worst = worst_difference(way(model, ids), floats(kFolder + entry.logits));
    std::printf("%-22s max abs difference %.2e (allowed %.0e)\n", entry.model.c_str(), worst, tolerance);
    assert_true(worst <= tolerance);
  }
}

template <DType kKv>
std::vector<float> prefill(const std::shared_ptr<const Model>& model, const std::vector<int32_t>& ids) {
  std::vector<float> logits(ids.size() * static_cast<size_t>(model->config.vocab));
  PrefillParams params;
  params.logits = logits;
  session(model, "full", kKv)->prefill(ids, params, nullptr);
  return logits;
}

void prefill_gives_the_references_logits(void**) { every_case(Precision::f32, {}, prefill<DType::f32>); }

// Activations and weights rounded to bf16 (8 bits) leave up to 15 % of the logits' standard deviation at the
// worst of 10,880 values: torch, told to round the same operands, differs from itself by 0.068 on llama-f16.
constexpr double kFast = 0.1;

void fast_prefill_stays_within_bf16_rounding(void**) {
  every_case(Precision::fast, {.narrower = kFast}, prefill<DType::f32>);
}

// With the cache's default type too, whose own rounding costs up to 5e-3: hence not 2e-4 for f32 weights.
void high_prefill_gives_the_references_logits(void**) {
  every_case(Precision::high, {}, prefill<DType::f32>);
  every_case(Precision::high, {.f32 = 2e-2}, prefill<DType::f16>);
}

void decode_steps_give_the_references_logits(void**) {
  every_case(Precision::f32, {},
             [](const std::shared_ptr<const Model>& model, const std::vector<int32_t>& ids) {
               auto steps = session(model, "full");
               std::vector<float> logits;
               for (int32_t id : ids) {
                 steps->prefill({&id, 1}, {}, nullptr);
                 const auto row = steps->logits(nullptr);
                 logits.insert(logits.end(), row.begin(), row.end());
               }
               return logits;
             });
}

// The others read a token at a time as a chunk of one; these go through the step that an answer is written by.
void accepted_tokens_give_the_references_logits(void**) {
  for (const char* policy : {"full", "wave"}) {
    every_case(Precision::f32, {},
               [&](const std::shared_ptr<const Model>& model, const std::vector<int32_t>& ids) {
                 auto steps = session(model, policy);
                 std::vector<float> logits;
                 for (size_t i = 0; i < ids.size(); ++i) {
                   if (i == 0)
                     steps->prefill({ids.data(), 1}, {}, nullptr);
                   else
                     steps->accept(ids[i], nullptr);
                   const auto row = steps->logits(nullptr);
                   logits.insert(logits.end(), row.begin(), row.end());
                 }
                 return logits;
               });
  }
}

// 40 tokens are too few to be sealed, so this is the steady zone's share of the claim; session_test has the
// rest.
void wave_gives_the_references_logits(void**) {
  every_case(Precision::f32, {},
             [](const std::shared_ptr<const Model>& model, const std::vector<int32_t>& ids) {
               std::vector<float> logits(ids.size() * static_cast<size_t>(model->config.vocab));
               PrefillParams params;
               params.logits = logits;
               params.chunk_tokens = 7;
               session(model, "wave")->prefill(ids, params, nullptr);
               return logits;
             });
}

// Mean over the rows of KL(p || q), from logits (tokens, vocab); in nats.
double divergence(const std::vector<float>& p, const std::vector<float>& q, size_t vocab) {
  assert_int_equal(p.size(), q.size());
  const auto log_sum = [&](const float* row) {
    const double most = *std::max_element(row, row + vocab);
    double sum = 0;
    for (size_t i = 0; i < vocab; ++i) sum += std::exp(double{row[i]} - most);
    return most + std::log(sum);
  };
  double total = 0;
  for (size_t row = 0; row < p.size(); row += vocab) {
    const double p_sum = log_sum(&p[row]), q_sum = log_sum(&q[row]);
    for (size_t i = row; i < row + vocab; ++i) {
      const double log_p = double{p[i]} - p_sum;
      total += std::exp(log_p) * (log_p - (double{q[i]} - q_sum));
    }
  }
  return total / static_cast<double>(p.size() / vocab);
}

constexpr const char* kPrecisions[] = {"fast", "f32", "high", "int8"};

// llama.cpp rounds activations to 8 bits before it multiplies by quantised weights and this library only under
// int8, and then not to the same ones: up to 2e-4 in these files. In tests/correctness, with larger models, that is
// 7.4e-4 at most and 1.1e-3 for one of q2_K (docs/results/correctness.md), where rounding the weights costs 1e-3 (q6_K)
// to 2e-1 (q2_K). Hence 1e-3.
void files_that_llama_cpp_quantised_give_its_distributions(void**) {
  const std::string folder = WI_TEST_DATA "/fixtures/llama_cpp/";
  const std::vector<int32_t> ids = prompt();
  std::ifstream names(folder + "cases.txt");
  int count = 0;
  for (std::string name; names >> name; ++count) {
    const std::vector<float> expected = floats(folder + name + ".logits.f32");
    std::vector<float> in_f32;
    for (Precision precision : {Precision::f32, Precision::high, Precision::fast, Precision::int8}) {
      const std::shared_ptr<const Model> model = Model::open(folder + name + ".gguf", {}, precision);
      const auto vocab = static_cast<size_t>(model->config.vocab);
      std::vector<float> prefilled(ids.size() * vocab), decoded;
      PrefillParams params;
      params.logits = prefilled;
      session(model, "full")->prefill(ids, params, nullptr);
      auto steps = session(model, "full");
      for (int32_t id : ids) {
        steps->prefill({&id, 1}, {}, nullptr);
        const auto row = steps->logits(nullptr);
        decoded.insert(decoded.end(), row.begin(), row.end());
      }
      const double at_once = divergence(expected, prefilled, vocab),
                   by_steps = divergence(expected, decoded, vocab);
      std::printf("%-14s %-4s KL %.1e at once, %.1e by steps\n", name.c_str(),
                  kPrecisions[static_cast<int>(precision)], at_once, by_steps);
      assert_true(at_once >= 0 && at_once <= 1e-3);
      assert_true(by_steps >= 0 && by_steps <= 1e-3);
      // Attention of a chunk is not that of a step; products are the same bits.
      if (precision == Precision::f32) in_f32 = prefilled;
      std::printf("%-14s %-4s KL %.1e from f32\n", name.c_str(), kPrecisions[static_cast<int>(precision)],
                  divergence(in_f32, prefilled, vocab));
    }
  }
  assert_int_equal(count, 4);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(prefill_gives_the_references_logits),
      cmocka_unit_test(fast_prefill_stays_within_bf16_rounding),
      cmocka_unit_test(high_prefill_gives_the_references_logits),
      cmocka_unit_test(decode_steps_give_the_references_logits),
      cmocka_unit_test(accepted_tokens_give_the_references_logits),
      cmocka_unit_test(wave_gives_the_references_logits),
      cmocka_unit_test(files_that_llama_cpp_quantised_give_its_distributions),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
