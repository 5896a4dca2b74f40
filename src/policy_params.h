// A policy's parameters as a whole: their ranges, whoever names them (a host or a file), and which of them
// shape the index.
#pragma once

#include "kernels/policy.h"
#include "src/error.h"

namespace wi {

// Throws `code` naming the first field out of its range as prefix + field.
void check_policy_params(const PolicyParams& params, wi_status code, const char* prefix);

// True if two parameter sets build the same index from the same keys.
bool same_index(const PolicyParams& a, const PolicyParams& b);

}  // namespace wi
