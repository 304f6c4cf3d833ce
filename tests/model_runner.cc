#include "model_runner.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "decode/dflash/config.h"
#include "decode/pass.h"
#include "device/dry_run.h"
#include "families/family.h"
#include "model/shard.h"

namespace volley::testing {
namespace {

constexpr int32_t kPageSize = 16;
constexpr int32_t kTapeRows = 3;  // of recurrent layers

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    std::exit(1);
  }
  return std::move(result).value();
}

std::shared_ptr<const weights::Checkpoint> open(const std::string& dir, const weights::NameRules& names,
                                                std::optional<uint64_t> dummy) {
  if (dummy) return weights::make_dummy_checkpoint(*dummy);
  return weights::with_names(must(weights::open_checkpoint(dir)), names);
}

std::unique_ptr<Device> make_device(const std::string& name, comm::Communicator* group) {
  const int rank = group == nullptr ? 0 : group->rank();
  auto device = must(name == "cpu" ? make_cpu_device(2) : make_cuda_device(rank));
  if (group == nullptr) return device;
  if (const Status prepared = group->prepare(*device); !prepared.ok()) {
    std::fprintf(stderr, "%s\n", prepared.error().message.c_str());
    std::exit(1);
  }
  return device;
}

}  // namespace

ModelRunner::ModelRunner(const std::string& target_dir, const std::string& draft_dir, ComputeType dtype,
                         int32_t max_positions, std::optional<uint64_t> dummy, const std::string& device,
                         comm::Communicator* group, bool by_expert)
    : device_(make_device(device, group)) {
  const int rank = group == nullptr ? 0 : group->rank(), ranks = group == nullptr ? 1 : group->ranks();
  families::TargetConfig config = must(families::read_target(target_dir));
  if (by_expert) config.decoder.divide_by_expert();
  const model::Decoder spec = model::shard_of(config.decoder, rank, ranks);
  const auto checkpoint = open(target_dir, config.names, dummy);
  const model::Numerics numerics = model::resolve_numerics(dtype, checkpoint->main_dtype());
  const std::vector<model::Param> params = model::shard(model::params_with_tower(config.decoder), rank, ranks);
  model::WeightLoader loader(*device_, *checkpoint, numerics, params);
  target_ = must(model::Network::load(loader, checkpoint, spec, numerics, max_positions, group));
  const DType kv = numerics.activation;
  std::vector<model::KvShape> shapes = model::kv_shapes(spec);
  if (!draft_dir.empty()) {
    const decode::dflash::Facts facts = must(decode::dflash::read_config(draft_dir));
    const auto draft_checkpoint = open(draft_dir, facts.names, dummy);
    const model::Numerics draft_numerics = model::resolve_numerics(dtype, draft_checkpoint->main_dtype());
    const decode::ProposerLoad load = {
        *device_, draft_checkpoint, *target_, nullptr, draft_numerics, max_positions, {}, 0, 0,
        {},       std::nullopt,     group,    1};
    draft_ = must(decode::dflash::Network::load(load, facts));
    for (const model::KvShape& shape : model::kv_shapes(draft_->facts().decoder)) shapes.push_back(shape);
  }
  const int64_t pages = (max_positions + kPageSize - 1) / kPageSize;
  model::KvLayout layout = model::kv_layout(std::move(shapes), kPageSize, kv);
  for (kv::Group& group : layout.groups) group.pages = pages;
  model::add_states(spec, 1, kTapeRows, numerics.activation, layout);
  kv_ = must(model::KvMemory::allocate(*device_, layout));
  std::vector<int32_t> table = counting(static_cast<int32_t>(pages));
  std::reverse(table.begin(), table.end());  // not in order: positions must go through the table
  page_table_memory_ = must(device_->allocate(table.size() * sizeof(int32_t)));
  page_table_ = page_table_memory_.view(DType::kI32, {1, pages});
  device_->upload(page_table_.data, table.data(), table.size() * sizeof(int32_t));
  // Memory for passes, and for inputs, features and logits.
  if (target_->tower() != nullptr) tower_ = must(model::TowerPass::create(*device_, *target_->tower()));
  const int64_t bytes =
      measure_passes(max_positions) + int64_t{max_positions} * (spec.vocab + spec.hidden * 20) * 4 + (1 << 20);
  scratch_.emplace(must(device_->allocate(static_cast<size_t>(bytes))));
}

