#include "comm/comm.h"
#include "comm/nccl_layout.h"
#include "comm/node_exchange.h"
#include "comm/peer_layout.h"

namespace volley::comm {
namespace {

class DryCommunicator final : public Communicator {
 public:
  // nccl: how several processes on GPUs communicate.
  DryCommunicator(int rank, int ranks, int64_t cpu_bytes, bool nccl)
      : rank_(rank), ranks_(ranks), cpu_bytes_(cpu_bytes), nccl_(nccl) {}

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  Status prepare(Device& device) override {
    const int64_t gpu_bytes = nccl_ ? kNcclBufferBytes + nccl_reserved_bytes(ranks_) : kPeerBytes;
    const int64_t bytes = device.kind() == DeviceKind::kCpu ? cpu_bytes_ : gpu_bytes;
    if (bytes == 0) return {};
    VOLLEY_ASSIGN(memory_, device.allocate(static_cast<size_t>(bytes)));
    return {};
  }
  void add_sum(Stream& stream, TensorView partial, TensorView x) override {
    VOLLEY_CHECK(stream.dry() && partial.count() == x.count());
    if (stream.kind() == DeviceKind::kCpu) return;
    const int64_t launches =
        nccl_ ? nccl_sum_launches(x.count(), ranks_, kNcclInPartsBytes) : sum_kernels(x.count(), ranks_, kInPartsBytes);
    for (int64_t i = launches; i > 0; --i) stream.skip_launch();
  }
  void gather_columns(Stream& stream, TensorView mine, int64_t first, int64_t most, TensorView out) override {
    VOLLEY_CHECK(stream.dry() && mine.dim(0) == out.dim(0) && first + mine.dim(1) <= out.dim(1));
    VOLLEY_CHECK_LE(mine.dim(1), most);
    if (stream.kind() == DeviceKind::kCpu || out.count() == 0) return;
    const int64_t launches =
        nccl_ ? nccl_gather_launches(out.dim(0), most, ranks_) : divide_up(out.dim(0), gathered_rows(out.dim(1)));
    for (int64_t i = launches; i > 0; --i) stream.skip_launch();
  }
  void gather_logits(Stream& stream, TensorView mine, int64_t first, int64_t most, TensorView out,
                     const ops::RowSummaries& /*summaries*/) override {
    gather_columns(stream, mine, first, most, out);
  }
  bool gathers_summaries() const override { return !nccl_; }
  void check() const override {}
  void abort() override {}

 private:
  bool try_sum_and_norm(Stream& stream, TensorView /*partial*/, TensorView x, const NormAfter& /*norm*/,
                        bool /*sent*/) override {
    VOLLEY_CHECK(stream.dry());
    if (stream.kind() == DeviceKind::kCpu || nccl_) return false;
    const bool one_kernel = sums_and_norms(x.dim(0), x.dim(1), ranks_, stream.gpu().multiprocessors);
    if (one_kernel) stream.skip_launch();
    return one_kernel;
  }

  const int rank_, ranks_;
  const int64_t cpu_bytes_;
  const bool nccl_;
  Buffer memory_;
};

std::vector<int> gpus_from(int first, int count) {
  std::vector<int> gpus;
  for (int i = 0; i < count; ++i) gpus.push_back(first + i);
  return gpus;
}

}  // namespace

Group make_dry_group(int ranks) {
  return make_dry_group(ranks, 0, ranks);
}

// On the CPU the first rank's memory also receives data from other processes.
Group make_dry_group(int ranks, int first, int local) {
  Group group;
  for (int rank = first; rank < first + local; ++rank) {
    const int64_t bytes = rank == first ? NodeExchange::bytes(ranks - local) : 0;
    group.push_back(std::make_unique<DryCommunicator>(rank, ranks, bytes, local < ranks));
  }
  return group;
}

void Communicator::add_sum_and_norm(Stream& stream, TensorView partial, TensorView x, const NormAfter& norm,
                                    bool sent) {
  VOLLEY_CHECK(partial.dtype == DType::kF32 && partial.count() == x.count());
  ops::check_rms_norm(stream, x, norm.weight, {}, norm.y, norm.copy);
  if (try_sum_and_norm(stream, partial, x, norm, sent)) return;
  VOLLEY_CHECK(!sent);
  add_sum(stream, partial, x);
  ops::rms_norm(stream, x, norm.weight, norm.eps, {}, norm.y, norm.copy);
}

Result<Group> make_group(DeviceKind device, int ranks, int first_gpu) {
  VOLLEY_CHECK_GE(ranks, 1);
  if (device == DeviceKind::kCpu) return make_cpu_group(ranks);
  return make_cuda_group(gpus_from(first_gpu, ranks));
}

Result<Group> make_group_of_nodes(DeviceKind device, int ranks, int first, int local, int first_gpu,
                                  std::vector<NodeLink> links) {
  if (device == DeviceKind::kCpu) return make_node_group(ranks, first, local, std::move(links));
  return make_nccl_group(ranks, first, gpus_from(first_gpu, local), std::move(links));
}

}  // namespace volley::comm
