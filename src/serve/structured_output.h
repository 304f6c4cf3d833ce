// What a request says about the form of its text: the fields of OpenAI (response_format), vLLM (structured_outputs and
// the older guided_ ones), SGLang (regex, ebnf, json_schema) and llama.cpp (grammar), all read into one GrammarSpec.
// Pure.
#pragma once

#include <volley/engine.h>

#include <optional>
#include <string>
#include <string_view>

#include "serve/fields.h"

namespace volley::serve {

// `body`: the JSON text that `in` reads; schemas are taken from it unchanged, because the order of a schema's
// properties is the order in which they are generated. More than one constraint is an error that names them. Whether a
// grammar compiles is the engine's to say.
// Returns the name of the field that holds it, empty if there is none.
std::string read_grammar(FieldReader& in, std::string_view body, std::optional<GrammarSpec>& out);

}  // namespace volley::serve
