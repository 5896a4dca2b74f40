// What a thread is on the CPU: a stack of its own, and where it left off. Whoever has another go on leaves off there.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define WI_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WI_ASAN 1
#endif
#endif

#if !defined(__x86_64__) || defined(WI_ASAN)
#include <boost/context/detail/fcontext.hpp>
#endif
#ifdef WI_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_emulation {

struct Stack {
  const void* bottom = nullptr;
  size_t bytes = 0;
};

#if defined(__x86_64__) && !defined(WI_ASAN)

using Fiber = void*;  // its stack's end, below which it goes on

// first() never returns.
inline Fiber make_fiber(const Stack& stack, void (*first)()) {
  const uintptr_t top = (reinterpret_cast<uintptr_t>(stack.bottom) + stack.bytes) & ~uintptr_t{15};
  auto* const end = reinterpret_cast<uint64_t*>(top);
  end[-1] = 0;  // returns to nobody
  end[-2] = reinterpret_cast<uint64_t>(first);
  end[-3] = 0;
  return end - 3;
}

// In place: after a call, what returns is another fiber, and the processor has foretold all returns wrongly. Turns are
// what there is most of.
__attribute__((always_inline)) inline void go_on_with(Fiber next, Fiber* own, const Stack&) {
  asm volatile(
      "leaq -128(%%rsp), %%rsp\n\t"  // what functions keep below their stack's end
      "leaq 1f(%%rip), %%rax\n\t"
      "pushq %%rax\n\t"
      "pushq %%rbp\n\t"
      "movq %%rsp, (%0)\n\t"
      "movq %1, %%rsp\n\t"
      "popq %%rbp\n\t"
      "popq %%rax\n\t"
      "jmpq *%%rax\n"
      "1:\n\t"
      "leaq 128(%%rsp), %%rsp"
      : "+D"(own), "+S"(next)
      :
      : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1",
        "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
        "xmm14", "xmm15", "memory", "cc");
}

inline Stack came_from() { return {}; }

#else

using Fiber = boost::context::detail::fcontext_t;

inline void (*first_of_fibers)();
inline Stack stack_before;

inline void leave_off(boost::context::detail::transfer_t from) {
  *static_cast<Fiber*>(from.data) = from.fctx;
}

inline Fiber make_fiber(const Stack& stack, void (*first)()) {
  first_of_fibers = first;
#ifdef WI_ASAN
  // The last one that had it never returned from its first function.
  ASAN_UNPOISON_MEMORY_REGION(stack.bottom, stack.bytes);
#endif
  auto* const bottom = static_cast<std::byte*>(const_cast<void*>(stack.bottom));
  return boost::context::detail::make_fcontext(
      bottom + stack.bytes, stack.bytes, [](boost::context::detail::transfer_t from) {
#ifdef WI_ASAN
        __sanitizer_finish_switch_fiber(nullptr, &stack_before.bottom, &stack_before.bytes);
#endif
        leave_off(from);
        first_of_fibers();
      });
}

inline void go_on_with(Fiber next, Fiber* own, [[maybe_unused]] const Stack& stack) {
#ifdef WI_ASAN
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, stack.bottom, stack.bytes);
#endif
  leave_off(boost::context::detail::jump_fcontext(next, own));
#ifdef WI_ASAN
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

// The stack that was left for a fiber's beginning, told there.
inline Stack came_from() { return stack_before; }

#endif

}  // namespace cuda_emulation
