// The measurements of `volley bench`.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <span>

#include "apps/bench/report.h"
#include "apps/bench/rounds_report.h"
#include "apps/cli/options.h"
#include "apps/console.h"
#include "apps/interrupt.h"
#include "decode/proposer_spec.h"
#include "families/family.h"

namespace volley::apps {

// An engine, and the facts of its models that a step's floor needs.
struct BenchSubject {
  Speculation speculation = Speculation::kOff;
  std::unique_ptr<Engine> engine;
  families::TargetConfig target;
  std::shared_ptr<const decode::ProposerSpec> draft;  // may be null; of two the first, which the floor counts

  bool drafts() const { return speculation == Speculation::kOn; }
};

// Without --rounds: the value of --requests, or a number that goes with the concurrency.
int bench_requests(const BenchCommand& command, int concurrency);

// Without --rounds: measures whole answers, at each concurrency by each engine and each verify policy in turn. Several
// engines take turns, so that other load on the machine meets all of them. Fills `report` and prints to stdout. Errors
// name a request of --input or an impossible policy.
Status measure_throughput(std::span<BenchSubject> subjects, const BenchCommand& command, InterruptWatch* interrupt,
                          Console* console, BenchReport* report);

// With --rounds: tokens of context that the engine must hold, with whole blocks at every step.
int64_t rounds_model_len(const BenchCommand& command, int block_size);

// With --rounds: compares verify policies. At each load every policy of every engine in turn gets the same requests and
// a fixed number of steps while all of them decode; with --trace, loads follow one another. At most one engine drafts.
// Fills `report` and prints to stdout. Errors name the request that ended too early.
Status measure_rounds(std::span<BenchSubject> subjects, const BenchCommand& command, InterruptWatch* interrupt,
                      Console* console, RoundsReport* report);

}  // namespace volley::apps
