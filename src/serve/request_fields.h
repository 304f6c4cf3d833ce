// The fields that both generation endpoints share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "serve/fields.h"
#include "serve/openai_request.h"

namespace volley::serve {

// Model, sampling, limits, number of choices, streaming. out.kind and out.prompts must be set before.
void read_common_fields(FieldReader& in, const RequestRules& rules, ApiRequest& out);

// Fails for fields that would change the answer and are not built, unless their value asks for nothing. Marks as known
// those that never change the answer.
void refuse_unbuilt_fields(FieldReader& in);

// A list of token ids below vocab_size; false after an error.
bool read_token_ids(FieldReader& in, std::string_view field, const nlohmann::json& list, int vocab_size,
                    std::vector<TokenId>& out);

}  // namespace volley::serve
