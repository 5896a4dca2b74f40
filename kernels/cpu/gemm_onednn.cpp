// Products on AMX are oneDNN's matmul primitives, made once per shape and thread, run with one thread. Debian's and Ubuntu's oneDNN run on OpenMP, whose thread count is a setting of
// the calling thread: it is one while a call lasts and what it was before afterwards, so the host's own OpenMP
// code notices nothing. Nor do signals reach the thread meanwhile. Making primitives is where oneDNN does not
// stand a refused allocation, or a fork() in between: that is done under a lock that fork() waits for, with
// memory set aside.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <dlfcn.h>
#include <dnnl.hpp>
#include <list>
#include <mutex>
#include <new>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "kernels/cpu/gemm_tiles.h"

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

// Keeps signals from the calling thread for as long as it lives. Kernels of oneDNN that are not of its brgemm
// kind may (until its pull request 4855) point the stack pointer at memory of the heap while they run, where
// the frame of a handler would overwrite what is the host's. A signal waits for a few milliseconds, or goes
// to another thread. Those that an instruction raises itself cannot wait.
class SignalsLater {
 public:
  SignalsLater();
  ~SignalsLater();
  SignalsLater(const SignalsLater&) = delete;
  SignalsLater& operator=(const SignalsLater&) = delete;

 private:
  sigset_t before_;
};

// Memory for what runs while it lives, or std::bad_alloc. oneDNN, in making engines, descriptors and
// primitives, follows null pointers, throws where nobody can catch, or leaves its cache waiting for ever: all
// of them the end of the process. So the calling thread's heap gets free room beforehand, which the C
// library's malloc keeps for it, and the system is asked for what code may be mapped (256 KB a kernel). Of
// another malloc the first is an enquiry, too. Code is written through a null pointer where its mapping is
// refused nonetheless: because another thread took all that was given back, at a limit. Of 6,700 prefills at
// limits, beside a thread that mapped 40 MB again and again, two ended so. Only oneDNN can mend that.
class MemorySetAside {
 public:
  MemorySetAside();
  ~MemorySetAside() { std::free(above_); }
  MemorySetAside(const MemorySetAside&) = delete;
  MemorySetAside& operator=(const MemorySetAside&) = delete;

 private:
  static constexpr size_t kPieces = 64, kPieceBytes = size_t{64} << 10;
  static constexpr size_t kCodeBytes = size_t{16} << 20;
  void* above_ = nullptr;  // keeps what is free below it from being given back to the system
};

// Held while a primitive is made or first runs. A child process finds oneDNN's locks open.
std::mutex& making_mutex();

// Held while a primitive runs. From exit() on none does: oneDNN's cache, its settings and some of its code go then, and
// a thread may still be in the step whose host has let go of everything. That step is Ending; it does not wait for the
// process to end, because a host's static object may yet wait for it.
class Running {
 public:
  Running();
  ~Running() { running.fetch_sub(1, std::memory_order_release); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  static void end() noexcept;
  static void forget_parents_threads() { running = 0; }

 private:
  static inline std::atomic<int> running{0};
  static inline std::atomic<bool> ended{false};
};

// Holds the mutex, and is a Running.
class Making {
 public:
  Making() : lock_(making_mutex()) {}
  ~Making();
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

 private:
  std::unique_lock<std::mutex> lock_;
  Running running_;
};

struct Cached {
  GemmShape shape;
  std::shared_ptr<const GemmTiles> product;
};
using Cache = std::list<Cached>;
Cache& cache_of_this_thread();
void check_status(dnnl_status_t status);
const dnnl::engine& engine();
dnnl::matmul::primitive_desc describe(const GemmShape& shape, Packing& packing);
std::unique_ptr<GemmTiles::Primitive> make_primitive(const GemmShape& shape);

}  // namespace

struct GemmTiles::Primitive {
  explicit Primitive(const GemmShape& shape)
      : description(describe(shape, packing)),
        matmul(description),
        stream(engine()),
        a(description.src_desc(), engine(), nullptr),
        b(description.weights_desc(), engine(), nullptr),
        c(description.dst_desc(), engine(), nullptr),
        scratch(description.scratchpad_desc(), engine(), nullptr) {}

