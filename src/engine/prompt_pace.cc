#include "engine/prompt_pace.h"

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
// Drafts may make the others' part no longer than this while prompts wait: drafted tokens can wait for later steps, and
// what a new request waits for cannot. With 0.35, 128 requests with prompts of 1,024 tokens on an H200 waited 1.8 times
// as long for their first token, and tokens a second in all were no more.
constexpr double kDecodingShare = 0.15;

// Variances of logarithms: what is unknown at first, and what wanders in a step. The base changes with every request
// that comes or goes; what a position costs beside a row, with the machine alone.
constexpr double kFirstSpread = square(1.0);
constexpr std::array<double, 3> kDrift = {square(0.1), square(0.02), square(0.003)};
constexpr double kNoise = square(0.05);  // of a step's time, for no reason
constexpr double kOutlier = 3;           // standard deviations that one step may be off
// What one step changes at most, of logarithms: few rows cost a GPU less than many would in their place, and a chunk
// that is sized by them must not be several times too long.
constexpr double kMostChange = 0.4;

}  // namespace

PromptPace::PromptPace(double target_seconds) : target_(target_seconds) {
  const double row = target_ / kFirstRows;
  costs_ = {kFirstBase * target_, row, row / kFirstPositions};
  for (int i = 0; i < kCosts; ++i) covariance_[i][i] = kFirstSpread;
}

sched::PromptBudget PromptPace::next() const {
  if (target_ <= 0) return {};
  return {std::max(target_ - costs_[kBase], kLeastShare * target_), costs_[kRow], costs_[kPosition]};
}

double PromptPace::for_decoding() const {
  return target_ > 0 ? kDecodingShare * target_ : std::numeric_limits<double>::infinity();
}

PromptPace::Expected PromptPace::expect(const sched::StepPlan& plan) const {
  Expected step;
  if (plan.decode_rows > 0) step.parts[kBase] = costs_[kBase];
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

double PromptPace::at_least(const sched::StepPlan& plan) const {
  Expected step = expect(plan);
  for (int i = 0; i < kCosts; ++i) step.variance += 2 * square(step.parts[i]) * kDrift[i];  // until it runs
  if (plan.decode_rows < base_rows_) {
    // When requests end together, the base falls faster than it is learned.
    step.seconds *= 1 - step.parts[kBase] * (1 - static_cast<double>(plan.decode_rows) / base_rows_);
  }
  return step.seconds * std::exp(-2 * std::sqrt(step.variance));
}

void PromptPace::observe(const sched::StepPlan& plan, double seconds) {
  if (target_ <= 0 || seconds <= 0) return;
  for (int i = 0; i < kCosts; ++i) {
    if (covariance_[i][i] < kFirstSpread) covariance_[i][i] += kDrift[i];
  }
  const auto [expected, parts, known, variance] = expect(plan);
  if (expected <= 0) return;
  if (plan.decode_rows > 0) base_rows_ = plan.decode_rows;
  const double most = kOutlier * std::sqrt(variance);
  double error = std::clamp(std::log(seconds / expected), -most, most);
  const double change =
      std::abs(error) * std::max({std::abs(known[0]), std::abs(known[1]), std::abs(known[2])}) / variance;
  const bool all = change <= kMostChange;
  if (!all) error *= kMostChange / change;
  for (int i = 0; i < kCosts; ++i) costs_[i] *= std::exp(known[i] / variance * error);
  if (!all) return;  // there is more to learn of this
  for (int i = 0; i < kCosts; ++i) {
    for (int j = 0; j < kCosts; ++j) covariance_[i][j] -= known[i] * known[j] / variance;
  }
}

}  // namespace volley::engine
