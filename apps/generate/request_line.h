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
  std::optional<std::string> id_json;  // as the line gave it: a JSON string or number
  Result<Prompt> prompt = invalid_argument("");
  RequestSettings settings;
  std::vector<std::string> ignored;  // names of fields
};

// Never fails as a whole: what is wrong with the line is in `prompt`, so that the answer can still carry its id.
// kInvalidArgument names the field. A null is a field not given. Of several prompts the most exact counts: prompt_ids
// before messages before prompt. The others, and fields that a request does not have, are ignored (data sets carry
// answers and tags), and named in `ignored` so that nothing is lost in silence. Structured output has the server's
// names; fields of the server that would change the answer and that a line does not have are errors.
RequestLine parse_request_line(std::string_view text);

// The engine's request: tokenises text and messages, then applies `defaults`, then the line's own settings.
Result<GenerateRequest> build_request(const Engine& engine, const Prompt& prompt, const RequestSettings& defaults,
                                      const RequestSettings& line);

}  // namespace volley::apps
