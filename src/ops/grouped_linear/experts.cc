#include "ops/grouped_linear/experts.h"

#include <algorithm>

#include "base/math.h"
#include "ops/grouped_linear/grouped_linear_kernels.h"

namespace volley::ops {
namespace {

constexpr int64_t kMostMeanEntries = 32;  // mean entries of an expert: with more, tiles of more rows are faster
constexpr int64_t kLeastTileRows = 16;

void in_three_steps(Stream& stream, const ExpertsCall& call, const Routing& routing) {
  grouped_linear(stream, call.gate_up, call.x, routing, call.inner, {.rows = GroupedRows::kIn}, call.gate_up_end);
  grouped_linear(stream, call.down, call.inner, routing, call.outer, {.rows = GroupedRows::kOut, .routing_ready = true},
                 call.down_end);
  combine_experts(stream, routing, call.outer, call.y);
}

}  // namespace

int64_t experts_counters(const RouterRule& rule, int64_t rows) {
  const int64_t entries = rows * rule.top_k;
  if (entries > kMostMeanEntries * rule.experts) return 0;
  // One counts the tiles that are handed out; one for each tile of rows counts its panels that are written.
  return 1 + rule.own() + entries / kLeastTileRows;
}

bool experts_gain_from_counters(const RouterRule& rule, int64_t inner, int64_t rows) {
  // If each tile of gate and up has a multiprocessor to itself, all tiles end at once, and one kernel gains nothing by
  // going on to down. Two kernels are then faster, because that for down starts on the idle multiprocessors (one row of
  // 8 experts of 768: 25 instead of 28 us).
  constexpr int64_t kProcessors = 132, kTileOutputs = 64;
  const int64_t entries = divide_up(rows * rule.top_k * rule.own(), rule.experts);  // mean number of entries here
  const int64_t row_tiles = std::min<int64_t>(entries, rule.own());
  return experts_counters(rule, rows) > 0 && row_tiles * divide_up(inner, kTileOutputs) > kProcessors;
}

void experts_ffn(Stream& stream, const ExpertsCall& call, const Routing& routing) {
  const auto one_kernel = kernels_on<GroupedLinearKernels>(stream).experts_ffn;
  if (one_kernel != nullptr && call.counters.rank > 0 && routing.rows() > 0 && one_kernel(stream, call, routing))
    return;
  in_three_steps(stream, call, routing);
}

}  // namespace volley::ops
