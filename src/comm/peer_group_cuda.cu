// Groups whose ranks are GPUs of this machine that reach one another's memory. Plain loads and stores alone: no NVLink
// multicast.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/comm.h"
#include "comm/gone.h"
#include "comm/gpu_claim.h"
#include "comm/peer_kernels.cuh"
#include "comm/rank_dispatch.h"
#include "device/cuda/launch.h"
#include "device/cuda/on_gpu.h"

namespace volley::comm {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(20);

// What the ranks have together. It goes with the last of them, because each one's memory is read and written by all.
class Shared {
 public:
  Shared(const std::vector<int>& gpus, std::unique_ptr<GpuClaim> claim)
      : claim_(std::move(claim)), gpus_(gpus), ranks_(gpus.size()) {}
  ~Shared();

  Status init();
  Status prepare(int rank, Device& device);
  void leave(int rank);  // the rank's stream goes

  int ranks() const { return static_cast<int>(gpus_.size()); }
  // Ranks on the GPU of this one.
  int sharing(int rank) const { return static_cast<int>(std::ranges::count(gpus_, gpus_[static_cast<size_t>(rank)])); }
  Peers peers(int rank) const;

  void abort(int rank);
  void check() const;

 private:
  struct Rank {
    Buffer memory;
    cudaStream_t stream = nullptr;             // guarded by mutex_; null: nobody looks at it
    std::atomic<const char*> fault = nullptr;  // CUDA's words for why it was aborted
  };

  void watch();

  const std::unique_ptr<GpuClaim> claim_;
  const std::vector<int> gpus_;
  std::vector<Rank> ranks_;
  uint32_t* aborted_ = nullptr;  // pinned, for all GPUs: 0, or 1 + the rank that aborted first
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread watcher_;
};

Status Shared::init() {
  const cuda::OnGpu on(gpus_.front());
  void* word = nullptr;
  if (const cudaError_t e = cudaHostAlloc(&word, sizeof(uint32_t), cudaHostAllocPortable | cudaHostAllocMapped);
      e != cudaSuccess) {
    cudaGetLastError();
    return resource_exhausted(std::string("Cannot pin host memory: ") + cudaGetErrorString(e) + ".");
  }
  aborted_ = new (word) uint32_t(0);
  return {};
}

Shared::~Shared() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  for (size_t i = 0; i < ranks_.size(); ++i) {  // who was aborted may still be on its way out
    if (ranks_[i].memory.data() == nullptr) continue;
    const cuda::OnGpu on(gpus_[i]);
    cudaDeviceSynchronize();
  }
  for (Rank& rank : ranks_) rank.memory.reset();
  if (aborted_ != nullptr) cudaFreeHost(aborted_);
}

Status Shared::prepare(int index, Device& device) {
  Rank& rank = ranks_[static_cast<size_t>(index)];
  const int gpu = gpus_[static_cast<size_t>(index)];
  VOLLEY_ASSIGN(rank.memory, device.allocate(kPeerBytes));
  const cuda::OnGpu on(gpu);
  for (const int other : gpus_) {
    if (other == gpu) continue;
    const cudaError_t e = cudaDeviceEnablePeerAccess(other, 0);
    if (e != cudaSuccess) cudaGetLastError();
    if (e == cudaSuccess || e == cudaErrorPeerAccessAlreadyEnabled) continue;
    return Error{ErrorCode::kUnavailable, "GPU " + std::to_string(gpu) + " cannot use the memory of GPU " +
                                              std::to_string(other) + ": " + cudaGetErrorString(e) + "."};
  }
  const cudaStream_t stream = cuda::native(device.stream());
  char* mailboxes = static_cast<char*>(rank.memory.data()) + sizeof(PeerHeader);
  VOLLEY_CUDA_CHECK(cudaMemsetAsync(mailboxes, 0xff, kMailboxes * kMailboxBytes, stream));  // empty
  device.synchronize();
  const std::lock_guard lock(mutex_);
  rank.stream = stream;
  if (watcher_.joinable()) return {};
  try {
    watcher_ = std::thread([this] { watch(); });
  } catch (const std::system_error&) {
    return resource_exhausted("The system gives this process no more threads: lower --tensor-parallel-size.");
  }
  return {};
}

