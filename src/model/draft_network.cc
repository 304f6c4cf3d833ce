#include "model/draft_network.h"

#include <algorithm>

#include "ops/norm/norm.h"

namespace volley::model {
namespace {

// Of a quantised drafter: what it multiplies.
int64_t code_bytes(const DraftSpec& spec, int64_t rows) {
  const int64_t features = static_cast<int64_t>(spec.target_layers.size()) * spec.decoder.hidden;
  const int64_t widest = std::max(
      {features, int64_t{spec.decoder.heads} * spec.decoder.head_dim, static_cast<int64_t>(spec.decoder.intermediate)});
  return ops::quantised_bytes(rows, widest) + ops::quantised_bytes(rows, 0);  // and the scales of a norm's codes
}

}  // namespace

Result<std::unique_ptr<DraftNetwork>> DraftNetwork::load(Device& device,
                                                         std::shared_ptr<const weights::Checkpoint> checkpoint,
                                                         const DraftSpec& spec, Numerics numerics, int64_t positions,
                                                         const std::function<void(int64_t)>& on_packed) {
  std::unique_ptr<DraftNetwork> network(new DraftNetwork);
  network->spec_ = spec;
  WeightLoader loader(device, *checkpoint, numerics, {"", "model."});
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
  product(stream, fc_, features, projected, ops::Epilogue::kStore, scratch);
  const ops::ScaledRows h = take_input(fc_.storage, activation(), batch.rows, hidden, scratch);
  ops::rms_norm(stream, projected, hidden_norm_.view, spec_.decoder.norm_eps, {}, h);
  layers_.inject(stream, batch, kv.draft_layer(0), h, scratch);
}

void DraftNetwork::forward(Stream& stream, const RowBatch& batch, const KvMemory& kv, TensorView x,
                           Arena& scratch) const {
  for (int layer = 0; layer < layers_.count(); ++layer) {
    layers_.forward(stream, layer, batch, kv.draft_layer(layer), x, scratch);
  }
}

void DraftNetwork::final_norm(Stream& stream, TensorView x, TensorView row_index, const ops::ScaledRows& h) const {
  ops::rms_norm(stream, x, norm_.view, spec_.decoder.norm_eps, row_index, h);
}

Status DraftNetwork::load_head(Device& device, const weights::Checkpoint& target_checkpoint,
                               const DecoderSpec& target) {
  VOLLEY_ASSIGN(head_, model::load_head(device, target_checkpoint, target, layers_.numerics()));
  packed_bytes_ += static_cast<int64_t>(head_.packed.bytes());
  return {};
}

void DraftNetwork::logits(Stream& stream, const Target& target, TensorView x, TensorView row_index, TensorView logits,
                          Arena& scratch, const ops::RowSummaries& summaries) const {
  ArenaScope scope(scratch);
  const bool own = head_.n > 0;
  const ops::ScaledRows h =
      take_input(own ? storage() : activation(), activation(), logits.shape[0], spec_.decoder.hidden, scratch);
  final_norm(stream, x, row_index, h);
  if (!own) return target.head(stream, h.values, logits, summaries);
  ops::linear(stream, head_, h, logits, ops::Epilogue::kStore, summaries);
}

bool DraftNetwork::head_summarises(DeviceKind device, const Target& target) const {
  return head_.n > 0 ? ops::linear_summarises(device, head_, storage()) : target.head_summarises(device);
}

int64_t DraftNetwork::scratch_bytes(DeviceKind device, const DraftSpec& spec, DType storage, int64_t rows,
                                    int64_t max_positions, DType kv) {
  const int64_t codes = storage == DType::kF8E4M3 ? code_bytes(spec, rows) : 0;
  const DecoderSpec& decoder = spec.decoder;
  const int64_t injected = std::ssize(decoder.layers) * 2 * decoder.kv_heads * decoder.head_dim;  // of a row
  const int64_t layers = std::max(DecoderLayers::scratch_bytes(device, decoder, rows, max_positions, kv),
                                  rows * injected * static_cast<int64_t>(sizeof(float)) + kArenaAlignment);
  return layers + rows * decoder.hidden * 8 + 4 * kArenaAlignment + codes;
}

}  // namespace volley::model
