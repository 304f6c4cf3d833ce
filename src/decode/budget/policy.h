// The verify budget: how many tokens a round drafts, and how many rows of the target's pass the drafted ones get, so
// that the round commits the most tokens per second. The device then chooses the (request, position) pairs that get the
// rows (ops/step, share_verify_rows), by the table that this class calibrates. docs/verify-budget.md derives the model.
//
// Arithmetic on the host, no device, no clock: times are passed in with the outcomes. Nothing here changes a request's
// text. Threads: one, the engine's.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "decode/budget/cost_model.h"
#include "ops/acceptance/survival.h"

namespace volley::decode {

struct BudgetConfig {
  int32_t max_draft = 0;               // tokens: block_size - 1
  std::vector<int32_t> draft_lengths;  // that a round can draft, ascending, the last is max_draft; 0 is always possible
  std::vector<int32_t> row_buckets;    // sizes of a pass that are recorded, ascending; empty: any size
  int32_t most_shared_rows = 0;        // above, a round verifies all it drafts (one chunk of logits holds no more)
  int32_t max_rows = 0;                // of a pass
  // From options: verify exactly that many drafted tokens of each request in every round. Nothing is chosen or probed,
  // but outcomes are still learned, for a later change back.
  std::optional<int32_t> fixed;
};

// A request that decodes in the coming round.
struct BudgetRequest {
  RequestId id = 0;
  int32_t most_draft = 0;  // tokens that it can use: fewer near its end, 0 without speculation
};

// Prompts in the coming round's pass.
struct PassPrompts {
  int32_t rows = 0;
  int32_t ending = 0;  // prompts that end in it: their requests decode in the round after
  // Limits the decoding requests' time in a step, so that prompts get the remaining part of a step's target time. Plain
  // decoding is always allowed.
  double most_seconds = std::numeric_limits<double>::infinity();
};

struct Decision {
  int32_t draft = 0;  // tokens to draft for each request, one of draft_lengths or 0
  // Rows of the target's pass for the decoding requests, their last tokens included. If they suffice for all tokens of
  // `draft` that requests can use, they are exactly as many, and nothing has to be divided.
  int32_t verify_rows = 0;
  bool probe = false;  // the round runs to learn, not to gain
  // Why: predicted tokens a second of this choice and of plain decoding (with what prompts in the pass cost left out),
  // and the predicted time and tokens of the round. Tokens and rates are 0 with BudgetConfig::fixed.
  double tokens_per_s = 0, plain_tokens_per_s = 0;
  double seconds = 0, tokens = 0;
};

// The outcome of one request's block.
struct BlockOutcome {
  RequestId id = 0;
  std::span<const float> confidence;  // of all drafted tokens, as the round reported them
  int32_t verified = 0;               // so many of the first tokens were verified
  int32_t accepted = 0;               // of those, the accepted ones
  bool cut = false;       // the request ended inside the block: the token after the accepted ones was not rejected
  bool ended = false;     // it ended by its own choice, an end id, not by a limit
  int32_t committed = 0;  // tokens that the request got, including an end
};

class BudgetPolicy {
 public:
  // costs: measured. It must outlive the policy; the caller shows it every round that runs.
  BudgetPolicy(BudgetConfig config, const CostModel& costs);
  ~BudgetPolicy();

  // Decides the coming round. kv_tokens: positions that `requests` attend to, in all. May be called before the outcomes
  // of earlier decisions are known.
  Decision decide(std::span<const BudgetRequest> requests, PassPrompts prompts, int64_t kv_tokens);

  // A round's outcome, in the order of the rounds. drafted: whether the drafter ran. Call before forget() of its
  // requests.
  void observe(bool drafted, std::span<const BlockOutcome> blocks);

  // The request ended. Only requests that were in a decision are remembered.
  void forget(RequestId id);
  float shift(RequestId id) const;  // the request's own log-odds shift; 0 when unknown
  const ops::SurvivalTable& table() const;
  // The shape that runs where this one is asked for, which is the one that CostModel knows.
  RoundShape that_runs(const RoundShape& asked) const;

  // Predicted and actual survival by position, since the start: how often a verified position i was predicted to
  // survive (sum of chances), did survive, and was verified.
  struct Calibration {
    double predicted = 0;
    int64_t survived = 0, verified = 0;
  };
  std::span<const Calibration> calibration() const;  // [max_draft]

  void set_fixed(std::optional<int32_t> fixed);  // BudgetConfig::fixed from the next decision on

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace volley::decode
