#include "ops/step/step.h"

#include <algorithm>

#include "ops/step/step_kernels.h"
#include "ops/step/step_rule.h"

// On the CPU all of this is a few writes for each row: waking the pool would cost more.
namespace volley::ops {
namespace {

void fill_draft_rows_cpu(Stream& stream, const Step& step, const DraftBlock& block, const Visibility& visibility,
                         const Rows& rows, const PassChoices& choices) {
  if (stream.dry()) return;
  for (int32_t s = 0; s < step.n; ++s) {
    if (step.segments[s].block_index < 0) continue;
    for (int32_t i = 0; i < block.rows; ++i) {
      step::fill_draft_row(step, step.segments[s], block, visibility, rows, choices, i);
    }
  }
}

void fill_verify_rows_cpu(Stream& stream, const Step& step, const TokenId* drafts, const Visibility& visibility,
                          const Rows& rows, const PassChoices& choices) {
  if (stream.dry()) return;
  for (int32_t s = 0; s < step.n; ++s) {
    for (int32_t i = 0; i < step.segments[s].rows_reserved; ++i) {
      step::fill_verify_row(step, s, drafts, visibility, rows, choices, i);
    }
    step::fill_verify_segment(step, s, drafts, rows, choices);
  }
}

void accept_step_cpu(Stream& stream, const Step& step, const AcceptInputs& in, const AcceptOutputs& out) {
  if (stream.dry()) return;
  for (int32_t s = 0; s < step.n; ++s) {
    const StepSegment& segment = step.segments[s];
    VOLLEY_CHECK_LT(segment.draft, out.stride);
    out.outcomes[s] =
        step::accept_segment(segment, step.slots[segment.slot], in, out.tokens + static_cast<int64_t>(s) * out.stride);
    out.slots[s] = segment.slot;
    out.counts[s] = out.outcomes[s].committed;
  }
}

void edit_page_table_cpu(Stream& stream, const PageTableEdit* edits, int32_t n, TensorView table) {
  if (stream.dry()) return;
  for (int32_t i = 0; i < n; ++i) {
    VOLLEY_CHECK(edits[i].index >= 0 && edits[i].index < table.dim(1));
    table.as<int32_t>()[edits[i].slot * table.dim(1) + edits[i].index] = edits[i].page;
  }
}

void take_masks_cpu(Stream& stream, const StepMasks& masks) {
  if (stream.dry() || masks.ticket->rows == 0) return;
  VOLLEY_CHECK(*masks.filled >= masks.ticket->step);
  std::copy_n(masks.from, int64_t{masks.ticket->rows} * masks.words, masks.to);
}

}  // namespace

const StepKernels StepKernels::kCpu = {fill_draft_rows_cpu, fill_verify_rows_cpu, accept_step_cpu, edit_page_table_cpu,
                                       take_masks_cpu};

void take_masks(Stream& stream, const StepMasks& masks) {
  kernels_on<StepKernels>(stream).take_masks(stream, masks);
}

void fill_draft_rows(Stream& stream, const Step& step, const DraftBlock& block, const Visibility& visibility,
                     const Rows& rows, const PassChoices& choices) {
  VOLLEY_CHECK(block.first_proposal >= 0 && block.first_proposal < block.rows);
  VOLLEY_CHECK(visibility.layer_window == 0 || rows.views[kWindowView].begin.data != nullptr);
  if (step.n == 0) return;
  kernels_on<StepKernels>(stream).fill_draft_rows(stream, step, block, visibility, rows, choices);
}

void fill_verify_rows(Stream& stream, const Step& step, const TokenId* drafts, const Visibility& visibility,
                      const Rows& rows, const PassChoices& choices) {
  VOLLEY_CHECK(visibility.layer_window == 0 || rows.views[kWindowView].begin.data != nullptr);
  VOLLEY_CHECK((step.axes == nullptr) == (rows.rope_axes.data == nullptr));
  if (step.n == 0) return;
  kernels_on<StepKernels>(stream).fill_verify_rows(stream, step, drafts, visibility, rows, choices);
}

void accept_step(Stream& stream, const Step& step, const AcceptInputs& in, const AcceptOutputs& out) {
  if (step.n == 0) return;
  kernels_on<StepKernels>(stream).accept_step(stream, step, in, out);
}

void edit_page_table(Stream& stream, const PageTableEdit* edits, int32_t n, TensorView table) {
  if (n == 0) return;
  kernels_on<StepKernels>(stream).edit_page_table(stream, edits, n, table);
}

}  // namespace volley::ops
