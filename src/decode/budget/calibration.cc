#include "decode/budget/calibration.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/math.h"

namespace volley::decode {
namespace {

using ops::SurvivalTable;

constexpr float kFade = 0.998f;    // factor on the counts each round: half is gone after 346 rounds
constexpr double kPriorBand = 16;  // a band with this many outcomes weighs as much as the level above
constexpr double kPriorPosition = 16;
constexpr double kPriorOffset = 4;  // weight of the assumption that the drafter's log odds are right
constexpr double kMostOffset = 4, kMostStep = 0.5;

double knot(int32_t band) {
  return SurvivalTable::kLowest + band * static_cast<double>(SurvivalTable::kWidth);
}

}  // namespace

void make_rising(std::span<double> values, std::span<const double> weights) {
  VOLLEY_CHECK_EQ(values.size(), weights.size());
  struct Pool {
    double sum, weight;
    size_t end;
    double mean() const { return sum / weight; }
  };
  std::vector<Pool> pools;
  pools.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    pools.push_back({values[i] * weights[i], weights[i], i + 1});
    while (pools.size() > 1 && pools[pools.size() - 2].mean() > pools.back().mean()) {
      const Pool last = pools.back();
      pools.pop_back();
      pools.back() = {pools.back().sum + last.sum, pools.back().weight + last.weight, last.end};
    }
  }
  size_t i = 0;
  for (const Pool& pool : pools) {
    for (; i < pool.end; ++i) values[i] = pool.mean();
  }
}

Calibrator::Calibrator() {
  fit_bands();
  for (int32_t i = 0; i < Table::kPositions; ++i) fit_position(i);
}

// Both neighbouring bands get counts, because the table interpolates between them.
void Calibrator::observe(int32_t position, float log_odds, bool accepted) {
  const float at = std::clamp((log_odds - Table::kLowest) / Table::kWidth, 0.0f, Table::kBands - 1.0f);
  const int32_t band = std::min(static_cast<int32_t>(at), Table::kBands - 2);
  const float above = at - static_cast<float>(band);
  for (Bands* bands : {&counts_[std::min(position, Table::kPositions - 1)], &all_}) {
    (*bands)[band].seen += 1 - above;
    (*bands)[band + 1].seen += above;
    if (!accepted) continue;
    (*bands)[band].accepted += 1 - above;
    (*bands)[band + 1].accepted += above;
  }
}

void Calibrator::end_round(bool drafted) {
  fit_offset();
  fit_bands();
  fit_position(next_);
  next_ = (next_ + 1) % Table::kPositions;
  if (!drafted) return;
  const auto fade = [](Bands& bands) {
    for (Count& count : bands) count = {count.accepted * kFade, count.seen * kFade};
  };
  fade(all_);
  for (Bands& bands : counts_) fade(bands);
}

// One Newton step of a logistic regression with a known slope.
void Calibrator::fit_offset() {
  double gradient = -kPriorOffset * offset_, curvature = kPriorOffset;
  for (int32_t b = 0; b < Table::kBands; ++b) {
    if (all_[b].seen == 0) continue;
    const double p = sigmoid(knot(b) + offset_);
    gradient += all_[b].accepted - all_[b].seen * p;
    curvature += all_[b].seen * p * (1 - p);
  }
  const double step = std::clamp(gradient / curvature, -kMostStep, kMostStep);
  offset_ = std::clamp(offset_ + step, -kMostOffset, kMostOffset);
}

void Calibrator::fit_bands() {
  for (int32_t b = 0; b < Table::kBands; ++b) {
    const double guess = sigmoid(knot(b) + offset_);
    band_rates_[b] = (all_[b].accepted + kPriorBand * guess) / (all_[b].seen + kPriorBand);
  }
}

void Calibrator::fit_position(int32_t position) {
  std::array<double, Table::kBands> rates, weights;
  for (int32_t b = 0; b < Table::kBands; ++b) {
    const Count& count = counts_[position][b];
    weights[b] = count.seen + kPriorPosition;
    rates[b] = (count.accepted + kPriorPosition * band_rates_[b]) / weights[b];
  }
  make_rising(rates, weights);
  for (int32_t b = 0; b < Table::kBands; ++b) {
    table_.log_odds[position][b] = static_cast<float>(std::log(rates[b] / (1 - rates[b])));
  }
}

}  // namespace volley::decode
