// Compares the policy with the best mode that could have been chosen by hand, at the same loads. Arithmetic only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace volley::apps {

struct MeasuredRun {
  std::string load;  // kind of requests; empty: any (plain decoding has no acceptance)
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
  std::vector<ModeMedian> modes;  // in order of first runs
  double auto_tok_s = 0;
  std::string best;  // the best of the other modes
  double best_tok_s = 0;

  double ratio() const { return best_tok_s > 0 ? auto_tok_s / best_tok_s : 0; }
};

// Compares each load and concurrency with runs of "auto" and of another mode, in order of first runs.
std::vector<Comparison> compare_with_auto(std::span<const MeasuredRun> runs);

// The ratios' geometric mean; 0 without comparisons.
double geometric_mean(std::span<const Comparison> comparisons);

// A table, and below it the lowest ratio and the geometric mean. Empty without comparisons.
std::string comparison_table(std::span<const Comparison> comparisons);

}  // namespace volley::apps
