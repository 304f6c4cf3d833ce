// Engine::create, and the calls that any thread may make.
#include <malloc.h>
#include <volley/engine.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>

#include "engine/remote/device_process.h"
#include "engine/remote/node_setup.h"
#include "engine/run/dispatcher.h"
#include "engine/run/replica.h"
#include "engine/run/token_rules.h"
#include "engine/run/validation.h"
#include "engine/start/companions.h"
#include "engine/start/cost_cache.h"
#include "engine/start/models.h"
#include "engine/start/replica_options.h"
#include "engine/start/start_error.h"
#include "engine/start/text_models.h"
#include "gguf/header.h"
#include "ops/cpu_features.h"
#include "text/grammar.h"
#include "text/picture.h"

namespace volley {
namespace engine {
namespace {

// A tower's multiply-adds in a second, before any were measured.
constexpr double kCpuMacs = 5e9, kGpuMacs = 2e13;

uint64_t draw_seed() {
  thread_local std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(EngineInfo info, TextModels text, text::GrammarLimits grammar_limits, std::vector<WorkerParts> replicas,
             const DispatcherConfig& dispatch)
      : info_(std::move(info)),
        text_(std::move(text)),
        measured_(replicas.front().costs.has_value()),
        grammar_limits_(grammar_limits),
        dispatcher_(std::move(replicas), dispatch) {}

  Result<RequestId> submit(GenerateRequest request, EventSink sink) override {
    const auto submitted = RequestOutput::Clock::now();
    VOLLEY_RETURN_IF_ERROR(check_request(request, info_));
    VOLLEY_ASSIGN(std::unique_ptr<text::Matcher> matcher, compile_grammar(request));
    request.cancelled = nullptr;  // the request may outlive what it points to
    const int32_t room = info_.max_model_len - static_cast<int32_t>(request.prompt.size());
    request.max_tokens = request.max_tokens == -1 ? room : std::min(request.max_tokens, room);
    if (!request.sampling.seed) request.sampling.seed = draw_seed();
    std::vector<Sha256> hashes;
    if (!request.pictures.empty()) {
      hashes = picture_hashes_.of(request, *info_.pictures);
      place_pictures(request, *info_.pictures, hashes, info_.prompt_positions);
    }
    const RequestId id = next_id_.fetch_add(1);
    VOLLEY_RETURN_IF_ERROR(dispatcher_.submit(
        {id, std::move(request), std::move(matcher), std::move(sink), submitted, std::move(hashes)}));
    return id;
  }

  bool compiles(const GrammarSpec& grammar) const override {
    const text::GrammarCompiler* grammars = text_.tokenizer->grammars();
    return grammars != nullptr && !grammars->is_quick(grammar);
  }
  Result<std::vector<std::string>> check_grammar(const GenerateRequest& request) const override {
    if (!request.grammar) return std::vector<std::string>();
    VOLLEY_RETURN_IF_ERROR(check_rules(request));
    VOLLEY_ASSIGN(const text::GrammarCompiler* grammars, compiler());
    return grammars->check(*request.grammar, limits_of(request));
  }
  void cancel(RequestId id) override { dispatcher_.cancel(id); }
  void set_target_step_ms(int milliseconds) override { dispatcher_.set_target_step(milliseconds * 1e-3); }
  void drop_prefix_cache() override { dispatcher_.drop_prefix_cache(); }
  Status set_verify(const VerifyPolicy& policy) override {
    if (info_.block_size == 1) {
      return failed_precondition("There is no drafter, so there is nothing to verify: start with --draft DIR.");
    }
    VOLLEY_RETURN_IF_ERROR(check_verify(policy, info_.block_size));
    const bool plain = policy.kind == VerifyPolicy::Kind::kFixed && policy.tokens == 0;
    if (info_.drafters > 1 && policy.kind != VerifyPolicy::Kind::kAuto && !plain) {
      return failed_precondition("There are two drafters, between which only --verify auto chooses.");
    }
    if (policy.kind == VerifyPolicy::Kind::kAuto && !measured_) {
      return failed_precondition("What a step costs was not measured: start with --verify auto.");
    }
    dispatcher_.set_verify(policy);
    return {};
  }
  const EngineInfo& info() const override { return info_; }
  EngineStats stats() const override {
    EngineStats stats = dispatcher_.stats();
    if (const text::GrammarCompiler* grammars = text_.tokenizer ? text_.tokenizer->grammars() : nullptr) {
      const text::GrammarUsage usage = grammars->usage();
      stats.grammars_cached = usage.grammars;
      stats.grammar_bytes = usage.bytes;
    }
    return stats;
  }

  Result<std::vector<TokenId>> encode_within(std::string_view text, bool add_special_tokens,
                                             const EncodeLimits& limits) const override {
    return text_.tokenizer->encode_within(text, add_special_tokens, limits);
  }
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override {
    return text_.tokenizer->decode(ids, skip_special_tokens);
  }
  Result<std::string> render_chat(const ChatMessages& chat) const override { return text_.chat_template->render(chat); }
  Result<PromptPicture> read_picture(std::string_view file, bool pixels, std::string_view cache_namespace,
                                     const std::atomic<bool>* cancelled) const override {
    if (!info_.pictures) return Engine::read_picture(file, pixels, cache_namespace, cancelled);
    return text::read_picture(file, *info_.pictures, pixels, cache_namespace, cancelled);
  }

 private:
  // Returns null without a grammar. Runs on the caller's thread, because compiling a large grammar takes a while.
  Result<std::unique_ptr<text::Matcher>> compile_grammar(const GenerateRequest& request) const {
    VOLLEY_RETURN_IF_ERROR(check_rules(request));
    if (!request.grammar) return std::unique_ptr<text::Matcher>();
    VOLLEY_ASSIGN(const text::GrammarCompiler* grammars, compiler());
    return grammars->compile(*request.grammar, limits_of(request));
  }

  Status check_rules(const GenerateRequest& request) const {
    if (!request.simulate_acceptance || (!request.grammar && !TokenRules::has_any(request))) return {};
    return invalid_argument(
        "With simulated acceptance the text is meaningless: leave grammars and rules on its tokens out.");
  }

  Result<const text::GrammarCompiler*> compiler() const {
    const text::GrammarCompiler* grammars = text_.tokenizer->grammars();
    if (grammars == nullptr) {
      return failed_precondition("A grammar needs the model's tokenizer.json, and its folder has none.");
    }
    return grammars;
  }

  text::GrammarLimits limits_of(const GenerateRequest& request) const {
    text::GrammarLimits limits = grammar_limits_;
    limits.cancelled = request.cancelled;
    limits.at_once = request.compiles_at_once;
    return limits;
  }

  const EngineInfo info_;
  const TextModels text_;
  const bool measured_;  // the cost of a step was measured
  const text::GrammarLimits grammar_limits_;
  PictureHashes picture_hashes_;
  std::atomic<RequestId> next_id_{1};
  Dispatcher dispatcher_;
};

// What is said of each drafter with weights, with commas between; once where they agree.
std::string of_drafters(const ResolvedModels& models, const std::function<std::string(const ResolvedDrafter&)>& say) {
  std::string all;
  for (const ResolvedDrafter& drafter : models.drafters) {
    if (drafter.checkpoint == nullptr) continue;
    const std::string one = say(drafter);
    if (one != all) all += (all.empty() ? "" : ", ") + one;
  }
  return all;
}

EngineInfo describe(const ResolvedModels& models, const Executor& replica) {
  EngineInfo info;
  info.architecture = models.target.architecture;
  const bool cpu = models.device.kind == DeviceKind::kCpu;
  info.device = cpu ? "cpu" : "cuda:" + std::to_string(models.device.ordinal);
  for (int rank = 1; !cpu && rank < models.local_ranks(); ++rank) {
    info.device += ", cuda:" + std::to_string(device_of_rank(models.device, rank).ordinal);
  }
  info.dtype = dtype_name(models.target_numerics.activation);
  info.instruction_set = cpu ? ops::cpu_instruction_set() : replica.ready().device;
  if (!cpu) {
    info.attention_backend = ops::attention_backend_name(models.target_numerics.attention);
    info.draft_attention_backend = of_drafters(models, [](const ResolvedDrafter& drafter) {
      return std::string(ops::attention_backend_name(drafter.numerics.attention));
    });
  }
  info.vocab_size = models.target.decoder.vocab;
  info.max_model_len = models.max_model_len;
  info.hidden_size = models.target.decoder.hidden;
  info.prompt_vectors = 1 + models.target.decoder.added_layers;
  info.prompt_positions = models.target.decoder.has_rope_axes();
  if (models.target.decoder.tower) info.pictures = models.target.decoder.tower->rules;
  info.block_size = models.block_size;
  info.page_size = models.page_size;
  info.kv_pages = models.memory.pages();
  const int apart = models.ranks / models.ranks_sharing_memory();  // the plan covers one memory
  info.kv_bytes_per_token = apart * models.memory.kept_bytes(models.page_size);
  info.kv_bytes = apart * models.memory.kv_bytes();
  info.weight_bytes = replica.ready().weight_bytes;
  info.quantization = quantization_name(models.target_numerics.storage, *models.target_checkpoint);
  info.draft_quantization = of_drafters(models, [](const ResolvedDrafter& drafter) {
    return quantization_name(drafter.numerics.storage, *drafter.checkpoint);
  });
  info.drafters = static_cast<int>(models.drafters.size());
  info.max_num_seqs = models.max_num_seqs;
  info.tensor_parallel_size = replica.ranks();
  info.expert_parallel = models.expert_replicas > 1 || (models.ranks > 1 && models.target.decoder.divides_by_expert());
  info.threads = replica.ready().threads;
  info.eos_token_ids = models.target.eos_ids;
  info.default_sampling = models.default_sampling;
  info.warnings = models.warnings;
  return info;
}

sched::SchedulerConfig scheduler_config(const EngineOptions& options, const ResolvedModels& models) {
  sched::SchedulerConfig config = models.scheduler();
  config.prefix_cache = options.prefix_cache && models.shares_prefixes();
  config.cache_events = config.prefix_cache && (options.data_parallel_size > 1 || options.on_cache_events);
  return config;
}

// Scales the progress of one replica to all of them.
Progress part_of(const Progress& progress, size_t index, size_t count) {
  if (!progress || count == 1) return progress;
  return [&progress, index, count](std::string_view phase, double fraction) {
    progress(phase, (static_cast<double>(index) + fraction) / static_cast<double>(count));
  };
}

// The parts of a worker that the dispatcher does not set, and the replica's EngineInfo.
struct ReplicaParts {
  WorkerParts worker;
  EngineInfo info;
};

Result<std::unique_ptr<Executor>> start_process(const EngineOptions& options, const ResolvedModels& models,
                                                const nodes::Assignment& assignment, const Progress& progress,
                                                const WorkerParts::Attend& attend = {}) {
  const std::chrono::seconds most_silence = load_silence(options, static_cast<bool>(attend));
  VOLLEY_ASSIGN(std::unique_ptr<Executor> process,
                DeviceProcess::start(options, models, assignment, {progress, attend, most_silence}));
  return process;
}

Result<ReplicaParts> make_replica_parts(const EngineOptions& options, const ResolvedModels& models,
                                        const TextModels& text, const Progress& progress, nodes::Links links) {
  ReplicaParts made;
  WorkerParts& parts = made.worker;
  if (options.restart_on_device_error) {
    VOLLEY_ASSIGN(nodes::Assignment assignment, DeviceProcess::assignment(options, models));
    VOLLEY_ASSIGN(parts.replica, start_process(options, models, assignment, progress));
    parts.remake = [options, models, assignment = std::move(assignment)](const WorkerParts::Attend& attend) {
      return start_process(options, models, assignment, {}, attend);
    };
  } else {
    VOLLEY_ASSIGN(parts.replica, Replica::create(options, models, progress, {}, std::move(links)));
  }
  made.info = describe(models, *parts.replica);
  parts.tokenizer = text.tokenizer;
  parts.eos_ids = models.target.eos_ids;
  parts.prompt_vectors = made.info.prompt_vectors;
  if (const auto& tower = models.target.decoder.tower) {
    const bool cpu = models.device.kind == DeviceKind::kCpu;
    parts.pictures = {tower, model::TowerPass::rows_of_unit(models.device.kind), cpu ? kCpuMacs : kGpuMacs,
                      options.picture_cache_bytes / options.data_parallel_size};
    parts.pictures_side = tower->rules.token_side();
  }
  parts.scheduler = scheduler_config(options, models);
  parts.target_step_s = models.target_step_s;
  parts.verify = options.verify;
  parts.step_timeout = step_timeout(options, models);
  for (const ResolvedDrafter& drafter : models.drafters) {
    const decode::ProposerFacts& draft = drafter.facts();
    const std::string name = models.drafters.size() > 1 ? draft.architecture : "";
    parts.drafters.push_back({name, draft.likely_mistake, decode::has_windows(draft), drafter.quantised()});
  }
  return made;
}

// Measures the cost of a step of replicas[index], if needed. costs: what earlier replicas measured, by their keys.
Status measure_costs(const EngineOptions& options, const ResolvedModels& models, std::span<Executor* const> replicas,
                     size_t index, ReplicaParts& made, std::map<std::string, decode::CostModel>& costs,
                     const Progress& progress) {
  if (models.drafters.empty() || options.verify.kind != VerifyPolicy::Kind::kAuto) return {};
  const std::string key = cost_key(models, options, made.info);
  if (!costs.contains(key)) {
    const CostCache cache(options.cost_cache_dir, key);
    VOLLEY_RETURN_IF_ERROR(with_companions(replicas, index, [&]() -> Status {
      made.worker.replica->attach_thread();  // making another replica has left this thread on another GPU
      VOLLEY_ASSIGN(decode::CostModel measured,
                    round_costs(*made.worker.replica, models, cache, progress, made.info.warnings));
      costs.emplace(key, std::move(measured));
      return {};
    }));
  }
  made.worker.costs = costs.at(key);
  return {};
}

DispatcherConfig dispatcher_config(const EngineOptions& options, const EngineInfo& info,
                                   const sched::SchedulerConfig& scheduler) {
  return {.max_queue = options.max_queue,
          .page_size = info.page_size,
          .prefix_cache = scheduler.prefix_cache,
          .on_device_failure = options.on_device_failure,
          .on_warning = options.on_warning,
          .on_cache_events = options.on_cache_events};
}

// On GPUs the replicas share a layout of common memory, and rows must have the same bits on all.
Status check_alike(const std::vector<ResolvedModels>& models) {
  for (const ResolvedModels& replica : models) {
    const ResolvedModels& first = models.front();
    if (replica.device.gpu.compute_capability != first.device.gpu.compute_capability) {
      return failed_precondition("GPU " + std::to_string(first.device.ordinal) + " and GPU " +
                                 std::to_string(replica.device.ordinal) +
                                 " are not alike: --enable-expert-parallel with --data-parallel-size needs GPUs of one "
                                 "kind, or a request's tokens would depend on the others.");
    }
    VOLLEY_CHECK_EQ(replica.max_num_batched_tokens, first.max_num_batched_tokens);
  }
  return {};
}

// Joins replicas that divide the experts.
Status join_in_lockstep(std::vector<ResolvedModels>& models) {
  if (models.front().expert_replicas == 1) return {};
  // On the CPU a replica that was planned with less free memory may have smaller steps.
  int64_t rows = models.front().max_num_batched_tokens, bytes = 0;
  std::vector<int> gpus;
  for (const ResolvedModels& replica : models) {
    rows = std::min<int64_t>(rows, replica.max_num_batched_tokens);
    bytes = std::max(bytes, replica.exchange_bytes);
    gpus.push_back(replica.device.ordinal);
  }
  comm::RowExchanges exchanges;
  if (models.front().device.kind == DeviceKind::kCpu) {
    exchanges = comm::make_row_exchanges(static_cast<int>(models.size()), rows, bytes);
  } else {
    VOLLEY_RETURN_IF_ERROR(check_alike(models));
    VOLLEY_ASSIGN(exchanges, comm::make_cuda_row_exchanges(gpus, rows, bytes));
  }
  const auto lockstep = std::make_shared<Lockstep>(std::move(exchanges));
  for (size_t i = 0; i < models.size(); ++i) models[i].lockstep = {lockstep, static_cast<int>(i)};
  return {};
}

Result<std::vector<ResolvedModels>> resolve_replicas(const std::vector<EngineOptions>& replicas) {
  std::vector<ResolvedModels> models;
  const auto shared = std::make_shared<SharedTarget>();
  for (size_t i = 0; i < replicas.size(); ++i) {
    VOLLEY_ASSIGN(ResolvedModels resolved, resolve_models(replicas[i], static_cast<int>(i)));
    models.push_back(std::move(resolved));
    if (models.back().shared_weight_bytes > 0) models.back().shared_target = shared;
  }
  return models;
}

// Options for replicas that exchange rows on GPUs, limited by the GPU with the least free memory. Empty: the given
// options already agree.
std::vector<EngineOptions> made_alike(const std::vector<EngineOptions>& replicas,
                                      const std::vector<ResolvedModels>& models) {
  const auto [least, most] = std::ranges::minmax_element(models, {}, &ResolvedModels::max_num_batched_tokens);
  if (!models.front().keeps_own_experts() || least->max_num_batched_tokens == most->max_num_batched_tokens) return {};
  std::vector<EngineOptions> alike = replicas;
  for (EngineOptions& options : alike) {
    options.max_num_seqs = std::ranges::min_element(models, {}, &ResolvedModels::max_num_seqs)->max_num_seqs;
    options.max_num_batched_tokens = least->max_num_batched_tokens;
  }
  return alike;
}

// Frees this process's CUDA contexts for the device processes.
void leave_gpus(const std::vector<ResolvedModels>& models) {
  for (const ResolvedModels& replica : models) {
    if (replica.device.kind == DeviceKind::kCpu) continue;
    for (int rank = 0; rank < replica.local_ranks(); ++rank) {
      release_cuda_device(device_of_rank(replica.device, rank).ordinal);
    }
  }
}

// Plans all replicas before any of them takes memory.
Result<std::unique_ptr<Engine>> create_engine(const EngineOptions& options, const Progress& progress) {
  if (options.nnodes > 1 && options.node_rank > 0) {
    return invalid_argument("--node-rank " + std::to_string(options.node_rank) +
                            " has no engine of its own: run volley serve with it, which computes for node 0.");
  }
  VOLLEY_ASSIGN(std::vector<EngineOptions> replicas, replica_options(options));
  VOLLEY_ASSIGN(std::vector<ResolvedModels> models, resolve_replicas(replicas));
  if (auto alike = made_alike(replicas, models); !alike.empty()) {
    replicas = std::move(alike);
    VOLLEY_ASSIGN(models, resolve_replicas(replicas));
  }
  if (options.restart_on_device_error && options.device_command.empty()) {
    return invalid_argument("restart_on_device_error needs device_command: a program that computes.");
  }
  if (auto warning = too_few_threads(options, models.front().device.kind)) {
    models.front().warnings.push_back(std::move(*warning));
  }
  if (auto warning = bound_to_few_cores(options, models.front().device.kind)) {
    models.front().warnings.push_back(std::move(*warning));
  }
  VOLLEY_ASSIGN(TextModels text, load_text(options, options.dummy_weights.has_value()));
  for (ResolvedModels& replica : models) {
    const std::vector<std::string> warnings = add_end_token(*text.tokenizer, replica.target);
    if (&replica == &models.front()) {
      replica.warnings.insert(replica.warnings.end(), warnings.begin(), warnings.end());
    }
  }
  nodes::Links links;
  if (options.nnodes > 1) {
    if (progress) progress("Waiting for the other nodes", 0);
    VOLLEY_ASSIGN(links, meet_nodes(options, models.front()));
  }
  VOLLEY_RETURN_IF_ERROR(join_in_lockstep(models));
  if (options.restart_on_device_error) leave_gpus(models);
  std::vector<ReplicaParts> made;
  std::vector<Executor*> made_replicas;
  for (size_t i = 0; i < replicas.size(); ++i) {
    VOLLEY_ASSIGN(ReplicaParts parts, make_replica_parts(replicas[i], models[i], text,
                                                         part_of(progress, i, replicas.size()), std::move(links)));
    made_replicas.push_back(parts.worker.replica.get());
    made.push_back(std::move(parts));
  }
  std::map<std::string, decode::CostModel> costs;
  for (size_t i = 0; i < replicas.size(); ++i) {
    VOLLEY_RETURN_IF_ERROR(
        measure_costs(replicas[i], models[i], made_replicas, i, made[i], costs, part_of(progress, i, replicas.size())));
  }
  std::vector<WorkerParts> workers;
  std::vector<EngineInfo> infos;
  for (ReplicaParts& parts : made) {
    workers.push_back(std::move(parts.worker));
    infos.push_back(std::move(parts.info));
  }
  const bool shares = models.front().shared_target != nullptr;
  EngineInfo info = describe_together(infos, shares ? workers.front().replica->ready().target_bytes : 0);
  const text::GrammarLimits limits = {options.grammar_memory_bytes, options.grammar_compile_timeout_ms};
  const DispatcherConfig dispatch = dispatcher_config(options, info, workers.front().scheduler);
  return std::unique_ptr<Engine>(
      std::make_unique<EngineImpl>(std::move(info), std::move(text), limits, std::move(workers), dispatch));
}

}  // namespace
}  // namespace engine

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options, const Progress& progress) {
  try {
    auto engine = engine::create_engine(options, progress);
    gguf::forget_headers();
    ::malloc_trim(0);  // gives back what only the start needed: for a small model a third as much as its weights
    return engine;
  } catch (...) {
    gguf::forget_headers();
    return engine::start_error();
  }
}

}  // namespace volley
