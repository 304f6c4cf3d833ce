// Collective operations of a tensor-parallel group: sums, and rows gathered side by side. A rank is a thread with a
// device, a part of the weights and a communicator of its own, in one process or in several. All ranks make the same
// calls in the same order, with tensors of the same shapes unless a call says otherwise. Three kinds: threads on CPUs,
// over TCP where there are several processes; GPUs of one process that write into one another's memory; GPUs of several
// processes, over NCCL.
//
// Batch invariance: every element is an fp32 sum in one fixed order, so its bits depend only on the ranks' addends, and
// are the same on all ranks. Neighbours are added, then neighbouring sums.
#pragma once

#include <volley/result.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/tensor.h"
#include "net/connection.h"
#include "ops/linear/cuda/sent_sums.h"
#include "ops/linear/row_summaries.h"
#include "ops/norm/norm.h"

namespace volley::comm {

inline constexpr int kMostGroupRanks = 16;

// An RMSNorm of x after the sum: ops::rms_norm(stream, x, weight, eps, {}, y, copy).
struct NormAfter {
  TensorView weight;
  float eps = 0;
  ops::Input y;
  ops::FeatureBlock copy = {};
};

// Threads: abort() and check() from any; everything else by the rank's own. On the CPU calls wait for the other ranks;
// on GPUs the enqueued work waits, in the stream's order. Once a rank has been aborted, calls under way and all later
// ones throw DeviceFault ("Rank 1 of 4 is gone ..."). A dry stream does nothing and waits for no rank.
class Communicator {
 public:
  virtual ~Communicator() = default;  // as abort(): the others learn that this rank has left

  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // Allocates the device memory that calls use; calls must use this device's stream. All ranks must have returned from
  // this before the first call, and before a graph records one. The device must outlive the communicator.
  // kResourceExhausted: too little memory. Over NCCL this waits for all ranks, so each needs a thread of its own; it
  // throws DeviceFault once a rank is gone, and returns kUnavailable for an error of NCCL.
  virtual Status prepare(Device& device) = 0;

  // x += ((p0 + p1) + (p2 + p3)) + ..., p being the ranks' `partial`; the sum is added to x last. Both: [rows, n] fp32
  // without gaps; x has the same values on all ranks, before and after. `partial` may be reused on return; on a GPU in
  // the stream's order.
  virtual void add_sum(Stream& stream, TensorView partial, TensorView x) = 0;
  // The same, then the norm, with the bits of the two calls in sequence; in one kernel where possible. sent: there is
  // no `partial`; the previous call on the stream was a product that sent it to the place that sent_sums() returned.
  void add_sum_and_norm(Stream& stream, TensorView partial, TensorView x, const NormAfter& norm, bool sent = false);
  // Where a product may send the partial of the next call, which must be add_sum_and_norm() to x (ops::End::sent). Both
  // kernels run side by side: the product must not read what add_sum_and_norm() writes. Each rank may decide by itself
  // whether its product sends. No value where sending is not possible.
  virtual std::optional<ops::SentSums> sent_sums(const Stream& /*stream*/, TensorView /*x*/) { return std::nullopt; }
  // out: the ranks' `mine` side by side in rank order. mine: [rows, this rank's columns] fp32, possibly no columns;
  // `first`: the number of columns of all earlier ranks; `most`: the largest number of columns of any rank. out: [rows,
  // all columns], on every rank. A NaN may arrive as another NaN.
  virtual void gather_columns(Stream& stream, TensorView mine, int64_t first, int64_t most, TensorView out) = 0;
  // The same for a `mine` that linear() made with `summaries`: summarised rows are gathered as summaries, with outputs
  // numbered within the whole row. REQUIRES: gathers_summaries(); every rank but the last has whole groups; numbers of
  // columns are multiples of 4.
  virtual void gather_logits(Stream& /*stream*/, TensorView /*mine*/, int64_t /*first*/, int64_t /*most*/,
                             TensorView /*out*/, const ops::RowSummaries& /*summaries*/) {
    VOLLEY_CHECK_MSG(false, "summaries are not gathered here");
  }
  virtual bool gathers_summaries() const { return false; }

