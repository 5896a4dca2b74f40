// gpu_test NAME: one of the tests of CUDA kernels (gpu_tests.inc, by the build), on the first device.
#include <cstdio>
#include <cstring>

#include "kernels/cuda/backend.h"

#define WI_GPU_TEST(name) int name();
#include "gpu_tests.inc"
#undef WI_GPU_TEST

namespace {

struct Test {
  const char* name;
  int (*run)();
};
const Test tests[] = {
#define WI_GPU_TEST(name) {#name, name},
#include "gpu_tests.inc"
};

constexpr int kSkipped = 77;

}  // namespace

int main(int count, char** words) {
  for (const Test& test : tests) {
    if (count != 2 || std::strcmp(words[1], test.name) != 0) continue;
    wi::DeviceDescription device;
    wi::cuda::backend().device->describe(0, true, &device);
    if (device.reason[0]) {
      std::printf("skipped: %s cannot be used: %s\n", device.name, device.reason);
      return kSkipped;
    }
    std::printf("on %s, %s (%s)\n", device.name, device.product, device.target);
    return test.run();
  }
  std::fprintf(stderr, "usage: gpu_test NAME, one of:\n");
  for (const Test& test : tests) std::fprintf(stderr, "  %s\n", test.name);
  return 2;
}
