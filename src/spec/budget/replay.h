// What a choice of the verify budget would gain: the blocks that were drafted last, drafted again. How sure the drafter
// will be in the coming round is not known when its length must be chosen, so each of the last few rounds is asked how
// many tokens the choice would have been expected to commit in it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/acceptance/survival.h"

namespace volley::spec {

constexpr int32_t kReplayRounds = 8;
constexpr int32_t kRecentBlocks = 64;

// The last blocks: what a token at each position was worth, verified: its survival, as the drafter's confidence was
// read when the block came in, times the chance that the request had not ended before.
struct BlockHistory {
  std::vector<float> worth;  // [capacity][max_draft], a ring
  int64_t blocks = 0;        // since the start; the last one is at (blocks - 1) % capacity
};

// What blocks are like, over all requests: for requests of which little is known, and for positions that were not
// drafted.
class Population {
 public:
  explicit Population(int32_t max_draft);

  // A block of a request whose drafted tokens are accepted with these chances. Goes into `history` at full length.
  void add(std::span<const float> chances, BlockHistory& history);
  // A round in which requests got so many tokens, of which so many were the end that the request chose.
  void end_round(bool drafted, int32_t tokens, int32_t ended);
  // Worth of each position in the block that was added `back` blocks ago, 0 being the last; of a mean one where that is
  // too long ago.
  std::span<const float> recent(int32_t back) const;
  std::span<const float> mean() const { return mean_; }

 private:
  // Summed over the last blocks that were long enough: survival of a position, and of the one before it.
  struct Position {
    double survival = 0, before = 0;
    double chance = 0;  // of acceptance, the tokens before it accepted
  };

  std::span<float> next_of(BlockHistory& history, int32_t capacity) const;

  int32_t max_draft_;
  std::vector<Position> positions_;
  std::vector<float> kept_;        // [i]: chance that i + 1 tokens hold no end
  std::vector<float> mean_;        // worth
  BlockHistory recent_;            // of all requests, kRecentBlocks of them
  double tokens_ = 0, ended_ = 0;  // counted; older ones fade
};

// Expected tokens of a round as a function of what it verifies, over the replayed rounds.
class Replay {
 public:
  struct Request {
    const BlockHistory* history = nullptr;
    int32_t most_draft = 0;
  };

  // ages[k]: rounds ago that the k-th last drafting round was; its weight falls with it. A request that was in fewer
  // gets the last blocks of all requests, its own among them: few blocks of its own say little, and a mean block would
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
    std::array<int32_t, kBins> count;  // by worth, the most first
    std::array<float, kBins> sum;
    // Where accepted() stands: whole bins that had places, how many, and their sum.
    int32_t bin = 0, counted = 0;
    double summed = 0;

    void rewind() { bin = counted = 0, summed = 0; }
  };

  std::array<Round, kReplayRounds> rounds_;
  std::vector<int32_t> most_draft_;
  int32_t used_ = 0;  // of rounds_
  int32_t length_ = 0, places_ = 0;
};

}  // namespace volley::spec
