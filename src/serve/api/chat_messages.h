// What a request gives to the chat template: messages and variables. Pure.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "serve/api/conversation.h"
#include "serve/api/hosted_tools.h"
#include "serve/json/fields.h"

namespace volley::serve {

// The parts that a list may hold in place of a text.
struct PartTypes {
  using LeftOut = std::pair<std::string_view, std::string_view>;  // a type, and what it is to people

  std::string_view field;                   // of the request
  std::string_view supported;               // the end of a sentence on any other type
  std::span<const std::string_view> texts;  // the types of texts
  std::span<const LeftOut> left_out = {};   // of which the model reads that they were there
};

// Appends what a part says. `where`: of the part. False: `in` has an error.
bool read_part(FieldReader& in, const PartTypes& types, const nlohmann::json& part, const std::string& where,
               Notes& notes, std::string& out);

// Appends a text, or the parts of a list joined by line ends, each by `read`. False: `in` has an error.
using ReadPart = std::function<bool(const nlohmann::json& part, const std::string& where, std::string& out)>;
bool read_parts(FieldReader& in, std::string_view field, const nlohmann::json& content, const std::string& where,
                std::string& out, const ReadPart& read);

// "messages": a list of text parts becomes one string, calls of custom tools become those of functions, and null
// members are left out. Templates print values, so others keep what the client wrote. `body`: the JSON text that `in`
// reads.
void read_messages(FieldReader& in, std::string_view body, Conversation& chat, Notes& notes);

// A conversation of the C++ API, whose messages are those of a chat completion. kInvalidArgument.
Result<Conversation> conversation_of(const ChatMessages& chat);

// add_generation_prompt, continue_final_message, chat_template_kwargs, and what is a variable of the template under a
// name of its own: documents, reasoning_effort.
void read_template_fields(FieldReader& in, std::string_view body, Conversation& chat);

}  // namespace volley::serve
