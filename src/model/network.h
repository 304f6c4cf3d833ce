// The only forward pass: a decoder's layers and norm, and, of a whole model, its embedding and output head. Target and
// drafter are both Networks. Threads: immutable once loaded; calls that share a stream or scratch memory by one thread
// at a time.
#pragma once

#include <optional>

#include "model/kv_memory.h"
#include "model/pass.h"
#include "model/vision/tower.h"
#include "model/weight_loader.h"
#include "ops/norm/norm.h"

namespace volley::model {

// Where the outputs of layers are stored for a drafter to read; each drafter has its own.
struct Capture {
  std::span<const int32_t> layers;  // ascending or not: features' columns follow this order
  TensorView features;              // [rows, layers * hidden], activation dtype; null view without layers
};

// logits = head(h), for an output head that the ranks of `group` divide among them (null: one rank); see
// vocabulary_part(). Every rank gets whole rows. summaries: where head_summarises().
void head_logits(Stream& stream, const ops::LinearWeight& head, const ops::Input& h, TensorView logits,
                 const ops::RowSummaries& summaries, comm::Communicator* group, Arena& scratch);
// vocab: outputs of all ranks together.
bool head_summarises(const Stream& stream, const ops::LinearWeight& head, DType activation, int64_t vocab,
                     comm::Communicator* group);

class Network {
 public:
  // Loads the tensors of the loader's list: all of params(), or only body_params() for a network that borrows embedding
  // and head. positions: how many the rotary tables cover. checkpoint: kept, because some tensors are read in place.
  // Errors as WeightLoader. group: the ranks that divide the model, or null; with a group, the loader's list and the
  // decoder are the rank's (shard.h). The group must outlive the network; all its ranks run forward passes and heads
  // together.
  static Result<std::unique_ptr<Network>> load(WeightLoader& loader,
                                               std::shared_ptr<const weights::Checkpoint> checkpoint,
                                               const Decoder& spec, Numerics numerics, int64_t positions,
                                               comm::Communicator* group = nullptr);

  // Call before forward(): computes what the layers of a pass share.
  void plan(Pass& pass) const;
  // Runs the layers over the planned pass, in place on x: [rows, hidden] fp32, the rows' embeddings, wherever they come
  // from. REQUIRES: where layers have convolutions, the rows are blocks of Rows::max_segment_rows, and nothing is
  // captured.
  void forward(Pass& pass, std::span<const Capture> captures, TensorView x) const;
  // A pass without rows: its experts serve the other replicas' rows. REQUIRES: Pass::exchange; plan() was not called.
  void take_part(Pass& pass) const;

  // h[i] = final norm(x[row_index[i]]).
  void final_norm(Stream& stream, TensorView x, TensorView row_index, const ops::Input& h) const;

  // x = embedding rows of ids, times their scale or the given one. REQUIRES, like logits(): the network was loaded with
  // embedding and head.
  void embed(Stream& stream, TensorView ids, TensorView x, std::optional<float> scale = std::nullopt) const;
  // logits[i] = head(final norm(x[row_index[i]])), and its end. x: [rows, hidden] fp32; logits: [n, vocab] fp32.
  // summaries: which rows are summarised instead, if the head can.
  void logits(Stream& stream, TensorView x, TensorView row_index, TensorView logits, Arena& scratch,
              const ops::RowSummaries& summaries = {}) const;
  const Tower* tower() const { return tower_.get(); }      // null: the model, or this rank, sees no pictures
  const ops::LinearWeight& head() const { return head_; }  // with several ranks: the rows of this one
  bool head_summarises(const Stream& stream) const {
    return spec_.logits_end.is_plain() && model::head_summarises(stream, head_, activation(), spec_.vocab, group_);
  }

  const Decoder& spec() const { return spec_; }  // with several ranks: what this one computes
  comm::Communicator* group() const { return group_; }
  DType activation() const { return numerics_.activation; }
  // Layers that keep K and V.
  size_t kv_layers() const { return kv_layers_; }
  // The tables of rotary embedding r, for a drafter's injection.
  const ops::RopeTables& rope(int32_t r) const { return ropes_[r].tables; }
  int64_t packed_bytes() const { return packed_bytes_; }

 private:
  struct Conv {
    Vector base;
    ops::LinearWeight projection;
  };
  // What stands round a block.
  struct Around {
    Vector norm;
    Conv conv;  // where blocks have convolutions
    BlockEnd end;
    Vector end_norm, end_factor;  // of `end`, if it has a norm and a factor
  };
  struct Block {
    Around mixer_around, ffn_around;
    std::unique_ptr<MixerBlock> mixer;
    std::unique_ptr<FfnBlock> ffn;
  };
  Network() = default;
  std::vector<ops::Input> take_inputs(int64_t rows, Arena& scratch) const;
  Status load_layer(WeightLoader& loader, size_t index);
  void take_angles(Pass& pass) const;
  static void add_rows(const Pass& pass, int64_t layer, TensorView x);
  // x += block(h) between its convolutions, and then the next norm, unless it is null. h: the norm of x.
  template <class AnyBlock>
  void run_convolved(Pass& pass, const AnyBlock& block, const Around& around, const ops::Input& h, TensorView x,
                     const comm::NormAfter* next) const;

  std::shared_ptr<const weights::Checkpoint> checkpoint_;  // keeps the embedding table mapped
  Decoder spec_;
  Numerics numerics_;
  comm::Communicator* group_ = nullptr;  // null: one rank
  std::vector<Rope> ropes_;
  std::vector<Block> layers_;
  Vector norm_;
  Table embedding_;
  float embedding_scale_ = 1;
  ops::LinearWeight head_;
  std::unique_ptr<Tower> tower_;
  size_t kv_layers_ = 0, state_layers_ = 0;
  int64_t packed_bytes_ = 0;
};

}  // namespace volley::model
