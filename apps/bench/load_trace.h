// `volley bench --rounds N --concurrency-schedule A,B,… --trace FILE`: loads that follow one another, and what the
// engine did meanwhile: how fast the policy follows.
#pragma once

#include <volley/engine.h>

#include "apps/cli/options.h"
#include "apps/console.h"
#include "apps/generate/ordered_output.h"
#include "apps/interrupt.h"

namespace volley::apps {

// Load i has --concurrency-schedule's requests number i, with --simulate-acceptance number i modulo their number; the
// requests of the load before are cancelled. Each line of the file is what happened between two looks at the counters,
// mostly one step: load, running requests, step (target passes until then), steps, draft and rows (means of a step),
// tokens, seconds, plain, probes. Errors: of writing, and of requests that ended too early.
Status trace_loads(Engine& engine, const BenchCommand& command, InterruptWatch* interrupt, Console* console,
                   OrderedOutput* output);

}  // namespace volley::apps
