// What `volley bench` found, as a table for people and as JSON.
#pragma once

#include <volley/engine.h>

#include <optional>
#include <string>
#include <vector>

#include "apps/bench/machine_probe.h"
#include "apps/bench/step_floor.h"
#include "apps/client/statistics.h"

namespace volley::apps {

// Milliseconds of one target pass by phase, averaged over the measurement.
struct PhaseTimes {
  double draft = 0, target = 0, choose = 0, commit = 0, host = 0;
};

struct BenchRow {
  Speculation speculation = Speculation::kOff;
  int block_size = 1;  // as the engine resolved it
  int concurrency = 1;
  RunSummary summary;
  int64_t target_passes = 0;
  PhaseTimes phases;
  MachineSpeed speed;  // measured right before and right after: the better of both
  StepFloor floor;
  // While all requests decoded at once: the time from a step to the next, the tokens that such steps make a second (of
  // simulated acceptance, with the expected tokens of a step), and the device's share of that time without work. 0:
  // there was no such time.
  double full_step_ms = 0, full_tok_s = 0, idle_share = 0;
  double peak_flops = 0;            // of the arithmetic that the engine uses
  std::optional<bool> same_tokens;  // as the first row of the same prompts; empty: acceptance was simulated

  double floor_ms() const;  // the longer of reading and computing
};

struct BenchReport {
  std::string model, draft;                  // folder names; draft may be empty
  EngineInfo engine;                         // of the last engine
  int prompt_tokens = 0, output_tokens = 0;  // 0: from a file
  std::optional<double> simulated_acceptance;
  std::vector<BenchRow> rows;
};

std::string table_header();  // two lines
std::string table_row(const BenchRow& row);
// Below the table: what the columns mean, whether all rows gave the same tokens.
std::string table_footer(const BenchReport& report);
std::string report_json(const BenchReport& report);  // one line

}  // namespace volley::apps
