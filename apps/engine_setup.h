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
  std::optional<SimulatedAcceptance> simulate_acceptance;  // for requests without their own
  std::string model_name;                                  // the hub name, or the last part of the target's folder
  std::string draft_name;                                  // the drafter's, or of two with a comma; may be empty
  std::vector<std::string> notes;                          // lines for stderr
};

struct ModelFolders {
  LocatedModel target;
  std::vector<LocatedModel> drafts;  // at most two
};
// Resolves --model and --draft: folders, names in the local Hugging Face cache, nothing (the pocket pair), and for the
// drafter "none" and "auto". kNotFound: "auto" finds no drafter.
Result<ModelFolders> locate_models(const std::optional<std::string>& model, const std::optional<std::string>& draft);

// Decides models and speculation. Without --model: the pocket pair. With --model alone: no drafter, with a note.
// kInvalidArgument: speculation without a drafter. `concurrency`: requests that the client keeps open, the default of
// max_num_seqs; 0: the engine's own default.
Result<EngineSetup> resolve_engine(const EngineFlags& flags, int concurrency);

// kNotFound for a model's folder that is missing, unreadable or without config.json, with what it must be.
Status check_folders(const EngineOptions& options);

// Checks all about the models that needs no weights: the folders, their configurations, that they fit together, the
// memory, and with real weights the names and shapes of their tensors.
Result<engine::ResolvedModels> check_models(const EngineOptions& options);

// Prints the notes, loads the models with progress on the terminal, and prints the engine's warnings, also later ones
// unless setup.options.on_warning takes them. console and device, which gets the device's failure, must outlive the
// engine; call device->leave() before its end.
Result<std::unique_ptr<Engine>> create_engine(const EngineSetup& setup, Console* console, DeviceFailure* device);

// The exit status for a failure of check_models or create_engine: options that the engine refuses are the user's to
// correct (kExitUsage), all else is a model that could not be loaded (kExitModel).
int creation_exit_status(const EngineSetup& setup, const Error& error);

}  // namespace volley::apps
