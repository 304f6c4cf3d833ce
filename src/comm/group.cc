#include "comm/comm.h"
#include "comm/node_exchange.h"
#include "comm/peer_layout.h"

namespace volley::comm {
namespace {

class DryCommunicator final : public Communicator {
 public:
  DryCommunicator(int rank, int ranks, int64_t cpu_bytes) : rank_(rank), ranks_(ranks), cpu_bytes_(cpu_bytes) {}

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  Status prepare(Device& device) override {
    const int64_t bytes = device.kind() == DeviceKind::kCpu ? cpu_bytes_ : kPeerBytes;
    if (bytes == 0) return {};
    VOLLEY_ASSIGN(memory_, device.allocate(static_cast<size_t>(bytes)));
    return {};
  }
  void add_sum(Stream& stream, TensorView partial, TensorView x) override {
    VOLLEY_CHECK(stream.dry() && partial.count() == x.count());
    if (stream.kind() == DeviceKind::kCpu) return;
    for (int64_t i = sum_kernels(x.count(), ranks_, kInPartsBytes); i > 0; --i) stream.skip_launch();
  }
  void gather_columns(Stream& stream, TensorView mine, int64_t first, TensorView out) override {
    VOLLEY_CHECK(stream.dry() && mine.dim(0) == out.dim(0) && first + mine.dim(1) <= out.dim(1));
    if (stream.kind() == DeviceKind::kCpu || out.count() == 0) return;
    for (int64_t i = divide_up(out.dim(0), gathered_rows(out.dim(1))); i > 0; --i) stream.skip_launch();
  }
  void check() const override {}
  void abort() override {}

 private:
  const int rank_, ranks_;
  const int64_t cpu_bytes_;
  Buffer memory_;
};

}  // namespace

Group make_dry_group(int ranks) {
  return make_dry_group(ranks, 0, ranks);
}

// The first one's memory is for what comes from other processes.
Group make_dry_group(int ranks, int first, int local) {
  Group group;
  for (int rank = first; rank < first + local; ++rank) {
    const int64_t bytes = rank == first ? NodeExchange::bytes(ranks - local) : 0;
    group.push_back(std::make_unique<DryCommunicator>(rank, ranks, bytes));
  }
  return group;
}

Result<Group> make_group(DeviceKind device, int ranks, int first_gpu) {
  VOLLEY_CHECK_GE(ranks, 1);
  if (device == DeviceKind::kCpu) return make_cpu_group(ranks);
  std::vector<int> gpus;
  for (int rank = 0; rank < ranks; ++rank) gpus.push_back(first_gpu + rank);
  return make_cuda_group(gpus);
}

}  // namespace volley::comm
