// The results of `volley bench`, as a table for people and as JSON.
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

// Milliseconds of a target pass by phase, averaged over the measurement.
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
  StatsWindow whole;  // the whole run
  StatsWindow full;   // the part in which all requests decoded; no steps: there was none
  PhaseTimes phases;
  MachineSpeed speed;  // the better of the measurements right before and after
  StepFloor floor;
  double peak_flops = 0;            // FLOP/s of the engine's arithmetic
  std::optional<bool> same_tokens;  // equal to the first row of the same prompts; empty: acceptance was simulated

  // Distinct experts of a step while every request decoded, or of the whole run without such a time.
  double experts() const { return full.steps > 0 ? full.experts : whole.experts; }
  double floor_ms() const;  // the longer of reading and computing
};

struct BenchReport {
  std::string model, draft;                  // folder names; draft may be empty
  EngineInfo engine;                         // the last engine's
  std::string prompts;                       // file name; empty: random prompts
  int prompt_tokens = 0, output_tokens = 0;  // 0: prompts from a file
  std::string simulated_acceptance;          // as given; may be empty
  std::vector<BenchRow> rows;
  std::map<int64_t, std::vector<TokenId>> first_tokens;  // by request: the tokens of its first run
};

std::string table_header();  // two lines
std::string table_row(const BenchRow& row);
// Below the table: the phases of its rows' time, the meaning of the columns, whether all rows gave the same tokens, and
// the comparison of policies.
std::string table_footer(const BenchReport& report);
std::string report_json(const BenchReport& report);  // one line

}  // namespace volley::apps
