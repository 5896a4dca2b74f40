#include "tests/support/random_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "src/error.h"
#include "src/memory/host_pool.h"
#include "tests/support/weights.h"

namespace wi::test {
namespace {

struct Random {
  uint64_t state;
  uint64_t next() {  // splitmix64: any seed is a good one
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // What it is when so many numbers have been drawn.
  Random after(uint64_t numbers) const { return {state + numbers * 0x9e3779b97f4a7c15u}; }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-23f - 1.0f; }  // [-1, 1)
};

struct Storage {
  std::shared_ptr<HostPool> huge_pages;  // null: where a sanitizer sees what is read beyond it
  std::vector<HostBuffer> on_huge_pages;
  std::vector<std::unique_ptr<std::byte[]>> pieces;
  std::byte* allocate(size_t bytes) {
    if (huge_pages) return on_huge_pages.emplace_back(huge_pages->allocate(bytes + 64, "weights")).data();
    return pieces.emplace_back(std::make_unique_for_overwrite<std::byte[]>(bytes + 64)).get();
  }
};

uint16_t half(float value) {
  uint16_t bits;
  cpu::to_kv(&value, DType::f16, &bits, 1);
  return bits;
}

// Large matrices by as many threads as there are: a model of 16 GB is made for one minute's measurements. The
// numbers do not depend on it.
template <class Body>
void in_parts(int64_t rows, int64_t cols, const Body& body) {
  constexpr int64_t kSmall = int64_t{1} << 22;
  const int64_t threads = rows * cols < kSmall ? 1 : std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> others;
  for (int64_t i = 1; i < threads; ++i)
    others.emplace_back([&, i] { body(rows * i / threads, rows * (i + 1) / threads); });
  body(0, rows / threads);
  for (std::thread& other : others) other.join();
}

// Uniform weights with standard deviation 1/√cols, so that activations keep their size through the layers.
void fill(std::byte* out, DType type, int64_t rows, int64_t cols, Random& random) {
  const float scale = std::sqrt(3.0f / static_cast<float>(cols));
  const size_t blocks = static_cast<size_t>(rows * cols / format_of(type).elements);
  switch (type) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      in_parts(rows, cols, [&](int64_t first, int64_t end) {
        Random own = random.after(static_cast<uint64_t>(first * cols));
        std::vector<float> row(static_cast<size_t>(cols));
        for (int64_t i = first; i < end; ++i) {
          for (float& value : row) value = own.uniform() * scale;
          cpu::to_kv(row.data(), type, out + static_cast<size_t>(i) * row_bytes(type, cols), cols);
        }
      });
      random = random.after(static_cast<uint64_t>(rows * cols));
      return;
    case DType::q8_0:
      for (size_t b = 0; b < blocks; ++b, out += 34) {
        const uint16_t d = half(scale / 127);
        std::memcpy(out, &d, 2);
        for (int i = 0; i < 32; i += 8) {
          uint64_t bits = random.next();
          for (int j = 0; j < 8; ++j) {  // -128 is no value of this type
            const int8_t q = static_cast<int8_t>(bits >> (8 * j));
            out[2 + i + j] = static_cast<std::byte>(q == -128 ? 0 : q);
          }
        }
      }
      return;
    case DType::q4_0:
      for (size_t b = 0; b < blocks; ++b, out += 18) {
        const uint16_t d = half(scale / 8);
        std::memcpy(out, &d, 2);
        const uint64_t bits[2] = {random.next(), random.next()};
        std::memcpy(out + 2, bits, 16);
      }
      return;
    case DType::q4_k:
      // All scales and minima 32 (in their 6-bit packing): w = d * 32 * q - dmin * 32, centred by dmin = 7.5
      // d.
      for (size_t b = 0; b < blocks; ++b, out += 144) {
        const uint16_t d[2] = {half(scale / (7.5f * 32)), half(scale / 32)};
        std::memcpy(out, d, 4);
        std::memset(out + 4, 0xA0, 8);
        std::memset(out + 12, 0, 4);
        for (int i = 0; i < 16; ++i) {
          const uint64_t bits = random.next();
          std::memcpy(out + 16 + 8 * i, &bits, 8);
        }
      }
      return;
    default:
      fail(WI_E_UNSUPPORTED, "random weights of type ", format_of(type).name);
  }
}

}  // namespace

