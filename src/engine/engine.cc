// Engine::create and the thread-safe face of the worker.
#include <volley/engine.h>

#include <atomic>
#include <random>

#include "device/cpu/thread_pool.h"
#include "engine/models.h"
#include "engine/text_models.h"
#include "engine/validation.h"
#include "engine/worker.h"
#include "ops/cpu_features.h"
#include "spec/dflash/dflash_proposer.h"
#include "text/grammar.h"

namespace volley {
namespace engine {
namespace {

uint64_t draw_seed() {
  thread_local std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(EngineInfo info, TextModels text, bool simulated, WorkerParts parts)
      : info_(std::move(info)), text_(std::move(text)), simulated_(simulated), worker_(std::move(parts)) {}

  Result<RequestId> submit(GenerateRequest request, EventSink sink) override {
    VOLLEY_RETURN_IF_ERROR(check_request(request, info_));
    VOLLEY_ASSIGN(std::unique_ptr<text::Matcher> matcher, compile_grammar(request));
    const int32_t room = info_.max_model_len - static_cast<int32_t>(request.prompt.size());
    request.max_tokens = request.max_tokens == -1 ? room : std::min(request.max_tokens, room);
    if (!request.sampling.seed) request.sampling.seed = draw_seed();
    const RequestId id = next_id_.fetch_add(1);
    VOLLEY_RETURN_IF_ERROR(
        worker_.submit({id, std::move(request), std::move(matcher), std::move(sink), RequestOutput::Clock::now()}));
    return id;
  }

  void cancel(RequestId id) override { worker_.cancel(id); }
  void drop_prefix_cache() override { worker_.drop_prefix_cache(); }
  const EngineInfo& info() const override { return info_; }
  EngineStats stats() const override { return worker_.stats(); }

  Result<std::vector<TokenId>> encode(std::string_view text, bool add_special_tokens) const override {
    return text_.tokenizer->encode(text, add_special_tokens);
  }
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override {
    return text_.tokenizer->decode(ids, skip_special_tokens);
  }
  Result<std::string> render_chat(const ChatMessages& chat) const override {
    return text_.chat_template->render({chat.messages_json, chat.tools_json, chat.template_kwargs_json,
                                        chat.add_generation_prompt, chat.continue_final_message});
  }

 private:
  // Null where the request has no grammar. On the caller's thread: compiling a large one takes a while.
  Result<std::unique_ptr<text::Matcher>> compile_grammar(const GenerateRequest& request) const {
    if (!request.grammar) return std::unique_ptr<text::Matcher>();
    if (simulated_)
      return invalid_argument("With simulated acceptance the text is meaningless: leave the grammar out.");
    if (text_.tokenizer->grammars() == nullptr) {
      return failed_precondition("A grammar needs the model's tokenizer.json, and its folder has none.");
    }
    return text_.tokenizer->grammars()->compile(*request.grammar);
  }

  const EngineInfo info_;
  const TextModels text_;
  const bool simulated_;  // drafts are accepted whatever the target, and with it a grammar, says
  std::atomic<RequestId> next_id_{1};
  Worker worker_;
};

EngineInfo describe(const ResolvedModels& models, const LoadedModels& loaded, Device& device) {
  EngineInfo info;
  info.architecture = models.target.architecture;
  const bool cpu = models.device.kind == DeviceKind::kCpu;
  info.device = cpu ? "cpu" : "cuda:" + std::to_string(models.device.ordinal);
  info.dtype = dtype_name(models.target_numerics.activation);
  info.instruction_set = cpu ? ops::cpu_instruction_set() : device.name();
  info.vocab_size = models.target.vocab;
  info.max_model_len = models.max_model_len;
  info.block_size = models.block_size;
  info.page_size = models.page_size;
  info.kv_pages = models.memory.pages;
  info.kv_bytes_per_token = models.memory.page_bytes / models.page_size;
  info.weight_bytes = loaded.target->packed_bytes() + (loaded.draft ? loaded.draft->packed_bytes() : 0);
  info.max_num_seqs = models.max_num_seqs;
  info.threads = cpu ? device.stream().pool().threads() : 0;
  info.eos_token_ids = models.target.eos_ids;
  info.default_sampling = models.target.default_sampling;
  info.warnings = models.warnings;
  return info;
}

sched::SchedulerConfig scheduler_config(const EngineOptions& options, const ResolvedModels& models) {
  sched::SchedulerConfig config;
  config.max_num_seqs = models.max_num_seqs;
  config.max_num_batched_tokens = models.max_num_batched_tokens;
  config.prefill_chunk = models.prefill_chunk;
  config.max_model_len = models.max_model_len;
  config.page_size = models.page_size;
  config.pages = models.memory.pages;
  config.block_size = models.block_size;
  config.reserve_rounds = models.reserve_rounds();
  config.prefix_cache = options.prefix_cache;
  return config;
}

Result<std::unique_ptr<spec::Round>> make_round(Device& device, const EngineOptions& options,
                                                const ResolvedModels& models, LoadedModels& loaded,
                                                const Progress& progress) {
  std::unique_ptr<spec::Proposer> proposer;
  if (loaded.draft) {
    proposer = spec::make_dflash_proposer(std::move(loaded.draft), *loaded.target, *loaded.kv,
                                          {models.block_size, options.draft_window});
  }
  spec::RoundConfig config;
  config.slots = models.max_num_seqs;
  config.max_rows = models.max_num_batched_tokens;
  config.max_positions = models.max_positions();
  config.page_size = models.page_size;
  config.logit_rows = logit_rows(models.device.kind);
  config.graphs = options.graphs;
  config.profile = options.profile;
  config.simulate_acceptance = options.simulate_acceptance;
  const auto recorded = [&](double fraction) {
    if (progress) progress("Recording graphs", fraction);
  };
  return spec::Round::create(device, *loaded.target, *loaded.kv, std::move(proposer), config, recorded);
}

}  // namespace
}  // namespace engine

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options, const Progress& progress) {
  VOLLEY_ASSIGN(engine::ResolvedModels models, engine::resolve_models(options));
  VOLLEY_ASSIGN(engine::TextModels text, engine::load_text(options.model_dir, options.dummy_weights.has_value()));
  engine::WorkerParts parts;
  VOLLEY_ASSIGN(parts.device, engine::make_device(models.device, options.threads));
  VOLLEY_ASSIGN(parts.models, engine::load_models(*parts.device, models, progress));
  EngineInfo info = engine::describe(models, parts.models, *parts.device);
  VOLLEY_ASSIGN(parts.round, engine::make_round(*parts.device, options, models, parts.models, progress));
  parts.tokenizer = text.tokenizer;
  parts.eos_ids = models.target.eos_ids;
  parts.scheduler = engine::scheduler_config(options, models);
  parts.max_queue = options.max_queue;
  return std::unique_ptr<Engine>(std::make_unique<engine::EngineImpl>(
      std::move(info), std::move(text), options.simulate_acceptance.has_value(), std::move(parts)));
}

}  // namespace volley