int64_t ModelRunner::measure_passes(int32_t rows) {
  Stream& stream = device_->stream();
  const auto measure = [&](const ops::Visibility& visibility, const auto& run) {
    return measure_scratch(stream, [&](Arena& scratch) {
      const int32_t positions = static_cast<int32_t>(page_table_.dim(1)) * kPageSize;
      const decode::PassShape shape = {rows, 1, rows, rows, positions};
      const decode::PassMemory memory = decode::take_pass(shape, visibility, {page_table_, page_table_}, scratch);
      run(memory.rows, scratch.take(DType::kF32, {rows, spec().hidden}), scratch);
    });
  };
  const size_t of_target = target_->kv_layers();
  int64_t bytes = measure(decode::visibility_of(spec()), [&](const ops::Rows& batch, TensorView x, Arena& a) {
    model::Pass pass{stream, batch, kv_->layers(0, of_target), a};
    pass.states = kv_->states();
    target_->plan(pass);
    target_->forward(pass, {}, x);
    target_->logits(stream, x, batch.token_ids, a.take(DType::kF32, {rows, spec().vocab}), a);
  });
  if (tower_ != nullptr) {
    bytes = std::max(bytes, measure_scratch(stream, [&](Arena& scratch) { tower_->run_dry(scratch); }));
  }
  if (draft_ == nullptr) return bytes;
  const decode::dflash::Facts& facts = draft_->facts();
  bytes += measure(decode::visibility_of(facts.decoder), [&](const ops::Rows& batch, TensorView x, Arena& a) {
    model::Pass pass{stream, batch, kv_->layers(of_target, facts.decoder.layers.size()), a};
    draft_->plan(pass);
    draft_->forward(pass, x);
    const auto width = static_cast<int64_t>(facts.feature_layers.size()) * spec().hidden;
    draft_->inject(pass, a.take(draft_->activation(), {rows, width}));
  });
  return bytes;
}

model::Pass ModelRunner::target_pass(const ops::Rows& rows) {
  model::Pass pass{device_->stream(), rows, kv_->layers(0, target_->kv_layers()), *scratch_};
  pass.states = kv_->states();
  return pass;
}

model::Pass ModelRunner::draft_pass(const ops::Rows& rows) {
  const size_t of_target = target_->kv_layers(), own = draft_->facts().decoder.layers.size();
  return {device_->stream(), rows, kv_->layers(of_target, own), *scratch_};
}

