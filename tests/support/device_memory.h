// Device memory for tests of kernels: what a test has on the host goes there, and comes back, through a
// stream. Every call is checked.
#pragma once

#include <cuda_runtime.h>
#include <vector>

#include "tests/test.h"

namespace wi::test {

inline void check_cuda(cudaError_t error, const char* file, int line) {
  if (error == cudaSuccess) return;
  std::printf("%s:%d: %s\n", file, line, cudaGetErrorString(error));
  _fail(file, line);
}
#define assert_cuda(...) ::wi::test::check_cuda((__VA_ARGS__), __FILE__, __LINE__)

class DeviceStream {
 public:
  DeviceStream() { assert_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  DeviceStream(const DeviceStream&) = delete;
  ~DeviceStream() { (void)cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }
  void finish() { assert_cuda(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(DeviceStream& stream, const T* host, size_t count) : stream_(&stream), count_(count) {
    allocate();
    if (count_ == 0) return;
    assert_cuda(cudaMemcpyAsync(data_, host, count_ * sizeof(T), cudaMemcpyHostToDevice, stream));
    stream.finish();
  }
  DeviceArray(DeviceStream& stream, const std::vector<T>& host)
      : DeviceArray(stream, host.data(), host.size()) {}
  // Filled with bytes that are NaNs as floats.
  DeviceArray(DeviceStream& stream, size_t count) : stream_(&stream), count_(count) {
    allocate();
    if (count_) assert_cuda(cudaMemsetAsync(data_, 0xFF, count_ * sizeof(T), stream));
  }
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(stream_, other.stream_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~DeviceArray() { (void)cudaFree(data_); }

  T* data() const { return data_; }
  operator T*() const { return data_; }
  std::vector<T> to_host() const {
    std::vector<T> host(count_);
    if (count_)
      assert_cuda(cudaMemcpyAsync(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost, *stream_));
    stream_->finish();
    return host;
  }

 private:
  void allocate() {
    void* data = nullptr;
    assert_cuda(cudaMalloc(&data, count_ * sizeof(T)));
    data_ = static_cast<T*>(data);
  }
  DeviceStream* stream_ = nullptr;
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace wi::test
