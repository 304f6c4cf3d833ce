// From command-line flags to a running engine.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <string>
#include <vector>

#include "apps/cli/model_location.h"
#include "apps/cli/options.h"
#include "apps/console.h"
#include "apps/device_failure.h"
#include "engine/start/models.h"

namespace volley::apps {

struct EngineSetup {
  EngineOptions options;
  TextFlags text;
  std::optional<SimulatedAcceptance> simulate_acceptance;  // of requests that bring none
  std::string model_name;                                  // the hub's name, or the last part of the target's folder
  std::string draft_name;                                  // of the drafter's; empty: none
  std::vector<std::string> notes;                          // what the user should know: lines for stderr
};

struct ModelFolders {
  LocatedModel target, draft;  // draft.dir empty: none
};
// What --model and --draft mean: folders, names in the local Hugging Face cache, nothing (the pocket pair), and of the
// drafter "none" and "auto". kNotFound: "auto" finds none.
Result<ModelFolders> locate_models(const std::optional<std::string>& model, const std::optional<std::string>& draft);

// Decides models and speculation. Without --model: the pocket pair. With --model and no --draft: no drafter, with a
// note. kInvalidArgument: speculation was asked for without a drafter. `concurrency`: requests the client keeps open,
// the default of max_num_seqs; 0: the engine's own default.
Result<EngineSetup> resolve_engine(const EngineFlags& flags, int concurrency);

// kNotFound for a model's folder that is not there, cannot be read or has no config.json, with what it must be.
Status check_folders(const EngineOptions& options);

// Everything about the models that can be checked without reading weights: the folders, their configurations, that they
// fit together, the memory, and with real weights the names and shapes of their tensors.
Result<engine::ResolvedModels> check_models(const EngineOptions& options);

// Prints the notes, loads the models with progress on the terminal, prints the engine's warnings, also those that come
// while it runs unless setup.options.on_warning takes them. console and device, which learns of the device's failure,
// must outlive the engine; device->leave() comes before its end.
Result<std::unique_ptr<Engine>> create_engine(const EngineSetup& setup, Console* console, DeviceFailure* device);

// What a failure of check_models or create_engine means for the process: options that the engine refuses are the user's
// to correct (kExitUsage), everything else is a model that could not be loaded (kExitModel).
int creation_exit_status(const EngineSetup& setup, const Error& error);

}  // namespace volley::apps
