// The fields that both generation endpoints share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/openai_request.h"
#include "serve/json/fields.h"

namespace volley::serve {

constexpr int kMaxLogprobs = 20;

// Model, sampling, limits, number of choices, streaming, structured output. out.kind, out.prompts and out.echo must be
// set before, and max_tokens, stop and a grammar where the client's API has names of its own for them. `body`: the JSON
// text that `in` reads.
void read_common_fields(FieldReader& in, std::string_view body, const RequestRules& rules, ApiRequest& out);

// The model's name: the one sent, which must be served here, or the first that is.
void read_model(FieldReader& in, const RequestRules& rules, std::string& model);

// Strings that end an answer, in a field of this name.
void read_stop(FieldReader& in, std::string_view name, std::vector<std::string>& stop);

// A list of token ids below vocab_size; false after an error.
bool read_token_ids(FieldReader& in, std::string_view field, const nlohmann::json& list, int vocab_size,
                    std::vector<TokenId>& out);

}  // namespace volley::serve
