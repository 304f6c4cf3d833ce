// One pass of a network over rows, and the state that its blocks share. A layer is a mixer block and a feed-forward
// block. Prefill, verification and drafting differ in which cache positions a row sees, and the rows carry that.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/comm.h"
#include "comm/row_exchange.h"
#include "device/arena.h"
#include "model/spec.h"
#include "model/weight_loader.h"
#include "ops/attention/attention.h"
#include "ops/linear/linear.h"

namespace volley::model {

// How attention's work is divided for the rows of a pass. Layers of one shape and one view share it.
struct AttentionPlan {
  ops::HeadShape shape;
  int view = ops::kWholeView;
  ops::AttentionWork work;
};

// Simulated routing of experts, for measurements (ops/router/router.h).
struct RoutingOptions {
  bool simulated = false;
  uint32_t seed = 0;
  int32_t skipped_slot = -1;         // rows of this slot are padding and use no expert
  int64_t* touched_total = nullptr;  // device memory, or null: counts the experts of this rank that the pass uses
  // [layers, rows * top_k] int32 in device memory, or a null view: receives the experts of each row in each layer with
  // experts, in the format of ops::Routing.
  TensorView chosen = {};
};

// Vectors that consecutive rows bring for the residual stream after each of the first layers (Decoder::added_layers).
struct AddedRows {
  int64_t row = 0;     // the first of the rows
  TensorView vectors;  // [layers, rows, hidden] fp32, device memory
};

struct Pass {
  Stream& stream;
  const ops::Rows& rows;
  std::span<const ops::KvLayer> kv;  // the network's layers with K and V, in order
  Arena& scratch;                    // from plan() to the last layer; blocks free what they take
  std::vector<AttentionPlan> attention = {};
  RoutingOptions routing = {};
  bool positions_written = false;                // whether a layer of this pass has written K and V
  std::span<const ops::DeltaState> states = {};  // the network's layers that keep a state, in order
  // Set if replicas divide this model's experts among them, else null. They must pass the same layers of the model
  // through it at the same time.
  comm::RowExchange* exchange = nullptr;
  std::span<const AddedRows> added = {};
  std::vector<ops::RopeTables> angles = {};  // of the rows, for each of Decoder::ropes; empty without Rows::rope_axes

  // Makes the plan of attention, unless there is one. Call before the first layer.
  void plan_attention(const ops::HeadShape& shape, int view);
  // REQUIRES: it was made.
  const ops::AttentionWork& attention_work(const ops::HeadShape& shape, int view) const;

  // The tables that Rows::rope_positions are rows of.
  const ops::RopeTables& rope(std::span<const Rope> ropes, int32_t r) const {
    return angles.empty() ? ropes[r].tables : angles[r];
  }
};

// The residual stream: [rows, hidden] fp32, the same on all ranks.
struct Residual {
  TensorView x;
  comm::Communicator* group = nullptr;    // null: this rank is the only one
  const comm::NormAfter* next = nullptr;  // with several ranks: the norm that reads x afterwards, or null
  // The stream before the block, which `h` is the norm of, where x gathers the block's output alone.
  TensorView before = {};
  bool empty = false;  // x has no values yet: add() stores. REQUIRES: one rank
  // Whether each rank's block computes one addend of a sum over the ranks.
  bool is_shared() const { return group != nullptr; }
  // x += w a + bias, summed over the ranks. a: [rows, w.k] in the activation dtype; bias: [hidden] fp32, or a null
  // view.
  void add(Pass& pass, const ops::LinearWeight& w, TensorView a, TensorView bias = {}) const;
  // x += the partials of all ranks, then the next norm; a block calls this once. sent: as for add_sum_and_norm().
  // REQUIRES: is_shared()
  void sum(Pass& pass, TensorView partial, bool sent = false) const;
  // A bias that only one rank adds.
  TensorView once(TensorView bias) const { return group == nullptr || group->rank() == 0 ? bias : TensorView(); }
};

// Lets the positions of a sequence see one another. Threads: immutable; calls that share a stream or scratch memory by
// one thread at a time, here and below.
class MixerBlock {
 public:
  virtual ~MixerBlock() = default;
  // The weight that reads the block's input; ops::input_for() allocates the input for it.
  virtual const ops::LinearWeight& input_weight() const = 0;
  // Call before the first layer of a pass: computes what its layers share, kept in the scratch memory until the last
  // layer.
  virtual void plan(Pass& pass) const = 0;
  // x += mixer(h). h: the normed input.
  virtual void run(Pass& pass, const ops::Input& h, const Residual& x) const = 0;
};

// Computes every position by itself.
class FfnBlock {
 public:
  virtual ~FfnBlock() = default;
  virtual const ops::LinearWeight& input_weight() const = 0;
  // x += ffn(h).
  virtual void run(Pass& pass, const ops::Input& h, const Residual& x) const = 0;
};

// The model and the layer that a block is loaded for.
struct BlockSetup {
  std::string prefix;  // prefix of the layer's roles: "layers.3."
  uint32_t layer = 0;  // the layer's number, which simulated and recorded routing use
  float norm_eps = 0;
  Numerics numerics;
  std::span<const Rope> ropes;     // as Decoder::ropes
  size_t kv_layer = 0, state = 0;  // the block's index in Pass::kv and Pass::states, if it has one there
};

// The block type of a spec: MixerBlock or FfnBlock.
template <class Spec>
using BlockOf =
    std::conditional_t<std::is_same_v<decltype(std::declval<Spec>().facts()), MixerFacts>, MixerBlock, FfnBlock>;

// A block's spec and its place.
template <class Spec>
class PlacedBlock : public BlockOf<Spec> {
 public:
  PlacedBlock(const Spec& spec, const BlockSetup& setup) : spec_(spec), setup_(setup) {}

 protected:
  const Spec spec_;
  const BlockSetup setup_;
};

// Makes the block; each is defined in the block's own file. Errors as WeightLoader, and those of the block's operation.
template <class Spec>
Result<std::unique_ptr<BlockOf<Spec>>> load_block(WeightLoader& loader, const Spec& spec, const BlockSetup& setup);

}  // namespace volley::model
