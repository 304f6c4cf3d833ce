// Whether a request can be run as it stands. One sentence for each thing that can be wrong.
#pragma once

#include <volley/engine.h>

namespace volley::engine {

Status check_request(const GenerateRequest& request, const EngineInfo& info);

}  // namespace volley::engine
