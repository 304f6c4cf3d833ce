// The description of this API that GET /openapi.json answers with.
#pragma once

#include <string_view>

namespace volley::serve {

// openapi.json beside this header, embedded, with the version of the program.
std::string_view openapi_text();

// The same with the fields of other servers (foreign_fields.h), which openapi.json leaves out.
std::string_view openapi_document();

}  // namespace volley::serve
