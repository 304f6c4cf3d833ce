// How likely a drafted token is accepted, given what the drafter said: counts of outcomes by position and confidence,
// which old ones leave, made into a table by a hierarchy of guesses. Nothing known: the drafter is right. Then its log
// odds are off by one number; then each band of confidence has its own rate; then each band at each position. Each
// level is believed by how much was counted for it. Along confidence the table never falls.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ops/acceptance/survival.h"

namespace volley::spec {

class Calibrator {
 public:
  Calibrator();

  // A token at `position` (0: the first drafted) whose predecessors were all accepted was verified. log_odds: of the
  // drafter's confidence.
  void observe(int32_t position, float log_odds, bool accepted);
  // Once a round, after its outcomes: a part of the table is made anew (all of it every kPositions rounds: on a small
  // model a whole one would cost as much as a layer). Older counts fade in rounds that drafted.
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

}  // namespace volley::spec
