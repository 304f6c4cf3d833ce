// What the ranks of a tensor-parallel group say to one another: sums and rows side by side. A rank is a thread with a
// device, a part of the weights and a communicator of its own. All ranks make the same calls in the same order, with
// tensors of the same shapes but where a call says otherwise.
//
// Batch invariance: every element is a sum in rank order in fp32, whatever lies around it, so its bits depend on the
// ranks' addends alone, and are the same on all ranks.
#pragma once

#include <volley/result.h>

#include <memory>
#include <vector>

#include "device/device.h"
#include "device/tensor.h"

namespace volley::comm {

// Threads: abort() from any; everything else by the rank's own. Calls wait for the other ranks. They throw DeviceFault
// ("Rank 1 of 4 is gone ...") instead, and from then on, once a rank has been aborted. A dry stream does nothing and
// waits for nobody.
class Communicator {
 public:
  virtual ~Communicator() = default;  // as abort(): the others learn that this rank takes part no more

  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // x += p0 + p1 + ..., in that order, p being the ranks' `partial`; the sum is added to x last. Both: [rows, n] fp32
  // without gaps; x has the same values on all ranks before, and after. `partial` is free again on return.
  virtual void add_sum(Stream& stream, TensorView partial, TensorView x) = 0;
  // out: the ranks' `mine` side by side in rank order. mine: [rows, its columns] fp32, of which a rank may have none.
  // out: [rows, all columns]; on every rank.
  virtual void gather_columns(Stream& stream, TensorView mine, TensorView out) = 0;

  // This rank takes part no more: it has failed, or ends. Whoever waits for it, or comes later, gets a DeviceFault.
  virtual void abort() = 0;
};

// Ranks that are threads of this process on CPU devices, by rank. They share memory.
std::vector<std::unique_ptr<Communicator>> make_cpu_group(int ranks);

// A group on devices of that kind. kUnimplemented where there is none so far.
Result<std::vector<std::unique_ptr<Communicator>>> make_group(DeviceKind device, int ranks);

}  // namespace volley::comm
