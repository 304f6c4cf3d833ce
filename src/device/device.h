// Where tensors live and work runs. A Device hands out memory; a Stream is an order of work on it. Ops take a Stream
// and choose their kernels by its device in their dispatch file; no CUDA type appears in a header above this folder.
#pragma once

#include <volley/result.h>

#include <cstddef>
#include <memory>

#include "device/tensor.h"

namespace volley {

class ThreadPool;

enum class DeviceKind { kCpu, kCuda };

// Owned memory, aligned to 64 bytes and zeroed. Movable; freed with its last owner.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, size_t bytes, void (*release)(void*, size_t)) : data_(data), bytes_(bytes), release_(release) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { reset(); }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void reset();

  // The whole buffer, or its start, as a tensor.
  TensorView view(DType dtype, std::initializer_list<int64_t> dims) const;

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  void (*release_)(void*, size_t) = nullptr;
};

// An order of work. On the CPU work is done when the call returns, by the calling thread and the pool's. On CUDA it is
// done some time after, in order; Device::synchronize() waits for it.
class Stream {
 public:
  explicit Stream(ThreadPool& pool) : kind_(DeviceKind::kCpu), pool_(&pool) {}
  explicit Stream(void* cuda_stream) : kind_(DeviceKind::kCuda), cuda_stream_(cuda_stream) {}
  DeviceKind kind() const { return kind_; }
  ThreadPool& pool() const {  // REQUIRES: kind() == kCpu
    VOLLEY_CHECK(kind_ == DeviceKind::kCpu);
    return *pool_;
  }
  void* native() const {  // a cudaStream_t. REQUIRES: kind() == kCuda
    VOLLEY_CHECK(kind_ == DeviceKind::kCuda);
    return cuda_stream_;
  }

 private:
  DeviceKind kind_;
  ThreadPool* pool_ = nullptr;
  void* cuda_stream_ = nullptr;
};

// Threads: allocate() from any thread; everything else by one thread at a time.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual Stream& stream() = 0;
  // kResourceExhausted when there is no room.
  virtual Result<Buffer> allocate(size_t bytes) = 0;
  // Copies between host memory and the device's, ordered after the work of the stream; `from` may be reused and `to` be
  // read when they return. For loading and for tests: the decode path never waits.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  // Waits for the stream's work.
  virtual void synchronize() = 0;
};

// threads: how many run the kernels, the caller's included; 0: as many as this process may use. kResourceExhausted when
// the system gives no more threads.
Result<std::unique_ptr<Device>> make_cpu_device(int threads);

// The CUDA device `ordinal`. kUnimplemented in a build without CUDA, kUnavailable when there is no such device or it is
// older than compute capability 8.0.
Result<std::unique_ptr<Device>> make_cuda_device(int ordinal);

// The cores this process may run on (affinity mask and cgroup quota), at least 1.
int usable_cores();

}  // namespace volley
