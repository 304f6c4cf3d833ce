// One pass of a network over rows, and what its blocks have in common. A layer is a mixer block and a feed-forward
// block; what differs between prefill, verification and drafting is which cache positions a row sees, and that comes
// with the rows.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "comm/comm.h"
#include "comm/row_exchange.h"
#include "device/arena.h"
#include "model/spec.h"
#include "ops/attention/attention.h"
#include "ops/linear/linear.h"

namespace volley::model {

// How attention's work is cut for the rows of a pass. Layers of one shape and one view share it.
struct AttentionPlan {
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  int view = ops::kWholeView;
  ops::AttentionWork work;
};

// Routing of experts that is made up, to measure with (ops/router/router.h).
struct RoutingOptions {
  bool simulated = false;
  uint32_t seed = 0;
  int32_t skipped_slot = -1;         // rows of this slot mean nothing and touch no expert
  int64_t* touched_total = nullptr;  // device memory, or null: counts the experts of this rank that the pass touches
  // [layers, rows * top_k] int32 in device memory, or a null view: gets the experts of each row, of layers with
  // experts, as ops::Routing has them.
  TensorView chosen = {};
};

struct Pass {
  Stream& stream;
  const ops::Rows& rows;
  std::span<const ops::KvLayer> kv;  // of the network's layers that keep K and V, in order
  Arena& scratch;                    // of plan() until the last layer; blocks give back what they take
  std::vector<AttentionPlan> attention = {};
  RoutingOptions routing = {};
  bool positions_written = false;                // some layer of this pass has written K and V
  std::span<const ops::DeltaState> states = {};  // of the network's layers that keep one, in order
  // With the replicas that divide the experts of this model among them, or null. The same layers of it pass there at
  // the same time.
  comm::RowExchange* exchange = nullptr;
};

// What the parts of a layer add that a rank computes one after the other: sums of neighbours, then of neighbouring
// sums, as a group of as many ranks adds (comm/comm.h).
class PartSums {
 public:
  // parts: a power of 2. Takes its memory from `scratch`.
  PartSums(int parts, int64_t rows, int64_t hidden, Arena& scratch);
  // Whether the next part is the first one.
  bool at_first() const { return done_ == 0; }
  // Takes the next part's partial. Returns the sum of all if it was the last one, and begins anew; else nothing.
  std::optional<TensorView> add(Stream& stream, TensorView partial);

 private:
  const int parts_;
  int done_ = 0;
  std::vector<TensorView> waiting_;  // sums that wait for their neighbours, of ever fewer parts
};

// The residual stream: [rows, hidden] fp32, the same on all ranks.
struct Residual {
  TensorView x;
  comm::Communicator* group = nullptr;    // null: this rank is the only one
  const comm::NormAfter* next = nullptr;  // of several ranks: the norm that reads x when the block has added, or null
  PartSums* parts = nullptr;              // null: a layer is of one part
  // Whether what a block computes is a part of what is added.
  bool in_parts() const { return group != nullptr || parts != nullptr; }
  // x += w a + bias, summed over the ranks. a: [rows, w.k] in the activation dtype; bias: [hidden] fp32, or a null
  // view.
  void add(Pass& pass, const ops::LinearWeight& w, TensorView a, TensorView bias = {}) const;
  // x += the partials of all parts and ranks; and the next norm: a block adds once. sent: as add_sum_and_norm() has it.
  // REQUIRES: in_parts()
  void sum(Pass& pass, TensorView partial, bool sent = false) const;
  // A bias that one part adds for all.
  TensorView once(TensorView bias) const {
    const bool adds = (group == nullptr || group->rank() == 0) && (parts == nullptr || parts->at_first());
    return adds ? bias : TensorView();
  }
};

// Lets the positions of a sequence see one another. Threads: immutable; calls that share a stream or scratch memory by
// one thread at a time, here and below.
class MixerBlock {
 public:
  virtual ~MixerBlock() = default;
  // The weight that reads the block's input, which ops::input_for() makes room for.
  virtual const ops::LinearWeight& input_weight() const = 0;
  // Before the first layer of a pass: what its layers share. Stays in the scratch memory until the last layer.
  virtual void plan(Pass& pass) const = 0;
  // x += mixer(h). h: the normed input.
  virtual void run(Pass& pass, const ops::Input& h, const Residual& x) const = 0;
};

// Works on every position alone.
class FfnBlock {
 public:
  virtual ~FfnBlock() = default;
  virtual const ops::LinearWeight& input_weight() const = 0;
  // x += ffn(h).
  virtual void run(Pass& pass, const ops::Input& h, const Residual& x) const = 0;
};

}  // namespace volley::model
