// The requests that a measurement runs.
#pragma once

#include <volley/engine.h>

#include <vector>

#include "apps/cli/options.h"

namespace volley::apps {

// With --input, its first `count` requests, repeated if it has fewer. Otherwise random prompts that depend on
// --prompt-seed, the vocabulary and the index alone, and whose answers ignore the end of sequence. Greedy without
// --temperature; with it, request i has seed i. kInvalidArgument names the wrong line.
Result<std::vector<GenerateRequest>> make_workload(const Engine& engine, const BenchCommand& command, int count);

// `count` random prompts as above, whose answers go on as long as they may. `simulation`: their acceptance, or null.
std::vector<GenerateRequest> rounds_workload(const Engine& engine, const BenchCommand& command,
                                             const Simulation* simulation, int count);

}  // namespace volley::apps
