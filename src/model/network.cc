#include "model/network.h"

#include <algorithm>

#include "model/shard.h"
#include "ops/block_conv/block_conv.h"
#include "ops/embedding/embedding.h"
#include "ops/norm/added_norm.h"
#include "weights/coded.h"

namespace volley::model {

void head_logits(Stream& stream, const ops::LinearWeight& head, const ops::Input& h, TensorView logits,
                 const ops::RowSummaries& summaries, comm::Communicator* group, Arena& scratch) {
  if (group == nullptr) return ops::linear(stream, head, h, logits, {.summaries = summaries, .fewer = true}, scratch);
  ArenaScope scope(scratch);
  const TensorView mine = scratch.take(DType::kF32, {logits.dim(0), head.n});
  ops::linear(stream, head, h, mine, {.summaries = summaries}, scratch);
  const auto [first, rows] = vocabulary_part(logits.dim(1), group->rank(), group->ranks());
  VOLLEY_CHECK_EQ(rows, head.n);
  const int64_t most = vocabulary_part(logits.dim(1), 0, group->ranks()).second;
  if (summaries.whole == nullptr) return group->gather_columns(stream, mine, first, most, logits);
  group->gather_logits(stream, mine, first, most, logits, summaries);
}

// The smallest support of all ranks: a feature that one rank lacks is off for all.
bool head_summarises(const Stream& stream, const ops::LinearWeight& head, DType activation, int64_t vocab,
                     comm::Communicator* group) {
  if (group == nullptr) return ops::linear_summarises(stream, head, activation);
  if (!group->gathers_summaries()) return false;
  for (int rank = 0; rank < group->ranks(); ++rank) {
    ops::LinearWeight part = head.unpacked();
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
    network->embedding_scale_ = spec.embedding_scale;
    if (numerics.activation == DType::kBF16) {
      network->embedding_scale_ = to_float(to_bfloat16(spec.embedding_scale));
    }
  }
  for (const RopeSpec& rope : spec.ropes) {
    VOLLEY_ASSIGN(network->ropes_.emplace_back(), make_rope(loader.device(), rope, positions));
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) VOLLEY_RETURN_IF_ERROR(network->load_layer(loader, i));
  VOLLEY_ASSIGN(network->norm_, loader.vector("norm"));
  if (loader.has("head")) {
    VOLLEY_ASSIGN(network->head_, loader.linear("head"));
    if (network->group_ != nullptr) {  // the last rank has fewer rows, and sums them as the others do
      network->head_.split_as = vocabulary_part(spec.vocab, 0, group->ranks()).second;
      network->head_.plain = spec.vocab % 4 != 0;
    }
  }
  if (spec.tower && loader.has("visual.patch")) {
    VOLLEY_ASSIGN(network->tower_, Tower::load(loader, *spec.tower, numerics));
  }
  network->packed_bytes_ = loader.packed_bytes() - packed_before;
  return network;
}

Status Network::load_layer(WeightLoader& loader, size_t index) {
  const Layer& layer = spec_.layers[index];
  const BlockSetup setup = {"layers." + std::to_string(index) + ".",
                            static_cast<uint32_t>(index),
                            spec_.norm_eps,
                            numerics_,
                            ropes_,
                            kv_layers_,
                            state_layers_};
  const auto load = [&](const auto& block) { return load_block(loader, block, setup); };
  Block& block = layers_.emplace_back();
  const auto load_around = [&](Around& around, const char* norm, const std::string& role,
                               const BlockEnd& end) -> Status {
    VOLLEY_ASSIGN(around.norm, loader.vector(setup.prefix + norm));
    around.end = end;
    VOLLEY_RETURN_IF_ERROR(loader.optional_vector(setup.prefix + role + "_end_norm", around.end_norm));
    VOLLEY_RETURN_IF_ERROR(loader.optional_vector(setup.prefix + role + "_end_factor", around.end_factor));
    if (spec_.block_conv.taps == 0) return {};
    VOLLEY_CHECK(end.is_plain());
    VOLLEY_ASSIGN(around.conv.base, loader.vector(setup.prefix + role + "_conv_base"));
    VOLLEY_ASSIGN(around.conv.projection, loader.linear(setup.prefix + role + "_conv"));
    return {};
  };
  VOLLEY_RETURN_IF_ERROR(load_around(block.mixer_around, "input_norm", "mixer", layer.mixer_end));
  VOLLEY_RETURN_IF_ERROR(load_around(block.ffn_around, "post_norm", "ffn", layer.ffn_end));
  VOLLEY_ASSIGN(block.mixer, std::visit(load, layer.mixer));
  VOLLEY_ASSIGN(block.ffn, std::visit(load, layer.ffn));
  const MixerFacts facts = layer.mixer_facts();
  kv_layers_ += facts.kv ? 1 : 0;
  state_layers_ += facts.state ? 1 : 0;
  return {};
}

void Network::plan(Pass& pass) const {
  if (pass.rows.rope_axes.data != nullptr) take_angles(pass);
  for (const Block& layer : layers_) layer.mixer->plan(pass);
}

// Text passes have no work here: their rows find their angles in the model's tables. Only rows that bring positions pay
// for tables of their own, one launch a kind of RoPE.
void Network::take_angles(Pass& pass) const {
  for (const Rope& rope : ropes_) {
    VOLLEY_CHECK(rope.axes.data != nullptr);
    const auto take = [&] { return pass.scratch.take(DType::kF32, {pass.rows.rows, rope.axes.count()}); };
    const ops::RopeTables angles = {take(), take()};
    ops::take_rope_angles(pass.stream, rope.tables, rope.axes, pass.rows.rope_axes, angles);
    pass.angles.push_back(angles);
  }
}

// The outputs of each layer's norms lie in one buffer: it is read before the block adds to the residual stream, and the
// next norm then overwrites the buffer.
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
  const bool convolves = spec_.block_conv.taps > 0;
  for (const Block& layer : layers_) {
    take(convolves ? layer.mixer_around.conv.projection : layer.mixer->input_weight());
    take(convolves ? layer.ffn_around.conv.projection : layer.ffn->input_weight());
  }
  scratch.take(DType::kU8, {static_cast<int64_t>(end - begin)});
  return inputs;
}

