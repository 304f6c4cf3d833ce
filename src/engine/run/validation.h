// Checks requests, and dependent options. Each fault has its sentence, kInvalidArgument by default. Threads: any.
#pragma once

#include <volley/engine.h>

#include "device/device.h"

namespace volley::engine {

Status check_request(const GenerateRequest& request, const EngineInfo& info);
Status check_verify(const VerifyPolicy& policy, int block_size);
// Checks EngineOptions::nnodes and the options that go with it. kUnimplemented: not built for several nodes.
Status check_nodes(const EngineOptions& options);
// Checks EngineOptions::enable_expert_parallel. kUnimplemented: not built where replicas divide the experts.
Status check_expert_parallel(const EngineOptions& options, DeviceKind device, bool has_experts);

}  // namespace volley::engine
