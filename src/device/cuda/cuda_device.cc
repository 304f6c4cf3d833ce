#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>

#include "device/cuda/launch.h"
#include "device/cuda/staging.h"

namespace volley {
namespace {

Error cuda_error(cudaError_t error, const std::string& what) {
  const bool no_memory = error == cudaErrorMemoryAllocation;
  return {no_memory ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
          what + ": " + cudaGetErrorString(error) + "."};
}

// A ring of pinned pieces for edits of device state: a piece is reused after kPieces - 1 other uploads, which is
// usually long after its copy has ended.
class SmallUploads {
 public:
  ~SmallUploads() {
    for (cudaEvent_t event : done_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (memory_ != nullptr) cudaFreeHost(memory_);
  }
  cudaError_t init() {
    cudaError_t error = cudaMallocHost(reinterpret_cast<void**>(&memory_), kPieces * kSmallUpload);
    for (cudaEvent_t& event : done_) {
      if (error == cudaSuccess) error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    }
    return error;
  }
  void upload(cudaStream_t stream, void* to, const void* from, size_t bytes) {
    const size_t piece = next_++ % kPieces;
    char* pinned = memory_ + piece * kSmallUpload;
    VOLLEY_CUDA_CHECK(cudaEventSynchronize(done_[piece]));
    std::memcpy(pinned, from, bytes);
    VOLLEY_CUDA_CHECK(cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, stream));
    VOLLEY_CUDA_CHECK(cudaEventRecord(done_[piece], stream));
  }

 private:
  static constexpr size_t kPieces = 512;
  char* memory_ = nullptr;
  std::array<cudaEvent_t, kPieces> done_ = {};
  size_t next_ = 0;
};

class CudaFence final : public Fence {
 public:
  explicit CudaFence(cudaStream_t stream) : stream_(stream) { VOLLEY_CUDA_CHECK(cudaEventCreate(&event_)); }
  ~CudaFence() override { cudaEventDestroy(event_); }
  CudaFence(const CudaFence&) = delete;
  CudaFence& operator=(const CudaFence&) = delete;

  void set() override { VOLLEY_CUDA_CHECK(cudaEventRecord(event_, stream_)); }
  void wait() override { VOLLEY_CUDA_CHECK(cudaEventSynchronize(event_)); }
  double seconds_since(const Fence& earlier) const override {
    float milliseconds = 0;
    VOLLEY_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, static_cast<const CudaFence&>(earlier).event_, event_));
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t event_ = nullptr;
};

class CudaGraph final : public StepGraph {
 public:
  CudaGraph(cudaStream_t stream, cudaGraph_t graph) : stream_(stream) {
    VOLLEY_CUDA_CHECK(cudaGraphInstantiate(&executable_, graph, 0));
    VOLLEY_CUDA_CHECK(cudaGraphDestroy(graph));
    VOLLEY_CUDA_CHECK(cudaGraphUpload(executable_, stream));
  }
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void launch() override { VOLLEY_CUDA_CHECK(cudaGraphLaunch(executable_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const GpuFacts& facts) : gpu_(facts.info), name_(facts.name) {}
  ~CudaDevice() override {
    if (recording_ != nullptr) cudaStreamDestroy(recording_);
    if (stream_handle_ == nullptr) return;
    cudaStreamSynchronize(stream_handle_);
    cudaStreamDestroy(stream_handle_);
  }

  Status init(int ordinal) {
    ordinal_ = ordinal;
    if (const cudaError_t e = cudaSetDevice(ordinal); e != cudaSuccess) return cuda_error(e, "Cannot use the GPU");
    for (cudaStream_t* stream : {&stream_handle_, &recording_}) {
      if (const cudaError_t e = cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking); e != cudaSuccess) {
        return cuda_error(e, "Cannot create a stream on the GPU");
      }
    }
    if (const cudaError_t e = staging_.init(); e != cudaSuccess) return cuda_error(e, "Cannot pin host memory");
    if (const cudaError_t e = edits_.init(); e != cudaSuccess) return cuda_error(e, "Cannot pin host memory");
    stream_ = Stream(stream_handle_, gpu_);
    return {};
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  Stream& stream() override { return stream_; }

  Result<Buffer> allocate(size_t bytes) override {
    VOLLEY_CUDA_CHECK(cudaSetDevice(ordinal_));
    const size_t size = std::max<size_t>(bytes, 64);
    void* p = nullptr;
    if (!has_memory(cudaMalloc(&p, size))) {
      return resource_exhausted("Cannot allocate " + std::to_string(bytes >> 20) +
                                " MiB of GPU memory: use a smaller model, or lower --max-model-len, --max-num-seqs or "
                                "--memory-fraction.");
    }
    VOLLEY_CUDA_CHECK(cudaMemset(p, 0, size));
    VOLLEY_CUDA_CHECK(cudaStreamSynchronize(nullptr));  // the device's own stream does not wait for the default one
    return Buffer(p, size, [](void* data, size_t) { cudaFree(data); });
  }

  // Each thread has a current GPU of its own, at first GPU 0.
  void attach_thread() override { VOLLEY_CUDA_CHECK(cudaSetDevice(ordinal_)); }

  Result<Buffer> allocate_host(size_t bytes) override {
    const size_t size = std::max<size_t>(bytes, 64);
    void* p = nullptr;
    if (!has_memory(cudaMallocHost(&p, size))) {
      return resource_exhausted("Cannot pin " + std::to_string(bytes >> 20) + " MiB of host memory.");
    }
    std::memset(p, 0, size);
    return Buffer(p, size, [](void* data, size_t) { cudaFreeHost(data); });
  }

  void upload(void* to, const void* from, size_t bytes) override {
    if (bytes <= kSmallUpload) return edits_.upload(stream_handle_, to, from, bytes);
    staging_.upload(stream_handle_, static_cast<char*>(to), static_cast<const char*>(from), bytes);
  }
  void download(void* to, const void* from, size_t bytes) override {
    VOLLEY_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_handle_));
    synchronize();
  }
  void enqueue_upload(void* to, const void* from, size_t bytes) override {
    VOLLEY_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_handle_));
  }
  void enqueue_download(void* to, const void* from, size_t bytes) override {
    VOLLEY_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_handle_));
  }
  void enqueue_copy(void* to, const void* from, size_t bytes) override {
    VOLLEY_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_handle_));
  }
  std::unique_ptr<Fence> make_fence() override { return std::make_unique<CudaFence>(stream_handle_); }
  void synchronize() override { VOLLEY_CUDA_CHECK(cudaStreamSynchronize(stream_handle_)); }

  std::unique_ptr<StepGraph> record(const std::function<void()>& enqueue) override {
    cudaGraph_t graph = nullptr;
    stream_ = Stream(recording_, gpu_);
    VOLLEY_CUDA_CHECK(cudaStreamBeginCapture(recording_, cudaStreamCaptureModeThreadLocal));
    try {
      enqueue();
    } catch (...) {  // while a stream records, this thread could free nothing
      if (cudaStreamEndCapture(recording_, &graph) == cudaSuccess) cudaGraphDestroy(graph);
      cudaGetLastError();
      stream_ = Stream(stream_handle_, gpu_);
      throw;
    }
    VOLLEY_CUDA_CHECK(cudaStreamEndCapture(recording_, &graph));
    stream_ = Stream(stream_handle_, gpu_);
    return std::make_unique<CudaGraph>(stream_handle_, graph);
  }

  std::string name() const override { return name_; }

 private:
  // The result of an allocation. An earlier fault of the device shows at every call, and does not mean lack of memory.
  bool has_memory(cudaError_t error) const {
    if (error == cudaSuccess) return true;
    const cudaError_t before = cudaStreamQuery(stream_handle_);
    cudaGetLastError();  // clears the error, which would otherwise fail the next launch's check
    if (before != cudaSuccess && before != cudaErrorNotReady) {
      cuda::throw_fault(__FILE__, __LINE__, "cudaStreamQuery", before);
    }
    return false;
  }

  int ordinal_ = 0;
  cudaStream_t stream_handle_ = nullptr;
  cudaStream_t recording_ = nullptr;  // graphs are recorded on this stream, and run on the other
  const GpuInfo gpu_;
  Stream stream_{nullptr, GpuInfo{}};
  Staging staging_;
  SmallUploads edits_;
  const std::string name_;
};

}  // namespace

