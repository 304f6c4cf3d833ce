// The target model: embeddings, decoder layers, output head, and the capture of the features that a drafter reads.
// Threads: immutable once loaded; calls that share a stream or scratch memory by one thread at a time.
#pragma once

#include "model/decoder_layers.h"

namespace volley::model {

// The output head of a target's checkpoint. Target::load() has one; a quantised drafter, with its numerics, another.
// Errors as WeightLoader.
Result<ops::LinearWeight> load_head(Device& device, const weights::Checkpoint& checkpoint, const DecoderSpec& spec,
                                    const Numerics& numerics);

class Target {
 public:
  // positions: how many the rotary tables cover. on_packed, which may be empty, gets the bytes packed so far, from the
  // calling thread. Errors as WeightLoader.
  static Result<std::unique_ptr<Target>> load(Device& device, std::shared_ptr<const weights::Checkpoint> checkpoint,
                                              const DecoderSpec& spec, Numerics numerics, int64_t positions,
                                              const std::function<void(int64_t)>& on_packed);

  // Outputs of one pass, each a null view when it is not wanted.
  struct Outputs {
    std::span<const int32_t> capture_layers;  // ascending or not: features' columns follow this order
    TensorView features;                      // [rows, capture_layers * hidden], activation dtype
  };

  // As DecoderLayers::plan().
  void plan(Stream& stream, RowBatch& batch, const KvMemory& kv, Arena& scratch) const {
    layers_.plan(stream, batch, kv.target_layer(0), scratch);
  }

  // Runs the decoder over the planned batch; x: [rows, hidden] fp32 holds the last layer's outputs afterwards.
  void forward(Stream& stream, const RowBatch& batch, const KvMemory& kv, const Outputs& outputs, TensorView x,
               Arena& scratch) const;

  // logits[i] = head(final norm(x[row_index[i]])). x: [rows, hidden] fp32; logits: [n, vocab] fp32. summaries: which of
  // them are summarised instead, if the head can.
  void logits(Stream& stream, TensorView x, TensorView row_index, TensorView logits, Arena& scratch,
              const ops::RowSummaries& summaries = {}) const;
  bool head_summarises(DeviceKind device) const { return ops::linear_summarises(device, head_, activation()); }

  // What a drafter borrows: it has no embedding of its own, and a head only where its weights are quantised.
  void embed(Stream& stream, TensorView ids, TensorView x) const;
  // h: [n, hidden] activation dtype, normed by the drafter.
  void head(Stream& stream, TensorView h, TensorView logits, const ops::RowSummaries& summaries) const;

  const DecoderSpec& spec() const { return layers_.spec(); }
  DType activation() const { return layers_.activation(); }
  int64_t packed_bytes() const { return packed_bytes_; }

 private:
  Target() = default;

  std::shared_ptr<const weights::Checkpoint> checkpoint_;  // keeps the embedding table mapped
  Table embedding_;
  DecoderLayers layers_;
  Vector final_norm_;
  ops::LinearWeight head_;
  int64_t packed_bytes_ = 0;
};

}  // namespace volley::model
