#include "comm/peer_shared_cuda.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>
#include <utility>

#include "comm/gone.h"
#include "device/cuda/launch.h"
#include "device/cuda/on_gpu.h"

namespace volley::comm {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(20);

Status check_gpus(const std::vector<int>& gpus, const PeerWords& words) {
  for (const int gpu : gpus) {
    if (const auto facts = examine_cuda_device(gpu); !facts.ok()) return facts.error();
    for (const int other : gpus) {
      int reaches = 1;
      if (other != gpu) VOLLEY_CUDA_CHECK(cudaDeviceCanAccessPeer(&reaches, gpu, other));
      if (reaches != 0) continue;
      return Error{ErrorCode::kUnavailable, "GPU " + std::to_string(gpu) + " cannot reach the memory of GPU " +
                                                std::to_string(other) + ", which " + words.option +
                                                " needs: use GPUs that are linked, or " + words.instead + "."};
    }
  }
  return std::ranges::count(gpus, gpus.front()) == std::ssize(gpus) ? Status() : check_kernels_load_early();
}

}  // namespace

Result<std::shared_ptr<PeerShared>> PeerShared::make(const std::vector<int>& gpus, const PeerWords& words) {
  VOLLEY_RETURN_IF_ERROR(check_gpus(gpus, words));
  VOLLEY_ASSIGN(std::unique_ptr<GpuClaim> claim, GpuClaim::make(gpus));
  std::shared_ptr<PeerShared> shared(new PeerShared(gpus, words, std::move(claim)));
  const cuda::OnGpu on(gpus.front());
  void* word = nullptr;
  if (const cudaError_t e = cudaHostAlloc(&word, sizeof(uint32_t), cudaHostAllocPortable | cudaHostAllocMapped);
      e != cudaSuccess) {
    cudaGetLastError();
    return resource_exhausted(std::string("Cannot pin host memory: ") + cudaGetErrorString(e) + ".");
  }
  shared->aborted_ = new (word) uint32_t(0);
  return shared;
}

PeerShared::PeerShared(const std::vector<int>& gpus, const PeerWords& words, std::unique_ptr<GpuClaim> claim)
    : claim_(std::move(claim)), gpus_(gpus), words_(words), members_(gpus.size()) {}

PeerShared::~PeerShared() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  for (size_t i = 0; i < members_.size(); ++i) {  // an aborted member may still be leaving
    if (members_[i].memory.data() == nullptr) continue;
    const cuda::OnGpu on(gpus_[i]);
    cudaDeviceSynchronize();
  }
  for (Member& member : members_) member.memory.reset();
  if (aborted_ != nullptr) cudaFreeHost(aborted_);
}

int PeerShared::sharing(int member) const {
  return static_cast<int>(std::ranges::count(gpus_, gpu(member)));
}

char* PeerShared::memory(int member) const {
  VOLLEY_CHECK_MSG(prepared(member), "a member of the group has not prepared");
  return static_cast<char*>(members_[static_cast<size_t>(member)].memory.data());
}

Status PeerShared::prepare(int member, Device& device, int64_t bytes) {
  VOLLEY_ASSIGN(members_[static_cast<size_t>(member)].memory, device.allocate(static_cast<size_t>(bytes)));
  const cuda::OnGpu on(gpu(member));
  for (const int other : gpus_) {
    if (other == gpu(member)) continue;
    const cudaError_t e = cudaDeviceEnablePeerAccess(other, 0);
    if (e != cudaSuccess) cudaGetLastError();
    if (e == cudaSuccess || e == cudaErrorPeerAccessAlreadyEnabled) continue;
    return Error{ErrorCode::kUnavailable, "GPU " + std::to_string(gpu(member)) + " cannot use the memory of GPU " +
                                              std::to_string(other) + ": " + cudaGetErrorString(e) + "."};
  }
  return {};
}

Status PeerShared::watch(int member, const Stream& stream) {
  const std::lock_guard lock(mutex_);
  members_[static_cast<size_t>(member)].stream = cuda::native(stream);
  if (watcher_.joinable()) return {};
  try {
    watcher_ = std::thread([this] { look(); });
  } catch (const std::system_error&) {
    return resource_exhausted(std::string("The system gives this process no more threads, which ") + words_.option +
                              " needs.");
  }
  return {};
}

// While one thread waits for a member's work, that work may wait for another member whose GPU has failed, which no
// thread would notice. So this thread checks all of them.
void PeerShared::look() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kBetweenLooks, [this] { return stopping_; })) {
    for (size_t i = 0; i < members_.size(); ++i) {
      if (members_[i].stream == nullptr) continue;
      cudaSetDevice(gpus_[i]);
      const cudaError_t e = cudaStreamQuery(members_[i].stream);
      if (e == cudaSuccess || e == cudaErrorNotReady) continue;
      members_[i].stream = nullptr;
      members_[i].fault = cudaGetErrorString(e);
      abort(static_cast<int>(i));
    }
  }
}

// Ends all waiting kernels on GPUs before a thread waits here.
void PeerShared::leave(int member) {
  abort(member);
  const std::lock_guard lock(mutex_);
  members_[static_cast<size_t>(member)].stream = nullptr;
}

void PeerShared::abort(int member) {
  uint32_t nobody = 0;
  std::atomic_ref(*aborted_).compare_exchange_strong(nobody, static_cast<uint32_t>(member) + 1);
}

void PeerShared::check() const {
  const uint32_t who = std::atomic_ref(*aborted_).load();
  if (who != 0) throw_gone(static_cast<int>(who) - 1, members(), members_[who - 1].fault, words_.member);
}

}  // namespace volley::comm
