// What `volley bench` found, as a table for people and as JSON.
#pragma once

#include <volley/engine.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/stats_window.h"
#include "apps/bench/step_floor.h"
#include "apps/client/statistics.h"
#include "device/probe.h"

namespace volley::apps {

// Milliseconds of one target pass by phase, averaged over the measurement.
struct PhaseTimes {
  double draft = 0, target = 0, choose = 0, commit = 0, host = 0;
};

struct BenchRow {
  Speculation speculation = Speculation::kOff;
  int block_size = 1;  // as the engine resolved it
  std::string verify;  // the policy: "auto", "full", "7"; "off" without speculation
  int concurrency = 1;
  int repeat = 0;  // from 0
  RunSummary summary;
  StatsWindow whole;  // of the run
  StatsWindow full;   // of it, while all requests decoded at once; no steps: there was no such time
  PhaseTimes phases;
  MachineSpeed speed;  // measured right before and right after: the better of both
  StepFloor floor;
  double peak_flops = 0;            // of the arithmetic that the engine uses
  std::optional<bool> same_tokens;  // as the first row of the same prompts; empty: acceptance was simulated

  // Distinct experts that a step touched: while every request decoded, or, without such a time, in all.
  double experts() const { return full.steps > 0 ? full.experts : whole.experts; }
  double floor_ms() const;  // the longer of reading and computing
};

struct BenchReport {
  std::string model, draft;                  // folder names; draft may be empty
  EngineInfo engine;                         // of the last engine
  std::string prompts;                       // the file that they are from; empty: random ones
  int prompt_tokens = 0, output_tokens = 0;  // 0: from a file
  std::string simulated_acceptance;          // as it was given; empty: none
  std::vector<BenchRow> rows;
  std::map<int64_t, std::vector<TokenId>> first_tokens;  // by request: what its first run gave
};

std::string table_header();  // two lines
std::string table_row(const BenchRow& row);
// Below the table: where the time of its rows went, what the columns mean, whether all rows gave the same tokens, and
// how the policies compare.
std::string table_footer(const BenchReport& report);
std::string report_json(const BenchReport& report);  // one line

}  // namespace volley::apps
