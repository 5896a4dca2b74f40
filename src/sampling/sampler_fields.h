// A sampler as bytes, for a session's file: all its parameters but the host's callback, and where its random
// numbers are.
#pragma once

#include <string>
#include <string_view>

#include "src/sampling/sampler.h"

namespace wi {

std::string sampler_fields(const Sampler& sampler);

// Trusts nothing: WI_E_FORMAT for what no sampler can be, WI_E_UNSUPPORTED for another version's, since what
// changes tokens must not be left out.
Sampler sampler_of(std::string_view fields, int32_t vocab);

}  // namespace wi
