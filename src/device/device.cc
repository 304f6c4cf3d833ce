#include "device/device.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
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

namespace {

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
      return resource_exhausted("Cannot allocate " + std::to_string(bytes >> 20) +
                                " MiB of memory: use a smaller model, --max-model-len or --max-num-seqs.");
    }
    if (size >= (size_t{2} << 20)) madvise(p, size, MADV_HUGEPAGE);  // fewer TLB misses while streaming weights
    return Buffer(p, size, [](void* data, size_t n) { munmap(data, n); });
  }

  void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void synchronize() override {}

 private:
  ThreadPool pool_;
  Stream stream_;
};

// Whole cores granted by the cgroup's CPU quota, or 0 when there is none.
int quota_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::max(1, static_cast<int>(std::stod(quota) / period));
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  if (const int quota = quota_cores(); quota > 0) cores = std::min(cores, quota);
  return std::max(1, cores);
}

std::unique_ptr<Device> make_cpu_device(int threads) {
  return std::make_unique<CpuDevice>(threads > 0 ? threads : usable_cores());
}

}  // namespace volley
