#include "model/network.h"

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
  VOLLEY_CHECK(summaries.whole == nullptr);
  ArenaScope scope(scratch);
  const TensorView mine = scratch.take(DType::kF32, {logits.dim(0), head.n});
  ops::linear(stream, head, h, mine, {}, scratch);
  const auto [first, rows] = vocabulary_part(logits.dim(1), group->rank(), group->ranks());
  VOLLEY_CHECK_EQ(rows, head.n);
  group->gather_columns(stream, mine, first, vocabulary_part(logits.dim(1), 0, group->ranks()).second, logits);
}

bool head_summarises(const Stream& stream, const ops::LinearWeight& head, DType activation, comm::Communicator* group) {
  return group == nullptr && ops::linear_summarises(stream, head, activation);
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
  }
  network->packed_bytes_ = loader.packed_bytes() - packed_before;
  return network;
}

Status Network::load_layer(WeightLoader& loader, size_t index) {
  const std::string prefix = "layers." + std::to_string(index) + ".";
  const Layer& layer = spec_.layers[index];
  Block block;
  VOLLEY_ASSIGN(block.input_norm, loader.vector(prefix + "input_norm"));
  VOLLEY_ASSIGN(block.post_norm, loader.vector(prefix + "post_norm"));
  if (const Attention* attention = spec_.attention(index)) {
    const AttentionSetup setup = {*attention, spec_.norm_eps, numerics_, rope(attention->rope), kv_layers_++};
    VOLLEY_ASSIGN(block.mixer, AttentionBlock::load(loader, prefix, setup));
  } else {
    const auto& delta = std::get<GatedDelta>(layer.mixer);
    VOLLEY_ASSIGN(block.mixer, GatedDeltaBlock::load(loader, prefix,
                                                     {delta, spec_.norm_eps, numerics_.activation, delta_layers_++}));
  }
  if (const Experts* experts = spec_.experts(index)) {
    VOLLEY_ASSIGN(block.ffn,
                  ExpertsBlock::load(loader, prefix, {*experts, numerics_.activation, static_cast<uint32_t>(index)}));
  } else {
    VOLLEY_ASSIGN(block.ffn, DenseBlock::load(loader, prefix, numerics_.activation));
  }
  layers_.push_back(std::move(block));
  return {};
}

void Network::plan(Pass& pass) const {
  for (const Block& layer : layers_) layer.mixer->plan(pass);
}

void Network::forward(Pass& pass, const Capture& capture, TensorView x) const {
  const int64_t rows = pass.rows.rows;
  const Residual residual = {x, group_};
  ops::FeatureBlock next;  // which the next layer's norm takes, as it reads the same
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Block& layer = layers_[i];
    const auto normed = [&](const Vector& norm, const ops::LinearWeight& reader, const ops::FeatureBlock& copy) {
      const ops::Input h = ops::input_for(reader, activation(), rows, pass.scratch);
      ops::rms_norm(pass.stream, x, norm.view, spec_.norm_eps, {}, h, copy);
      return h;
    };
    {
      ArenaScope scope(pass.scratch);
      layer.mixer->run(pass, normed(layer.input_norm, layer.mixer->input_weight(), next), residual);
    }
    {
      ArenaScope scope(pass.scratch);
      layer.ffn->run(pass, normed(layer.post_norm, layer.ffn->input_weight(), {}), residual);
    }
    next = {};
    for (size_t column = 0; column < capture.layers.size(); ++column) {
      if (capture.layers[column] != static_cast<int32_t>(i)) continue;
      const auto index = static_cast<int64_t>(column);
      if (i + 1 < layers_.size() && next.features.data == nullptr) {
        next = {capture.features, index};
      } else {
        ops::capture_feature(pass.stream, x, index * spec_.hidden, capture.features);
      }
    }
  }
}

void Network::take_part(Pass& pass) const {
  VOLLEY_CHECK(pass.exchange != nullptr && pass.rows.rows == 0);
  const TensorView h(nullptr, activation(), {0, spec_.hidden}), x(nullptr, DType::kF32, {0, spec_.hidden});
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (spec_.experts(i) != nullptr) layers_[i].ffn->run(pass, h, {x});
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
