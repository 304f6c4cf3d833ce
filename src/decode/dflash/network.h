// The DFlash draft network: a few decoder layers that attend, without a causal mask, from a block of queries to the
// injected context and the block itself. See docs/dflash.md. Threads: immutable once loaded; calls that share a stream
// or scratch memory come one at a time.
#pragma once

#include "decode/dflash/config.h"
#include "model/network.h"
#include "ops/selector/selector.h"

namespace volley::decode::dflash {

// Layers in the order in which the injection's weight holds their k and v projections: first those without a window,
// then those with one.
std::vector<size_t> injected_layers(const model::Decoder& decoder, bool windowed);

class Network {
 public:
  // Errors as model::WeightLoader; kDataLoss for weights that are no numbers, with which no draft would be accepted.
  // facts: the whole drafter's. Each of several ranks has its part of the layers and of the head, and all of fc.
  static Result<std::unique_ptr<Network>> load(const ProposerLoad& load, const Facts& facts);

  // Injects context. features: known positions, [rows, features * target hidden] in the activation dtype. They go
  // through fc, hidden_norm and each layer's k and v projection into the drafter's layers of the pages. pass: cache and
  // RoPE positions and segments of the rows; token ids and visibility are not used.
  void inject(model::Pass& pass, TensorView features) const;

  // As model::Network. A block's own K and V land in the pages past the context. The next inject() or block of that
  // slot overwrites them before any row sees them.
  void plan(model::Pass& pass) const { body_->plan(pass); }
  // x: the target's embeddings of a block's tokens.
  void embed(Stream& stream, TensorView ids, TensorView x) const {
    target_->embed(stream, ids, x, facts_.embedding_scale);
  }
  void forward(model::Pass& pass, TensorView x) const { body_->forward(pass, {}, x); }
  void final_norm(Stream& stream, TensorView x, TensorView row_index, const ops::Input& h) const {
    body_->final_norm(stream, x, row_index, h);
  }

  // logits[i] = head(final norm(x[row_index[i]])) of the target's first vocab() tokens, with the target's head, the
  // copy of it or the drafter's own, and softcapped where it was trained so. Tokens that its own head does not know
  // have -inf.
  void logits(Stream& stream, TensorView x, TensorView row_index, TensorView logits, Arena& scratch,
              const ops::RowSummaries& summaries) const;
  int64_t vocab(const Stream& stream) const;
  bool head_summarises(const Stream& stream) const;

  // The choices of the head for them, for x[row_index[i]]. task: segments, slots, sampling and where the choices go.
  // REQUIRES: there is such a head.
  void select(Stream& stream, TensorView x, TensorView row_index, ops::SelectorTask task, Arena& scratch) const;

  const Facts& facts() const { return facts_; }  // with several ranks, the decoder is this rank's
  DType activation() const { return body_->activation(); }
  int64_t packed_bytes() const { return packed_bytes_; }

 private:
  Network() = default;
  const ops::LinearWeight& head() const;
  // As head() gives them, and their end. h: the normed rows.
  void own_logits(Stream& stream, const ops::Input& h, TensorView logits, Arena& scratch,
                  const ops::RowSummaries& summaries) const;
  // Writes n layers from `layer` on. Their k and v begin at element `begin` of a row of the projected ones, [rows, …],
  // and their norms of k at element `norm_begin` of all norms.
  void inject_layers(model::Pass& pass, TensorView kv, bool windowed, size_t layer, int64_t n, int64_t begin,
                     int64_t norm_begin) const;

  Facts facts_;
  const model::Network* target_ = nullptr;
  std::unique_ptr<model::Network> body_;
  ops::LinearWeight fc_, injection_;
  std::shared_ptr<const ops::LinearWeight> head_copy_;
  // Weights of the head that chooses; each kind has some of them (dflash_spec.cc).
  struct Layer {
    Status load(model::WeightLoader& loader, const std::string& role);
    ops::LinearWeight hidden;
    model::Table others;
    model::Vector bias;
  };
  model::Table predecessors_, successors_;
  Layer selector_, confidence_;
  model::Vector hidden_norm_, injection_k_norm_, injection_bias_;
  Buffer target_ids_;  // [draft_vocab] int32, for a drafter with a vocabulary of its own
  int64_t packed_bytes_ = 0;
};

// REQUIRES: layers that one write injects into have equal shapes.
std::unique_ptr<Proposer> make_proposer(std::unique_ptr<Network> network, const ProposerLoad& load);

}  // namespace volley::decode::dflash
