#include "variants.h"

#include <sstream>
#include <stdexcept>

namespace accuracy {
namespace {

using sample::parse_integer;
using sample::parse_number;

void set_parameter(const std::string& key, const std::string& value, wi_policy_params* params) {
  const auto whole = [&](int32_t* field) {
    *field = static_cast<int32_t>(parse_integer(key, value, INT32_MIN, INT32_MAX));
  };
  const auto real = [&](float* field) { *field = static_cast<float>(parse_number(key, value, -1, 1)); };
  if (key == "segment_tokens") return whole(&params->segment_tokens);
  if (key == "decode_segment_tokens") return whole(&params->decode_segment_tokens);
  if (key == "tokens_per_centroid") return whole(&params->tokens_per_centroid);
  if (key == "kmeans_iterations") return whole(&params->kmeans_iterations);
  if (key == "local_window") return whole(&params->local_window);
  if (key == "repeats") return whole(&params->repeats);
  if (key == "estimation") return real(&params->estimation);
  if (key == "target_mass") return real(&params->target_mass);
  throw std::runtime_error("a policy has no parameter \"" + key + "\"");
}

}  // namespace

Variant parse_variant(const std::string& text) {
  Variant variant;
  variant.label = text;
  const size_t colon = text.find(':');
  variant.name = text.substr(0, colon);
  if (colon == std::string::npos) return variant;
  std::istringstream pairs(text.substr(colon + 1));
  for (std::string pair; std::getline(pairs, pair, ',');) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos)
      throw std::runtime_error("\"" + pair + "\" of " + text + " is no key=value");
    set_parameter(pair.substr(0, equals), pair.substr(equals + 1), &variant.params);
  }
  return variant;
}

std::vector<Variant> parse_variants(const std::string& text) {
  std::string blanks = text;
  for (char& c : blanks)
    if (c == ';') c = ' ';
  std::vector<Variant> variants;
  std::istringstream words(blanks);
  for (std::string word; words >> word;) variants.push_back(parse_variant(word));
  return variants;
}

wi_policy_params Variant::with_budget(double budget) const {
  wi_policy_params filled = params;
  filled.name = name.c_str();
  filled.budget = static_cast<float>(budget);
  return filled;
}

std::string Variant::index_key() const {
  std::string key = name;
  for (int32_t value : {params.segment_tokens, params.decode_segment_tokens, params.tokens_per_centroid,
                        params.kmeans_iterations, params.local_window})
    key += " " + std::to_string(value);
  return key;
}

std::vector<double> parse_budgets(const std::string& list) {
  std::vector<double> budgets;
  for (const std::string& share : sample::split_at_commas(list))
    budgets.push_back(sample::parse_number("--budgets", share, 1e-9, 1));
  return budgets;
}

}  // namespace accuracy
