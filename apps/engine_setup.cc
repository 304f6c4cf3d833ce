#include "apps/engine_setup.h"

#include <filesystem>

#include "apps/exit_codes.h"
#include "apps/model_location.h"
#include "model/spec.h"

namespace volley::apps {
namespace {

std::string folder_name(const std::string& dir) {
  std::filesystem::path path = std::filesystem::path(dir).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

}  // namespace

Result<EngineSetup> resolve_engine(const EngineFlags& flags, int concurrency) {
  EngineSetup setup;
  EngineOptions& options = setup.options;
  options = flags.base;
  const bool draft_none = flags.draft == "none";
  if (flags.draft && !draft_none) options.draft_dir = *flags.draft;
  if (flags.model) {
    options.model_dir = *flags.model;
  } else {
    VOLLEY_ASSIGN(const ModelPair pocket, find_pocket_models());
    options.model_dir = pocket.target;
    if (!flags.draft) options.draft_dir = pocket.draft;
  }
  setup.model_name = folder_name(options.model_dir);

  const bool has_drafter = !options.draft_dir.empty();
  if (flags.speculation == Speculation::kDFlash && !has_drafter) {
    return invalid_argument("--spec dflash needs a drafter: give its folder with --draft DIR.");
  }
  options.speculation = flags.speculation.value_or(has_drafter ? Speculation::kDFlash : Speculation::kOff);
  if (options.speculation == Speculation::kOff) {
    if (options.simulate_acceptance) {
      return invalid_argument("--simulate-acceptance needs speculation: give --draft DIR and leave out --spec off.");
    }
    if (options.block_size != 0) return invalid_argument("--block-size needs a drafter: give --draft DIR.");
    options.draft_dir.clear();  // its weights and its KV would only take memory
    if (!flags.speculation && !draft_none) {
      setup.notes.push_back("No drafter was given, so decoding is plain: --draft DIR turns speculation on.");
    }
  }
  if (!options.draft_dir.empty()) setup.draft_name = folder_name(options.draft_dir);
  if (options.simulate_acceptance) {
    setup.notes.push_back("Acceptance is simulated: the texts are meaningless, only the times count.");
  }
  if (options.max_num_seqs == 0) options.max_num_seqs = concurrency;
  return setup;
}

Result<std::unique_ptr<Engine>> create_engine(const EngineSetup& setup, Console* console) {
  for (const std::string& note : setup.notes) console->note(note);
  auto engine = Engine::create(setup.options, [console](std::string_view phase, double fraction) {
    console->progress(std::string(phase), fraction);
  });
  console->clear_progress();
  if (engine.ok()) {
    for (const std::string& warning : engine.value()->info().warnings) console->note(warning);
  }
  return engine;
}

int creation_exit_status(const EngineSetup& setup, const Error& error) {
  // A wrong config.json is an invalid argument too, so ask whether the configurations can be read.
  const EngineOptions& options = setup.options;
  const bool readable = model::read_decoder_spec(options.model_dir).ok() &&
                        (options.draft_dir.empty() || model::read_draft_spec(options.draft_dir).ok());
  return error.code == ErrorCode::kInvalidArgument && readable ? kExitUsage : kExitModel;
}

}  // namespace volley::apps
