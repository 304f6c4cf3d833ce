// Estimates the gain of a choice of the verify budget by drafting the last blocks again. The length must be chosen
// before the drafter's confidence is known, so the expected number of committed tokens comes from the last few rounds.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/acceptance/survival.h"

namespace volley::decode {

constexpr int32_t kReplayRounds = 8;
constexpr int32_t kRecentBlocks = 64;

// The last blocks. A position's worth is the chance that its token survives, by the drafter's confidence at that time,
// times the chance that the request had not ended before.
struct BlockHistory {
  std::vector<float> worth;  // [capacity][max_draft], a ring
  int64_t blocks = 0;        // blocks since the start; the last one is at (blocks - 1) % capacity
};

// The average block of all requests stands in for requests with few blocks, and for positions that were not drafted.
class Population {
 public:
  explicit Population(int32_t max_draft);

  // Adds a request's block, whose drafted tokens are accepted with these chances, at full length to `history`.
  void add(std::span<const float> chances, BlockHistory& history);
  // Counts a round that gave requests this many tokens, among them the ends that requests chose.
  void end_round(bool drafted, int32_t tokens, int32_t ended);
  // Worth of each position in the block that was added `back` blocks ago (0: the last one). Returns the average block
  // if that one is no longer kept.
  std::span<const float> recent(int32_t back) const;
  std::span<const float> mean() const { return mean_; }

 private:
  // Sums over the last blocks that were long enough: survival at a position, and at the one before it.
  struct Position {
    double survival = 0, before = 0;
    double chance = 0;  // chance of acceptance, given that the tokens before were accepted
  };

  std::span<float> next_of(BlockHistory& history, int32_t capacity) const;

  int32_t max_draft_;
  std::vector<Position> positions_;
  std::vector<float> kept_;        // [i]: chance that none of i + 1 tokens is an end
  std::vector<float> mean_;        // worth of the average block
  BlockHistory recent_;            // kRecentBlocks blocks of all requests
  double tokens_ = 0, ended_ = 0;  // fading counts
};

// Expected tokens of a round as a function of its verified rows, over the replayed rounds.
class Replay {
 public:
  struct Request {
    const BlockHistory* history = nullptr;
    int32_t most_draft = 0;
  };

  // Starts a replay. ages[k]: how many rounds ago the k-th last drafting round ran; its weight falls with its age. A
  // request with too few rounds borrows the last blocks of all requests: a few blocks are weak evidence, and an average
  // block would hide how unequal blocks are.
  void begin(std::span<const Request> requests, const Population& population, std::span<const int64_t> ages);
  // Makes the blocks `length` tokens long. REQUIRES: not less than before.
  void extend(int32_t length);
  // Expected number of accepted tokens when the `places` likeliest ones are verified. It is quick for places that
  // ascend from call to call.
  double accepted(int32_t places);
  int32_t places() const { return places_; }  // number of drafted tokens

 private:
  static constexpr int32_t kBins = 32;
  struct Round {
    double weight = 0;
    std::vector<const float*> worth;   // one array for each request
    std::array<int32_t, kBins> count;  // tokens in each bin of worth, highest first
    std::array<float, kBins> sum;
    // accepted() keeps its state here: the bins that were counted whole, their places, and their sum.
    int32_t bin = 0, counted = 0;
    double summed = 0;

    void rewind() { bin = counted = 0, summed = 0; }
  };

  std::array<Round, kReplayRounds> rounds_;
  std::vector<int32_t> most_draft_;
  int32_t used_ = 0;  // the first used_ entries of rounds_ count
  int32_t length_ = 0, places_ = 0;
};

}  // namespace volley::decode