Result<GpuFacts> examine_cuda_device(int ordinal) {
  int count = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess) {
    return Error{ErrorCode::kUnavailable, std::string("No GPU can be used (") + cudaGetErrorString(e) +
                                              "): install NVIDIA's driver for it, or use --device cpu."};
  }
  if (ordinal < 0 || ordinal >= count) {
    return Error{ErrorCode::kUnavailable, "There is no GPU " + std::to_string(ordinal) + ": this machine has " +
                                              std::to_string(count) +
                                              ", counted from 0. Use one of them, or --device cpu."};
  }
  cudaDeviceProp properties = {};
  if (const cudaError_t e = cudaGetDeviceProperties(&properties, ordinal); e != cudaSuccess) {
    return cuda_error(e, "Cannot read the GPU's properties");
  }
  if (properties.major < 8) {
    return Error{ErrorCode::kUnavailable, "GPU " + std::to_string(ordinal) +
                                              " is older than compute capability 8.0 (Ampere): use --device cpu."};
  }
  size_t free = 0, total = 0;
  if (const cudaError_t e = cudaSetDevice(ordinal); e != cudaSuccess) return cuda_error(e, "Cannot use the GPU");
  if (const cudaError_t e = cudaMemGetInfo(&free, &total); e != cudaSuccess) {
    return cuda_error(e, "Cannot read the GPU's memory");
  }
  GpuFacts facts = {properties.name, static_cast<int64_t>(free), {}};
  facts.info.compute_capability = 10 * properties.major + properties.minor;
  facts.info.multiprocessors = properties.multiProcessorCount;
  facts.info.block_shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  return facts;
}

void release_cuda_device(int ordinal) {
  if (cudaSetDevice(ordinal) == cudaSuccess) (void)cudaDeviceReset();  // a GPU that cannot be reset has failed
}

Result<std::unique_ptr<Device>> make_cuda_device(int ordinal) {
  VOLLEY_ASSIGN(const GpuFacts facts, examine_cuda_device(ordinal));
  auto device = std::make_unique<CudaDevice>(facts);
  if (Status status = device->init(ordinal); !status.ok()) return status.error();
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace volley