ModelShape shape_named(const std::string& name) {
  if (name == "tiny") return {name};
  if (name == "llama-1b") return {name, Architecture::llama, 16, 2048, 32, 8, 64, 8192, 128256, true, 500000};
  if (name == "llama-8b")
    return {name, Architecture::llama, 32, 4096, 32, 8, 128, 14336, 128256, false, 500000};
  if (name == "llama-8b-cache")  // the same cache behind few weights: a step is mostly attention
    return {name, Architecture::llama, 32, 512, 32, 8, 128, 512, 1024, true, 500000};
  if (name == "qwen3-0.6b")
    return {name, Architecture::qwen3, 28, 1024, 16, 8, 128, 3072, 151936, true, 1000000};
  if (name == "small") return {name, Architecture::llama, 4, 2048, 32, 8, 64, 8192, 32000, true, 500000};
  fail(WI_E_ARGUMENT, "shape is \"", name,
       "\", must be llama-1b, llama-8b, llama-8b-cache, qwen3-0.6b, small or tiny");
}

DType dtype_named(const std::string& name) {
  for (int32_t i = 0; i <= static_cast<int32_t>(DType::q6_k); ++i) {
    if (name == format_of(static_cast<DType>(i)).name) return static_cast<DType>(i);
  }
  fail(WI_E_ARGUMENT, "weights is \"", name, "\", must be f32, f16, bf16, q8_0, q4_0 or q4_k");
}

std::shared_ptr<const Model> random_model(const ModelShape& shape, DType type, uint64_t seed,
                                          Precision precision, bool copied) {
  auto model = std::make_shared<Model>();
  model->precision = precision;
  auto storage = std::make_shared<Storage>();
  if (copied) storage->huge_pages = HostPool::create(HostPool::kUnlimited, true);
  Random random{seed};
  ModelConfig& config = model->config;
  config.architecture = shape.architecture;
  config.name = shape.name;
  config.layers = shape.layers;
  config.hidden = shape.hidden;
  config.query_heads = shape.query_heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = config.rotary = shape.head_dim;
  config.ffn = shape.ffn;
  config.vocab = shape.vocab;
  config.max_positions = int64_t{1} << 20;
  config.rope_theta = shape.rope_theta;
  config.qk_norm = shape.architecture == Architecture::qwen3;
  config.tied_embeddings = shape.tied;
  config.windows = shape.windows;

  const auto matrix = [&](int64_t rows, int64_t cols) {
    check(cols % format_of(type).elements == 0, WI_E_ARGUMENT, "columns is ", cols, ", ",
          format_of(type).name, " needs whole blocks");
    const size_t bytes = row_bytes(type, cols) * static_cast<size_t>(rows);
    std::byte* data = storage->allocate(bytes);
    fill(data, type, rows, cols, random);
    model->parameters += static_cast<uint64_t>(rows * cols);
    model->weight_bytes += bytes;
    Matrix matrix{data, type, rows, cols};
    if (copied && can_be_turned(matrix)) turn(matrix, data);
    return matrix;
  };
  const auto ones = [&](int64_t count) {
    float* values = reinterpret_cast<float*>(storage->allocate(static_cast<size_t>(count) * sizeof(float)));
    for (int64_t i = 0; i < count; ++i) values[i] = 1;
    return values;
  };
  const int64_t q_width = int64_t{shape.query_heads} * shape.head_dim,
                kv_width = int64_t{shape.kv_heads} * shape.head_dim;
  model->weights.embedding = matrix(shape.vocab, shape.hidden);
  model->weights.output = shape.tied ? model->weights.embedding : matrix(shape.vocab, shape.hidden);
  model->weights.output_norm = ones(shape.hidden);
  for (int32_t i = 0; i < shape.layers; ++i) {
    LayerWeights layer;
    layer.attention_norm = ones(shape.hidden);
    layer.q = matrix(q_width, shape.hidden);
    layer.k = matrix(kv_width, shape.hidden);
    layer.v = matrix(kv_width, shape.hidden);
    layer.o = matrix(shape.hidden, q_width);
    layer.ffn_norm = ones(shape.hidden);
    layer.gate = matrix(shape.ffn, shape.hidden);
    layer.up = matrix(shape.ffn, shape.hidden);
    layer.down = matrix(shape.hidden, shape.ffn);
    if (config.qk_norm) layer.q_norm = layer.k_norm = ones(shape.head_dim);
    model->weights.layers.push_back(layer);
  }
  model->rope = rope_frequencies(config, nullptr);
  model->weight_type = format_of(type).name;
  model->storage = storage;
  return model;
}

}  // namespace wi::test
