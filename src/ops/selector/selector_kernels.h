// The kernels of this folder. Private to it; arguments are checked in selector.cc.
#pragma once

#include <cmath>

#include "base/host_device.h"
#include "ops/kernels.h"
#include "ops/selector/selector.h"

namespace volley::ops {

// The candidates of each row, the best first; where a row has fewer than top_k, the rest are kNone.
struct Candidates {
  static constexpr int32_t kNone = -1;
  TensorView logits;   // [rows, top_k] fp32
  TensorView columns;  // [rows, top_k] int32: of the task's logits
};

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

struct SelectorKernels {
  void (*find_candidates)(Stream& stream, TensorView logits, const Candidates& candidates);
  void (*walk)(Stream& stream, const SelectorTask& task, const Candidates& candidates);

  static const SelectorKernels kCpu, kCuda;
};

}  // namespace volley::ops
