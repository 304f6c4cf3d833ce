// Measures the cost of a round on this device, by timing rounds of made-up requests.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "decode/budget/cost_model.h"
#include "decode/step_executor.h"

namespace volley::decode {

struct MeasurePlan {
  int32_t slots = 0;     // of the round
  int32_t max_rows = 0;  // of a pass
  int32_t page_size = 0;
  int64_t pages = 0;  // pages 0, 1, … are used
  // Bytes of a position's K and V, of the target and of the drafter, and of the weights that the target's pass reads
  // for a single row: of experts, those that it is routed to.
  double target_kv_bytes = 0, draft_kv_bytes = 0;
  double target_weight_bytes = 0;
  ExpertCosts experts;            // of the target, without seconds
  double experts_share = 1;       // the round's count of the experts that a pass touches
  int32_t vocab = 1;              // made-up requests hold different tokens, so that their experts differ
  int32_t heads_per_kv_head = 1;  // of the target
  int32_t max_model_len = 0;      // tokens of a request, at least 2
  double seconds = 3;             // after which no new round begins; missing points are extrapolated

  // A made-up request's sequence grows by a token a round: after so many it starts again.
  int32_t rounds_per_start() const;
  int32_t pages_per_slot(int32_t block_size) const;
};

// REQUIRES: no slot and no page is in use; both hold again afterwards. The round drafts. kResourceExhausted when the
// device has no memory for a slot's sampling state.
Result<CostModel> measure_costs(StepExecutor& round, const MeasurePlan& plan,
                                const std::function<void(double)>& progress);

// The same with any way to run a round, for tests.
struct RoundGeometry {
  int32_t block_size = 0;
  std::vector<int32_t> draft_lengths, row_buckets;  // as in BudgetConfig
  int32_t most_shared_rows = 0;
};
using RunRound = std::function<Result<CostSample>(const RoundShape&)>;
Result<CostModel> measure_costs(const RoundGeometry& geometry, const MeasurePlan& plan, const RunRound& run,
                                const std::function<void(double)>& progress);

// The cost of a position of context: its bytes at the speed at which a plain round reads weights, plus its products at
// the speed at which rows are multiplied with weights. A guess, which rounds correct.
KvCosts guess_kv_costs(const MeasurePlan& plan, std::span<const CostSample> samples);

}  // namespace volley::decode
