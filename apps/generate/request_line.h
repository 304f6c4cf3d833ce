// One line of an --input file: a request as JSON.
#pragma once

#include <volley/engine.h>

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "apps/cli/request_settings.h"

namespace volley::apps {

struct PromptText {
  std::string text;
};
struct PromptMessages {
  std::string json;  // an array of {role, content, …}
};
using Prompt = std::variant<std::vector<TokenId>, PromptText, PromptMessages>;

struct RequestLine {
  std::optional<std::string> id_json;  // as in the line: a JSON string or number
  Result<Prompt> prompt = invalid_argument("");
  RequestSettings settings;
  std::vector<std::string> ignored;  // names of fields
};

// Never fails as a whole: an error is in `prompt`, so that the answer still gets its id. kInvalidArgument names the
// field. A null counts as missing. Of several prompts the most exact counts: prompt_ids before messages before prompt.
// The others, and fields that requests do not have, are ignored (data sets have answers and tags) and named in
// `ignored`. Structured output has the server's names; other server fields that would change the answer are errors.
RequestLine parse_request_line(std::string_view text);

// Makes the engine's request: tokenises text and messages, then applies `defaults`, then the line's own settings.
Result<GenerateRequest> build_request(const Engine& engine, const Prompt& prompt, const RequestSettings& defaults,
                                      const RequestSettings& line);

}  // namespace volley::apps
