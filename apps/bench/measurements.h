// What `volley bench` measures.
#pragma once

#include <volley/engine.h>

#include <span>

#include "apps/bench/report.h"
#include "apps/bench/rounds_report.h"
#include "apps/bench/subject.h"
#include "apps/cli/options.h"
#include "apps/console.h"
#include "apps/interrupt.h"

namespace volley::apps {

// Without --rounds: what --requests says, or a number that goes with the concurrency.
int bench_requests(const BenchCommand& command, int concurrency);

// Without --rounds: whole answers, at each concurrency by each engine and each verify policy in turn. All measurements
// of these engines, which take turns if they are several, so that what else the machine does meets all of them; into
// `report` and onto stdout. Errors name a request of --input or a policy that cannot be.
Status measure_throughput(std::span<BenchSubject> subjects, const BenchCommand& command, InterruptWatch* interrupt,
                          Console* console, BenchReport* report);

// With --rounds: tokens of prompt and answer that the engine must hold: whole blocks at every step.
int64_t rounds_model_len(const BenchCommand& command, int block_size);

// With --rounds: verify policies against each other. At each load every policy of every engine in turn gets the same
// requests and a fixed number of steps while all of them decode; with --trace, loads follow one another. All
// measurements of these engines, of which one at most drafts, into `report` and onto stdout. Errors name the request
// that ended too early.
Status measure_rounds(std::span<BenchSubject> subjects, const BenchCommand& command, InterruptWatch* interrupt,
                      Console* console, RoundsReport* report);

}  // namespace volley::apps
