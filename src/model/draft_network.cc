#include "model/draft_network.h"

#include "ops/norm/norm.h"

namespace volley::model {

Result<std::unique_ptr<DraftNetwork>> DraftNetwork::load(Device& device,
                                                         std::shared_ptr<const weights::Checkpoint> checkpoint,
                                                         const DraftSpec& spec, Numerics numerics, int64_t positions,
                                                         const std::function<void(int64_t)>& on_packed) {
  std::unique_ptr<DraftNetwork> network(new DraftNetwork);
  network->spec_ = spec;
  WeightLoader loader(device, *checkpoint, numerics.storage, {"", "model."});
  loader.on_packed = on_packed;
  const int64_t hidden = spec.decoder.hidden;
  VOLLEY_ASSIGN(network->fc_,
                loader.linear({{"fc.weight", hidden}}, static_cast<int64_t>(spec.target_layers.size()) * hidden));
  VOLLEY_ASSIGN(network->hidden_norm_, loader.vector("hidden_norm.weight", hidden));
  VOLLEY_ASSIGN(network->norm_, loader.vector("norm.weight", hidden));
  VOLLEY_ASSIGN(network->layers_, DecoderLayers::load(device, loader, spec.decoder, numerics, positions));
  VOLLEY_RETURN_IF_ERROR(network->layers_.load_injection(loader));
  network->packed_bytes_ = loader.packed_bytes();
  return network;
}

void DraftNetwork::inject(Stream& stream, const RowBatch& batch, TensorView features, const KvMemory& kv,
                          Arena& scratch) const {
  if (batch.rows == 0) return;
  ArenaScope scope(scratch);
  const int64_t hidden = spec_.decoder.hidden;
  const TensorView projected = scratch.take(DType::kF32, {batch.rows, hidden});
  ops::linear(stream, fc_, features, projected, ops::Epilogue::kStore, scratch);
  const TensorView h = scratch.take(activation(), {batch.rows, hidden});
  ops::rms_norm(stream, projected, hidden_norm_.view, spec_.decoder.norm_eps, {}, h);
  for (int layer = 0; layer < layers_.count(); ++layer) {
    layers_.inject(stream, layer, batch, kv.draft_layer(layer), h, scratch);
  }
}

void DraftNetwork::forward(Stream& stream, const RowBatch& batch, const KvMemory& kv, TensorView x,
                           Arena& scratch) const {
  for (int layer = 0; layer < layers_.count(); ++layer) {
    layers_.forward(stream, layer, batch, kv.draft_layer(layer), x, scratch);
  }
}

void DraftNetwork::final_norm(Stream& stream, TensorView x, TensorView row_index, TensorView h) const {
  ops::rms_norm(stream, x, norm_.view, spec_.decoder.norm_eps, row_index, h);
}

int64_t DraftNetwork::scratch_bytes(Stream& stream, const DraftSpec& spec, int64_t rows, int64_t max_positions,
                                    DType kv) {
  return DecoderLayers::scratch_bytes(stream, spec.decoder, rows, max_positions, kv) + rows * spec.decoder.hidden * 8 +
         4 * 64;
}

}  // namespace volley::model
