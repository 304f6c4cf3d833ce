#include "decode/dflash/network.h"

#include <algorithm>
#include <cmath>

#include "decode/dflash/vocabulary.h"
#include "model/shard.h"
#include "ops/logits/logits.h"
#include "weights/coded.h"
#include "weights/finite.h"

namespace volley::decode::dflash {
namespace {

Result<bool> is_finite(const weights::Checkpoint& checkpoint, const std::string& name,
                       const std::vector<int64_t>& shape) {
  VOLLEY_ASSIGN(const std::optional<weights::CodeFormat> coded, checkpoint.code_format(name, shape));
  if (!coded) {
    VOLLEY_ASSIGN(const weights::SourceTensor tensor, checkpoint.get(name, shape));
    return weights::all_finite(tensor);
  }
  VOLLEY_ASSIGN(const std::shared_ptr<const weights::CodedMatrix> matrix, checkpoint.coded(name, shape));
  std::vector<float> values(static_cast<size_t>(shape[1]));
  for (int64_t row = 0; row < shape[0]; ++row) {
    matrix->widen({row, 0, shape[1]}, values.data());
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) return false;
  }
  return true;
}

Status check_finite(const weights::Checkpoint& checkpoint, const std::vector<model::Param>& params) {
  if (checkpoint.names().empty()) return {};  // dummy weights
  for (const model::Param& param : params) {
    if (param.again || param.kind == model::Param::Kind::kIndex) continue;
    for (const model::Param::Part& part : param.parts) {
      VOLLEY_ASSIGN(const bool finite, is_finite(checkpoint, part.name, param.stored_shape(part)));
      if (finite) continue;
      return data_loss(checkpoint.origin() + ": the drafter's tensor \"" + part.name +
                       "\" holds infinite values or NaN, with which nothing that it drafts would be accepted: fetch "
                       "the drafter again, or turn speculation off.");
    }
  }
  return {};
}

// Counts the layers from `first` on that have the scales of that one.
size_t layers_of_write(std::span<const ops::KvLayer> kv, const std::vector<size_t>& layers, size_t first) {
  size_t end = first;
  const ops::KvLayer& own = kv[layers[first]];
  while (end < layers.size() && kv[layers[end]].k_scale == own.k_scale && kv[layers[end]].v_scale == own.v_scale) ++end;
  return end - first;
}

// Elements of a layer in a row of the projected k and v.
int64_t injected_width(const model::Attention& a) {
  return (a.v_from_k ? 1 : 2) * a.kv_width();
}

}  // namespace

Status Network::Layer::load(model::WeightLoader& loader, const std::string& role) {
  if (!loader.has(role + ".hidden")) return {};
  VOLLEY_ASSIGN(hidden, loader.linear(role + ".hidden"));
  if (loader.has(role + ".others")) {
    VOLLEY_ASSIGN(others, loader.table(role + ".others"));
  }
  return loader.optional_vector(role + ".bias", bias);
}

