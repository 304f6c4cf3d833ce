#pragma once

#include "ops/replay/replay.h"

namespace volley::ops {

void replay_drafts_cuda(Stream& stream, const Step& step, const ReplayTable& table, TokenId* tokens, float* confidence);

}  // namespace volley::ops
