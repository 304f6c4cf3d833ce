// From options to loaded models: all checks that need no weights come first. Threads: any; functions that take a
// device, one at a time.
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

inline constexpr int kMaxReplicas = 256, kMaxRanks = 16;

// The folders of the drafters, in their order.
std::vector<std::string> draft_dirs(const EngineOptions& options);

// "none", "fp8" or "int4"; for a quantised checkpoint its files' own name.
std::string quantization_name(const ops::WeightFormat& storage, const weights::Checkpoint& checkpoint);

// Rows of logits at a time, which also bound a shared verify budget. A GPU has more, to read the head less often.
int32_t logit_rows(DeviceKind device);

// A drafter, as its folder and the options say.
struct ResolvedDrafter {
  std::shared_ptr<const decode::ProposerSpec> spec;
  int32_t proposals = 0;  // tokens of a pass for a block
  model::Numerics numerics;
  std::shared_ptr<const weights::Checkpoint> checkpoint;  // by the model layer's names; null: one without weights

  const decode::ProposerFacts& facts() const { return spec->facts(); }
  bool quantised() const { return numerics.storage.is_codes(); }  // its weights are stored as codes
};

// The options with every default resolved, and the facts of config.json. Immutable.
struct ResolvedModels {
  DeviceChoice device;
  int ranks = 1;            // in the tensor-parallel group
  int nodes = 1, node = 0;  // processes that divide the ranks equally, and this one's index
  families::TargetConfig target;
  SamplingParams default_sampling;                  // generation_config.json over the library's defaults
  std::vector<ResolvedDrafter> drafters;            // empty: no speculation
  int32_t block_size = 1;                           // the longest drafter's
  std::vector<std::vector<int32_t>> draft_lengths;  // by drafter: lengths of drafts, ascending
  std::optional<ops::Mask> draft_window_mask;       // replaces the drafters' own mask
  model::Numerics target_numerics;
  // How drafters store a copy of the output head that they borrow, which all share; none: they use the target's.
  std::optional<model::Numerics> head_copy;
  bool plain_attention = false;  // some layers have no attention kernel but the plain one, which is slow
  DType kv_dtype = DType::kBF16;
  int32_t max_model_len = 0;
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t prefill_chunk = 0;
  double target_step_s = 0;  // for steps with prompts beside decoding requests; 0: no bound
  int32_t page_size = 0;
  int32_t snapshot_tokens = 0;                   // between snapshots of recurrent states in a prompt
  model::KvLayout kv;                            // a rank's; its groups have the plan's pages
  MemoryPlan memory;                             // sum over the ranks that share a memory
  model::WeightBytes weights;                    // the same sum for all models, rotary tables included
  std::vector<model::WeightBytes> rank_weights;  // for each rank
  std::vector<std::string> warnings;
  std::shared_ptr<const weights::Checkpoint> target_checkpoint;  // by the model layer's names
  int64_t shared_weight_bytes = 0;  // bytes of the target that the engine's replicas share; 0: each has its own
  std::shared_ptr<SharedTarget> shared_target;  // for the sharing replicas; null: this replica loads alone
  int expert_replicas = 1;                      // replicas that divide the target's experts; 1: none does
  int expert_replica = 0;                       // this replica's index among them
  int64_t exchange_bytes = 0;                   // common memory in which they exchange rows (comm/row_exchange.h)
  LockstepPlace lockstep;                       // this replica's place among them; the engine sets it

  // Rounds to reserve positions for: the CPU ends a round before the next is planned, a GPU has the next one under way.
  int32_t reserve_rounds() const { return device.kind == DeviceKind::kCpu ? 1 : 2; }
  // The ranks in this process, and the first of them.
  int local_ranks() const { return ranks / nodes; }
  int first_rank() const { return node * local_ranks(); }
  int ranks_sharing_memory() const { return device.kind == DeviceKind::kCpu ? local_ranks() : 1; }
  // Whether memory holds only this replica's experts; on the CPU all replicas share the weights.
  bool keeps_own_experts() const { return expert_replicas > 1 && device.kind != DeviceKind::kCpu; }
  // Whether a prompt's beginning may come from the prefix cache. A layer with a state instead of K and V has it for its
  // last position only, so it needs snapshots.
  bool shares_prefixes() const { return target.decoder.state_layers() == 0 || kv.snapshots > 0; }
  // Positions of a sequence: its tokens and the blocks reserved past them.
  int32_t max_positions() const { return max_model_len + block_size * reserve_rounds(); }
  // The scheduler's configuration. Fields that only the engine's options decide are left unset.
  sched::SchedulerConfig scheduler() const;
};

// Reads config.json files and checkpoint headers, checks that everything fits together, and plans the memory. Errors:
// kInvalidArgument for options, those of families/family.h, decode/proposers.h and weights/checkpoint.h for files,
// kFailedPrecondition for a pair that does not fit, kUnimplemented for what is not built, kResourceExhausted for memory
// (plan_memory()). replica: index among data_parallel_size. available_bytes: memory to plan with, as another process
// saw it; nothing: the free memory now.
Result<ResolvedModels> resolve_models(const EngineOptions& options, int replica = 0,
                                      std::optional<int64_t> available_bytes = std::nullopt);
// The target that a rank computes. States and KV of a position take the same on all ranks.
model::Decoder target_of_rank(const ResolvedModels& models, int rank);
// A rank's part of the target's parameters.
std::vector<model::Param> target_params(const ResolvedModels& models, int rank);
// The copied output head of a rank, "head"; empty without ResolvedModels::head_copy.
std::vector<model::Param> head_copy_params(const ResolvedModels& models, int rank);

// The place of the rank that loads, and what it shares. All must outlive the rank's round.
struct RankPlace {
  int rank = 0;
  comm::Communicator* group = nullptr;  // this and the next are null without other ranks
  decode::MaskExchange* masks = nullptr;
  comm::RowExchange* exchange = nullptr;  // with other replicas; may be null
};

// A rank's models.
struct LoadedModels {
  std::shared_ptr<const model::Network> target;
  std::unique_ptr<model::KvMemory> kv;
  std::vector<decode::Drafter> drafters;  // refer to the two above
  int64_t weight_bytes = 0;               // packed
};

// Packs the weights and allocates the pages. draft_window: positions before a block that the drafter sees; 0: all.
// Calls `progress` from the calling thread. Errors as model::Network::load() and model::KvMemory::allocate().
Result<LoadedModels> load_models(Device& device, const ResolvedModels& resolved, int32_t draft_window,
                                 const Progress& progress, const RankPlace& place = {});

}  // namespace volley::engine
