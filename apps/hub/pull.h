// Models of the Hugging Face hub: `volley pull`, and what a command needs that is not in the cache yet.
#pragma once

#include <volley/result.h>

#include <string>
#include <vector>

#include "apps/cli/model_location.h"
#include "apps/cli/options.h"
#include "apps/console.h"

namespace volley::apps {

// Picks the files that make a repository's model, in the order in which they are fetched: the one that a model is
// recognised by comes last. kNotFound: it has none that Volley reads; the message names its GGUF files.
Result<std::vector<std::string>> choose_files(const std::vector<std::string>& files, const HubModel& model);

// Fetches `text`, a HubModel, and returns its place in the cache. What is there already is kept. Errors as Hub's, and
// kResourceExhausted: the disk has too little room.
Result<std::string> pull_model(const std::string& text, Console* console);

// Fetches the models that the flags name by names of the hub and that are not in the cache, unless that is turned off:
// then, and where a folder has the name's first part, resolve_engine()'s callers say what is missing.
Status pull_missing(const EngineFlags& flags, Console* console);

// The process's exit status (exit_codes.h).
int run_pull(const PullCommand& command, Console* console);

}  // namespace volley::apps
