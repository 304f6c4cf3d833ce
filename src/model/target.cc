#include "model/target.h"

#include "ops/embedding/embedding.h"
#include "ops/norm/norm.h"

namespace volley::model {

Result<ops::LinearWeight> load_head(Device& device, const weights::Checkpoint& checkpoint, const DecoderSpec& spec,
                                    const Numerics& numerics) {
  // The head stands beside "model.", not in it.
  WeightLoader loader(device, checkpoint, numerics,
                      spec.tied_embeddings ? std::vector<std::string>{"model.", ""} : std::vector<std::string>{""});
  return loader.linear({{spec.tied_embeddings ? "embed_tokens.weight" : "lm_head.weight", spec.vocab}}, spec.hidden);
}

Result<std::unique_ptr<Target>> Target::load(Device& device, std::shared_ptr<const weights::Checkpoint> checkpoint,
                                             const DecoderSpec& spec, Numerics numerics, int64_t positions,
                                             const std::function<void(int64_t)>& on_packed) {
  std::unique_ptr<Target> target(new Target);
  target->checkpoint_ = checkpoint;
  WeightLoader loader(device, *checkpoint, numerics, {"model.", ""});
  loader.on_packed = on_packed;
  VOLLEY_ASSIGN(target->embedding_, loader.table("embed_tokens.weight", spec.vocab, spec.hidden));
  VOLLEY_ASSIGN(target->layers_, DecoderLayers::load(device, loader, spec, numerics, positions));
  VOLLEY_ASSIGN(target->final_norm_, loader.vector("norm.weight", spec.hidden));
  VOLLEY_ASSIGN(target->head_, load_head(device, *checkpoint, spec, numerics));
  target->packed_bytes_ = loader.packed_bytes() + static_cast<int64_t>(target->head_.packed.bytes());
  if (on_packed) on_packed(target->packed_bytes_);
  return target;
}

void Target::forward(Stream& stream, const RowBatch& batch, const KvMemory& kv, const Outputs& outputs, TensorView x,
                     Arena& scratch) const {
  embed(stream, batch.token_ids, x);
  ops::FeatureBlock next;  // which the next layer takes, whose norm reads the same
  for (int layer = 0; layer < layers_.count(); ++layer) {
    layers_.forward(stream, layer, batch, kv.target_layer(layer), x, scratch, next);
    next = {};
    for (size_t i = 0; i < outputs.capture_layers.size(); ++i) {
      if (outputs.capture_layers[i] != layer) continue;
      const auto index = static_cast<int64_t>(i);
      if (layer + 1 < layers_.count() && next.features.data == nullptr) {
        next = {outputs.features, index};
      } else {
        ops::capture_feature(stream, x, index * spec().hidden, outputs.features);
      }
    }
  }
}

void Target::logits(Stream& stream, TensorView x, TensorView row_index, TensorView logits, Arena& scratch,
                    const ops::RowSummaries& summaries) const {
  ArenaScope scope(scratch);
  const TensorView h = scratch.take(activation(), {row_index.dim(0), spec().hidden});
  ops::rms_norm(stream, x, final_norm_.view, spec().norm_eps, row_index, h);
  head(stream, h, logits, summaries);
}

void Target::embed(Stream& stream, TensorView ids, TensorView x) const {
  ops::embed(stream, embedding_.view, ids, x);
}

void Target::head(Stream& stream, TensorView h, TensorView logits, const ops::RowSummaries& summaries) const {
  ops::linear(stream, head_, h, logits, ops::Epilogue::kStore, summaries);
}

}  // namespace volley::model
