// The request bodies of POST /v1/chat/completions and /v1/completions: JSON in, a checked request out. Pure functions;
// what needs the model (chat template, tokenizer, context length) happens later, in generation_plan.cc.
#pragma once

#include <volley/engine.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "serve/api/conversation.h"
#include "serve/api/hosted_tools.h"
#include "serve/api/tool_choice.h"
#include "serve/json/errors.h"

namespace volley::serve {

enum class ApiKind { kChat, kCompletion };

// What a request is checked against. Borrowed for the length of a call.
struct RequestRules {
  const EngineInfo& info;
  const std::vector<std::string>& served_models;  // the first is the default
  int max_n = 128;
  int max_choices = 1024;  // prompts × n
  size_t max_response_bytes = size_t{64} << 20;
  bool refuse_hosted_tools = false;  // see HostedTools
  bool open_objects = false;         // of schemas, for requests that do not say
};

using Prompt = std::variant<std::string, std::vector<TokenId>>;

// What an answer holds beside its text.
struct ResponseShape {
  bool include_usage = false;     // of streams: a last chunk with the usage
  bool continuous_usage = false;  // of streams: the usage so far in every chunk
  bool include_stop = false;      // the text ends with the stop string or token that ended it
  bool echo_only = false;         // the prompt and no output
  bool token_ids = false;         // of the prompt and of the output
  bool tokens_as_ids = false;     // log-probabilities name tokens "token_id:5" instead of by their text
  int32_t prompt_logprobs = -1;   // -1: none; k: the k highest of each position of the prompt
  bool tokens_per_step = false;   // what each verify step committed
  bool blocks = false;            // of streams: every chunk says what its verify step drafted and accepted
  bool reasoning = true;          // false: what the model thinks is left out
  bool skip_special_tokens = true;
};

struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  std::string model;
  Conversation chat;            // of kChat
  std::vector<Prompt> prompts;  // of kCompletion: at least one
  bool add_special_tokens = false;
  ToolRequest tools;                   // of kChat
  bool separate_reasoning = true;      // of kChat; false: reasoning stays in the content, as generated
  GenerateRequest generate;            // all but the prompt, the choice index and the grammar of `tools`
  std::string grammar_field;           // the field that generate.grammar came from
  bool max_tokens_given = false;       // by the client: it must then fit into the context
  std::vector<std::string> bad_words;  // to be tokenised
  int32_t thinking_tokens = -1;        // -1: as many as the model likes
  int32_t truncate_prompt = 0;         // keep the last so many tokens of a prompt; -1: as many as fit; 0: all
  int n = 1;
  bool stream = false;
  bool echo = false;
  ResponseShape shape;
  std::vector<std::string> ignored_fields;  // that change nothing, or that nobody knows: for the log
  std::set<std::string> ignored_tools;      // types of the hosted tools that were left out: for the log and a header
  Notes notes;                              // on what the model reads otherwise than it was sent
};

ApiResult<ApiRequest> parse_chat_request(std::string_view body, const RequestRules& rules);
ApiResult<ApiRequest> parse_completion_request(std::string_view body, const RequestRules& rules);

// What is left of a request of another API of chats once that one's reader has read `taken`: fields that mean what they
// mean in a chat completion. `request` holds what that API calls otherwise, its conversation and tools included.
// `body`: the JSON text of `object`.
ApiResult<ApiRequest> read_shared_fields(const nlohmann::json& object, std::set<std::string_view> taken,
                                         std::string_view body, const RequestRules& rules,
                                         const std::optional<ToolChoice>& choice, ApiRequest request);

// Every field that the parser of this endpoint looks at, refused ones included: what openapi.json must describe.
std::set<std::string_view> known_fields(ApiKind kind, const RequestRules& rules);

}  // namespace volley::serve
