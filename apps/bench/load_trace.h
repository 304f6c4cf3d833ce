// `volley bench --rounds N --concurrency-schedule A,B,… --trace FILE` runs loads one after the other and records the
// engine's work, to see how fast the policy follows.
#pragma once

#include <volley/engine.h>

#include "apps/cli/options.h"
#include "apps/console.h"
#include "apps/generate/ordered_output.h"
#include "apps/interrupt.h"

namespace volley::apps {

// Load i has as many requests as entry i of --concurrency-schedule, with entry i (modulo their number) of
// --simulate-acceptance; the requests of the load before are cancelled. A line of the file covers the time between two
// looks at the counters, mostly one step: load, running requests, step (target passes until then), steps, draft and
// rows (means of a step), tokens, seconds, plain, probes. Errors: the file cannot be written, or a request ended too
// early.
Status trace_loads(Engine& engine, const BenchCommand& command, InterruptWatch* interrupt, Console* console,
                   OrderedOutput* output);

}  // namespace volley::apps
