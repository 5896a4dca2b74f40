// What the two readers of hyper-parameters share: how the fields must relate, and the rotary frequencies with
// their scalings, as Hugging Face transformers computes them (modeling_rope_utils.py), in f64.
#include "src/model/config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/types.h"
#include "src/error.h"

namespace wi {
namespace {

void scale_llama3(const RopeScaling& scaling, std::vector<double>* frequency);
void scale_yarn(const ModelConfig& config, RopeFrequencies* rope);

}  // namespace

RopeFrequencies rope_frequencies(const ModelConfig& config, const float* factors) {
  RopeFrequencies rope;
  rope.frequency.resize(static_cast<size_t>(config.rotary / 2));
  for (size_t i = 0; i < rope.frequency.size(); ++i) {
    rope.frequency[i] = std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / config.rotary);
    if (factors) rope.frequency[i] /= static_cast<double>(factors[i]);
  }
  switch (config.rope.kind) {
    case RopeScaling::Kind::none:
      break;
    case RopeScaling::Kind::linear:
      for (double& frequency : rope.frequency) frequency /= config.rope.factor;
      break;
    case RopeScaling::Kind::llama3:
      scale_llama3(config.rope, &rope.frequency);
      break;
    case RopeScaling::Kind::yarn:
      scale_yarn(config, &rope);
      break;
  }
  return rope;
}

void check_config(const ModelConfig& config, const std::string& file) {
  check(config.query_heads % config.kv_heads == 0, WI_E_FORMAT, file, ": ", config.query_heads,
        " query heads are no multiple of ", config.kv_heads, " KV heads");
  check(config.rotary >= 2 && config.rotary % 2 == 0 && config.rotary <= config.head_dim, WI_E_FORMAT, file,
        ": ", config.rotary, " rotated dimensions, must be even and at most the head's ", config.head_dim);
  check(config.head_dim % kHeadDimStep == 0, WI_E_UNSUPPORTED, file, ": a head has ", config.head_dim,
        " dimensions, must be a multiple of ", kHeadDimStep);
  check(config.rms_epsilon > 0 && config.rms_epsilon < 1, WI_E_FORMAT, file, ": RMS epsilon is ",
        config.rms_epsilon, ", must be in (0, 1)");
  check(config.rope_theta > 1 && config.rope_theta < 1e30, WI_E_FORMAT, file, ": RoPE base is ",
        config.rope_theta, ", must be in (1, 1e30)");
  const RopeScaling& rope = config.rope;
  if (rope.kind == RopeScaling::Kind::none) return;
  check(rope.factor >= 1e-3 && rope.factor <= 1e6, WI_E_FORMAT, file, ": RoPE scaling factor is ",
        rope.factor, ", must be in [0.001, 1e6]");
  if (rope.kind == RopeScaling::Kind::linear) return;
  check(rope.original_positions >= 1 && rope.original_positions <= static_cast<double>(limits::kPositions),
        WI_E_FORMAT, file, ": RoPE scaling's original positions are ", rope.original_positions,
        ", must be positive");
  check(rope.low_frequency > 0 && rope.high_frequency > rope.low_frequency && rope.high_frequency <= 1e6,
        WI_E_FORMAT, file, ": RoPE scaling's low and high frequency factors are ", rope.low_frequency,
        " and ", rope.high_frequency, ", must be positive and rising");
  check(rope.beta_slow > 0 && rope.beta_fast > rope.beta_slow && rope.beta_fast <= 1e6, WI_E_FORMAT, file,
        ": RoPE scaling's beta_slow and beta_fast are ", rope.beta_slow, " and ", rope.beta_fast,
        ", must be positive and rising");
  check(rope.attention_factor >= 0 && rope.attention_factor <= 1e3, WI_E_FORMAT, file,
        ": RoPE scaling's attention factor is ", rope.attention_factor, ", must be in [0, 1000]");
}

void limit_tokens(ModelConfig* config, int64_t most, const std::string& beyond) {
  if (config->most_tokens && config->most_tokens <= most) return;
  config->most_tokens = most;
  config->beyond_most = beyond;
}

void set_windows(ModelConfig* config, const std::vector<int64_t>& stated, const std::string& field) {
  config->windows.clear();
  for (int64_t window : stated) {
    const bool shorter = window < std::min<int64_t>(config->max_positions, INT32_MAX);
    config->windows.push_back(shorter ? static_cast<int32_t>(window) : 0);
    if (!shorter) limit_tokens(config, window, concat(field, " is ", window));
  }
  if (std::all_of(config->windows.begin(), config->windows.end(), [](int32_t window) { return window == 0; }))
    config->windows.clear();
}

namespace {

// Short wavelengths stay, long ones are stretched by the factor, those between are blended.
void scale_llama3(const RopeScaling& scaling, std::vector<double>* frequencies) {
  for (double& frequency : *frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    const double turns = scaling.original_positions / wavelength;  // within the original context
    if (turns > scaling.high_frequency) continue;
    if (turns < scaling.low_frequency) {
      frequency /= scaling.factor;
    } else {
      const double keep = (turns - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency);
      frequency = (1 - keep) * frequency / scaling.factor + keep * frequency;
    }
  }
}

// YaRN (Peng et al. 2023): a ramp over the pairs between beta_fast and beta_slow turns, and a magnitude.
void scale_yarn(const ModelConfig& config, RopeFrequencies* rope) {
  const RopeScaling& scaling = config.rope;
  auto pair_with_turns = [&](double turns) {
    return config.rotary * std::log(scaling.original_positions / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(config.rope_theta));
  };
  double low = pair_with_turns(scaling.beta_fast), high = pair_with_turns(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, config.rotary - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < rope->frequency.size(); ++i) {
    const double stretch = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    rope->frequency[i] *= (1 - stretch) + stretch / scaling.factor;
  }
  const double published = scaling.factor > 1 ? 0.1 * std::log(scaling.factor) + 1 : 1;
  rope->magnitude = scaling.attention_factor > 0 ? scaling.attention_factor : published;
}

}  // namespace
}  // namespace wi
