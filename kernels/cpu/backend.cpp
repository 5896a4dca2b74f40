// The CPU backend's row of operations and its policies: the only thing the rest of the library sees of
// this folder. A policy that is added here is known everywhere.
#include <cstring>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/unpack.h"

namespace wi {

namespace {

const Policy policies[] = {cpu::full_policy, cpu::wave_policy, cpu::streaming_policy, cpu::blocks_policy};

const Backend table = {
    .name = "cpu",
    .embed = cpu::embed,
    .rms_norm = cpu::rms_norm,
    .matmul = cpu::matmul,
    .rope = cpu::rope,
    .swiglu = cpu::swiglu,
    .append = cpu::append,
    .rotate_append = nullptr,
    .retrieve = nullptr,
    .attend = cpu::attend,
    .attend_chunk = cpu::attend_chunk,
    .sample = nullptr,
    .log_sum_exp = cpu::log_sum_exp,
    .dequantize = cpu::dequantize,
    .simd = cpu::simd_name,
    .policies = policies,
    .policy_count = sizeof(policies) / sizeof(policies[0]),
};

}  // namespace

const Backend& cpu_backend() { return table; }

BackendOnDevice::BackendOnDevice(const Backend& device) : backend(device) {
  for (int32_t i = 0; i < device.policy_count; i++) {
    const Policy& there = device.policies[i];
    const Policy* const here = find_policy(table, there.name);
    if (!here) continue;
    Policy both = *here;
    both.depth_first = false;
    both.selects_all = there.selects_all;
    both.select = there.select;
    both.estimate = there.estimate;
    both.index_planes = there.index_planes;
    both.index_workspace = there.index_workspace;
    policies.push_back(both);
  }
  backend.policies = policies.data();
  backend.policy_count = static_cast<int32_t>(policies.size());
  backend.log_sum_exp = table.log_sum_exp;
  backend.dequantize = table.dequantize;
}

const Policy* find_policy(const Backend& backend, const char* name) {
  for (int32_t i = 0; i < backend.policy_count; i++)
    if (!std::strcmp(backend.policies[i].name, name)) return &backend.policies[i];
  return nullptr;
}

}  // namespace wi
