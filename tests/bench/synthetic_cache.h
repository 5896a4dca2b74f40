// Keys and values of a synthetic cache, so that a million tokens are there in a minute: for every layer and
// KV head a fixed mixture with clusters of uneven size, a few heavy hitters, drift along the document and a
// spread of its own. A function of (seed, layer, position) alone.
#pragma once

#include <cstdint>
#include <functional>

#include "src/session.h"

namespace wi::bench {

Session::Fill synthetic_cache(const ModelConfig& config, uint64_t seed);

}  // namespace wi::bench
