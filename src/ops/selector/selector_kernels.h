// The kernels of this folder. Private to it; arguments are checked in selector.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/selector/selector.h"

namespace volley::ops {

// The candidates of each row, the best first; where a row has fewer than top_k, the rest are kNone.
struct Candidates {
  static constexpr TokenId kNone = -1;
  TensorView logits;  // [rows, top_k] fp32
  TensorView ids;     // [rows, top_k] int32
};

struct SelectorKernels {
  void (*find_candidates)(Stream& stream, TensorView logits, const Candidates& candidates);
  void (*walk)(Stream& stream, const SelectorTask& task, const Candidates& candidates);

  static const SelectorKernels kCpu, kCuda;
};

}  // namespace volley::ops
