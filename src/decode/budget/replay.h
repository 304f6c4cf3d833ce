// Estimates the gain of a choice of the verify budget by drafting the last blocks again. The drafter's confidence in
// the coming round is not known when its length must be chosen. So the expected number of committed tokens is computed
// for each of the last few rounds.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/acceptance/survival.h"

namespace volley::decode {

constexpr int32_t kReplayRounds = 8;
constexpr int32_t kRecentBlocks = 64;

// The last blocks, with the worth of verifying the token at each position: its chance of survival, from the drafter's
// confidence at that time, times the chance that the request had not ended before.
struct BlockHistory {
  std::vector<float> worth;  // [capacity][max_draft], a ring
  int64_t blocks = 0;        // since the start; the last one is at (blocks - 1) % capacity
};

// The average block over all requests: for requests with few blocks, and for positions that were not drafted.
class Population {
 public:
  explicit Population(int32_t max_draft);

  // A block of a request whose drafted tokens are accepted with these chances. Goes into `history` at full length.
  void add(std::span<const float> chances, BlockHistory& history);
  // Counts a round in which requests got so many tokens, of which so many were ends that the request chose.
  void end_round(bool drafted, int32_t tokens, int32_t ended);
  // Worth of each position in the block that was added `back` blocks ago, 0 being the last; of a mean one where that is
  // too long ago.
  std::span<const float> recent(int32_t back) const;
  std::span<const float> mean() const { return mean_; }

 private:
  // Summed over the last blocks that were long enough: survival of a position, and of the one before it.
  struct Position {
    double survival = 0, before = 0;
    double chance = 0;  // chance of acceptance, given that the tokens before were accepted
  };

  std::span<float> next_of(BlockHistory& history, int32_t capacity) const;

  int32_t max_draft_;
  std::vector<Position> positions_;
  std::vector<float> kept_;        // [i]: chance that i + 1 tokens hold no end
  std::vector<float> mean_;        // worth
  BlockHistory recent_;            // of all requests, kRecentBlocks of them
  double tokens_ = 0, ended_ = 0;  // counted; older ones fade
};

// Expected tokens of a round as a function of its verified rows, over the replayed rounds.
class Replay {
 public:
  struct Request {
    const BlockHistory* history = nullptr;
    int32_t most_draft = 0;
  };

  // ages[k]: rounds ago that the k-th last drafting round was; its weight falls with it. A request with fewer rounds
  // gets the last blocks of all requests, including its own: a few blocks are weak evidence, and an average block would
  // hide how unequal blocks are.
  void begin(std::span<const Request> requests, const Population& population, std::span<const int64_t> ages);
  // Blocks are now `length` tokens long. REQUIRES: not less than before.
  void extend(int32_t length);
  // Drafted tokens that are expected to be accepted when the `places` likeliest of them are verified. Quick for places
  // that ascend from one call to the next.
  double accepted(int32_t places);
  int32_t places() const { return places_; }  // drafted tokens in all

 private:
  static constexpr int32_t kBins = 32;
  struct Round {
    double weight = 0;
    std::vector<const float*> worth;   // of each request
    std::array<int32_t, kBins> count;  // number by worth, highest first
    std::array<float, kBins> sum;
    // The state of accepted(): whole bins that had places, how many, and their sum.
    int32_t bin = 0, counted = 0;
    double summed = 0;

    void rewind() { bin = counted = 0, summed = 0; }
  };

  std::array<Round, kReplayRounds> rounds_;
  std::vector<int32_t> most_draft_;
  int32_t used_ = 0;  // of rounds_
  int32_t length_ = 0, places_ = 0;
};

}  // namespace volley::decode
