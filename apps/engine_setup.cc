#include "apps/engine_setup.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "apps/cli/known_drafters.h"
#include "apps/cli/model_location.h"
#include "apps/cli/text_defaults.h"
#include "apps/compute.h"
#include "apps/exit_codes.h"
#include "base/environment.h"
#include "decode/proposers.h"
#include "families/family.h"
#include "families/generation.h"
#include "gguf/header.h"
#include "model/spec.h"
#include "weights/checkpoint.h"

namespace volley::apps {
namespace {

// The folder for step costs; empty: not kept. `asked`: --cost-cache, or empty.
std::string cost_cache_dir(const std::string& asked) {
  if (!asked.empty()) return asked == "none" ? "" : asked;
  const std::string home = env_cache_home();
  return home.empty() ? "" : home + "/volley";
}

// Why a folder cannot be a model's, as far as can be seen from outside; empty: no reason.
std::string folder_problem(const std::string& dir) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::file_status folder = fs::status(dir, failed);
  if (folder.type() == fs::file_type::not_found) return "There is no folder " + dir;
  if (folder.type() != fs::file_type::none && !fs::is_directory(folder)) return dir + " is neither a file nor a folder";
  const bool complete = !failed && fs::exists(fs::path(dir) / "config.json", failed);
  // Checked separately, because without access to a folder its files seem to be missing.
  if (!failed && ::faccessat(AT_FDCWD, dir.c_str(), R_OK | X_OK, AT_EACCESS) != 0)
    failed = {errno, std::generic_category()};
  if (failed && !complete) return dir + " cannot be read (" + failed.message() + ")";
  if (complete) return "";
  return dir + (fs::is_empty(dir, failed) ? " is empty" : " has no config.json");
}

// Says what a folder must be; the readers could only say that config.json cannot be opened.
Status check_folder(const std::string& option, const std::string& dir, const std::string& what) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(dir, ignored)) {
    const auto file = gguf::open_file(dir);
    return file.ok() ? Status() : Status(file.error());
  }
  const std::string problem = folder_problem(dir);
  if (problem.empty()) return {};
  if (parse_hub_model(dir) && !std::filesystem::exists(dir, ignored)) {
    const std::string cache = env_hf_hub_cache();
    return not_found(problem + ", and no such model in " + (cache.empty() ? "a Hugging Face cache" : cache) +
                     ", Ollama's or LM Studio's folder" + ": get it with volley pull " + dir + ", or name the " + what +
                     " with " + option + ".");
  }
  return not_found(problem + ": name the " + what + " on this machine's disk with " + option +
                   " (config.json, model.safetensors), or a GGUF file, which this user must be able to read.");
}

}  // namespace

Result<ModelFolders> locate_models(const std::optional<std::string>& model, const std::optional<std::string>& draft) {
  const ModelCaches caches = model_caches();
  const std::string& cache = caches.hub;
  ModelFolders folders;
  if (model) {
    VOLLEY_ASSIGN(folders.target, find_model(*model, caches));
  } else {
    VOLLEY_ASSIGN(const ModelPair pocket, find_pocket_models());
    folders.target = locate_model(pocket.target, cache);
    if (!draft || draft == "auto") folders.drafts = {locate_model(pocket.draft, cache)};
  }
  if (!draft || draft == "none" || (!model && draft == "auto")) return folders;
  VOLLEY_ASSIGN(const std::vector<std::string> names, drafter_names(*draft));
  for (const std::string& name : names) {
    LocatedModel& found = folders.drafts.emplace_back();
    if (name == "mtp") {
      found = folders.target;
    } else if (name == "auto") {
      VOLLEY_ASSIGN(found, locate_known_drafter(folders.target, cache));
    } else {
      VOLLEY_ASSIGN(found, find_model(name, caches));
    }
  }
  return folders;
}

