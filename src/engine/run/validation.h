// Whether a request can be run as it stands, and options that say how. One sentence for each thing that can be wrong,
// each kInvalidArgument but where it says otherwise. Threads: any.
#pragma once

#include <volley/engine.h>

#include "device/device.h"

namespace volley::engine {

Status check_request(const GenerateRequest& request, const EngineInfo& info);
Status check_verify(const VerifyPolicy& policy, int block_size);
// EngineOptions::nnodes and what goes with it, in their ranges. kUnimplemented: what is not built for several nodes.
Status check_nodes(const EngineOptions& options);
// EngineOptions::enable_expert_parallel. kUnimplemented: what is not built where replicas divide the experts.
Status check_expert_parallel(const EngineOptions& options, DeviceKind device, bool has_experts);

}  // namespace volley::engine
