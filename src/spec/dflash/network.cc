#include "spec/dflash/network.h"

#include <algorithm>

#include "model/mixer/attention.h"
#include "weights/finite.h"

namespace volley::spec::dflash {
namespace {

// A quantised drafter's rows as codes: of what it multiplies, and the scales of a norm's codes.
int64_t code_bytes(const ProposerFacts& facts, int64_t rows) {
  int64_t widest = 0;
  for (const model::Param& param : facts.params) {
    if (param.is_matrix()) widest = std::max(widest, param.columns);
  }
  return ops::quantised_bytes(rows, widest) + ops::quantised_bytes(rows, 0);
}

Status check_finite(const weights::Checkpoint& checkpoint, const std::vector<model::Param>& params) {
  if (checkpoint.names().empty()) return {};  // made up
  for (const model::Param& param : params) {
    for (const model::Param::Part& part : param.parts) {
      if (param.again) continue;
      std::vector<int64_t> shape = {part.rows};
      if (param.columns > 0) shape.push_back(param.columns);
      VOLLEY_ASSIGN(const weights::SourceTensor tensor, checkpoint.get(part.name, shape));
      if (weights::all_finite(tensor)) continue;
      return data_loss(checkpoint.origin() + ": the drafter's tensor \"" + part.name +
                       "\" holds infinite values or NaN, with which nothing that it drafts would be accepted: fetch "
                       "the drafter again, or turn speculation off.");
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Network>> Network::load(const ProposerLoad& load, const ProposerFacts& facts) {
  std::unique_ptr<Network> network(new Network);
  network->facts_ = facts;
  network->storage_ = load.numerics.storage;
  network->target_ = &load.target;
  VOLLEY_RETURN_IF_ERROR(check_finite(*load.checkpoint, facts.params));
  model::WeightLoader loader(load.device, *load.checkpoint, load.numerics, facts.params);
  loader.on_packed = load.on_packed;
  VOLLEY_ASSIGN(network->fc_, loader.linear("fc"));
  VOLLEY_ASSIGN(network->hidden_norm_, loader.vector("hidden_norm"));
  VOLLEY_ASSIGN(network->body_,
                model::Network::load(loader, load.checkpoint, facts.decoder, load.numerics, load.positions));
  VOLLEY_ASSIGN(network->injection_, loader.linear("injection.kv"));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector("injection.k_norm", network->injection_k_norm_));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector("injection.kv_bias", network->injection_bias_));
  network->packed_bytes_ = loader.packed_bytes();
  if (load.numerics.storage != DType::kF8E4M3) return network;
  const std::vector<model::Param> copied = {model::head_param(load.target.spec())};
  model::WeightLoader head_loader(load.device, load.target_checkpoint, load.numerics, copied);
  VOLLEY_ASSIGN(network->head_, head_loader.linear("head"));
  network->packed_bytes_ += head_loader.packed_bytes();
  return network;
}

void Network::inject(model::Pass& pass, TensorView features) const {
  const int64_t rows = pass.rows.rows;
  if (rows == 0) return;
  ArenaScope scope(pass.scratch);
  const model::Decoder& decoder = facts_.decoder;
  const TensorView projected = pass.scratch.take(DType::kF32, {rows, decoder.hidden});
  ops::linear(pass.stream, fc_, features, projected, {}, pass.scratch);
  const ops::Input h = ops::input_for(injection_, activation(), rows, pass.scratch);
  ops::rms_norm(pass.stream, projected, hidden_norm_.view, decoder.norm_eps, {}, h);
  // One product and one write for all layers, which lie one after the other in a page.
  ops::QkvWrite write;
  write.layers = static_cast<int32_t>(decoder.layers.size());
  write.k_norm = injection_k_norm_.view;
  write.bias = injection_bias_.view;
  write.eps = decoder.norm_eps;
  write.rope = body_->rope(decoder.attention(0)->rope);
  write.kv = pass.kv[0];
  write.qkv = pass.scratch.take(DType::kF32, {rows, injection_.n});
  ops::linear(pass.stream, injection_, h, write.qkv, {}, pass.scratch);
  ops::write_qkv(pass.stream, pass.rows, pass.rows.views[ops::kWholeView], write);
}

void Network::logits(Stream& stream, TensorView x, TensorView row_index, TensorView logits, Arena& scratch,
                     const ops::RowSummaries& summaries) const {
  ArenaScope scope(scratch);
  const ops::Input h = ops::input_for(head(), activation(), logits.shape[0], scratch);
  final_norm(stream, x, row_index, h);
  ops::linear(stream, head(), h, logits, {.summaries = summaries}, scratch);
}

bool Network::head_summarises(DeviceKind device) const {
  return ops::linear_summarises(device, head(), activation());
}

int64_t Network::scratch_bytes(DeviceKind device, const ProposerFacts& facts, DType storage, int64_t rows,
                               int64_t max_positions, DType kv) {
  const int64_t codes = storage == DType::kF8E4M3 ? code_bytes(facts, rows) : 0;
  const model::Decoder& decoder = facts.decoder;
  int64_t injected = 0;  // of a row
  for (size_t i = 0; i < decoder.layers.size(); ++i) injected += 2 * decoder.attention(i)->kv_width();
  const int64_t layers = std::max(model::Network::scratch_bytes(device, decoder, rows, max_positions, kv),
                                  rows * injected * static_cast<int64_t>(sizeof(float)) + kArenaAlignment);
  return layers + rows * decoder.hidden * 8 + 4 * kArenaAlignment + codes;
}

}  // namespace volley::spec::dflash
