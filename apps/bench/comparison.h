// Runs of several modes at the same loads: the policy against the best mode that somebody who knew could have chosen
// by hand. Arithmetic only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace volley::apps {

struct MeasuredRun {
  std::string load;  // what the requests are like; empty: as every load (plain decoding knows no acceptance)
  int concurrency = 1;
  std::string mode;  // "auto", "full", "7", "off"
  double tok_s = 0;
};

struct ModeMedian {
  std::string mode;
  double tok_s = 0, lowest = 0, highest = 0;  // over the runs
};

// A load at a concurrency.
struct Comparison {
  std::string load;
  int concurrency = 1;
  std::vector<ModeMedian> modes;  // in order of their first run
  double auto_tok_s = 0;
  std::string best;  // of the other modes
  double best_tok_s = 0;

  double ratio() const { return best_tok_s > 0 ? auto_tok_s / best_tok_s : 0; }
};

// Compares each load and concurrency that has a run of "auto" and one of another mode, in order of their first runs.
std::vector<Comparison> compare_with_auto(std::span<const MeasuredRun> runs);

// The geometric mean of the ratios; 0 for none.
double geometric_mean(std::span<const Comparison> comparisons);

// A table of all of them, and below it the lowest ratio and the geometric mean. Empty for none.
std::string comparison_table(std::span<const Comparison> comparisons);

}  // namespace volley::apps
