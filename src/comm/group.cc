#include "comm/comm.h"
#include "comm/peer_layout.h"

namespace volley::comm {
namespace {

class DryCommunicator final : public Communicator {
 public:
  DryCommunicator(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  Status prepare(Device& device) override {
    if (device.kind() == DeviceKind::kCpu) return {};
    VOLLEY_ASSIGN(memory_, device.allocate(kPeerBytes));
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
  Buffer memory_;
};

}  // namespace

Group make_dry_group(int ranks) {
  Group group;
  for (int rank = 0; rank < ranks; ++rank) group.push_back(std::make_unique<DryCommunicator>(rank, ranks));
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
