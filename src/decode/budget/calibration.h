// The probability that a drafted token is accepted, given the drafter's confidence. Outcomes are counted by position
// and confidence, with fading weights, and turned into a table by a hierarchy of models. Without outcomes the drafter
// is assumed to be right. Next, its log odds are off by one number; then each band of confidence has its own rate; then
// each band at each position. Each level is weighted by the number of its outcomes. Along confidence the table never
// falls.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ops/acceptance/survival.h"

namespace volley::decode {

class Calibrator {
 public:
  Calibrator();

  // A token at `position` (0: the first drafted) whose predecessors were all accepted was verified. log_odds: of the
  // drafter's confidence.
  void observe(int32_t position, float log_odds, bool accepted);
  // Call once a round, after its outcomes: recomputes a part of the table (all of it every kPositions rounds: on a
  // small model a whole one would cost as much as a layer). Older counts fade in rounds that drafted.
  void end_round(bool drafted);

  const ops::SurvivalTable& table() const { return table_; }

 private:
  using Table = ops::SurvivalTable;
  struct Count {
    float accepted = 0, seen = 0;
  };
  using Bands = std::array<Count, Table::kBands>;

  void fit_offset();
  void fit_bands();
  void fit_position(int32_t position);

  std::array<Bands, Table::kPositions> counts_;
  Bands all_;  // positions together
  double offset_ = 0;
  std::array<double, Table::kBands> band_rates_;
  int32_t next_ = 0;  // position to fit
  Table table_;
};

// Changes `values` as little as possible (in weighted squares) so that they never fall: pool adjacent violators.
void make_rising(std::span<double> values, std::span<const double> weights);

}  // namespace volley::decode
