// Where an operation takes many times as long tests go through less. On an emulated processor, a hundred times: what
// differs there are the instructions. Under a sanitizer, ten or twenty times: what it sees are ways through the code, and
// of threads what is done beside what. A few cases of each kind show these as well as hundreds.
#pragma once

#include <initializer_list>
#include <vector>

namespace wi::test {

// few: of kernels, whose every shape may go astray by itself, the sanitizer of addresses sees them all.
#if defined(WI_EMULATED)
constexpr bool kEmulated = true, kFew = true, kSlowed = true;
#elif defined(WI_THREAD_SANITIZED)
constexpr bool kEmulated = false, kFew = true, kSlowed = true;
#elif defined(WI_SANITIZED)
constexpr bool kEmulated = false, kFew = false, kSlowed = true;
#else
constexpr bool kEmulated = false, kFew = false, kSlowed = false;
#endif

// All of what a test goes through one by one, or, of more than three, the first, the middle one and the last.
template <class T>
std::vector<T> some_of(std::initializer_list<T> all) {
  if (!kFew || all.size() <= 3) return all;
  const T* const first = all.begin();
  return {first[0], first[all.size() / 2], first[all.size() - 1]};
}

// As many of something as there are to be, or so few; emulated_or: that few there alone; slow_or: under every sanitizer,
// too.
template <class T>
constexpr T emulated_or(T few, T otherwise) {
  return kEmulated ? few : otherwise;
}
template <class T>
constexpr T few_or(T few, T otherwise) {
  return kFew ? few : otherwise;
}
template <class T>
constexpr T slow_or(T few, T otherwise) {
  return kSlowed ? few : otherwise;
}

}  // namespace wi::test
