// The kernels of this folder. Private to it; arguments are checked in selector.cc.
#pragma once

#include <cmath>

#include "base/host_device.h"
#include "ops/kernels.h"
#include "ops/selector/selector.h"

namespace volley::ops {

VOLLEY_HOST_DEVICE inline float sigmoid_of(float x) {
  return 1 / (1 + expf(-x));
}

// q[j] (selector.h). raw: hidden + W's product, [hidden * rank]; state: s[j] of Scoring::kRecurrent, which changes.
VOLLEY_HOST_DEVICE inline float query_element(Scoring scoring, const float* raw, int64_t rank, int64_t j, float e,
                                              float& state) {
  switch (scoring) {
    case Scoring::kProduct:
      return e * raw[j];
    case Scoring::kGated:
      return sigmoid_of(raw[j]) * e;
    case Scoring::kRecurrent: {
      const float gate = sigmoid_of(raw[j]);
      state = gate * state + (1 - gate) * tanhf(raw[rank + j]);
      return tanhf(raw[2 * rank + j]);
    }
    default:
      return e;
  }
}

// Whether a slot's filters (of choice::SlotRule or choice::DeviceRule) keep a candidate of this score, given the
// highest one and how many are before it in the order of scores, as far as no sum of weights decides.
template <typename Rule>
VOLLEY_HOST_DEVICE bool counts(const Rule& rule, bool min_p, float score, float highest, int32_t before) {
  return (rule.top_k == 0 || before < rule.top_k) && (!min_p || score - highest >= rule.log_min_p);
}

struct SelectorKernels {
  void (*select)(Stream& stream, const SelectorTask& task, Arena& scratch);

  static const SelectorKernels kCpu, kCuda;
};

}  // namespace volley::ops
