// oneDNN matmul primitives behind Gemm: made once per shape and thread, run with one thread. Debian's and
// Ubuntu's oneDNN run on OpenMP, whose thread count is a setting of the calling thread: it is one while a
// call lasts and what it was before afterwards, so the host's own OpenMP code notices nothing. Nor do signals
// reach the thread meanwhile.
#include "kernels/cpu/gemm.h"

#include <csignal>
#include <cstring>
#include <dlfcn.h>
#include <dnnl.hpp>
#include <list>
#include <utility>

namespace wi::cpu {
namespace {

using dnnl::memory;

constexpr size_t kCachedShapes = 128;

class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = 1;
};

// Keeps signals from the calling thread for as long as it lives. oneDNN's kernels for f32 (AVX2, and AVX-512
// without brgemm; until its pull request 4855) point the stack pointer at memory of the heap while they run,
// where the frame of a handler would overwrite what is the host's. A signal waits for a few milliseconds, or
// goes to another thread. Those that an instruction raises itself cannot wait.
class SignalsLater {
 public:
  SignalsLater();
  ~SignalsLater();
  SignalsLater(const SignalsLater&) = delete;
  SignalsLater& operator=(const SignalsLater&) = delete;

 private:
  sigset_t before_;
};

bool may_use(unsigned instructions);
const dnnl::engine& engine();
dnnl::matmul::primitive_desc describe(const GemmShape& shape, Packing& packing);

}  // namespace

struct Gemm::Plan {
  explicit Plan(const GemmShape& for_shape)
      : shape(for_shape),
        description(describe(shape, packing)),
        primitive(description),
        stream(engine()),
        a(description.src_desc(), engine(), nullptr),
        b(description.weights_desc(), engine(), nullptr),
        c(description.dst_desc(), engine(), nullptr),
        scratch(description.scratchpad_desc(), engine(), nullptr) {}

  GemmShape shape;
  Packing packing;
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
  dnnl::stream stream;
  memory a, b, c, scratch;
};

std::shared_ptr<const Gemm> Gemm::get(const GemmShape& shape) {
  thread_local std::list<std::shared_ptr<const Gemm>> cache;  // last used first
  for (auto entry = cache.begin(); entry != cache.end(); ++entry) {
    if ((*entry)->plan_->shape != shape) continue;
    cache.splice(cache.begin(), cache, entry);
    return cache.front();
  }
  OneThread one_thread;  // the number of threads shapes the compiled code
  cache.push_front(std::make_shared<const Gemm>(std::make_unique<Plan>(shape)));
  if (cache.size() > kCachedShapes) cache.pop_back();
  return cache.front();
}

size_t Gemm::scratch_bytes() const { return plan_->description.scratchpad_desc().get_size(); }

const Packing& Gemm::packing() const { return plan_->packing; }

void Gemm::run(const void* a, const void* b, float* c, std::byte* scratch) const {
  OneThread one_thread;
  Plan& plan = *plan_;
  plan.a.set_data_handle(const_cast<void*>(a));
  plan.b.set_data_handle(const_cast<void*>(b));
  plan.c.set_data_handle(c);
  plan.scratch.set_data_handle(scratch);
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, plan.a.get()},
                                       {DNNL_ARG_WEIGHTS, plan.b.get()},
                                       {DNNL_ARG_DST, plan.c.get()},
                                       {DNNL_ARG_SCRATCHPAD, plan.scratch.get()}};
  SignalsLater signals_later;
  // The C call, because the C++ one takes a hash map and so allocates.
  dnnl::error::wrap_c_api(dnnl_primitive_execute(plan.primitive.get(), plan.stream.get(), 4, arguments),
                          "dense product");
}

Gemm::Gemm(std::unique_ptr<Plan> plan) : plan_(std::move(plan)) {}
Gemm::~Gemm() = default;

bool has_fast_bf16() {
  static const bool fast = may_use(dnnl_cpu_isa_avx512_core_bf16);
  return fast;
}

bool has_fast_bf16_tiles() {
  static const bool fast = may_use(dnnl_cpu_isa_avx512_core_amx);
  return fast;
}

namespace {

// instructions: dnnl_cpu_isa_*, sets of bits.
bool may_use(unsigned instructions) {
  return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & instructions) == instructions;
}

// OpenMP's functions as oneDNN itself resolves them; null where it is built on another runtime.
struct OpenMp {
  int (*get_max_threads)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  void (*set_num_threads)(int) = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
};

const OpenMp& open_mp() {
  static const OpenMp functions;
  return functions;
}

OneThread::OneThread() {
  if (!open_mp().get_max_threads || !open_mp().set_num_threads) return;
  before_ = open_mp().get_max_threads();
  if (before_ != 1) open_mp().set_num_threads(1);
}

OneThread::~OneThread() {
  if (before_ != 1) open_mp().set_num_threads(before_);
}

const sigset_t& signals_that_wait() {
  static const sigset_t signals = [] {
    sigset_t all;
    sigfillset(&all);
    for (int raised : {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP}) sigdelset(&all, raised);
    return all;
  }();
  return signals;
}

SignalsLater::SignalsLater() { pthread_sigmask(SIG_BLOCK, &signals_that_wait(), &before_); }
SignalsLater::~SignalsLater() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

// Never destroyed: threads that end after main() still hold primitives.
const dnnl::engine& engine() {
  static const dnnl::engine* cpu = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *cpu;
}

// With b in this layout; empty if oneDNN has no kernel for it.
dnnl::matmul::primitive_desc describe(const GemmShape& shape, const memory::desc& b) {
  const auto type = shape.type == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::desc a({shape.m, shape.k}, type, memory::dims{shape.k, 1});
  const memory::desc c({shape.m, shape.n}, memory::data_type::f32, memory::dims{shape.n, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (shape.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  constexpr bool kAllowEmpty = true;
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), a, b, c, attributes, kAllowEmpty};
#else
  return {dnnl::matmul::desc(a, b, c), attributes, engine(), kAllowEmpty};
#endif
}

// bf16 in the widest packing for which oneDNN has one of its "brg" kernels; else, and in f32, b as it is.
dnnl::matmul::primitive_desc describe(const GemmShape& shape, Packing& packing) {
  using tag = memory::format_tag;
  packing = {shape.k, shape.n, 0};
  if (shape.type == DType::bf16) {
    for (auto [width, layout] :
         {std::pair{64, tag::BA16a64b2a}, {48, tag::BA16a48b2a}, {32, tag::BA16a32b2a}}) {
      auto packed = describe(shape, memory::desc({shape.k, shape.n}, memory::data_type::bf16, layout));
      if (!packed || std::strncmp(packed.impl_info_str(), "brg", 3) != 0) continue;
      packing.width = width;
      return packed;
    }
  }
  const auto type = shape.type == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::dims strides = shape.b_transposed ? memory::dims{1, shape.k} : memory::dims{shape.n, 1};
  return describe(shape, memory::desc({shape.k, shape.n}, type, strides));
}

}  // namespace
}  // namespace wi::cpu
