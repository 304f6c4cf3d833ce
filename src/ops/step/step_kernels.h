// The kernels of step.h. Private to this folder; arguments are checked in step.cc and share_rows.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/step/step.h"

namespace volley::ops {

struct StepKernels {
  void (*fill_draft_rows)(Stream& stream, const Step& step, const DraftBlock& block, const Visibility& visibility,
                          const Rows& rows, const PassChoices& choices);
  void (*fill_verify_rows)(Stream& stream, const Step& step, const TokenId* drafts, const Visibility& visibility,
                           const Rows& rows, const PassChoices& choices);
  void (*accept_step)(Stream& stream, const Step& step, const AcceptInputs& in, const AcceptOutputs& out);
  void (*edit_page_table)(Stream& stream, const PageTableEdit* edits, int32_t n, TensorView table);
  void (*take_masks)(Stream& stream, const StepMasks& masks);

  static const StepKernels kCpu, kCuda;
};

struct ShareKernels {
  void (*share_verify_rows)(Stream& stream, const Step& step, StepSegment* segments, const SharePlan& plan);

  static const ShareKernels kCpu, kCuda;
};

}  // namespace volley::ops
