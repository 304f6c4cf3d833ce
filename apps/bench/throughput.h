// `volley bench` without --rounds: whole answers, at each concurrency by each engine and each verify policy in turn.
#pragma once

#include <volley/engine.h>

#include <span>

#include "apps/bench/report.h"
#include "apps/bench/subject.h"
#include "apps/console.h"
#include "apps/interrupt.h"
#include "apps/options.h"

namespace volley::apps {

// What --requests says, or a number that goes with the concurrency.
int bench_requests(const BenchCommand& command, int concurrency);

// All measurements of these engines, which take turns if they are several, so that what else the machine does meets all
// of them; into `report` and onto stdout. Errors name a request of --input or a policy that cannot be.
Status measure_throughput(std::span<BenchSubject> subjects, const BenchCommand& command, InterruptWatch* interrupt,
                          Console* console, BenchReport* report);

}  // namespace volley::apps
