// Embedding, norms, rotations, SwiGLU and the appending of keys and values by the CUDA kernels, on random
// shapes, against the CPU's.
#include "kernels/cuda/cuda.h"
#include "tests/support/device_memory.h"
#include "tests/support/kernel_test.h"

using namespace wi;
using namespace wi::test;

namespace {

constexpr int kShapes = 120;

int64_t draw(std::mt19937_64& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}

// Calls body(random, stream) for many shapes, each with its own order of threads.
template <class Body>
void for_shapes(Body&& body) {
  for (uint64_t shape = 0; shape < kShapes; ++shape) {
    std::mt19937_64 random(seed() * 1000 + shape);
    cuda_emulation::reset(random());
    {
      DeviceStream stream;
      body(random, stream);
    }
    assert_true(cuda_emulation::report().empty());
  }
}

void check_close(const std::vector<float>& got, const std::vector<float>& want, float relative,
                 const char* what) {
  assert_int_equal(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    if (!(std::abs(got[i] - want[i]) <= relative * std::abs(want[i])) &&
        std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i]))
      fail_because("%s: element %zu of %zu is %.9g, the CPU's %.9g", what, i, got.size(),
                   static_cast<double>(got[i]), static_cast<double>(want[i]));
}

void embeds_as_the_cpu_to_the_bit(void**) {
  constexpr DType kTypes[] = {DType::f32,  DType::f16,  DType::bf16, DType::q8_0,
                              DType::q4_0, DType::q4_k, DType::q5_k, DType::q6_k};
  for_shapes([&](std::mt19937_64& random, DeviceStream& stream) {
    const DType type = kTypes[random() % 8];
    const int64_t block = std::max<int64_t>(8, format_of(type).elements);
    const int64_t vocab = draw(random, 1, 40), hidden = block * draw(random, 1, block > 100 ? 9 : 70);
    const int64_t rows = draw(random, 0, 20);
    const std::vector<std::byte> table = random_weights(type, vocab * hidden, random);
    std::vector<int32_t> tokens(static_cast<size_t>(rows));
    for (int32_t& token : tokens) token = static_cast<int32_t>(draw(random, 0, vocab - 1));
    std::vector<float> want(static_cast<size_t>(rows * hidden));
    with_workers(1, [&](const Stream& host) {
      cpu::embed(host, {{table.data(), type, vocab, hidden}, tokens.data(), rows, want.data()});
    });
    const DeviceArray<std::byte> on_device(stream, table);
    const DeviceArray<int32_t> ids(stream, tokens);
    const DeviceArray<float> out(stream, want.size());
    assert_cuda(cuda::embed(stream, {{on_device, type, vocab, hidden}, ids, rows, out}));
    if (rows > 0 && !same_bits(out.to_host(), want)) fail_because("type %s", format_of(type).name);
  });
  DeviceStream stream;
  assert_true(cuda::embed(stream, {{nullptr, DType::q2_k, 1, 256}, nullptr, 1, nullptr}) ==
              cudaErrorInvalidValue);
}

// Sums in another order than the CPU's: some 2^-24 each, of a root.
void normalises_rows_as_the_cpu(void**) {
  for_shapes([&](std::mt19937_64& random, DeviceStream& stream) {
    const int64_t rows = draw(random, 0, 33);
    const int64_t cols = random() % 2 ? 4 * draw(random, 1, 500) : draw(random, 1, 1300);
    const int64_t in_stride = cols + draw(random, 0, 8), out_stride = random() % 2 ? in_stride : cols;
    const bool in_place = random() % 2 && in_stride == out_stride;
    const std::vector<float> in = random_floats(static_cast<size_t>(rows * in_stride), random);
    const std::vector<float> weight = random_floats(static_cast<size_t>(cols), random);
    std::vector<float> want(static_cast<size_t>(rows * out_stride), 3.0f);
    if (in_place) want = in;
    const float epsilon = 1e-5f;
    with_workers(1, [&](const Stream& host) {
      cpu::rms_norm(host,
                    {in.data(), in_stride, weight.data(), want.data(), out_stride, rows, cols, epsilon});
    });
    const DeviceArray<float> device_in(stream, in), device_weight(stream, weight);
    const DeviceArray<float> device_out(stream, std::vector<float>(want.size(), 3.0f));
    float* const out = in_place ? device_in.data() : device_out.data();
    assert_cuda(
        cuda::rms_norm(stream, {device_in, in_stride, device_weight, out, out_stride, rows, cols, epsilon}));
    check_close(in_place ? device_in.to_host() : device_out.to_host(), want, 2e-6f, "rms_norm");
  });
}

