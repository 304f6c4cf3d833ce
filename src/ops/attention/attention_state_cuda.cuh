// Partial results of attention and how they merge: one place for the arithmetic, so that the order is always the same.
#pragma once

#include "ops/attention/warp_products.cuh"

namespace volley::ops {

// The reference of scores: the maximum, or zero before any position was seen.
__device__ inline float reference_of(float maximum) {
  return maximum == -INFINITY ? 0.0f : maximum;
}

// Factors of the merged and of the new partial result; the maximum becomes that of both.
struct MergeFactors {
  float old, added;
};
__device__ inline MergeFactors merge_maximum(float& maximum, float added) {
  const float merged = fmaxf(maximum, added);
  const float reference = reference_of(merged);
  const MergeFactors factors = {exp2_quick(maximum - reference), exp2_quick(added - reference)};
  maximum = merged;
  return factors;
}
__device__ inline float merge(float old, float added, MergeFactors factors) {
  return fmaf(added, factors.added, old * factors.old);
}

// The inverse of a row's sum, relative to the same maximum as the merged outputs. sinks: a logit for each head; or
// null. A sink is merged like a partial result of one position without V, after all others.
__device__ inline float inverse_sum(const float* sinks, int head, float maximum, float sum) {
  if (sinks == nullptr) return 1.0f / sum;
  const MergeFactors factors = merge_maximum(maximum, sinks[head] * 1.44269504f);
  return factors.old / merge(sum, 1.0f, factors);
}

// Adding zero makes one zero of the two, so that positions hidden by a probability of zero cannot show in its sign.
__device__ inline float finish(float output, float factor) {
  return output * factor + 0.0f;
}

}  // namespace volley::ops
