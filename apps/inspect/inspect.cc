#include "apps/inspect/inspect.h"

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "apps/engine_setup.h"
#include "apps/exit_codes.h"
#include "engine/memory_plan.h"
#include "engine/models.h"
#include "model/spec.h"
#include "weights/checkpoint.h"

namespace volley::apps {
namespace {

using Json = nlohmann::ordered_json;
using engine::format_bytes;

// Everything that can be said about the pair; what went wrong is part of it.
struct Findings {
  std::string model_dir, draft_dir;  // draft_dir empty: none
  model::DecoderSpec target;
  std::optional<model::DraftSpec> draft;
  std::string target_dtype, draft_dtype;       // "none: …" without weights
  std::optional<Status> pair;                  // whether the drafter fits; empty: no drafter
  std::optional<engine::ResolvedModels> plan;  // with the engine's default options
  std::optional<Error> plan_error;

  bool fits() const { return plan.has_value() && (!pair || pair->ok()); }
};

Result<std::string> weights_dtype(const std::string& dir, bool* has_weights) {
  namespace fs = std::filesystem;
  *has_weights =
      fs::exists(fs::path(dir) / "model.safetensors") || fs::exists(fs::path(dir) / "model.safetensors.index.json");
  if (!*has_weights) return std::string("no weights in the folder");
  VOLLEY_ASSIGN(const auto checkpoint, weights::open_safetensors(dir));
  return std::string(dtype_name(checkpoint->main_dtype()));
}

Result<Findings> examine(const InspectCommand& command) {
  EngineFlags flags;
  flags.model = command.model;
  flags.draft = command.draft;
  VOLLEY_ASSIGN(EngineSetup setup, resolve_engine(flags, 0));
  Findings found;
  found.model_dir = setup.options.model_dir;
  found.draft_dir = setup.options.draft_dir;
  bool target_weights = false, draft_weights = true;
  VOLLEY_ASSIGN(found.target, model::read_decoder_spec(found.model_dir));
  VOLLEY_ASSIGN(found.target_dtype, weights_dtype(found.model_dir, &target_weights));
  if (!found.draft_dir.empty()) {
    VOLLEY_ASSIGN(found.draft, model::read_draft_spec(found.draft_dir));
    VOLLEY_ASSIGN(found.draft_dtype, weights_dtype(found.draft_dir, &draft_weights));
    found.pair = model::check_pair(found.target, *found.draft);
  }
  // A folder of configurations alone can be planned for as if it had weights.
  if (!target_weights || !draft_weights) setup.options.dummy_weights = 0;
  auto plan = engine::resolve_models(setup.options);
  if (plan.ok()) {
    found.plan = std::move(plan).value();
  } else {
    found.plan_error = plan.error();
  }
  return found;
}

std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (int i = static_cast<int>(digits.size()) - 3; i > 0; i -= 3) digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

std::string shape_text(const model::DecoderSpec& s) {
  return std::to_string(s.layers.size()) + " layers, hidden " + std::to_string(s.hidden) + ", " +
         std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " heads of " + std::to_string(s.head_dim) +
         ", FFN " + std::to_string(s.intermediate);
}

void print_text(const Findings& found) {
  const model::DecoderSpec& t = found.target;
  std::printf("target         %s\n", found.model_dir.c_str());
  std::printf("  architecture %s: %s\n", t.architecture.c_str(), shape_text(t).c_str());
  std::printf("  vocabulary   %d%s, %s positions\n", t.vocab, t.tied_embeddings ? ", tied" : "",
              grouped(t.max_positions).c_str());
  std::printf("  parameters   %s\n", grouped(model::count_parameters(t)).c_str());
  std::printf("  weights      %s\n", found.target_dtype.c_str());
  if (found.draft) {
    const model::DraftSpec& d = *found.draft;
    std::string features;
    for (const int32_t layer : d.target_layers) features += (features.empty() ? "" : ", ") + std::to_string(layer);
    std::printf("drafter        %s\n", found.draft_dir.c_str());
    std::printf("  architecture %s: %s\n", d.decoder.architecture.c_str(), shape_text(d.decoder).c_str());
    std::printf("  block        %d tokens, mask token %d, features of layers %s of %d\n", d.block_size, d.mask_token,
                features.c_str(), d.num_target_layers);
    std::printf("  parameters   %s\n", grouped(model::count_parameters(d)).c_str());
    std::printf("  weights      %s\n", found.draft_dtype.c_str());
    std::printf("  fits         %s\n", found.pair->ok() ? "yes" : found.pair->error().message.c_str());
  } else {
    std::printf("drafter        none: decoding is plain\n");
  }
  if (!found.plan) {
    std::printf("memory         %s\n", found.plan_error->message.c_str());
    return;
  }
  const engine::MemoryPlan& memory = found.plan->memory;
  const int64_t page_size = EngineOptions{}.page_size;
  std::printf("memory         %s are available\n", format_bytes(engine::available_memory_bytes()).c_str());
  std::printf("  weights      %s as %s\n", format_bytes(memory.weight_bytes).c_str(),
              dtype_name(found.plan->target_numerics.storage));
  std::printf("  KV           %s a token%s, as %s\n", format_bytes(memory.page_bytes / page_size).c_str(),
              found.draft ? " (target and drafter)" : "", dtype_name(found.plan->kv_dtype));
  std::printf("  plan         %s pages of %lld positions, %s: room for %s tokens, %s full contexts\n",
              grouped(memory.pages).c_str(), static_cast<long long>(page_size), format_bytes(memory.kv_bytes()).c_str(),
              grouped(memory.pages * page_size).c_str(), grouped(memory.pages / memory.pages_per_request).c_str());
  for (const std::string& warning : found.plan->warnings) std::printf("warning        %s\n", warning.c_str());
}

Json model_json(const std::string& dir, const model::DecoderSpec& spec, int64_t parameters, const std::string& dtype) {
  return {{"folder", dir},
          {"architecture", spec.architecture},
          {"layers", spec.layers.size()},
          {"hidden_size", spec.hidden},
          {"heads", spec.heads},
          {"kv_heads", spec.kv_heads},
          {"head_dim", spec.head_dim},
          {"intermediate_size", spec.intermediate},
          {"vocab_size", spec.vocab},
          {"max_positions", spec.max_positions},
          {"parameters", parameters},
          {"weights", dtype}};
}

void print_json(const Findings& found) {
  Json json;
  json["target"] = model_json(found.model_dir, found.target, model::count_parameters(found.target), found.target_dtype);
  if (found.draft) {
    const model::DraftSpec& d = *found.draft;
    json["draft"] = model_json(found.draft_dir, d.decoder, model::count_parameters(d), found.draft_dtype);
    json["draft"]["block_size"] = d.block_size;
    json["draft"]["mask_token_id"] = d.mask_token;
    json["draft"]["target_layer_ids"] = d.target_layers;
  }
  json["fits"] = found.fits();
  if (found.pair && !found.pair->ok()) json["pair_error"] = found.pair->error().message;
  if (found.plan) {
    const engine::MemoryPlan& memory = found.plan->memory;
    json["memory"] = {{"available_bytes", engine::available_memory_bytes()},
                      {"weight_bytes", memory.weight_bytes},
                      {"kv_bytes_per_token", memory.page_bytes / EngineOptions{}.page_size},
                      {"kv_dtype", dtype_name(found.plan->kv_dtype)},
                      {"pages", memory.pages},
                      {"kv_bytes", memory.kv_bytes()},
                      {"full_contexts", memory.pages / memory.pages_per_request}};
  } else {
    json["memory_error"] = found.plan_error->message;
  }
  std::printf("%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace

int run_inspect(const InspectCommand& command, Console* console) {
  const auto found = examine(command);
  if (!found.ok()) {
    console->error(found.error().message);
    return kExitModel;
  }
  command.json ? print_json(*found) : print_text(*found);
  return found->fits() ? kExitOk : kExitModel;
}

}  // namespace volley::apps
