#include "engine/run/prompt_pace.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace volley::engine {
namespace {

constexpr double square(double x) {
  return x * x;
}

// First guesses: a step of the target's length holds this many rows of a prompt, and a row costs twice as much after
// this many positions. Both are careful for the measured machines; a few steps correct them.
constexpr double kFirstRows = 256;
constexpr double kFirstPositions = 8192;
constexpr double kFirstBase = 0.2;  // share of the target time

// Prompts get at least this share of the target, however long the decoding part of a step is.
constexpr double kLeastShare = 0.2;
// Decoding requests get this share of the target for their drafts, even if prompts could use it. It is small because
// drafted tokens can wait for later steps, unlike a new request's first token. With 0.35, 128 requests with prompts of
// 1,024 tokens on an H200 waited 1.8 times as long for their first token, and total tokens a second did not rise.
constexpr double kDecodingShare = 0.15;

// Variances of logarithms: at first, and added a step. An unpredicted base changes with every request that comes or
// goes; the relative cost of a position only changes with the machine.
constexpr double kFirstSpread = square(1.0), kFirstFactorSpread = square(0.1);
constexpr double kBaseDrift = square(0.1), kFactorDrift = square(0.01), kRowDrift = square(0.02),
                 kPositionDrift = square(0.003);
constexpr double kNoise = square(0.05);  // noise of a step's time
constexpr double kOutlier = 3;           // a step may be off by this many standard deviations
// The most that one step lowers a cost, as a logarithm. A few rows cost a GPU less each than many would, and a chunk
// sized by their cost could be several times too long.
constexpr double kMostChange = 0.4;
// The largest size seen fades by a tenth with each smaller step.
constexpr double kSeenLeft = 0.9;

int32_t prompt_rows_of(const sched::StepPlan& plan) {
  int32_t rows = 0;
  for (const sched::PlannedSegment& segment : plan.segments) rows += segment.decodes ? 0 : segment.known;
  return rows;
}

}  // namespace

PromptPace::PromptPace(double target_seconds, bool predicted)
    : target_(target_seconds),
      predicted_(predicted),
      drift_({predicted ? kFactorDrift : kBaseDrift, kRowDrift, kPositionDrift}) {
  const double row = target_ / kFirstRows;
  costs_ = {predicted ? 1 : kFirstBase * target_, row, row / kFirstPositions};
  for (int i = 0; i < kCosts; ++i) covariance_[i][i] = kFirstSpread;
  if (predicted) covariance_[kBase][kBase] = kFirstFactorSpread;
}

sched::PromptBudget PromptPace::next(double decoding_s) const {
  if (target_ <= 0) return {};
  return {std::max(target_ - base(decoding_s), kLeastShare * target_), costs_[kRow], costs_[kPosition]};
}

double PromptPace::for_decoding(double prompts_s) const {
  if (target_ <= 0) return std::numeric_limits<double>::infinity();
  return std::max(target_ - prompts_s, kDecodingShare * target_) / (predicted_ ? costs_[kBase] : 1);
}

PromptPace::Expected PromptPace::expect(const sched::StepPlan& plan, double decoding_s) const {
  Expected step;
  if (plan.decode_rows > 0) step.parts[kBase] = base(decoding_s);
  for (const sched::PlannedSegment& segment : plan.segments) {
    if (segment.decodes) continue;
    step.parts[kRow] += costs_[kRow] * segment.known;
    step.parts[kPosition] += sched::PromptBudget{.position = costs_[kPosition]}.cost(segment.start, segment.known);
  }
  step.seconds = step.parts[kBase] + step.parts[kRow] + step.parts[kPosition];
  if (step.seconds <= 0) return step;  // an empty step
  for (double& part : step.parts) part /= step.seconds;
  step.variance = kNoise;
  for (int i = 0; i < kCosts; ++i) {
    for (int j = 0; j < kCosts; ++j) step.known[i] += covariance_[i][j] * step.parts[j];
    step.variance += step.parts[i] * step.known[i];
  }
  return step;
}

double PromptPace::at_least(const sched::StepPlan& plan, double decoding_s) const {
  if (target_ <= 0) return 0;
  Expected step = expect(plan, decoding_s);
  // costs drift until the step runs
  for (int i = 0; i < kCosts; ++i) step.variance += 2 * square(step.parts[i]) * drift_[i];
  double sure = 1;
  if (predicted_ && decoding_s > decoding_s_) {
    sure -= step.parts[kBase] * (1 - decoding_s_ / decoding_s);
  } else if (!predicted_ && plan.decode_rows < base_rows_) {
    // When requests end together, the base falls faster than it is learned.
    sure -= step.parts[kBase] * (1 - static_cast<double>(plan.decode_rows) / base_rows_);
  }
  if (const int32_t rows = prompt_rows_of(plan); rows > prompt_rows_) {
    // One read of the weights serves few rows or many, so the time of few rows says little about the price of a row.
    sure -= (step.parts[kRow] + step.parts[kPosition]) * (1 - prompt_rows_ / rows);
  }
  return sure * step.seconds * std::exp(-2 * std::sqrt(step.variance));
}

void PromptPace::observe(const sched::StepPlan& plan, double seconds, double decoding_s) {
  if (target_ <= 0 || seconds <= 0) return;
  for (int i = 0; i < kCosts; ++i) {
    if (covariance_[i][i] < kFirstSpread) covariance_[i][i] += drift_[i];
  }
  const auto [expected, parts, known, variance] = expect(plan, decoding_s);
  if (expected <= 0) return;
  if (plan.decode_rows > 0) base_rows_ = plan.decode_rows;
  if (const int32_t rows = prompt_rows_of(plan); rows > 0) {
    prompt_rows_ = std::max<double>(rows, kSeenLeft * prompt_rows_);
  }
  if (decoding_s > 0) decoding_s_ = std::max(decoding_s, kSeenLeft * decoding_s_);
  const double most = kOutlier * std::sqrt(variance);
  double error = std::clamp(std::log(seconds / expected), -most, most);
  const double change =
      std::abs(error) * std::max({std::abs(known[0]), std::abs(known[1]), std::abs(known[2])}) / variance;
  const bool all = change <= kMostChange;
  if (!all && error < 0) error *= kMostChange / change;
  for (int i = 0; i < kCosts; ++i) costs_[i] *= std::exp(known[i] / variance * error);
  if (!all) return;  // the step was not learned in full, so the uncertainty stays
  for (int i = 0; i < kCosts; ++i) {
    for (int j = 0; j < kCosts; ++j) covariance_[i][j] -= known[i] * known[j] / variance;
  }
}

}  // namespace volley::engine
