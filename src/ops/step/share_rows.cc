#include <algorithm>
#include <tuple>
#include <vector>

#include "ops/step/step.h"
#include "ops/step/step_kernels.h"
#include "ops/step/step_rule.h"

namespace volley::ops {
namespace {

void share_verify_rows_cpu(Stream& stream, const Step& step, StepSegment* segments, const SharePlan& plan) {
  if (stream.dry()) return;
  struct Candidate {
    float survival;
    int32_t position, segment;
  };
  std::vector<Candidate> candidates;
  int32_t left = plan.rows;
  for (int32_t s = 0; s < plan.decoding; ++s) {
    const bool lives = step.slots[segments[s].slot].done == 0;
    left -= segments[s].known;
    VOLLEY_CHECK_LE(segments[s].draft, plan.stride);
    float survival = 1;
    for (int32_t j = 0; j < segments[s].draft; ++j) {
      const float confidence = step::draft_confidence(segments[s], plan, j);
      if (plan.reported != nullptr) plan.reported[s * plan.stride + j] = confidence;
      if (plan.table != nullptr) survival *= acceptance_chance(*plan.table, j, confidence, segments[s].shift);
      if (lives) candidates.push_back({survival, j, s});
    }
  }
  if (plan.rows == SharePlan::kAll) return;
  VOLLEY_CHECK_GE(left, 0);
  std::ranges::sort(candidates, [](const Candidate& a, const Candidate& b) {
    return std::tuple(-a.survival, a.position, a.segment) < std::tuple(-b.survival, b.position, b.segment);
  });
  candidates.resize(std::min(candidates.size(), static_cast<size_t>(left)));
  std::vector<int32_t> verified(plan.decoding);
  for (const Candidate& candidate : candidates) ++verified[candidate.segment];
  int32_t row = 0;
  for (int32_t s = 0; s < plan.decoding; ++s) {
    const int32_t rows = segments[s].known + verified[s];
    const int32_t reserve = s + 1 < plan.decoding ? 0 : plan.rows - row - rows;
    step::place_segment(segments[s], row, verified[s], reserve);
    row += rows;
  }
}

}  // namespace

const ShareKernels ShareKernels::kCpu = {share_verify_rows_cpu};

void share_verify_rows(Stream& stream, const Step& step, StepSegment* segments, const SharePlan& plan) {
  VOLLEY_CHECK(plan.decoding <= step.n && (plan.rows == SharePlan::kAll || plan.table != nullptr));
  if (plan.decoding == 0) return;
  kernels_on<ShareKernels>(stream).share_verify_rows(stream, step, segments, plan);
}

}  // namespace volley::ops
