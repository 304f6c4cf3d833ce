// Measures the memory of work without doing the work. Operations check their arguments and take their scratch memory as
// usual, but read no data and run no kernel, so weights and states may be memory that does not exist. Threads: as the
// stream or device.
#pragma once

#include <functional>

#include "device/arena.h"
#include "device/device.h"

namespace volley {

// During its life the stream is dry.
class DryRun {
 public:
  explicit DryRun(Stream& stream) : stream_(stream), outer_(stream.skipped_) { stream.skipped_ = &launches_; }
  ~DryRun() { stream_.skipped_ = outer_; }
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  // Kernels that would have run so far. CUDA only; the CPU's are not counted.
  int64_t launches() const { return launches_; }

 private:
  Stream& stream_;
  int64_t* outer_;
  int64_t launches_ = 0;
};

// An address with a device's alignment and no memory.
void* no_memory();

// The most that `run` takes of the arena it is given.
int64_t measure_scratch(Stream& stream, const std::function<void(Arena&)>& run);

// Upper bound on the device memory of a recorded CUDA graph with this many kernels.
int64_t recorded_bytes(int64_t kernels);

// A device with neither memory nor kernels, always dry: a start on it measures the memory that a real start takes.
class DryDevice final : public Device {
 public:
  explicit DryDevice(int threads) : stream_(threads), dry_(stream_) {}              // a CPU
  explicit DryDevice(const GpuInfo& gpu) : stream_(nullptr, gpu), dry_(stream_) {}  // that GPU

  // Memory requested so far, on the CPU including host memory. Memory given back is not subtracted.
  int64_t bytes() const { return bytes_; }
  int64_t graph_bytes() const { return graph_bytes_; }  // bytes of recorded graphs

  DeviceKind kind() const override { return stream_.kind(); }
  Stream& stream() override { return stream_; }
  Result<Buffer> allocate(size_t bytes) override;       // memory that must not be touched
  Result<Buffer> allocate_host(size_t bytes) override;  // as ever
  void attach_thread() override {}
  void upload(void*, const void*, size_t) override {}
  void download(void*, const void*, size_t) override;  // a CHECK failure: there is nothing
  void enqueue_upload(void*, const void*, size_t) override {}
  void enqueue_download(void*, const void*, size_t) override {}
  void enqueue_copy(void*, const void*, size_t) override {}
  std::unique_ptr<Fence> make_fence() override;
  void synchronize() override {}
  std::unique_ptr<StepGraph> record(const std::function<void()>& enqueue) override;
  std::string name() const override { return "dry run"; }

 private:
  Stream stream_;
  DryRun dry_;
  int64_t bytes_ = 0, graph_bytes_ = 0;
};

}  // namespace volley