Result<std::unique_ptr<Network>> Network::load(const ProposerLoad& load, const Facts& facts) {
  std::unique_ptr<Network> network(new Network);
  const int rank = load.group == nullptr ? 0 : load.group->rank();
  const int ranks = load.group == nullptr ? 1 : load.group->ranks();
  network->facts_ = facts;
  network->facts_.decoder = model::shard_of(facts.decoder, rank, ranks);
  network->facts_.params = model::shard(facts.params, rank, ranks);
  network->target_ = &load.target;
  network->head_copy_ = load.head_copy;
  // Only rank 0 looks at the whole tensor; the other ranks read their parts alone.
  const bool looks = rank == 0 && !load.device.stream().dry();
  if (looks) VOLLEY_RETURN_IF_ERROR(check_finite(*load.checkpoint, facts.params));
  model::WeightLoader loader(load.device, *load.checkpoint, load.numerics, network->facts_.params);
  loader.on_packed = load.on_packed;
  VOLLEY_ASSIGN(network->fc_, loader.linear("fc"));
  VOLLEY_ASSIGN(network->hidden_norm_, loader.vector("hidden_norm"));
  VOLLEY_ASSIGN(network->body_, model::Network::load(loader, load.checkpoint, network->facts_.decoder, load.numerics,
                                                     load.positions, load.group));
  VOLLEY_ASSIGN(network->injection_, loader.linear("injection.kv"));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector("injection.k_norm", network->injection_k_norm_));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector("injection.kv_bias", network->injection_bias_));
  if (facts.selector.rank > 0) {
    VOLLEY_RETURN_IF_ERROR(network->selector_.load(loader, "selector"));
    VOLLEY_RETURN_IF_ERROR(network->confidence_.load(loader, "confidence"));
    VOLLEY_ASSIGN(network->predecessors_, loader.table("selector.predecessor"));
    VOLLEY_ASSIGN(network->successors_, loader.table("selector.successor"));
  }
  network->packed_bytes_ = loader.packed_bytes();
  if (facts.draft_vocab > 0) {
    VOLLEY_ASSIGN(const std::vector<TokenId> ids,
                  read_target_ids(*load.checkpoint, facts.draft_vocab, load.target.spec().vocab));
    VOLLEY_ASSIGN(network->target_ids_, load.device.allocate(ids.size() * sizeof(TokenId)));
    load.device.upload(network->target_ids_.data(), ids.data(), ids.size() * sizeof(TokenId));
  }
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
  const TensorView kv = pass.scratch.take(DType::kF32, {rows, injection_.n});
  ops::linear(pass.stream, injection_, h, kv, {}, pass.scratch);
  // One product serves all layers. Layers of a view lie one after the other in its group's pages, so one write serves
  // those with equal scales.
  // Layers of a view have one shape; those of the two views may differ.
  int64_t begin = 0, norm_begin = 0;
  for (const bool windowed : {false, true}) {
    const std::vector<size_t> layers = injected_layers(decoder, windowed);
    for (size_t first = 0; first < layers.size();) {
      const auto n = static_cast<int64_t>(layers_of_write(pass.kv, layers, first));
      const model::Attention& a = *decoder.attention(layers[first]);
      inject_layers(pass, kv, windowed, layers[first], n, begin, norm_begin);
      begin += n * injected_width(a);
      norm_begin += n * a.head_dim;
      first += static_cast<size_t>(n);
    }
  }
}

void Network::inject_layers(model::Pass& pass, TensorView kv, bool windowed, size_t layer, int64_t n, int64_t begin,
                            int64_t norm_begin) const {
  const model::Decoder& decoder = facts_.decoder;
  const model::Attention& a = *decoder.attention(layer);
  const auto part = [](const TensorView& vector, int64_t from, int64_t count) {
    return vector.data == nullptr ? vector : TensorView(vector.as<float>() + from, DType::kF32, {count});
  };
  ops::QkvWrite write;
  write.layers = static_cast<int32_t>(n);
  write.qkv = TensorView(kv.as<float>() + begin, DType::kF32, {kv.dim(0), injection_.n});
  write.k_norm = part(injection_k_norm_.view, norm_begin, n * a.head_dim);
  write.bias = part(injection_bias_.view, begin, n * injected_width(a));
  write.v_norm = a.v_norm;
  write.v_from_k = a.v_from_k;
  write.eps = decoder.norm_eps;
  write.rope = body_->rope(a.rope);
  write.kv = pass.kv[layer];
  ops::write_qkv(pass.stream, pass.rows, pass.rows.views[windowed ? ops::kWindowView : ops::kWholeView], write);
}

const ops::LinearWeight& Network::head() const {
  if (facts_.draft_vocab > 0) return body_->head();
  return head_copy_ != nullptr ? *head_copy_ : target_->head();
}

