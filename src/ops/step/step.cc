#include "ops/step/step.h"

#include "ops/step/step_rule.h"
#ifdef VOLLEY_CUDA
#include "ops/step/step_cuda.h"
#endif

// On the CPU all of this is a few writes for each row: waking the pool would cost more.
namespace volley::ops {
namespace {

bool on_cuda(const Stream& stream) {
#ifndef VOLLEY_CUDA
  VOLLEY_CHECK_MSG(stream.kind() == DeviceKind::kCpu, "step: this build has no CUDA kernels");
#endif
  return stream.kind() == DeviceKind::kCuda;
}

}  // namespace

void fill_draft_rows(Stream& stream, const Step& step, int32_t block_size, TokenId mask_token,
                     const Visibility& visibility, const Rows& rows, const PassChoices& choices) {
  VOLLEY_CHECK(visibility.layer_window == 0 || rows.views[kWindowView].begin.data != nullptr);
  if (step.n == 0) return;
#ifdef VOLLEY_CUDA
  if (on_cuda(stream)) return fill_draft_rows_cuda(stream, step, block_size, mask_token, visibility, rows, choices);
#endif
  VOLLEY_CHECK(!on_cuda(stream));
  for (int32_t s = 0; s < step.n; ++s) {
    if (step.segments[s].block_index < 0) continue;
    for (int32_t i = 0; i < block_size; ++i) {
      step::fill_draft_row(step, step.segments[s], block_size, mask_token, visibility, rows, choices, i);
    }
  }
}

void fill_verify_rows(Stream& stream, const Step& step, const TokenId* drafts, const Visibility& visibility,
                      const Rows& rows, const PassChoices& choices) {
  VOLLEY_CHECK(visibility.layer_window == 0 || rows.views[kWindowView].begin.data != nullptr);
  if (step.n == 0) return;
#ifdef VOLLEY_CUDA
  if (on_cuda(stream)) return fill_verify_rows_cuda(stream, step, drafts, visibility, rows, choices);
#endif
  VOLLEY_CHECK(!on_cuda(stream));
  for (int32_t s = 0; s < step.n; ++s) {
    for (int32_t i = 0; i < step.segments[s].rows_reserved; ++i) {
      step::fill_verify_row(step, s, drafts, visibility, rows, choices, i);
    }
    step::fill_verify_segment(step, s, drafts, rows, choices);
  }
}

void accept_step(Stream& stream, const Step& step, const AcceptInputs& in, const AcceptOutputs& out) {
  if (step.n == 0) return;
#ifdef VOLLEY_CUDA
  if (on_cuda(stream)) return accept_step_cuda(stream, step, in, out);
#endif
  VOLLEY_CHECK(!on_cuda(stream));
  for (int32_t s = 0; s < step.n; ++s) {
    const StepSegment& segment = step.segments[s];
    VOLLEY_CHECK_LT(segment.draft, out.stride);
    out.outcomes[s] =
        step::accept_segment(segment, step.slots[segment.slot], in, out.tokens + static_cast<int64_t>(s) * out.stride);
    out.slots[s] = segment.slot;
    out.counts[s] = out.outcomes[s].committed;
  }
}

void edit_page_table(Stream& stream, const PageTableEdit* edits, int32_t n, TensorView table) {
  if (n == 0) return;
#ifdef VOLLEY_CUDA
  if (on_cuda(stream)) return edit_page_table_cuda(stream, edits, n, table);
#endif
  VOLLEY_CHECK(!on_cuda(stream));
  for (int32_t i = 0; i < n; ++i) {
    VOLLEY_CHECK(edits[i].index >= 0 && edits[i].index < table.dim(1));
    table.as<int32_t>()[edits[i].slot * table.dim(1) + edits[i].index] = edits[i].page;
  }
}

}  // namespace volley::ops
