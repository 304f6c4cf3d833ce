#include "spec/budget/replay.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace volley::spec {
namespace {

constexpr double kFirstLevel = 0.85;   // before anything is known: 0.7 of the tokens are accepted
constexpr double kLevelRate = 0.03;    // of a block
constexpr double kTrendRate = 0.01;    // of a block
constexpr double kMostTrend = 0.5;     // of log odds from one position to the next
constexpr double kHalfLife = 8;        // rounds after which a replayed one counts half as much as the last
constexpr int32_t kManyRequests = 32;  // their noise averages out over fewer rounds
constexpr int32_t kRoundsOfMany = 4;

float sigmoid(double x) {
  return 1 / (1 + std::exp(-static_cast<float>(x)));
}

}  // namespace

Population::Population(int32_t max_draft)
    : max_draft_(max_draft), level_(kFirstLevel), trend_(max_draft), unknown_(max_draft) {
  end_round();
}

void Population::end_round() {
  extend(1, level_, 0, unknown_);
}

void Population::extend(double survival, double level, int32_t from, std::span<float> out) const {
  for (int32_t i = from; i < max_draft_; ++i) {
    if (i > 0) level += trend_[i];
    survival *= sigmoid(level);
    out[i] = static_cast<float>(survival);
  }
}

void Population::add(std::span<const float> chances, BlockHistory& history) {
  if (history.survival.empty()) history.survival.resize(static_cast<size_t>(kReplayRounds) * max_draft_);
  const std::span<float> out(history.survival.data() + history.blocks % kReplayRounds * max_draft_, max_draft_);
  ++history.blocks;
  // Where the block ends, it goes on as blocks do from this one's mean level.
  double survival = 1, mean = 0, trend = 0, before = 0;
  const auto drafted = static_cast<int32_t>(chances.size());
  for (int32_t i = 0; i < drafted; ++i) {
    const double odds = ops::log_odds(chances[i]);
    if (i > 0) {
      trend_[i] += kTrendRate * (std::clamp(odds - before, -2.0, 2.0) - trend_[i]);
      trend_[i] = std::clamp(trend_[i], -kMostTrend, kMostTrend);
      trend += trend_[i];
    }
    before = odds;
    mean += (odds - trend) / drafted;
    survival *= chances[i];
    out[i] = static_cast<float>(survival);
  }
  if (drafted < max_draft_) extend(survival, mean + trend, drafted, out);
  level_ += kLevelRate * (mean - level_);
}

void Replay::begin(std::span<const Request> requests, const Population& population, std::span<const int64_t> ages) {
  const bool many = std::ssize(requests) >= kManyRequests;
  used_ = std::clamp(static_cast<int32_t>(ages.size()), 1, many ? kRoundsOfMany : kReplayRounds);
  const auto max_draft = static_cast<int32_t>(population.unknown().size());
  most_draft_.clear();
  for (const Request& request : requests) most_draft_.push_back(std::min(request.most_draft, max_draft));
  double weights = 0;
  for (int32_t k = 0; k < used_; ++k) {
    Round& round = rounds_[k];
    round.weight = ages.empty() ? 1 : std::exp2(-static_cast<double>(ages[k] - ages[0]) / kHalfLife);
    weights += round.weight;
    round.survival.clear();
    round.count.fill(0);
    round.sum.fill(0);
    round.counted.fill(0);
    round.summed.fill(0);
    for (const Request& request : requests) {
      const BlockHistory* history = request.history;
      if (history == nullptr || history->blocks == 0) {
        round.survival.push_back(population.unknown().data());
        continue;
      }
      const int32_t back = k % std::min(history->blocks, kReplayRounds);
      round.survival.push_back(history->survival.data() + (history->blocks - 1 - back) % kReplayRounds * max_draft);
    }
  }
  for (int32_t k = 0; k < used_; ++k) rounds_[k].weight /= weights;
  length_ = places_ = 0;
}

void Replay::extend(int32_t length) {
  VOLLEY_CHECK_GE(length, length_);
  for (size_t i = 0; i < most_draft_.size(); ++i) {
    const int32_t end = std::min(length, most_draft_[i]);
    for (int32_t k = 0; k < used_; ++k) {
      Round& round = rounds_[k];
      for (int32_t j = length_; j < end; ++j) {
        const float survival = round.survival[i][j];
        const int32_t bin = std::clamp(static_cast<int32_t>((1 - survival) * kBins), 0, kBins - 1);
        ++round.count[bin];
        round.sum[bin] += survival;
      }
    }
    places_ += std::max(0, end - std::min(length_, end));
  }
  length_ = length;
  for (int32_t k = 0; k < used_; ++k) {
    Round& round = rounds_[k];
    int32_t counted = 0;
    float summed = 0;
    for (int32_t bin = 0; bin < kBins; ++bin) {
      round.counted[bin] = counted += round.count[bin];
      round.summed[bin] = summed += round.sum[bin];
    }
  }
}

double Replay::accepted(int32_t places) const {
  double sum = 0;
  for (int32_t k = 0; k < used_; ++k) {
    const Round& round = rounds_[k];
    // Whole bins, and of the next one the part that still fits.
    const auto bin = std::ranges::upper_bound(round.counted, places) - round.counted.begin();
    double taken = bin > 0 ? round.summed[bin - 1] : 0;
    if (bin < kBins) {
      const int32_t left = places - (bin > 0 ? round.counted[bin - 1] : 0);
      taken += static_cast<double>(round.sum[bin]) * left / round.count[bin];
    }
    sum += round.weight * taken;
  }
  return sum;
}

}  // namespace volley::spec
