// Request fields that OpenAI, vLLM, SGLang or llama.cpp have and this server does not: those that cannot change an
// answer of this server are ignored, all others are refused by name unless their value asks for nothing.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/json/fields.h"

namespace volley::serve {

struct InertField {
  std::string_view name;
  std::string_view reason;  // why it changes nothing here: a sentence without its stop
};

struct UnbuiltField {
  std::string_view name;
  std::string_view neutral;  // a JSON list of the values that ask for nothing, null beside them
  std::string_view instead;  // what to do about it: the end of a sentence
};

std::span<const InertField> inert_fields();
std::span<const UnbuiltField> unbuilt_fields();

// Fields of this server's other endpoints, by the one that has not got them.
std::span<const UnbuiltField> not_in_chats();
std::span<const UnbuiltField> not_in_completions();
// Fields of chat completions that the other APIs of chats have not got under any name.
std::span<const UnbuiltField> only_in_chats();

// Fails for those of these fields whose value asks for something.
void refuse_fields(FieldReader& in, std::span<const UnbuiltField> fields);

// The names of the inert fields that were sent.
std::vector<std::string> read_inert_fields(FieldReader& in);

}  // namespace volley::serve