  // Throws the DeviceFault of an aborted group. Work enqueued on a GPU before the abort has no valid results, so call
  // this when results have arrived.
  virtual void check() const = 0;
  // Leaves the group because this rank has failed or ends. Ranks that wait for it, or call later, get a DeviceFault.
  virtual void abort() = 0;

 private:
  // Does both in one kernel if possible; the answer is the same on all ranks. Arguments are checked.
  virtual bool try_sum_and_norm(Stream& /*stream*/, TensorView /*partial*/, TensorView /*x*/, const NormAfter& /*norm*/,
                                bool /*sent*/) {
    return false;
  }
};

using Group = std::vector<std::unique_ptr<Communicator>>;  // by rank, of this process's ranks

// A group of ranks that are threads of this process on CPU devices. They share memory.
Group make_cpu_group(int ranks);

// The connection to another process of a group, and the ranks of that process. It carries sums (on GPUs only the news
// that the process is gone).
struct NodeLink {
  std::unique_ptr<net::Connection> connection;
  int first_rank = 0, ranks = 0;
};
// Ranks [first, first + local) of `ranks`, likewise; the other ranks are in the processes of `links`, which call this
// too. The bits are the same as in one process. Floats are sent unchanged.
Group make_node_group(int ranks, int first, int local, std::vector<NodeLink> links);

// How a group on GPUs works, for measurements and tests.
struct CudaGroupOptions {
  // Sums of at least so many bytes are made in parts (peer_layout.h, nccl_layout.h); negative: the measured best.
  int64_t in_parts_bytes = -1;
  // Whether products also send for ranks that share a GPU: three kernels of each rank must fit there at once.
  bool shared_gpus_send = false;
};
// Ranks that are threads of this process, each on the GPU of that number; there may be 1, 2, 4 or 8. Several ranks on
// one GPU are for tests only, with few other kernels on that GPU. kUnavailable where GPUs cannot reach each other's
// memory; kFailedPrecondition where a living group has two of them, or kernels load late; kUnimplemented without CUDA,
// and for more than 8.
Result<Group> make_cuda_group(const std::vector<int>& gpus, const CudaGroupOptions& options = {});

// Ranks [first, first + gpus.size()) of `ranks` (1, 2, 4, 8 or 16), each a thread of this process on the GPU of that
// number, over NCCL; the others are in the processes of `links`, which call this, too. Waits for the process with rank
// 0, at most a minute. The bits are those of the groups above. Each rank's prepare() must run on a thread of its own,
// and recorded graphs must be destroyed before the group. kUnavailable: there is no NCCL, or no such GPU, or another
// process is gone; the rest as make_cuda_group().
Result<Group> make_nccl_group(int ranks, int first, const std::vector<int>& gpus, std::vector<NodeLink> links,
                              const CudaGroupOptions& options = {});
// The version of this process's NCCL, as "2.27.5". kUnavailable, with advice, if there is no usable one; kUnimplemented
// without CUDA.
Result<std::string> nccl_version();

// make_cpu_group(), or make_cuda_group() on as many GPUs as ranks from `first_gpu` on.
Result<Group> make_group(DeviceKind device, int ranks, int first_gpu);
// Ranks [first, first + local) of a group of several processes: make_node_group(), or make_nccl_group() on `local` GPUs
// from `first_gpu` on.
Result<Group> make_group_of_nodes(DeviceKind device, int ranks, int first, int local, int first_gpu,
                                  std::vector<NodeLink> links);

// Ranks for dry runs: each uses only dry streams, and takes as much of a dry device as a real rank would. All ranks of
// a group, or [first, first + local) if the others are in other processes.
Group make_dry_group(int ranks);
Group make_dry_group(int ranks, int first, int local);

}  // namespace volley::comm
