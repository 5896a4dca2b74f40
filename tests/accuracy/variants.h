// A policy to compare, written as its name and, if wanted, its parameters: "wave", "wave:estimation=-1",
// "wave:target_mass=0.95,tokens_per_centroid=8". Keys are the fields of wi_policy_params.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sample.h"

namespace accuracy {

struct Variant {
  std::string label;  // as written
  std::string name;   // of the policy
  wi_policy_params params = sample::sized<wi_policy_params>();

  wi_policy_params with_budget(double budget) const;  // points into this
  // Variants with the same text here share an index.
  std::string index_key() const;
};

Variant parse_variant(const std::string& text);
// Separated by blanks or semicolons.
std::vector<Variant> parse_variants(const std::string& text);

// Shares of the indexed tokens, between commas.
std::vector<double> parse_budgets(const std::string& list);

}  // namespace accuracy
