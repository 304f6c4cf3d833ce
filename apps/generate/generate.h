// The parts of `volley generate`.
#pragma once

#include <optional>

#include "apps/cli/options.h"
#include "apps/client/statistics.h"
#include "apps/console.h"
#include "apps/generate/ordered_output.h"
#include "apps/interrupt.h"
#include "base/line_reader.h"

namespace volley::apps {

// The command's files, opened before the models are loaded: a wrong path should not cost minutes.
struct GenerateFiles {
  std::optional<LineReader> input;
  std::optional<OrderedOutput> output;  // set with an input; stdout by default
};
Result<GenerateFiles> open_files(const GenerateCommand& command);

// The two modes, with a loaded engine.
int generate_one(Engine& engine, const GenerateCommand& command, GenerateFiles* files, InterruptWatch* interrupt,
                 Console* console);
int generate_file(Engine& engine, const GenerateCommand& command, GenerateFiles* files, InterruptWatch* interrupt,
                  Console* console);

// Prints the statistics on stderr, with `json` also as the last line of stdout, and returns the exit status. `written`:
// the status of the output.
int finish_run(const RunSummary& summary, bool json, const Status& written, const InterruptWatch& interrupt,
               Console* console);

}  // namespace volley::apps
