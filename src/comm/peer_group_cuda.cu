// Groups whose ranks are GPUs of this machine with access to one another's memory. Plain loads and stores only: no
// NVLink multicast.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "comm/comm.h"
#include "comm/peer_kernels.cuh"
#include "comm/peer_norm.cuh"
#include "comm/peer_shared_cuda.h"
#include "comm/rank_dispatch.h"
#include "device/cuda/launch.h"
#include "device/cuda/on_gpu.h"

namespace volley::comm {
namespace {

constexpr PeerWords kRanks = {"Rank", "--tensor-parallel-size", "--data-parallel-size"};

class PeerCommunicator final : public Communicator {
 public:
  PeerCommunicator(std::shared_ptr<PeerShared> shared, int rank, int64_t in_parts_bytes, int room, bool products_send)
      : shared_(std::move(shared)),
        rank_(rank),
        in_parts_bytes_(in_parts_bytes),
        room_(room),
        products_send_(products_send) {}
  ~PeerCommunicator() override { shared_->leave(rank_); }

  int rank() const override { return rank_; }
  int ranks() const override { return shared_->members(); }
  Status prepare(Device& device) override;
  void add_sum(Stream& stream, TensorView partial, TensorView x) override;
  void gather_columns(Stream& stream, TensorView mine, int64_t first, int64_t most, TensorView out) override {
    gather_logits(stream, mine, first, most, out, {});
  }
  void gather_logits(Stream& stream, TensorView mine, int64_t first, int64_t most, TensorView out,
                     const ops::RowSummaries& summaries) override;
  bool gathers_summaries() const override { return true; }
  std::optional<ops::SentSums> sent_sums(const Stream& stream, TensorView x) override;
  void check() const override { shared_->check(); }
  void abort() override { shared_->abort(rank_); }

 private:
  bool try_sum_and_norm(Stream& stream, TensorView partial, TensorView x, const NormAfter& norm, bool sent) override;
  template <int kRanks, int V>
  void add(Stream& stream, const Peers& peers, const float* partial, float* x, int64_t count) const;
  template <int kRanks, int V>
  void gather(Stream& stream, const Peers& peers, TensorView mine, int64_t first, TensorView out,
              const uint8_t* whole) const;
  cuda::Launch grid_for(int64_t packs) const;
  // Only a dry run may see that there are no peers yet.
  Peers peers(const Stream& stream) const;

