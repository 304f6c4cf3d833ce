// The probability that a drafted token is accepted, given that those before it were. It depends on the token's place in
// the block and the drafter's confidence, by a table calibrated from outcomes. A token survives when it and all before
// it are accepted; the verify budget goes to the tokens most likely to survive.
//
// Plain arithmetic, the same source for CPU and GPU. The host fits the table (decode/budget), ops/step looks things up
// while a round runs. Nothing here touches a request's text.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace volley::ops {

struct SurvivalTable {
  static constexpr int32_t kPositions = 16;  // positions of a block's drafted tokens; later ones use the last
  static constexpr int32_t kBands = 32;      // bands of confidence: band b is log-odds of kLowest + b * kWidth
  static constexpr float kLowest = -8.0f, kWidth = 0.5f;
  float log_odds[kPositions][kBands] = {};  // log-odds of acceptance, given that the tokens before were accepted
};

VOLLEY_HOST_DEVICE inline float log_odds(float probability) {
  constexpr float kLeast = 1e-4f;
  const float p = probability > kLeast ? (probability < 1 - kLeast ? probability : 1 - kLeast) : kLeast;
  return logf(p / (1 - p));
}

// Chance of acceptance of the drafted token at `position` (0: the first). `shift`: the request's own, in log-odds.
// Between two bands the table is interpolated, so where the table rises, a higher confidence never gives a lower
// chance.
VOLLEY_HOST_DEVICE inline float acceptance_chance(const SurvivalTable& table, int32_t position, float confidence,
                                                  float shift) {
  const float place = (log_odds(confidence) - SurvivalTable::kLowest) / SurvivalTable::kWidth;
  const float top = SurvivalTable::kBands - 1;
  const float at = place > 0 ? (place < top ? place : top) : 0;
  const int32_t band = at < top ? static_cast<int32_t>(at) : SurvivalTable::kBands - 2;
  const float* row = table.log_odds[position < SurvivalTable::kPositions ? position : SurvivalTable::kPositions - 1];
  const float between = at - static_cast<float>(band);
  const float odds = row[band] + (row[band + 1] - row[band]) * between + shift;
  return 1.0f / (1.0f + expf(-odds));
}

}  // namespace volley::ops
