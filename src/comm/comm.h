// What the ranks of a tensor-parallel group say to one another: sums and rows side by side. A rank is a thread with a
// device, a part of the weights and a communicator of its own, in one process or in several. All ranks make the same
// calls in the same order, with tensors of the same shapes but where a call says otherwise.
// Three kinds: threads on CPUs, over TCP where there are several processes; GPUs of one process that write into one
// another's memory; GPUs of several processes, over NCCL.
//
// Batch invariance: every element is a sum in one order in fp32, whatever lies around it, so its bits depend on the
// ranks' addends alone, and are the same on all ranks. Neighbours are added, then neighbouring sums: a rank that makes
// such a sum itself stands for two of half its size (model::PartSums).
#pragma once

#include <volley/result.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/tensor.h"
#include "net/connection.h"
#include "ops/linear/row_summaries.h"
#include "ops/linear/sent_sums.h"
#include "ops/norm/norm.h"

namespace volley::comm {

inline constexpr int kMostGroupRanks = 8;

// An RMSNorm of what a sum leaves in x: ops::rms_norm(stream, x, weight, eps, {}, y, copy).
struct NormAfter {
  TensorView weight;
  float eps = 0;
  ops::Input y;
  ops::FeatureBlock copy = {};
};

// Threads: abort() and check() from any; everything else by the rank's own. On the CPU calls wait for the other ranks;
// on GPUs their work does, in the stream's order. Calls throw DeviceFault ("Rank 1 of 4 is gone ...") instead, and from
// then on, once a rank has been aborted. A dry stream does nothing and waits for nobody.
class Communicator {
 public:
  virtual ~Communicator() = default;  // as abort(): the others learn that this rank takes part no more

  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // Allocates the device memory that calls use; they are given this device's stream. The first call, and a graph that
  // records one, must come after all ranks have returned from this. The device must outlive the communicator.
  // kResourceExhausted where there is no memory. Over NCCL it waits for all ranks to come, which are threads then: it
  // throws DeviceFault once one is gone, and kUnavailable is what NCCL refuses.
  virtual Status prepare(Device& device) = 0;

  // x += ((p0 + p1) + (p2 + p3)) + ..., p being the ranks' `partial`; the sum is added to x last. Both: [rows, n] fp32
  // without gaps; x has the same values on all ranks before, and after. `partial` is free again on return; on a GPU in
  // the order of the stream.
  virtual void add_sum(Stream& stream, TensorView partial, TensorView x) = 0;
  // The same and then the norm, with the bits of one after the other; where it can be, in one kernel. sent: `partial`
  // is not there, but was sent to where sent_sums() said by a product, the call before this one on the stream.
  void add_sum_and_norm(Stream& stream, TensorView partial, TensorView x, const NormAfter& norm, bool sent = false);
  // Where a product may send the partial of the next call, which must be add_sum_and_norm() to x (ops::End::sent). They
  // run side by side: the product must read nothing that the other one writes. A rank may do so whatever the others do.
  // Nothing where there is no such place.
  virtual std::optional<ops::SentSums> sent_sums(const Stream& /*stream*/, TensorView /*x*/) { return std::nullopt; }
  // out: the ranks' `mine` side by side in rank order. mine: [rows, its columns] fp32, of which a rank may have none;
  // `first`: the columns of the ranks before; `most`: those of the rank that has most, the same number on all ranks.
  // out: [rows, all columns]; on every rank. A NaN may come as another one.
  virtual void gather_columns(Stream& stream, TensorView mine, int64_t first, int64_t most, TensorView out) = 0;
  // The same where linear() has made `mine` with `summaries`: of rows that it summarised the summaries, with outputs
  // counted from the whole row's begin. REQUIRES: gathers_summaries(); parts of whole groups, but the last one; numbers
  // of columns that are multiples of 4.
  virtual void gather_logits(Stream& /*stream*/, TensorView /*mine*/, int64_t /*first*/, int64_t /*most*/,
                             TensorView /*out*/, const ops::RowSummaries& /*summaries*/) {
    VOLLEY_CHECK_MSG(false, "summaries are not gathered here");
  }
  virtual bool gathers_summaries() const { return false; }

