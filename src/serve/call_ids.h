// Ids of tool calls for templates of Mistral's, which refuse any but nine letters and digits. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace volley::serve {

// The id itself if it has this form, else nine letters and digits made of it: the same for the same id.
std::string short_call_id(std::string_view id);

// Messages (a JSON array of objects) with short ids of calls, and of the calls that results answer. All else keeps its
// bytes.
std::string with_short_call_ids(std::string_view messages_json);

}  // namespace volley::serve
