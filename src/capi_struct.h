// How structs cross the ABI, once for all of them: struct_size is the first field, structs only grow at the
// end, zero means default. A shorter struct is an older caller's (its missing tail is zero), a longer one a
// newer caller's (accepted while the tail that we do not know is zero).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "src/error.h"

namespace wi {

// No struct of this ABI comes near; what claims to be larger was not initialised, and is not read.
constexpr uint32_t kLargestStruct = 4096;

// Both throw WI_E_ARGUMENT for a struct_size that cannot be; name is the struct's or the argument's.
uint32_t check_struct_size(const void* theirs, const char* name);
void copy_struct_in(const void* theirs, void* ours, size_t our_size, const char* name);
// Writes as much of ours as theirs has room for and zeroes a tail that we do not know; keeps struct_size.
void copy_struct_out(const void* ours, size_t our_size, void* theirs);

// Copies valid code points and '?' for every byte that is none; returns the bytes written without the NUL.
// out is NUL-terminated and cut between code points; capacity includes the NUL.
size_t copy_utf8(std::string_view text, char* out, size_t capacity);

// NULL reads as all zero: every default.
template <class T>
T read_struct(const T* theirs, const char* name) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kLargestStruct);
  T ours{};
  if (theirs) copy_struct_in(theirs, &ours, sizeof(T), name);
  return ours;
}

template <class T>
void check_struct_out(const T* out, const char* argument) {
  check(out != nullptr, WI_E_ARGUMENT, argument, " is NULL");
  check_struct_size(out, argument);
}

template <class T>
void write_struct(const T& ours, T* out) {
  static_assert(std::is_trivially_copyable_v<T>);
  copy_struct_out(&ours, sizeof(T), out);
}

// An array of structs strides by its first element's struct_size, so that old callers' arrays stay readable.
// element(values, i) is valid after check_struct_array.
template <class T>
T* element(T* values, uint64_t i) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  const uint64_t stride = *reinterpret_cast<const uint32_t*>(values);
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(values) + i * stride);
}

template <class T>
void check_struct_array(const T* values, uint64_t count, const char* argument) {
  if (count == 0) return;
  check(values != nullptr, WI_E_ARGUMENT, argument, " is NULL with count ", count);
  const uint32_t stride = check_struct_size(values, argument);
  check(count <= PTRDIFF_MAX / stride, WI_E_ARGUMENT, argument, " has length ", count,
        ", more than memory can hold");
  check(stride % alignof(T) == 0, WI_E_ARGUMENT, argument, "[0].struct_size is ", stride,
        ", must be a multiple of ", alignof(T));
  for (uint64_t i = 1; i < count; ++i) {
    const uint32_t size = *reinterpret_cast<const uint32_t*>(element(values, i));
    check(size == stride, WI_E_ARGUMENT, argument, "[", i, "].struct_size is ", size,
          ", the first element's is ", stride);
  }
}

// The size-then-fill protocol: *count_out is what is needed, also when capacity is too small (WI_E_ARGUMENT)
// and when only the size is asked for (out NULL, capacity 0).
void check_list_out(const void* out, uint64_t capacity, const uint64_t* count_out, const char* out_name,
                    const char* count_name);
void report_list_size(const void* out, uint64_t needed, uint64_t capacity, uint64_t* count_out,
                      const char* out_name);

template <class T>
void write_list(std::span<const T> values, T* out, uint64_t capacity, uint64_t* count_out,
                const char* out_name) {
  report_list_size(out, values.size(), capacity, count_out, out_name);
  for (size_t i = 0; out && i < values.size(); ++i) out[i] = values[i];
}

}  // namespace wi
