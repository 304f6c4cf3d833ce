// From options to loaded models: every check that needs no weights comes first.
// Threads: any; what takes a device, by one thread at a time.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <optional>

#include "comm/comm.h"
#include "decode/mask_exchange.h"
#include "decode/proposer_spec.h"
#include "engine/remote/lockstep.h"
#include "engine/start/device_choice.h"
#include "engine/start/memory_plan.h"
#include "engine/start/shared_target.h"
#include "families/family.h"
#include "model/network.h"
#include "sched/scheduler.h"
#include "text/text.h"

namespace volley::engine {

inline constexpr int kMaxReplicas = 256, kMaxRanks = 8;

// "none", "fp8" or "int4"; of a checkpoint that is quantised already what its files call it.
std::string quantization_name(const ops::WeightFormat& storage, const weights::Checkpoint& checkpoint);

// Rows of logits that exist at a time, and with them the most that a verify budget can share out: on a GPU more, so
// that the head is read less often.
int32_t logit_rows(DeviceKind device);

// Options with every "choose for me" resolved, and what config.json says. Immutable.
struct ResolvedModels {
  DeviceChoice device;
  int ranks = 1;            // of the tensor-parallel group
  int nodes = 1, node = 0;  // processes that have equal parts of them, in order; which one this is
  families::TargetConfig target;
  SamplingParams default_sampling;                    // generation_config.json over the library's defaults
  std::shared_ptr<const decode::ProposerSpec> draft;  // null: speculation is off
  int32_t block_size = 1;
  std::vector<int32_t> draft_lengths;          // that a step may draft, ascending; empty without a drafter
  std::optional<ops::Mask> draft_window_mask;  // instead of what the drafter's files say
  model::Numerics target_numerics, draft_numerics;
  DType kv_dtype = DType::kBF16;
  int32_t max_model_len = 0;
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t prefill_chunk = 0;
  double target_step_s = 0;  // of steps with prompts beside requests that decode; 0: no bound
  int32_t page_size = 0;
  int32_t snapshot_tokens = 0;                   // between snapshots of recurrent states, while prompts are computed
  model::KvLayout kv;                            // of a rank; its groups have the plan's pages
  MemoryPlan memory;                             // of all ranks that share a memory, together
  model::WeightBytes weights;                    // of all models, rotary tables among the rest; likewise
  std::vector<model::WeightBytes> rank_weights;  // the same of each rank
  std::vector<std::string> warnings;
  std::shared_ptr<const weights::Checkpoint> target_checkpoint;  // by the model layer's names
  std::shared_ptr<const weights::Checkpoint> draft_checkpoint;   // null: no drafter, or one without weights
  int64_t shared_weight_bytes = 0;  // of the target, which replicas of the engine have together; 0: each has its own
  std::shared_ptr<SharedTarget> shared_target;  // for these; null: the target is loaded for this one
  int expert_replicas = 1;     // of the engine, which divide the target's experts among them; 1: each has them all
  int expert_replica = 0;      // which of these it is
  int64_t exchange_bytes = 0;  // of common memory, in which these bring their rows together (comm/row_exchange.h)
  LockstepPlace lockstep;      // the replica's among these; the engine makes it

  // Rounds whose positions are reserved ahead: the CPU finishes a round before the next is planned, a GPU has the next
  // one under way.
  int32_t reserve_rounds() const { return device.kind == DeviceKind::kCpu ? 1 : 2; }
  // Ranks in this process, and the first of them.
  int local_ranks() const { return ranks / nodes; }
  int first_rank() const { return node * local_ranks(); }
  // Ranks whose devices take their memory from the same one.
  int ranks_sharing_memory() const { return device.kind == DeviceKind::kCpu ? local_ranks() : 1; }
  // Whether memory holds the experts of this replica alone; on the CPU all replicas compute from the same weights.
  bool keeps_own_experts() const { return expert_replicas > 1 && device.kind != DeviceKind::kCpu; }
  // Whether the drafter's weights are stored as codes.
  bool draft_quantised() const { return draft && draft_numerics.storage.is_codes(); }
  // Whether a prompt's beginning may come from the prefix cache: where layers keep a state, which only its position
  // has, instead of K and V, only if there are snapshots of it.
  bool shares_prefixes() const { return target.decoder.state_layers() == 0 || kv.snapshots > 0; }
  // Positions a sequence may touch: its tokens and the blocks reserved past them.
  int32_t max_positions() const { return max_model_len + block_size * reserve_rounds(); }
  // What the scheduler is to do; what is an engine's option, and not a model's, is left as it is.
  sched::SchedulerConfig scheduler() const;
};

// Reads config.json files and checkpoint headers, checks that everything fits together, plans the memory. Errors:
// kInvalidArgument for options, those of families/family.h, decode/proposers.h and weights/checkpoint.h for files,
// kFailedPrecondition for a pair that does not fit, kUnimplemented for what is not built, kResourceExhausted for memory
// (plan_memory()). replica: which of data_parallel_size it is for. available_bytes: of memory to plan with, as another
// process had it; nothing: what there is now.
Result<ResolvedModels> resolve_models(const EngineOptions& options, int replica = 0,
                                      std::optional<int64_t> available_bytes = std::nullopt);
// The target that a rank computes. States and KV of a position take the same on all ranks.
model::Decoder target_of_rank(const ResolvedModels& models, int rank);
// What a rank holds of the target's list.
std::vector<model::Param> target_params(const ResolvedModels& models, int rank);

// Which rank of the tensor-parallel group loads, and what it shares with the others. All of it outlives the rank's
// round.
struct RankPlace {
  int rank = 0;
  comm::Communicator* group = nullptr;  // these two null: there are no others
  decode::MaskExchange* masks = nullptr;
  comm::RowExchange* exchange = nullptr;  // with other replicas, or null
};

// A rank's models.
struct LoadedModels {
  std::shared_ptr<const model::Network> target;
  std::unique_ptr<model::KvMemory> kv;
  std::unique_ptr<decode::Proposer> proposer;  // null: speculation is off; refers to the two above
};

// Packs the weights and takes the pages. draft_window: positions before a block that the drafter sees; 0: all. Calls
// `progress` from the calling thread. Errors as model::Network::load() and model::KvMemory::allocate().
Result<LoadedModels> load_models(Device& device, const ResolvedModels& resolved, int32_t draft_window,
                                 const Progress& progress, const RankPlace& place = {});

}  // namespace volley::engine