  const std::shared_ptr<PeerShared> shared_;
  const int rank_;
  const int64_t in_parts_bytes_;
  const int room_;  // blocks of a kernel that can run at once, on every rank's GPU
  const bool products_send_;
};

Status PeerCommunicator::prepare(Device& device) {
  VOLLEY_RETURN_IF_ERROR(shared_->prepare(rank_, device, kPeerBytes));
  const cuda::OnGpu on(shared_->gpu(rank_));
  char* mailboxes = shared_->memory(rank_) + sizeof(PeerHeader);
  VOLLEY_CUDA_CHECK(
      cudaMemsetAsync(mailboxes, 0xff, kMailboxes * kMailboxBytes, cuda::native(device.stream())));  // empty
  device.synchronize();
  return shared_->watch(rank_, device.stream());
}

cuda::Launch PeerCommunicator::grid_for(int64_t packs) const {
  constexpr int kFewThreads = 128;
  const int threads = packs <= int64_t{room_} * kFewThreads ? kFewThreads : kPeerThreads;
  return {.grid = cuda::dims(std::min<int64_t>(room_, divide_up(packs, threads))),
          .block = cuda::dims(threads),
          .early = true};
}

Peers PeerCommunicator::peers(const Stream& stream) const {
  if (stream.dry()) return {};
  shared_->check();
  Peers peers = {};
  for (int i = 0; i < ranks(); ++i) peers.memory[i] = shared_->memory(i);
  peers.aborted = shared_->aborted();
  peers.rank = rank_;
  return peers;
}

template <int kRanks, int V>
void PeerCommunicator::add(Stream& stream, const Peers& peers, const float* partial, float* x, int64_t count) const {
  const SumCut cut = cut_sum(count, kRanks, in_parts_bytes_);
  for (int64_t begin = 0; begin < count; begin += cut.chunk) {
    const int64_t n = std::min(cut.chunk, count - begin);
    const cuda::Launch how = grid_for(n / V);
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
  dispatch_ranks<kMostPeers>(ranks(), in_fours(partial, count) && in_fours(x, count), [&]<int kRanks, int V>() {
    add<kRanks, V>(stream, all, partial.as<float>(), x.as<float>(), count);
  });
}

std::optional<ops::SentSums> PeerCommunicator::sent_sums(const Stream& stream, TensorView x) {
  if (stream.dry() || !products_send_ || !sums_and_norms(x.dim(0), x.dim(1), ranks(), room_)) return std::nullopt;
  // With two ranks all addends go to both, the farther one first; else each part goes to the rank that adds it.
  const Peers all = peers(stream);
  const auto mailbox = [&](int rank) { return reinterpret_cast<float*>(all.memory[rank] + sizeof(PeerHeader)); };
  ops::SentSums sent;
  sent.turns = &reinterpret_cast<const PeerHeader*>(all.memory[rank_])->blocks[0].kernels;
  if (ranks() == 2) {
    sent.to[0] = mailbox(1 - rank_) + rank_ * x.count();
    sent.to[1] = mailbox(rank_) + rank_ * x.count();
    return sent;
  }
  const int64_t part = SumCut::part(x.count(), ranks());
  sent.part = static_cast<uint32_t>(part);
  for (int owner = 0; owner < ranks(); ++owner) sent.to[owner] = mailbox(owner) + (rank_ - owner) * part;
  return sent;
}

bool PeerCommunicator::try_sum_and_norm(Stream& stream, TensorView partial, TensorView x, const NormAfter& norm,
                                        bool sent) {
  const int64_t rows = x.dim(0), n = x.dim(1);
  if (!sums_and_norms(rows, n, ranks(), room_)) return false;
  VOLLEY_CHECK(in_fours(partial, n) && in_fours(x, n));
  const Peers all = peers(stream);
  const auto count = static_cast<int>(x.count());
  const auto part = static_cast<int>(SumCut::part(count, ranks()));
  const ops::NormArgs args = ops::norm_args(x, norm.weight, norm.eps, norm.y, norm.copy);
  dispatch_ranks<kMostPeers>(ranks(), true, [&]<int kRanks, int V>() {
    if constexpr (kRanks > 1 && V == 4) {
      const auto kernel =
          sent ? peer::sum_norm_kernel_for<kRanks, true>(n) : peer::sum_norm_kernel_for<kRanks, false>(n);
      cuda::launch(kernel,
                   {.grid = cuda::dims(std::max<int64_t>(rows, std::min(room_, peer::kNormHelpers))),
                    .block = dim3(peer::kNormThreads),
                    .early = true},
                   stream, all, partial.as<float>(), x.as<float>(), count, part, args);
    }
  });
  return true;
}

template <int kRanks, int V>
void PeerCommunicator::gather(Stream& stream, const Peers& peers, TensorView mine, int64_t first, TensorView out,
                              const uint8_t* whole) const {
  const auto rows = static_cast<int>(out.dim(0)), width = static_cast<int>(out.dim(1));
  const int64_t most = gathered_rows(width);
  const int64_t most_summaries = gathered_rows(ops::summary_groups(width) * int64_t{sizeof(ops::GroupSummary) / 4});
  for (int part = 0; part * most < rows; ++part) {
    cuda::launch(peer::gather_kernel<kRanks, V>, grid_for(std::min<int64_t>(most, rows) * width / V), stream, peers,
                 mine.as<float>(), static_cast<int>(mine.dim(1)), static_cast<int>(first), out.as<float>(), rows, width,
                 whole, part, static_cast<int>(most), static_cast<int>(most_summaries));
  }
}

void PeerCommunicator::gather_logits(Stream& stream, TensorView mine, int64_t first, int64_t most, TensorView out,
                                     const ops::RowSummaries& summaries) {
  VOLLEY_CHECK(mine.dtype == DType::kF32 && out.dtype == DType::kF32 && mine.rank == 2 && out.rank == 2);
  VOLLEY_CHECK_EQ(mine.dim(0), out.dim(0));
  const int64_t columns = mine.dim(1), width = out.dim(1);
  VOLLEY_CHECK(first >= 0 && columns <= most && first + columns <= width);
  if (out.count() == 0) return;
  VOLLEY_CHECK_GE(gathered_rows(width), 1);
  const Peers all = peers(stream);
  const bool fours = in_fours(mine, columns) && in_fours(out, width) && first % 4 == 0;
  VOLLEY_CHECK(summaries.whole == nullptr || (fours && first % ops::kSummaryGroup == 0));
  dispatch_ranks<kMostPeers>(
      ranks(), fours, [&]<int kRanks, int V>() { gather<kRanks, V>(stream, all, mine, first, out, summaries.whole); });
}

}  // namespace

Result<Group> make_cuda_group(const std::vector<int>& gpus, const CudaGroupOptions& options) {
  const auto ranks = static_cast<int>(gpus.size());
  if (ranks > kMostPeers) {
    return unimplemented(std::to_string(ranks) + " ranks on GPUs of one machine are not built: up to " +
                         std::to_string(kMostPeers) + " are; give each machine its part with --nnodes.");
  }
  VOLLEY_CHECK(ranks == 1 || ranks == 2 || ranks == 4 || ranks == kMostPeers);
  VOLLEY_ASSIGN(const std::shared_ptr<PeerShared> shared, PeerShared::make(gpus, kRanks));
  const int64_t in_parts = options.in_parts_bytes >= 0 ? options.in_parts_bytes : kInPartsBytes;
  // Ranks that share a GPU divide it, for a kernel and the next one, which starts early: otherwise waiting kernels
  // could leave no room for those that they wait for.
  int room = kMostPeerBlocks;
  bool products_send = true;
  for (int rank = 0; rank < ranks; ++rank) {
    const cuda::OnGpu on(shared->gpu(rank));  // restores the thread's current GPU
    VOLLEY_ASSIGN(const GpuFacts facts, examine_cuda_device(shared->gpu(rank)));
    const int sharing = shared->sharing(rank);
    products_send = products_send && (sharing == 1 || options.shared_gpus_send);
    room = std::max(1, std::min(room, facts.info.multiprocessors / (sharing > 1 ? 2 * sharing : 1)));
  }
  Group group;
  for (int rank = 0; rank < ranks; ++rank) {
    group.push_back(std::make_unique<PeerCommunicator>(shared, rank, in_parts, room, products_send));
  }
  return Result<Group>(std::move(group));
}

}  // namespace volley::comm
