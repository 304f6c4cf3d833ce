#include "engine/run/prompt_pace.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace volley::engine {
namespace {

constexpr double square(double x) {
  return x * x;
}

// Before anything was seen: a step of the target's length holds so many rows of a prompt, and a row costs twice as much
// after so many positions. Both are on the careful side of the machines that were measured; a few steps mend them.
constexpr double kFirstRows = 256;
constexpr double kFirstPositions = 8192;
constexpr double kFirstBase = 0.2;  // of the target

// However long the others' part of a step is, so much of the target is the prompts'.
constexpr double kLeastShare = 0.2;
// So much of it is the others' with their drafts, even where prompts could use it. No more, as drafted tokens can wait
// for later steps, and what a new request waits for cannot. With 0.35, 128 requests with prompts of 1,024 tokens on an
// H200 waited 1.8 times as long for their first token, and tokens a second in all were no more.
constexpr double kDecodingShare = 0.15;

// Variances of logarithms: what is unknown at first, and what wanders in a step. A base that is not predicted changes
// with every request that comes or goes; what a position costs beside a row, with the machine alone.
constexpr double kFirstSpread = square(1.0), kFirstFactorSpread = square(0.1);
constexpr double kBaseDrift = square(0.1), kFactorDrift = square(0.01), kRowDrift = square(0.02),
                 kPositionDrift = square(0.003);
constexpr double kNoise = square(0.05);  // of a step's time, for no reason
constexpr double kOutlier = 3;           // standard deviations that one step may be off
// By how much one step makes costs less at most, of logarithms: few rows cost a GPU less than many would in their
// place, and a chunk that is sized by them must not be several times too long.
constexpr double kMostChange = 0.4;
// The most that was seen fades by a tenth with each step that has less.
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
  if (step.seconds <= 0) return step;  // an empty one
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
  for (int i = 0; i < kCosts; ++i) step.variance += 2 * square(step.parts[i]) * drift_[i];  // until it runs
  double sure = 1;
  if (predicted_ && decoding_s > decoding_s_) {
    sure -= step.parts[kBase] * (1 - decoding_s_ / decoding_s);
  } else if (!predicted_ && plan.decode_rows < base_rows_) {
    // When requests end together, the base falls faster than it is learned.
    sure -= step.parts[kBase] * (1 - static_cast<double>(plan.decode_rows) / base_rows_);
  }
  if (const int32_t rows = prompt_rows_of(plan); rows > prompt_rows_) {
    // The weights are read once for few rows or many, so what few took is no price of a row.
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
  if (!all) return;  // there is more to learn of this
  for (int i = 0; i < kCosts; ++i) {
    for (int j = 0; j < kCosts; ++j) covariance_[i][j] -= known[i] * known[j] / variance;
  }
}

}  // namespace volley::engine
