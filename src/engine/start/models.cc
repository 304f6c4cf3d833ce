#include "engine/start/models.h"

#include <algorithm>

#include "base/environment.h"
#include "decode/proposers.h"
#include "engine/run/validation.h"
#include "engine/start/models_memory.h"
#include "engine/start/option_ranges.h"
#include "engine/start/replica_options.h"
#include "families/generation.h"
#include "model/output_head.h"
#include "model/shard.h"
#include "nodes/calls.h"
#include "nodes/replies.h"
#include "ops/attention/attention.h"
#include "ops/choice/choice.h"
#include "ops/step/step.h"
#include "weights/dummy_codes.h"
#include "weights/named.h"
#include "weights/schemes/schemes.h"

namespace volley::engine {
namespace {

constexpr int32_t kDefaultSlots = 32, kDefaultGpuSlots = 128;
constexpr int32_t kDefaultPrefillChunk = 512, kDefaultGpuPrefillChunk = 2048;
constexpr int32_t kDefaultPageSize = 16, kDefaultGpuPageSize = 64;
constexpr int64_t kDefaultCpuPixels = 1 << 20;
constexpr int64_t kMostPicturePixels = 64'000'000;  // textkit takes no more
constexpr int kDefaultTargetStepMs = 500, kDefaultGpuTargetStepMs = 50;

Result<std::shared_ptr<const weights::Checkpoint>> open_checkpoint(const EngineOptions& options, const std::string& dir,
                                                                   const weights::NameRules& names) {
  if (options.dummy_weights) {
    std::shared_ptr<const weights::Checkpoint> dummy = weights::make_dummy_checkpoint(*options.dummy_weights);
    return weights::with_dummy_codes(std::move(dummy), names.quantisation.get(), *options.dummy_weights);
  }
  VOLLEY_ASSIGN(auto files,
                weights::open_checkpoint(dir, options.mmap ? weights::FileAccess::kMap : weights::FileAccess::kRead));
  return weights::with_names(std::move(files), names);
}

// Larger pictures than these are made smaller before they come here.
void limit_pictures(const EngineOptions& options, ResolvedModels& models) {
  std::optional<model::TowerSpec>& tower = models.target.decoder.tower;
  if (options.language_model_only && tower) {
    tower.reset();
    models.target.names.skipped.push_back({"visual.", "vision"});
  }
  if (const std::string& why = models.target.no_pictures; !why.empty() && !options.language_model_only) {
    models.warnings.push_back("Pictures are refused: " + why);
  }
  if (!tower) return;
  PictureRules& rules = tower->rules;
  const int64_t square = int64_t{rules.token_side()} * rules.token_side();
  int64_t most = models.device.kind == DeviceKind::kCpu ? kDefaultCpuPixels : rules.max_pixels;
  if (options.max_picture_pixels > 0) most = options.max_picture_pixels;
  // A device process sends a picture's vectors in one message.
  const int64_t vector_bytes = tower->kinds() * tower->out * static_cast<int64_t>(sizeof(float));
  const int64_t most_tokens = (static_cast<int64_t>(nodes::kMostProcessReplyBytes) - (1 << 16)) / vector_bytes;
  most = std::min({most, kMostPicturePixels, std::min(most_tokens, int64_t{models.max_model_len} - 1) * square});
  rules.max_pixels = std::max(std::min(rules.max_pixels, most) / square, int64_t{1}) * square;
  rules.min_pixels = std::min(rules.min_pixels, rules.max_pixels);
}

// Where another process computes, a step sends the vectors of its pictures' rows in one call.
Status check_picture_rows(const EngineOptions& options, const ResolvedModels& models) {
  const std::optional<model::TowerSpec>& tower = models.target.decoder.tower;
  if (!tower || (!options.restart_on_device_error && options.nnodes == 1)) return {};
  constexpr int64_t kRest = int64_t{64} << 20;  // of the call
  const int64_t vector_bytes = tower->kinds() * tower->out * static_cast<int64_t>(sizeof(float));
  const int64_t most = (static_cast<int64_t>(nodes::kMostCallBytes) - kRest) / vector_bytes;
  if (models.max_num_batched_tokens <= most) return {};
  return invalid_argument("--max-num-batched-tokens is " + std::to_string(models.max_num_batched_tokens) +
                          ": where another process computes (--restart-on-device-error, --nnodes), this model's "
                          "pictures allow at most " +
                          std::to_string(most) + ". Lower it, or use --language-model-only.");
}

Status open_checkpoints(const EngineOptions& options, ResolvedModels& models) {
  VOLLEY_ASSIGN(models.target_checkpoint, open_checkpoint(options, options.model_dir, models.target.names));
  const auto check = [&](const weights::Checkpoint& checkpoint, std::span<const model::Param> params) -> Status {
    if (options.dummy_weights) return {};
    const auto checked = model::check_tensors(checkpoint, params);
    return checked.ok() ? Status() : Status(checked.error());
  };
  if (!options.dummy_weights) {
    VOLLEY_ASSIGN(std::optional<std::string> head,
                  model::settle_output_head(*models.target_checkpoint, models.target.decoder));
    if (head) models.warnings.push_back(*std::move(head));
  }
  std::optional<model::TowerSpec>& tower = models.target.decoder.tower;
  const auto sees = [](const std::string& name) { return name.starts_with("visual."); };
  if (tower && !options.dummy_weights && std::ranges::none_of(models.target_checkpoint->names(), sees)) tower.reset();
  VOLLEY_RETURN_IF_ERROR(check(*models.target_checkpoint, model::params_with_tower(models.target.decoder)));
  const std::vector<std::string> dirs = draft_dirs(options);
  for (size_t i = 0; i < models.drafters.size(); ++i) {
    ResolvedDrafter& drafter = models.drafters[i];
    if (drafter.facts().params.empty()) continue;
    VOLLEY_ASSIGN(drafter.checkpoint, open_checkpoint(options, dirs[i], drafter.facts().names));
    VOLLEY_RETURN_IF_ERROR(check(*drafter.checkpoint, drafter.facts().params));
  }
  return {};
}

Status check_vocabulary(const model::Decoder& spec) {
  if (spec.vocab <= ops::kMaxVocab) return {};
  return unimplemented("The vocabulary has " + std::to_string(spec.vocab) + " tokens; sampling is built for at most " +
                       std::to_string(ops::kMaxVocab) + ".");
}

// Lengths of drafts. They lie closer where one more token costs a larger share; each needs recorded graphs and a
// measurement at the start.
std::vector<int32_t> draft_lengths(const VerifyPolicy& policy, int32_t most) {
  std::vector<int32_t> lengths;
  if (policy.kind == VerifyPolicy::Kind::kAuto) lengths = {1, 2, 3, 4, 5, 7, 11, 15};
  if (policy.kind == VerifyPolicy::Kind::kFixed && policy.tokens > 0) lengths = {policy.tokens};
  std::erase_if(lengths, [most](int32_t length) { return length >= most; });
  lengths.push_back(most);
  return lengths;
}

// Two drafters are chosen between by what steps cost, and have a block size each.
Status check_two_drafters(const EngineOptions& options, std::span<const std::string> dirs) {
  if (dirs.size() < 2) return {};
  if (options.verify.kind != VerifyPolicy::Kind::kAuto) {
    return unimplemented(
        "With two drafters only --verify auto is built, which measures the steps between which it chooses: leave "
        "--verify out, or name one drafter.");
  }
  if (options.block_size > 0) {
    return unimplemented("--block-size is not built for two drafters, which have a block size each: leave it out.");
  }
  return {};
}

Status resolve_draft(const EngineOptions& options, ResolvedModels& models) {
  if (options.speculation == Speculation::kOff) return check_verify(options.verify, models.block_size);
  if (options.draft_dir.empty()) {
    return invalid_argument("Speculation needs a drafter: name its folder with --draft, or use --spec off.");
  }
  const std::vector<std::string> dirs = draft_dirs(options);
  VOLLEY_RETURN_IF_ERROR(check_two_drafters(options, dirs));
  for (const std::string& dir : dirs) {
    ResolvedDrafter& drafter = models.drafters.emplace_back();
    VOLLEY_ASSIGN(drafter.spec, decode::read_proposer(dir));
    VOLLEY_RETURN_IF_ERROR(drafter.spec->check_target(models.target.decoder));
    VOLLEY_ASSIGN(const int32_t block_size,
                  decode::resolve_block_size(drafter.facts(), options.block_size, &models.warnings));
    VOLLEY_RETURN_IF_ERROR(check_verify(options.verify, block_size));
    drafter.proposals = block_size - 1;
    models.block_size = std::max(models.block_size, block_size);
    models.draft_lengths.push_back(draft_lengths(options.verify, drafter.proposals));
  }
  if (options.draft_window_mask == DraftWindowMask::kAuto) return {};
  const auto windowed = [](const ResolvedDrafter& drafter) { return decode::has_windows(drafter.facts()); };
  if (std::ranges::none_of(models.drafters, windowed)) {
    models.warnings.push_back("The drafter has no sliding-window layers: --draft-window-mask changes nothing.");
  }
  const bool causal = options.draft_window_mask == DraftWindowMask::kCausal;
  models.draft_window_mask = causal ? ops::Mask::kCausal : ops::Mask::kBidirectional;
  return {};
}

Status resolve_limits(const EngineOptions& options, ResolvedModels& models) {
  models.max_model_len = options.max_model_len > 0 ? options.max_model_len : models.target.max_positions;
  if (models.max_model_len > models.target.max_positions) {
    return invalid_argument("--max-model-len is " + std::to_string(models.max_model_len) +
                            ", but the model has at most " + std::to_string(models.target.max_positions) +
                            " positions here: lower it.");
  }
  if (models.max_model_len < 2) return invalid_argument("--max-model-len must be at least 2.");
  const bool gpu = models.device.kind == DeviceKind::kCuda;
  const auto either = [](int32_t asked, int32_t otherwise) { return asked > 0 ? asked : otherwise; };
  models.max_num_seqs = either(options.max_num_seqs, gpu ? kDefaultGpuSlots : kDefaultSlots);
  models.prefill_chunk = either(options.prefill_chunk, gpu ? kDefaultGpuPrefillChunk : kDefaultPrefillChunk);
  models.page_size = either(options.page_size, gpu ? kDefaultGpuPageSize : kDefaultPageSize);
  models.max_num_batched_tokens =
      options.max_num_batched_tokens > 0 ? options.max_num_batched_tokens : default_rows(models);
  const int target_step_ms = options.target_step_ms >= 0 ? options.target_step_ms
                             : gpu                       ? kDefaultGpuTargetStepMs
                                                         : kDefaultTargetStepMs;
  models.target_step_s = target_step_ms * 1e-3;
  if (models.max_num_batched_tokens < models.max_num_seqs) {
    return invalid_argument("--max-num-batched-tokens is " + std::to_string(models.max_num_batched_tokens) +
                            ", fewer than the " + std::to_string(models.max_num_seqs) +
                            " slots of --max-num-seqs: every running request needs at least one row a step.");
  }
  return check_rows(models);
}

DType kv_dtype(KvCacheType requested, DType activation) {
  switch (requested) {
    case KvCacheType::kBFloat16:
      return DType::kBF16;
    case KvCacheType::kFloat32:
      return DType::kF32;
    case KvCacheType::kFp8:
      return DType::kF8E4M3;
    case KvCacheType::kAuto:
      break;
  }
  return activation;
}

// Whether kFp8Rows has kernels for these shapes (ops/linear/linear.h).
bool fits_fp8_rows(std::span<const model::Param> params) {
  return std::all_of(params.begin(), params.end(), [](const model::Param& param) {
    const bool codes = param.is_matrix() && param.codes == model::Param::Codes::kAny;
    return !codes || (param.columns % ops::kQuantisedColumns == 0 && param.rows() % 4 == 0);
  });
}

// Parameters of all ranks together, each matrix in the rank's shape.
std::vector<model::Param> on_all_ranks(const std::vector<model::Param>& list, int ranks) {
  std::vector<model::Param> all;
  for (int rank = 0; rank < ranks; ++rank) model::append(all, model::shard(list, rank, ranks));
  return all;
}

// Says why the device cannot store these shapes as kFp8Rows, for the option that asks for it.
Status check_fp8_rows(const std::string& option, const DeviceChoice& device, std::span<const model::Param> params,
                      const std::string& instead) {
  if (!ops::linear_takes_fp8(device.kind, device.gpu)) {
    return unimplemented(
        option + " fp8 is built for GPUs of compute capability 9.0 (H100, H200) and for the CPU: use " + instead + ".");
  }
  if (fits_fp8_rows(params)) return {};
  return unimplemented(
      option + " fp8 needs a model whose sizes (hidden, intermediate, heads times head size) are multiples of " +
      std::to_string(ops::kQuantisedColumns) + ", and outputs that are multiples of 4: use " + instead + ".");
}

// The format that stores the target's matrices; `plain` is the checkpoint's under --dtype.
Result<ops::WeightFormat> target_storage(Quantization requested, const ResolvedModels& models,
                                         const ops::WeightFormat& plain) {
  const bool cpu = models.device.kind == DeviceKind::kCpu;
  if (requested == Quantization::kNone) return plain;
  if (const std::string stored = models.target_checkpoint->quantisation(); !stored.empty()) {
    return invalid_argument("The checkpoint is quantised already (" + stored + "): leave --quantization out.");
  }
  if (cpu) return requested == Quantization::kInt4 ? ops::kInt4Weights : ops::kFp8Weights;
  if (requested == Quantization::kInt4) return ops::kInt4Weights;
  const model::Decoder& decoder = models.target.decoder;
  if (decoder.state_layers() > 0) {
    return unimplemented(
        "--quantization fp8 is not built for CUDA of models with recurrent layers so far: use none, or --device cpu.");
  }
  VOLLEY_RETURN_IF_ERROR(
      check_fp8_rows("--quantization", models.device, on_all_ranks(model::params(decoder), models.ranks), "none"));
  return ops::kFp8Rows;
}

// The output head that drafters borrow, as a matrix that may be codes.
model::Param borrowed_head(const model::Decoder& target) {
  model::Param head = model::head_param(target);
  head.codes = model::Param::Codes::kAny;
  return head;
}

// The format that stores a drafter's matrices.
Result<ops::WeightFormat> draft_storage(DraftQuantization requested, const ResolvedModels& models,
                                        const ResolvedDrafter& drafter) {
  const bool cpu = models.device.kind == DeviceKind::kCpu;
  const model::Numerics& plain = drafter.numerics;
  if (const std::string stored = drafter.checkpoint->quantisation(); !stored.empty()) {
    if (requested == DraftQuantization::kFp8) {
      return invalid_argument("The drafter's checkpoint is quantised already (" + stored +
                              "): leave --draft-quantization out.");
    }
    if (cpu) return plain.storage;  // on a GPU plain matrices beside codes may become fp8: an MTP head has such
  }
  std::vector<model::Param> params = drafter.facts().params;
  params = on_all_ranks(params, models.ranks);
  switch (requested) {
    case DraftQuantization::kNone:
      return plain.storage;
    case DraftQuantization::kFp8:
      if (cpu) return ops::kFp8Weights;
      VOLLEY_RETURN_IF_ERROR(check_fp8_rows("--draft-quantization", models.device, params, "auto or none"));
      return ops::kFp8Rows;
    case DraftQuantization::kAuto:
      break;
  }
  const ops::WeightFormat& target = models.target_numerics.storage;
  if (cpu && target.is_codes()) return target;
  // Where ranks cut inside a group of columns, the drafter stays as it is. On a GPU experts alone have groups.
  const auto cut = [&](const model::Param& param) {
    return ((cpu && param.is_matrix()) || param.is_experts()) && param.cuts_columns() &&
           param.columns % ops::kFp8Weights.group_k != 0;
  };
  if (plain.activation != DType::kBF16 || std::ranges::any_of(params, cut)) return plain.storage;
  // Beside a checkpoint of codes the bf16 of a small drafter would be much of what a step reads.
  if (cpu) return models.target_checkpoint->quantisation().empty() ? plain.storage : ops::kFp8Weights;
  const bool fast = ops::linear_takes_fp8(models.device.kind, models.device.gpu) && fits_fp8_rows(params);
  return fast ? ops::kFp8Rows : plain.storage;
}

void warn_of_widened(ResolvedModels& models) {
  const auto warn = [&](const char* whose, std::span<const model::Param> params, const weights::Checkpoint& checkpoint,
                        const model::Numerics& numerics) {
    for (const std::string& what : model::widened_codes(params, checkpoint, numerics, models.device.kind)) {
      std::string sentence = whose + what + ": this device has no kernel for them as they are stored.";
      if (std::ranges::find(models.warnings, sentence) == models.warnings.end()) {
        models.warnings.push_back(std::move(sentence));
      }
    }
  };
  // The ranks' first rows matter, too.
  for (int rank = 0; rank < models.ranks; ++rank) {
    warn("The target's weights in ", target_params(models, rank), *models.target_checkpoint, models.target_numerics);
    for (const ResolvedDrafter& drafter : models.drafters) {
      if (drafter.checkpoint == nullptr) continue;
      warn("The drafter's weights in ", model::shard(drafter.facts().params, rank, models.ranks), *drafter.checkpoint,
           drafter.numerics);
    }
  }
}

Status resolve_numerics(const EngineOptions& options, ResolvedModels& models) {
  models.target_numerics = model::resolve_numerics(options.dtype, models.target_checkpoint->main_dtype());
  models.target_numerics.fp8_products = ops::linear_takes_fp8(models.device.kind, models.device.gpu);
  VOLLEY_ASSIGN(models.target_numerics.storage,
                target_storage(options.quantization, models, models.target_numerics.storage));
  models.kv_dtype = kv_dtype(options.kv_cache_dtype, models.target_numerics.activation);
  for (ResolvedDrafter& drafter : models.drafters) {
    drafter.numerics = models.target_numerics;
    if (drafter.checkpoint == nullptr) continue;
    // A drafter reads the target's features and shares its pages and head, so it computes in the target's type.
    const ComputeType type =
        models.target_numerics.activation == DType::kBF16 ? ComputeType::kBFloat16 : ComputeType::kFloat32;
    drafter.numerics = model::resolve_numerics(type, drafter.checkpoint->main_dtype());
    drafter.numerics.fp8_products = models.target_numerics.fp8_products;
    VOLLEY_ASSIGN(drafter.numerics.storage, draft_storage(options.draft_quantization, models, drafter));
    // A head that is codes already, or has no kernel as codes, serves as it is.
    const model::Param head = borrowed_head(models.target.decoder);
    const bool copies = drafter.facts().borrows_head && drafter.numerics.storage.multiplies_codes() &&
                        fits_fp8_rows(on_all_ranks({head}, models.ranks)) &&
                        !model::coded_as(*models.target_checkpoint, head);
    if (copies) models.head_copy = drafter.numerics;
  }
  warn_of_widened(models);
  return {};
}

Status resolve_ranks(const EngineOptions& options, ResolvedModels& models) {
  models.ranks = options.tensor_parallel_size;
  models.nodes = options.nnodes;
  models.node = options.node_rank;
  DeviceChoice& device = models.device;
  if (models.ranks == 1 || device.kind == DeviceKind::kCpu) return {};
  for (int rank = 1; rank < models.local_ranks(); ++rank) {
    const Result<GpuFacts> gpu = examine_cuda_device(device_of_rank(device, rank).ordinal);
    if (!gpu.ok()) {
      const std::string of_nodes = models.nodes == 1 ? "" : " on --nnodes " + std::to_string(models.nodes);
      const std::string count = models.nodes == 1 ? "as many" : std::to_string(models.local_ranks());
      return Error{gpu.error().code, "--tensor-parallel-size " + std::to_string(models.ranks) + of_nodes + " needs " +
                                         count + " GPUs from GPU " + std::to_string(device.ordinal) + " on. " +
                                         gpu.error().message};
    }
    device.available_bytes = std::min(device.available_bytes, gpu->free_bytes);
    const GpuInfo &first = device.gpu, &other = gpu->info;
    if (other.compute_capability == first.compute_capability && other.multiprocessors == first.multiprocessors)
      continue;
    return failed_precondition("GPU " + std::to_string(device.ordinal) + " and GPU " +
                               std::to_string(device_of_rank(device, rank).ordinal) +
                               " are not alike: --tensor-parallel-size needs GPUs of one kind, or ranks would come to "
                               "different tokens.");
  }
  if (models.nodes > 1) {  // checked before any file is read: the library that adds across nodes
    VOLLEY_ASSIGN([[maybe_unused]] const std::string nccl, comm::nccl_version());
    return {};
  }
  // Checks that the ranks' GPUs reach one another.
  VOLLEY_ASSIGN([[maybe_unused]] const auto group, comm::make_group(device.kind, models.ranks, device.ordinal));
  return {};
}

// Each GPU needs experts of every layer.
Status check_experts_of_gpus(const model::Decoder& target, const EngineOptions& options) {
  for (const model::Layer& layer : target.layers) {
    const std::optional<ops::RouterRule> router = layer.ffn_facts().router;
    if (!router || router->experts >= options.data_parallel_size) continue;
    return invalid_argument("--data-parallel-size " + std::to_string(options.data_parallel_size) +
                            " with --enable-expert-parallel needs as many experts, and the target has " +
                            std::to_string(router->experts) + ": lower it.");
  }
  return {};
}

Status divide_experts(const EngineOptions& options, ResolvedModels& models) {
  if (!options.enable_expert_parallel) return {};
  model::Decoder divided = models.target.decoder;
  VOLLEY_RETURN_IF_ERROR(check_expert_parallel(options, models.device.kind, divided.divide_by_expert()));
  if (models.ranks == 1 && options.data_parallel_size == 1) {
    models.warnings.push_back(
        "--enable-expert-parallel changes nothing with one rank: it goes with --tensor-parallel-size or "
        "--data-parallel-size.");
  } else if (models.ranks == 1 && options.data_parallel_size > 1) {
    models.expert_replicas = options.data_parallel_size;
    if (models.keeps_own_experts()) VOLLEY_RETURN_IF_ERROR(check_experts_of_gpus(models.target.decoder, options));
  } else {
    models.target.decoder = std::move(divided);
  }
  return {};
}

// Whether the models can be divided among the ranks.
Status check_ranks(const ResolvedModels& models) {
  VOLLEY_RETURN_IF_ERROR(model::check_ranks(models.target.decoder, models.ranks, "the target"));
  for (const ResolvedDrafter& drafter : models.drafters) {
    VOLLEY_RETURN_IF_ERROR(model::check_ranks(drafter.facts().decoder, models.ranks, "the drafter"));
  }
  return {};
}

Status resolve_attention(const EngineOptions& options, ResolvedModels& models) {
  VOLLEY_ASSIGN(const ops::AttentionBackend target, ops::parse_attention_backend(options.attention_backend));
  VOLLEY_ASSIGN(const ops::AttentionBackend draft, ops::parse_attention_backend(options.draft_attention_backend));
  // Where heads of several sizes have several backends, each layer's plan resolves its own.
  const auto resolve = [&](ops::AttentionBackend asked, const model::Decoder& spec) -> Result<ops::AttentionBackend> {
    std::optional<ops::AttentionBackend> common;
    for (const model::KvShape& layer : model::kv_shapes(spec)) {
      if (!layer.is_attention) continue;
      VOLLEY_ASSIGN(const ops::AttentionBackend own,
                    ops::resolve_attention_backend(models.device.kind, models.device.gpu, asked, models.kv_dtype,
                                                   layer.head_dim, layer.v_in_k));
      models.plain_attention |= own == ops::AttentionBackend::kPlain;
      common = common.value_or(own) == own ? own : asked;
    }
    VOLLEY_CHECK(common.has_value());
    return *common;
  };
  VOLLEY_ASSIGN(models.target_numerics.attention, resolve(target, models.target.decoder));
  for (ResolvedDrafter& drafter : models.drafters) {
    if (drafter.checkpoint == nullptr) continue;
    VOLLEY_ASSIGN(drafter.numerics.attention, resolve(draft, drafter.facts().decoder));
  }
  return {};
}

}  // namespace

std::vector<std::string> draft_dirs(const EngineOptions& options) {
  std::vector<std::string> dirs;
  for (const std::string& dir : {options.draft_dir, options.second_draft_dir}) {
    if (!dir.empty()) dirs.push_back(dir);
  }
  return dirs;
}

std::string quantization_name(const ops::WeightFormat& storage, const weights::Checkpoint& checkpoint) {
  if (const std::string stored = checkpoint.quantisation(); !stored.empty()) return stored;
  if (!storage.is_codes()) return "none";
  return storage.code == DType::kI4 ? "int4" : "fp8";
}

int32_t logit_rows(DeviceKind device) {
  return device == DeviceKind::kCpu ? 256 : 1024;
}

model::Decoder target_of_rank(const ResolvedModels& models, int rank) {
  return model::shard_of(models.target.decoder, rank, models.ranks);
}

std::vector<model::Param> target_params(const ResolvedModels& models, int rank) {
  const model::Decoder& target = models.target.decoder;
  std::vector<model::Param> params =
      model::shard(rank == 0 ? model::params_with_tower(target) : model::params(target), rank, models.ranks);
  if (!models.keeps_own_experts()) return params;
  return model::keep_experts_of(std::move(params), models.expert_replica, models.expert_replicas);
}

Result<ResolvedModels> resolve_models(const EngineOptions& options, int replica,
                                      std::optional<int64_t> available_bytes) {
  VOLLEY_RETURN_IF_ERROR(check_ranges(options));
  ResolvedModels models;
  models.expert_replica = replica;
  if (gpus_wait_for_one_another(options)) load_gpu_code_early();
  VOLLEY_ASSIGN(models.device, resolve_device(options.device));
  VOLLEY_RETURN_IF_ERROR(resolve_ranks(options, models));
  if (available_bytes) models.device.available_bytes = *available_bytes;
  if (!models.device.warning.empty()) models.warnings.push_back(models.device.warning);
  VOLLEY_ASSIGN(models.target, families::read_target(options.model_dir));
  models.warnings.insert(models.warnings.end(), models.target.warnings.begin(), models.target.warnings.end());
  // A user who sets other defaults need not care about a wrong file.
  if (auto sampling = families::read_default_sampling(options.model_dir, {}); sampling.ok()) {
    models.default_sampling = *sampling;
  } else {
    models.warnings.push_back(sampling.error().message + " The engine takes no defaults of sampling from that file.");
  }
  VOLLEY_RETURN_IF_ERROR(check_vocabulary(models.target.decoder));
  VOLLEY_RETURN_IF_ERROR(divide_experts(options, models));
  VOLLEY_RETURN_IF_ERROR(resolve_draft(options, models));
  VOLLEY_RETURN_IF_ERROR(check_ranks(models));
  VOLLEY_RETURN_IF_ERROR(resolve_limits(options, models));
  limit_pictures(options, models);
  VOLLEY_RETURN_IF_ERROR(open_checkpoints(options, models));
  VOLLEY_RETURN_IF_ERROR(check_picture_rows(options, models));
  VOLLEY_RETURN_IF_ERROR(resolve_numerics(options, models));
  VOLLEY_RETURN_IF_ERROR(resolve_attention(options, models));
  VOLLEY_RETURN_IF_ERROR(plan_models_memory(options, models));
  return models;
}

sched::SchedulerConfig ResolvedModels::scheduler() const {
  sched::SchedulerConfig config;
  config.max_num_seqs = max_num_seqs;
  config.max_num_batched_tokens = max_num_batched_tokens;
  config.prefill_chunk = prefill_chunk;
  config.max_model_len = max_model_len;
  config.page_size = page_size;
  config.block_size = block_size;
  config.reserve_rounds = reserve_rounds();
  config.groups = kv.groups;
  for (kv::Group& group : config.groups) group.bytes *= ranks_sharing_memory();
  config.snapshot_tokens = snapshot_tokens;
  if (kv.snapshots > 0) {
    const int64_t bytes = kv.slot_bytes() * ranks_sharing_memory();
    config.groups.push_back({.life = kv::Life::kState, .bytes = bytes, .pages = kv.snapshots});
  }
  return config;
}

std::vector<model::Param> head_copy_params(const ResolvedModels& models, int rank) {
  if (!models.head_copy) return {};
  return model::shard({borrowed_head(models.target.decoder)}, rank, models.ranks);
}

Result<LoadedModels> load_models(Device& device, const ResolvedModels& resolved, int32_t draft_window,
                                 const Progress& progress, const RankPlace& place) {
  const double total =
      static_cast<double>(std::max<int64_t>(1, resolved.memory.weight_bytes / resolved.ranks_sharing_memory()));
  int64_t before = 0;
  const auto report = [&](int64_t packed) {
    if (progress) progress("Loading weights", std::min(1.0, static_cast<double>(before + packed) / total));
  };
  LoadedModels models;
  const std::vector<model::Param> params = target_params(resolved, place.rank);
  model::WeightLoader loader(device, *resolved.target_checkpoint, resolved.target_numerics, params);
  loader.on_packed = report;
  const auto load_target = [&] {
    return model::Network::load(loader, resolved.target_checkpoint, target_of_rank(resolved, place.rank),
                                resolved.target_numerics, resolved.max_positions(), place.group);
  };
  if (resolved.shared_target != nullptr) {
    VOLLEY_ASSIGN(models.target, resolved.shared_target->get(load_target));
  } else {
    VOLLEY_ASSIGN(models.target, load_target());
  }
  VOLLEY_ASSIGN(models.kv, model::KvMemory::allocate(device, resolved.kv));
  before = models.target->packed_bytes();
  std::shared_ptr<const ops::LinearWeight> head_copy;
  if (resolved.head_copy) {
    const std::vector<model::Param> head = head_copy_params(resolved, place.rank);
    model::WeightLoader of_head(device, *resolved.target_checkpoint, *resolved.head_copy, head);
    of_head.on_packed = report;
    VOLLEY_ASSIGN(ops::LinearWeight copy, of_head.linear("head"));
    head_copy = std::make_shared<const ops::LinearWeight>(std::move(copy));
    before += of_head.packed_bytes();
  }
  size_t layer = models.target->kv_layers();
  for (const ResolvedDrafter& drafter : resolved.drafters) {
    const size_t layers = model::kv_shapes(drafter.facts().decoder).size();
    VOLLEY_ASSIGN(
        std::unique_ptr<decode::Proposer> proposer,
        drafter.spec->load({device, drafter.checkpoint, *models.target, head_copy, drafter.numerics,
                            resolved.max_positions(), models.kv->layers(layer, layers), drafter.proposals, draft_window,
                            report, resolved.draft_window_mask, place.group, resolved.max_num_seqs + 1,
                            resolved.block_size - 1, resolved.max_num_batched_tokens}));
    before += proposer->packed_bytes();
    models.drafters.push_back({std::move(proposer), layer, layers});
    layer += layers;
  }
  models.weight_bytes = before;
  if (progress) progress("Loading weights", 1.0);
  return models;
}

}  // namespace volley::engine
