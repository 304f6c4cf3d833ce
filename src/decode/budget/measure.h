// Measures the cost of a round on this device by timing rounds of made-up requests.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "decode/budget/cost_model.h"
#include "decode/step_executor.h"

namespace volley::decode {

struct MeasurePlan {
  int32_t slots = 0;     // slots of the round
  int32_t max_rows = 0;  // rows of a pass
  int32_t page_size = 0;
  int64_t pages = 0;  // uses pages 0 to pages - 1
  // Bytes of a position's K and V in the target and in each drafter, and of the weights that the target reads for a
  // single row. Only routed experts count.
  double target_kv_bytes = 0;
  std::vector<double> draft_kv_bytes;
  double target_weight_bytes = 0;
  ExpertCosts experts;            // the target's, without seconds
  double experts_share = 1;       // the round's count of touched experts is this share of all
  int32_t vocab = 1;              // made-up requests hold different tokens, so that their experts differ
  int32_t heads_per_kv_head = 1;  // in the target
  int32_t max_model_len = 0;      // tokens of a request; at least 2
  double seconds = 3;             // no round begins after this time; missing points are extrapolated

  // Rounds until a made-up request starts again, because its sequence grows by a token a round.
  int32_t rounds_per_start() const;
  int32_t pages_per_slot(int32_t block_size) const;
};

// REQUIRES: the round drafts, and no slot and no page is in use; both are free again afterwards. kResourceExhausted
// when the device has no memory for a slot's sampling state.
Result<CostModel> measure_costs(StepExecutor& round, const MeasurePlan& plan,
                                const std::function<void(double)>& progress);

// A round's sizes for the overload below; tests pass their own way to run one.
struct RoundGeometry {
  int32_t block_size = 0;
  std::vector<std::vector<int32_t>> draft_lengths;  // this and the next as in BudgetConfig
  std::vector<int32_t> row_buckets;
  int32_t most_shared_rows = 0;
};
using RunRound = std::function<Result<CostSample>(const RoundShape&)>;
Result<CostModel> measure_costs(const RoundGeometry& geometry, const MeasurePlan& plan, const RunRound& run,
                                const std::function<void(double)>& progress);

// Guesses the cost of a position of context. Its bytes are read as fast as a plain round reads weights, and its
// products run as fast as rows are multiplied with weights. Rounds correct the guess.
KvCosts guess_kv_costs(const MeasurePlan& plan, std::span<const CostSample> samples);

}  // namespace volley::decode