Result<EngineSetup> resolve_engine(const EngineFlags& flags, int concurrency) {
  EngineSetup setup;
  EngineOptions& options = setup.options;
  options = flags.base;
  setup.text = flags.text;
  const bool draft_none = flags.draft == "none";
  VOLLEY_ASSIGN(const ModelFolders folders, locate_models(flags.model, flags.draft));
  options.model_dir = folders.target.dir;
  if (!folders.drafts.empty()) options.draft_dir = folders.drafts[0].dir;
  if (folders.drafts.size() > 1) options.second_draft_dir = folders.drafts[1].dir;
  setup.model_name = folders.target.name;

  const bool has_drafter = !options.draft_dir.empty();
  if (flags.speculation == Speculation::kOn && !has_drafter) {
    return invalid_argument("--spec dflash needs a drafter: give its folder with --draft DIR.");
  }
  options.speculation = flags.speculation.value_or(has_drafter ? Speculation::kOn : Speculation::kOff);
  options.cost_cache_dir = cost_cache_dir(options.cost_cache_dir);
  if (options.restart_on_device_error) options.device_command = {"/proc/self/exe", kComputeFor};
  if (!flags.simulations.empty()) {
    setup.simulate_acceptance = flags.simulations.front().of(0);
    setup.simulate_acceptance->confidence_odds = flags.confidence_odds;
  }
  if (options.speculation == Speculation::kOff) {
    if (setup.simulate_acceptance) {
      return invalid_argument("--simulate-acceptance needs speculation: give --draft DIR and leave out --spec off.");
    }
    if (options.block_size != 0) return invalid_argument("--block-size needs a drafter: give --draft DIR.");
    if (options.verify.kind != VerifyPolicy::Kind::kAuto) {
      return invalid_argument("--verify needs a drafter: give --draft DIR and leave out --spec off.");
    }
    options.draft_dir.clear();  // weights and KV would only take memory
    options.second_draft_dir.clear();
    if (!flags.speculation && !draft_none) {
      const auto known = known_drafter(setup.model_name);
      setup.notes.push_back("No drafter was given, so decoding is plain: --draft " +
                            (known ? "auto takes " + *known + "." : "DIR turns speculation on."));
    }
  }
  if (!options.draft_dir.empty()) setup.draft_name = folders.drafts[0].name;
  if (!options.second_draft_dir.empty()) setup.draft_name += "," + folders.drafts[1].name;
  if (setup.simulate_acceptance) {
    setup.notes.push_back("Acceptance is simulated: the texts are meaningless, only the times count.");
  } else if (options.dummy_weights) {
    setup.notes.push_back("The weights are random: the texts are meaningless, only the times count.");
  }
  if (options.max_num_seqs == 0) options.max_num_seqs = concurrency;
  return setup;
}

Status check_folders(const EngineOptions& options) {
  VOLLEY_RETURN_IF_ERROR(check_folder("--model", options.model_dir, "Hugging Face folder of a model"));
  for (const std::string& dir : engine::draft_dirs(options)) {
    VOLLEY_RETURN_IF_ERROR(check_folder("--draft", dir, "Hugging Face folder of a DFlash drafter"));
  }
  return {};
}

Result<engine::ResolvedModels> check_models(const EngineOptions& options) {
  VOLLEY_RETURN_IF_ERROR(check_folders(options));
  return engine::resolve_models(options);
}

Result<std::unique_ptr<Engine>> create_engine(const EngineSetup& setup, Console* console, DeviceFailure* device) {
  for (const std::string& note : setup.notes) console->note(note);
  VOLLEY_RETURN_IF_ERROR(check_folders(setup.options));
  VOLLEY_ASSIGN(TextDefaults defaults, read_text_defaults(setup.text, setup.options.model_dir));
  defaults.simulate_acceptance = setup.simulate_acceptance;
  EngineOptions options = setup.options;
  if (!options.on_warning) options.on_warning = [console](const std::string& warning) { console->note(warning); };
  options.on_device_failure = [device](const std::string& failure) { (*device)(failure); };
  auto engine = Engine::create(
      options, [console](std::string_view phase, double fraction) { console->progress(std::string(phase), fraction); });
  console->clear_progress();
  if (engine.ok()) {
    for (const std::string& warning : engine.value()->info().warnings) console->note(warning);
  }
  if (!engine.ok()) return engine;
  return with_text_defaults(std::move(*engine), std::move(defaults));
}

int creation_exit_status(const EngineSetup& setup, const Error& error) {
  // A wrong config.json or weight file is an invalid argument, too, so this checks whether they can be read.
  const EngineOptions& options = setup.options;
  const auto has_weights = [&options](const std::string& dir) {
    return options.dummy_weights || weights::open_checkpoint(dir).ok();
  };
  const bool samples =
      setup.text.generation_config != "auto" || families::read_default_sampling(options.model_dir, {}).ok();
  const bool readable = samples && families::read_target(options.model_dir).ok() && has_weights(options.model_dir) &&
                        std::ranges::all_of(engine::draft_dirs(options), [&](const std::string& dir) {
                          return decode::read_proposer(dir).ok() && has_weights(dir);
                        });
  const bool too_few_pages = error.code == ErrorCode::kResourceExhausted && options.kv_pages > 0;
  return (error.code == ErrorCode::kInvalidArgument || too_few_pages) && readable ? kExitUsage : kExitModel;
}

}  // namespace volley::apps
