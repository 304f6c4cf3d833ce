// Declarations of tools in TypeScript, which Kimi K2.5 and later are shown in place of JSON. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace volley::serve {

// tools_json: an array of functions. Nothing if there is no function, or a schema has no such form; the template then
// prints JSON. Source: tool_declaration_ts.py of the published checkpoints.
std::optional<std::string> typescript_tools(std::string_view tools_json);

}  // namespace volley::serve
