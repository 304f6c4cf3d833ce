// Reads the fields that both generation endpoints share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/openai_request.h"
#include "serve/json/fields.h"

namespace volley::serve {

constexpr int kMaxLogprobs = 20;

// Model, sampling, limits, number of choices, streaming, structured output. Set out.kind, out.prompts and out.echo
// before; also max_tokens, stop and a grammar if the client's API has names of its own for them. `body`: the JSON text
// that `in` reads.
void read_common_fields(FieldReader& in, std::string_view body, const RequestRules& rules, ApiRequest& out);

// Reads the model's name, which must be served here; the default is the first served one.
void read_model(FieldReader& in, const RequestRules& rules, std::string& model);

void read_stop(FieldReader& in, std::string_view name, std::vector<std::string>& stop);

// Reads token ids below vocab_size; false after an error.
bool read_token_ids(FieldReader& in, std::string_view field, const nlohmann::json& list, int vocab_size,
                    std::vector<TokenId>& out);

}  // namespace volley::serve
