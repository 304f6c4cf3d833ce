#include "model/network.h"

#include <algorithm>

#include "model/ffn/dense.h"
#include "model/ffn/experts.h"
#include "model/mixer/attention.h"
#include "model/mixer/gated_delta.h"
#include "model/shard.h"
#include "ops/embedding/embedding.h"

namespace volley::model {

void head_logits(Stream& stream, const ops::LinearWeight& head, const ops::Input& h, TensorView logits,
                 const ops::RowSummaries& summaries, comm::Communicator* group, Arena& scratch) {
  if (group == nullptr) return ops::linear(stream, head, h, logits, {.summaries = summaries}, scratch);
  ArenaScope scope(scratch);
  const TensorView mine = scratch.take(DType::kF32, {logits.dim(0), head.n});
  ops::linear(stream, head, h, mine, {.summaries = summaries}, scratch);
  const auto [first, rows] = vocabulary_part(logits.dim(1), group->rank(), group->ranks());
  VOLLEY_CHECK_EQ(rows, head.n);
  const int64_t most = vocabulary_part(logits.dim(1), 0, group->ranks()).second;
  if (summaries.whole == nullptr) return group->gather_columns(stream, mine, first, most, logits);
  group->gather_logits(stream, mine, first, most, logits, summaries);
}

// The same on all ranks: what they cannot have all, none has.
bool head_summarises(const Stream& stream, const ops::LinearWeight& head, DType activation, int64_t vocab,
                     comm::Communicator* group) {
  if (group == nullptr) return ops::linear_summarises(stream, head, activation);
  if (!group->gathers_summaries()) return false;
  for (int rank = 0; rank < group->ranks(); ++rank) {
    ops::LinearWeight part;  // without weights
    part.k = head.k;
    part.layout = head.layout;
    part.format = head.format;
    part.portable = head.portable;
    part.split_as = head.split_as;
    part.plain = head.plain;
    part.n = vocabulary_part(vocab, rank, group->ranks()).second;
    if (part.n == 0 || part.n % 4 != 0 || !ops::linear_summarises(stream, part, activation)) return false;
  }
  return true;
}

Result<std::unique_ptr<Network>> Network::load(WeightLoader& loader,
                                               std::shared_ptr<const weights::Checkpoint> checkpoint,
                                               const Decoder& spec, Numerics numerics, int64_t positions,
                                               comm::Communicator* group) {
  std::unique_ptr<Network> network(new Network);
  network->checkpoint_ = std::move(checkpoint);
  network->spec_ = spec;
  network->numerics_ = numerics;
  if (group != nullptr && group->ranks() > 1) network->group_ = group;
  const int64_t packed_before = loader.packed_bytes();
  if (loader.has("embedding")) {
    VOLLEY_ASSIGN(network->embedding_, loader.table("embedding"));
  }
  for (const RopeSpec& rope : spec.ropes) {
    VOLLEY_ASSIGN(network->ropes_.emplace_back(), make_rope(loader.device(), rope, positions));
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) VOLLEY_RETURN_IF_ERROR(network->load_layer(loader, i));
  VOLLEY_ASSIGN(network->norm_, loader.vector("norm"));
  if (loader.has("head")) {
    VOLLEY_ASSIGN(network->head_, loader.linear("head"));
    // However many ranks have the parts: the last one has fewer rows, and a rank of several parts more.
    const int parts = spec.parts * (network->group_ == nullptr ? 1 : group->ranks());
    if (parts > 1) network->head_.split_as = vocabulary_part(spec.vocab, 0, parts).second;
    network->head_.plain = parts > 1 && spec.vocab % 4 != 0;  // as the last one
  }
  network->packed_bytes_ = loader.packed_bytes() - packed_before;
  return network;
}

Status Network::load_layer(WeightLoader& loader, size_t index) {
  const std::string prefix = "layers." + std::to_string(index) + ".";
  Block block;
  VOLLEY_ASSIGN(block.input_norm, loader.vector(prefix + "input_norm"));
  VOLLEY_ASSIGN(block.post_norm, loader.vector(prefix + "post_norm"));
  for (int part = 0; part < spec_.parts; ++part) VOLLEY_RETURN_IF_ERROR(load_part(loader, index, part, block));
  layers_.push_back(std::move(block));
  return {};
}

Status Network::load_part(WeightLoader& loader, size_t index, int part, Block& block) {
  const std::string prefix = part_prefix("layers." + std::to_string(index) + ".", part);
  auto& mixer = block.mixer.emplace_back();
  auto& ffn = block.ffn.emplace_back();
  if (const Attention* attention = spec_.attention(index)) {
    const AttentionSetup setup = {*attention, spec_.norm_eps, numerics_, rope(attention->rope), kv_layers_++};
    VOLLEY_ASSIGN(mixer, AttentionBlock::load(loader, prefix, setup));
  } else {
    const GatedDeltaBlock::Setup setup = {*spec_.delta(index), spec_.norm_eps, numerics_.activation, delta_layers_++};
    VOLLEY_ASSIGN(mixer, GatedDeltaBlock::load(loader, prefix, setup));
  }
  if (spec_.experts(index) != nullptr) {
    Experts experts = *spec_.experts(index);
    if (experts.by_expert) experts.router.own_first += part * experts.router.own_count;
    const bool counts = part == 0 || experts.by_expert;
    VOLLEY_ASSIGN(
        ffn, ExpertsBlock::load(loader, prefix, {experts, numerics_.activation, static_cast<uint32_t>(index), counts}));
  } else {
    VOLLEY_ASSIGN(ffn, DenseBlock::load(loader, prefix, numerics_.activation));
  }
  return {};
}

void Network::plan(Pass& pass) const {
  for (const Block& layer : layers_) layer.mixer[0]->plan(pass);
}

// What each layer's mixer and ffn reads, all in one place: a block has read its input when it adds to the residual
// stream, and the norm behind that writes the next one's.
std::vector<ops::Input> Network::take_inputs(int64_t rows, Arena& scratch) const {
  std::vector<ops::Input> inputs;
  inputs.reserve(2 * layers_.size());
  const size_t begin = scratch.mark();
  size_t end = begin;
  const auto take = [&](const ops::LinearWeight& reader) {
    const ArenaScope scope(scratch);
    inputs.push_back(ops::input_for(reader, activation(), rows, scratch));
    end = std::max(end, scratch.mark());
  };
  for (const Block& layer : layers_) {
    take(layer.mixer[0]->input_weight());
    take(layer.ffn[0]->input_weight());
  }
  scratch.take(DType::kU8, {static_cast<int64_t>(end - begin)});
  return inputs;
}

void Network::forward(Pass& pass, const Capture& capture, TensorView x) const {
  if (layers_.empty()) return;
  ArenaScope inputs_scope(pass.scratch);
  const std::vector<ops::Input> inputs = take_inputs(pass.rows.rows, pass.scratch);
  const auto normed = [&](const comm::NormAfter& norm) {
    ops::rms_norm(pass.stream, x, norm.weight, norm.eps, {}, norm.y, norm.copy);
  };
  std::optional<PartSums> sums;
  if (spec_.parts > 1) sums.emplace(spec_.parts, pass.rows.rows, spec_.hidden, pass.scratch);
  // A block, part by part, and the norm of what it leaves.
  const auto run = [&](const auto& parts, const ops::Input& h, const comm::NormAfter* next) {
    const Residual residual = {x, group_, group_ == nullptr ? nullptr : next, sums ? &*sums : nullptr};
    for (const auto& block : parts) {
      ArenaScope scope(pass.scratch);
      block->run(pass, h, residual);
    }
    if (group_ == nullptr && next != nullptr) normed(*next);
  };
  normed({layers_[0].input_norm.view, spec_.norm_eps, inputs[0]});
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Block& layer = layers_[i];
    const comm::NormAfter post = {layer.post_norm.view, spec_.norm_eps, inputs[2 * i + 1]};
    run(layer.mixer, inputs[2 * i], &post);
    const auto first = capture.layers.begin(), end = capture.layers.end();
    const auto captured_from = [&](auto from) { return std::find(from, end, static_cast<int32_t>(i)); };
    auto column = captured_from(first);
    if (i + 1 < layers_.size()) {
      comm::NormAfter next = {layers_[i + 1].input_norm.view, spec_.norm_eps, inputs[2 * i + 2]};
      if (column != end) {  // the norm reads what is captured, and copies it
        next.copy = {capture.features, column - first};
        column = captured_from(column + 1);
      }
      run(layer.ffn, inputs[2 * i + 1], &next);
    } else {
      run(layer.ffn, inputs[2 * i + 1], nullptr);
    }
    for (; column != end; column = captured_from(column + 1)) {
      ops::capture_feature(pass.stream, x, (column - first) * spec_.hidden, capture.features);
    }
  }
}

void Network::take_part(Pass& pass) const {
  VOLLEY_CHECK(pass.exchange != nullptr && pass.rows.rows == 0);
  const TensorView h(nullptr, activation(), {0, spec_.hidden}), x(nullptr, DType::kF32, {0, spec_.hidden});
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (spec_.experts(i) != nullptr) layers_[i].ffn[0]->run(pass, h, {x});
  }
}

void Network::final_norm(Stream& stream, TensorView x, TensorView row_index, const ops::Input& h) const {
  ops::rms_norm(stream, x, norm_.view, spec_.norm_eps, row_index, h);
}

void Network::embed(Stream& stream, TensorView ids, TensorView x) const {
  ops::embed(stream, embedding_.view, ids, x);
}

void Network::logits(Stream& stream, TensorView x, TensorView row_index, TensorView logits, Arena& scratch,
                     const ops::RowSummaries& summaries) const {
  ArenaScope scope(scratch);
  const ops::Input h = ops::input_for(head_, activation(), row_index.dim(0), scratch);
  final_norm(stream, x, row_index, h);
  head_logits(stream, head_, h, logits, summaries, group_, scratch);
}

}  // namespace volley::model
