#include "ops/replay/replay.h"

#include "ops/replay/replay_rule.h"
#ifdef VOLLEY_CUDA
#include "ops/replay/replay_cuda.h"
#endif

namespace volley::ops {

void replay_drafts(Stream& stream, const Step& step, const ReplayTable& table, TokenId* tokens, float* confidence) {
  VOLLEY_CHECK(table.vocab > 1 && table.answers >= 0);
  if (step.n == 0) return;
#ifdef VOLLEY_CUDA
  if (stream.kind() == DeviceKind::kCuda) return replay_drafts_cuda(stream, step, table, tokens, confidence);
#endif
  VOLLEY_CHECK_MSG(stream.kind() == DeviceKind::kCpu, "replay_drafts: this build has no CUDA kernels");
  for (int32_t s = 0; s < step.n; ++s) {
    const StepSegment& segment = step.segments[s];
    if (segment.block_index < 0) continue;
    for (int32_t i = 0; i < segment.draft; ++i) replay::propose(step, segment, table, i, tokens, confidence);
  }
}

}  // namespace volley::ops
