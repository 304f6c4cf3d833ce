#include "decode/budget/replay.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/math.h"

namespace volley::decode {
namespace {

constexpr double kFirstChance = 0.7;  // chance of acceptance before any outcome
constexpr double kPriorBlocks = 1;    // blocks that weigh as much as the rate at the position before
constexpr double kFade = 0.9;         // factor on the blocks' sums, for each round that drafted
constexpr double kMostApart = 2;      // a token's log odds may differ from the mean by this much
constexpr double kMeanTokens = 2;     // weight of the mean, in tokens, against the block's own beginning
constexpr double kEndFade = 0.998;    // factor on counted ends, for each round
// the chance of an end is at most this: after many one-word answers a long one must still be drafted for
constexpr double kMostEnds = 0.2;
constexpr double kHalfLife = 8;        // a replayed round this many rounds old counts half
constexpr int32_t kManyRequests = 32;  // with this many requests, noise averages out over fewer rounds
constexpr int32_t kRoundsOfMany = 4;

}  // namespace

Population::Population(int32_t max_draft)
    : max_draft_(max_draft), positions_(max_draft), kept_(max_draft), mean_(max_draft) {
  end_round(false, 0, 0);
}

void Population::end_round(bool drafted, int32_t tokens, int32_t ended) {
  tokens_ = kEndFade * tokens_ + tokens;
  ended_ = kEndFade * ended_ + ended;
  const double goes_on = tokens_ > 0 ? 1 - std::min(kMostEnds, ended_ / tokens_) : 1;
  double before = kFirstChance, survival = 1, kept = 1;
  for (int32_t i = 0; i < max_draft_; ++i) {
    Position& p = positions_[i];
    p.chance = (p.survival + kPriorBlocks * before) / (p.before + kPriorBlocks);
    before = p.chance;
    survival *= p.chance;
    kept *= goes_on;
    kept_[i] = static_cast<float>(kept);
    mean_[i] = static_cast<float>(survival * kept);
    if (drafted) p.survival *= kFade, p.before *= kFade;
  }
}

std::span<float> Population::next_of(BlockHistory& history, int32_t capacity) const {
  history.worth.resize(static_cast<size_t>(capacity) * max_draft_);
  float* const begin = history.worth.data() + history.blocks++ % capacity * max_draft_;
  return {begin, static_cast<size_t>(max_draft_)};
}

std::span<const float> Population::recent(int32_t back) const {
  if (back >= std::min<int64_t>(recent_.blocks, kRecentBlocks)) return mean_;
  const int64_t at = (recent_.blocks - 1 - back) % kRecentBlocks;
  return std::span(recent_.worth).subspan(static_cast<size_t>(at * max_draft_), max_draft_);
}

void Population::add(std::span<const float> chances, BlockHistory& history) {
  const std::span<float> out = next_of(history, kReplayRounds);
  const auto drafted = static_cast<int32_t>(chances.size());
  double survival = 1, apart = 0;
  for (int32_t i = 0; i < drafted; ++i) {
    Position& mean = positions_[i];
    apart += std::clamp<double>(ops::log_odds(chances[i]) - ops::log_odds(static_cast<float>(mean.chance)), -kMostApart,
                                kMostApart);
    mean.before += survival;
    survival *= chances[i];
    mean.survival += survival;
    out[i] = static_cast<float>(survival) * kept_[i];
  }
  // Past the block's end it continues like the average block, adjusted by how its tokens differed.
  apart /= drafted + kMeanTokens;
  for (int32_t i = drafted; i < max_draft_; ++i) {
    survival *= sigmoid(static_cast<float>(ops::log_odds(static_cast<float>(positions_[i].chance)) + apart));
    out[i] = static_cast<float>(survival) * kept_[i];
  }
  std::ranges::copy(out, next_of(recent_, kRecentBlocks).begin());
}

void Replay::begin(std::span<const Request> requests, const Population& population, std::span<const int64_t> ages) {
  const bool many = std::ssize(requests) >= kManyRequests;
  used_ = std::clamp(static_cast<int32_t>(ages.size()), 1, many ? kRoundsOfMany : kReplayRounds);
  const auto max_draft = static_cast<int32_t>(population.mean().size());
  most_draft_.clear();
  for (const Request& request : requests) most_draft_.push_back(std::min(request.most_draft, max_draft));
  double weights = 0;
  int32_t borrowed = 0;  // counts blocks borrowed from other requests
  for (int32_t k = 0; k < used_; ++k) {
    Round& round = rounds_[k];
    round.weight = ages.empty() ? 1 : std::exp2(-static_cast<double>(ages[k] - ages[0]) / kHalfLife);
    weights += round.weight;
    round.worth.clear();
    round.count.fill(0);
    round.sum.fill(0);
    for (const Request& request : requests) {
      const BlockHistory* history = request.history;
      const bool known = history != nullptr && k < history->blocks;
      const int64_t block = known ? (history->blocks - 1 - k) % kReplayRounds : 0;
      round.worth.push_back(known ? history->worth.data() + block * max_draft : population.recent(borrowed++).data());
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
        const float worth = round.worth[i][j];
        const int32_t bin = std::clamp(static_cast<int32_t>((1 - worth) * kBins), 0, kBins - 1);
        ++round.count[bin];
        round.sum[bin] += worth;
      }
    }
    places_ += std::max(0, end - std::min(length_, end));
  }
  length_ = length;
  for (int32_t k = 0; k < used_; ++k) rounds_[k].rewind();
}

double Replay::accepted(int32_t places) {
  double sum = 0;
  for (int32_t k = 0; k < used_; ++k) {
    Round& round = rounds_[k];
    if (places < round.counted) round.rewind();
    for (; round.bin < kBins && round.counted + round.count[round.bin] <= places; ++round.bin) {
      round.counted += round.count[round.bin];
      round.summed += round.sum[round.bin];
    }
    // Only a part of the next bin still fits.
    const int32_t left = places - round.counted;
    const double part =
        round.bin < kBins ? static_cast<double>(round.sum[round.bin]) * left / round.count[round.bin] : 0;
    sum += round.weight * (round.summed + part);
  }
  return sum;
}

}  // namespace volley::decode