void Network::own_logits(Stream& stream, const ops::Input& h, TensorView logits, Arena& scratch,
                         const ops::RowSummaries& summaries) const {
  model::head_logits(stream, head(), h, logits, summaries, body_->group(), scratch);
  ops::end_logits(stream, logits, facts_.decoder.logits_end);
}

void Network::logits(Stream& stream, TensorView x, TensorView row_index, TensorView logits, Arena& scratch,
                     const ops::RowSummaries& summaries) const {
  ArenaScope scope(scratch);
  const int64_t rows = logits.shape[0];
  const bool reduced = facts_.draft_vocab > 0;
  const ops::Input h = ops::input_for(head(), activation(), rows, scratch);
  final_norm(stream, x, row_index, h);
  const TensorView made = reduced ? scratch.take(DType::kF32, {rows, facts_.draft_vocab}) : logits;
  own_logits(stream, h, made, scratch, summaries);
  if (reduced) ops::spread_columns(stream, made, target_ids_.view(DType::kI32, {facts_.draft_vocab}), logits);
}

void Network::select(Stream& stream, TensorView x, TensorView row_index, ops::SelectorTask task, Arena& scratch) const {
  ArenaScope scope(scratch);
  const int64_t rows = row_index.dim(0);
  const Selector& selector = facts_.selector;
  // Both layers take rows of one kind: where there are two, neither has codes.
  const ops::LinearWeight& first = selector_.hidden.n > 0 ? selector_.hidden : confidence_.hidden;
  ops::Input h = ops::input_for(first.n > 0 ? first : head(), activation(), rows, scratch);
  final_norm(stream, x, row_index, h);
  // These products keep few multiprocessors busy. On the others the head begins to read its weights.
  for (const auto& [layer, out] : {std::pair{&selector_, &task.hidden}, {&confidence_, &task.confidence}}) {
    if (layer->hidden.n == 0) continue;
    *out = scratch.take(DType::kF32, {rows, layer->hidden.n});
    ops::End end;
    end.bias = layer->bias.view;
    ops::linear(stream, layer->hidden, h, *out, end, scratch);
  }
  const ops::Input of_head = ops::input_for(head(), activation(), rows, scratch);
  if (of_head.values.dtype != h.values.dtype || of_head.in_groups() != h.in_groups()) {
    h = of_head;
    final_norm(stream, x, row_index, h);
  }
  task.logits = scratch.take(DType::kF32, {rows, facts_.own_vocab()});
  own_logits(stream, h, task.logits, scratch, {});
  task.scoring = selector.scoring;
  task.predecessor = predecessors_.view;
  task.successor = successors_.view;
  // The columns that the product with h leaves: before h for a recurrent head, else behind it.
  const int64_t behind = facts_.decoder.hidden;
  task.weight = {selector_.others.view, selector.scoring == ops::Scoring::kGated ? behind : 0};
  task.confidence_weight = {confidence_.others.view, behind};
  if (facts_.draft_vocab > 0) task.token_ids = target_ids_.view(DType::kI32, {facts_.draft_vocab});
  task.top_k = selector.top_k;
  ops::select_tokens(stream, task, scratch);
}

// Ranks hold parts of the head. A GPU reads all of it: SmolLM2's takes 10 µs there.
int64_t Network::vocab(const Stream& stream) const {
  const bool first_alone = facts_.proposed_vocab > 0 && stream.kind() == DeviceKind::kCpu && body_->group() == nullptr;
  return first_alone ? facts_.proposed_vocab : facts_.decoder.vocab;
}

// Summaries exist only for the product's own outputs.
bool Network::head_summarises(const Stream& stream) const {
  if (facts_.draft_vocab > 0 || !facts_.decoder.logits_end.is_plain()) return false;
  return model::head_summarises(stream, head(), activation(), target_->spec().vocab, body_->group());
}

}  // namespace volley::decode::dflash
