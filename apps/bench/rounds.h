// `volley bench --rounds`: verify policies against each other. At each load every policy of every engine in turn gets
// the same requests and a fixed number of steps while all of them decode. With --trace: loads that follow one another.
#pragma once

#include <volley/engine.h>

#include <span>

#include "apps/bench/rounds_report.h"
#include "apps/bench/subject.h"
#include "apps/console.h"
#include "apps/interrupt.h"
#include "apps/options.h"

namespace volley::apps {

// Tokens of prompt and answer that the engine must hold: whole blocks at every step.
int64_t rounds_model_len(const BenchCommand& command, int block_size);

// All measurements of these engines, of which one at most drafts, into `report` and onto stdout. Errors name the
// request that ended too early.
Status measure_rounds(std::span<BenchSubject> subjects, const BenchCommand& command, InterruptWatch* interrupt,
                      Console* console, RoundsReport* report);

}  // namespace volley::apps
