// The description of this API that GET /openapi.json answers with: openapi.json beside this header, embedded.
#pragma once

#include <string_view>

namespace volley::serve {

std::string_view openapi_document();

}  // namespace volley::serve
