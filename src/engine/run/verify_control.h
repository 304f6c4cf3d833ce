// How many drafted tokens each step verifies: what the options or set_verify() say, or what the budget policy decides
// (decode/budget). Between the worker, which plans and runs steps, and the policy, which learns from their outcomes.
//
// A step goes through next() before it is planned, budget() when its segments are known, and observe() with its
// results, in the order of the steps. Threads: one, the engine's.
#pragma once

#include <volley/engine.h>

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "decode/budget/policy.h"
#include "decode/round.h"
#include "sched/scheduler.h"

namespace volley::engine {

struct VerifyConfig {
  VerifyPolicy policy;
  int32_t max_draft = 0;                            // 0: no drafter
  std::vector<std::vector<int32_t>> draft_lengths;  // this and the next two are the round's
  std::vector<int32_t> row_buckets;
  int32_t most_shared_rows = 0;
  int32_t max_rows = 0;  // of a step
  // Must outlive the control; the caller shows it every step that runs. measured() for VerifyPolicy::Kind::kAuto. Null:
  // nothing is predicted.
  const decode::CostModel* costs = nullptr;
};

// The state of one step between these calls.
struct VerifyStep {
  sched::VerifyLimit limit;
  std::optional<decode::Decision> decision;  // with kAuto, when somebody decodes
  decode::RoundShape shape;                  // the one that runs, filled by budget()
  int32_t draft = 0;                         // tokens drafted for the request that gets most
  int32_t rows = 0;                          // of the target's pass for decoding requests
  bool waits_for_masks = false;              // its time holds the host's work
  double decoding_s = 0;                     // CostModel::decoding(), before budget()
  std::vector<float> simulated;              // of each decoding segment: its simulated acceptance, or -1
};

// The last step's choice; in_words() formats it when a reader asks.
struct VerifyNews {
  int32_t draft = 0, rows = 0, requests = 0;
  int32_t drafter = 0;  // from 1, among several; 0: there is one, or nothing is drafted
  bool automatic = false;
  std::optional<decode::Decision> decision;
};
std::string in_words(const VerifyNews& news);  // empty before the first step

class VerifyControl {
 public:
  explicit VerifyControl(VerifyConfig config);

  void set(const VerifyPolicy& policy);  // from the next step on. REQUIRES: measured costs, for kAuto

  double plain_s() const { return plain_s_; }  // CostModel::decoding() of plain decoding of all, as of the last next()
  // most_seconds: what the decoding requests may take of a step with prompts (sched::TargetStep).
  VerifyStep next(const sched::DecodingOutlook& outlook, double most_seconds = std::numeric_limits<double>::infinity());
  // Rows that the decoding segments of a planned step get. `segments` may be fewer than were planned.
  decode::VerifyBudget budget(const sched::StepPlan& plan, std::span<const decode::RoundSegment> segments,
                              VerifyStep& step) const;
  // The request's shift in the table of the step's drafter.
  float shift(RequestId id, const VerifyStep& step) const {
    return policy_ ? policy_->shift(id, step.shape.drafter) : 0;
  }
  // results: the round's, for the step's decoding segments; ids: their requests, 0 for those that have ended meanwhile.
  void observe(const VerifyStep& step, const decode::StepTimes& times, std::span<const RequestId> ids,
               std::span<const decode::RoundResult> results);
  void forget(RequestId id);  // the request ended

  EngineStats::Verify stats() const;  // all but `last`
  const VerifyNews& news() const { return news_; }

 private:
  double predict(const decode::RoundShape& shape) const;
  void predict_fixed(const sched::DecodingOutlook& outlook, int32_t draft, VerifyStep& step) const;

  VerifyConfig config_;
  std::unique_ptr<decode::BudgetPolicy> policy_;  // null: no measurement
  double plain_s_ = 0;
  EngineStats::Verify stats_;
  VerifyNews news_;
  std::vector<decode::BudgetRequest> requests_;
  std::vector<decode::BlockOutcome> blocks_;
};

// Simulated acceptance in a request's decoding step number `step` (0: the first), where this one drafts.
decode::SimulatedAcceptance simulated_at(const SimulatedAcceptance& simulated, int64_t step, int32_t drafter);

}  // namespace volley::engine