  // Throws the DeviceFault of an aborted group. On a GPU, what was enqueued before then has no results: to be called
  // when they are there.
  virtual void check() const = 0;
  // This rank takes part no more: it has failed, or ends. Whoever waits for it, or comes later, gets a DeviceFault.
  virtual void abort() = 0;

 private:
  // In one kernel, if that can be; with the same answer on all ranks. Arguments are checked.
  virtual bool try_sum_and_norm(Stream& /*stream*/, TensorView /*partial*/, TensorView /*x*/, const NormAfter& /*norm*/,
                                bool /*sent*/) {
    return false;
  }
};

using Group = std::vector<std::unique_ptr<Communicator>>;  // by rank, of this process's

// Ranks that are threads of this process on CPU devices. They share memory.
Group make_cpu_group(int ranks);

// The connection to another process of a group, for sums alone (on GPUs: to learn that it is gone), and the ranks that
// it has.
struct NodeLink {
  std::unique_ptr<net::Connection> connection;
  int first_rank = 0, ranks = 0;
};
// Ranks [first, first + local) of `ranks`, likewise; the others are in the processes of `links`, which call this, too.
// The same bits as in one process. Floats travel as they are.
Group make_node_group(int ranks, int first, int local, std::vector<NodeLink> links);

// How a group on GPUs works, for measurements and tests.
struct CudaGroupOptions {
  // From where on sums are made in parts (peer_layout.h, nccl_layout.h); negative: as is best.
  int64_t in_parts_bytes = -1;
  // Whether products send for ranks that share a GPU, too: three kernels of each must have room there.
  bool shared_gpus_send = false;
};
// Ranks that are threads of this process, each on the GPU of that number; there may be 1, 2, 4 or 8. Several on one GPU
// are for tests: with few kernels beside them on it. kUnavailable where GPUs cannot reach each other's memory;
// kFailedPrecondition where a living group has two of them, or kernels load late; kUnimplemented without CUDA.
Result<Group> make_cuda_group(const std::vector<int>& gpus, const CudaGroupOptions& options = {});

// Ranks [first, first + gpus.size()) of `ranks` (1, 2, 4 or 8), each a thread of this process on the GPU of that
// number, over NCCL; the others are in the processes of `links`, which call this, too. Waits for the one that has rank
// 0, at most a minute. The bits are those of the groups above. Each rank's prepare() must run on a thread of its own,
// and recorded graphs must go before the group. kUnavailable: there is no NCCL, or no such GPU, or another process is
// gone; the rest as make_cuda_group().
Result<Group> make_nccl_group(int ranks, int first, const std::vector<int>& gpus, std::vector<NodeLink> links,
                              const CudaGroupOptions& options = {});
// The version of the NCCL that this process has, as "2.27.5". kUnavailable, with what to do, where there is none that
// can be used; kUnimplemented without CUDA.
Result<std::string> nccl_version();

// make_cpu_group(), or make_cuda_group() on as many GPUs as ranks from `first_gpu` on.
Result<Group> make_group(DeviceKind device, int ranks, int first_gpu);
// Ranks [first, first + local) of a group of several processes: make_node_group(), or make_nccl_group() on `local` GPUs
// from `first_gpu` on.
Result<Group> make_group_of_nodes(DeviceKind device, int ranks, int first, int local, int first_gpu,
                                  std::vector<NodeLink> links);

// Ranks of which each goes through dry streams alone, and takes of a dry device what a real one would: all of a group,
// or [first, first + local), the others being in other processes.
Group make_dry_group(int ranks);
Group make_dry_group(int ranks, int first, int local);

}  // namespace volley::comm
