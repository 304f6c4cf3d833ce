// How replicas of one process that divide a model's experts bring the rows of a layer together: the layer's inputs lie
// side by side in common memory, each replica writes its experts' outputs for any row there, and the row's own replica
// reads them.
//
// All replicas make the same calls in the same order, once for each layer of each pass, whether they have rows or not.
// Nothing is added here, so a row's bits depend neither on other rows nor on the number of replicas.
//
// On the CPU there is one common memory, calls wait for the other replicas, and rows lie without gaps. On GPUs each
// replica has common memory of the same layout on its own GPU, with room for the most rows of every replica. There the
// enqueued work waits, in the stream's order, and only the device knows the other replicas' row counts, so a recorded
// graph serves any counts.
//
// On GPUs no replica overwrites memory that another still reads. bring() writes chosen experts, inputs and a count into
// all memories. It comes after this replica's second meet() of the layer before, which every other replica entered
// after its products, the last readers of those inputs. Products are written after bring(), which every other replica
// enters after its own sums of the layer before, the last readers of the old products.
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
// and begin() do. A dry stream waits for no replica and copies nothing.
class RowExchange {
 public:
  // A layer: on the CPU its actual rows, on a GPU the room for rows.
  struct Rows {
    int64_t all = 0;      // rows of all replicas
    int64_t first = 0;    // where this replica's rows begin
    int64_t at_once = 0;  // rows that lie in common memory at a time: more are processed piece by piece
    int64_t likely = 0;   // the approximate number of rows, at least 1 on a GPU
  };
  // `from` is in the replica's memory, `to` in common memory; the same type and number of elements.
  struct Copy {
    TensorView from, to;
  };

  virtual ~RowExchange() = default;  // as abort()

  int replica() const { return replica_; }
  int replicas() const { return replicas_; }

  // Allocates this replica's common memory; call before any recording or layer. All replicas must have returned from
  // this before the first pass. The last replica to leave frees the memory. kResourceExhausted; on GPUs kUnavailable
  // where one cannot use another one's memory.
  virtual Status prepare(Device& device) = 0;

  // Begins a layer, to which this replica brings `rows` rows. On a dry stream of the CPU: the most rows of a piece.
  virtual Rows begin(Stream& stream, int64_t rows) = 0;
  // Allocates from common memory. Replicas that allocate the same sizes in the same order get the same places.
  Arena& common();
  // Copies rows of this replica into common memory, and meets. At most kMostCopies.
  virtual void bring(Stream& stream, std::span<const Copy> copies) = 0;
  // Waits until all replicas have called this: their earlier writes to common memory are visible afterwards.
  virtual void meet(Stream& stream) = 0;

  // On GPUs, device memory; null on the CPU. The number of rows that each replica has brought, [replicas] int32; and
  // the distance in bytes from a place in this replica's common memory to the same place in each replica's, [replicas]
  // int64.
  virtual const int32_t* counts() const { return nullptr; }
  virtual const int64_t* shifts() const { return nullptr; }

  // Throws the DeviceFault of an aborted exchange; work enqueued on a GPU before the abort has no valid results.
  virtual void check() const = 0;
  // Leaves because this replica has failed or ends. Replicas that wait for it, or call later, get a DeviceFault. Its
  // device may be destroyed then.
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

// For the CPU. most_rows: rows of a piece. bytes: common memory, Arena::peak() of a dry run of the same rows.
RowExchanges make_row_exchanges(int replicas, int64_t most_rows, int64_t bytes);
// On GPUs: replica i is on gpus[i]. Several on one GPU are for tests. most_rows: that a replica may bring. Errors as
// make_cuda_group(); at most kMostGpuReplicas.
Result<RowExchanges> make_cuda_row_exchanges(const std::vector<int>& gpus, int64_t most_rows, int64_t bytes);
// An end for dry runs, of either device, which uses only dry streams and measures memory.
std::unique_ptr<RowExchange> make_dry_row_exchange(int replica, int replicas, int64_t most_rows);
// Device memory that a replica takes with so many bytes of common memory: on the CPU its share of them.
int64_t row_exchange_bytes(DeviceKind device, int replicas, int64_t bytes);

}  // namespace volley::comm