// While one thread waits for the work of a rank, nobody may be there to learn that another rank's GPU has failed, for
// which the first one's waits. So somebody looks at all of them.
void Shared::watch() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kBetweenLooks, [this] { return stopping_; })) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].stream == nullptr) continue;
      cudaSetDevice(gpus_[i]);
      const cudaError_t e = cudaStreamQuery(ranks_[i].stream);
      if (e == cudaSuccess || e == cudaErrorNotReady) continue;
      ranks_[i].stream = nullptr;
      ranks_[i].fault = cudaGetErrorString(e);
      abort(static_cast<int>(i));
    }
  }
}

void Shared::leave(int rank) {
  abort(rank);
  const std::lock_guard lock(mutex_);
  ranks_[static_cast<size_t>(rank)].stream = nullptr;
}

Peers Shared::peers(int rank) const {
  Peers peers = {};
  for (size_t i = 0; i < ranks_.size(); ++i) {
    VOLLEY_CHECK_MSG(ranks_[i].memory.data() != nullptr, "a rank has not prepared");
    peers.memory[i] = static_cast<char*>(ranks_[i].memory.data());
  }
  peers.aborted = aborted_;
  peers.rank = rank;
  return peers;
}

void Shared::abort(int rank) {
  uint32_t nobody = 0;
  std::atomic_ref(*aborted_).compare_exchange_strong(nobody, static_cast<uint32_t>(rank) + 1);
}

void Shared::check() const {
  const uint32_t who = std::atomic_ref(*aborted_).load();
  if (who != 0) throw_gone(static_cast<int>(who) - 1, ranks(), ranks_[who - 1].fault);
}

class PeerCommunicator final : public Communicator {
 public:
  PeerCommunicator(std::shared_ptr<Shared> shared, int rank, int64_t in_parts_bytes)
      : shared_(std::move(shared)), rank_(rank), in_parts_bytes_(in_parts_bytes) {}
  ~PeerCommunicator() override { shared_->leave(rank_); }

  int rank() const override { return rank_; }
  int ranks() const override { return shared_->ranks(); }
  Status prepare(Device& device) override { return shared_->prepare(rank_, device); }
  void add_sum(Stream& stream, TensorView partial, TensorView x) override;
  void gather_columns(Stream& stream, TensorView mine, int64_t first, int64_t most, TensorView out) override;
  void check() const override { shared_->check(); }
  void abort() override { shared_->abort(rank_); }

 private:
  template <int kRanks, int V>
  void add(Stream& stream, const Peers& peers, const float* partial, float* x, int64_t count) const;
  template <int kRanks, int V>
  void gather(Stream& stream, const Peers& peers, TensorView mine, int64_t first, TensorView out) const;
  cuda::Launch grid_for(const Stream& stream, int64_t packs) const;
  // Nobody but a dry run may find that there are no peers yet.
  Peers peers(const Stream& stream) const;

  const std::shared_ptr<Shared> shared_;
  const int rank_;
  const int64_t in_parts_bytes_;
};

// As many multiprocessors as there is work for. Of several ranks on a GPU each has its part, for a kernel and the next
// one, which is there early: else those that wait could keep those that they wait for from having any.
cuda::Launch PeerCommunicator::grid_for(const Stream& stream, int64_t packs) const {
  constexpr int kFewThreads = 128;
  const int sharing = shared_->sharing(rank_);
  const int most = std::clamp(stream.gpu().multiprocessors / (sharing > 1 ? 2 * sharing : 1), 1, kMostPeerBlocks);
  const int threads = packs <= int64_t{most} * kFewThreads ? kFewThreads : kPeerThreads;
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(std::min<int64_t>(most, divide_up(packs, threads))));
  how.block = dim3(static_cast<unsigned>(threads));
  how.early = true;
  return how;
}

Peers PeerCommunicator::peers(const Stream& stream) const {
  if (stream.dry()) return {};
  shared_->check();
  return shared_->peers(rank_);
}

template <int kRanks, int V>
void PeerCommunicator::add(Stream& stream, const Peers& peers, const float* partial, float* x, int64_t count) const {
  const SumCut cut = cut_sum(count, kRanks, in_parts_bytes_);
  for (int64_t begin = 0; begin < count; begin += cut.chunk) {
    const int64_t n = std::min(cut.chunk, count - begin);
    const cuda::Launch how = grid_for(stream, n / V);
    if (kRanks > 2 && cut.in_parts) {
      cuda::launch(peer::sum_in_parts_kernel<kRanks, V>, how, stream, peers, partial + begin, x + begin,
                   static_cast<int>(n), static_cast<int>(SumCut::part(n, kRanks)));
    } else {
      cuda::launch(peer::sum_kernel<kRanks, V>, how, stream, peers, partial + begin, x + begin, static_cast<int>(n));
    }
  }
}

