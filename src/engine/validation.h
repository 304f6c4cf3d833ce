// Whether a request can be run as it stands, and options that say how. One sentence for each thing that can be wrong,
// each kInvalidArgument. Threads: any.
#pragma once

#include <volley/engine.h>

namespace volley::engine {

Status check_request(const GenerateRequest& request, const EngineInfo& info);
Status check_simulation(const SimulatedAcceptance& simulated);
Status check_verify(const VerifyPolicy& policy, int block_size);

}  // namespace volley::engine
