// How replicas that divide the experts of a model among them (one process) bring the rows of a layer together: the
// layer's inputs lie side by side in common memory, each replica writes what its experts make of any row there, and the
// one that the row belongs to takes it.
//
// All replicas make the same calls in the same order, once for each layer of each pass, whether they have rows or not.
// Nothing is added here, so a row's bits depend neither on other rows nor on the number of replicas.
//
// On the CPU common memory is one, calls wait for the other replicas, and rows lie without gaps. On GPUs each replica
// has common memory of the same layout on its own GPU, with room for the most rows of every replica; work waits, in the
// order of the stream, and how many rows the others have is known on the device alone: so a recorded graph serves
// whatever they bring.
//
// On GPUs nobody overwrites what another one still reads. bring() writes chosen experts, inputs and a count into all
// memories; it is behind this replica's second meet() of the layer before, which each of the others came to behind its
// products, the last to read them. Products are written behind bring(), to which each of the others comes behind its
// own sums of the layer before, the last to read products.
#pragma once

#include <volley/result.h>

#include <memory>
#include <span>
#include <vector>

#include "device/arena.h"
#include "device/device.h"

namespace volley::comm {

// One replica's end. Threads: abort() and check() from any; everything else by one at a time. On the CPU begin(),
// bring() and meet() throw DeviceFault ("Replica 1 of 4 is gone ...") once a replica has been aborted; on GPUs check()
// and begin() do. A dry stream waits for nobody, and nothing is copied on it.
class RowExchange {
 public:
  // A layer: on the CPU what it has, on a GPU what it has room for.
  struct Rows {
    int64_t all = 0;      // of all replicas
    int64_t first = 0;    // where this replica's begin
    int64_t at_once = 0;  // that lie in common memory at a time: more go through it piece by piece
    int64_t likely = 0;   // about how many there are, at least 1 on a GPU
  };
  // `from` is the replica's, `to` lies in common memory; of one type and number.
  struct Copy {
    TensorView from, to;
  };

  virtual ~RowExchange() = default;  // as abort()

  int replica() const { return replica_; }
  int replicas() const { return replicas_; }

  // Takes this replica's common memory; before anything is recorded or begun. The first pass comes after all replicas
  // have returned from this. Memory goes with the last of them. kResourceExhausted; on GPUs kUnavailable where one
  // cannot use another one's memory.
  virtual Status prepare(Device& device) = 0;

  // A layer begins, to which this replica brings `rows` rows. On a dry stream of the CPU: the most there can be of a
  // piece.
  virtual Rows begin(Stream& stream, int64_t rows) = 0;
  // Gives out common memory. Replicas that take the same of it, in the same order, have the same.
  Arena& common();
  // Copies rows of this replica into common memory, and meets. At most kMostCopies.
  virtual void bring(Stream& stream, std::span<const Copy> copies) = 0;
  // Until all replicas have come here: what they wrote to common memory before is seen after it.
  virtual void meet(Stream& stream) = 0;

  // On GPUs, device memory; null on the CPU. How many rows each replica has brought, [replicas] int32; the distance in
  // bytes from a place in this replica's common memory to the same place in each other's, [replicas] int64.
  virtual const int32_t* counts() const { return nullptr; }
  virtual const int64_t* shifts() const { return nullptr; }

  // Throws the DeviceFault of an aborted exchange; on a GPU, what was enqueued before then has no results.
  virtual void check() const = 0;
  // This replica takes part no more: it has failed, or ends. Whoever waits for it, or comes later, gets a DeviceFault.
  // The device may go then.
  virtual void abort() = 0;

  static constexpr size_t kMostCopies = 2;

 protected:
  RowExchange(int replica, int replicas) : replica_(replica), replicas_(replicas) {}
  void set_common(Arena arena) { common_ = std::make_unique<Arena>(std::move(arena)); }

 private:
  const int replica_, replicas_;
  std::unique_ptr<Arena> common_;
};

using RowExchanges = std::vector<std::unique_ptr<RowExchange>>;  // by replica

inline constexpr int kMostGpuReplicas = 8;

// On the CPU. most_rows: of a piece. bytes: of common memory, Arena::peak() of a dry run of the same rows.
RowExchanges make_row_exchanges(int replicas, int64_t most_rows, int64_t bytes);
// On GPUs: replica i is on gpus[i]. Several on one GPU are for tests. most_rows: that a replica may bring. Errors as
// make_cuda_group(); at most kMostGpuReplicas.
Result<RowExchanges> make_cuda_row_exchanges(const std::vector<int>& gpus, int64_t most_rows, int64_t bytes);
// An end that goes through dry streams alone, of either device, and measures.
std::unique_ptr<RowExchange> make_dry_row_exchange(int replica, int replicas, int64_t most_rows);
// Device memory that a replica takes with so many bytes of common memory: on the CPU its share of them.
int64_t row_exchange_bytes(DeviceKind device, int replicas, int64_t bytes);

}  // namespace volley::comm