  Packing packing;
  dnnl::matmul::primitive_desc description;
  dnnl::matmul matmul;
  dnnl::stream stream;
  memory a, b, c, scratch;
  bool ran = false;
};

// One product of each kind that describe() may choose, made and run.
void GemmTiles::prepare() {
  static std::atomic<bool> prepared{false};
  if (prepared) return;
  constexpr int64_t kSide = 64;
  for (const bool b_transposed : {false, true})
    for (const bool accumulate : {false, true}) {
      const GemmShape shape{kSide, kSide, kSide, DType::bf16, b_transposed, accumulate};
      const GemmTiles product(make_primitive(shape));
      const std::vector<uint16_t> a(kSide * kSide), b(product.packing().elements());
      std::vector<float> c(kSide * kSide);
      const std::unique_ptr<std::byte, decltype(&std::free)> scratch(
          static_cast<std::byte*>(std::aligned_alloc(64, (product.scratch_bytes() / 64 + 1) * 64)),
          std::free);
      if (!scratch) throw std::bad_alloc();
      product.run(a.data(), b.data(), c.data(), scratch.get());
    }
  prepared = true;
}

std::shared_ptr<const GemmTiles> GemmTiles::get(const GemmShape& shape) {
  Cache& cache = cache_of_this_thread();  // last used first
  for (auto entry = cache.begin(); entry != cache.end(); ++entry) {
    if (entry->shape != shape) continue;
    cache.splice(cache.begin(), cache, entry);
    return entry->product;
  }
  cache.push_front({shape, std::make_shared<const GemmTiles>(make_primitive(shape))});
  if (cache.size() > kCachedShapes) cache.pop_back();
  return cache.front().product;
}

const Packing& GemmTiles::packing() const { return primitive_->packing; }

size_t GemmTiles::scratch_bytes() const { return primitive_->description.scratchpad_desc().get_size(); }

void GemmTiles::run(const void* a, const void* b, float* c, std::byte* scratch) const {
  OneThread one_thread;
  Primitive& primitive = *primitive_;
  primitive.a.set_data_handle(const_cast<void*>(a));
  primitive.b.set_data_handle(const_cast<void*>(b));
  primitive.c.set_data_handle(c);
  primitive.scratch.set_data_handle(scratch);
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, primitive.a.get()},
                                       {DNNL_ARG_WEIGHTS, primitive.b.get()},
                                       {DNNL_ARG_DST, primitive.c.get()},
                                       {DNNL_ARG_SCRATCHPAD, primitive.scratch.get()}};
  // The C call, because the C++ one takes a hash map and so allocates.
  const auto execute = [&] {
    const SignalsLater signals_later;
    check_status(dnnl_primitive_execute(primitive.matmul.get(), primitive.stream.get(), 4, arguments));
  };
  if (primitive.ran) {
    const Running running;
    return execute();
  }
  const Making making;  // some kernels are compiled when they first run
  const MemorySetAside set_aside;
  execute();
  primitive.ran = true;
}

GemmTiles::GemmTiles(std::unique_ptr<Primitive> primitive) : primitive_(std::move(primitive)) {}
GemmTiles::~GemmTiles() = default;

bool GemmTiles::supported() {
  constexpr auto kTiles = static_cast<unsigned>(dnnl_cpu_isa_avx512_core_amx);  // a set of bits
  return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & kTiles) == kTiles;
}

