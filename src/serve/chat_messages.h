// What a request gives to the chat template: messages and variables. Pure.
#pragma once

#include <volley/engine.h>

#include <string_view>

#include "serve/fields.h"

namespace volley::serve {

// "messages". Templates print values, so they get the client's own bytes of each message, except that a list of text
// parts becomes one string and that null members but the content are left out. `body`: the JSON text that `in` reads.
void read_messages(FieldReader& in, std::string_view body, ChatMessages& chat);

// add_generation_prompt, continue_final_message, chat_template_kwargs, and what is a variable of the template under a
// name of its own: documents, reasoning_effort.
void read_template_fields(FieldReader& in, std::string_view body, ChatMessages& chat);

}  // namespace volley::serve
