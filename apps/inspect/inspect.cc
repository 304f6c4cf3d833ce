#include "apps/inspect/inspect.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "apps/commands.h"
#include "apps/engine_setup.h"
#include "apps/exit_codes.h"
#include "apps/load_log.h"
#include "apps/standard_streams.h"
#include "decode/proposers.h"
#include "engine/start/memory_plan.h"
#include "engine/start/models.h"
#include "engine/start/text_models.h"
#include "families/family.h"
#include "model/output_head.h"
#include "model/shard.h"
#include "model/vision/tower.h"
#include "text/text.h"
#include "weights/checkpoint.h"

namespace volley::apps {
namespace {

using OrderedJson = nlohmann::ordered_json;
using engine::format_bytes;

namespace fs = std::filesystem;

using BytesOfType = std::map<std::string, int64_t>;  // by dtype, or by the name of the codes

// "bfloat16", or "bfloat16 (12.5 MiB), float32 (1.0 MiB)".
std::string list_types(const BytesOfType& bytes) {
  std::string text;
  for (const auto& [type, count] : bytes) {
    text += (text.empty() ? "" : ", ") + type;
    if (bytes.size() > 1) text += " (" + format_bytes(count) + ")";
  }
  return text;
}

BytesOfType by_name(const std::map<DType, int64_t>& bytes) {
  BytesOfType named;
  for (const auto& [dtype, count] : bytes) named[dtype_name(dtype)] += count;
  return named;
}

// Contents of a folder's weight headers. A folder with configurations alone has none, which is no mistake.
struct Weights {
  std::optional<DType> dtype;              // empty: no weights
  std::string quantisation;                // the files' own name; empty: not quantised
  std::optional<Result<int64_t>> tensors;  // number of needed tensors, if all are there; otherwise the error
  BytesOfType bytes;                       // the needed tensors' size in the file
  std::map<std::string, int64_t> skipped;  // unread tensors, by purpose

  bool present() const { return dtype.has_value(); }
  bool good() const { return !tensors || tensors->ok(); }
  std::string dtype_text() const {
    if (!present()) return "no weights in the folder";
    return quantisation.empty() ? dtype_name(*dtype) : quantisation;
  }
  // With every dtype of the needed tensors.
  std::string types_text() const { return present() && good() ? list_types(bytes) : dtype_text(); }
  std::string tensors_text() const {
    return tensors->ok() ? std::to_string(tensors->value()) + ", all there" : tensors->error().message;
  }
};

BytesOfType bytes_in_file(const weights::Checkpoint& checkpoint, std::span<const model::Param> params) {
  BytesOfType bytes;
  for (const model::Param& param : params) {
    if (param.again || param.kind == model::Param::Kind::kIndex) continue;
    for (const model::Param::Part& part : param.parts) {
      if (const auto coded = checkpoint.code_format(part.name, param.coded_shape(part)); coded.ok() && *coded) {
        bytes[(*coded)->name] += (*coded)->bytes;
        continue;
      }
      const DType dtype = checkpoint.dtype_of(part.name);
      bytes[dtype_name(dtype)] +=
          part.rows * std::max<int64_t>(1, param.columns) * static_cast<int64_t>(dtype_size(dtype));
    }
  }
  return bytes;
}

std::string device_name(const engine::DeviceChoice& device) {
  return device.kind == DeviceKind::kCpu ? "cpu" : "cuda:" + std::to_string(device.ordinal);
}

// A drafter, and whether it fits the target.
struct FoundDrafter {
  std::string dir;
  std::shared_ptr<const decode::ProposerSpec> spec;
  Weights weights;
  Status fit;

  const decode::ProposerFacts& facts() const { return spec->facts(); }
};

// All facts about the models, errors included.
struct Findings {
  std::string model_dir;
  int replicas = 1;
  families::TargetConfig target;
  std::vector<FoundDrafter> drafters;
  Weights target_weights;
  bool tokenizer = false;                      // the target's folder has a usable one
  std::string tokenizer_error;                 // its error; empty: no error, or no tokenizer
  std::string ends;                            // the tokens that end an answer, for people
  std::optional<engine::ResolvedModels> plan;  // with the engine's default options, except --dtype
  std::optional<Error> plan_error;
  std::vector<std::string> warnings;  // in addition to the plan's

