// Ids of tool calls for templates that only take some: Mistral's nine letters and digits, Kimi's counted names. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/api/conversation.h"

namespace volley::serve {

// Returns an id of this form unchanged; any other gives nine letters and digits, always the same.
std::string short_call_id(std::string_view id);

void shorten_call_ids(std::vector<ChatMessage>& messages);
// Makes the history's ids "functions.NAME:N", counted over its calls.
void count_call_ids(std::vector<ChatMessage>& messages);

}  // namespace volley::serve
