// Request fields of OpenAI, vLLM, SGLang and llama.cpp that this server lacks. A field that cannot change an answer
// here is ignored. Any other is refused by name, unless its value asks for nothing.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/json/fields.h"

namespace volley::serve {

struct InertField {
  std::string_view name;
  std::string_view reason;  // why it changes nothing: a sentence without its full stop
};

struct UnbuiltField {
  std::string_view name;
  std::string_view neutral;  // JSON list of values, beside null, that ask for nothing
  std::string_view instead;  // the remedy, as the end of a sentence
};

std::span<const InertField> inert_fields();
std::span<const UnbuiltField> unbuilt_fields();

// Fields of this server's other endpoints, by the endpoint that lacks them.
std::span<const UnbuiltField> not_in_chats();
std::span<const UnbuiltField> not_in_completions();
// Fields of chat completions that the other chat APIs have under no name.
std::span<const UnbuiltField> only_in_chats();

// Fails for each of these fields whose value asks for something.
void refuse_fields(FieldReader& in, std::span<const UnbuiltField> fields);

// The names of the inert fields in the request.
std::vector<std::string> read_inert_fields(FieldReader& in);

}  // namespace volley::serve
