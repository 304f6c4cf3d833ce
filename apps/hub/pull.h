// Downloads models of the Hugging Face hub: `volley pull`, and models that a command needs and the cache lacks.
#pragma once

#include <volley/result.h>

#include <string>
#include <vector>

#include "apps/cli/model_location.h"
#include "apps/cli/options.h"
#include "apps/console.h"

namespace volley::apps {

// Picks a repository's model files in download order; the file that identifies a model comes last. kNotFound: no file
// that Volley reads; the message names the GGUF files.
Result<std::vector<std::string>> choose_files(const std::vector<std::string>& files, const HubModel& model);

// Downloads the HubModel `text` and returns its place in the cache. Existing files are kept. Errors as Hub's, and
// kResourceExhausted: the disk has too little room.
Result<std::string> pull_model(const std::string& text, Console* console);

// Downloads the models that the flags name by hub names and the cache lacks, unless downloads are off. If they are, or
// if a folder has the name's first part, resolve_engine()'s callers report missing models.
Status pull_missing(const EngineFlags& flags, Console* console);

// The process's exit status (exit_codes.h).
int run_pull(const PullCommand& command, Console* console);

}  // namespace volley::apps
