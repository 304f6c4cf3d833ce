#include "ops/replay/replay.h"

#include "ops/replay/replay_kernels.h"
#include "ops/replay/replay_rule.h"

namespace volley::ops {
namespace {

void replay_drafts_cpu(Stream& stream, const Step& step, const ReplayTable& table, TokenId* tokens, float* confidence) {
  if (stream.dry()) return;
  for (int32_t s = 0; s < step.n; ++s) {
    const StepSegment& segment = step.segments[s];
    if (segment.block_index < 0) continue;
    for (int32_t i = 0; i < segment.draft; ++i) replay::propose(step, segment, table, i, tokens, confidence);
  }
}

}  // namespace

const ReplayKernels ReplayKernels::kCpu = {replay_drafts_cpu};

void replay_drafts(Stream& stream, const Step& step, const ReplayTable& table, TokenId* tokens, float* confidence) {
  VOLLEY_CHECK(table.vocab > 1 && table.answers >= 0);
  if (step.n == 0) return;
  kernels_on<ReplayKernels>(stream).replay_drafts(stream, step, table, tokens, confidence);
}

}  // namespace volley::ops
