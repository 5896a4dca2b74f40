#include "src/sampling/sampler_fields.h"

#include <bit>

namespace wi {
namespace {

constexpr uint32_t kVersion = 1;

// Little-endian: version u32; temperature, top_p, min_p, repetition_penalty f32; top_k, repetition_window,
// top_logprobs i32; seed, state u64; number of biases u32, then token i32 and bias f32 of each; number of
// stop strings u32, then bytes u32 and the bytes of each.
class Writer {
 public:
  void number(uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) fields.push_back(static_cast<char>(value >> 8 * i));
  }
  void u32(size_t value) { number(value, 4); }
  void i32(int32_t value) { number(static_cast<uint32_t>(value), 4); }
  void f32(float value) { number(std::bit_cast<uint32_t>(value), 4); }
  std::string fields;
};

class Reader {
 public:
  explicit Reader(std::string_view fields) : left(fields) {}
  std::string_view bytes(size_t count) {
    check(count <= left.size(), WI_E_FORMAT, "the file's sampler ends ", count - left.size(), " bytes early");
    const std::string_view out = left.substr(0, count);
    left.remove_prefix(count);
    return out;
  }
  uint64_t number(size_t count) {
    uint64_t value = 0;
    size_t shift = 0;
    for (char byte : bytes(count)) {
      value |= uint64_t{static_cast<unsigned char>(byte)} << shift;
      shift += 8;
    }
    return value;
  }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  int32_t i32() { return static_cast<int32_t>(u32()); }
  float f32() { return std::bit_cast<float>(u32()); }
  std::string_view left;
};

}  // namespace

std::string sampler_fields(const Sampler& sampler) {
  const SamplingParams& params = sampler.params();
  Writer to;
  to.u32(kVersion);
  for (float value : {params.temperature, params.top_p, params.min_p, params.repetition_penalty})
    to.f32(value);
  for (int32_t value : {params.top_k, params.repetition_window, params.top_logprobs}) to.i32(value);
  to.number(params.seed, 8);
  to.number(sampler.state(), 8);
  to.u32(params.logit_bias.size());
  for (const wi_logit_bias& one : params.logit_bias) {
    to.i32(one.token);
    to.f32(one.bias);
  }
  to.u32(params.stops.strings().size());
  for (const std::string& stop : params.stops.strings()) {
    to.u32(stop.size());
    to.fields += stop;
  }
  return std::move(to.fields);
}

Sampler sampler_of(std::string_view fields, int32_t vocab) {
  Reader from(fields);
  const uint32_t version = from.u32();
  check(version == kVersion, WI_E_UNSUPPORTED, "the file's sampler is of version ", version,
        ", this library has ", kVersion);
  SamplingParams params;
  for (float* value : {&params.temperature, &params.top_p, &params.min_p, &params.repetition_penalty})
    *value = from.f32();
  for (int32_t* value : {&params.top_k, &params.repetition_window, &params.top_logprobs}) *value = from.i32();
  params.seed = from.number(8);
  const uint64_t state = from.number(8);
  for (uint32_t left = from.u32(); left > 0; --left) {
    const int32_t token = from.i32();
    check(token >= 0 && token < vocab, WI_E_FORMAT, "the file's logit_bias has token ", token,
          ", must be in [0, ", vocab, ")");
    params.logit_bias.push_back({token, from.f32()});
  }
  const uint32_t stops = from.u32();
  check(stops <= kMostStops, WI_E_FORMAT, "the file's sampler has ", stops, " stop strings");
  std::vector<std::string> strings;
  for (uint32_t i = 0; i < stops; ++i) {
    const uint32_t bytes = from.u32();
    check(bytes >= 1 && bytes <= kLongestStop, WI_E_FORMAT, "the file's stop string ", i, " has ", bytes,
          " bytes");
    strings.emplace_back(from.bytes(bytes));
  }
  params.stops = StopStrings(std::move(strings));
  check(from.left.empty(), WI_E_FORMAT, "the file's sampler has ", from.left.size(), " bytes too many");
  check_sampling(params, WI_E_FORMAT, "the file's ");
  Sampler sampler(params);
  sampler.set_state(state);
  return sampler;
}

}  // namespace wi
