// SPDX-License-Identifier: Apache-2.0
// Memory of the device and page-locked memory of the host, and streams, each with one owner; and a
// chain of calls that ends at the first error. Errors are cudaError_t.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <type_traits>

namespace fl::cuda {

struct DeviceMemory {
  static cudaError_t allocate(void** memory, std::size_t bytes) {
    return cudaMalloc(memory, bytes);
  }
  void operator()(void* memory) const { cudaFree(memory); }
};
struct PageLockedMemory {  // Host memory.
  static cudaError_t allocate(void** memory, std::size_t bytes) {
    return cudaMallocHost(memory, bytes);
  }
  void operator()(void* memory) const { cudaFreeHost(memory); }
};

template <class T>
using OnDevice = std::unique_ptr<T, DeviceMemory>;
template <class T>
using PageLocked = std::unique_ptr<T, PageLockedMemory>;

/// Allocates n values.
template <class T, class Memory>
inline cudaError_t allocate(std::unique_ptr<T, Memory>& out, std::size_t n) {
  void* memory = nullptr;
  const cudaError_t error = Memory::allocate(&memory, n * sizeof(T));
  out.reset(static_cast<T*>(memory));
  return error;
}

/// Makes several calls. After the first error it makes no more, and keeps that error.
class Calls {
 public:
  template <class Call>
  Calls& then(const Call& call) {
    if (error_ == cudaSuccess) error_ = call();
    return *this;
  }
  [[nodiscard]] int error() const { return error_; }

 private:
  int error_ = cudaSuccess;
};

struct DestroyStream {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;

/// Makes a stream that does not wait for the default stream.
inline cudaError_t make_stream(Stream& out) {
  cudaStream_t raw = nullptr;
  const cudaError_t error = cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking);
  out.reset(raw);
  return error;
}

/// Memory that grows as needed. What it held is lost then.
template <class T, class Memory>
struct Room {
  std::unique_ptr<T, Memory> memory;
  std::size_t room = 0;

  [[nodiscard]] T* get() const { return memory.get(); }
  int reserve(std::size_t n) {
    if (n <= room) return cudaSuccess;
    memory.reset();  // First, so that old and new never exist together.
    room = 0;
    const cudaError_t error = allocate(memory, n);
    if (error == cudaSuccess) {
      room = n;
    } else {
      static_cast<void>(cudaGetLastError());  // Or others would take the error for theirs.
    }
    return error;
  }
};
template <class T>
using DeviceRoom = Room<T, DeviceMemory>;
template <class T>
using HostRoom = Room<T, PageLockedMemory>;

}  // namespace fl::cuda
