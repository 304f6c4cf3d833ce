// Reads a request's input for the chat template: messages and variables. Pure.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/api/conversation.h"
#include "serve/api/hosted_tools.h"
#include "serve/json/fields.h"

namespace volley::serve {

// Types of parts that a list may hold in place of a text.
struct PartTypes {
  using LeftOut = std::pair<std::string_view, std::string_view>;  // a type, and its name for people

  std::string_view field;                        // the request's field
  std::string_view supported;                    // ends the sentence on an unsupported type
  std::span<const std::string_view> texts;       // types with text
  std::span<const LeftOut> left_out = {};        // types that the model only sees mentioned
  std::vector<ChatPicture>* pictures = nullptr;  // gets the pictures of parts; null: these are not taken
};

// Appends a part's text. `where`: the part's place. False: `in` has an error.
bool read_part(FieldReader& in, const PartTypes& types, const nlohmann::json& part, const std::string& where,
               Notes& notes, std::string& out);

// Appends a text, or the parts of a list, each read by `read` and joined by line ends. False: `in` has an error.
using ReadPart = std::function<bool(const nlohmann::json& part, const std::string& where, std::string& out)>;
bool read_parts(FieldReader& in, std::string_view field, const nlohmann::json& content, const std::string& where,
                std::string& out, const ReadPart& read);

// Reads "messages". A list of text parts becomes one string, calls of custom tools become functions', and null members
// are left out. Other values stay as the client wrote them, because templates print them. `body`: the JSON text that
// `in` reads. `sees`: the model takes pictures.
void read_messages(FieldReader& in, std::string_view body, bool sees, Conversation& chat, Notes& notes);

// Whether a list of messages, as JSON, has parts with pictures.
bool has_pictures(std::string_view messages);

// Reads a conversation of the C++ API, whose messages are those of a chat completion. kInvalidArgument.
Result<Conversation> conversation_of(const ChatMessages& chat, bool sees = false);

// Reads add_generation_prompt, continue_final_message, chat_template_kwargs, and template variables with fields of
// their own: documents, reasoning_effort.
void read_template_fields(FieldReader& in, std::string_view body, Conversation& chat);

}  // namespace volley::serve