void Network::forward(Pass& pass, std::span<const Capture> captures, TensorView x) const {
  if (layers_.empty()) return;
  const bool convolves = spec_.block_conv.taps > 0;
  VOLLEY_CHECK(!convolves || (captures.empty() && pass.added.empty()));
  ArenaScope inputs_scope(pass.scratch);
  const std::vector<ops::Input> inputs = take_inputs(pass.rows.rows, pass.scratch);
  const auto normed = [&](const comm::NormAfter& norm) {
    ops::rms_norm(pass.stream, x, norm.weight, norm.eps, {}, norm.y, norm.copy);
  };
  // Runs a block, its end, and the norm after both. Where an end follows, the block's output is gathered apart.
  const auto run = [&](const auto& block, const Around& around, const ops::Input& h, const comm::NormAfter* next) {
    if (convolves) return run_convolved(pass, *block, around, h, x, next);
    ArenaScope scope(pass.scratch);
    const bool norms_itself = group_ != nullptr && around.end.is_plain();
    if (around.end.is_plain()) {
      block->run(pass, h, {x, group_, norms_itself ? next : nullptr});
    } else {
      const TensorView y = pass.scratch.take(DType::kF32, {x.dim(0), x.dim(1)});
      if (group_ != nullptr) ops::zero(pass.stream, y);
      block->run(pass, h, {y, group_, nullptr, x, group_ == nullptr});
      ops::AddedNorm add = {y, around.end_norm.view, spec_.norm_eps, around.end.scale, around.end_factor.view};
      if (next == nullptr) {
        ops::add_normed(pass.stream, y, add.end_weight, add.end_eps, add.scale, x, add.factor);
      } else {
        add.weight = next->weight, add.eps = next->eps, add.h = next->y, add.copy = next->copy;
        ops::add_normed_and_norm(pass.stream, add, x);
      }
      return;
    }
    if (!norms_itself && next != nullptr) normed(*next);
  };
  normed({layers_[0].mixer_around.norm.view, spec_.norm_eps, inputs[0]});
  std::vector<ops::FeatureBlock> wanted;  // the places of a layer's output
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Block& layer = layers_[i];
    const comm::NormAfter post = {layer.ffn_around.norm.view, spec_.norm_eps, inputs[2 * i + 1]};
    run(layer.mixer, layer.mixer_around, inputs[2 * i], &post);
    wanted.clear();
    for (const Capture& capture : captures) {
      for (size_t column = 0; column < capture.layers.size(); ++column) {
        if (capture.layers[column] == static_cast<int32_t>(i)) {
          wanted.push_back({capture.features, static_cast<int64_t>(column)});
        }
      }
    }
    // Rows that bring vectors get them between the block and the norm.
    const bool adds = !pass.added.empty() && static_cast<int32_t>(i) < spec_.added_layers;
    const bool last = i + 1 == layers_.size();
    comm::NormAfter next;
    if (!last) {
      next = {layers_[i + 1].mixer_around.norm.view, spec_.norm_eps, inputs[2 * i + 2]};
      if (!wanted.empty()) {  // the norm reads the captured rows, and copies them
        next.copy = wanted.back();
        wanted.pop_back();
      }
    }
    run(layer.ffn, layer.ffn_around, inputs[2 * i + 1], last || adds ? nullptr : &next);
    if (adds) {
      add_rows(pass, static_cast<int64_t>(i), x);
      if (!last) normed(next);
    }
    for (const ops::FeatureBlock& block : wanted) {
      ops::capture_feature(pass.stream, x, block.index * spec_.hidden, block.features);
    }
  }
}

