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

// A request's last blocks: the survival of each position, as the drafter's confidence was read when the block came in.
struct BlockHistory {
  std::vector<float> survival;  // [kReplayRounds][max_draft], a ring
  int32_t blocks = 0;           // since the start; the last one is at (blocks - 1) % kReplayRounds
};

// What blocks are like, over all requests: for positions that were not drafted, and for requests that never were.
class Population {
 public:
  explicit Population(int32_t max_draft);

  // A block of a request whose drafted tokens are accepted with these chances. Goes into `history` at full length.
  void add(std::span<const float> chances, BlockHistory& history);
  void end_round();
  // Survival in a block of a request that nothing is known of.
  std::span<const float> unknown() const { return unknown_; }

 private:
  void extend(double survival, double level, int32_t from, std::span<float> out) const;

  int32_t max_draft_;
  double level_;               // mean log odds of acceptance at the first position
  std::vector<double> trend_;  // [i]: by how much they change from position i - 1 to i
  std::vector<float> unknown_;
};

// Expected tokens of a round as a function of what it verifies, over the replayed rounds.
class Replay {
 public:
  struct Request {
    const BlockHistory* history = nullptr;
    int32_t most_draft = 0;
  };

  // ages[k]: rounds ago that the k-th last drafting round was; its weight falls with it. Empty: none was.
  void begin(std::span<const Request> requests, const Population& population, std::span<const int64_t> ages);
  // Blocks are now `length` tokens long. REQUIRES: not less than before.
  void extend(int32_t length);
  // Drafted tokens that are expected to be accepted when the `places` likeliest of them are verified.
  double accepted(int32_t places) const;
  int32_t places() const { return places_; }  // drafted tokens in all

 private:
  static constexpr int32_t kBins = 64;
  struct Round {
    double weight = 0;
    std::vector<const float*> survival;  // of each request
    std::array<int32_t, kBins> count;    // by survival, the likeliest first
    std::array<float, kBins> sum;
    std::array<int32_t, kBins> counted;  // the same, up to and with a bin
    std::array<float, kBins> summed;
  };

  std::array<Round, kReplayRounds> rounds_;
  std::vector<int32_t> most_draft_;
  int32_t used_ = 0;  // of rounds_
  int32_t length_ = 0, places_ = 0;
};

}  // namespace volley::spec
