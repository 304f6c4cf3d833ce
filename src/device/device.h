// Where tensors live and work runs. A Device hands out memory; a Stream is an order of work on it. Ops take a Stream
// and choose their kernels by its device in their dispatch file; no CUDA type appears in a header above this folder.
#pragma once

#include <volley/result.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "device/tensor.h"

namespace volley {

class ThreadPool;

enum class DeviceKind { kCpu, kCuda };

// The facts about a GPU that kernels and plans depend on. Made by hand, they describe a GPU that this machine does not
// have.
struct GpuInfo {
  int compute_capability = 0;  // ten times the major number plus the minor one: 90 is Hopper
  int multiprocessors = 0;
  int64_t block_shared_bytes = 0;  // shared memory that a block can have
  // sm_90a: code for it runs only on this compute capability, not on later ones.
  bool is_hopper() const { return compute_capability == 90; }
  bool at_least(int capability) const { return compute_capability >= capability; }
};

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
// done later, in order; Device::synchronize() waits for it.
//
// A stream can be dry (dry_run.h): operations then check their arguments and take their scratch memory, but do nothing.
class Stream {
 public:
  explicit Stream(ThreadPool& pool);
  explicit Stream(int threads) : kind_(DeviceKind::kCpu), threads_(threads) {}  // without any: for dry runs alone
  Stream(void* cuda_stream, const GpuInfo& gpu) : kind_(DeviceKind::kCuda), cuda_stream_(cuda_stream), gpu_(gpu) {}
  DeviceKind kind() const { return kind_; }
  const GpuInfo& gpu() const {  // the device of the stream. REQUIRES: kind() == kCuda
    VOLLEY_CHECK(kind_ == DeviceKind::kCuda);
    return gpu_;
  }
  ThreadPool& pool() const {  // REQUIRES: kind() == kCpu
    VOLLEY_CHECK(pool_ != nullptr);
    return *pool_;
  }
  int threads() const { return threads_; }  // threads of the pool; 0 on CUDA
  bool dry() const { return skipped_ != nullptr; }
  // Called instead of launching a kernel. REQUIRES: dry()
  void skip_launch() const { ++*skipped_; }
  void* native() const {  // a cudaStream_t. REQUIRES: kind() == kCuda
    VOLLEY_CHECK(kind_ == DeviceKind::kCuda);
    return cuda_stream_;
  }

 private:
  friend class DryRun;

  DeviceKind kind_;
  ThreadPool* pool_ = nullptr;
  int threads_ = 0;
  void* cuda_stream_ = nullptr;
  GpuInfo gpu_;
  int64_t* skipped_ = nullptr;  // launches counted while the stream is dry
};

// A point in a stream's work.
class Fence {
 public:
  virtual ~Fence() = default;
  virtual void set() = 0;   // the point is after all work enqueued so far
  virtual void wait() = 0;  // waits until the work before the point is done; returns at once if it was never set
  // Seconds of the device's time from `earlier` to this point. REQUIRES: both points are reached; made by one device.
  virtual double seconds_since(const Fence& earlier) const = 0;
};

// Work that was recorded once and can be enqueued again as a whole, with the same arguments.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  virtual void launch() = 0;
};

// Threads: allocate() from any thread; everything else by one thread at a time.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual Stream& stream() = 0;
  // kResourceExhausted when there is no room.
  virtual Result<Buffer> allocate(size_t bytes) = 0;
  // A thread that did not make the device must call this before it uses the device.
  virtual void attach_thread() = 0;
  // Host memory that enqueued copies can reach: pinned on CUDA.
  virtual Result<Buffer> allocate_host(size_t bytes) = 0;
  // Copies between host memory and the device's, ordered after the work of the stream; on return `from` may be reused
  // and `to` may be read. upload() of up to kSmallUpload bytes does not wait for the stream unless about a hundred such
  // copies are under way. Larger uploads and download() are for loading and for tests.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  // The same without waiting. Host memory from allocate_host(), which must stay as it is until a fence set afterwards
  // is reached.
  virtual void enqueue_upload(void* to, const void* from, size_t bytes) = 0;
  virtual void enqueue_download(void* to, const void* from, size_t bytes) = 0;
  // Within the device's memory, in the order of the stream's work. The two must not overlap.
  virtual void enqueue_copy(void* to, const void* from, size_t bytes) = 0;
  virtual std::unique_ptr<Fence> make_fence() = 0;
  // Waits for the stream's work.
  virtual void synchronize() = 0;
  // Records the work that `enqueue` puts on the stream, without running it. Null on the CPU, where recording gains
  // nothing. Memory that the work touches must outlive the graph.
  virtual std::unique_ptr<StepGraph> record(const std::function<void()>& enqueue) = 0;
  // "NVIDIA H200", or the CPU's name for what its kernels run on: empty.
  virtual std::string name() const = 0;
};

inline constexpr size_t kSmallUpload = 16 << 10;

// threads: how many run the kernels, the caller's included; 0: as many as this process may use. kResourceExhausted when
// the system gives no more threads.
Result<std::unique_ptr<Device>> make_cpu_device(int threads);

// The CUDA device `ordinal`, with a stream of its own. Other streams of the same GPU, in this process or another, do
// not wait for its work, but share the GPU's time. kUnimplemented in a build without CUDA, kUnavailable when there is
// no such device or it is older than compute capability 8.0.
Result<std::unique_ptr<Device>> make_cuda_device(int ordinal);

// The facts about GPU `ordinal` that need no use of it. Errors as make_cuda_device().
struct GpuFacts {
  std::string name;
  int64_t free_bytes = 0;
  GpuInfo info;
};
Result<GpuFacts> examine_cuda_device(int ordinal);
// Releases this process's context on the GPU, if there is one, so that another process finds its memory free. Objects
// of this process on that GPU can afterwards only be destroyed.
void release_cuda_device(int ordinal);

// The cores this process may run on (affinity mask and cgroup quota), at least 1.
int usable_cores();

}  // namespace volley
