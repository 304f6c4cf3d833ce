// A request's constraints on its text: fields of OpenAI (response_format), vLLM (structured_outputs and the older
// guided_ ones), SGLang (regex, ebnf, json_schema) and llama.cpp (grammar), all read into one GrammarSpec. Pure.
#pragma once

#include <volley/engine.h>

#include <optional>
#include <string>
#include <string_view>

#include "serve/json/fields.h"

namespace volley::serve {

// `body`: the JSON text that `in` reads. Schemas are copied from it unchanged, because properties are generated in the
// schema's order. Several constraints are an error that names them. The engine checks whether a grammar compiles.
// `open_objects`: whether schemas' objects may have unnamed properties; set from the request. `own_field`: the field of
// the client's API that `out` comes from, if set. Returns the field with the constraint; may be empty.
std::string read_grammar(FieldReader& in, std::string_view body, bool& open_objects, std::optional<GrammarSpec>& out,
                         const std::string& own_field = {});

// Reads a text's format in the Responses API's form, from the field of this name. `raw`: the text that `format` reads.
std::optional<GrammarSpec> read_text_format(FieldReader& format, std::string_view raw, const std::string& field);

}  // namespace volley::serve
