#include "device/device.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "device/cpu/thread_pool.h"

namespace volley {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    release_ = std::exchange(other.release_, nullptr);
  }
  return *this;
}

void Buffer::reset() {
  if (data_ != nullptr) release_(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

TensorView Buffer::view(DType dtype, std::initializer_list<int64_t> dims) const {
  TensorView v(data_, dtype, dims);
  VOLLEY_CHECK_LE(static_cast<size_t>(v.bytes()), bytes_);
  return v;
}

Stream::Stream(ThreadPool& pool) : kind_(DeviceKind::kCpu), pool_(&pool), threads_(pool.threads()) {}

namespace {

// Work on the CPU is done when the call returns, so a point in the stream is a moment in time.
class CpuFence final : public Fence {
 public:
  void set() override { moment_ = std::chrono::steady_clock::now(); }
  void wait() override {}
  double seconds_since(const Fence& earlier) const override {
    return std::chrono::duration<double>(moment_ - static_cast<const CpuFence&>(earlier).moment_).count();
  }

 private:
  std::chrono::steady_clock::time_point moment_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : pool_(threads), stream_(pool_) {}

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  Stream& stream() override { return stream_; }

  // Anonymous mappings: zeroed, page-aligned, and given back to the system at once when freed. Pages are taken when
  // they are first written, so a large KV pool costs nothing until it is used.
  Result<Buffer> allocate(size_t bytes) override {
    const size_t size = std::max<size_t>(bytes, 64);
    void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
      return resource_exhausted(
          "Cannot allocate " + std::to_string(bytes >> 20) +
          " MiB of memory: use a smaller model, or lower --max-model-len, --max-num-seqs or --max-num-batched-tokens.");
    }
    if (size >= (size_t{2} << 20)) madvise(p, size, MADV_HUGEPAGE);  // fewer TLB misses while streaming weights
    return Buffer(p, size, [](void* data, size_t n) { munmap(data, n); });
  }

  void upload(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void attach_thread() override {}
  Result<Buffer> allocate_host(size_t bytes) override { return allocate(bytes); }
  void enqueue_upload(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void enqueue_download(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  // Copied by all threads: a state of a recurrent model is tens of megabytes.
  void enqueue_copy(void* to, const void* from, size_t bytes) override {
    constexpr size_t kPiece = size_t{256} << 10;
    const auto pieces = static_cast<int64_t>((bytes + kPiece - 1) / kPiece);
    pool_.parallel_for(pieces, [&](int64_t i, int) {
      const size_t begin = static_cast<size_t>(i) * kPiece;
      std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                  std::min(kPiece, bytes - begin));
    });
  }
  std::unique_ptr<Fence> make_fence() override { return std::make_unique<CpuFence>(); }
  void synchronize() override {}
  std::unique_ptr<StepGraph> record(const std::function<void()>&) override { return nullptr; }
  std::string name() const override { return {}; }

 private:
  // memcpy must not see a null pointer, and an empty vector's data() may be one.
  static void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  ThreadPool pool_;
  Stream stream_;
};

// Whole cores granted by the cgroup's CPU quota, or 0 when there is none.
int quota_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || period <= 0) return 0;
  const double granted = std::strtod(quota.c_str(), nullptr);  // "max" is 0: no quota
  return granted > 0 ? std::max(1, static_cast<int>(granted / period)) : 0;
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof(set), &set) == 0
                  ? CPU_COUNT(&set)
                  : static_cast<int>(std::thread::hardware_concurrency());  // more CPUs than the set has bits
  if (const int quota = quota_cores(); quota > 0) cores = std::min(cores, quota);
  return std::max(1, cores);
}

Result<std::unique_ptr<Device>> make_cpu_device(int threads) {
  const int count = threads > 0 ? threads : usable_cores();
  try {
    return std::unique_ptr<Device>(std::make_unique<CpuDevice>(count));
  } catch (const std::system_error&) {
    return resource_exhausted("The system does not give this process " + std::to_string(count) +
                              " threads: lower --threads.");
  }
}

}  // namespace volley
