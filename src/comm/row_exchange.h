// How replicas that divide the experts of a model among them (one process, on the CPU) bring the rows of a layer
// together: the layer's inputs lie side by side in memory that all of them see, each replica writes what its experts
// make of any row there, and the one that the row belongs to takes it.
//
// All replicas make the same calls in the same order, once for each layer of each pass, whether they have rows or not.
// Nothing is added here, so a row's bits depend neither on other rows nor on the number of replicas.
#pragma once

#include <volley/result.h>

#include <memory>
#include <vector>

#include "device/arena.h"

namespace volley::comm {

// One replica's end. Threads: abort() from any; everything else by one at a time. begin() and meet() wait for the other
// replicas; they throw DeviceFault ("Replica 1 of 4 is gone ...") instead once one has been aborted. A dry stream waits
// for nobody, and nothing is copied on it.
class RowExchange {
 public:
  struct Shared;
  struct Rows {
    int64_t all = 0;    // of all replicas
    int64_t first = 0;  // of the replicas before this one
  };

  RowExchange(std::shared_ptr<Shared> shared, int replica);
  ~RowExchange();  // as abort(): the others learn that this one takes part no more
  RowExchange(const RowExchange&) = delete;
  RowExchange& operator=(const RowExchange&) = delete;

  int replica() const { return replica_; }
  int replicas() const;
  // Rows that lie in common memory at a time; a layer of more goes through it piece by piece.
  int64_t most_rows() const;

  // The first to call it takes the common memory of this device; before begin(). kResourceExhausted.
  Status prepare(Device& device);

  // A layer begins, to which this replica brings `rows` rows. On a dry stream: the most there can be of a piece.
  Rows begin(Stream& stream, int64_t rows);
  // Gives out the common memory. Replicas that take the same of it, in the same order, have the same.
  Arena& common();
  // Copies rows into, or out of, common memory. Both of one type and number.
  void put(Stream& stream, TensorView from, TensorView to) const;
  // Until all replicas have come here: what they wrote to common memory before is seen after it.
  void meet(Stream& stream);

  void abort();

 private:
  void wait();

  const std::shared_ptr<Shared> shared_;
  const int replica_;
  std::unique_ptr<Arena> common_;
  bool odd_ = false;  // layers so far
};

using RowExchanges = std::vector<std::unique_ptr<RowExchange>>;  // by replica

// bytes: of common memory, Arena::peak() of a dry run of the same rows.
RowExchanges make_row_exchanges(int replicas, int64_t most_rows, int64_t bytes);
// An end that goes through dry streams alone, and measures.
std::unique_ptr<RowExchange> make_dry_row_exchange(int replicas, int64_t most_rows);

}  // namespace volley::comm
