// Measures the policy's gain on simulated machines. A rate is expected tokens a second, relative to the best of plain
// decoding and fixed lengths of 1, 3, 7 and 15 drafted tokens, known beforehand.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "decode/budget/budget_simulation_for_test.h"

namespace volley::decode {
namespace {

constexpr int32_t kRounds = 200;

std::vector<SimulatedRequest> batch(int32_t n, const SimulatedRequest& like) {
  std::vector<SimulatedRequest> requests(n, like);
  for (int32_t i = 0; i < n; ++i) requests[i].id = i + 1;
  return requests;
}

// Makes half of the requests easy and half hard.
std::vector<SimulatedRequest> mixture(int32_t n, double odds) {
  std::vector<SimulatedRequest> requests = batch(n, {});
  for (int32_t i = 0; i < n; ++i) {
    requests[i].p = i % 2 == 0 ? 0.95 : 0.3;
    requests[i].odds = odds;
  }
  return requests;
}

struct Outcome {
  double rate = 0;
  int32_t probes = 0, changes = 0;  // changes: rounds, probes excepted, that drafted another length than the last
  Decision last;
};

Outcome run(Simulation& simulation, const std::vector<SimulatedRequest>& requests, int32_t rounds) {
  Outcome outcome;
  double tokens = 0, seconds = 0;
  for (int32_t i = 0; i < rounds; ++i) {
    const SimulatedRound round = simulation.round(requests);
    tokens += round.tokens;
    seconds += round.seconds;
    if (round.decision.probe) {
      ++outcome.probes;
      continue;
    }
    outcome.changes += i > 0 && round.decision.draft != outcome.last.draft ? 1 : 0;
    outcome.last = round.decision;
  }
  outcome.rate = tokens / seconds;
  return outcome;
}

// The share of the best fixed length's rate that a new engine reaches over its first rounds.
double from_the_start(const Machine& machine, const std::vector<SimulatedRequest>& requests) {
  Simulation simulation(machine, machine.measured(static_cast<int32_t>(requests.size())), 1);
  const Outcome outcome = run(simulation, requests, kRounds);
  const double best = best_fixed_rate(machine, requests), ratio = outcome.rate / best;
  std::printf(
      "%-6s C %3zu  P %.4f  kv %5ld: %8.1f of %8.1f (%.3f), drafts %2d, verifies %4d rows, %2d probes, %d changes\n",
      machine.name.c_str(), requests.size(), requests[0].p, static_cast<long>(requests[0].kv_tokens), outcome.rate,
      best, ratio, outcome.last.draft, outcome.last.verify_rows, outcome.probes, outcome.changes);
  return ratio;
}

TEST(PolicySimulationTest, IsAsFastAsTheBestFixedLength) {
  for (const Machine& machine : {h200(), cpu(), small_cpu()}) {
    for (const int32_t n : {1, 8, 32, 128}) {
      for (const double p : {0.0, 0.3, 0.6, 0.8553, 0.95}) {
        SimulatedRequest like;
        like.p = p;
        EXPECT_GE(from_the_start(machine, batch(n, like)), 0.97);
        like.kv_tokens = 16384;
        if (n != 32) continue;
        EXPECT_GE(from_the_start(machine, batch(n, like)), 0.97);
      }
    }
  }
}

TEST(PolicySimulationTest, ABatchOfEasyAndHardRequestsGainsByVerifyingUnevenly) {
  EXPECT_GE(from_the_start(h200(), mixture(32, 1)), 1.05);
  for (const double odds : {0.5, 2.0}) EXPECT_GE(from_the_start(h200(), mixture(32, odds)), 1.05);
  // Arithmetic is the limit there: each row costs time, and plain decoding wins.
  EXPECT_GE(from_the_start(cpu(), mixture(32, 1)), 0.97);
}

TEST(PolicySimulationTest, TokensThatTheDrafterKnowsToBeHardGainToo) {
  SimulatedRequest like;
  like.p = 0.7;
  like.spread = 2;
  Simulation simulation(h200(), h200().measured(32), 1);
  const Outcome outcome = run(simulation, batch(32, like), kRounds);
  // This is the rate of verifying as many tokens of each request.
  double evenly = 0;
  for (const int32_t draft : {0, 1, 3, 7, 15}) {
    Machine fixed = h200();
    fixed.config.fixed = draft;
    Simulation other(fixed, fixed.measured(32), 1);
    evenly = std::max(evenly, run(other, batch(32, like), kRounds).rate);
  }
  EXPECT_GE(outcome.rate, 1.05 * evenly);
}

TEST(PolicySimulationTest, WrongConfidencesAreCorrected) {
  for (const Machine& machine : {h200(), cpu()}) {
    for (const int32_t n : {1, 8, 32}) {
      for (const double p : {0.3, 0.6, 0.8553, 0.95}) {
        for (const double odds : {0.5, 2.0}) {
          EXPECT_GE(from_the_start(machine, batch(n, {0, p, odds})), n == 1 ? 0.92 : 0.95);
        }
        EXPECT_GE(from_the_start(machine, batch(n, {0, p, 1, /*noise=*/1})), n == 1 ? 0.92 : 0.95);
      }
    }
  }
}

// The choice is right again 50 rounds after a change.
TEST(PolicySimulationTest, FollowsWhatChanges) {
  struct Phase {
    int32_t n;
    double p;
  };
  for (const Machine& machine : {h200(), cpu()}) {
    for (const std::vector<Phase>& phases :
         {std::vector<Phase>{{1, 0.8553}, {64, 0.8553}, {1, 0.8553}}, std::vector<Phase>{{1, 0.9}, {1, 0.2}, {1, 0.9}},
          std::vector<Phase>{{8, 0.9}, {8, 0.2}, {8, 0.9}, {8, 0.0}, {8, 0.9}},
          std::vector<Phase>{{64, 0.9}, {64, 0.2}, {64, 0.9}}}) {
      Simulation simulation(machine, machine.measured(64), 1);
      for (const Phase& phase : phases) {
        SimulatedRequest like;
        like.p = phase.p;
        const std::vector<SimulatedRequest> requests = batch(phase.n, like);
        run(simulation, requests, 50);
        const Outcome outcome = run(simulation, requests, 150);
        EXPECT_GE(outcome.rate, 0.97 * best_fixed_rate(machine, requests))
            << machine.name << ", " << phase.n << " requests, P " << phase.p;
      }
    }
  }
}

TEST(PolicySimulationTest, DoesNotChangeItsMindForNoise) {
  for (const Machine& machine : {h200(), cpu()}) {
    for (const auto& [n, p] : {std::pair(1, 0.8553), std::pair(8, 0.6), std::pair(32, 0.8553), std::pair(32, 0.0)}) {
      Simulation simulation(machine, machine.measured(32), 1);
      SimulatedRequest like;
      like.p = p;
      simulation.disturb(1, 0.05);
      run(simulation, batch(n, like), 100);
      const Outcome outcome = run(simulation, batch(n, like), 400);
      EXPECT_LE(outcome.changes, 8) << machine.name << " " << n << " " << p;
      EXPECT_GE(outcome.rate, 0.97 * best_fixed_rate(machine, batch(n, like))) << machine.name << " " << n << " " << p;
    }
  }
}

// Each time is off by half or more, so one round must change little.
TEST(PolicySimulationTest, BearsALoudMachine) {
  for (const Machine& machine : {h200(), cpu(), small_cpu()}) {
    for (const auto& [n, p] : {std::pair(1, 0.8553), std::pair(8, 0.0), std::pair(8, 0.6), std::pair(32, 0.3)}) {
      Simulation simulation(machine, machine.measured(n), 1);
      SimulatedRequest like;
      like.p = p;
      simulation.disturb(1.3, 0.5);
      const Outcome outcome = run(simulation, batch(n, like), 600);
      EXPECT_GE(outcome.rate, 0.93 * best_fixed_rate(machine, batch(n, like))) << machine.name << " " << n << " " << p;
    }
  }
}

TEST(PolicySimulationTest, AMachineThatIsSlowAsAWholeChangesNothing) {
  const Machine machine = h200();
  Simulation simulation(machine, machine.measured(32), 1);
  SimulatedRequest like;
  like.p = 0.8553;
  const std::vector<SimulatedRequest> requests = batch(32, like);
  const Outcome before = run(simulation, requests, 200);
  simulation.disturb(1.5, 0);
  const Outcome after = run(simulation, requests, 200);
  EXPECT_GE(after.rate, 0.99 * before.rate);
  EXPECT_NEAR(after.last.seconds, 1.5 * before.last.seconds, 0.05 * after.last.seconds);
}

// The measurement at the start was wrong, and the rounds correct it.
TEST(PolicySimulationTest, WrongCostsAreCorrected) {
  for (const double drafts_seem : {0.8, 1.2}) {
    for (const int32_t n : {8, 32, 64}) {
      const Machine machine = h200();
      Machine seems = machine;
      for (CurvePoint& point : seems.draft) point.y *= drafts_seem;
      for (CurvePoint& point : seems.rest) {
        if (point.x > 64) point.y *= 2 - drafts_seem;
      }
      SimulatedRequest like;
      like.p = 0.6;
      const std::vector<SimulatedRequest> requests = batch(n, like);
      Simulation simulation(machine, seems.measured(n), 1);
      run(simulation, requests, 600);
      EXPECT_GE(run(simulation, requests, 200).rate, 0.95 * best_fixed_rate(machine, requests))
          << n << " " << drafts_seem;
    }
  }
}

// Two sizes seem equally good, and the better one a little more expensive than it is. It must not wait as a rival.
TEST(PolicySimulationTest, WhatSeemsNearlyAsGoodIsTriedSoon) {
  const Machine machine = h200();
  SimulatedRequest like;
  like.p = 0.8553;
  for (const int32_t n : {32, 128}) {
    const std::vector<SimulatedRequest> requests = batch(n, like);
    Simulation right(machine, machine.measured(n), 1);
    const Outcome known = run(right, requests, 300);
    Machine seems = machine;
    for (CurvePoint& point : seems.rest) {
      if (point.x >= known.last.verify_rows) point.y *= 1.04;
    }
    Simulation simulation(machine, seems.measured(n), 1);
    const double first = run(simulation, requests, 30).rate, then = run(simulation, requests, 100).rate;
    const double best = best_fixed_rate(machine, requests);
    std::printf("C %3d: %.3f of the best length in the first 30 rounds, %.3f in the next 100\n", n, first / best,
                then / best);
    EXPECT_GE(then, 0.99 * best) << n;
  }
}

// Single tokens are hard and the others easy, in short requests. One bad block then says little about a request, and a
// new request gains at once from the outcomes of others.
TEST(PolicySimulationTest, ShortRequestsWithHardTokensHereAndThere) {
  for (const Machine& machine : {h200(), small_cpu()}) {
    for (const int32_t n : {1, 8}) {
      Simulation simulation(machine, machine.measured(n), 1);
      std::mt19937 dice(1);
      std::uniform_real_distribution<double> uniform;
      constexpr int32_t kLife = 6;  // rounds
      std::vector<SimulatedRequest> requests = batch(n, {});
      double tokens = 0, seconds = 0, fixed_seconds[16] = {}, fixed_tokens[16] = {};
      for (int32_t i = 0; i < 600; ++i) {
        for (int32_t j = 0; j < n; ++j) {
          requests[j].p = uniform(dice) < 0.3 ? 0.1 : 0.98;
          if ((i + j) % kLife != 0) continue;
          simulation.policy().forget(requests[j].id);
          requests[j].id += n;
        }
        const SimulatedRound round = simulation.round(requests);
        tokens += round.tokens;
        seconds += round.seconds;
        for (const int32_t draft : {0, 1, 3, 7, 15}) {
          const RoundShape shape = {n, draft, n * (draft + 1), 0, 128 * n};
          fixed_seconds[draft] += machine.seconds(shape).total();
          fixed_tokens[draft] += fixed_rate(machine, requests, draft) * machine.seconds(shape).total();
        }
      }
      double best = 0;
      for (const int32_t draft : {0, 1, 3, 7, 15}) best = std::max(best, fixed_tokens[draft] / fixed_seconds[draft]);
      EXPECT_GE(tokens / seconds, 0.97 * best) << machine.name << " " << n;
      std::printf("%-6s C %3d: %.3f of the best length\n", machine.name.c_str(), n, tokens / seconds / best);
    }
  }
}

// Requests come and go; none stays for more than some rounds.
TEST(PolicySimulationTest, NewRequestsAllTheTime) {
  for (const Machine& machine : {h200(), cpu()}) {
    for (const double p : {0.0, 0.6, 0.95}) {
      Simulation simulation(machine, machine.measured(32), 1);
      SimulatedRequest like;
      like.p = p;
      std::vector<SimulatedRequest> requests = batch(32, like);
      double tokens = 0, seconds = 0;
      for (int32_t i = 0; i < 400; ++i) {
        simulation.policy().forget(requests[i % 32].id);
        requests[i % 32].id += 32;
        const SimulatedRound round = simulation.round(requests);
        tokens += round.tokens;
        seconds += round.seconds;
      }
      EXPECT_GE(tokens / seconds, 0.96 * best_fixed_rate(machine, requests)) << machine.name << " " << p;
    }
  }
}

// Requests of two kinds, in turn: the first drafter is right about one and often wrong about the other.
constexpr int32_t kAnswer = 240;  // tokens
struct Kinds {
  double easy = 0.85, hard = 0.5;  // chances of the first drafter's tokens
  double second = 0.75;            // of the second's
  double spread = 0.5, noise = 0.3;
};

// Tokens a second while `n` requests at once are served, one after another.
double served(const Machine& machine, const Kinds& kinds, int32_t n) {
  Simulation simulation(machine, machine.measured(n), 1);
  std::mt19937 dice(7);
  RequestId next = 0;
  std::vector<SimulatedRequest> requests(n);
  std::vector<int32_t> left(n);
  const auto start = [&](int32_t i) {
    SimulatedRequest& request = requests[i] = {};
    request.id = ++next;
    const double first = (dice() & 1) != 0 ? kinds.easy : kinds.hard;
    request.p = machine.chains_from == 0 ? kinds.second : first;
    request.second = kinds.second;
    request.spread = kinds.spread;
    request.noise = kinds.noise;
    left[i] = kAnswer;
  };
  for (int32_t i = 0; i < n; ++i) start(i);
  double tokens = 0, seconds = 0;
  while (next < static_cast<RequestId>(60 + 3 * n)) {
    const SimulatedRound round = simulation.round(requests);
    tokens += round.tokens;
    seconds += round.seconds;
    for (int32_t i = 0; i < n; ++i) {
      if ((left[i] -= round.committed[i]) > 0) continue;
      simulation.policy().forget(requests[i].id);
      start(i);
    }
  }
  return tokens / seconds;
}

struct Rates {
  double first = 0, second = 0, both = 0;
  double gain() const { return both / std::max(first, second); }
};

Rates served_by_each(const Kinds& kinds, int32_t n) {
  Machine chain = h200_of_two();
  chain.config.max_draft = 3;
  chain.config.draft_lengths = {{1, 2, 3}};
  chain.chains_from = 0;
  chain.kv.draft = {chain.kv.draft[1]};
  const Rates rates = {served(h200(), kinds, n), served(chain, kinds, n), served(h200_of_two(), kinds, n)};
  std::printf("C %3d: %7.0f by blocks, %7.0f by chains, %7.0f by both: %.3f\n", n, rates.first, rates.second,
              rates.both, rates.gain());
  return rates;
}

// Alone, a request gets the drafter that suits it. Together, the drafter that suits them all.
TEST(PolicySimulationTest, TwoDraftersServeWhatEachIsGoodFor) {
  for (const int32_t n : {1, 2, 8}) EXPECT_GE(served_by_each({}, n).gain(), 1.08) << n;
  for (const int32_t n : {32, 128}) EXPECT_GE(served_by_each({}, n).gain(), 0.98) << n;
}

TEST(PolicySimulationTest, ASecondDrafterThatIsOfNoUseCostsLittle) {
  for (const int32_t n : {1, 8, 64}) {
    EXPECT_GE(served_by_each({.hard = 0.85, .second = 0.3}, n).gain(), 0.98) << n;
    EXPECT_GE(served_by_each({.easy = 0.3, .hard = 0.2}, n).gain(), 0.98) << n;
  }
}

}  // namespace
}  // namespace volley::decode
