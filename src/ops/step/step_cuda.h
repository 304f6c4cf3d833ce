// The CUDA versions of step.h. Private to this folder.
#pragma once

#include "ops/step/step.h"

namespace volley::ops {

void fill_draft_rows_cuda(Stream& stream, const Step& step, int32_t block_size, TokenId mask_token,
                          const Visibility& visibility, const Rows& rows, const PassChoices& choices);
void fill_verify_rows_cuda(Stream& stream, const Step& step, const TokenId* drafts, const Visibility& visibility,
                           const Rows& rows, const PassChoices& choices);
void share_verify_rows_cuda(Stream& stream, const Step& step, StepSegment* segments, const SharePlan& plan);
void accept_step_cuda(Stream& stream, const Step& step, const AcceptInputs& in, const AcceptOutputs& out);
void edit_page_table_cuda(Stream& stream, const PageTableEdit* edits, int32_t n, TensorView table);

}  // namespace volley::ops
