// Simulates rounds on a machine, for tests: times follow a formula, outcomes are random, and results arrive two rounds
// late. Rows are shared out by the rule of ops/step.
#pragma once

#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "decode/budget/measure.h"
#include "decode/budget/policy.h"
#include "device/cpu/thread_pool.h"
#include "ops/step/step.h"

namespace volley::decode {

struct Machine {
  std::string name;
  BudgetConfig config;
  std::vector<CurvePoint> draft, rest;  // seconds of a pass over this many rows, linear between points
  std::vector<CurvePoint> chain;        // the same of a pass for one token of drafters that draft token by token
  int32_t chains_from = 1;              // the first of these among the drafters
  KvCosts kv;
  int32_t whole_rows = 1;  // a pass's rows are a multiple of this; with recorded graphs also one of row_buckets

  RoundSeconds seconds(const RoundShape& shape) const;
  MeasurePlan plan(int32_t slots) const;
  CostModel measured(int32_t slots) const;  // built by measure_costs()
};

Machine h200();         // a dense target of 8 billion weights, as in docs/benchmarks.md
Machine cpu();          // a target of 0.6 billion weights on two cores
Machine h200_of_two();  // with a second drafter, which drafts up to three tokens one by one
Machine small_cpu();    // all data is in the caches, so only arithmetic costs time

struct SimulatedRequest {
  RequestId id = 0;
  double p = 0;       // chance of acceptance at every position
  double second = 0;  // the same for the second drafter
  double odds = 1;    // the drafter states p's odds times this
  double noise = 0;   // deviation of the stated log odds from the true ones
  double spread = 0;  // deviation of p's log odds from token to token, which the drafter knows
  int64_t kv_tokens = 128;
};

struct SimulatedRound {
  Decision decision;
  double tokens = 0, seconds = 0;  // expected tokens of the verified rows
  std::vector<int32_t> committed;  // by request
};

class Simulation {
 public:
  Simulation(Machine machine, CostModel costs, uint64_t seed);

  SimulatedRound round(std::span<const SimulatedRequest> requests);
  // Multiplies later simulated times by `slow`, and by a random factor whose logarithm has the deviation `noise`. The
  // returned seconds stay undisturbed.
  void disturb(double slow, double noise) { slow_ = slow, noise_ = noise; }
  BudgetPolicy& policy() { return policy_; }
  const Machine& machine() const { return machine_; }

 private:
  static constexpr size_t kDelay = 2;  // rounds
  struct Block {
    RequestId id;
    std::vector<float> confidence;
    int32_t verified, accepted;
  };
  struct Flight {
    RoundShape shape;
    RoundSeconds seconds;
    std::vector<Block> blocks;
  };
  std::vector<int32_t> share(std::span<const SimulatedRequest> requests, const Decision& decision,
                             std::span<const Block> blocks);
  void observe_oldest();

  Machine machine_;
  CostModel costs_;
  BudgetPolicy policy_;
  std::mt19937_64 dice_;
  ThreadPool pool_{1};
  std::deque<Flight> flights_;
  double slow_ = 1, noise_ = 0;
};

// Expected tokens a second where each request verifies `draft` tokens of the first drafter in every round.
double fixed_rate(const Machine& machine, std::span<const SimulatedRequest> requests, int32_t draft);
// The best rate of plain decoding and of all fixed lengths.
double best_fixed_rate(const Machine& machine, std::span<const SimulatedRequest> requests);

}  // namespace volley::decode
