// The DFlash draft network: a few decoder layers that attend, without a causal mask, from a block of queries to the
// injected context and the block itself. See docs/dflash.md for the facts of the method and its checkpoints.
// Threads: as Target, once load_head() has returned where there is one to load.
#pragma once

#include "model/decoder_layers.h"
#include "model/target.h"

namespace volley::model {

class DraftNetwork {
 public:
  // positions, on_packed and errors as Target::load().
  static Result<std::unique_ptr<DraftNetwork>> load(Device& device,
                                                    std::shared_ptr<const weights::Checkpoint> checkpoint,
                                                    const DraftSpec& spec, Numerics numerics, int64_t positions,
                                                    const std::function<void(int64_t)>& on_packed);

  // Commits context: features of known positions, [rows, features * target hidden] in the activation dtype, go through
  // fc, hidden_norm and each layer's k and v projection into the drafter's layers of the pages. batch: cache and RoPE
  // positions and segments of the rows; token ids and visibility are not used.
  void inject(Stream& stream, const RowBatch& batch, TensorView features, const KvMemory& kv, Arena& scratch) const;

  // As DecoderLayers::plan().
  void plan(Stream& stream, RowBatch& batch, const KvMemory& kv, Arena& scratch) const {
    layers_.plan(stream, batch, kv.draft_layer(0), scratch);
  }

  // Runs the layers on x: [rows, hidden] fp32, the embeddings of the blocks, in place. Each block's own K and V land in
  // the pages past the context, where the next inject() or draft() of that slot overwrites them before anything sees
  // them.
  void forward(Stream& stream, const RowBatch& batch, const KvMemory& kv, TensorView x, Arena& scratch) const;

  // h[i] = final norm(x[row_index[i]]), ready for a head.
  void final_norm(Stream& stream, TensorView x, TensorView row_index, const ops::ScaledRows& h) const;

  // A quantised drafter has a copy of the target's output head, in its own storage; any other borrows the target's.
  // Errors as WeightLoader.
  Status load_head(Device& device, const weights::Checkpoint& target_checkpoint, const DecoderSpec& target);
  // logits[i] = head(final norm(x[row_index[i]])), as Target::logits().
  void logits(Stream& stream, const Target& target, TensorView x, TensorView row_index, TensorView logits,
              Arena& scratch, const ops::RowSummaries& summaries) const;
  bool head_summarises(DeviceKind device, const Target& target) const;

  const DraftSpec& spec() const { return spec_; }
  DType activation() const { return layers_.activation(); }
  int64_t packed_bytes() const { return packed_bytes_; }

  // What a pass of a drafter that is stored so takes at most. kv: dtype of the cache.
  static int64_t scratch_bytes(DeviceKind device, const DraftSpec& spec, DType storage, int64_t rows,
                               int64_t max_positions, DType kv);
  int64_t scratch_bytes(DeviceKind device, int64_t rows, int64_t max_positions, DType kv) const {
    return scratch_bytes(device, spec_, storage(), rows, max_positions, kv);
  }

 private:
  DraftNetwork() = default;
  DType storage() const { return layers_.numerics().storage; }

  DraftSpec spec_;
  DecoderLayers layers_;
  ops::LinearWeight fc_, head_;
  Vector hidden_norm_, norm_;
  int64_t packed_bytes_ = 0;
};

}  // namespace volley::model