void Network::add_rows(const Pass& pass, int64_t layer, TensorView x) {
  for (const AddedRows& added : pass.added) {
    const int64_t n = added.vectors.dim(1);
    const TensorView of_layer = added.vectors.rows(layer, 1);
    ops::add(pass.stream, {of_layer.data, DType::kF32, {n, x.dim(1)}}, x.rows(added.row, n));
  }
}

// Both convolutions of a block take their coefficients from the normed input before the block.
template <class AnyBlock>
void Network::run_convolved(Pass& pass, const AnyBlock& block, const Around& around, const ops::Input& h, TensorView x,
                            const comm::NormAfter* next) const {
  ArenaScope scope(pass.scratch);
  const int64_t rows = x.dim(0), hidden = x.dim(1);
  ops::BlockConv conv;
  conv.shape = spec_.block_conv;
  conv.base = around.conv.base.view;
  conv.coefficients = pass.scratch.take(DType::kF32, {rows, conv.shape.coefficients(hidden)});
  conv.block_rows = pass.rows.max_segment_rows;
  ops::linear(pass.stream, around.conv.projection, h, conv.coefficients, {}, pass.scratch);
  const TensorView y = pass.scratch.take(DType::kF32, {rows, hidden});
  const ops::Input convolved = ops::input_for(block.input_weight(), activation(), rows, pass.scratch);
  ops::convolve_normed(pass.stream, conv, x, {around.norm.view, spec_.norm_eps}, convolved, y, pass.scratch);
  block.run(pass, convolved, {y, group_});
  if (next == nullptr) return ops::add_convolved(pass.stream, conv, y, x);
  const ops::NormWeight after = {next->weight, next->eps};
  ops::add_convolved(pass.stream, conv, y, x, &after, next->y);
}

void Network::take_part(Pass& pass) const {
  VOLLEY_CHECK(pass.exchange != nullptr && pass.rows.rows == 0);
  const TensorView h(nullptr, activation(), {0, spec_.hidden}), x(nullptr, DType::kF32, {0, spec_.hidden});
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (spec_.layers[i].ffn_facts().router) layers_[i].ffn->run(pass, h, {x, nullptr, nullptr, x});
  }
}

void Network::final_norm(Stream& stream, TensorView x, TensorView row_index, const ops::Input& h) const {
  ops::rms_norm(stream, x, norm_.view, spec_.norm_eps, row_index, h);
}

void Network::embed(Stream& stream, TensorView ids, TensorView x, std::optional<float> scale) const {
  const float factor = scale.value_or(embedding_scale_);
  if (embedding_.code_table) return ops::embed(stream, *embedding_.code_table, ids, x, factor);
  if (embedding_.codes == nullptr) return ops::embed(stream, embedding_.view, ids, x, factor);
  const weights::CodedMatrix& codes = *embedding_.codes;
  const ops::ReadRow read_row = [&](int64_t row, float* y) { codes.widen({row, 0, codes.columns()}, y); };
  ops::embed(stream, spec_.vocab, read_row, ids, x, factor);
}

void Network::logits(Stream& stream, TensorView x, TensorView row_index, TensorView logits, Arena& scratch,
                     const ops::RowSummaries& summaries) const {
  ArenaScope scope(scratch);
  const ops::Input h = ops::input_for(head_, activation(), row_index.dim(0), scratch);
  final_norm(stream, x, row_index, h);
  head_logits(stream, head_, h, logits, summaries, group_, scratch);
  ops::end_logits(stream, logits, spec_.logits_end);
}

}  // namespace volley::model