  // A model without weights can run with random ones, and then needs no tokenizer.
  bool fits() const {
    const auto good = [](const FoundDrafter& drafter) { return drafter.fit.ok() && drafter.weights.good(); };
    return plan.has_value() && target_weights.good() && std::ranges::all_of(drafters, good) &&
           (tokenizer || !target_weights.present());
  }
};

// Tensors of parts that are not read, by purpose.
std::map<std::string, int64_t> count_skipped(const std::shared_ptr<const weights::Checkpoint>& files,
                                             weights::NameRules names) {
  const std::vector<weights::NameRules::Skipped> skipped = std::move(names.skipped);
  names.skipped.clear();
  std::map<std::string, int64_t> counts;
  for (const std::string& name : weights::with_names(files, names)->names()) {
    for (const weights::NameRules::Skipped& part : skipped) counts[part.what] += name.starts_with(part.begins) ? 1 : 0;
  }
  std::erase_if(counts, [](const auto& entry) { return entry.second == 0; });
  return counts;
}

// params_of: lists the needed parameters, which may depend on what the files contain.
Result<Weights> examine_weights(
    const std::string& dir, const weights::NameRules& names,
    const std::function<Result<std::vector<model::Param>>(const weights::Checkpoint&)>& params_of) {
  Weights found;
  if (!fs::is_regular_file(dir) && !fs::exists(fs::path(dir) / "model.safetensors") &&
      !fs::exists(fs::path(dir) / "model.safetensors.index.json")) {
    return found;
  }
  VOLLEY_ASSIGN(const std::shared_ptr<const weights::Checkpoint> files, weights::open_checkpoint(dir));
  const auto checkpoint = weights::with_names(files, names);
  VOLLEY_ASSIGN(const std::vector<model::Param> params, params_of(*checkpoint));
  found.dtype = checkpoint->main_dtype();
  found.quantisation = checkpoint->quantisation();
  found.tensors = model::check_tensors(*checkpoint, params);
  found.bytes = bytes_in_file(*checkpoint, params);
  found.skipped = count_skipped(files, names);
  return found;
}

// Without a tokenizer only the configuration's ids tell where an answer ends.
void examine_tokenizer(const EngineOptions& options, Findings& found) {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  const std::string dir = engine::tokenizer_dir(options);
  if (!options.tokenizer.empty() || fs::is_regular_file(dir) || fs::exists(fs::path(dir) / "tokenizer.json")) {
    auto loaded = text::Tokenizer::load(dir);
    found.tokenizer = loaded.ok();
    if (!loaded.ok()) found.tokenizer_error = loaded.error().message;
    if (loaded.ok()) tokenizer = *std::move(loaded);
  }
  if (tokenizer) found.warnings = engine::add_end_token(*tokenizer, found.target);
  found.ends = ends_text(found.target.eos_ids, [&](TokenId id) {
    return tokenizer ? tokenizer->decode({&id, 1}, /*skip_special_tokens=*/false) : std::string();
  });
}

Result<Findings> examine(const InspectCommand& command) {
  EngineFlags flags;
  flags.model = command.model;
  flags.draft = command.draft;
  flags.base = command.base;
  VOLLEY_ASSIGN(EngineSetup setup, resolve_engine(flags, 0));
  Findings found;
  found.model_dir = setup.options.model_dir;
  found.replicas = setup.options.data_parallel_size;
  VOLLEY_RETURN_IF_ERROR(check_folders(setup.options));
  VOLLEY_ASSIGN(found.target, families::read_target(found.model_dir));
  model::Decoder& decoder = found.target.decoder;
  VOLLEY_ASSIGN(found.target_weights,
                examine_weights(found.model_dir, found.target.names,
                                [&](const weights::Checkpoint& checkpoint) -> Result<std::vector<model::Param>> {
                                  VOLLEY_RETURN_IF_ERROR(model::settle_output_head(checkpoint, decoder));
                                  return model::params_with_tower(decoder);
                                }));
  examine_tokenizer(setup.options, found);
  bool without_weights = !found.target_weights.present();
  for (const std::string& dir : engine::draft_dirs(setup.options)) {
    FoundDrafter& drafter = found.drafters.emplace_back();
    drafter.dir = dir;
    VOLLEY_ASSIGN(drafter.spec, decode::read_proposer(dir));
    const decode::ProposerFacts& facts = drafter.facts();
    VOLLEY_ASSIGN(drafter.weights, examine_weights(dir, facts.names, [&](const weights::Checkpoint&) {
                    return Result<std::vector<model::Param>>(facts.params);
                  }));
    drafter.fit = drafter.spec->check_target(found.target.decoder);
    without_weights = without_weights || (!facts.params.empty() && !drafter.weights.present());
  }
  // A folder with configurations alone is planned for as if it had weights.
  if (without_weights) {
    setup.options.dummy_weights = 0;
  }
  // Where replicas divide the experts, the last one stores the most of them.
  auto plan = engine::resolve_models(setup.options, std::max(0, setup.options.data_parallel_size - 1));
  if (plan.ok()) {
    found.plan = std::move(plan).value();
  } else {
    found.plan_error = plan.error();
  }
  return found;
}

OrderedJson json_of(const decode::ProposerFacts::Field& field) {
  return std::visit([](const auto& value) { return OrderedJson(value); }, field.value);
}

std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (int i = static_cast<int>(digits.size()) - 3; i > 0; i -= 3) digits.insert(static_cast<size_t>(i), 1, ',');
  return digits;
}

std::string counted(int64_t number, const std::string& thing) {
  return grouped(number) + " " + thing + (number == 1 ? "" : "s");
}

// A drafter without a network has no layers.
std::string shape_text(const model::Decoder& s) {
  if (s.layers.empty()) return "no weights of its own";
  std::string text = std::to_string(s.layers.size()) + " layers, hidden " + std::to_string(s.hidden);
  if (const auto kv = s.first_kv()) {
    text += ", " + std::to_string(kv->heads) + "/" + std::to_string(kv->kv_heads) + " heads of " +
            std::to_string(kv->head_dim);
  }
  if (const size_t linear = s.state_layers(); linear > 0) {
    text += ", linear attention in " + std::to_string(linear);
  }
  const model::FfnFacts ffn = s.layers.back().ffn_facts();
  if (!ffn.router) return text + ", FFN " + std::to_string(ffn.inner);
  text += ", " + std::to_string(ffn.router->top_k) + " of " + std::to_string(ffn.router->experts) + " experts of " +
          std::to_string(ffn.inner);
  if (ffn.shared_inner > 0) text += " and a shared one of " + std::to_string(ffn.shared_inner);
  return text;
}

// Bytes of a position in layers without a sliding window.
int64_t rank_kept_bytes(const engine::ResolvedModels& plan) {
  return plan.kv.groups.front().bytes / plan.page_size;
}

void print_weights(const Weights& weights) {
  std::printf("  weights      %s\n", weights.types_text().c_str());
  if (weights.tensors) std::printf("  tensors      %s\n", weights.tensors_text().c_str());
  for (const auto& [what, count] : weights.skipped) {
    std::printf("  not read     %s of %s\n", counted(count, "tensor").c_str(), what.c_str());
  }
}

std::string fits_text(const Findings& found, const FoundDrafter& drafter) {
  if (!drafter.fit.ok()) return drafter.fit.error().message;
  if (found.target_weights.good() && drafter.weights.good()) return "yes";
  return "by the configurations yes, but not all tensors are what they say (above)";
}

// The attention backends that would run.
std::string attention_text(const engine::ResolvedModels& plan) {
  std::string text = ops::attention_backend_name(plan.target_numerics.attention);
  for (const engine::ResolvedDrafter& drafter : plan.drafters) {
    text += std::string(", of the drafter ") + ops::attention_backend_name(drafter.numerics.attention);
  }
  return text;
}

// Prints a rank's part of the totals. Steps are the same on each rank.
void print_ranks(const engine::ResolvedModels& plan) {
  int64_t most = 0;
  for (const model::WeightBytes& weights : plan.rank_weights) most = std::max(most, weights.total());
  std::printf("  a rank       of %d: weights %s, KV %s a token", plan.ranks, format_bytes(most).c_str(),
              format_bytes(rank_kept_bytes(plan)).c_str());
  if (plan.kv.state_bytes() > 0) std::printf(", states %s", format_bytes(plan.kv.state_bytes()).c_str());
  std::printf("\n");
}

// The experts of a rank, or of a replica that divides them; all layers with experts have the same number.
std::optional<std::pair<int32_t, int32_t>> experts_of(const engine::ResolvedModels& plan, int rank) {
  const model::Decoder& target = plan.target.decoder;
  if (plan.expert_replicas > 1) {
    for (const model::Layer& layer : target.layers) {
      const std::optional<ops::RouterRule> router = layer.ffn_facts().router;
      if (router) return model::experts_part(router->experts, rank, plan.expert_replicas);
    }
  }
  if (plan.ranks == 1 || !target.divides_by_expert()) return std::nullopt;
  const model::Decoder shard = model::shard_of(target, rank, plan.ranks);
  for (const model::Layer& layer : shard.layers) {
    if (const std::optional<ops::RouterRule> router = layer.ffn_facts().router) {
      return std::pair(router->own_first, router->own());
    }
  }
  return std::nullopt;
}

// The lines on memory are for one replica; on the CPU all share the target's weights.
void print_replicas(const engine::ResolvedModels& plan, int replicas) {
  if (replicas == 1) return;
  std::printf("  a replica    of %d", replicas);
  if (plan.shared_weight_bytes > 0) {
    std::printf(": %s of the weights are the same for all", format_bytes(plan.shared_weight_bytes).c_str());
  }
  if (plan.exchange_bytes > 0) {
    std::printf(plan.keeps_own_experts()
                    ? ": its weights have its own experts alone; its steps bring rows together in %s"
                    : "; steps of all have %s in common",
                format_bytes(plan.exchange_bytes).c_str());
  }
  std::printf("\n");
}

void print_experts(const engine::ResolvedModels& plan) {
  std::string text = plan.expert_replicas > 1 ? "replica " : "rank ";
  for (int rank = 0; rank < std::max(plan.ranks, plan.expert_replicas); ++rank) {
    const auto own = experts_of(plan, rank);
    if (!own) return;
    const auto [first, count] = *own;
    text += (rank == 0 ? "" : ", ") + std::to_string(rank) + ": " + (count == 0 ? "none" : std::to_string(first));
    if (count > 1) text += " to " + std::to_string(first + count - 1);
  }
  std::printf("  experts      %s\n", text.c_str());
}

void print_text(const Findings& found) {
  const model::Decoder& t = found.target.decoder;
  std::printf("target         %s\n", found.model_dir.c_str());
  std::printf("  architecture %s: %s\n", found.target.architecture.c_str(), shape_text(t).c_str());
  std::printf("  vocabulary   %d%s, %s positions\n", t.vocab, t.tied_embeddings ? ", tied" : "",
              grouped(found.target.max_positions).c_str());
  std::printf("  parameters   %s\n", grouped(model::count(model::params(t))).c_str());
  if (const auto& tower = t.tower) {
    const int64_t square = int64_t{tower->rules.token_side()} * tower->rules.token_side();
    std::printf("  pictures     %s to %s tokens of %d x %d pixels each, by %d layers, hidden %d, with %s parameters\n",
                grouped(tower->rules.min_pixels / square).c_str(), grouped(tower->rules.max_pixels / square).c_str(),
                tower->rules.token_side(), tower->rules.token_side(), tower->layers, tower->hidden,
                grouped(model::count(model::tower_params(*tower))).c_str());
  }
  std::printf("  answers      end with %s\n", found.ends.c_str());
  print_weights(found.target_weights);
  if (!found.tokenizer_error.empty()) {
    std::printf("  tokenizer    %s\n", found.tokenizer_error.c_str());
  } else if (!found.tokenizer) {
    std::printf("  tokenizer    missing: the folder has no tokenizer.json, which comes with the checkpoint\n");
  }
  for (const FoundDrafter& drafter : found.drafters) {
    const decode::ProposerFacts& d = drafter.facts();
    std::printf("drafter        %s\n", drafter.dir.c_str());
    std::printf("  architecture %s: %s\n", d.architecture.c_str(), shape_text(d.decoder).c_str());
    std::string fields;
    for (const auto& field : d.fields) fields += ", " + field.name + " " + json_of(field).dump();
    std::printf("  block        %d tokens%s\n", 1 + d.proposals, fields.c_str());
    std::printf("  parameters   %s\n", grouped(model::count(d.params)).c_str());
    print_weights(drafter.weights);
    std::printf("  fits         %s\n", fits_text(found, drafter).c_str());
  }
  if (found.drafters.empty()) std::printf("drafter        none: decoding is plain\n");
  if (!found.plan) {
    std::printf("memory         generate, serve and bench would refuse these models without further options: %s\n",
                found.plan_error->message.c_str());
    return;
  }
  const engine::MemoryPlan& memory = found.plan->memory;
  const int64_t page_size = found.plan->page_size;
  const engine::DeviceChoice& device = found.plan->device;
  const bool each = found.plan->ranks > 1 && device.kind == DeviceKind::kCuda;
  std::printf("memory         %s are available on %s\n", format_bytes(device.available_bytes).c_str(),
              each ? "each GPU, and this is what it takes:" : device_name(device).c_str());
  std::printf("  weights      %s as %s\n", format_bytes(memory.weight_bytes).c_str(),
              list_types(by_name(found.plan->weights.matrices)).c_str());
  std::printf("  KV           %s a token%s, as %s\n", format_bytes(memory.kept_bytes(page_size)).c_str(),
              found.drafters.empty() ? "" : " (target and drafter)", dtype_name(found.plan->kv_dtype));
  if (found.plan->ranks > 1 && !each) print_ranks(*found.plan);
  print_replicas(*found.plan, found.replicas);
  print_experts(*found.plan);
  if (device.kind == DeviceKind::kCuda) std::printf("  attention    %s\n", attention_text(*found.plan).c_str());
  if (memory.state_bytes > 0) {
    const int64_t slots = found.plan->max_num_seqs;
    std::printf("  states       %s for %s of recurrent layers, %s each\n", format_bytes(memory.state_bytes).c_str(),
                counted(slots, "request").c_str(), format_bytes(memory.state_bytes / slots).c_str());
    std::printf("  snapshots    %s for %lld of them, every %s of a prompt and at a request's end\n",
                format_bytes(memory.snapshot_bytes).c_str(), static_cast<long long>(memory.snapshots),
                counted(found.plan->snapshot_tokens, "token").c_str());
  }
  std::printf("  a step       %s for up to %s\n", format_bytes(memory.step_bytes).c_str(),
              counted(found.plan->max_num_batched_tokens, "row").c_str());
  if (memory.graph_bytes > 0) std::printf("  recorded     steps take %s\n", format_bytes(memory.graph_bytes).c_str());
  std::printf("  plan         %s of %lld positions, %s: room for %s, %s\n", counted(memory.pages(), "page").c_str(),
              static_cast<long long>(page_size), format_bytes(memory.kv_bytes()).c_str(),
              counted(memory.pages() * page_size, "token").c_str(),
              counted(memory.pages() / memory.pages_per_request, "full context").c_str());
  for (const kv::Group& group : memory.groups) {
    if (memory.groups.size() == 1) break;
    const std::string name = group.window > 0 ? "window " + std::to_string(group.window) : "full layers";
    std::printf("  %-12s %s of %s, %s\n", name.c_str(), counted(group.pages, "page").c_str(),
                format_bytes(group.bytes).c_str(), format_bytes(group.pages * group.bytes).c_str());
  }
  for (const auto& warnings : {found.plan->warnings, found.warnings}) {
    for (const std::string& warning : warnings) std::printf("warning        %s\n", warning.c_str());
  }
}

struct Described {
  const std::string& dir;
  const std::string& architecture;
  const model::Decoder& decoder;
  int64_t parameters = 0;
};

OrderedJson model_json(const Described& model, const Weights& weights) {
  const model::Decoder& spec = model.decoder;
  OrderedJson json = {{"folder", model.dir},
                      {"architecture", model.architecture},
                      {"layers", spec.layers.size()},
                      {"hidden_size", spec.hidden}};
  json["parameters"] = model.parameters;
  json["weights"] = weights.dtype_text();
  if (!weights.good()) json["weights_error"] = weights.tensors->error().message;
  if (spec.layers.empty()) return json;  // a drafter without a network
  if (const size_t linear = spec.state_layers(); linear > 0) json["linear_attention_layers"] = linear;
  for (const auto& [what, count] : weights.skipped) json["tensors_not_read"][what] = count;
  if (const auto kv = spec.first_kv()) {
    json["heads"] = kv->heads;
    json["kv_heads"] = kv->kv_heads;
    json["head_dim"] = kv->head_dim;
  }
  const model::FfnFacts ffn = spec.layers.back().ffn_facts();
  if (ffn.router) {
    json["experts"] = ffn.router->experts;
    json["experts_per_token"] = ffn.router->top_k;
    json["expert_intermediate_size"] = ffn.inner;
    if (ffn.shared_inner > 0) json["shared_expert_intermediate_size"] = ffn.shared_inner;
  } else {
    json["intermediate_size"] = ffn.inner;
  }
  json["vocab_size"] = spec.vocab;
  return json;
}

// A drafter without weights has no checkpoint.
std::string quantization_json(const model::Numerics& numerics,
                              const std::shared_ptr<const weights::Checkpoint>& checkpoint) {
  return checkpoint ? engine::quantization_name(numerics.storage, *checkpoint) : "none";
}

OrderedJson json_of(const Findings& found) {
  OrderedJson json;
  const families::TargetConfig& t = found.target;
  json["target"] = model_json({found.model_dir, t.architecture, t.decoder, model::count(model::params(t.decoder))},
                              found.target_weights);
  json["target"]["max_positions"] = t.max_positions;
  if (const auto& tower = t.decoder.tower) {
    json["target"]["pictures"] = {{"token_side", tower->rules.token_side()},
                                  {"min_pixels", tower->rules.min_pixels},
                                  {"max_pixels", tower->rules.max_pixels},
                                  {"layers", tower->layers},
                                  {"parameters", model::count(model::tower_params(*tower))}};
  }
  json["target"]["tokenizer"] = found.tokenizer;
  if (!found.tokenizer_error.empty()) json["target"]["tokenizer_error"] = found.tokenizer_error;
  json["target"]["eos_token_ids"] = t.eos_ids;
  json["target"]["tied_embeddings"] = t.decoder.tied_embeddings;
  if (found.plan)
    json["target"]["quantization"] = quantization_json(found.plan->target_numerics, found.plan->target_checkpoint);
  for (size_t i = 0; i < found.drafters.size(); ++i) {
    const FoundDrafter& drafter = found.drafters[i];
    const decode::ProposerFacts& d = drafter.facts();
    OrderedJson& out = json[i == 0 ? "draft" : "second_draft"];
    out = model_json({drafter.dir, d.architecture, d.decoder, model::count(d.params)}, drafter.weights);
    out["block_size"] = 1 + d.proposals;
    for (const auto& field : d.fields) out[field.name] = json_of(field);
    if (!found.plan) continue;
    const engine::ResolvedDrafter& planned = found.plan->drafters[i];
    out["quantization"] = quantization_json(planned.numerics, planned.checkpoint);
  }
  json["fits"] = found.fits();
  for (const FoundDrafter& drafter : found.drafters) {
    if (!drafter.fit.ok()) json["pair_error"] = drafter.fit.error().message;
  }
  if (found.plan) {
    const engine::MemoryPlan& memory = found.plan->memory;
    json["memory"] = {{"device", device_name(found.plan->device)},
                      {"available_bytes", found.plan->device.available_bytes},
                      {"weight_bytes", memory.weight_bytes},
                      {"step_bytes", memory.step_bytes},
                      {"graph_bytes", memory.graph_bytes},
                      {"state_bytes", memory.state_bytes},
                      {"snapshots", memory.snapshots},
                      {"snapshot_bytes", memory.snapshot_bytes},
                      {"snapshot_tokens", memory.state_bytes > 0 ? found.plan->snapshot_tokens : 0},
                      {"kv_bytes_per_token", memory.kept_bytes(found.plan->page_size)},
                      {"kv_dtype", dtype_name(found.plan->kv_dtype)},
                      {"pages", memory.pages()},
                      {"kv_bytes", memory.kv_bytes()},
                      {"full_contexts", memory.pages() / memory.pages_per_request}};
    for (const kv::Group& group : memory.groups) {
      json["memory"]["page_groups"].push_back(
          {{"window", group.window}, {"pages", group.pages}, {"page_bytes", group.bytes}});
    }
    json["memory"]["tensor_parallel_size"] = found.plan->ranks;
    json["memory"]["data_parallel_size"] = found.replicas;
    json["memory"]["shared_weight_bytes"] = found.plan->shared_weight_bytes;
    for (int replica = 0; found.plan->expert_replicas > 1 && replica < found.replicas; ++replica) {
      const auto [first, experts] = *experts_of(*found.plan, replica);
      json["memory"]["replicas"].push_back({{"first_expert", first}, {"experts", experts}});
    }
    for (int rank = 0; rank < found.plan->ranks; ++rank) {
      OrderedJson part = {{"weight_bytes", found.plan->rank_weights[static_cast<size_t>(rank)].total()},
                          {"kv_bytes_per_token", rank_kept_bytes(*found.plan)},
                          {"state_bytes", found.plan->kv.state_bytes()}};
      if (const auto own = experts_of(*found.plan, rank); own && found.plan->ranks > 1) {
        part["first_expert"] = own->first;
        part["experts"] = own->second;
      }
      json["memory"]["ranks"].push_back(std::move(part));
    }
    for (const auto& [dtype, count] : found.plan->weights.matrices)
      json["memory"]["matrix_bytes"][dtype_name(dtype)] = count;
    if (found.plan->device.kind == DeviceKind::kCuda) {
      json["attention_backend"] = ops::attention_backend_name(found.plan->target_numerics.attention);
      for (size_t i = 0; i < found.drafters.size(); ++i) {
        json[i == 0 ? "draft_attention_backend" : "second_draft_attention_backend"] =
            ops::attention_backend_name(found.plan->drafters[i].numerics.attention);
      }
    }
  } else {
    json["memory_error"] = found.plan_error->message;
  }
  return json;
}

void print_json(const Findings& found) {
  std::printf("%s\n", json_of(found).dump(-1, ' ', false, OrderedJson::error_handler_t::replace).c_str());
}

}  // namespace

Result<OrderedJson> inspect_models(const InspectCommand& command) {
  VOLLEY_ASSIGN(const Findings found, examine(command));
  return json_of(found);
}

int run_inspect(const InspectCommand& command, Console* console) {
  const auto found = examine(command);
  if (!found.ok()) return console->fail(found.error().message, kExitModel);
  command.json ? print_json(*found) : print_text(*found);
  if (const Status written = flush_standard_output(); !written.ok())
    return console->fail(written.error().message, kExitUsage);
  return found->fits() ? kExitOk : kExitModel;
}

}  // namespace volley::apps
