// Where the processor is emulated an operation takes a hundred times as long, and tests go through less: what differs
// there are the instructions, which a few cases of each kind show as well as hundreds.
#pragma once

#include <initializer_list>
#include <vector>

namespace wi::test {

#ifdef WI_EMULATED
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

// All of what a test goes through one by one; emulated, of more than three the first, the middle one and the last.
template <class T>
std::vector<T> some_of(std::initializer_list<T> all) {
  if (!kEmulated || all.size() <= 3) return all;
  const T* const first = all.begin();
  return {first[0], first[all.size() / 2], first[all.size() - 1]};
}

// As many of something as there are to be, emulated so many.
template <class T>
constexpr T emulated_or(T emulated, T otherwise) {
  return kEmulated ? emulated : otherwise;
}

}  // namespace wi::test