void rotates_as_the_cpu(void**) {
  for_shapes([&](std::mt19937_64& random, DeviceStream& stream) {
    constexpr int32_t kDims[] = {64, 96, 128, 256};
    const int32_t head_dim = kDims[random() % 4], heads = static_cast<int32_t>(draw(random, 1, 9));
    const int32_t rotary = random() % 2 ? head_dim : head_dim / 2;
    const int64_t rows = draw(random, 0, 17), stride = heads * head_dim + draw(random, 0, 5);
    std::vector<float> x = random_floats(static_cast<size_t>(rows * stride), random);
    const std::vector<float> cos = random_floats(static_cast<size_t>(rows * rotary / 2), random);
    const std::vector<float> sin = random_floats(cos.size(), random);
    const bool interleaved = random() % 2;
    const DeviceArray<float> device(stream, x), device_cos(stream, cos), device_sin(stream, sin);
    assert_cuda(cuda::rope(
        stream, {device, stride, rows, heads, head_dim, rotary, device_cos, device_sin, interleaved}));
    with_workers(1, [&](const Stream& host) {
      cpu::rope(host, {x.data(), stride, rows, heads, head_dim, rotary, cos.data(), sin.data(), interleaved});
    });
    // The CPU may fuse one of its products: an error of the last bit of either.
    const std::vector<float> got = device.to_host();
    for (size_t i = 0; i < x.size(); ++i)
      if (!(std::abs(got[i] - x[i]) <= 2e-6f * (1 + std::abs(x[i]))))
        fail_because("element %zu is %.9g, the CPU's %.9g", i, static_cast<double>(got[i]),
                     static_cast<double>(x[i]));
  });
}

// Both exponentials are within two units of the last place.
void gates_as_the_cpu(void**) {
  for_shapes([&](std::mt19937_64& random, DeviceStream& stream) {
    const int64_t count = draw(random, 0, 3000);
    std::vector<float> gate = random_floats(static_cast<size_t>(count), random);
    for (float& number : gate) number *= random() % 4 ? 3.0f : 60.0f;
    const std::vector<float> up = random_floats(gate.size(), random);
    std::vector<float> want(gate.size());
    with_workers(1, [&](const Stream& host) {
      cpu::swiglu(host, {gate.data(), up.data(), want.data(), count});
    });
    const DeviceArray<float> device_gate(stream, gate), device_up(stream, up), separate(stream, gate.size());
    float* const out = random() % 2 ? device_gate.data() : separate.data();
    assert_cuda(cuda::swiglu(stream, {device_gate, device_up, out, count}));
    check_close(out == device_gate.data() ? device_gate.to_host() : separate.to_host(), want, 1e-6f,
                "swiglu");
  });
}

void appends_as_the_cpu_to_the_bit(void**) {
  for_shapes([&](std::mt19937_64& random, DeviceStream& stream) {
    constexpr int32_t kDims[] = {64, 96, 128, 256};
    constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
    const int32_t head_dim = kDims[random() % 4], heads = static_cast<int32_t>(draw(random, 1, 8));
    const int64_t runs = draw(random, 0, 70), stride = heads * head_dim + 4 * draw(random, 0, 3);
    std::vector<AppendRun> list(static_cast<size_t>(runs));
    int64_t rows = 0;
    size_t bytes = 0;
    for (AppendRun& run : list) {
      run.row = rows;
      run.rows = random() % 3 ? 1 : draw(random, 0, 5);
      run.kv = kTypes[random() % 3];
      rows += run.rows;
      const size_t row = row_bytes(run.kv, head_dim);
      run.head_stride = static_cast<size_t>(run.rows + draw(random, 0, 3)) * row;
      run.keys = reinterpret_cast<std::byte*>(bytes);
      bytes += static_cast<size_t>(heads) * run.head_stride;
      run.values = reinterpret_cast<std::byte*>(bytes);
      bytes += static_cast<size_t>(heads) * run.head_stride;
    }
    std::vector<float> keys = random_floats(static_cast<size_t>(rows * stride), random);
    std::vector<float> values = random_floats(keys.size(), random);
    if (rows && random() % 4 == 0) keys[random() % keys.size()] = INFINITY;
    if (rows && random() % 4 == 0) values[random() % values.size()] = 1e6f;  // too large for f16
    std::vector<std::byte> want(bytes, std::byte{0xA5});
    const DeviceArray<std::byte> memory(stream, want);
    std::vector<AppendRun> here = list, there = list;
    for (size_t i = 0; i < list.size(); ++i) {
      here[i].keys = want.data() + reinterpret_cast<size_t>(list[i].keys);
      here[i].values = want.data() + reinterpret_cast<size_t>(list[i].values);
      there[i].keys = memory.data() + reinterpret_cast<size_t>(list[i].keys);
      there[i].values = memory.data() + reinterpret_cast<size_t>(list[i].values);
    }
    std::vector<uint32_t> largest(list.size());
    with_workers(1, [&](const Stream& host) {
      cpu::append(host,
                  {keys.data(), values.data(), stride, heads, head_dim, here.data(), runs, largest.data()});
    });
    const DeviceArray<float> device_keys(stream, keys), device_values(stream, values);
    const DeviceArray<AppendRun> device_runs(stream, there);
    const DeviceArray<uint32_t> device_largest(stream, list.size());
    assert_cuda(cuda::append(
        stream, {device_keys, device_values, stride, heads, head_dim, device_runs, runs, device_largest}));
    assert_true(memory.to_host() == want);
    assert_true(device_largest.to_host() == largest);
  });
}

