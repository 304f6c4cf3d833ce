#include "engine/start/models_memory.h"

#include <algorithm>

#include "comm/row_exchange.h"
#include "engine/start/option_ranges.h"
#include "engine/start/round_setup.h"
#include "model/shard.h"
#include "sched/reservation.h"

namespace volley::engine {
namespace {

constexpr double kDefaultGpuFraction = 0.9;

int64_t rope_bytes(const model::Decoder& spec, int64_t positions) {
  int64_t bytes = 0;
  for (const model::RopeSpec& rope : spec.ropes) bytes += model::rope_bytes(rope, positions);
  return bytes;
}

model::WeightBytes weight_bytes(const ResolvedModels& models, int rank) {
  const DeviceKind device = models.device.kind;
  const auto bytes_of = [&](std::vector<model::Param> list, const model::Numerics& numerics,
                            const weights::Checkpoint& checkpoint) {
    return model::weight_bytes(model::shard(std::move(list), rank, models.ranks), numerics, checkpoint, device);
  };
  const model::Decoder& target = models.target.decoder;
  model::WeightBytes bytes =
      model::weight_bytes(target_params(models, rank), models.target_numerics, *models.target_checkpoint, device);
  bytes.rest += rope_bytes(target, models.max_positions());
  for (const ResolvedDrafter& drafter : models.drafters) {
    if (drafter.checkpoint == nullptr) continue;
    bytes.add(bytes_of(drafter.facts().params, drafter.numerics, *drafter.checkpoint));
    bytes.rest += rope_bytes(drafter.facts().decoder, models.max_positions());
  }
  if (models.head_copy) {
    bytes.add(
        model::weight_bytes(head_copy_params(models, rank), *models.head_copy, *models.target_checkpoint, device));
  }
  return bytes;
}

// A rank's KV shapes: the target's layers, then each drafter's. A cache of codes takes its scales from their files.
Result<std::vector<model::KvShape>> kv_shapes(const ResolvedModels& models) {
  std::vector<model::KvShape> all;
  const auto add = [&](const model::Decoder& spec, const weights::Checkpoint* checkpoint,
                       const weights::NameRules& names, bool drafts) -> Status {
    std::vector<model::KvShape> shapes = model::kv_shapes(spec);
    for (model::KvShape& shape : shapes) shape.drafts = drafts;
    if (models.kv_dtype == DType::kF8E4M3 && checkpoint != nullptr) {
      VOLLEY_RETURN_IF_ERROR(model::read_kv_scales(*checkpoint, names.quantisation.get(), spec, shapes));
    }
    all.insert(all.end(), shapes.begin(), shapes.end());
    return {};
  };
  VOLLEY_RETURN_IF_ERROR(add(target_of_rank(models, 0), models.target_checkpoint.get(), models.target.names, false));
  for (const ResolvedDrafter& drafter : models.drafters) {
    const model::Decoder draft = model::shard_of(drafter.facts().decoder, 0, models.ranks);
    VOLLEY_RETURN_IF_ERROR(add(draft, drafter.checkpoint.get(), drafter.facts().names, true));
  }
  return all;
}

// Replicas in one process share the target's weights if a replica has them in one piece. Each gets an equal part of the
// rest of the memory.
void share_memory(const EngineOptions& options, ResolvedModels& models) {
  if (options.data_parallel_size == 1 || models.device.kind != DeviceKind::kCpu) return;
  if (models.ranks == 1 && !options.restart_on_device_error) {
    models.shared_weight_bytes = model::weight_bytes(target_params(models, 0), models.target_numerics,
                                                     *models.target_checkpoint, models.device.kind)
                                     .total();
  }
  const double fraction = options.memory_fraction > 0 ? options.memory_fraction : 1.0;
  const auto usable = static_cast<int64_t>(fraction * static_cast<double>(models.device.available_bytes));
  const int64_t shared = std::min(usable, models.shared_weight_bytes);
  const int64_t each = (usable - shared) / options.data_parallel_size + shared;
  models.device.available_bytes = static_cast<int64_t>(static_cast<double>(each) / fraction);
}

// Recurrent layers keep a state for every slot, used or not. The plan may lower the slots further.
void limit_slots(const EngineOptions& options, ResolvedModels& models) {
  if (options.max_num_seqs > 0) return;
  model::KvLayout one;
  model::add_states(target_of_rank(models, 0), 1, models.block_size - 1, models.target_numerics.activation, one);
  const double share = options.memory_fraction > 0 ? options.memory_fraction : 1.0;
  const auto usable = static_cast<int64_t>(share * static_cast<double>(models.device.available_bytes));
  const int64_t bytes = one.state_bytes() * models.ranks_sharing_memory();
  const int32_t slots = default_slots(models.max_num_seqs, bytes, usable - models.weights.total());
  if (slots == models.max_num_seqs) return;
  models.max_num_seqs = slots;
  if (options.max_num_batched_tokens == 0) models.max_num_batched_tokens = default_rows(models);
}

// Weighs each rank, and all that share a memory.
void weigh(ResolvedModels& models) {
  for (int rank = 0; rank < models.ranks; ++rank) models.rank_weights.push_back(weight_bytes(models, rank));
  if (models.ranks_sharing_memory() == models.local_ranks()) {
    for (int rank = 0; rank < models.local_ranks(); ++rank) {
      models.weights.add(models.rank_weights[static_cast<size_t>(models.first_rank() + rank)]);
    }
  } else {  // one GPU each; the plan is that of the rank with the most
    models.weights = *std::ranges::max_element(models.rank_weights, {}, &model::WeightBytes::total);
  }
}

Status lay_out_kv(const EngineOptions& options, ResolvedModels& models) {
  VOLLEY_ASSIGN(std::vector<model::KvShape> shapes, kv_shapes(models));
  models.kv = model::kv_layout(std::move(shapes), models.page_size, models.kv_dtype);
  model::add_states(target_of_rank(models, 0), models.max_num_seqs, models.block_size - 1,
                    models.target_numerics.activation, models.kv);
  const int32_t asked = options.state_snapshot_tokens > 0 ? options.state_snapshot_tokens : models.prefill_chunk;
  const int32_t distance = std::min(asked, models.max_model_len);  // a larger distance would make no snapshots
  models.snapshot_tokens = static_cast<int32_t>(round_up(distance, models.page_size));
  return {};
}

// Measures a step; the other inputs are known.
Result<MemoryPlanInput> plan_input(const EngineOptions& options, ResolvedModels& models) {
  const int sharing = models.ranks_sharing_memory();
  const sched::SchedulerConfig scheduler = models.scheduler();
  VOLLEY_ASSIGN(const StepBytes step, measure_step(options, models));
  models.exchange_bytes = step.exchange;
  MemoryPlanInput plan;
  plan.weight_bytes = models.weights.total();
  plan.groups = scheduler.groups;
  plan.positions = models.max_positions();
  plan.decode_ahead = sched::positions_ahead(scheduler);
  plan.prefill_ahead = sched::chunks_ahead(scheduler);
  plan.prompt_rows = int64_t{models.max_num_batched_tokens} * models.reserve_rounds();
  plan.page_size = models.page_size;
  plan.max_model_len = models.max_model_len;
  plan.max_num_seqs = models.max_num_seqs;
  plan.fewer_slots = options.max_num_seqs == 0;
  plan.kv_pages = options.kv_pages;
  plan.kv_memory_bytes = options.kv_memory_bytes;
  plan.available_bytes = models.device.available_bytes;
  plan.fraction = options.memory_fraction;
  if (models.device.kind == DeviceKind::kCuda && plan.fraction == 0) plan.fraction = kDefaultGpuFraction;
  plan.state_bytes = models.kv.state_bytes() * sharing;
  if (options.prefix_cache) plan.snapshot_unit = models.kv.slot_bytes() * sharing;
  plan.snapshot_memory = options.state_snapshot_memory_bytes;
  plan.step_bytes = step.memory;
  if (models.expert_replicas > 1) {
    plan.step_bytes += comm::row_exchange_bytes(models.device.kind, models.expert_replicas, step.exchange);
  }
  plan.graph_bytes = step.graphs;
  return plan;
}

}  // namespace

int32_t default_rows(const ResolvedModels& models) {
  const int64_t blocks = int64_t{models.max_num_seqs} * models.block_size;
  return static_cast<int32_t>(std::min<int64_t>(most_rows(models.device.kind), blocks + models.prefill_chunk));
}

Status plan_models_memory(const EngineOptions& options, ResolvedModels& models) {
  weigh(models);
  share_memory(options, models);
  const int32_t default_seqs = models.max_num_seqs;
  limit_slots(options, models);
  VOLLEY_RETURN_IF_ERROR(lay_out_kv(options, models));
  VOLLEY_ASSIGN(const MemoryPlanInput plan, plan_input(options, models));
  VOLLEY_ASSIGN(models.memory, plan_memory(plan));
  for (size_t i = 0; i < models.kv.groups.size(); ++i) models.kv.groups[i].pages = models.memory.groups[i].pages;
  models.kv.snapshots = models.memory.snapshots;
  models.kv.slots = models.max_num_seqs = models.memory.max_num_seqs;
  if (models.max_num_seqs < default_seqs) {
    models.warnings.push_back("The states of recurrent layers take " +
                              format_bytes(models.kv.slot_bytes() * models.ranks_sharing_memory()) +
                              " a request: --max-num-seqs is " + std::to_string(models.max_num_seqs) + ".");
  }
  if (!models.shares_prefixes() && options.prefix_cache) {
    models.warnings.push_back(
        "The prefix cache is off: memory leaves no room for snapshots of recurrent layers (" +
        format_bytes(plan.snapshot_unit) +
        " each), so every prompt is computed whole. Lower --max-num-seqs, or give them memory with "
        "--state-snapshot-memory-mb.");
  }
  return {};
}

}  // namespace volley::engine
