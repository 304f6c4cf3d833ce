#include "device/dry_run.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace volley {
namespace {

class DryFence final : public Fence {
 public:
  void set() override {}
  void wait() override {}
  double seconds_since(const Fence&) const override { return 0; }
};

class DryGraph final : public StepGraph {
 public:
  void launch() override {}
};

}  // namespace

void* no_memory() {
  return reinterpret_cast<void*>(uintptr_t{1} << 60);  // beyond what any process can map
}

int64_t measure_scratch(Stream& stream, const std::function<void(Arena&)>& run) {
  Arena arena = Arena::measuring();
  const DryRun dry(stream);
  run(arena);
  return static_cast<int64_t>(arena.peak());
}

// As an H200 with driver 580 takes it: 300 graphs of 1, 10, 60, 300 kernels and 100 of 600 took 109, 131, 239, 928 and
// 2171 KiB each, whatever the kernels' arguments, clusters and shared memory. What is above half of the driver's pieces
// of 2 MiB takes whole ones.
int64_t recorded_bytes(int64_t kernels) {
  constexpr int64_t kKib = 1 << 10, kPiece = 2 << 20;
  const int64_t of_kernels = std::max(42 * kKib + kernels * 2304, kernels * 2970);
  return of_kernels <= kPiece / 2 ? 72 * kKib + of_kernels : 128 * kKib + round_up(of_kernels, kPiece);
}

Result<Buffer> DryDevice::allocate(size_t bytes) {
  bytes_ += static_cast<int64_t>(bytes);
  return Buffer(no_memory(), std::max<size_t>(bytes, 64), [](void*, size_t) {});
}

Result<Buffer> DryDevice::allocate_host(size_t bytes) {
  if (kind() == DeviceKind::kCpu) bytes_ += static_cast<int64_t>(bytes);
  const size_t size = std::max<size_t>(bytes, 64);
  void* memory = ::operator new (size, std::align_val_t{64});
  std::memset(memory, 0, size);
  return Buffer(memory, size, [](void* data, size_t) { ::operator delete (data, std::align_val_t{64}); });
}

void DryDevice::download(void*, const void*, size_t) {
  VOLLEY_CHECK_MSG(false, "a dry run has no results");
}

std::unique_ptr<Fence> DryDevice::make_fence() {
  return std::make_unique<DryFence>();
}

std::unique_ptr<StepGraph> DryDevice::record(const std::function<void()>& enqueue) {
  if (kind() == DeviceKind::kCpu) return nullptr;
  const DryRun dry(stream_);
  enqueue();
  graph_bytes_ += recorded_bytes(dry.launches());
  return std::make_unique<DryGraph>();
}

}  // namespace volley
