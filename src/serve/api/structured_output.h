// What a request says about the form of its text: the fields of OpenAI (response_format), vLLM (structured_outputs and
// the older guided_ ones), SGLang (regex, ebnf, json_schema) and llama.cpp (grammar), all read into one GrammarSpec.
// Pure.
#pragma once

#include <volley/engine.h>

#include <optional>
#include <string>
#include <string_view>

#include "serve/json/fields.h"

namespace volley::serve {

// `body`: the JSON text that `in` reads; schemas are taken from it unchanged, because the order of a schema's
// properties is the order in which they are generated. More than one constraint is an error that names them. Whether a
// grammar compiles is the engine's to say.
// `open_objects`: whether objects of schemas have more properties than they name; becomes what the request says of it.
// `own_field`: of the client's API, from which `out` is already, if it is there.
// Returns the name of the field that holds it, empty if there is none.
std::string read_grammar(FieldReader& in, std::string_view body, bool& open_objects, std::optional<GrammarSpec>& out,
                         const std::string& own_field = {});

// The format of a text as the Responses API has it, in the field of this name; `raw` is the text that `format` reads.
std::optional<GrammarSpec> read_text_format(FieldReader& format, std::string_view raw, const std::string& field);

}  // namespace volley::serve
