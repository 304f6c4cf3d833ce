// The results of `volley bench --rounds`, as a table for people and as JSON.
#pragma once

#include <volley/engine.h>

#include <span>
#include <string>
#include <vector>

#include "apps/bench/stats_window.h"

namespace volley::apps {

struct RoundsRun {
  std::string load;  // as in --simulate-acceptance, or "real"; empty: an engine without a drafter
  int concurrency = 1;
  std::string mode;  // a --verify policy, or "off"
  int repeat = 0;    // from 0
  StatsWindow window;
  double wall_s = 0;  // wall time between the snapshots
};

struct RoundsReport {
  std::string model, draft;  // folder names
  EngineInfo engine;         // the last engine's
  int prompt_tokens = 0, rounds = 0, warm_rounds = 0;
  double confidence_odds = 1;
  std::vector<RoundsRun> runs;
};

std::string rounds_header();
// A line for each mode of one load and concurrency: its run with the median tokens a second.
std::string rounds_lines(std::span<const RoundsRun> runs);
// Below the table: `auto` against the best other mode, and the meaning of the columns.
std::string rounds_footer(const RoundsReport& report);
std::string rounds_json(const RoundsReport& report);  // one line

}  // namespace volley::apps
