// Ids of tool calls for templates of Mistral's, which refuse any but nine letters and digits. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/api/conversation.h"

namespace volley::serve {

// The id itself if it has this form, else nine letters and digits made of it: the same for the same id.
std::string short_call_id(std::string_view id);

// Shortens the ids of calls, and the ids by which results name their calls.
void shorten_call_ids(std::vector<ChatMessage>& messages);

}  // namespace volley::serve
