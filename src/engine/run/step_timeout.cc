#include "engine/run/step_timeout.h"

#include <algorithm>
#include <cmath>

#include "decode/mask_threads.h"
#include "decode/step_weights.h"

namespace volley::engine {
namespace {

constexpr double kOnCpu = 1800, kBesideOthers = 60;
constexpr double kSlowest = 5e12, kSlowestF32 = 0.5e12;  // FLOP/s

// Counts attention scores and sums of values.
double flops_of_position(const model::Decoder& decoder) {
  double flops = 0;
  for (const model::Layer& layer : decoder.layers) {
    if (const auto kv = layer.mixer_facts().kv) flops += 4.0 * kv->heads * kv->head_dim;
  }
  return flops;
}

}  // namespace

double StepTimeout::more(const sched::StepPlan& plan) const {
  double positions = 0;
  for (const sched::PlannedSegment& segment : plan.segments) {
    const double rows = segment.known + segment.draft;
    positions += rows * (segment.start + rows);
  }
  return plan.rows * row + positions * position;
}

StepTimeout step_timeout(const EngineOptions& options, const ResolvedModels& models) {
  if (options.step_timeout_s >= 0) return {static_cast<double>(options.step_timeout_s)};
  if (models.device.kind == DeviceKind::kCpu) return {kOnCpu};
  if (models.nodes > 1 || models.expert_replicas > 1) return {kBesideOthers};
  const double rate = models.target_numerics.activation == DType::kF32 ? kSlowestF32 : kSlowest;
  const model::Decoder& target = models.target.decoder;
  // One drafter drafts in a step. The sum allows for the others, which learn from its rows.
  double positions = flops_of_position(target);
  int64_t weights = decode::step_weights(target, nullptr).multiplied();
  const int64_t of_target = weights;
  for (const ResolvedDrafter& drafter : models.drafters) {
    positions += flops_of_position(drafter.facts().decoder);
    weights += decode::step_weights(target, &drafter.facts()).multiplied() - of_target;
  }
  const double masks = decode::kMaskPatience * options.grammar_mask_timeout_ms * 1e-3;
  const double attention_rate = models.plain_attention ? kSlowestF32 : rate;
  return {kLeastStepTimeout + masks, 2.0 * static_cast<double>(weights) / rate, positions / attention_rate};
}

std::chrono::seconds load_silence(const EngineOptions& options, bool requests_wait) {
  if (options.step_timeout_s == 0) return std::chrono::seconds(0);
  return std::chrono::seconds(std::max(options.step_timeout_s, requests_wait ? 60 : 300));
}

std::string step_hangs(double seconds) {
  return "The device hangs: a step has taken more than " + std::to_string(static_cast<int64_t>(std::ceil(seconds))) +
         " s (--step-timeout).";
}

}  // namespace volley::engine
