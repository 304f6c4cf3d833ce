// Reads the conversation of a request to /v1/messages: turns of blocks. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "serve/api/conversation.h"
#include "serve/api/hosted_tools.h"
#include "serve/json/fields.h"
#include "serve/messages/messages_tools.h"

namespace volley::serve {

// "system": a text or a list of text blocks. False after an error.
bool read_system(FieldReader& in, const nlohmann::json& system, ChatTurns& turns);

// "messages", a list with text `raw`. `sees`: the model takes pictures. Blocks may load and unload `tools`. `notes`:
// what is left out. False: an error.
bool read_message_list(FieldReader& in, const nlohmann::json& messages, std::string_view raw, bool sees,
                       ChatTurns& turns, MessagesTools& tools, Notes& notes);

}  // namespace volley::serve