namespace {

Running::Running() {
  running.fetch_add(1);  // in one order with end()'s accesses: it sees this one, or this one sees it
  if (!ended) return;
  running.fetch_sub(1);
  throw Ending();
}

void Running::end() noexcept {
  ended = true;
  // Milliseconds; but a handler of signals that called exit() may have interrupted one.
  for (int tries = 0; running > 0 && tries < 10'000; ++tries) usleep(100);
}

// What goes at exit() goes in the opposite order of its making, so end() has to be the last: what oneDNN had made by
// now is still there when it comes. This takes end() from where it stood, by calling it, and puts it to the end.
Making::~Making() {
  static char own;
  static std::atomic<pthread_t> mover{};
  mover = pthread_self();
  abi::__cxa_finalize(&own);
  mover = pthread_t{};
  const auto end = [](void*) {
    if (mover != pthread_self()) Running::end();
  };
  abi::__cxa_atexit(end, nullptr, &own);
}

MemorySetAside::MemorySetAside() {
  void* code = mmap(nullptr, kCodeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (code == MAP_FAILED) throw std::bad_alloc();
  void* pieces[kPieces] = {};
  bool refused = false;
  for (void*& piece : pieces) refused |= (piece = std::malloc(kPieceBytes)) == nullptr;
  above_ = std::malloc(kPieceBytes);
  for (void* piece : pieces) std::free(piece);  // neighbours become one again
  munmap(code, kCodeBytes);
  if (above_ && !refused) return;
  std::free(above_);
  throw std::bad_alloc();
}

// Never destroyed: threads may end after main().
std::mutex& making_mutex() {
  static std::mutex* const mutex = [] {
    static auto* made = new std::mutex;
    const auto lock = [] { made->lock(); };
    const auto unlock = [] { made->unlock(); };
    const auto unlock_in_child = [] {
      Running::forget_parents_threads();
      made->unlock();
    };
    if (pthread_atfork(lock, unlock, unlock_in_child) != 0) throw std::bad_alloc();
    return made;
  }();
  return *mutex;
}

// Not a thread_local: the C library ends the process when it has no memory to register a destructor of one.
Cache& cache_of_this_thread() {
  static const pthread_key_t key = [] {
    pthread_key_t made;
    if (pthread_key_create(&made, [](void* cache) { delete static_cast<Cache*>(cache); }) != 0)
      throw std::bad_alloc();
    return made;
  }();
  if (auto* cache = static_cast<Cache*>(pthread_getspecific(key))) return *cache;
  auto cache = std::make_unique<Cache>();
  if (pthread_setspecific(key, cache.get()) != 0) throw std::bad_alloc();
  return *cache.release();
}

void check_status(dnnl_status_t status) {
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  dnnl::error::wrap_c_api(status, "dense product");
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

std::unique_ptr<GemmTiles::Primitive> make_primitive(const GemmShape& shape) {
  try {
    const Making making;
    const MemorySetAside set_aside;
    const OneThread one_thread;  // the number of threads shapes the compiled code
    return std::make_unique<GemmTiles::Primitive>(shape);
  } catch (const dnnl::error& refused) {
    check_status(refused.status);
    throw;
  }
}

// With b in this layout; empty if oneDNN has no kernel for it.
dnnl::matmul::primitive_desc describe(const GemmShape& shape, const memory::desc& b) {
  const memory::desc a({shape.m, shape.k}, memory::data_type::bf16, memory::dims{shape.k, 1});
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

// In the widest packing for which oneDNN has one of its "brg" kernels; else b as it is.
dnnl::matmul::primitive_desc describe(const GemmShape& shape, Packing& packing) {
  using tag = memory::format_tag;
  packing = {shape.k, shape.n, 0};
  for (auto [width, layout] :
       {std::pair{64, tag::BA16a64b2a}, {48, tag::BA16a48b2a}, {32, tag::BA16a32b2a}}) {
    auto packed = describe(shape, memory::desc({shape.k, shape.n}, memory::data_type::bf16, layout));
    if (!packed || std::strncmp(packed.impl_info_str(), "brg", 3) != 0) continue;
    packing.width = width;
    return packed;
  }
  const memory::dims strides = shape.b_transposed ? memory::dims{1, shape.k} : memory::dims{shape.n, 1};
  return describe(shape, memory::desc({shape.k, shape.n}, memory::data_type::bf16, strides));
}

}  // namespace
}  // namespace wi::cpu
