// Learns the probability that a drafted token is accepted, given the drafter's confidence. Outcomes are counted by
// position and confidence, with fading weights. A hierarchy of models turns the counts into a table. Level 0 trusts the
// drafter. Level 1 shifts its log odds by one number, level 2 has a rate for each band of confidence, level 3 one for
// each band at each position. The number of a level's outcomes is its weight. The table never falls along confidence.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ops/acceptance/survival.h"

namespace volley::decode {

class Calibrator {
 public:
  Calibrator();

  // Counts a verified token at `position` (0: the first drafted) whose predecessors were all accepted. log_odds: those
  // of the drafter's confidence.
  void observe(int32_t position, float log_odds, bool accepted);
  // Recomputes a part of the table. Call it once a round, after its outcomes. The whole table takes kPositions rounds,
  // because on a small model recomputing all of it would cost as much as a layer. Counts fade only in rounds that
  // drafted.
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
  Bands all_;  // all positions together
  double offset_ = 0;
  std::array<double, Table::kBands> band_rates_;
  int32_t next_ = 0;  // the next position to fit
  Table table_;
};

// Changes `values` as little as possible (in weighted squares) so that they never fall, by pooling adjacent violators.
void make_rising(std::span<double> values, std::span<const double> weights);

}  // namespace volley::decode