std::vector<int32_t> ModelRunner::counting(int32_t n) const {
  std::vector<int32_t> values(n);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

template <typename T>
TensorView ModelRunner::on_device(DType dtype, std::span<const T> values) {
  const TensorView view = scratch_->take(DType::kU8, {static_cast<int64_t>(values.size_bytes())});
  device_->upload(view.data, values.data(), values.size_bytes());
  return TensorView(view.data, dtype, {static_cast<int64_t>(values.size())});
}

std::vector<std::vector<float>> ModelRunner::rows_of(const TensorView& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
  device_->download(bytes.data(), tensor.data, bytes.size());
  const int64_t width = tensor.dim(1);
  std::vector<std::vector<float>> rows(tensor.dim(0), std::vector<float>(width));
  for (int64_t i = 0; i < tensor.count(); ++i) {
    rows[i / width][i % width] = tensor.dtype == DType::kF32
                                     ? reinterpret_cast<const float*>(bytes.data())[i]
                                     : to_float(reinterpret_cast<const BFloat16*>(bytes.data())[i]);
  }
  return rows;
}

// Rows of the one sequence, from `start` on.
ops::Rows ModelRunner::batch(int32_t start, std::span<const TokenId> ids, const ops::Visibility& visibility,
                             std::span<const decode::RopeAxes> axes) {
  const auto rows = static_cast<int32_t>(ids.size());
  ops::StepSegment segment;
  segment.start = start;
  segment.known = segment.rows_reserved = rows;
  const ops::SlotRow slot;
  ops::Step step;
  step.segments = static_cast<ops::StepSegment*>(on_device<ops::StepSegment>(DType::kU8, {&segment, 1}).data);
  step.n = 1;
  step.max_segment_rows = rows;
  step.tokens = on_device(DType::kI32, ids).as<int32_t>();
  step.slots = static_cast<ops::SlotRow*>(on_device<ops::SlotRow>(DType::kU8, {&slot, 1}).data);
  if (!axes.empty()) step.axes = static_cast<int32_t*>(on_device(DType::kU8, axes).data);
  const int32_t positions = static_cast<int32_t>(page_table_.dim(1)) * kPageSize;
  const decode::PageTables tables = {page_table_, page_table_};
  decode::PassMemory pass =
      decode::take_pass({rows, 1, rows, 0, positions, !axes.empty()}, visibility, tables, *scratch_);
  ops::fill_verify_rows(device_->stream(), step, nullptr, visibility, pass.rows, pass.choices);
  return pass.rows;
}

TensorView ModelRunner::target_rows(int32_t start, std::span<const TokenId> ids, TensorView chosen,
                                    const Brought& brought) {
  std::span<const decode::RopeAxes> axes = brought.axes;
  if (!axes.empty()) axes = axes.subspan(start, ids.size());
  const ops::Rows batch = this->batch(start, ids, decode::visibility_of(spec()), axes);
  model::Pass pass = target_pass(batch);
  pass.routing.chosen = chosen;
  target_->plan(pass);
  const TensorView x = scratch_->take(DType::kF32, {std::ssize(ids), spec().hidden});
  target_->embed(device_->stream(), batch.token_ids, x);
  std::vector<model::AddedRows> added;  // each row by itself
  for (size_t i = 0; i < brought.places.size(); ++i) {
    const int32_t row = brought.places[i] - start;
    if (row < 0 || row >= std::ssize(ids)) continue;
    const std::vector<float>& embedding = brought.vectors[0][i];
    device_->upload(x.rows(row, 1).data, embedding.data(), embedding.size() * sizeof(float));
    std::vector<float> deep;
    for (size_t layer = 1; layer < brought.vectors.size(); ++layer) {
      deep.insert(deep.end(), brought.vectors[layer][i].begin(), brought.vectors[layer][i].end());
    }
    const TensorView flat = on_device<float>(DType::kF32, deep);
    added.push_back({row, TensorView(flat.data, DType::kF32, {spec().added_layers, 1, spec().hidden})});
  }
  pass.added = added;
  target_->forward(pass, {}, x);
  return x;
}

std::vector<std::vector<int32_t>> ModelRunner::experts(std::span<const TokenId> ids, int32_t top_k) {
  ArenaScope scope(*scratch_);
  const auto layers = std::ssize(spec().layers), entries = std::ssize(ids) * top_k;
  const TensorView chosen = scratch_->take(DType::kI32, {layers, entries});
  target_rows(0, ids, chosen);
  std::vector<std::vector<int32_t>> out(layers, std::vector<int32_t>(entries));
  for (int64_t i = 0; i < layers; ++i) {
    device_->download(out[i].data(), chosen.rows(i, 1).data, entries * sizeof(int32_t));
    const model::Experts* experts = spec().experts(static_cast<size_t>(i));
    for (int32_t& expert : out[i]) {
      if (experts != nullptr && expert >= 0) expert += experts->router.own_first;
    }
  }
  return out;
}

std::vector<std::vector<std::vector<float>>> ModelRunner::see(const model::PictureView& picture, int32_t units) {
  ArenaScope scope(*scratch_);
  const model::TowerSpec& tower = target_->tower()->spec();
  const int32_t side = tower.rules.token_side(), size = tower.rules.patch_size;
  const model::TowerUnits all(tower, int64_t{picture.width / size} * (picture.height / size),
                              model::TowerPass::rows_of_unit(device_->kind()));
  tower_->begin(picture);
  for (int32_t begin = 0; begin < all.count(); begin += units) {
    tower_->run(begin, std::min(all.count(), begin + std::min(units, all.count())), *scratch_);
  }
  if (seen_ != nullptr) VOLLEY_CHECK(tower_->on_device(*seen_) == nullptr);
  seen_ = tower_->take().values;
  const std::vector<float>& values = *seen_;
  // The device has the same ones, at their places.
  std::vector<float> there(values.size() - 1);
  const float* from = tower_->on_device(std::span(values).subspan(1));
  VOLLEY_CHECK(from != nullptr && tower_->on_device(there) == nullptr);
  device_->download(there.data(), from, there.size() * sizeof(float));
  VOLLEY_CHECK(std::equal(there.begin(), there.end(), values.begin() + 1));
  std::vector<std::vector<std::vector<float>>> kinds(static_cast<size_t>(tower.kinds()));
  const int64_t tokens = int64_t{picture.width / side} * (picture.height / side);
  for (int64_t i = 0; i < tower.kinds() * tokens; ++i) {
    const auto row = values.begin() + i * tower.out;
    kinds[static_cast<size_t>(i / tokens)].emplace_back(row, row + tower.out);
  }
  return kinds;
}

std::vector<std::vector<float>> ModelRunner::logits(std::span<const TokenId> ids, int32_t chunk,
                                                    const Brought& brought) {
  std::vector<std::vector<float>> out;
  for (size_t begin = 0; begin < ids.size(); begin += chunk) {
    ArenaScope scope(*scratch_);
    const auto rows = static_cast<int32_t>(std::min<size_t>(chunk, ids.size() - begin));
    const TensorView x = target_rows(static_cast<int32_t>(begin), ids.subspan(begin, rows), {}, brought);
    const TensorView logits = scratch_->take(DType::kF32, {rows, spec().vocab});
    const TensorView index = on_device<int32_t>(DType::kI32, counting(rows));
    target_->logits(device_->stream(), x, index, logits, *scratch_);
    for (auto& row : rows_of(logits)) out.push_back(std::move(row));
  }
  return out;
}

TensorView ModelRunner::draft_block(const std::vector<std::vector<float>>& features,
                                    std::span<const TokenId> block_ids) {
  const auto context = static_cast<int32_t>(features.size()), block = static_cast<int32_t>(block_ids.size());
  if (context > 0) {
    const auto width = static_cast<int64_t>(features[0].size());
    std::vector<float> floats;
    for (const auto& row : features) floats.insert(floats.end(), row.begin(), row.end());
    std::vector<BFloat16> halves;
    for (const float value : floats) halves.push_back(to_bfloat16(value));
    const bool f32 = draft_->activation() == DType::kF32;
    const TensorView flat = f32 ? on_device<float>(DType::kF32, floats) : on_device<BFloat16>(DType::kBF16, halves);
    const TensorView given(flat.data, flat.dtype, {context, width});
    const std::vector<TokenId> unused(context);
    const ops::Rows rows = batch(0, unused, {});
    model::Pass pass = draft_pass(rows);
    draft_->inject(pass, given);
  }
  const ops::Rows batch = this->batch(context, block_ids, decode::visibility_of(draft_->facts().decoder));
  model::Pass pass = draft_pass(batch);
  draft_->plan(pass);
  const TensorView x = scratch_->take(DType::kF32, {block, spec().hidden});
  draft_->embed(device_->stream(), batch.token_ids, x);
  draft_->forward(pass, x);
  return x;
}

std::vector<std::vector<float>> ModelRunner::draft_rows(
    const std::vector<std::vector<float>>& features, std::span<const TokenId> block_ids, DType dtype, int64_t width,
    const std::function<void(const TensorView& x, const TensorView& index, const TensorView& out)>& finish) {
  ArenaScope scope(*scratch_);
  const TensorView x = draft_block(features, block_ids);
  const auto block = static_cast<int32_t>(block_ids.size());
  const TensorView index = on_device<int32_t>(DType::kI32, counting(block));
  const TensorView out = scratch_->take(dtype, {block, width});
  finish(x, index, out);
  return rows_of(out);
}

std::vector<std::vector<float>> ModelRunner::draft_hidden(const std::vector<std::vector<float>>& features,
                                                          std::span<const TokenId> block_ids) {
  return draft_rows(features, block_ids, draft_->activation(), spec().hidden,
                    [&](const TensorView& x, const TensorView& index, const TensorView& out) {
                      draft_->final_norm(device_->stream(), x, index, out);
                    });
}

std::vector<std::vector<float>> ModelRunner::draft_logits(const std::vector<std::vector<float>>& features,
                                                          std::span<const TokenId> block_ids) {
  return draft_rows(features, block_ids, DType::kF32, spec().vocab,
                    [&](const TensorView& x, const TensorView& index, const TensorView& out) {
                      draft_->logits(device_->stream(), x, index, out, *scratch_, {});
                    });
}

ModelRunner::Choices ModelRunner::draft_choices(const std::vector<std::vector<float>>& features,
                                                std::span<const TokenId> block_ids) {
  ArenaScope scope(*scratch_);
  const TensorView x = draft_block(features, block_ids);
  const int32_t first = draft_->facts().first_proposal, rows = static_cast<int32_t>(block_ids.size()) - first;
  const std::vector<int32_t> places = counting(first + rows);
  const TensorView index = on_device<int32_t>(DType::kI32, std::span(places).subspan(first));
  const auto sampler = must(ops::SamplerState::create(*device_, 1, spec().vocab));
  ops::SlotSampling greedy;
  greedy.params.temperature = 0;
  VOLLEY_CHECK(sampler->start(0, greedy, {}, {}).ok());
  const ops::ChoiceSegment segment = {0, 0, rows, static_cast<int32_t>(features.size()) + 1};
  ops::SlotRow slot;
  slot.last_token = block_ids[0];
  ops::SelectorTask task;
  task.segments = {static_cast<ops::ChoiceSegment*>(on_device<ops::ChoiceSegment>(DType::kU8, {&segment, 1}).data), 1};
  task.slots = static_cast<ops::SlotRow*>(on_device<ops::SlotRow>(DType::kU8, {&slot, 1}).data);
  task.state = sampler.get();
  task.tokens = scratch_->take(DType::kI32, {rows}).as<TokenId>();
  task.probability = scratch_->take(DType::kF32, {rows}).as<float>();
  draft_->select(device_->stream(), x, index, task, *scratch_);
  Choices choices = {std::vector<TokenId>(static_cast<size_t>(rows)), std::vector<float>(static_cast<size_t>(rows))};
  device_->download(choices.tokens.data(), task.tokens, choices.tokens.size() * sizeof(TokenId));
  device_->download(choices.confidence.data(), task.probability, choices.confidence.size() * sizeof(float));
  return choices;
}

}  // namespace volley::testing
