#include <algorithm>
#include <cstring>
#include <string>

#include "device/cuda/launch.h"

namespace volley {
namespace {

constexpr size_t kStagingBytes = size_t{16} << 20;

Error cuda_error(cudaError_t error, const std::string& what) {
  return {ErrorCode::kUnavailable, what + ": " + cudaGetErrorString(error) + "."};
}

// Two pinned buffers: while the copy engine reads one, the host fills the other.
class Staging {
 public:
  ~Staging() {
    for (Half& half : halves_) {
      if (half.free != nullptr) cudaEventDestroy(half.free);
      if (half.memory != nullptr) cudaFreeHost(half.memory);
    }
  }
  cudaError_t init() {
    for (Half& half : halves_) {
      cudaError_t error = cudaMallocHost(&half.memory, kStagingBytes);
      if (error == cudaSuccess) error = cudaEventCreateWithFlags(&half.free, cudaEventDisableTiming);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }
  void upload(cudaStream_t stream, char* to, const char* from, size_t bytes) {
    for (size_t done = 0; done < bytes; done += kStagingBytes) {
      Half& half = halves_[next_ ^= 1];
      const size_t n = std::min(kStagingBytes, bytes - done);
      VOLLEY_CUDA_CHECK(cudaEventSynchronize(half.free));  // of an event never recorded: returns at once
      std::memcpy(half.memory, from + done, n);
      VOLLEY_CUDA_CHECK(cudaMemcpyAsync(to + done, half.memory, n, cudaMemcpyHostToDevice, stream));
      VOLLEY_CUDA_CHECK(cudaEventRecord(half.free, stream));
    }
  }

 private:
  struct Half {
    void* memory = nullptr;
    cudaEvent_t free = nullptr;
  };
  Half halves_[2];
  int next_ = 0;
};

class CudaDevice final : public Device {
 public:
  ~CudaDevice() override {
    if (stream_handle_ == nullptr) return;
    cudaStreamSynchronize(stream_handle_);
    cudaStreamDestroy(stream_handle_);
  }

  Status init(int ordinal) {
    ordinal_ = ordinal;
    if (const cudaError_t e = cudaSetDevice(ordinal); e != cudaSuccess) return cuda_error(e, "Cannot use the GPU");
    if (const cudaError_t e = cudaStreamCreateWithFlags(&stream_handle_, cudaStreamNonBlocking); e != cudaSuccess) {
      return cuda_error(e, "Cannot create a stream on the GPU");
    }
    if (const cudaError_t e = staging_.init(); e != cudaSuccess) return cuda_error(e, "Cannot pin host memory");
    stream_ = Stream(static_cast<void*>(stream_handle_));
    return {};
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  Stream& stream() override { return stream_; }

  Result<Buffer> allocate(size_t bytes) override {
    VOLLEY_CUDA_CHECK(cudaSetDevice(ordinal_));
    const size_t size = std::max<size_t>(bytes, 64);
    void* p = nullptr;
    if (const cudaError_t error = cudaMalloc(&p, size); error != cudaSuccess) {
      cudaGetLastError();  // an allocation that failed must not fail the next launch's check
      return resource_exhausted("Cannot allocate " + std::to_string(bytes >> 20) +
                                " MiB of GPU memory: use a smaller model, --max-model-len or --max-num-seqs.");
    }
    VOLLEY_CUDA_CHECK(cudaMemset(p, 0, size));
    VOLLEY_CUDA_CHECK(cudaStreamSynchronize(nullptr));  // the device's own stream does not wait for the default one
    return Buffer(p, size, [](void* data, size_t) { cudaFree(data); });
  }

  void upload(void* to, const void* from, size_t bytes) override {
    staging_.upload(stream_handle_, static_cast<char*>(to), static_cast<const char*>(from), bytes);
  }
  void download(void* to, const void* from, size_t bytes) override {
    VOLLEY_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_handle_));
    synchronize();
  }
  void synchronize() override { VOLLEY_CUDA_CHECK(cudaStreamSynchronize(stream_handle_)); }

 private:
  int ordinal_ = 0;
  cudaStream_t stream_handle_ = nullptr;
  Stream stream_{static_cast<void*>(nullptr)};
  Staging staging_;
};

}  // namespace

Result<std::unique_ptr<Device>> make_cuda_device(int ordinal) {
  int count = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess) return cuda_error(e, "No GPU can be used");
  if (ordinal < 0 || ordinal >= count) {
    return Error{ErrorCode::kUnavailable,
                 "There is no GPU " + std::to_string(ordinal) + ": this machine has " + std::to_string(count) + "."};
  }
  int major = 0;
  VOLLEY_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal));
  if (major < 8) {
    return Error{ErrorCode::kUnavailable, "GPU " + std::to_string(ordinal) +
                                              " is older than compute capability 8.0 (Ampere): use --device cpu."};
  }
  auto device = std::make_unique<CudaDevice>();
  if (Status status = device->init(ordinal); !status.ok()) return status.error();
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace volley
