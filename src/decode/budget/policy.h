// Chooses who drafts in a round, how many tokens, and how many rows of the target's pass the drafted tokens get, so
// that the round commits the most tokens a second. The device then chooses the (request, position) pairs that get the
// rows (ops/step, share_verify_rows), by the table that this class calibrates. docs/verify-budget.md derives the model.
//
// This is arithmetic on the host, without device or clock: times come with the outcomes. Nothing here changes a
// request's text. Threads: one, the engine's.
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
  int32_t max_draft = 0;  // block_size - 1 tokens
  // By drafter: possible draft lengths, ascending; the longest is max_draft. 0 is always possible.
  std::vector<std::vector<int32_t>> draft_lengths;
  std::vector<int32_t> row_buckets;  // recorded sizes of a pass, ascending; empty: any size
  // a round with more rows verifies all it drafts, because one chunk of logits holds no more
  int32_t most_shared_rows = 0;
  int32_t max_rows = 0;  // rows of a pass
  // From options: verify exactly this many drafted tokens of each request in every round. The policy then chooses and
  // probes nothing, but still learns outcomes for a later change back. REQUIRES: one drafter, or 0 tokens.
  std::optional<int32_t> fixed;
};

// A request that decodes in the coming round.
struct BudgetRequest {
  RequestId id = 0;
  int32_t most_draft = 0;  // tokens that the request can use: fewer near its end, 0 without speculation
};

// Prompts in the coming round's pass.
struct PassPrompts {
  int32_t rows = 0;
  int32_t ending = 0;  // prompts that end in this round, whose requests decode in the next
  // Limits the decoding requests' time in a step, so that prompts get the rest of the step's target time. Plain
  // decoding is always allowed.
  double most_seconds = std::numeric_limits<double>::infinity();
};

struct Decision {
  int32_t draft = 0;  // tokens to draft for each request, one of the drafter's draft_lengths or 0
  // Rows of the target's pass for the decoding requests, their last tokens included. Where they suffice for all drafted
  // tokens that requests can use, the number is exact and no rows have to be shared out.
  int32_t verify_rows = 0;
  bool probe = false;  // the round runs to learn, not to gain
  // The reasons: predicted tokens a second of this choice and of plain decoding, without what prompts cost, and the
  // predicted time and tokens of the round. Tokens and rates are 0 with BudgetConfig::fixed.
  double tokens_per_s = 0, plain_tokens_per_s = 0;
  double seconds = 0, tokens = 0;
  int32_t drafter = 0;  // who drafts
};

// The outcome of one request's block.
struct BlockOutcome {
  RequestId id = 0;
  std::span<const float> confidence;  // one for each drafted token, as the round reported them
  int32_t verified = 0;               // verified tokens, counted from the first
  int32_t accepted = 0;               // accepted tokens among the verified ones
  bool cut = false;       // the request ended inside the block, so the token after the accepted ones was not rejected
  bool ended = false;     // the request ended with an end id, not at a limit
  int32_t committed = 0;  // tokens that the request got, an end id included
};

class BudgetPolicy {
 public:
  // costs: measured. It must outlive the policy; the caller shows it every round that runs.
  BudgetPolicy(BudgetConfig config, const CostModel& costs);
  ~BudgetPolicy();

  // Decides the coming round, even before the outcomes of earlier decisions are known. kv_tokens: positions that
  // `requests` attend to, summed.
  Decision decide(std::span<const BudgetRequest> requests, PassPrompts prompts, int64_t kv_tokens);

  // A round's outcome, in the order of the rounds. ran: its shape; only who drafted counts. Call before forget()
  // of its requests.
  void observe(const RoundShape& ran, std::span<const BlockOutcome> blocks);

  // Drops an ended request. Only requests that were in a decision are remembered.
  void forget(RequestId id);
  float shift(RequestId id, int32_t drafter) const;  // the request's own log-odds shift; 0 when unknown
  const ops::SurvivalTable& table(int32_t drafter) const;
  // The shape that runs where this one is asked for, which is the one that CostModel knows.
  RoundShape that_runs(const RoundShape& asked) const;

  // Predicted and actual survival of a position since the start, of all drafters: the sum of predicted chances, the
  // tokens that survived, and the tokens that were verified.
  struct Calibration {
    double predicted = 0;
    int64_t survived = 0, verified = 0;
  };
  std::span<const Calibration> calibration() const;  // [max_draft]

  void set_fixed(std::optional<int32_t> fixed);  // sets BudgetConfig::fixed from the next decision on

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace volley::decode
