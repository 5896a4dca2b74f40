// The benchmark of CUDA kernels as a program of its own, on the emulation.
#include "tests/bench/help.h"

namespace {

constexpr char kUsage[] =
    R"(cuda_kernel_bench: each CUDA kernel alone, emulated on the CPU, which measures nothing
usage: cuda_kernel_bench, without options; WI_QUICK=1 makes it short
Example: WI_QUICK=1 cuda_kernel_bench
)";

}  // namespace

int kernel_bench();

int main(int count, char** words) {
  wi::answer_help(count, words, kUsage);
  return kernel_bench();
}
