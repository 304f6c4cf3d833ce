#include "decode/budget/mixed_steps.h"

#include <algorithm>
#include <cmath>

namespace volley::decode {
namespace {

constexpr double squared(double x) {
  return x * x;
}

// Before anything was seen: a typical step holds so many rows of a prompt, and a row costs twice as much after so many
// positions. Both are on the careful side of the machines that were measured; a few steps mend them.
constexpr double kFirstRows = 256;
constexpr double kFirstPositions = 8192;
constexpr double kFirstBase = 0.2;  // of a typical step

// Variances of logarithms: what is unknown at first, and what wanders in a step. A base that is not predicted changes
// with every request that comes or goes; what a position costs beside a row, with the machine alone.
constexpr double kPriceSpread = squared(1.0), kBaseFactorSpread = squared(0.1);
constexpr double kBaseDrift = squared(0.1), kFactorDrift = squared(0.01), kRowDrift = squared(0.02),
                 kPositionDrift = squared(0.003);
constexpr double kStepNoise = squared(0.05);  // of a step's time, for no reason
constexpr double kStepOutlier = 3;            // standard deviations that one step may be off
// By how much one step makes costs less at most, of logarithms: few rows cost a GPU less than many would in their
// place, and a chunk that is sized by them must not be several times too long.
constexpr double kMostChange = 0.4;
// The most that was seen fades by a tenth with each step that has less.
constexpr double kSeenLeft = 0.9;

}  // namespace

MixedSteps::MixedSteps(double typical_s, bool predicted)
    : predicted_(predicted), drift_({predicted ? kFactorDrift : kBaseDrift, kRowDrift, kPositionDrift}) {
  const double row = typical_s / kFirstRows;
  costs_ = {predicted ? 1 : kFirstBase * typical_s, row, row / kFirstPositions};
  for (int i = 0; i < kCosts; ++i) covariance_[i][i] = kPriceSpread;
  if (predicted) covariance_[kBase][kBase] = kBaseFactorSpread;
}

MixedSteps::Expected MixedSteps::expect(const Step& step) const {
  Expected out;
  if (step.decode_rows > 0) out.parts[kBase] = base(step.decoding_s);
  out.parts[kRow] = costs_[kRow] * step.prompt_rows;
  out.parts[kPosition] = costs_[kPosition] * step.prompt_positions;
  out.seconds = out.parts[kBase] + out.parts[kRow] + out.parts[kPosition];
  if (out.seconds <= 0) return out;  // an empty one
  for (double& part : out.parts) part /= out.seconds;
  out.variance = kStepNoise;
  for (int i = 0; i < kCosts; ++i) {
    for (int j = 0; j < kCosts; ++j) out.known[i] += covariance_[i][j] * out.parts[j];
    out.variance += out.parts[i] * out.known[i];
  }
  return out;
}

double MixedSteps::at_least(const Step& step) const {
  if (!priced()) return 0;
  Expected expected = expect(step);
  for (int i = 0; i < kCosts; ++i) expected.variance += 2 * squared(expected.parts[i]) * drift_[i];  // until it runs
  double sure = 1;
  if (predicted_ && step.decoding_s > decoding_s_) {
    sure -= expected.parts[kBase] * (1 - decoding_s_ / step.decoding_s);
  } else if (!predicted_ && step.decode_rows < base_rows_) {
    // When requests end together, the base falls faster than it is learned.
    sure -= expected.parts[kBase] * (1 - static_cast<double>(step.decode_rows) / base_rows_);
  }
  if (step.prompt_rows > prompt_rows_) {
    // The weights are read once for few rows or many, so what few took is no price of a row.
    sure -= (expected.parts[kRow] + expected.parts[kPosition]) * (1 - prompt_rows_ / step.prompt_rows);
  }
  return sure * expected.seconds * std::exp(-2 * std::sqrt(expected.variance));
}

void MixedSteps::observe(const Step& step, double seconds) {
  if (!priced() || seconds <= 0) return;
  for (int i = 0; i < kCosts; ++i) {
    if (covariance_[i][i] < kPriceSpread) covariance_[i][i] += drift_[i];
  }
  const auto [expected, parts, known, variance] = expect(step);
  if (expected <= 0) return;
  if (step.decode_rows > 0) base_rows_ = step.decode_rows;
  if (step.prompt_rows > 0) prompt_rows_ = std::max<double>(step.prompt_rows, kSeenLeft * prompt_rows_);
  if (step.decoding_s > 0) decoding_s_ = std::max(step.decoding_s, kSeenLeft * decoding_s_);
  const double most = kStepOutlier * std::sqrt(variance);
  double error = std::clamp(std::log(seconds / expected), -most, most);
  const double change =
      std::abs(error) * std::max({std::abs(known[0]), std::abs(known[1]), std::abs(known[2])}) / variance;
  const bool all = change <= kMostChange;
  if (!all && error < 0) error *= kMostChange / change;
  for (int i = 0; i < kCosts; ++i) costs_[i] *= std::exp(known[i] / variance * error);
  if (!all) return;  // there is more to learn of this
  for (int i = 0; i < kCosts; ++i) {
    for (int j = 0; j < kCosts; ++j) covariance_[i][j] -= known[i] * known[j] / variance;
  }
}

}  // namespace volley::decode