// Of a decode step, in one launch: the bits of one after the other.
void rotates_and_appends_at_once_as_one_after_the_other(void**) {
  for_shapes([&](std::mt19937_64& random, DeviceStream& stream) {
    constexpr int32_t kDims[] = {64, 96, 128, 256};
    constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
    const int32_t head_dim = kDims[random() % 4], kv_heads = static_cast<int32_t>(draw(random, 1, 8));
    const int32_t heads = kv_heads * static_cast<int32_t>(draw(random, 1, 4));
    const int32_t rotary = random() % 2 ? head_dim : head_dim / 2;
    const int64_t rows = draw(random, 0, 9), width = int64_t{kv_heads} * head_dim;
    const bool interleaved = random() % 2;
    const DType kv = kTypes[random() % 3];
    const auto numbers = [&](int64_t each) {
      return random_floats(static_cast<size_t>(rows * each), random);
    };
    const std::vector<float> queries = numbers(int64_t{heads} * head_dim), keys = numbers(width),
                             values = numbers(width);
    const DeviceArray<float> cos(stream, numbers(rotary / 2)), sin(stream, numbers(rotary / 2)),
        device_values(stream, values);
    struct Out {
      std::vector<float> queries, keys;
      std::vector<std::byte> tail;
      std::vector<uint32_t> largest;
      bool operator==(const Out&) const = default;
    };
    const auto run = [&](bool at_once) {
      const DeviceArray<float> q(stream, queries), k(stream, keys);
      const size_t each = static_cast<size_t>(kv_heads) * row_bytes(kv, head_dim);
      const DeviceArray<std::byte> tail(stream, std::vector<std::byte>(static_cast<size_t>(rows) * 2 * each));
      std::vector<AppendRun> list;
      for (int64_t row = 0; row < rows; ++row) {
        std::byte* const to = tail.data() + static_cast<size_t>(row) * 2 * each;
        list.push_back({row, 1, to, to + each, row_bytes(kv, head_dim), kv});
      }
      const DeviceArray<AppendRun> runs(stream, list);
      const DeviceArray<uint32_t> largest(stream, list.size());
      const RopeArgs of_queries{
          q, int64_t{heads} * head_dim, rows, heads, head_dim, rotary, cos, sin, interleaved},
          of_keys{k, width, rows, kv_heads, head_dim, rotary, cos, sin, interleaved};
      const AppendArgs append{k, device_values, width, kv_heads, head_dim, runs, rows, largest};
      if (at_once) {
        assert_cuda(cuda::rotate_append(stream, {of_queries, of_keys, append}));
      } else {
        assert_cuda(cuda::rope(stream, of_queries));
        assert_cuda(cuda::rope(stream, of_keys));
        assert_cuda(cuda::append_short(stream, append));
      }
      return Out{q.to_host(), k.to_host(), tail.to_host(), largest.to_host()};
    };
    assert_true(run(true) == run(false));
  });
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(embeds_as_the_cpu_to_the_bit),
      cmocka_unit_test(normalises_rows_as_the_cpu),
      cmocka_unit_test(rotates_as_the_cpu),
      cmocka_unit_test(gates_as_the_cpu),
      cmocka_unit_test(appends_as_the_cpu_to_the_bit),
      cmocka_unit_test(rotates_and_appends_at_once_as_one_after_the_other),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