void PeerCommunicator::add_sum(Stream& stream, TensorView partial, TensorView x) {
  VOLLEY_CHECK(partial.dtype == DType::kF32 && x.dtype == DType::kF32 && partial.count() == x.count());
  const int64_t count = x.count();
  const Peers all = peers(stream);
  dispatch_ranks(ranks(), in_fours(partial, count) && in_fours(x, count),
                 [&]<int kRanks, int V>() { add<kRanks, V>(stream, all, partial.as<float>(), x.as<float>(), count); });
}

template <int kRanks, int V>
void PeerCommunicator::gather(Stream& stream, const Peers& peers, TensorView mine, int64_t first,
                              TensorView out) const {
  const int64_t rows = out.dim(0), width = out.dim(1), columns = mine.dim(1), chunk = gathered_rows(width);
  for (int64_t row = 0; row < rows; row += chunk) {
    const int64_t n = std::min(chunk, rows - row);
    cuda::launch(peer::gather_kernel<kRanks, V>, grid_for(stream, n * width / V), stream, peers,
                 mine.as<float>() + row * columns, static_cast<int>(columns), static_cast<int>(first),
                 out.as<float>() + row * width, static_cast<int>(n), static_cast<int>(width));
  }
}

void PeerCommunicator::gather_columns(Stream& stream, TensorView mine, int64_t first, int64_t most, TensorView out) {
  VOLLEY_CHECK(mine.dtype == DType::kF32 && out.dtype == DType::kF32 && mine.rank == 2 && out.rank == 2);
  VOLLEY_CHECK_EQ(mine.dim(0), out.dim(0));
  const int64_t columns = mine.dim(1), width = out.dim(1);
  VOLLEY_CHECK(first >= 0 && columns <= most && first + columns <= width);
  if (out.count() == 0) return;
  VOLLEY_CHECK_GE(gathered_rows(width), 1);
  const Peers all = peers(stream);
  const bool fours = in_fours(mine, columns) && in_fours(out, width) && first % 4 == 0;
  dispatch_ranks(ranks(), fours, [&]<int kRanks, int V>() { gather<kRanks, V>(stream, all, mine, first, out); });
}

Status check_gpus(const std::vector<int>& gpus) {
  for (const int gpu : gpus) {
    if (const auto facts = examine_cuda_device(gpu); !facts.ok()) return facts.error();
    for (const int other : gpus) {
      int reaches = 1;
      if (other != gpu) VOLLEY_CUDA_CHECK(cudaDeviceCanAccessPeer(&reaches, gpu, other));
      if (reaches != 0) continue;
      return Error{ErrorCode::kUnavailable, "GPU " + std::to_string(gpu) + " cannot reach the memory of GPU " +
                                                std::to_string(other) +
                                                ", which --tensor-parallel-size needs: use GPUs that are linked, or "
                                                "--data-parallel-size."};
    }
  }
  return std::ranges::count(gpus, gpus.front()) == std::ssize(gpus) ? Status() : check_kernels_load_early();
}

}  // namespace

Result<Group> make_cuda_group(const std::vector<int>& gpus, const CudaGroupOptions& options) {
  const auto ranks = static_cast<int>(gpus.size());
  VOLLEY_CHECK(ranks == 1 || ranks == 2 || ranks == 4 || ranks == kMostPeers);
  VOLLEY_RETURN_IF_ERROR(check_gpus(gpus));
  VOLLEY_ASSIGN(std::unique_ptr<GpuClaim> claim, GpuClaim::make(gpus));
  const auto shared = std::make_shared<Shared>(gpus, std::move(claim));
  VOLLEY_RETURN_IF_ERROR(shared->init());
  const int64_t in_parts = options.in_parts_bytes >= 0 ? options.in_parts_bytes : kInPartsBytes;
  Group group;
  for (int rank = 0; rank < ranks; ++rank) {
    group.push_back(std::make_unique<PeerCommunicator>(shared, rank, in_parts));
  }
  return Result<Group>(std::move(group));
}

}  // namespace volley::comm
